//! The bytes that are transferred: the same for the same length, never repeating within a transfer.

use std::io::{self, Write};

use anyhow::Result;

use crate::command::sha256;

/// Writes the first `len` bytes of the payload.
pub fn write(len: u64, out: &mut dyn Write) -> io::Result<()> {
    let mut state = SEED;
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    let mut left = len;
    while left > 0 {
        chunk.clear();
        while chunk.len() < CHUNK_BYTES {
            state = next(state);
            chunk.extend_from_slice(&state.to_le_bytes());
        }
        let take = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        out.write_all(&chunk[..take])?;
        left -= take as u64;
    }
    Ok(())
}

/// SHA-256 of the first `len` bytes of the payload.
pub fn hash(len: u64) -> Result<String> {
    sha256(|out| write(len, out))
}

/// One step of the 64-bit xorshift generator (Marsaglia 2003, triple 13, 7, 17).
fn next(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const CHUNK_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_payload_is_the_start_of_a_long_one() {
        let (mut short, mut long) = (Vec::new(), Vec::new());
        write(1001, &mut short).unwrap();
        write(200_000, &mut long).unwrap();
        assert_eq!((short.len(), long.len()), (1001, 200_000));
        assert_eq!(short, long[..1001]);
        assert_ne!(long[..1000], long[65_536..66_536]);
    }
}

//! The 14 bytes in front of each received packet (`spec/ef10.md` 6.3).

/// How long the prefix is.
pub const BYTES: u16 = 14;

/// What the prefix says of its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// The receive hash (Toeplitz).
    pub hash: u32,
    /// The packet's length without the prefix; 0 when the card did not know it yet (cut-through).
    pub len: u16,
}

impl Prefix {
    /// Reads the prefix at the start of a buffer; `None` when the buffer is shorter.
    #[inline]
    pub fn parse(buffer: &[u8]) -> Option<Self> {
        let prefix: &[u8; BYTES as usize] = buffer.first_chunk()?;
        Some(Self {
            hash: u32::from_le_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]),
            len: u16::from_le_bytes([prefix[8], prefix[9]]),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hash_and_length_are_little_endian() {
        let bytes = [0x44, 0x33, 0x22, 0x11, 0xa, 0xb, 0xc, 0xd, 0xea, 0x05, 1, 2, 3, 4, 0xff];
        assert_eq!(Prefix::parse(&bytes), Some(Prefix { hash: 0x1122_3344, len: 1514 }));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_too_few(bytes: Vec<u8>) {
            prop_assert_eq!(Prefix::parse(&bytes).is_some(), bytes.len() >= usize::from(BYTES));
        }
    }
}

//! Receive-side scaling: which packets go to which queue (`spec/ef10.md` 4.8).
//!
//! hash → table entry (its low 7 bits) → queue. The hash is also in the prefix of each packet, and is
//! what the backend steers by.

/// Bytes of a hash key.
pub const KEY_BYTES: usize = 40;
/// Entries of an indirection table.
pub const TABLE_ENTRIES: usize = 128;
/// The most queues of a context.
pub const MAX_QUEUES: usize = 64;

/// A hash key.
pub type Key = [u8; KEY_BYTES];
/// An indirection table: each entry a queue, relative to the filter's.
pub type Table = [u8; TABLE_ENTRIES];

/// A table with these queues in turn.
///
/// # Panics
///
/// When there is no queue, or one beyond the [`MAX_QUEUES`] of a context.
pub fn spread(queues: &[u8]) -> Table {
    let last = queues.iter().max().expect("packets go to at least one queue");
    assert!(usize::from(*last) < MAX_QUEUES, "a context has up to 64 queues");
    std::array::from_fn(|entry| queues[entry % queues.len()])
}

/// Which fields are hashed: addresses and ports of TCP; of UDP too where the firmware can choose per
/// protocol (datagrams of one stream have their ports in every packet, fragments do not and are hashed
/// by addresses); addresses of all else.
pub fn flags(per_protocol: bool) -> u32 {
    const ENABLE_ALL: u32 = 0xf;
    const ADDRESSES: u32 = 0b0011;
    const PORTS_TOO: u32 = 0b1111;
    if !per_protocol {
        return ENABLE_ALL;
    }
    // TCP, UDP, other over IPv4, then over IPv6.
    [PORTS_TOO, PORTS_TOO, ADDRESSES, PORTS_TOO, PORTS_TOO, ADDRESSES]
        .into_iter()
        .zip((8..).step_by(4))
        .fold(ENABLE_ALL, |flags, (mode, at)| flags | mode << at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_in_turn() {
        assert_eq!(spread(&[0, 1, 2])[..7], [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(spread(&[5, 3])[..4], [5, 3, 5, 3]);
        assert!(spread(&[0]).iter().all(|&queue| queue == 0));
    }

    #[test]
    fn fields_by_protocol() {
        assert_eq!(flags(false), 0xf);
        assert_eq!(flags(true), 0x3ff3_ff0f);
    }
}

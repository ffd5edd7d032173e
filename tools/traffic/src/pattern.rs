//! The payload: a table of bytes without short periods, read from a place that depends on flow and
//! position. Taken and compared by slices, so that neither making nor checking it costs more than a
//! copy.

use std::sync::LazyLock;

/// Bytes after which a flow's stream repeats. It divides 2^32, so that sequence numbers may wrap.
const PERIOD: usize = 1 << 16;

static TABLE: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes: Vec<u8> = Vec::with_capacity(2 * PERIOD);
    while bytes.len() < PERIOD {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.extend_from_within(..);
    bytes.into()
});

/// `len` bytes (at most 65536) of a flow's stream from `position` on.
pub(crate) fn bytes(flow: u32, position: u32, len: usize) -> &'static [u8] {
    // An odd stride spreads the flows over the table.
    let start = flow.wrapping_mul(40_503).wrapping_add(position) as usize % PERIOD;
    &TABLE[start..start + len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_join_and_flows_differ() {
        let whole = bytes(3, u32::MAX - 9, 100);
        assert_eq!(whole[..10], *bytes(3, u32::MAX - 9, 10));
        assert_eq!(whole[10..], *bytes(3, 0, 90));
        assert_ne!(bytes(3, 0, 32), bytes(4, 0, 32));
        assert_eq!(bytes(7, 65_535, PERIOD).len(), PERIOD);
    }
}

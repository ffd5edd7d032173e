//! Receive descriptors (`spec/ef10.md` 6.1).

/// The largest byte count of a descriptor: 14 bits.
pub const MAX_BYTES: u16 = (1 << 14) - 1;

/// A descriptor for `bytes` bytes at a DMA address.
///
/// # Panics
///
/// In debug builds, when the address has more than 48 bits or `bytes` more than 14.
#[inline]
pub fn encode(address: u64, bytes: u16) -> u64 {
    debug_assert!(address >> 48 == 0, "DMA addresses are 48 bits wide");
    debug_assert!(bytes <= MAX_BYTES, "a byte count has 14 bits");
    address | u64::from(bytes) << 48
}

/// How many bytes of a buffer the card may be told of, when it pads its writes to a multiple of
/// `padding` (a power of two): the padded end of the longest packet still lies in the buffer. 0 when
/// the buffer is smaller than that.
#[inline]
pub fn usable_bytes(address: u64, capacity: usize, padding: u16) -> u16 {
    let padding = u64::from(padding);
    let end = (address + capacity as u64) & !(padding - 1);
    let bytes = end.saturating_sub(address);
    u16::try_from(bytes).unwrap_or(u16::MAX).min(MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_count_is_above_the_address() {
        assert_eq!(encode(0x1234_5678_9abc, 2048), 0x0800_1234_5678_9abc);
        assert_eq!(encode((1 << 48) - 1, MAX_BYTES), 0x3fff_ffff_ffff_ffff);
    }

    #[test]
    fn the_padded_end_stays_inside() {
        assert_eq!(usable_bytes(0x1000, 2048, 64), 2048);
        assert_eq!(usable_bytes(0x1000, 2000, 256), 1792);
        assert_eq!(usable_bytes(0x1010, 2048, 64), 2032);
        assert_eq!(usable_bytes(0x1001, 50, 64), 0);
        assert_eq!(usable_bytes(0x1000, 65_535, 64), MAX_BYTES);
    }

    proptest! {
        #[test]
        fn no_padded_write_leaves_the_buffer(
            address in 0u64..1 << 47,
            capacity in 0usize..65_536,
            shift in 6u32..9,
        ) {
            let padding = 1u16 << shift;
            let bytes = u64::from(usable_bytes(address, capacity, padding));
            if bytes > 0 {
                let padded = (address + bytes).next_multiple_of(u64::from(padding));
                prop_assert!(padded <= address + capacity as u64);
            }
        }
    }
}

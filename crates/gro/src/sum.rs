//! Ones' complement sums of headers, where a call to the general one would cost more than the sum.

/// The folded sum of big-endian 16-bit words. `N` is a multiple of 4, and small.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "folding keeps the carries")]
pub(crate) fn sum<const N: usize>(bytes: &[u8; N]) -> u16 {
    const { assert!(N.is_multiple_of(4) && N < 4096, "whole words, and no overflow") };
    let (words, _) = bytes.as_chunks::<4>();
    // The order of the bytes matters only for the result (RFC 1071, 2 (B)).
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    u16::from_be(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::checksum;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_sum_like_anything_else(short: [u8; 8], ip: [u8; 20], long: [u8; 32]) {
            prop_assert_eq!(sum(&short), checksum::sum(&short));
            prop_assert_eq!(sum(&ip), checksum::sum(&ip));
            prop_assert_eq!(sum(&long), checksum::sum(&long));
        }
    }

    #[test]
    fn carries_are_kept() {
        assert_eq!(sum(&[0xff; 40]), 0xffff);
        assert_eq!(sum(&[0xff; 4092]), 0xffff);
        assert_eq!(sum(&[0; 20]), 0);
    }
}

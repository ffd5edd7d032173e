//! Ones' complement sums of a few words: headers, where a call to the general one would cost more than
//! the sum (RFC 1071).

/// The sum of big-endian words, not folded. `N` is a multiple of 4, and small.
#[inline]
pub(crate) fn words<const N: usize>(bytes: &[u8; N]) -> u64 {
    const { assert!(N.is_multiple_of(4) && N < 4096, "whole words, and no overflow") };
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum()
}

/// Folds a sum of 32-bit words to 16 bits, with the carries.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "folding keeps the carries")]
pub(crate) const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::checksum;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_sum_like_the_general_sum(bytes: [u8; 20], more: [u8; 32]) {
            prop_assert_eq!(fold(words(&bytes)), checksum::sum(&bytes));
            prop_assert_eq!(fold(words(&more)), checksum::sum(&more));
            let both = checksum::add(checksum::sum(&bytes), checksum::sum(&more));
            prop_assert_eq!(fold(words(&bytes) + words(&more)), both);
        }
    }

    #[test]
    fn carries_are_kept() {
        assert_eq!(fold(words(&[0xff; 40])), 0xffff);
        assert_eq!(fold(u64::from(u32::MAX) * 1024), 0xffff);
        assert_eq!(fold(0), 0);
    }
}

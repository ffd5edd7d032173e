//! The Internet checksum (RFC 1071): ones' complement sums of big-endian 16-bit words.
//!
//! All sums here are folded to 16 bits and *not* complemented; a header field holds the complement.
//! A run of bytes with a valid checksum inside sums to 0xFFFF (with its pseudo-header, where it has
//! one). 0x0000 and 0xFFFF are two encodings of zero.

#[expect(unsafe_code, reason = "vector loads, and functions for a newer processor")]
mod simd;

use crate::Frame;
use crate::header::{PROTOCOL_TCP, PROTOCOL_UDP, Parsed};

/// Adds two folded sums with end-around carry.
#[inline]
pub const fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u16
}

/// Takes `b` out of the folded sum `a`.
#[inline]
pub const fn sub(a: u16, b: u16) -> u16 {
    add(a, !b)
}

/// The folded sum of the bytes; a last odd byte counts as if a zero followed it.
#[inline]
pub fn sum(bytes: &[u8]) -> u16 {
    // Addresses and headers are too short to gain from wide registers.
    if bytes.len() < SHORT { words(0, bytes) } else { simd::sum(bytes) }
}

/// Copies the bytes and gives their folded sum.
///
/// The sum is taken of bytes that the copy has brought into the nearest cache. A loop that does both
/// at once was measured to be no faster.
///
/// # Panics
///
/// When the lengths differ.
#[inline]
pub fn copy_and_sum(from: &[u8], to: &mut [u8]) -> u16 {
    to.copy_from_slice(from);
    sum(from)
}

/// The folded sum of a frame's bytes from `offset` to its end, across its pieces.
#[inline]
pub fn sum_frame(frame: &Frame, offset: usize) -> u16 {
    sum_range(frame, offset, usize::MAX)
}

/// The folded sum of `len` bytes of a frame from `offset`, or of less when it ends before.
pub fn sum_range(frame: &Frame, offset: usize, len: usize) -> u16 {
    let (mut skip, mut left, mut total) = (offset, len, Running::default());
    for piece in frame.pieces() {
        if skip >= piece.len() {
            skip -= piece.len();
            continue;
        }
        let part = &piece[skip..];
        let part = &part[..part.len().min(left)];
        skip = 0;
        left -= part.len();
        total.append(sum(part), part.len());
    }
    total.sum
}

/// A sum over parts that follow each other, of which each may have an odd length.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Running {
    /// The folded sum so far.
    pub(crate) sum: u16,
    odd: bool,
}

impl Running {
    /// Adds the folded sum of the next `len` bytes.
    #[inline]
    pub(crate) fn append(&mut self, sum: u16, len: usize) {
        // A part that starts in the middle of a word has its bytes swapped (RFC 1071, 2 (B)).
        let sum = if self.odd { sum.swap_bytes() } else { sum };
        self.sum = add(self.sum, sum);
        self.odd ^= len % 2 == 1;
    }
}

/// The folded sum of an IPv4 pseudo-header (RFC 9293, 3.1). `length` is the transport header and its
/// payload in bytes.
#[inline]
pub fn pseudo_header_v4(source: [u8; 4], destination: [u8; 4], protocol: u8, length: u16) -> u16 {
    let addresses = add(sum(&source), sum(&destination));
    add(add(addresses, u16::from(protocol)), length)
}

/// The folded sum of an IPv6 pseudo-header (RFC 8200, 8.1). `length` is the transport header and its
/// payload in bytes, without extension headers.
#[inline]
pub fn pseudo_header_v6(source: &[u8; 16], destination: &[u8; 16], next: u8, length: u32) -> u16 {
    let addresses = add(sum(source), sum(destination));
    #[expect(clippy::cast_possible_truncation, reason = "both halves of the length are added")]
    let length = add((length >> 16) as u16, length as u16);
    add(add(addresses, u16::from(next)), length)
}

/// The folded pseudo-header sum for a frame whose headers were found. `length` is the transport header
/// and its payload in bytes.
pub fn pseudo_header(head: &[u8], parsed: &Parsed, length: usize) -> u16 {
    let network = usize::from(parsed.layout.network);
    let protocol = if parsed.tcp { PROTOCOL_TCP } else { PROTOCOL_UDP };
    // Addresses lie together in both versions.
    let addresses = if parsed.v6 {
        sum(&head[network + 8..network + 40])
    } else {
        sum(&head[network + 12..network + 20])
    };
    #[expect(clippy::cast_possible_truncation, reason = "both halves of the length are added")]
    let length = add((length >> 16) as u16, length as u16);
    add(add(addresses, u16::from(protocol)), length)
}

/// The value of a checksum field after one 16-bit word that it covers has changed (RFC 1624, eqn. 3).
#[inline]
pub const fn update(field: u16, old: u16, new: u16) -> u16 {
    !add(add(!field, !old), new)
}

/// The plain version, 64 bits at a time, onto a total that was summed before in the same way.
///
/// Words are added as they lie in memory, whatever the byte order: a ones' complement sum only has to
/// be swapped once, at its end (RFC 1071, 2 (B)). The total keeps the carries of 16 GiB.
#[inline]
fn words(mut total: u64, bytes: &[u8]) -> u16 {
    let (words, mut rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_ne_bytes(*word);
        total += (word >> 32) + (word & 0xffff_ffff);
    }
    if let Some((word, behind)) = rest.split_first_chunk::<4>() {
        total += u64::from(u32::from_ne_bytes(*word));
        rest = behind;
    }
    if let Some((word, behind)) = rest.split_first_chunk::<2>() {
        total += u64::from(u16::from_ne_bytes(*word));
        rest = behind;
    }
    if let [last] = rest {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    u16::from_be(fold(total))
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "folding keeps the carries")]
const fn fold(total: u64) -> u16 {
    let total = (total >> 32) + (total & 0xffff_ffff);
    let total = (total >> 32) + (total & 0xffff_ffff);
    let total = (total >> 16) + (total & 0xffff);
    let total = (total >> 16) + (total & 0xffff);
    total as u16
}

/// Below this many bytes the plain version is as fast.
const SHORT: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use proptest::prelude::*;

    #[test]
    fn rfc_1071_example() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(sum(&[0x01]), 0x0100);
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    fn pieces_sum_like_the_whole() {
        let bytes: Vec<u8> = (1..=23).collect();
        let mut pool = Pool::new(4, 32);
        let mut frame = Frame::copied_from(&bytes[..5], &mut pool).unwrap();
        for part in [&bytes[5..6], &bytes[6..13], &bytes[13..]] {
            frame.push(Frame::copied_from(part, &mut pool).unwrap(), 0, &mut pool);
        }
        for offset in 0..bytes.len() {
            assert_eq!(sum_frame(&frame, offset), sum(&bytes[offset..]), "from {offset}");
        }
    }

    #[test]
    fn a_changed_word_changes_the_field() {
        let mut header =
            [0x45, 0, 0, 40, 0x12, 0x34, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let field = !sum(&header);
        header[3] = 60;
        assert_eq!(update(field, 40, 60), !sum(&header));
    }

    /// The definition: 16-bit words, each carry added back at once.
    fn definition(bytes: &[u8]) -> u16 {
        let word = |pair: &[u8]| u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]);
        bytes.chunks(2).fold(0, |total, pair| add(total, word(pair)))
    }

    /// Every version gives what the definition gives, with the same encoding of zero.
    fn check(bytes: &[u8]) {
        let expected = definition(bytes);
        assert_eq!(words(0, bytes), expected, "{} bytes", bytes.len());
        assert_eq!(simd::sum(bytes), expected, "{} bytes", bytes.len());
        assert_eq!(sum(bytes), expected, "{} bytes", bytes.len());
        let mut copy = vec![0x55; bytes.len()];
        assert_eq!(copy_and_sum(bytes, &mut copy), expected, "{} bytes", bytes.len());
        assert_eq!(copy, bytes);
    }

    #[test]
    fn short_lengths_at_all_alignments() {
        let mut state = 1_u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        let bytes: Vec<u8> = (0..300).map(|_| noise()).collect();
        for start in 0..64 {
            for len in 0..=200 {
                check(&bytes[start..start + len]);
            }
        }
    }

    #[test]
    fn carries_are_kept_and_both_zeros_told_apart() {
        for len in [1, 2, 31, 32, 33, 63, 64, 65, 1448, 65_535, 200_000] {
            check(&vec![0xff; len]);
            check(&vec![0; len]);
        }
        assert_eq!((sum(&[0; 100]), sum(&[0xff; 100])), (0, 0xffff));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..65_536), skip in 0_usize..64) {
            check(&bytes[skip.min(bytes.len())..]);
        }
    }
}

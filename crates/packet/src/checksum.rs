//! The Internet checksum (RFC 1071): ones' complement sums of big-endian 16-bit words.
//!
//! All sums here are folded to 16 bits and *not* complemented; a header field holds the complement.
//! A run of bytes with a valid checksum inside sums to 0xFFFF (with its pseudo-header, where it has
//! one). 0x0000 and 0xFFFF are two encodings of zero.

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
    scalar(bytes)
}

/// The folded sum of a frame's bytes from `offset` to its end, across its pieces.
#[inline]
pub fn sum_frame(frame: &Frame, offset: usize) -> u16 {
    sum_range(frame, offset, usize::MAX)
}

/// The folded sum of `len` bytes of a frame from `offset`, or of less when it ends before.
pub fn sum_range(frame: &Frame, offset: usize, len: usize) -> u16 {
    let (mut skip, mut left, mut total, mut odd) = (offset, len, 0, false);
    for piece in frame.pieces() {
        if skip >= piece.len() {
            skip -= piece.len();
            continue;
        }
        let part = &piece[skip..];
        let part = &part[..part.len().min(left)];
        skip = 0;
        left -= part.len();
        let mut value = sum(part);
        if odd {
            // The piece starts in the middle of a word: its bytes are swapped (RFC 1071, 2 (B)).
            value = value.swap_bytes();
        }
        total = add(total, value);
        odd ^= part.len() % 2 == 1;
    }
    total
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

/// The plain version that every faster one is tested against.
fn scalar(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut total: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_be_bytes(last));
    fold(total)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

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
}

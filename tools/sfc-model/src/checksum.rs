//! The Internet checksum, checked on receive and filled in on transmit.

use crate::bits::{be16, low16, number};
use crate::parse::{Headers, L4};

/// The one's complement sum of 16-bit words, on top of another one.
fn sum(bytes: &[u8], start: u64) -> u64 {
    let mut total = start;
    let mut pairs = bytes.chunks_exact(2);
    for pair in &mut pairs {
        total += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    if let [last] = pairs.remainder() {
        total += u64::from(*last) << 8;
    }
    total
}

fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    low16(total)
}

fn pseudo(frame: &[u8], headers: &Headers) -> u64 {
    let len = number(headers.end - headers.l4_at);
    let addresses = sum(&frame[headers.source.start..headers.destination.end], 0);
    addresses + u64::from(headers.protocol) + len
}

/// Whether the header checksum of IPv4 is right; true for what has none.
pub(crate) fn ip_is_good(frame: &[u8], headers: &Headers) -> bool {
    !headers.is_v4() || fold(sum(&frame[headers.l3_at..headers.l4_at], 0)) == 0xffff
}

/// Whether the checksum of TCP or UDP is right; true for what has none.
pub(crate) fn l4_is_good(frame: &[u8], headers: &Headers) -> bool {
    let Some(at) = headers.l4_checksum_at() else { return true };
    if headers.l4 == L4::Udp && headers.is_v4() && be16(frame, at) == Some(0) {
        return true;
    }
    fold(sum(&frame[headers.l4_at..headers.end], pseudo(frame, headers))) == 0xffff
}

/// Fills in the header checksum of IPv4.
pub(crate) fn fill_ip(frame: &mut [u8], headers: &Headers) {
    if headers.is_v4() {
        let at = headers.l3_at + 10;
        frame[at..at + 2].fill(0);
        let value = !fold(sum(&frame[headers.l3_at..headers.l4_at], 0));
        frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
}

/// Fills in the checksum of TCP or UDP.
pub(crate) fn fill_l4(frame: &mut [u8], headers: &Headers) {
    let Some(at) = headers.l4_checksum_at() else { return };
    frame[at..at + 2].fill(0);
    let value = !fold(sum(&frame[headers.l4_at..headers.end], pseudo(frame, headers)));
    let value = if value == 0 && headers.l4 == L4::Udp { 0xffff } else { value };
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{L3, parse};

    fn udp(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        let len = u16::try_from(28 + payload.len()).expect("a short packet");
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9]);
        frame.extend((len - 20).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn what_is_filled_in_is_good() {
        let mut frame = udp(b"odd");
        let headers = parse(&frame, &[]).expect("a frame").outer;
        assert_eq!((headers.l3, headers.l4), (L3::V4, L4::Udp));
        assert!(!ip_is_good(&frame, &headers));
        assert!(l4_is_good(&frame, &headers), "UDP without a checksum");
        fill_ip(&mut frame, &headers);
        fill_l4(&mut frame, &headers);
        assert!(ip_is_good(&frame, &headers) && l4_is_good(&frame, &headers));
        assert_ne!(&frame[40..42], [0, 0]);
        *frame.last_mut().expect("bytes") ^= 1;
        assert!(!l4_is_good(&frame, &headers));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200), v6: bool) {
            let mut frame = udp(&bytes);
            if v6 {
                frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
            }
            let cut = bytes.first().map_or(0, |&byte| usize::from(byte) % frame.len());
            for frame in [&frame[..], &frame[..cut]] {
                if let Some(parsed) = parse(frame, &[9]) {
                    for headers in [Some(parsed.outer), parsed.inner].into_iter().flatten() {
                        ip_is_good(frame, &headers);
                        l4_is_good(frame, &headers);
                        fill_l4(&mut frame.to_vec(), &headers);
                        headers.payload_at(frame);
                    }
                }
            }
        }
    }
}

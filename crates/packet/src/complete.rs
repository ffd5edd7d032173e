//! Transport checksums in software: completed where the sender left them open, verified where nobody
//! has.

use crate::checksum;
use crate::header::Parsed;
use crate::{Checksum, Frame};

/// Why a checksum can't be completed: the place that was named for it makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CompleteError {
    /// The frame ends before the part that is to be summed starts.
    #[error("checksum start {start} is beyond the frame's {len} bytes")]
    Start {
        /// Where the part should start, in bytes from the start of the frame.
        start: usize,
        /// Length of the frame in bytes.
        len: usize,
    },
    /// The field is not inside the frame's first piece.
    #[error("checksum field at {field} is not among the frame's headers")]
    Field {
        /// Where the field should be, in bytes from the start of the frame.
        field: usize,
    },
}

/// Computes a checksum that was left open ([`Checksum::Partial`]) and stores it. Other frames stay as
/// they are. Costs one pass over the summed bytes.
///
/// The field takes part with what it holds, the pseudo-header sum (virtio 5.1.6.2). Zero, which in a
/// UDP header means "none", is stored as 0xFFFF there (RFC 768).
///
/// # Errors
///
/// When start or offset make no sense; the frame is then as it was.
pub fn complete_checksum(frame: &mut Frame) -> Result<(), CompleteError> {
    let Checksum::Partial { start, offset } = frame.meta.checksum else { return Ok(()) };
    let (start, len) = (usize::from(start), frame.len());
    let field = start + usize::from(offset);
    if start >= len {
        return Err(CompleteError::Start { start, len });
    }
    if field + 2 > frame.head().len() {
        return Err(CompleteError::Field { field });
    }
    let sum = !checksum::sum_frame(frame, start);
    let sum = if sum == 0 && offset == UDP_FIELD { 0xffff } else { sum };
    frame.head_mut()[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    frame.meta.checksum = Checksum::Verified { levels: 1 };
    Ok(())
}

/// Whether the transport checksum of a frame is right, computed over the bytes. A UDP checksum of zero
/// is none and counts as right; so does nothing else. Bytes behind the IP packet are left out.
pub fn transport_is_valid(frame: &Frame, parsed: &Parsed) -> bool {
    let (network, transport) =
        (usize::from(parsed.layout.network), usize::from(parsed.layout.transport));
    let Some(len) = (network + parsed.ip_len).checked_sub(transport) else { return false };
    if transport + len > frame.len() {
        return false;
    }
    let field = transport + usize::from(UDP_FIELD);
    if !parsed.tcp && frame.head()[field..field + 2] == [0, 0] {
        return true;
    }
    let pseudo = checksum::pseudo_header(frame.head(), parsed, len);
    checksum::add(pseudo, checksum::sum_range(frame, transport, len)) == 0xffff
}

/// Offset of the checksum in a UDP header.
const UDP_FIELD: u16 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{TcpFrame, UdpFrame};
    use crate::{Pool, header};
    use proptest::prelude::*;

    fn frame(bytes: &[u8]) -> (Frame, Pool) {
        let mut pool = Pool::new(2, 2048);
        (Frame::copied_from(bytes, &mut pool).unwrap(), pool)
    }

    /// Leaves the checksum open as a sender with offload does.
    fn open(bytes: &mut [u8]) -> Checksum {
        let parsed = header::parse(bytes).unwrap();
        let (start, offset) = (parsed.layout.transport, if parsed.tcp { 16 } else { 6 });
        let (transport, field) = (usize::from(start), usize::from(start + offset));
        let pseudo = checksum::pseudo_header(bytes, &parsed, bytes.len() - transport);
        bytes[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
        Checksum::Partial { start, offset }
    }

    #[test]
    fn completion_gives_what_the_sender_would_have_sent() {
        let (mut tcp, mut udp) = (TcpFrame::v6(), UdpFrame::v4());
        (tcp.payload, udp.payload) = (b"seven b", b"some data");
        for bytes in [tcp.to_vec(), udp.to_vec()] {
            let mut opened = bytes.clone();
            let checksum = open(&mut opened);
            let (mut frame, _pool) = frame(&opened);
            assert!(!transport_is_valid(&frame, &header::parse(&opened).unwrap()));
            frame.meta.checksum = checksum;
            complete_checksum(&mut frame).unwrap();
            assert_eq!(frame.to_vec(), bytes);
            assert_eq!(frame.meta.checksum, Checksum::Verified { levels: 1 });
            assert!(transport_is_valid(&frame, &header::parse(&bytes).unwrap()));
        }
    }

    #[test]
    fn places_that_make_no_sense_are_refused() {
        let bytes = TcpFrame::v4().to_vec();
        for (start, offset) in [(54, 0), (34, 19), (34, 65000), (65535, 65535)] {
            let (mut frame, _pool) = frame(&bytes);
            frame.meta.checksum = Checksum::Partial { start, offset };
            assert!(complete_checksum(&mut frame).is_err(), "{start} {offset}");
            assert_eq!(frame.to_vec(), bytes);
        }
    }

    #[test]
    fn padding_and_missing_udp_checksums_are_no_fault() {
        let mut bytes = TcpFrame::v4().to_vec();
        bytes.extend([0xaa; 6]);
        let parsed = header::parse(&bytes).unwrap();
        assert!(transport_is_valid(&frame(&bytes).0, &parsed));
        bytes[17] = 200;
        let parsed = header::parse(&bytes).unwrap();
        assert!(!transport_is_valid(&frame(&bytes).0, &parsed));
        let mut bytes = UdpFrame::v4().to_vec();
        bytes[40..42].fill(0);
        let parsed = header::parse(&bytes).unwrap();
        assert!(transport_is_valid(&frame(&bytes).0, &parsed));
    }

    proptest! {
        #[test]
        fn completed_frames_verify_whatever_their_pieces(
            payload in prop::collection::vec(any::<u8>(), 0..1500),
            (v6, udp) in any::<(bool, bool)>(),
            cut in 1_usize..200,
        ) {
            let bytes = match (v6, udp) {
                (false, false) => TcpFrame { payload: &payload, ..TcpFrame::v4() }.to_vec(),
                (true, false) => TcpFrame { payload: &payload, ..TcpFrame::v6() }.to_vec(),
                (false, true) => UdpFrame { payload: &payload, ..UdpFrame::v4() }.to_vec(),
                (true, true) => UdpFrame { payload: &payload, ..UdpFrame::v6() }.to_vec(),
            };
            let mut opened = bytes.clone();
            let checksum = open(&mut opened);
            let (head, rest) = opened.split_at(bytes.len() - payload.len());
            let mut pool = Pool::new(1501, 200);
            let mut frame = Frame::copied_from(head, &mut pool).unwrap();
            for part in rest.chunks(cut) {
                let part = Frame::copied_from(part, &mut pool).unwrap();
                frame.push(part, 0, &mut pool);
            }
            frame.meta.checksum = checksum;
            complete_checksum(&mut frame).unwrap();
            let parsed = header::parse(frame.head()).unwrap();
            prop_assert!(transport_is_valid(&frame, &parsed));
            prop_assert_eq!(frame.to_vec(), bytes);
        }

        #[test]
        fn arbitrary_places_change_two_bytes_or_none(
            bytes in prop::collection::vec(any::<u8>(), 1..200),
            (start, offset) in prop_oneof![any::<(u16, u16)>(), (0_u16..210, 0_u16..210)],
        ) {
            let (mut frame, _pool) = frame(&bytes);
            frame.meta.checksum = Checksum::Partial { start, offset };
            let field = usize::from(start) + usize::from(offset);
            match complete_checksum(&mut frame) {
                Ok(()) => {
                    prop_assert_eq!(&frame.head()[..field], &bytes[..field]);
                    prop_assert_eq!(&frame.head()[field + 2..], &bytes[field + 2..]);
                }
                Err(_) => prop_assert_eq!(frame.head(), &bytes[..]),
            }
        }
    }
}

//! The header against frames of every kind, and against arbitrary bytes.

use packet::build::{TcpFrame, UdpFrame};
use packet::{Pool, VlanTag};
use proptest::prelude::*;

use super::*;

/// A TCP or UDP frame with `payload` bytes; `tags` VLAN tags in its bytes.
fn frame_bytes(v6: bool, tcp: bool, tags: usize, payload: usize) -> Vec<u8> {
    let (tags, payload) = (vec![(0x8100, 5); tags], vec![7; payload]);
    if tcp {
        let mut frame = if v6 { TcpFrame::v6() } else { TcpFrame::v4() };
        (frame.link.tags, frame.payload) = (&tags, &payload);
        frame.to_vec()
    } else {
        let mut frame = if v6 { UdpFrame::v6() } else { UdpFrame::v4() };
        (frame.link.tags, frame.payload) = (&tags, &payload);
        frame.to_vec()
    }
}

fn frame(bytes: &[u8], pool: &mut Pool) -> Frame {
    crate::pieces::frame(bytes.len(), pool, |offset, to| {
        to.copy_from_slice(&bytes[offset..][..to.len()]);
    })
    .unwrap()
}

fn pool() -> Pool {
    Pool::new(40, 2048)
}

fn gso(gso_type: u8, gso_size: u16, csum_start: u16, csum_offset: u16) -> Header {
    Header { flags: NEEDS_CSUM, gso_type, hdr_len: 0, gso_size, csum_start, csum_offset }
}

#[test]
fn supers_of_each_kind_are_described() {
    let table = [
        (false, true, GSO_TCPV4, GsoKind::TcpV4, 34, 16, 54),
        (true, true, GSO_TCPV6, GsoKind::TcpV6, 54, 16, 74),
        (false, false, GSO_UDP_L4, GsoKind::UdpV4, 34, 6, 42),
        (true, false, GSO_UDP_L4, GsoKind::UdpV6, 54, 6, 62),
    ];
    for (v6, tcp, gso_type, kind, transport, offset, payload) in table {
        for tags in 0..=2 {
            let shift = u16::try_from(tags * 4).unwrap();
            let bytes = frame_bytes(v6, tcp, tags, 2500);
            let mut frame = frame(&bytes, &mut pool());
            let header = gso(gso_type, 1000, transport + shift, offset);
            header.describe(&mut frame).unwrap();
            let gso = frame.meta.gso.unwrap();
            assert_eq!((gso.kind, gso.size, gso.segments), (kind, 1000, 3));
            assert!(gso.trusted && !gso.ecn && !gso.fixed_id);
            let start = transport + shift;
            assert_eq!(frame.meta.checksum, Checksum::Partial { start, offset });
            assert_eq!(
                frame.meta.layout,
                Layout { network: 14 + shift, transport: start, payload: payload + shift }
            );
            // And back: the same header, with its length filled in.
            let sent = Header::of(&frame).unwrap();
            assert_eq!(sent, Header { hdr_len: payload + shift, ..header });
        }
    }
}

#[test]
fn the_ecn_bit_goes_both_ways_for_tcp() {
    let bytes = frame_bytes(false, true, 0, 3000);
    let mut frame = frame(&bytes, &mut pool());
    gso(GSO_TCPV4 | GSO_ECN, 1448, 34, 16).describe(&mut frame).unwrap();
    assert!(frame.meta.gso.unwrap().ecn);
    assert_eq!(Header::of(&frame).unwrap().gso_type, GSO_TCPV4 | GSO_ECN);
}

#[test]
fn a_super_of_one_segment_is_a_packet() {
    let bytes = frame_bytes(false, true, 0, 1000);
    let mut frame = frame(&bytes, &mut pool());
    gso(GSO_TCPV4, 1000, 34, 16).describe(&mut frame).unwrap();
    assert_eq!(frame.meta.gso, None);
    assert_eq!(frame.meta.checksum, Checksum::Partial { start: 34, offset: 16 });
}

#[test]
fn a_super_that_contradicts_its_bytes_is_refused() {
    let tcp = frame_bytes(false, true, 0, 3000);
    let mut fragment = tcp.clone();
    fragment[20] = 0x20;
    let mut longer = tcp.clone();
    longer.push(0);
    let table = [
        (&tcp, gso(GSO_TCPV4, 0, 34, 16)),
        (&tcp, gso(GSO_TCPV6, 1000, 34, 16)),
        (&tcp, gso(GSO_UDP_L4, 1000, 34, 16)),
        (&tcp, gso(3, 1000, 34, 16)),
        (&tcp, gso(GSO_TCPV4 | 0x20, 1000, 34, 16)),
        (&tcp, gso(GSO_TCPV4, 1000, 35, 16)),
        (&tcp, gso(GSO_TCPV4, 1000, 34, 6)),
        (&tcp, Header { flags: 0, ..gso(GSO_TCPV4, 1000, 0, 0) }),
        (&fragment, gso(GSO_TCPV4, 1000, 34, 16)),
        (&longer, gso(GSO_TCPV4, 1000, 34, 16)),
        (&frame_bytes(false, true, 0, 0), gso(GSO_TCPV4, 1000, 34, 16)),
        (&frame_bytes(false, true, 3, 3000), gso(GSO_TCPV4, 1000, 46, 16)),
        (&tcp[..50].to_vec(), gso(GSO_TCPV4, 1000, 34, 16)),
    ];
    for (bytes, header) in table {
        let mut frame = frame(bytes, &mut pool());
        assert_eq!(header.describe(&mut frame), Err(Mismatch), "{header:?}");
    }
}

#[test]
fn a_verified_super_gets_a_partial_checksum() {
    for (v6, gso_type, start) in [(false, GSO_TCPV4, 34), (true, GSO_TCPV6, 54)] {
        let bytes = frame_bytes(v6, true, 0, 3000);
        let mut frame = frame(&bytes, &mut pool());
        let header = Header { flags: DATA_VALID, ..gso(gso_type, 1000, 0, 0) };
        header.describe(&mut frame).unwrap();
        assert_eq!(frame.meta.checksum, Checksum::Partial { start, offset: 16 });
        let at = usize::from(start) + 16;
        let field = u16::from_be_bytes([frame.head()[at], frame.head()[at + 1]]);
        let expected = if v6 {
            let mut address = [0; 16];
            (address[0], address[15]) = (0xfd, 1);
            let source = address;
            address[15] = 2;
            checksum::pseudo_header_v6(&source, &address, 6, 3020)
        } else {
            checksum::pseudo_header_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, 3020)
        };
        assert_eq!(field, expected);
    }
}

#[test]
fn plain_frames_tell_their_checksum() {
    let bytes = frame_bytes(false, false, 0, 100);
    let mut plain = frame(&bytes, &mut pool());
    Header::default().describe(&mut plain).unwrap();
    assert_eq!(plain.meta.checksum, Checksum::Unknown);
    let mut valid = frame(&bytes, &mut pool());
    Header { flags: DATA_VALID, ..Header::default() }.describe(&mut valid).unwrap();
    assert_eq!(valid.meta.checksum, Checksum::Verified { levels: 1 });
    // Verified is nothing to tell the kernel on the way out.
    assert_eq!(Header::of(&valid), Ok(Header::default()));
    let mut partial = frame(&bytes, &mut pool());
    gso(GSO_NONE, 0, 34, 6).describe(&mut partial).unwrap();
    assert_eq!(partial.meta.checksum, Checksum::Partial { start: 34, offset: 6 });
    assert_eq!(partial.meta.layout, Layout { network: 14, transport: 34, payload: 42 });
    for (start, offset) in [(13, 6), (200, 6), (34, 200), (u16::MAX, u16::MAX)] {
        let mut frame = frame(&bytes, &mut pool());
        assert_eq!(gso(GSO_NONE, 0, start, offset).describe(&mut frame), Err(Mismatch));
    }
}

#[test]
fn an_unfinished_frame_is_described_from_its_bytes() {
    for (tcp, offset) in [(true, 16), (false, 6)] {
        let mut frame = frame(&frame_bytes(true, tcp, 1, 10), &mut pool());
        describe_unfinished(&mut frame).unwrap();
        assert_eq!(frame.meta.checksum, Checksum::Partial { start: 58, offset });
    }
    let mut sctp = frame_bytes(true, true, 0, 10);
    sctp[20] = 132;
    let mut other = frame(&sctp, &mut pool());
    assert_eq!(describe_unfinished(&mut other), Err(Mismatch));
}

#[test]
fn a_tag_of_the_metadata_moves_the_offsets() {
    let mut frame = frame(&frame_bytes(false, true, 0, 3000), &mut pool());
    gso(GSO_TCPV4, 1000, 34, 16).describe(&mut frame).unwrap();
    frame.meta.vlan = Some(VlanTag { tpid: 0x8100, tci: 5 });
    let header = Header::of(&frame).unwrap();
    assert_eq!((header.csum_start, header.csum_offset, header.hdr_len), (38, 16, 58));
    frame.meta.checksum = Checksum::Partial { start: u16::MAX, offset: 16 };
    assert_eq!(Header::of(&frame), Err(Mismatch));
}

proptest! {
    #[test]
    fn the_header_is_its_bytes(bytes: [u8; 10]) {
        prop_assert_eq!(Header::from_bytes(bytes).to_bytes(), bytes);
    }

    /// Whatever the header says of whatever bytes: what is accepted is inside the frame.
    #[test]
    fn what_is_accepted_fits(
        raw: [u8; 10],
        types in prop::option::of(prop::sample::select(vec![0, 1, 4, 5, 0x81])),
        mut bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            (any::<bool>(), any::<bool>(), 0..4usize, 0..5000usize)
                .prop_map(|(v6, tcp, tags, payload)| frame_bytes(v6, tcp, tags, payload)),
        ],
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        fitting in any::<bool>(),
    ) {
        for (at, value) in damage {
            let at = at.index(bytes.len().max(1));
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        let mut header = Header::from_bytes(raw);
        header.gso_type = types.unwrap_or(header.gso_type);
        if fitting {
            header.flags |= NEEDS_CSUM;
            if let Ok(found) = header::parse(&bytes) {
                header.csum_start = found.layout.transport;
                header.csum_offset = checksum_field(&found);
            }
        }
        let mut pool = pool();
        let mut frame = frame(&bytes, &mut pool);
        if header.describe(&mut frame).is_ok() {
            let head = frame.head().len();
            if let Checksum::Partial { start, offset } = frame.meta.checksum {
                prop_assert!(usize::from(start) + usize::from(offset) + 2 <= head);
                prop_assert!(start >= 14);
                prop_assert!(usize::from(frame.meta.layout.payload) <= head);
            }
            if let Some(gso) = frame.meta.gso {
                let payload = bytes.len() - usize::from(frame.meta.layout.payload);
                prop_assert!(gso.size > 0 && gso.segments > 1);
                prop_assert_eq!(usize::from(gso.segments), payload.div_ceil(gso.size.into()));
                let partial = matches!(frame.meta.checksum, Checksum::Partial { .. });
                prop_assert!(partial);
            }
            // Whatever was accepted can be sent.
            prop_assert!(Header::of(&frame).is_ok());
        }
        pool.recycle(frame);
        prop_assert_eq!(pool.available(), 40);
    }
}

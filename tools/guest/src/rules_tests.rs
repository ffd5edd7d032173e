//! Each rule broken once, by a header and a frame that are otherwise right.

use super::*;
use crate::features::DEFAULT;

/// An Ethernet frame with TCP or UDP in IPv4 or IPv6 and a right checksum: partial or complete.
fn frame(v6: bool, protocol: u8, payload: usize, partial: bool) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    let transport_len = if protocol == TCP { 20 } else { 8 } + payload;
    let len = u16::try_from(transport_len).unwrap();
    if v6 {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend(len.to_be_bytes());
        bytes.extend([protocol, 64]);
        bytes.extend([[1; 16], [3; 16]].as_flattened());
    } else {
        bytes.extend([0x08, 0x00, 0x45, 0]);
        bytes.extend((len + 20).to_be_bytes());
        bytes.extend([0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    let transport = bytes.len();
    bytes.extend([0, 80, 1, 0]);
    if protocol == TCP {
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    } else {
        bytes.extend(len.to_be_bytes());
        bytes.extend([0, 0]);
    }
    bytes.extend((0..payload).map(|i| u8::try_from(i % 251).unwrap()));
    let pseudo = if v6 {
        checksum::pseudo_header_v6(&[1; 16], &[3; 16], protocol, u32::from(len))
    } else {
        checksum::pseudo_header_v4([10, 0, 0, 1], [10, 0, 0, 2], protocol, len)
    };
    let field = transport + if protocol == TCP { 16 } else { 6 };
    let value =
        if partial { pseudo } else { !checksum::add(checksum::sum(&bytes[transport..]), pseudo) };
    bytes[field..field + 2].copy_from_slice(&value.to_be_bytes());
    bytes
}

fn merged(v6: bool) -> (NetHeader, Vec<u8>) {
    let transport = if v6 { 54 } else { 34 };
    let header = NetHeader {
        flags: NEEDS_CSUM,
        gso_type: if v6 { GSO_TCPV6 } else { GSO_TCPV4 },
        hdr_len: transport + 20,
        gso_size: 1000,
        csum_start: transport,
        csum_offset: 16,
        num_buffers: 1,
        ..Default::default()
    };
    (header, frame(v6, TCP, 2500, true))
}

fn rules(features: u64) -> Rules {
    Rules { features, mtu: Some(1500) }
}

/// What comes of a merged IPv4 packet after the change.
fn changed(
    features: u64,
    change: impl FnOnce(&mut NetHeader, &mut Vec<u8>),
) -> Result<(), Violation> {
    let (mut header, mut bytes) = merged(false);
    change(&mut header, &mut bytes);
    rules(features).check(&header, &bytes)
}

#[test]
fn lawful_packets_pass() {
    let all = rules(DEFAULT);
    for v6 in [false, true] {
        let (header, bytes) = merged(v6);
        assert_eq!(all.check(&header, &bytes), Ok(()));
        for protocol in [TCP, UDP] {
            let valid = NetHeader { flags: DATA_VALID, num_buffers: 1, ..Default::default() };
            let bytes = frame(v6, protocol, 100, false);
            assert_eq!(all.check(&valid, &bytes), Ok(()));
            assert_eq!(rules(0).check(&NetHeader::default(), &bytes), Ok(()));
        }
        let transport = if v6 { 54 } else { 34 };
        let datagrams = NetHeader {
            flags: NEEDS_CSUM,
            gso_type: GSO_UDP_L4,
            hdr_len: transport + 8,
            gso_size: 500,
            csum_start: transport,
            csum_offset: 6,
            ..Default::default()
        };
        let bytes = frame(v6, UDP, 1400, true);
        assert_eq!(all.check(&datagrams, &bytes), Ok(()));
        let other = if v6 { GUEST_USO6 } else { GUEST_USO4 };
        let without = rules(DEFAULT & !other);
        assert_eq!(without.check(&datagrams, &bytes), Err(Violation::TypeNotAcked));
        let many = NetHeader { gso_size: 20, ..datagrams };
        assert_eq!(all.check(&many, &bytes), Err(Violation::SegmentCount));
    }
    assert_eq!(all.check(&NetHeader::default(), &[0; 60]), Ok(()));
}

#[test]
fn flags_and_types_need_their_features() {
    for (features, expected) in [
        (DEFAULT & !GUEST_CSUM, Violation::FlagNotAcked),
        (DEFAULT & !GUEST_TSO4, Violation::TypeNotAcked),
    ] {
        assert_eq!(changed(features, |_, _| ()), Err(expected));
    }
    let cases: &[(u8, u8, Violation)] = &[
        (NEEDS_CSUM | RSC_INFO, GSO_TCPV4, Violation::FlagNotAcked),
        (NEEDS_CSUM | 8, GSO_TCPV4, Violation::FlagNotAcked),
        (NEEDS_CSUM | DATA_VALID, GSO_TCPV4, Violation::BothFlags),
        (NEEDS_CSUM, 2, Violation::TypeNotAcked),
        (NEEDS_CSUM, GSO_UDP, Violation::TypeNotAcked),
        (NEEDS_CSUM, GSO_TCPV4 | 0x20, Violation::TypeNotAcked),
        (NEEDS_CSUM, GSO_ECN, Violation::TypeNotAcked),
        (NEEDS_CSUM, GSO_UDP_L4 | GSO_ECN, Violation::TypeNotAcked),
        (NEEDS_CSUM, GSO_TCPV6, Violation::TypeMismatch),
        (NEEDS_CSUM, GSO_UDP_L4, Violation::TypeMismatch),
    ];
    for (flags, gso_type, expected) in cases {
        let result = changed(DEFAULT, |header, _| {
            (header.flags, header.gso_type) = (*flags, *gso_type);
        });
        assert_eq!(result, Err(*expected), "{flags} {gso_type}");
    }
    let marked = |features| changed(features, |header, _| header.gso_type |= GSO_ECN);
    assert_eq!(marked(DEFAULT), Ok(()));
    assert_eq!(marked(DEFAULT & !GUEST_ECN), Err(Violation::TypeNotAcked));
}

#[test]
fn fields_fit_the_packet() {
    use Violation as V;
    type Change = fn(&mut NetHeader, &mut Vec<u8>);
    let cases: &[(Change, Violation)] = &[
        (|h, _| h.gso_size = 0, V::SegmentSize),
        (|h, _| h.gso_size = 7, V::SegmentSize),
        (|h, _| h.gso_type = GSO_NONE, V::SegmentSize),
        (|h, _| h.gso_size = 2500, V::LongerThanMtu),
        (|h, b| (h.gso_size, b[17]) = (1461, b[17]), V::LongerThanMtu),
        (|h, _| h.csum_offset = 6, V::ChecksumPosition),
        (|h, _| h.csum_start = 14, V::ChecksumPosition),
        (|h, _| h.hdr_len = 53, V::HeaderLength),
        (|h, _| h.hdr_len = 3000, V::HeaderLength),
        (|_, b| b[51] ^= 1, V::ChecksumNotPartial),
        (|_, b| b.push(0), V::IpLength),
        (|h, _| h.hash_value = 1, V::StrayField),
        (|h, _| h.padding = 1, V::StrayField),
        (|h, _| (h.flags, h.csum_start, h.csum_offset) = (0, 0, 0), V::NoChecksum),
        (|h, _| h.flags = 0, V::StrayField),
        // A fragment has no transport checksum of its own.
        (|_, b| b[20] = 0x20, V::ChecksumPosition),
    ];
    for (number, (change, expected)) in cases.iter().enumerate() {
        assert_eq!(changed(DEFAULT, change), Err(*expected), "case {number}");
    }
    let (header, _) = merged(false);
    let one = frame(false, TCP, 1000, true);
    assert_eq!(rules(DEFAULT).check(&header, &one), Err(V::SegmentCount));
}

#[test]
fn single_frames_are_held_to_the_mtu_and_their_checksum() {
    let valid = NetHeader { flags: DATA_VALID, ..Default::default() };
    let mut long = frame(false, TCP, 1461, false);
    assert_eq!(rules(DEFAULT).check(&valid, &long), Err(Violation::LongerThanMtu));
    let unlimited = Rules { features: DEFAULT, mtu: None };
    assert_eq!(unlimited.check(&valid, &long), Ok(()));
    long[100] ^= 1;
    assert_eq!(unlimited.check(&valid, &long), Err(Violation::ChecksumNotValid));
    assert_eq!(unlimited.check(&NetHeader::default(), &long), Ok(()));
    let stray = NetHeader { hdr_len: 54, ..Default::default() };
    assert_eq!(unlimited.check(&stray, &long), Err(Violation::StrayField));
}

#[test]
fn coalescing_information_is_demanded_where_acked() {
    let features = DEFAULT | RSC_EXT;
    assert_eq!(changed(features, |_, _| ()), Err(Violation::RscInfo));
    let said = |segments| {
        changed(features, |header, _| {
            header.flags |= RSC_INFO;
            (header.csum_start, header.csum_offset) = (segments, 0);
        })
    };
    assert_eq!(said(3), Ok(()));
    assert_eq!(said(2), Err(Violation::RscInfo));
}

#[test]
fn any_bytes_are_judged_without_a_panic() {
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    };
    let (lawful, _) = merged(false);
    let mut broken = 0;
    for round in 0..20_000 {
        let (mut header, mut bytes) = merged(round % 2 == 0);
        header.csum_start = if round % 3 == 0 { lawful.csum_start } else { header.csum_start };
        bytes.truncate(usize::from(byte()) * 4);
        for _ in 0..3 {
            let at = usize::from(byte());
            if let Some(to) = bytes.get_mut(at % 64) {
                *to = byte();
            }
        }
        broken += u32::from(rules(DEFAULT).check(&header, &bytes).is_err());
    }
    assert!(broken > 10_000, "most of these are unlawful: {broken}");
}

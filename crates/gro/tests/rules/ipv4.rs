//! `spec/gro.md` 7.3.

use gro::{Completed, Config, Passed};
use packet::build::Ip;

use crate::lab::{Change, Given, Lab, Stream, joined, lone, with_id};

#[test]
fn rows_36_to_40_ids_count_up_or_stand_still() {
    let given = |lab: &mut Lab, ids: &[u16]| {
        let mut stream = Stream::v4();
        for id in ids {
            lab.give(with_id(stream.next(100), *id));
        }
    };
    let mut lab = Lab::kernel();
    given(&mut lab, &[8, 9]);
    lab.expect_poll([], [joined(0..2)]);

    let mut lab = Lab::kernel();
    given(&mut lab, &[8, 9, 9]);
    lab.expect_poll([joined(0..2)], [lone(2)]);
    lab.expect_completed(Completed::Id, 1);

    let mut lab = Lab::kernel();
    given(&mut lab, &[8, 8, 8]);
    lab.end_of_poll();
    assert!(lab.sink.frames[0].meta.gso.unwrap().fixed_id);
    lab.expect([joined(0..3)]);

    let mut lab = Lab::kernel();
    given(&mut lab, &[8, 8, 9]);
    lab.expect_poll([joined(0..2)], [lone(2)]);

    let mut lab = Lab::kernel();
    given(&mut lab, &[8, 10]);
    lab.expect_poll([lone(0)], [lone(1)]);

    let mut lab = Lab::kernel();
    given(&mut lab, &[65534, 65535, 0, 1]);
    lab.expect_poll([], [joined(0..4)]);
}

#[test]
fn row_38_a_fixed_id_without_df() {
    let frames = Stream::v4().take([100, 100]).map(|mut frame| {
        if let Ip::V4 { id, flags, .. } = &mut frame.ip {
            (*id, *flags) = (8, 0);
        }
        frame
    });
    let mut lab = Lab::kernel();
    lab.give_all(frames);
    lab.end_of_poll();
    assert!(lab.sink.frames[0].meta.gso.unwrap().fixed_id);
    lab.expect([joined(0..2)]);
    let mut lab = Lab::guest();
    lab.give_all(frames);
    lab.expect_poll([lone(0)], [lone(1)]);
    lab.expect_completed(Completed::Id, 1);
    // With DF set, the guest's rules merge as well.
    let mut lab = Lab::guest();
    lab.give_all(Stream::v4().take([100, 100]).map(|frame| with_id(frame, 8)));
    lab.expect_poll([], [joined(0..2)]);
}

/// Two packets of which the second has another IP header.
fn pair(change: impl Fn(&mut u8, &mut u16, &mut u8)) -> Lab {
    let mut lab = Lab::kernel();
    let [a, mut b] = Stream::v4().take([100, 100]);
    if let Ip::V4 { tos, flags, ttl, .. } = &mut b.ip {
        change(tos, flags, ttl);
    }
    lab.give_all([a, b]);
    lab
}

#[test]
fn rows_41_to_44_and_46_ttl_tos_and_flags() {
    let mut lab = pair(|_, _, ttl| *ttl = 63);
    lab.expect_poll([lone(0)], [lone(1)]);
    lab.expect_completed(Completed::Ttl, 1);

    for bit in 0..8 {
        let mut lab = pair(|tos, _, _| *tos = 1 << bit);
        lab.expect_poll([lone(0)], [lone(1)]);
        lab.expect_completed(Completed::Tos, 1);
    }

    let mut lab = Lab::kernel();
    lab.give_all(Stream::v4().take([100, 100]).map(|mut frame| {
        if let Ip::V4 { tos, .. } = &mut frame.ip {
            *tos = 3;
        }
        frame
    }));
    lab.end_of_poll();
    assert_eq!(lab.sink.frames[0].head()[15], 3);
    lab.expect([joined(0..2)]);

    let mut lab = pair(|_, flags, _| *flags = 0);
    lab.expect_poll([lone(0)], [lone(1)]);
    lab.expect_completed(Completed::Df, 1);

    let mut lab = pair(|_, flags, _| *flags |= 0x8000);
    lab.expect_poll([lone(0), lone(1)], []);
    lab.expect_passed(Passed::ReservedBit, 1);
}

#[test]
fn row_45_ip_options() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give(stream.next(100));
    stream.base.ip.set_options(&[1; 4]);
    lab.give_all(stream.take([100, 100]));
    lab.expect_poll([lone(0), lone(1), lone(2)], []);
    lab.expect_passed(Passed::IpOptions, 2);
    lab.expect_completed(Completed::OrderRule, 1);
}

#[test]
fn row_47_padding() {
    let [a, b] = Stream::v4().take([1448, 1]);
    let padded = b.padded_to(60);
    let mut lab = Lab::kernel();
    lab.give(a);
    lab.give(padded.clone());
    lab.expect_poll([lone(0), lone(1)], []);
    lab.expect_passed(Passed::IpLength, 1);

    let trim = || Lab::new(Config { trim_padding: true, ..Config::kernel_profile() });
    let mut lab = trim();
    lab.give(a);
    lab.give(padded.clone());
    assert_eq!(lab.sink.frames[0].len(), 54 + 1449);
    lab.expect_poll([joined(0..2)], []);

    // Alone, it stays as it is: passed, and held.
    let mut lab = trim();
    lab.give(padded);
    lab.expect_poll([lone(0)], []);
    let mut lab = trim();
    let [a, b] = Stream::v4().take([100, 100]);
    lab.give(a.padded_to(160));
    lab.expect_poll([], [lone(0)]);
    // Held and continued, it loses its padding.
    lab.give(a.padded_to(161));
    lab.give(b.padded_to(162).unverified());
    lab.expect_poll([], [joined(1..3)]);
}

#[test]
fn row_48_a_length_beyond_the_frame() {
    let mut lab = Lab::kernel();
    let [a, b] = Stream::v4().take([100, 100]);
    lab.give(a);
    let longer = |bytes: &mut [u8]| {
        bytes[17] += 1;
        let field = packet::checksum::update(
            u16::from_be_bytes([bytes[24], bytes[25]]),
            u16::from(bytes[17] - 1),
            u16::from(bytes[17]),
        );
        bytes[24..26].copy_from_slice(&field.to_be_bytes());
    };
    lab.give(b.spoiled(longer));
    lab.expect_poll([lone(0), lone(1)], []);
    lab.expect_passed(Passed::IpLength, 1);
}

#[test]
fn row_49_frames_that_end_early() {
    let whole = Stream::v4().next(100).to_vec();
    for len in 0..54 {
        let mut lab = Lab::kernel();
        lab.give(whole[..len].to_vec());
        lab.expect_poll([lone(0)], []);
    }
    // A frame that may belong to a held flow leaves behind it, by as much as can be told.
    for len in 14..54 {
        let mut lab = Lab::kernel();
        let mut other = Stream::v4();
        other.base.link.source[5] = 77;
        other.base.ports.0 = 1;
        if let Ip::V4 { source, .. } = &mut other.base.ip {
            source[3] = 77;
        }
        lab.give(other.next(100));
        lab.give(Stream::v4().next(100));
        lab.give(whole[..len].to_vec());
        lab.expect_poll([lone(1), lone(2)], [lone(0)]);
    }
}

#[test]
fn row_50_another_mac_address() {
    let mut lab = Lab::kernel();
    let [a, mut b, c] = Stream::v4().take([100, 100, 100]);
    b.link.destination[5] = 9;
    lab.give_all([a, b, c]);
    // The connection's order is kept, though these are different flows.
    lab.expect_poll([lone(0), lone(1)], [lone(2)]);
}

#[test]
fn rows_51_and_52_a_tag_in_the_frame() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    stream.base.link.tags = &[(0x8100, 5)];
    lab.give_all(stream.take([100, 100]));
    lab.end_of_poll();
    assert_eq!(lab.sink.frames[0].meta.layout.transport, 14 + 4 + 20);
    lab.expect([joined(0..2)]);

    let mut lab = Lab::kernel();
    lab.give(stream.next(100));
    stream.base.link.tags = &[(0x8100, 0x2005)];
    lab.give(stream.next(100));
    lab.expect_poll([], [lone(0), lone(1)]);
}

#[test]
fn row_53_a_tag_beside_the_frame() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give(stream.next(100).with_tag(0x8100, 5));
    lab.give(stream.next(100).with_tag(0x8100, 6));
    lab.give(stream.next(100));
    lab.expect_poll([], [lone(0), lone(1), lone(2)]);

    let mut lab = Lab::kernel();
    lab.give_all(stream.take([100, 100]).map(|frame| frame.with_tag(0x8100, 5)));
    lab.end_of_poll();
    assert_eq!(lab.sink.frames[0].meta.vlan.unwrap().tci, 5);
    lab.expect([joined(0..2)]);

    // The same tag in the frame and beside it are different things.
    let mut lab = Lab::kernel();
    lab.give(stream.next(100).with_tag(0x8100, 5));
    stream.base.link.tags = &[(0x8100, 5)];
    lab.give(stream.next(100));
    lab.expect_poll([], [lone(0), lone(1)]);
}

#[test]
fn row_54_two_tags_in_the_frame() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    stream.base.link.tags = &[(0x88a8, 5), (0x8100, 6)];
    lab.give_all(stream.take([100, 100]));
    stream.base.link.tags = &[(0x88a8, 6), (0x8100, 6)];
    lab.give(stream.next(100));
    lab.expect_poll([], [joined(0..2), lone(2)]);
}

#[test]
fn many_tags_pass() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    stream.base.link.tags = &[(0x88a8, 5), (0x8100, 6), (0x8100, 7)];
    lab.give_all(stream.take([100, 100]));
    lab.expect_poll([lone(0), lone(1)], []);
    lab.expect_passed(Passed::Recursion, 2);
}

#[test]
fn tags_count_for_the_size() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    stream.base.link.tags = &[(0x8100, 5)];
    lab.give_all(stream.take([4056; 16]));
    lab.give_all(stream.take([599, 599]));
    // 599 more would make 65535 bytes of IP, and 65539 with the tag.
    lab.expect_poll([joined(0..16)], [joined(16..18)]);
}

#[test]
fn a_wrong_header_checksum_passes_behind_its_flow() {
    let mut lab = Lab::kernel();
    let [a, b, c] = Stream::v4().take([100, 100, 100]);
    lab.give(a);
    lab.give(b.spoiled(|bytes| bytes[24] ^= 1));
    lab.give(c);
    lab.expect_poll([lone(0), lone(1)], [lone(2)]);
    lab.expect_passed(Passed::IpChecksum, 1);
}

#[test]
fn what_is_not_tcp_passes() {
    let mut udp = packet::build::UdpFrame::v4();
    udp.payload = b"datagram";
    let mut arp = udp.to_vec();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let mut lab = Lab::kernel();
    lab.give(Stream::v4().next(100));
    lab.give(udp.to_vec());
    lab.give(arp);
    // Neither can belong to what is held.
    lab.expect_poll([lone(1), lone(2)], [lone(0)]);
    lab.expect_passed(Passed::NoHandler, 2);
}

#[test]
fn row_94_a_fragment_leaves_behind_the_flows_of_its_addresses() {
    for fragment in [0x2000, 0x0001] {
        let mut lab = Lab::kernel();
        let (mut same, mut other) = (Stream::v4(), Stream::v4());
        same.base.ports = (1, 2);
        if let Ip::V4 { source, .. } = &mut other.base.ip {
            source[3] = 99;
        }
        lab.give(other.next(100));
        lab.give(same.next(100));
        lab.give(Stream::v4().next(100).edited(|bytes| {
            bytes[20..22].copy_from_slice(&u16::to_be_bytes(fragment));
            let sum = &mut bytes[24..26];
            sum.fill(0);
            let sum = !packet::checksum::sum(&bytes[14..34]);
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        }));
        lab.expect_poll([lone(1), lone(2)], [lone(0)]);
        lab.expect_passed(Passed::Fragment, 1);
    }
}

#[test]
fn addresses_and_ports_make_a_flow() {
    let base = Stream::v4();
    let places = [26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37];
    for at in places {
        let mut lab = Lab::kernel();
        let mut stream = base;
        lab.give(stream.next(100));
        let other: Given = stream.next(100).edited(|bytes| bytes[at] ^= 1);
        lab.give(other);
        lab.give(with_id(stream.next(100), 1001).edited(|bytes| {
            // Continues the first.
            bytes[38..42].copy_from_slice(&101u32.to_be_bytes());
        }));
        lab.expect_poll([], [joined([0, 2]), lone(1)]);
    }
}

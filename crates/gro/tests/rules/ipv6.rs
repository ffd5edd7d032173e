//! `spec/gro.md` 7.4.

use gro::{Completed, Passed};
use packet::build::Ip;

use crate::lab::{Change, Lab, Stream, joined, lone};

#[test]
fn row_55_two_packets_become_one() {
    let mut lab = Lab::kernel();
    lab.give_all(Stream::v6().take([1428, 1428]));
    lab.end_of_poll();
    assert_eq!(lab.sink.frames[0].head()[18..20], 2876u16.to_be_bytes());
    lab.expect([joined(0..2)]);
}

#[test]
fn row_56_another_flow_label_is_another_flow_in_order() {
    let mut lab = Lab::kernel();
    let [a, mut b, c] = Stream::v6().take([100, 100, 100]);
    if let Ip::V6 { label, .. } = &mut b.ip {
        *label = 7;
    }
    lab.give_all([a, b, c]);
    lab.expect_poll([lone(0), lone(1)], [lone(2)]);
    lab.expect_completed(Completed::OrderRule, 2);
}

#[test]
fn row_57_another_hop_limit_starts_anew() {
    let mut lab = Lab::kernel();
    let [a, mut b] = Stream::v6().take([1428, 1428]);
    if let Ip::V6 { hop_limit, .. } = &mut b.ip {
        *hop_limit = 63;
    }
    lab.give_all([a, b]);
    lab.expect_poll([lone(0)], [lone(1)]);
    lab.expect_completed(Completed::HopLimit, 1);
}

#[test]
fn row_58_equal_extension_headers() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v6();
    stream.base.ip.set_extensions(&[(60, &[0, 0, 1, 4, 0, 0, 0, 0])]);
    lab.give_all(stream.take([100, 100]));
    lab.end_of_poll();
    assert_eq!(lab.sink.frames[0].meta.layout.transport, 14 + 40 + 8);
    lab.expect([joined(0..2)]);

    // Several, of all kinds that are skipped.
    let mut lab = Lab::kernel();
    let mut stream = Stream::v6();
    stream.base.ip.set_extensions(&[(0, &[0; 16]), (60, &[0; 8]), (43, &[0; 24])]);
    lab.give_all(stream.take([100, 100]));
    lab.expect_poll([], [joined(0..2)]);
}

#[test]
fn row_58_other_extension_headers_are_other_flows_in_order() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v6();
    stream.base.ip.set_extensions(&[(60, &[0, 0, 1, 4, 0, 0, 0, 0])]);
    lab.give(stream.next(100));
    stream.base.ip.set_extensions(&[(60, &[0, 0, 1, 4, 0, 0, 0, 1])]);
    lab.give(stream.next(100));
    stream.base.ip.set_extensions(&[(0, &[0, 0, 1, 4, 0, 0, 0, 1])]);
    lab.give(stream.next(100));
    stream.base.ip.set_extensions(&[(0, &[0; 16])]);
    lab.give(stream.next(100));
    stream.base.ip.set_extensions(&[]);
    lab.give(stream.next(100));
    lab.expect_poll([lone(0), lone(1), lone(2), lone(3)], [lone(4)]);
    lab.expect_completed(Completed::OrderRule, 4);
}

#[test]
fn row_59_the_payload_length_is_the_frames() {
    let mut lab = Lab::kernel();
    let [a, b] = Stream::v6().take([100, 100]);
    lab.give(a);
    lab.give(b.spoiled(|bytes| bytes[19] -= 1));
    lab.expect_poll([lone(0), lone(1)], []);
    lab.expect_passed(Passed::IpLength, 1);
    // Zero is a jumbogram, or nonsense.
    let mut lab = Lab::kernel();
    lab.give(a);
    lab.give(b.spoiled(|bytes| bytes[18..20].fill(0)));
    lab.expect_poll([lone(0), lone(1)], []);
}

#[test]
fn row_60_traffic_class() {
    let with_class = |frame: packet::build::TcpFrame<'static>, new: u8| {
        let mut frame = frame;
        if let Ip::V6 { class, .. } = &mut frame.ip {
            *class = new;
        }
        frame
    };
    let [a, b, c] = Stream::v6().take([100, 100, 100]);
    let mut lab = Lab::kernel();
    lab.give_all([with_class(a, 2), with_class(b, 2)]);
    lab.expect_poll([], [joined(0..2)]);
    for bit in 0..8 {
        let mut lab = Lab::kernel();
        lab.give_all([a, b, with_class(c, 1 << bit)]);
        lab.expect_poll([joined(0..2)], [lone(2)]);
        lab.expect_completed(Completed::TrafficClass, 1);
    }
}

#[test]
fn fragments_and_unknown_headers_pass() {
    for (kind, reason) in [
        (44, Passed::Fragment),
        (17, Passed::NoHandler),
        (58, Passed::NoHandler),
        (50, Passed::NoHandler),
    ] {
        let mut lab = Lab::kernel();
        let mut stream = Stream::v6();
        let held = stream.next(100);
        lab.give(held);
        stream.base.ip.set_extensions(&[(60, &[0; 8])]);
        lab.give(stream.next(100).spoiled(|bytes| bytes[54] = kind));
        if reason == Passed::Fragment {
            lab.expect_poll([lone(0), lone(1)], []);
        } else {
            lab.expect_poll([lone(1)], [lone(0)]);
        }
        lab.expect_passed(reason, 1);
    }
}

#[test]
fn extension_headers_that_do_not_end() {
    const EIGHT: &[u8] = &[0; 8];
    let mut lab = Lab::kernel();
    let mut stream = Stream::v6();
    lab.give(stream.next(100));
    stream.base.ip.set_extensions(&[(0, EIGHT); 9]);
    lab.give(stream.next(100));
    // One that reaches far beyond the frame.
    stream.base.ip.set_extensions(&[(60, &[0; 8]), (60, &[0; 8])]);
    lab.give(stream.next(100).spoiled(|bytes| bytes[55] = 0xff));
    lab.expect_poll([lone(0), lone(1), lone(2)], []);
    lab.expect_passed(Passed::ExtensionHeader, 2);
}

#[test]
fn another_version_passes() {
    let mut lab = Lab::kernel();
    let [a, b] = Stream::v6().take([100, 100]);
    lab.give(a);
    lab.give(b.spoiled(|bytes| bytes[14] = 0x40));
    lab.expect_poll([lone(0), lone(1)], []);
    lab.expect_passed(Passed::IpOptions, 1);
}

#[test]
fn each_byte_of_the_addresses_counts() {
    for at in 22..54 {
        let mut lab = Lab::kernel();
        let [a, b] = Stream::v6().take([100, 100]);
        lab.give(a);
        lab.give(b.edited(|bytes| bytes[at] ^= 1));
        lab.expect_poll([], [lone(0), lone(1)]);
    }
}

#[test]
fn frames_that_end_early() {
    let whole = Stream::v6().next(100).to_vec();
    for len in 14..74 {
        let mut lab = Lab::kernel();
        lab.give(Stream::v6().next(100));
        lab.give(whole[..len].to_vec());
        lab.expect_poll([lone(0), lone(1)], []);
    }
}

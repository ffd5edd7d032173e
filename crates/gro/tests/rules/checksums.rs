//! `spec/gro.md` 7.5, and section 3.

use gro::{Config, Passed};
use packet::{Checksum, checksum};

use crate::lab::{Change, Given, Lab, Stream, joined, lone};

fn both() -> [Stream; 2] {
    let mut v6 = Stream::v6();
    v6.base.ip.set_extensions(&[(60, &[0, 0, 1, 4, 0, 0, 0, 0])]);
    v6.base.link.tags = &[(0x8100, 5)];
    [Stream::v4(), v6]
}

/// The port has summed everything behind the Ethernet header.
fn summed(frame: impl Into<Given>) -> Given {
    let given = frame.into();
    let sum = checksum::sum(&given.bytes[14..]);
    given.with_checksum(Checksum::Sum(sum))
}

#[test]
fn rows_61_and_62_software_verifies() {
    for mut stream in both() {
        let mut lab = Lab::kernel();
        lab.give_all(stream.take([100, 100, 100]).map(Change::unverified));
        lab.end_of_poll();
        // The field holds the pseudo-header sum.
        let frame = &lab.sink.frames[0];
        let parsed = packet::header::parse(frame.head()).unwrap();
        let field = usize::from(parsed.layout.transport) + 16;
        let pseudo = checksum::pseudo_header(frame.head(), &parsed, 20 + 300);
        assert_eq!(frame.head()[field..field + 2], pseudo.to_be_bytes());
        lab.expect([joined(0..3)]);
    }
}

#[test]
fn a_wrong_checksum_never_merges() {
    for mut stream in both() {
        for at in [86, 100, 150] {
            let mut lab = Lab::kernel();
            let [a, b, c] = stream.take([100, 100, 100]);
            lab.give(a.unverified());
            lab.give(b.unverified().spoiled(|bytes| bytes[at] ^= 0x40));
            lab.give(c.unverified());
            lab.end_of_poll();
            assert!(lab.sink.frames.iter().all(|frame| frame.meta.gso.is_none()));
            let spoiled =
                lab.sink.frames.iter().find(|frame| frame.meta.checksum == Checksum::Unknown);
            assert!(spoiled.is_some(), "the bad one is not said to be good");
            lab.expect([lone(0), lone(1), lone(2)]);
        }
    }
}

#[test]
fn a_wrong_checksum_passes_behind_its_flow() {
    let mut lab = Lab::kernel();
    let [a, b, c] = Stream::v4().take([100, 100, 100]);
    lab.give(a);
    lab.give(b.unverified().spoiled(|bytes| bytes[60] ^= 1));
    lab.give(c);
    lab.expect_poll([lone(0), lone(1)], [lone(2)]);
    lab.expect_passed(Passed::L4Checksum, 1);
}

#[test]
fn what_was_verified_is_told() {
    let mut lab = Lab::kernel();
    lab.give(Stream::v4().next(100).unverified());
    lab.end_of_poll();
    let frame = lab.take();
    assert_eq!(frame.meta.checksum, Checksum::Verified { levels: 1 });
    // But what the port has said stays as it is.
    let mut lab = Lab::kernel();
    lab.give(Stream::v4().next(100).with_checksum(Checksum::Verified { levels: 3 }));
    lab.end_of_poll();
    assert_eq!(lab.take().meta.checksum, Checksum::Verified { levels: 3 });
}

#[test]
fn zero_levels_verify_nothing() {
    let mut lab = Lab::kernel();
    let [a, b] = Stream::v4().take([100, 100]);
    lab.give(a);
    let bad = b.with_checksum(Checksum::Verified { levels: 0 }).spoiled(|bytes| bytes[60] ^= 1);
    lab.give(bad);
    lab.expect_poll([lone(0), lone(1)], []);
    lab.expect_passed(Passed::L4Checksum, 1);
}

#[test]
fn a_full_sum_is_taken() {
    for mut stream in both() {
        let mut lab = Lab::kernel();
        lab.give_all(stream.take([100, 101, 100]).map(summed));
        lab.expect_poll([lone(0), joined(1..3)], []);
        // It says that this one is bad.
        let mut lab = Lab::kernel();
        let [a, b] = stream.take([100, 100]);
        lab.give(summed(a));
        lab.give(summed(b.spoiled(|bytes| bytes[90] ^= 1)));
        lab.expect_poll([lone(0), lone(1)], []);
        lab.expect_passed(Passed::L4Checksum, 1);
    }
}

#[test]
fn a_full_sum_that_says_bad_is_not_believed() {
    let mut lab = Lab::kernel();
    let [a, b] = Stream::v4().take([100, 100]);
    lab.give(a.with_checksum(Checksum::Sum(0x1234)));
    lab.give(b.with_checksum(Checksum::Sum(0)));
    lab.expect_poll([], [joined(0..2)]);
}

#[test]
fn row_63_a_full_sum_that_covers_padding() {
    let [a, b] = Stream::v4().take([40, 40]);
    let mut lab = Lab::kernel();
    lab.give(summed(a.padded_to(100)));
    lab.expect_poll([lone(0)], []);
    lab.expect_passed(Passed::IpLength, 1);

    let mut lab = Lab::new(Config { trim_padding: true, ..Config::kernel_profile() });
    lab.give(summed(a.padded_to(100)));
    lab.give(summed(b.padded_to(101)));
    lab.expect_poll([], [joined(0..2)]);
    // A bad packet stays bad when its padding makes the sum right.
    let mut lab = Lab::new(Config { trim_padding: true, ..Config::kernel_profile() });
    let bad = b.padded_to(96).spoiled(|bytes| bytes[54] ^= 1);
    let good = checksum::sum(&b.to_vec()[14..]);
    lab.give(bad.with_checksum(Checksum::Sum(good)));
    lab.expect_poll([lone(0)], []);
    lab.expect_passed(Passed::L4Checksum, 1);
}

#[test]
fn a_partial_checksum_is_trusted() {
    for mut stream in both() {
        let mut lab = Lab::kernel();
        let frames = stream.take([100, 100]);
        let parsed = packet::header::parse(&frames[0].to_vec()).unwrap();
        let start = parsed.layout.transport;
        let partial = Checksum::Partial { start, offset: 16 };
        for frame in frames {
            let field = usize::from(start) + 16;
            lab.give(frame.with_checksum(partial).spoiled(|bytes| {
                let pseudo = checksum::pseudo_header(bytes, &parsed, 120);
                bytes[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
            }));
        }
        lab.end_of_poll();
        let frame = lab.take();
        assert_eq!(frame.meta.gso.unwrap().segments, 2);
        // Alone, it stays as it came.
        let alone = stream.next(100).with_checksum(partial);
        lab.give(alone);
        lab.end_of_poll();
        assert_eq!(lab.sink.frames[0].meta.checksum, partial);
        lab.expect([lone(2)]);
    }
}

#[test]
fn a_partial_checksum_of_something_else_is_not() {
    for (start, offset) in [(34, 6), (14, 16), (54, 16), (0, 0), (u16::MAX, u16::MAX)] {
        let mut lab = Lab::kernel();
        lab.give(Stream::v4().next(100).with_checksum(Checksum::Partial { start, offset }));
        lab.expect_poll([lone(0)], []);
        lab.expect_passed(Passed::L4Checksum, 1);
    }
}

#[test]
fn an_operator_may_forbid_to_sum() {
    let mut lab = Lab::new(Config { verify_checksums: false, ..Config::default() });
    let [a, b, c] = Stream::v4().take([100, 100, 100]);
    lab.give(a.unverified());
    lab.give_all([b, c]);
    lab.expect_poll([lone(0)], [joined(1..3)]);
    lab.expect_passed(Passed::L4Checksum, 1);
}

#[test]
fn row_64_a_guest_without_checksum_offload() {
    let mut lab = Lab::guest();
    lab.engine.set_accept(gro::Accept::default());
    lab.give_all(Stream::v4().take([100, 100, 100]));
    lab.expect_poll([lone(0), lone(1), lone(2)], []);
    lab.expect_passed(Passed::NoGuestFeature, 3);
}

#[test]
fn checksums_of_zero() {
    // A packet whose sum is such that the field may be 0x0000 or 0xffff: both are right.
    let mut stream = Stream::v4();
    let [a, mut b] = stream.take([100, 100]);
    b.urgent = 0;
    let sum_without = {
        let mut bytes = b.to_vec();
        let field = u16::from_be_bytes([bytes[50], bytes[51]]);
        // The urgent pointer takes up the rest, so that the field becomes zero.
        bytes[52..54].copy_from_slice(&field.to_be_bytes());
        bytes[50..52].fill(0);
        bytes
    };
    for field in [[0, 0], [0xff, 0xff]] {
        let mut bytes = sum_without.clone();
        bytes[50..52].copy_from_slice(&field);
        let mut lab = Lab::kernel();
        lab.give(a.unverified());
        lab.give(Given::from(bytes).unverified());
        lab.end_of_poll();
        assert_eq!(lab.take().meta.gso.unwrap().segments, 2);
    }
}

//! `spec/gro.md` 7.2.

use gro::{Completed, Config, Passed};
use packet::Checksum;

use crate::lab::{
    CWR, Change, ECE, FIN, Lab, PSH, RST, SYN, Stream, URG, joined, lone, with_flags, with_id,
};

#[test]
fn row_1_two_packets_become_one() {
    let mut lab = Lab::kernel();
    lab.give_all(Stream::v4().take([100, 100]));
    lab.expect_nothing();
    lab.end_of_poll();
    assert_eq!(lab.sink.frames[0].meta.gso.unwrap().size, 100);
    lab.expect([joined(0..2)]);
    lab.expect_completed(Completed::PollEnd, 1);
}

#[test]
fn row_2_one_packet_stays_as_it_is() {
    let mut lab = Lab::kernel();
    lab.give(Stream::v4().next(100));
    lab.expect_poll([], [lone(0)]);
}

#[test]
fn row_3_a_short_segment_is_the_last() {
    let mut lab = Lab::kernel();
    lab.give_all(Stream::v4().take([1448, 1448, 1448, 700]));
    let frame = lab.take();
    assert_eq!(frame.meta.gso.unwrap().size, 1448);
    assert_eq!(frame.len() - 54, 5044);
    lab.sink.frames.push(frame);
    lab.expect_poll([joined(0..4)], []);
    lab.expect_completed(Completed::ShortSegment, 1);
}

#[test]
fn row_4_what_follows_a_short_segment_starts_anew() {
    let mut lab = Lab::kernel();
    lab.give_all(Stream::v4().take([1448, 1448, 700, 1448]));
    lab.expect_poll([joined(0..3)], [lone(3)]);
}

#[test]
fn row_5_a_longer_segment_starts_anew() {
    let mut lab = Lab::kernel();
    lab.give_all(Stream::v4().take([50, 100]));
    lab.expect_poll([lone(0)], [lone(1)]);
    lab.expect_completed(Completed::LongerSegment, 1);
}

#[test]
fn row_6_a_pure_ack_follows_the_data() {
    let mut lab = Lab::kernel();
    lab.give_all(Stream::v4().take([1448, 0]));
    lab.expect_poll([lone(0), lone(1)], []);
    lab.expect_passed(Passed::ZeroPayload, 1);
    lab.expect_completed(Completed::PureAck, 1);
}

#[test]
fn row_7_pure_acks_are_never_held() {
    let mut lab = Lab::kernel();
    lab.give_all(Stream::v4().take([0, 0]));
    lab.expect_poll([lone(0), lone(1)], []);
}

#[test]
fn row_8_another_ack_starts_anew() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give(stream.next(1448));
    stream.base.ack = 5001;
    lab.give_all(stream.take([1448, 1448]));
    lab.expect_poll([lone(0)], [joined(1..3)]);
    lab.expect_completed(Completed::Ack, 1);
}

#[test]
fn row_9_another_window_starts_anew() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give(stream.next(1448));
    stream.base.window = 1001;
    lab.give(stream.next(1448));
    lab.expect_poll([lone(0)], [lone(1)]);
    lab.expect_completed(Completed::Window, 1);
}

#[test]
fn row_10_psh_ends_and_stays_on_the_last_segment() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give(stream.next(1448));
    lab.give(with_flags(stream.next(1448), PSH));
    assert_eq!(lab.sink.frames[0].head()[47] & 0x08, 0x08, "the super-packet has PSH");
    lab.expect_poll([joined(0..2)], []);
    lab.expect_completed(Completed::PshFin, 1);
}

#[test]
fn row_11_a_first_packet_with_psh_is_not_held() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give(with_flags(stream.next(1448), PSH));
    lab.give(stream.next(1448));
    lab.expect_poll([lone(0)], [lone(1)]);
    lab.expect_passed(Passed::ControlFlag, 1);
}

#[test]
fn row_12_psh_in_the_middle() {
    let mut lab = Lab::kernel();
    let [a, b, c, d, e] = Stream::v4().take([100; 5]);
    lab.give_all([a, b, with_flags(c, PSH), d, e]);
    lab.expect_poll([joined(0..3)], [joined(3..5)]);
}

#[test]
fn row_13_fin_ends() {
    let mut lab = Lab::kernel();
    let [a, b, c] = Stream::v4().take([1448, 1448, 500]);
    lab.give_all([a, b, with_flags(c, FIN)]);
    assert_eq!(lab.sink.frames[0].head()[47] & 0x01, 0x01, "the super-packet has FIN");
    lab.expect_poll([joined(0..3)], []);
}

#[test]
fn row_14_fin_without_payload_follows_the_data() {
    let mut lab = Lab::kernel();
    let [a, b, c] = Stream::v4().take([1448, 1448, 0]);
    lab.give_all([a, b, with_flags(c, FIN)]);
    lab.expect_poll([joined(0..2), lone(2)], []);
    lab.expect_completed(Completed::ControlPacket, 1);
}

#[test]
fn row_15_syn_between() {
    let mut lab = Lab::kernel();
    let [a, b, _, d, e] = Stream::v4().take([100; 5]);
    let syn = with_flags(Stream::v4().next(0), SYN);
    lab.give_all([a, b, syn, d, e]);
    lab.expect_poll([joined(0..2), lone(2)], [joined(3..5)]);
}

#[test]
fn row_16_a_gap_starts_anew() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give(stream.next(1448));
    stream.base.seq += 1;
    lab.give(stream.next(1448));
    lab.expect_poll([lone(0)], [lone(1)]);
    lab.expect_completed(Completed::Sequence, 1);
}

#[test]
fn row_17_a_duplicate_is_delivered() {
    let mut lab = Lab::kernel();
    let frame = Stream::v4().next(1448);
    lab.give_all([frame, frame]);
    lab.expect_poll([lone(0)], [lone(1)]);
}

#[test]
fn row_18_segments_out_of_order_are_never_joined() {
    let mut lab = Lab::kernel();
    let [a, b, c, d] = Stream::v4().take([1448; 4]);
    lab.give_all([a, c, b, d]);
    lab.expect_poll([lone(0), lone(1), lone(2)], [lone(3)]);
}

#[test]
fn row_19_sequence_numbers_wrap() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    stream.base.seq = 0xffff_fa58;
    lab.give_all(stream.take([1448, 1448]));
    assert_eq!(stream.base.seq, 1448);
    lab.expect_poll([], [joined(0..2)]);
}

#[test]
fn row_20_flows_in_turn() {
    let mut lab = Lab::kernel();
    let (mut a, mut b) = (Stream::v4(), Stream::v4());
    b.base.ports.0 += 1;
    b.base.seq = 77;
    for _ in 0..3 {
        lab.give(a.next(1448));
        lab.give(b.next(1448));
    }
    lab.expect_poll([], [joined([0, 2, 4]), joined([1, 3, 5])]);
}

#[test]
fn row_21_equal_timestamps() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    stream.base.options = &[1, 1, 8, 10, 0, 0, 0, 10, 0, 0, 0, 20];
    lab.give_all(stream.take([1448, 1448]));
    lab.end_of_poll();
    assert_eq!(lab.sink.frames[0].meta.layout.payload, 14 + 20 + 32);
    lab.expect([joined(0..2)]);
}

#[test]
fn row_22_other_timestamps_start_anew() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    stream.base.options = &[1, 1, 8, 10, 0, 0, 0, 10, 0, 0, 0, 20];
    lab.give(stream.next(1448));
    stream.base.options = &[1, 1, 8, 10, 0, 0, 0, 11, 0, 0, 0, 20];
    lab.give(stream.next(1448));
    lab.expect_poll([lone(0)], [lone(1)]);
    lab.expect_completed(Completed::Options, 1);
}

#[test]
fn row_23_options_are_compared_bytewise() {
    const SACK: [u8; 12] = [1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 9];
    const TWO: [u8; 20] = [1, 1, 5, 18, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 20, 0, 0, 0, 29];
    for options in [&SACK[..], &TWO[..]] {
        let mut lab = Lab::kernel();
        let mut stream = Stream::v4();
        stream.base.options = options;
        lab.give_all(stream.take([1448, 1448]));
        lab.expect_poll([], [joined(0..2)]);
        // Each byte counts.
        for at in 0..options.len() {
            let mut lab = Lab::kernel();
            let mut stream = Stream::v4();
            stream.base.options = options;
            lab.give(stream.next(1448));
            lab.give(stream.next(1448).edited(|bytes| bytes[54 + at] ^= 0x10));
            lab.expect_poll([lone(0)], [lone(1)]);
            lab.expect_completed(Completed::Options, 1);
        }
    }
}

#[test]
fn row_24_another_data_offset_starts_anew() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give(stream.next(1448));
    stream.base.options = &[1; 4];
    lab.give(stream.next(1448));
    lab.expect_poll([lone(0)], [lone(1)]);
    lab.expect_completed(Completed::Flags, 1);
}

#[test]
fn row_25_ece_in_both() {
    let mut lab = Lab::kernel();
    lab.give_all(Stream::v4().take([1448, 1448]).map(|frame| with_flags(frame, ECE)));
    lab.expect_poll([], [joined(0..2)]);
}

#[test]
fn row_26_ece_in_the_second() {
    let mut lab = Lab::kernel();
    let [a, b] = Stream::v4().take([1448, 1448]);
    lab.give_all([a, with_flags(b, ECE)]);
    lab.expect_poll([lone(0)], [lone(1)]);
    lab.expect_completed(Completed::Flags, 1);
}

#[test]
fn row_27_cwr_in_both() {
    let frames = Stream::v4().take([1448, 1448]).map(|frame| with_flags(frame, CWR));
    let mut lab = Lab::guest();
    lab.give_all(frames);
    lab.expect_poll([lone(0)], [lone(1)]);
    let mut lab = Lab::kernel();
    lab.give_all(frames);
    lab.expect_poll([], [joined(0..2)]);
}

#[test]
fn row_27_cwr_on_the_first_only() {
    for mut lab in [Lab::guest(), Lab::kernel()] {
        let [a, b] = Stream::v4().take([1448, 1448]);
        lab.give_all([with_flags(a, CWR), b]);
        lab.expect_poll([lone(0)], [lone(1)]);
    }
}

#[test]
fn row_28_urgent_data_ends() {
    let mut lab = Lab::kernel();
    let [a, b] = Stream::v4().take([100, 100]);
    lab.give_all([a, with_flags(b, URG)]);
    lab.expect_poll([lone(0), lone(1)], []);
}

#[test]
fn row_29_an_urgent_pointer_without_urg_is_not_compared() {
    let mut lab = Lab::kernel();
    let [a, mut b] = Stream::v4().take([100, 100]);
    b.urgent = 5;
    lab.give_all([a, b]);
    lab.end_of_poll();
    let frame = lab.take();
    assert_eq!(frame.meta.gso.unwrap().segments, 2);
    assert_eq!(frame.head()[52..54], [0, 0], "the first packet's");
}

#[test]
fn row_30_a_header_that_can_not_be() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give(stream.next(100));
    lab.give(stream.next(100).spoiled(|bytes| bytes[46] = 0x40));
    lab.give(stream.next(100).spoiled(|bytes| bytes[46] = 0xf0).cut_at(&[60]));
    lab.expect_poll([lone(0), lone(1), lone(2)], []);
    lab.expect_passed(Passed::L4Header, 2);
    lab.expect_completed(Completed::OrderRule, 1);
}

#[test]
fn row_31_the_largest_ip_packet() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give_all(stream.take([4056; 16]));
    lab.give_all(stream.take([599, 599]));
    assert_eq!(lab.sink.frames[0].len() - 14, 65535);
    lab.expect_poll([joined(0..17)], [lone(17)]);
}

#[test]
fn row_32_no_more_than_fits() {
    let mut lab = Lab::kernel();
    lab.give_all(Stream::v4().take([1448; 46]));
    lab.expect_poll([joined(0..45)], [lone(45)]);
    lab.expect_completed(Completed::SizeLimit, 1);
}

#[test]
fn row_33_ipv6_counts_its_header() {
    let mut lab = Lab::kernel();
    lab.give_all(Stream::v6().take([13095; 6]));
    assert_eq!(lab.sink.frames[0].len() - 14, 65535);
    lab.expect_poll([joined(0..5)], [lone(5)]);
}

#[test]
fn row_34_a_trusted_super_packet_goes_on() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    let first = stream.next(2896);
    // Its second segment took an id as well.
    let second = with_id(stream.next(1448), 1002);
    lab.give(first.with_gso(1448, 2, true));
    lab.give(second);
    lab.end_of_poll();
    assert_eq!(lab.sink.frames[0].meta.gso.unwrap().segments, 3);
    lab.expect([joined(0..2)]);
}

#[test]
fn row_34_a_trusted_super_packet_continues_a_packet() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give(stream.next(1448));
    lab.give(stream.next(2896).with_gso(1448, 2, true));
    // The last segment of this one is short.
    lab.give(with_id(stream.next(2000), 1003).with_gso(1448, 2, true));
    assert_eq!(lab.sink.frames[0].meta.gso.unwrap().segments, 5);
    lab.expect_poll([joined(0..3)], []);
}

#[test]
fn row_34_super_packets_that_do_not_continue() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give(stream.next(1448));
    lab.give(stream.next(2000).with_gso(1000, 2, true));
    lab.expect([lone(0)]);
    lab.expect_completed(Completed::Refused, 1);
    // The same id in all segments, behind ids that count; and a super-packet alone, which stays as is.
    let mut fixed = with_id(stream.next(2000), 1003).with_gso(1000, 2, true);
    fixed.meta.gso.as_mut().unwrap().fixed_id = true;
    lab.give(fixed);
    lab.expect_poll([lone(1)], [lone(2)]);
    lab.expect_completed(Completed::Id, 1);
}

#[test]
fn row_34_a_counting_super_packet_does_not_continue_with_the_id_of_the_first() {
    let mut lab = Lab::kernel();
    let [a, b] = Stream::v4().take([1448, 2896]);
    lab.give(a);
    lab.give(with_id(b, 1000).with_gso(1448, 2, true));
    lab.expect_poll([lone(0)], [lone(1)]);
    lab.expect_completed(Completed::Id, 1);
}

#[test]
fn row_35_an_untrusted_super_packet_passes() {
    let mut lab = Lab::kernel();
    let mut stream = Stream::v4();
    lab.give(stream.next(1448));
    lab.give(stream.next(2896).with_gso(1448, 2, false));
    lab.expect_poll([lone(0), lone(1)], []);
    lab.expect_passed(Passed::UntrustedSuper, 1);
}

#[test]
fn row_35_neither_does_one_whose_numbers_do_not_fit() {
    for (size, segments) in [(1448, 3), (1448, 1), (0, 2), (0, 0), (2896, 1), (100, 2), (1, 65535)]
    {
        let mut lab = Lab::kernel();
        lab.give(Stream::v4().next(2896).with_gso(size, segments, true));
        lab.expect_poll([lone(0)], []);
        lab.expect_passed(Passed::UntrustedSuper, 1);
    }
    // CWR on its first segment only; UDP; the other IP version.
    let given = Stream::v4().next(2896).with_gso(1448, 2, true);
    for change in [
        |gso: &mut packet::Gso| gso.ecn = true,
        |gso: &mut packet::Gso| gso.kind = packet::GsoKind::UdpV4,
        |gso: &mut packet::Gso| gso.kind = packet::GsoKind::TcpV6,
    ] {
        let mut lab = Lab::kernel();
        let mut given = given.clone();
        change(given.meta.gso.as_mut().unwrap());
        lab.give(given);
        lab.expect_poll([lone(0)], []);
        lab.expect_passed(Passed::UntrustedSuper, 1);
    }
}

#[test]
fn tiny_segments_are_not_the_size_of_a_super_packet() {
    let mut lab = Lab::kernel();
    lab.give_all(Stream::v4().take([7, 7, 8, 8, 7]));
    lab.expect_poll([lone(0), lone(1), joined(2..5)], []);
    lab.expect_passed(Passed::SmallPayload, 2);
}

#[test]
fn rst_passes_behind_the_data() {
    let mut lab = Lab::kernel();
    let [a, b, c] = Stream::v4().take([100, 100, 0]);
    lab.give_all([a, b, with_flags(c, RST)]);
    lab.expect_poll([joined(0..2), lone(2)], []);
}

#[test]
fn each_flag_and_reserved_bit_counts() {
    for bit in 0..12 {
        let mut lab = Lab::kernel();
        let [a, mut b] = Stream::v4().take([100, 100]);
        b.flags ^= 1 << bit;
        lab.give_all([a, b]);
        if [FIN, PSH].contains(&(1 << bit)) {
            lab.expect_poll([joined(0..2)], []);
        } else if [SYN, RST, URG].contains(&(1 << bit)) {
            lab.expect_poll([lone(0), lone(1)], []);
        } else {
            lab.expect_poll([lone(0)], [lone(1)]);
        }
    }
}

#[test]
fn limits_of_the_guest() {
    let mut lab = Lab::guest();
    let accept = gro::Accept { tcp4: true, max_size: 3000, ..gro::Accept::default() };
    lab.engine.set_accept(accept);
    lab.give_all(Stream::v4().take([1448; 4]));
    lab.expect_poll([joined(0..2)], [joined(2..4)]);

    let mut lab = Lab::guest();
    lab.engine.set_accept(gro::Accept { max_size: 65535, max_pieces: 3, ..accept });
    let mut stream = Stream::v4();
    lab.give_all(stream.take([1448; 3]));
    // Two pieces, of which there is room for one.
    lab.give_all(stream.take([1448; 2]).map(|frame| frame.cut_at(&[700])));
    lab.expect_poll([joined(0..3), lone(3)], [lone(4)]);
    lab.expect_completed(Completed::SegmentLimit, 2);
}

#[test]
fn the_operators_limit() {
    let mut lab = Lab::new(Config { max_size: 1488 + 1448, ..Config::default() });
    lab.give_all(Stream::v4().take([1448; 3]));
    lab.expect_poll([joined(0..2)], [lone(2)]);
    // A nonsensical one changes nothing about 65535.
    let mut lab = Lab::new(Config { max_size: u32::MAX, ..Config::default() });
    lab.engine.set_accept(gro::Accept { tcp4: true, max_size: u32::MAX, ..gro::Accept::default() });
    lab.give_all(Stream::v4().take([1448; 46]));
    lab.expect_poll([joined(0..45)], [lone(45)]);
}

#[test]
fn payload_in_several_pieces() {
    let mut lab = Lab::kernel();
    let [a, b, c] = Stream::v4().take([1000, 1000, 1000]);
    lab.give(a.cut_at(&[54, 55, 300]).with_checksum(Checksum::Unknown));
    lab.give(b.cut_at(&[54]));
    lab.give(c.cut_at(&[301, 302]).with_checksum(Checksum::Unknown));
    lab.expect_poll([], [joined(0..3)]);
}

#[test]
fn headers_in_several_pieces_pass() {
    for cut in [10, 30, 36, 50] {
        let mut lab = Lab::kernel();
        let [a, b] = Stream::v4().take([1000, 1000]);
        lab.give(a);
        lab.give(b.cut_at(&[cut]));
        if cut == 10 {
            // Not even the EtherType is there: it is of no flow that could be told.
            lab.expect_poll([lone(1)], [lone(0)]);
        } else {
            lab.expect_poll([lone(0), lone(1)], []);
        }
    }
}

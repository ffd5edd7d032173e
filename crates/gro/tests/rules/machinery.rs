//! `spec/gro.md` 7.8, and what else is not about one protocol.

use std::time::Duration;

use gro::{Accept, Completed, Config, NormalBatch, Passed};

use crate::lab::{Change, FIN, Lab, PSH, SYN, Stream, joined, lone, with_flags};

const HOLD: Duration = Duration::from_micros(50);

fn flow(port: u16) -> Stream {
    let mut stream = Stream::v4();
    stream.base.ports.0 = port;
    stream.base.seq = u32::from(port) * 1000;
    stream
}

#[test]
fn rows_83_and_84_a_full_bucket_gives_up_its_oldest() {
    // Eight flows are one bucket.
    let mut lab = Lab::new(Config { max_flows: 8, ..Config::kernel_profile() });
    let mut flows: Vec<_> = (0..9).map(flow).collect();
    for flow in &mut flows[..8] {
        lab.give(flow.next(100));
    }
    // Going on does not make a flow younger.
    lab.give(flows[0].next(100));
    lab.expect_nothing();
    lab.give(flows[8].next(100));
    lab.expect([joined([0, 8])]);
    lab.expect_completed(Completed::Evicted, 1);
    assert_eq!(lab.engine.held(), 8);
    // The one that was given up goes on as a new one, and the next oldest leaves.
    lab.give(flows[0].next(100));
    lab.expect([lone(1)]);
    lab.expect_poll([], [lone(2), lone(3), lone(4), lone(5), lone(6), lone(7), lone(9), lone(10)]);
}

fn with_batch(threshold: usize) -> Lab {
    let mut lab = Lab::kernel();
    lab.batch = NormalBatch::new(threshold);
    lab
}

#[test]
fn rows_85_and_86_a_batch_of_eight() {
    let mut lab = with_batch(8);
    let mut stream = Stream::v4();
    lab.give_all(stream.take([0; 7]));
    assert!(lab.sink.deliveries.is_empty());
    assert_eq!((lab.batch.len(), lab.batch.is_empty()), (7, false));
    lab.end_of_poll();
    assert_eq!(lab.sink.deliveries, [7]);
    lab.give_all(stream.take([0; 8]));
    assert_eq!(lab.sink.deliveries, [7, 8]);
    lab.end_of_poll();
    assert_eq!(lab.sink.deliveries, [7, 8], "an empty batch is not delivered");
    assert_eq!(lab.batch.deliveries(), 2);
}

#[test]
fn row_87_a_super_packet_counts_for_its_segments() {
    let mut lab = with_batch(8);
    let mut stream = Stream::v4();
    lab.give(Stream::v6().next(0));
    lab.give_all(stream.take([100; 9]));
    lab.give(with_flags(stream.next(100), PSH));
    assert_eq!(lab.sink.deliveries, [2]);
    // Seven wait: one more is enough.
    lab.give_all(stream.take([100; 6]));
    lab.give(with_flags(stream.next(100), PSH));
    assert_eq!(lab.sink.deliveries, [2]);
    lab.give(stream.next(0));
    assert_eq!(lab.sink.deliveries, [2, 2]);
}

#[test]
fn row_88_no_batching() {
    let mut lab = with_batch(1);
    lab.give_all(Stream::v4().take([0; 3]));
    assert_eq!(lab.sink.deliveries, [1, 1, 1]);
}

#[test]
#[should_panic(expected = "at least one packet")]
fn row_88_a_batch_of_nothing() {
    let _ = NormalBatch::new(0);
}

#[test]
fn held_packets_leave_before_the_batch_does() {
    let mut lab = with_batch(8);
    let mut stream = Stream::v4();
    lab.give(flow(7).next(0));
    lab.give(stream.next(100));
    lab.end_of_poll();
    assert_eq!(lab.sink.deliveries, [2]);
    lab.expect([lone(0), lone(1)]);
}

fn holding() -> Lab {
    Lab::new(Config { flush_timeout: HOLD, ..Config::kernel_profile() })
}

#[test]
fn row_89_a_held_packet_leaves_in_time() {
    let mut lab = holding();
    assert_eq!(lab.engine.deadline(), None);
    lab.give(Stream::v4().next(100));
    let deadline = lab.now().after(HOLD);
    assert_eq!(lab.engine.deadline(), Some(deadline));
    lab.wait(HOLD - Duration::from_nanos(1));
    lab.end_of_poll();
    lab.expect_nothing();
    lab.wait(Duration::from_nanos(1));
    assert_eq!(lab.now(), deadline);
    lab.end_of_poll();
    lab.expect([lone(0)]);
    lab.expect_completed(Completed::Aged, 1);
    assert_eq!((lab.engine.held(), lab.engine.deadline()), (0, None));
}

#[test]
fn row_90_merging_does_not_make_younger() {
    let mut lab = holding();
    let mut stream = Stream::v4();
    for _ in 0..5 {
        lab.give(stream.next(100));
        lab.end_of_poll();
        lab.expect_nothing();
        lab.wait(Duration::from_micros(10));
    }
    lab.give(stream.next(100));
    lab.end_of_poll();
    lab.expect([joined(0..6)]);
}

#[test]
fn row_91_only_the_old_leave() {
    let mut lab = holding();
    lab.give(flow(1).next(100));
    lab.wait(HOLD / 2);
    lab.give(flow(2).next(100));
    lab.wait(HOLD / 2);
    lab.end_of_poll();
    lab.expect([lone(0)]);
    lab.wait(HOLD / 2);
    lab.end_of_poll();
    lab.expect([lone(1)]);
}

#[test]
fn row_92_the_guest_takes_less() {
    let v6_only = Accept { tcp6: true, ..Accept::default() };
    let mut lab = holding();
    let mut stream = Stream::v4();
    lab.give_all(stream.take([100; 3]));
    lab.flush_all(Completed::FeatureChange);
    lab.engine.set_accept(v6_only);
    lab.expect([joined(0..3)]);
    lab.expect_completed(Completed::FeatureChange, 1);
    lab.give_all(stream.take([100; 2]));
    lab.expect_poll([lone(3), lone(4)], []);
    lab.expect_passed(Passed::NoGuestFeature, 2);

    // Without a flush, the order is kept all the same.
    let mut lab = holding();
    let mut stream = Stream::v4();
    lab.give_all(stream.take([100; 3]));
    lab.engine.set_accept(v6_only);
    lab.give(stream.next(100));
    lab.expect([joined(0..3), lone(3)]);
    // The end of the poll does it, too.
    let mut lab = holding();
    lab.give_all(Stream::v4().take([100; 3]));
    lab.engine.set_accept(v6_only);
    lab.engine.set_accept(Accept { tcp4: true, ..v6_only });
    lab.expect_poll([], [joined(0..3)]);
}

#[test]
fn merging_switched_off_and_on() {
    let mut lab = holding();
    let mut stream = Stream::v4();
    lab.give_all(stream.take([100; 2]));
    let config = lab.engine.config().clone();
    lab.engine.set_config(Config { enabled: false, ..config.clone() });
    lab.give(stream.next(100));
    lab.expect([joined(0..2), lone(2)]);
    lab.expect_passed(Passed::GroOff, 1);
    lab.engine.set_config(Config { flush_timeout: Duration::ZERO, max_flows: 1, ..config });
    assert_eq!(lab.engine.config().max_flows, Config::default().max_flows);
    lab.give_all(stream.take([100; 2]));
    lab.expect_poll([], [joined(3..5)]);
}

#[test]
fn row_95_passed_packets_do_not_wait_for_held_ones() {
    let mut lab = holding();
    lab.batch = NormalBatch::new(8);
    lab.give(flow(1).next(100));
    for cycle in 1..=10 {
        lab.give(flow(2).next(0));
        lab.end_of_poll();
        lab.expect([lone(cycle)]);
        lab.wait(Duration::from_micros(1));
    }
    lab.wait(HOLD);
    lab.end_of_poll();
    lab.expect([lone(0)]);
}

#[test]
fn the_ports_hash_does_not_matter() {
    // In the kernel, two packets with different hashes do not match; here only keys decide.
    let mut lab = Lab::kernel();
    let [a, b, c] = Stream::v4().take([100, 100, 100]);
    lab.give(a.with_hash(1));
    lab.give(b.with_hash(2));
    lab.give(c);
    lab.expect_poll([], [joined(0..3)]);
}

#[test]
fn flows_leave_oldest_first() {
    let mut lab = Lab::kernel();
    let mut flows: Vec<_> = (0..40).map(flow).collect();
    for _ in 0..2 {
        for flow in &mut flows {
            lab.give(flow.next(100));
        }
    }
    lab.end_of_poll();
    let order: Vec<_> = lab.sink.frames.iter().map(|frame| frame.head()[35]).collect();
    assert_eq!(order, (0..40).collect::<Vec<_>>());
}

#[test]
fn everything_is_counted_once() {
    let mut lab = Lab::guest();
    let mut stream = Stream::v4();
    lab.give_all(stream.take([100, 100, 0]));
    lab.give(with_flags(stream.next(0), SYN));
    lab.give_all(stream.take([100, 50, 100]));
    lab.give(with_flags(stream.next(0), FIN));
    lab.give(flow(3).next(100));
    lab.give(vec![0; 5]);
    let counters = lab.engine.counters().clone();
    let passed: u64 = counters.passed().map(|(_, count)| count).sum();
    let completed: u64 = counters.completed().map(|(_, count)| count).sum();
    assert_eq!(counters.received, 10);
    assert_eq!(counters.merged + counters.held + passed, counters.received);
    assert_eq!(completed + 1, counters.held);
    assert_eq!((counters.supers, counters.segments), (2, 4));
    assert_eq!(counters.bytes, (54 + 200) + (54 + 150));

    let names: Vec<_> = counters.iter().map(|(name, _)| name).collect();
    let mut unique = names.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), names.len(), "each counter has a name of its own");
    let value = |wanted: &str| counters.iter().find(|(name, _)| name == wanted).unwrap().1;
    assert_eq!(value("received"), 10);
    assert_eq!(value("passed_truncated"), 1);
    assert_eq!(value("completed_short_segment"), 1);
}

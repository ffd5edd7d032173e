//! The receive queue against a device that writes the used ring from the same thread.

use super::*;
use crate::call::event;
use crate::config::Call;
use crate::features::{DEFAULT, VERSION_1};
use crate::header::{DATA_VALID, GSO_TCPV4, NEEDS_CSUM};
use crate::memory::Plan;

/// A queue and what the device knows of it.
struct Bench {
    queue: RxQueue,
    memory: Arc<Memory>,
    used: Place,
    avail: Place,
    /// How far the device has read the available ring, and written the used ring.
    next: u16,
    index: u16,
    size: u16,
}

impl Bench {
    fn new(features: u64, size: u16, buffer: u32) -> Self {
        let (ring_len, len) = (Ring::len(size), buffer as usize);
        let mut plan = Plan::new(2, 0, &[(ring_len, 1), (len, usize::from(size))]);
        let place = plan.place(ring_len);
        let buffers = (0..size).map(|_| plan.place(len)).collect();
        let memory = Arc::new(plan.build(false).unwrap());
        let ring = Ring::new(Arc::clone(&memory), place, size);
        let [descriptors, avail, used] = ring.user_addresses();
        let at = |address: u64| Place {
            offset: place.offset + usize::try_from(address - descriptors).unwrap(),
            ..place
        };
        let fds = (event().unwrap(), CallFd::new(Call::Event).unwrap());
        let mut queue = RxQueue::new(Arc::clone(&memory), ring, fds, buffers, (buffer, 1));
        queue.reset(Rules { features, mtu: None });
        Self { queue, memory, used: at(used), avail: at(avail), next: 0, index: 0, size }
    }

    /// The device takes a buffer, writes the header and says how much it wrote.
    fn fill(&mut self, header: Option<NetHeader>, len: u32) {
        let slot = usize::from(self.next % self.size);
        let avail = self.memory.slice(self.avail, 6 + 2 * usize::from(self.size));
        let head = avail.get_ref::<u16>(4 + 2 * slot).unwrap().load();
        self.next = self.next.wrapping_add(1);
        if let Some(header) = header {
            let place = self.queue.buffers[usize::from(head)];
            self.memory.slice(place, 12).copy_from(&header.encode()[..12]);
        }
        let slot = usize::from(self.index % self.size);
        let used = self.memory.slice(self.used, 6 + 8 * usize::from(self.size));
        let element = u64::from(head) | u64::from(len) << 32;
        used.get_ref::<u64>(4 + 8 * slot).unwrap().store(element);
        self.index = self.index.wrapping_add(1);
    }

    fn publish(&self) {
        let used = self.memory.slice(self.used, 4);
        used.get_ref::<u16>(2).unwrap().store(self.index);
    }

    fn available(&self) -> u16 {
        let avail = self.memory.slice(self.avail, 4);
        avail.get_ref::<u16>(2).unwrap().load()
    }
}

fn merged(buffers: u16) -> NetHeader {
    NetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 66,
        gso_size: 1448,
        num_buffers: buffers,
        ..Default::default()
    }
}

#[test]
fn both_ways_of_taking_count_alike_for_longer_than_the_indices() {
    let mut violations = Violations::new();
    let mut benches = [(); 2].map(|()| Bench::new(DEFAULT, 16, 2048));
    let single = NetHeader { flags: DATA_VALID, num_buffers: 1, ..Default::default() };
    let mut scratch = Vec::new();
    for round in 0..9000u32 {
        for bench in &mut benches {
            bench.fill(Some(merged(3)), 2048);
            bench.fill(None, 2048);
            bench.fill(None, 1000 + round % 7);
            bench.fill(Some(single), 72);
            bench.fill(Some(merged(2)), 2048);
            bench.fill(None, 1);
            bench.publish();
        }
        let [slow, fast] = &mut benches;
        let mut sizes = Vec::new();
        slow.queue.poll(0, &mut scratch, &mut Violations::new(), &mut |received: Received<'_>| {
            sizes.push((received.bytes.len(), received.buffers));
        });
        let len = 4096 - 12 + 1000 + round as usize % 7;
        assert_eq!(sizes, [(len, 3), (60, 1), (2037, 2)]);
        assert_eq!(fast.queue.poll_fast(&mut violations), 3);
        assert_eq!(fast.queue.poll_fast(&mut violations), 0);
        for bench in &benches {
            assert_eq!(bench.available(), bench.index.wrapping_add(16));
        }
    }
    let [slow, fast] = benches.map(|bench| bench.queue.stats);
    assert_eq!((fast.packets, fast.segments), (27_000, 63_000));
    assert_eq!(violations.total(), 0);
    // The frames are no packets, which only the careful way sees.
    assert_eq!(RxStats { violations: 0, ..slow }, fast);
}

#[test]
fn a_kick_follows_each_burst_unless_the_device_polls() {
    let mut violations = Violations::new();
    for (flags, kicks) in [(0u16, 2), (1, 0)] {
        let mut bench = Bench::new(VERSION_1, 8, 128);
        bench.memory.slice(bench.used, 2).get_ref::<u16>(0).unwrap().store(flags);
        for _ in 0..2 {
            for _ in 0..5 {
                bench.fill(Some(NetHeader { num_buffers: 1, ..Default::default() }), 72);
            }
            bench.publish();
            assert_eq!(bench.queue.poll_fast(&mut violations), 5);
        }
        assert_eq!(bench.queue.stats.kicks, kicks);
    }
}

#[test]
fn an_index_too_far_ends_the_reading() {
    let mut bench = Bench::new(VERSION_1, 8, 128);
    bench.index = 9;
    bench.publish();
    let mut violations = Violations::new();
    for _ in 0..2 {
        assert_eq!(bench.queue.poll_fast(&mut violations), 0);
    }
    assert_eq!(violations.count(Violation::UsedIndex), 1);
}

#[test]
fn buffers_are_posted_again_before_the_ring_is_empty() {
    let mut bench = Bench::new(VERSION_1, 256, 128);
    let header = NetHeader { num_buffers: 1, ..Default::default() };
    for _ in 0..200 {
        bench.fill(Some(header), 72);
    }
    bench.publish();
    let Bench { queue, memory, avail, .. } = &mut bench;
    let published = memory.slice(*avail, 4);
    let mut seen = Vec::new();
    let mut violations = Violations::new();
    let taken = queue.poll(0, &mut Vec::new(), &mut violations, &mut |_| {
        seen.push(published.get_ref::<u16>(2).unwrap().load());
    });
    assert_eq!((taken, seen.len(), violations.total()), (200, 200, 0));
    seen.dedup();
    assert_eq!(seen, [256, 320, 384, 448]);
    assert_eq!((bench.available(), bench.queue.stats.publishes), (456, 1));
}

#[test]
fn counting_notices_a_packet_in_parts() {
    let mut bench = Bench::new(DEFAULT, 8, 2048);
    bench.fill(Some(merged(2)), 2048);
    bench.publish();
    let mut violations = Violations::new();
    assert_eq!(bench.queue.poll_fast(&mut violations), 1);
    assert_eq!(violations.count(Violation::Straddles), 1);
    assert_eq!(bench.queue.stats.violations, 1);
}

#[test]
fn the_parts_of_a_chain_are_the_whole() {
    for (size, chain) in [(2048, 1), (2048, 2), (65_584, 19), (100, 89)] {
        let mut end = 0;
        for index in 0..chain {
            let (offset, len) = part(size, 12, chain, index);
            assert_eq!(offset, end);
            assert!(len > 0);
            end = offset + len;
        }
        assert_eq!(end, size);
        assert!(chain == 1 || part(size, 12, chain, 0) == (0, 12));
    }
}

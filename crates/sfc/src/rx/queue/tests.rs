use packet::Checksum;
use pci::fake::{Fake, FakeDevice, Host, Script};
use pci::{Iova, PciFunction, Width};
use proptest::prelude::*;

use super::*;
use crate::device::Generation;
use crate::registers::RX_DOORBELL;

const ENTRIES: u32 = 512;
const TARGET: u32 = ENTRIES - HEADROOM;
const BUFFER: usize = 256;

/// A device that takes every write.
struct Unwatched;

impl FakeDevice for Unwatched {
    fn read(&mut self, _: u64, _: Width, _: &Host) -> u64 {
        panic!("a receive queue reads no register")
    }

    fn write(&mut self, offset: u64, _: Width, value: u64, _: &Host) {
        assert!(offset == 0x830 && value < ENTRIES.into() && value.is_multiple_of(8));
    }

    fn reset(&mut self, _: &Host) {}
}

/// A queue, its pool, and the card's side of both rings.
struct Rig {
    queue: RxQueue,
    pool: Pool,
    burst: Burst,
    script: Script,
    host: Host,
    events: Iova,
    ring: Iova,
    next_event: u64,
    next_descriptor: u64,
    _fake: Fake,
}

impl Rig {
    fn new(buffers: usize, modes: Modes) -> Self {
        let script = Script::new();
        Self::on(buffers, modes, script.clone(), script)
    }

    fn on(buffers: usize, modes: Modes, device: impl FakeDevice + 'static, script: Script) -> Self {
        let mut fake = Fake::new(0x2000, device);
        let window = fake.bar(0).unwrap();
        let events = fake.dma(2048 * 8, 4096).unwrap();
        let ring = fake.dma(ENTRIES as usize * 8, 4096).unwrap();
        let packets = fake.dma(buffers * BUFFER, 4096).unwrap();
        let (event_iova, ring_iova) = (events.iova(), ring.iova());
        let (bytes, memory) = packets.into_packet_memory();
        let queue = RxQueue::new(RxParts {
            events: EventQueue::new(DmaRing::new(events, 2048), &window, false).unwrap(),
            ring: DmaRing::new(ring, ENTRIES),
            doorbell: window.register(RX_DOORBELL).unwrap(),
            memory,
            modes,
            checksums: ChecksumRules::new(Generation::Medford, false),
            hashed: true,
            padding: 64,
        });
        Self {
            queue,
            pool: Pool::from_memory(bytes, BUFFER),
            burst: Burst::new(64),
            script,
            host: fake.host(),
            events: event_iova,
            ring: ring_iova,
            next_event: 0,
            next_descriptor: 0,
            _fake: fake,
        }
    }

    /// One whose ring is filled and whose doorbell may be rung at any time.
    fn unwatched(modes: Modes) -> Self {
        let mut rig = Self::on(600, modes, Unwatched, Script::new());
        rig.poll();
        rig
    }

    /// One whose ring is filled.
    fn filled(modes: Modes) -> Self {
        let mut rig = Self::new(600, modes);
        rig.script.write(0x830, TARGET);
        rig.poll();
        rig.script.done();
        rig
    }

    fn poll(&mut self) -> usize {
        self.queue.poll(&mut self.burst, &mut self.pool)
    }

    /// The card's side: the next descriptor's address and byte count.
    fn descriptor(&mut self) -> (Iova, u64) {
        let mut bytes = [0; 8];
        self.host.read(self.ring.add(self.next_descriptor % u64::from(ENTRIES) * 8), &mut bytes);
        self.next_descriptor += 1;
        let word = u64::from_le_bytes(bytes);
        (Iova::new(word & ((1 << 48) - 1)), word >> 48)
    }

    /// The card's side: a packet of these bytes, with its prefix, into the next buffer.
    fn write_packet(&mut self, bytes: &[u8], hash: u32) {
        let (address, count) = self.descriptor();
        assert!(bytes.len() + 14 <= usize::try_from(count).unwrap(), "the test's packet fits");
        let mut prefix = [0; 14];
        prefix[..4].copy_from_slice(&hash.to_le_bytes());
        prefix[8..10].copy_from_slice(&u16::try_from(bytes.len()).unwrap().to_le_bytes());
        self.host.write(address, &prefix);
        self.host.write(address.add(14), bytes);
    }

    /// The card's side: an event as it is.
    fn raw_event(&mut self, raw: u64) {
        self.host.write(self.events.add(self.next_event % 2048 * 8), &raw.to_le_bytes());
        self.next_event += 1;
    }

    /// The card's side: a completion of all descriptors used so far.
    fn event(&mut self, bytes: u64, flags: u64) {
        self.raw_event(bytes | (self.next_descriptor & 15) << 48 | flags);
    }

    /// Every buffer is in exactly one place.
    fn all_accounted_for(&mut self) {
        for frame in self.burst.drain() {
            self.pool.recycle(frame);
        }
        self.queue.reclaim(&mut self.pool);
        assert_eq!(self.pool.available(), self.pool.total());
    }
}

const MODES: Modes = Modes { label: 0, batching: true, scatter: true };
const CONT: u64 = 1 << 14;
const TCP4: u64 = 1 << 42 | 1 << 45;
const BAD_FCS: u64 = 1 << 24;

#[test]
fn the_first_poll_fills_the_ring() {
    let mut rig = Rig::filled(MODES);
    assert_eq!(rig.pool.available(), 600 - TARGET as usize);
    let (first, count) = rig.descriptor();
    assert_eq!(count, BUFFER as u64);
    let (second, _) = rig.descriptor();
    assert_eq!(second, first.add(BUFFER as u64));
    rig.all_accounted_for();
}

#[test]
fn a_packet_with_its_verdict_and_hash() {
    let mut rig = Rig::filled(MODES);
    let bytes: Vec<u8> = (0..60).collect();
    rig.write_packet(&bytes, 0x1122_3344);
    rig.event(74, TCP4);
    assert_eq!(rig.poll(), 1);
    let frame = &rig.burst.frames()[0];
    assert_eq!(frame.to_vec(), bytes);
    assert_eq!(frame.meta.checksum, Checksum::Verified { levels: 1 });
    assert_eq!(frame.meta.hash, NonZeroU32::new(0x1122_3344));
    let counters = rig.queue.counters();
    assert_eq!((counters.frames, counters.bytes), (1, 60));
    rig.all_accounted_for();
}

#[test]
fn merged_packets_have_their_lengths_in_their_prefixes() {
    let mut rig = Rig::filled(MODES);
    for len in [60, 100, 242] {
        rig.write_packet(&vec![u8::try_from(len).unwrap(); len], 0);
    }
    rig.event(0, TCP4);
    assert_eq!(rig.poll(), 3);
    let lens: Vec<_> = rig.burst.frames().iter().map(Frame::len).collect();
    assert_eq!(lens, [60, 100, 242]);
    assert!(rig.burst.frames().iter().all(|frame| frame.meta.hash.is_none()));
    rig.all_accounted_for();
}

#[test]
fn a_full_burst_keeps_the_rest_for_later() {
    let mut rig = Rig::filled(MODES);
    rig.burst = Burst::new(4);
    for _ in 0..6 {
        rig.write_packet(&[1; 60], 0);
    }
    rig.event(0, 0);
    assert_eq!((rig.poll(), rig.poll()), (4, 0));
    for frame in rig.burst.drain() {
        rig.pool.recycle(frame);
    }
    assert_eq!(rig.poll(), 2);
    rig.all_accounted_for();
}

#[test]
fn refills_come_in_batches_with_one_doorbell() {
    let mut rig = Rig::filled(MODES);
    for round in 1..=3 {
        for _ in 0..15 {
            rig.write_packet(&[1; 60], 0);
        }
        rig.event(0, 0);
        // 45 descriptors free, at the third time: 40 of them are posted.
        if round == 3 {
            rig.script.write(0x830, (TARGET + 40) % ENTRIES);
        }
        assert_eq!(rig.poll(), 15);
    }
    rig.script.done();
    rig.all_accounted_for();
}

#[test]
fn a_scattered_packet_is_one_frame() {
    let mut rig = Rig::filled(MODES);
    rig.write_packet(&[1; 242], 7);
    rig.event(256, CONT | TCP4);
    for flags in [CONT, TCP4] {
        let (address, _) = rig.descriptor();
        rig.host.write(address, &[2; 100]);
        rig.event(100, flags);
    }
    assert_eq!(rig.poll(), 1);
    let frame = &rig.burst.frames()[0];
    assert_eq!((frame.len(), frame.piece_count()), (442, 3));
    assert_eq!(frame.to_vec()[240..244], [1, 1, 2, 2]);
    assert_eq!(frame.meta.hash, NonZeroU32::new(7));
    assert_eq!(frame.meta.checksum, Checksum::Verified { levels: 1 });
    rig.all_accounted_for();
}

#[test]
fn an_aborted_packet_is_dropped() {
    let mut rig = Rig::filled(MODES);
    rig.write_packet(&[1; 242], 0);
    rig.event(256, CONT);
    rig.event(0, 0);
    rig.write_packet(&[3; 60], 0);
    rig.event(74, 0);
    assert_eq!(rig.poll(), 1);
    assert_eq!((rig.queue.counters().aborted, rig.burst.frames()[0].len()), (1, 60));
    rig.all_accounted_for();
}

#[test]
fn what_is_dropped_is_counted() {
    let count = |bytes, flags, modes, pick: fn(RxCounters) -> u64| {
        let mut rig = Rig::filled(modes);
        rig.write_packet(&[1; 60], 0);
        rig.event(bytes, flags);
        assert_eq!((rig.poll(), rig.queue.end()), (0, None));
        assert_eq!(pick(rig.queue.counters()), 1);
        rig.all_accounted_for();
    };
    let no_scatter = Modes { scatter: false, ..MODES };
    count(74, BAD_FCS, MODES, |counters| counters.damaged);
    count(257, 0, MODES, |counters| counters.bad_length);
    count(13, 0, MODES, |counters| counters.bad_length);
    count(14 + 13, 0, MODES, |counters| counters.bad_length);
    count(256, CONT, no_scatter, |counters| counters.truncated);
}

#[test]
fn a_prefix_that_lies_costs_its_own_packet_only() {
    let mut rig = Rig::filled(MODES);
    let (address, _) = rig.descriptor();
    rig.host.write(address.add(8), &243u16.to_le_bytes());
    let (address, _) = rig.descriptor();
    rig.host.write(address.add(8), &0u16.to_le_bytes());
    rig.write_packet(&[1; 60], 0);
    rig.event(0, 0);
    assert_eq!(rig.poll(), 1);
    assert_eq!(rig.queue.counters().bad_length, 2);
    rig.all_accounted_for();
}

#[test]
fn a_bad_fragment_spoils_its_packet() {
    for (bytes, flags) in [(257, 0), (0, 0), (100, BAD_FCS)] {
        let mut rig = Rig::filled(MODES);
        rig.write_packet(&[1; 242], 0);
        rig.event(256, CONT);
        rig.descriptor();
        rig.event(bytes, flags);
        assert_eq!(rig.poll(), 0);
        let counters = rig.queue.counters();
        assert_eq!(counters.bad_length + counters.damaged, 1);
        rig.all_accounted_for();
    }
}

#[test]
fn nonsense_ends_the_queue() {
    let mut rig = Rig::filled(MODES);
    rig.raw_event(74 | 3 << 16 | 1 << 48);
    rig.write_packet(&[1; 60], 0);
    rig.event(74, 0);
    assert_eq!((rig.poll(), rig.queue.end()), (0, Some(RxFault::Label)));
    assert_eq!(rig.poll(), 0, "nothing more is read or posted");
    rig.all_accounted_for();
}

#[test]
fn a_completion_before_anything_is_posted() {
    let mut rig = Rig::new(7, MODES);
    assert_eq!(rig.poll(), 0, "seven descriptors are written, none is the card's");
    rig.raw_event(74 | 1 << 48);
    assert_eq!((rig.poll(), rig.queue.end()), (0, Some(RxFault::NeverPosted)));
    rig.all_accounted_for();
}

#[test]
fn other_events() {
    let mut rig = Rig::filled(MODES);
    rig.raw_event(5 << 60 | 2 << 56);
    rig.raw_event(0xc << 60 | 0x10 << 44 | 1 << 12);
    rig.poll();
    assert!(!rig.queue.is_flushed(), "the copy for event queue 0 means nothing");
    assert_eq!(rig.queue.counters().other_events, 2);
    rig.raw_event(0xc << 60 | 0x11 << 44 | 2 << 12);
    rig.poll();
    assert_eq!(rig.queue.end(), Some(RxFault::Reported(2)));
    let mut rig = Rig::filled(MODES);
    rig.raw_event(0xc << 60 | 0x10 << 44);
    rig.poll();
    assert!(rig.queue.is_flushed());
}

#[test]
fn a_pool_that_runs_dry() {
    let mut rig = Rig::new(20, MODES);
    rig.script.write(0x830, 16u32);
    rig.poll();
    rig.script.done();
    assert_eq!((rig.queue.counters().starved, rig.pool.available()), (1, 0));
    // The four that were written wait for four more.
    for _ in 0..4 {
        rig.write_packet(&[1; 60], 0);
    }
    rig.event(0, 0);
    assert_eq!(rig.poll(), 4);
    for frame in rig.burst.drain() {
        rig.pool.recycle(frame);
    }
    rig.script.write(0x830, 24u32);
    rig.poll();
    rig.script.done();
    rig.all_accounted_for();
}

#[test]
fn buffers_from_elsewhere_are_not_posted() {
    let mut rig = Rig::new(8, MODES);
    let mut other = Pool::new(8, BUFFER);
    rig.queue.poll(&mut rig.burst, &mut other);
    assert_eq!((rig.queue.counters().foreign, other.available()), (1, 8));
}

#[test]
fn many_rounds() {
    let mut rig = Rig::filled(MODES);
    let mut added = TARGET;
    let mut seen = 0u64;
    for round in 0u32..400 {
        let packets = 1 + round % 15;
        for _ in 0..packets {
            rig.write_packet(&[u8::try_from(round % 251).unwrap(); 64], round);
        }
        rig.event(78, 0);
        seen += u64::from(packets);
        let free = TARGET - (added - u32::try_from(rig.next_descriptor).unwrap());
        if free >= BATCH {
            added += free & !7;
            rig.script.write(0x830, added % ENTRIES);
        }
        assert_eq!(rig.poll(), packets as usize);
        for frame in rig.burst.drain() {
            assert_eq!(frame.to_vec(), [u8::try_from(round % 251).unwrap(); 64]);
            rig.pool.recycle(frame);
        }
    }
    assert_eq!((rig.queue.counters().frames, rig.queue.end()), (seen, None));
    rig.all_accounted_for();
}

proptest! {
    #[test]
    fn no_events_break_it(
        events in prop::collection::vec((any::<u64>(), 0u64..4, 0u64..300), 1..80),
        batching: bool,
        scatter: bool,
    ) {
        let mut rig = Rig::unwatched(Modes { label: 0, batching, scatter });
        for (raw, count, bytes) in events {
            // Half of them plausible, so that they get far.
            let raw = if raw & 1 == 0 {
                let posted = rig.queue.progress.removed().wrapping_add(u32::try_from(count).unwrap());
                raw & !(0xff << 52 | 0xf << 48 | 0x1f << 16 | 0x3fff) | bytes
                    | u64::from(posted & 15) << 48
            } else {
                raw
            };
            if crate::event::is_present(raw) {
                rig.raw_event(raw);
            }
            rig.poll();
            for frame in rig.burst.drain() {
                prop_assert!(frame.len() >= 14 && frame.len() < 16 * BUFFER);
                rig.pool.recycle(frame);
            }
        }
        rig.all_accounted_for();
    }
}

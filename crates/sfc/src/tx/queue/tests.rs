use packet::build::TcpFrame;
use packet::{Buffer, Checksum, Gso, GsoKind, Piece, header};
use pci::fake::{Fake, FakeDevice, Host};
use pci::{Iova, PciFunction, Width};
use proptest::prelude::*;

use super::*;
use crate::registers::{TX_DOORBELL, TX_PUSH, TX_PUSH_DOORBELL};

const ENTRIES: u32 = 512;
const BUFFER: usize = 2048;
const CONT: u64 = 1 << 62;

/// A device that keeps the last write pointer.
#[derive(Clone, Default)]
struct Pointer(std::sync::Arc<std::sync::Mutex<(u64, u32)>>);

impl Pointer {
    /// The pointer, and how often it was written.
    fn last(&self) -> (u64, u32) {
        *self.0.lock().unwrap()
    }
}

impl FakeDevice for Pointer {
    fn read(&mut self, _: u64, _: Width, _: &Host) -> u64 {
        panic!("a transmit queue reads no register")
    }

    fn write(&mut self, offset: u64, width: Width, value: u64, _: &Host) {
        match (offset, width) {
            (0xa10, Width::Qword) => assert_eq!(value, 1 << 63, "only the first one is pushed"),
            (0xa18, _) => {
                assert!(value < ENTRIES.into());
                let mut last = self.0.lock().unwrap();
                *last = (value, last.1 + 1);
            }
            _ => panic!("{value:#x} to {offset:#x}"),
        }
    }

    fn reset(&mut self, _: &Host) {}
}

struct Rig {
    queue: TxQueue,
    pool: Pool,
    burst: Burst,
    pointer: Pointer,
    host: Host,
    events: Iova,
    ring: Iova,
    next_event: u64,
    _fake: Fake,
}

impl Rig {
    fn new(buffers: usize) -> Self {
        let pointer = Pointer::default();
        let mut fake = Fake::new(0x2000, pointer.clone());
        let window = fake.bar(0).unwrap();
        let events = fake.dma(1024 * 8, 4096).unwrap();
        let ring = fake.dma(ENTRIES as usize * 8, 4096).unwrap();
        let packets = fake.dma(buffers * BUFFER, 4096).unwrap();
        let (event_iova, ring_iova) = (events.iova(), ring.iova());
        let (bytes, memory) = packets.into_packet_memory();
        let queue = TxQueue::new(TxParts {
            events: EventQueue::new(DmaRing::new(events, 1024), &window, false).unwrap(),
            ring: DmaRing::new(ring, ENTRIES),
            doorbell: window.register(TX_DOORBELL).unwrap(),
            push: [window.register(TX_PUSH).unwrap(), window.register(TX_PUSH_DOORBELL).unwrap()],
            memory,
            label: 3,
            tso: true,
        });
        Self {
            queue,
            pool: Pool::from_memory(bytes, BUFFER),
            burst: Burst::new(64),
            pointer,
            host: fake.host(),
            events: event_iova,
            ring: ring_iova,
            next_event: 0,
            _fake: fake,
        }
    }

    fn frame(&mut self, bytes: &[u8]) {
        let frame = Frame::copied_from(bytes, &mut self.pool).unwrap();
        self.burst.push(frame);
    }

    fn send(&mut self) -> usize {
        self.queue.send(&mut self.burst, &mut self.pool)
    }

    fn reap(&mut self) -> usize {
        self.queue.reap(&mut self.pool);
        self.pool.available()
    }

    /// The card's side: the descriptor in a slot.
    fn descriptor(&self, slot: u64) -> u64 {
        let mut bytes = [0; 8];
        self.host.read(self.ring.add(slot % u64::from(ENTRIES) * 8), &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// The card's side: the bytes behind a data descriptor.
    fn bytes(&self, word: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(word >> 48 & 0x3fff).unwrap()];
        self.host.read(Iova::new(word & ((1 << 48) - 1)), &mut bytes);
        bytes
    }

    /// The card's side: an event.
    fn event(&mut self, raw: u64) {
        self.host.write(self.events.add(self.next_event % 1024 * 8), &raw.to_le_bytes());
        self.next_event += 1;
    }

    fn complete(&mut self, slot: u64) {
        self.event(2 << 60 | 3 << 16 | slot);
    }
}

#[test]
fn the_first_descriptor_is_a_pushed_option() {
    let rig = Rig::new(4);
    assert_eq!(rig.pointer.last(), (1, 1));
    assert_eq!(rig.descriptor(0), 1 << 63);
}

#[test]
fn frames_become_descriptors_with_one_doorbell() {
    let mut rig = Rig::new(4);
    for byte in 1..=3 {
        rig.frame(&[byte; 60]);
    }
    assert_eq!(rig.send(), 3);
    assert_eq!(rig.pointer.last(), (4, 2));
    for slot in 1..=3 {
        let word = rig.descriptor(slot);
        assert_eq!((word & CONT, rig.bytes(word)), (0, vec![u8::try_from(slot).unwrap(); 60]));
    }
    assert_eq!(rig.reap(), 1);
    rig.complete(2);
    assert_eq!((rig.reap(), rig.queue.outstanding()), (3, 1));
    rig.complete(3);
    assert_eq!((rig.reap(), rig.queue.outstanding()), (4, 0));
}

#[test]
fn nothing_to_send_rings_nothing() {
    let mut rig = Rig::new(1);
    assert_eq!(rig.send(), 0);
    assert_eq!(rig.pointer.last().1, 1);
}

#[test]
fn options_stand_only_where_they_change() {
    let mut rig = Rig::new(4);
    let tcp = TcpFrame::v4().to_vec();
    let layout = header::parse(&tcp).unwrap().layout;
    for partial in [true, true, false] {
        rig.frame(&tcp);
        if partial {
            let frame = rig.burst.frames_mut().last_mut().unwrap();
            frame.meta.checksum = Checksum::Partial { start: layout.transport, offset: 16 };
        }
    }
    assert_eq!(rig.send(), 3);
    assert_eq!(rig.descriptor(1), 1 << 63 | 2);
    assert_eq!(rig.bytes(rig.descriptor(2)), tcp);
    assert_eq!(rig.bytes(rig.descriptor(3)), tcp);
    assert_eq!(rig.descriptor(4), 1 << 63);
    assert_eq!(rig.queue.counters().card_checksums, 2);
    rig.complete(5);
    assert_eq!(rig.reap(), 4);
}

#[test]
fn a_super_packet_is_options_headers_payload() {
    let mut rig = Rig::new(4);
    let mut tcp = TcpFrame::v4();
    tcp.payload = &[9; 500];
    let bytes = tcp.to_vec();
    let layout = header::parse(&bytes).unwrap().layout;
    let mut frame = Frame::copied_from(&bytes, &mut rig.pool).unwrap();
    frame.meta.layout = layout;
    frame.meta.checksum = Checksum::Partial { start: layout.transport, offset: 16 };
    let (kind, size) = (GsoKind::TcpV4, 100);
    frame.meta.gso =
        Some(Gso { kind, size, segments: 8, fixed_id: false, ecn: false, trusted: true });
    let mut buffer = rig.pool.take().unwrap();
    buffer.bytes_mut().fill(8);
    frame.push_piece(Piece::new(buffer, 10, 300), &mut rig.pool);
    // A piece without bytes takes no descriptor.
    let empty = rig.pool.take().unwrap();
    frame.push_piece(Piece::new(empty, 0, 0), &mut rig.pool);
    rig.burst.push(frame);
    assert_eq!(rig.send(), 1);
    assert_eq!(rig.descriptor(1), 1 << 63 | 2, "checksums on");
    assert_eq!((rig.descriptor(2) >> 56, rig.descriptor(3)), (0xf2, 0xf3 << 56 | 100 << 32));
    let [header, rest, last] = [4, 5, 6].map(|slot| rig.descriptor(slot));
    assert_eq!([header & CONT, rest & CONT, last & CONT], [CONT, CONT, 0]);
    assert_eq!(rig.bytes(header).len(), usize::from(layout.payload));
    assert_eq!((rig.bytes(rest), rig.bytes(last)), (vec![9; 500], vec![8; 300]));
    assert_eq!(rig.pointer.last(), (7, 2));
    rig.complete(6);
    assert_eq!(rig.reap(), 4);
}

#[test]
fn a_full_ring_keeps_frames_with_the_caller() {
    let mut rig = Rig::new(600);
    let mut sent = 0;
    let left = loop {
        while rig.burst.room() > 0 {
            rig.frame(&[1; 60]);
        }
        sent += rig.send();
        if !rig.burst.is_empty() {
            break rig.burst.len();
        }
    };
    assert_eq!(sent, (ENTRIES - HEADROOM - 1) as usize);
    assert_eq!((rig.queue.counters().full, rig.send()), (1, 0));
    rig.complete(100);
    rig.reap();
    assert_eq!(rig.send(), left.min(101));
}

#[test]
fn foreign_memory_is_refused() {
    let mut rig = Rig::new(1);
    let buffer = Buffer::new(Vec::leak(vec![0; 64]));
    rig.burst.push(Frame::new(buffer, 0, 60));
    assert_eq!(rig.send(), 1);
    assert_eq!((rig.queue.counters().refused, rig.pointer.last().1), (1, 1));
}

#[test]
fn nonsense_ends_the_queue() {
    for (raw, fault) in [
        (2 << 60 | 4 << 16, TxFault::Label),
        (2 << 60 | 3 << 16 | 2, TxFault::NeverPosted),
        (2 << 60 | 3 << 16 | 0xffff, TxFault::NeverPosted),
        (0xc << 60 | 0xb << 44 | 5 << 12, TxFault::Reported(5)),
    ] {
        let mut rig = Rig::new(2);
        rig.frame(&[1; 60]);
        rig.send();
        rig.event(raw);
        rig.reap();
        assert_eq!(rig.queue.end(), Some(fault));
        rig.frame(&[1; 60]);
        assert_eq!((rig.send(), rig.queue.counters().refused), (1, 1));
        rig.queue.reclaim(&mut rig.pool);
        assert_eq!((rig.pool.available(), rig.queue.counters().lost), (2, 1));
    }
}

#[test]
fn a_flush_is_noticed() {
    let mut rig = Rig::new(1);
    rig.event(0xc << 60 | 0xc << 44 | 1 << 12);
    assert!(!rig.queue.settle(), "the copy for event queue 0");
    rig.event(0xc << 60 | 0xc << 44);
    assert!(rig.queue.settle());
}

proptest! {
    /// Whatever the card says, buffers are neither lost nor given back twice.
    #[test]
    fn buffers_are_accounted_for(events: Vec<(u8, u16)>, sends in 1_usize..8) {
        let mut rig = Rig::new(64);
        for (burst, (kind, index)) in events.into_iter().enumerate() {
            for _ in 0..sends {
                if rig.pool.available() > 0 && rig.burst.room() > 0 {
                    rig.frame(&[1; 60]);
                }
            }
            rig.send();
            match kind {
                0..64 => rig.complete(u64::from(index) % 64),
                64..70 => rig.event(0xc << 60 | u64::from(index) << 40),
                _ => rig.complete((u64::try_from(burst).unwrap() * 3) % u64::from(ENTRIES)),
            }
            rig.reap();
            let held = rig.queue.in_flight.iter().flatten().count();
            prop_assert_eq!(rig.pool.available() + held + rig.burst.len(), 64);
        }
        rig.queue.reclaim(&mut rig.pool);
        prop_assert_eq!(rig.pool.available() + rig.burst.len(), 64);
    }
}

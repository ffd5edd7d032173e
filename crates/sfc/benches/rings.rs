//! What the driver costs per packet: event to frame, refill, and transmit, on recorded rings.
//!
//! The card's side is played between the timed stretches: completions are written into the event ring,
//! as a card would have. A doorbell here is a message to a fake instead of a store, one per 32 buffers
//! or more. Run with `cargo bench -p sfc`; the figure per packet is criterion's time per element.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use packet::{Burst, Frame, Pool};
use pci::fake::{Fake, FakeDevice, Host};
use pci::{DmaRing, Iova, PciFunction, Width};
use sfc::device::Generation;
use sfc::event::ChecksumRules;
use sfc::evq::EventQueue;
use sfc::registers::{RX_DOORBELL, TX_DOORBELL, TX_PUSH, TX_PUSH_DOORBELL};
use sfc::rx::completion::Modes;
use sfc::rx::{RxParts, RxQueue};
use sfc::tx::{TxParts, TxQueue};

const ENTRIES: u32 = 1024;
const EVENTS: u32 = 2048;
/// Packets between two turns of the card.
const ROUND: u32 = 512;
const BUFFER: usize = 2048;
const BUFFERS: usize = 4096;
const FRAME: u64 = 1514;

/// A card that does nothing by itself.
struct Silent;

impl FakeDevice for Silent {
    fn read(&mut self, _: u64, _: Width, _: &Host) -> u64 {
        0
    }

    fn write(&mut self, _: u64, _: Width, _: u64, _: &Host) {}

    fn reset(&mut self, _: &Host) {}
}

/// A receive queue and the card's side of its rings.
struct Receive {
    queue: RxQueue,
    pool: Pool,
    burst: Burst,
    host: Host,
    events: Iova,
    ring: Iova,
    event: u64,
    descriptor: u64,
    _fake: Fake,
}

impl Receive {
    fn new() -> Self {
        let mut fake = Fake::new(0x2000, Silent);
        let window = fake.bar(0).expect("the fake is set up");
        let events = fake.dma(EVENTS as usize * 8, 4096).expect("the fake is set up");
        let ring = fake.dma(ENTRIES as usize * 8, 4096).expect("the fake is set up");
        let (event_iova, ring_iova) = (events.iova(), ring.iova());
        let (bytes, memory) =
            fake.dma(BUFFERS * BUFFER, 4096).expect("the fake is set up").into_packet_memory();
        let mut queue = RxQueue::new(RxParts {
            events: EventQueue::new(DmaRing::new(events, EVENTS), &window, false)
                .expect("the fake is set up"),
            ring: DmaRing::new(ring, ENTRIES),
            doorbell: window.register(RX_DOORBELL).expect("the fake is set up"),
            memory,
            modes: Modes { label: 0, batching: true, scatter: true },
            checksums: ChecksumRules::new(Generation::Medford, false),
            hashed: true,
            padding: 64,
        });
        let mut pool = Pool::from_memory(bytes, BUFFER);
        let mut burst = Burst::new(64);
        queue.poll(&mut burst, &mut pool);
        let host = fake.host();
        Self {
            queue,
            pool,
            burst,
            host,
            events: event_iova,
            ring: ring_iova,
            event: 0,
            descriptor: 0,
            _fake: fake,
        }
    }

    /// The card receives a round of packets, `merged` of them in each completion.
    fn complete(&mut self, merged: u32) {
        for _ in 0..ROUND / merged {
            for _ in 0..merged {
                let mut word = [0; 8];
                let slot = self.descriptor % u64::from(ENTRIES) * 8;
                self.host.read(self.ring.add(slot), &mut word);
                let buffer = Iova::new(u64::from_le_bytes(word) & ((1 << 48) - 1));
                let mut prefix = [0; 14];
                prefix[8..10].copy_from_slice(&1514_u16.to_le_bytes());
                self.host.write(buffer, &prefix);
                self.descriptor += 1;
            }
            // TCP over IPv4, hashed, both checksums right.
            let event = (FRAME + 14) | 1 << 42 | 1 << 45 | (self.descriptor & 15) << 48;
            let slot = self.event % u64::from(EVENTS) * 8;
            self.host.write(self.events.add(slot), &event.to_le_bytes());
            self.event += 1;
        }
    }

    /// Receives a round; how long that took.
    fn round(&mut self, merged: u32) -> Duration {
        self.complete(merged);
        let (mut total, mut spent) = (0, Duration::ZERO);
        while total < ROUND as usize {
            #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
            let start = Instant::now();
            total += black_box(self.queue.poll(&mut self.burst, &mut self.pool));
            spent += start.elapsed();
            for frame in self.burst.drain() {
                self.pool.recycle(frame);
            }
        }
        assert!(self.queue.end().is_none());
        spent
    }
}

/// A transmit queue and the card's side of its events.
struct Transmit {
    queue: TxQueue,
    pool: Pool,
    burst: Burst,
    host: Host,
    events: Iova,
    event: u64,
    descriptor: u64,
    _fake: Fake,
}

impl Transmit {
    fn new() -> Self {
        let mut fake = Fake::new(0x2000, Silent);
        let window = fake.bar(0).expect("the fake is set up");
        let events = fake.dma(EVENTS as usize * 8, 4096).expect("the fake is set up");
        let ring = fake.dma(ENTRIES as usize * 8, 4096).expect("the fake is set up");
        let event_iova = events.iova();
        let (bytes, memory) =
            fake.dma(BUFFERS * BUFFER, 4096).expect("the fake is set up").into_packet_memory();
        let queue = TxQueue::new(TxParts {
            events: EventQueue::new(DmaRing::new(events, EVENTS), &window, false)
                .expect("the fake is set up"),
            ring: DmaRing::new(ring, ENTRIES),
            doorbell: window.register(TX_DOORBELL).expect("the fake is set up"),
            push: [
                window.register(TX_PUSH).expect("the fake is set up"),
                window.register(TX_PUSH_DOORBELL).expect("the fake is set up"),
            ],
            memory,
            label: 0,
            tso: true,
        });
        Self {
            queue,
            pool: Pool::from_memory(bytes, BUFFER),
            burst: Burst::new(64),
            host: fake.host(),
            events: event_iova,
            event: 0,
            descriptor: 0,
            _fake: fake,
        }
    }

    /// Sends a round in bursts and reaps it; how long both took.
    fn round(&mut self) -> Duration {
        let mut spent = Duration::ZERO;
        for _ in 0..ROUND / 64 {
            for _ in 0..64 {
                let buffer = self.pool.take().expect("the fake is set up");
                self.burst.push(Frame::new(buffer, 0, 1514));
            }
            self.descriptor += 64;
            #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
            let start = Instant::now();
            assert_eq!(black_box(self.queue.send(&mut self.burst, &mut self.pool)), 64);
            spent += start.elapsed();
            let event = 2 << 60 | (self.descriptor % u64::from(ENTRIES));
            let slot = self.event % u64::from(EVENTS) * 8;
            self.host.write(self.events.add(slot), &event.to_le_bytes());
            self.event += 1;
            #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
            let start = Instant::now();
            self.queue.reap(&mut self.pool);
            spent += start.elapsed();
        }
        assert!(self.queue.end().is_none());
        spent
    }
}

fn rings(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sfc");
    group.throughput(Throughput::Elements(u64::from(ROUND)));
    for merged in [1, 8] {
        group.bench_function(format!("receive and refill, {merged} per completion"), |bencher| {
            let mut receive = Receive::new();
            bencher.iter_custom(|rounds| (0..rounds).map(|_| receive.round(merged)).sum());
        });
    }
    group.bench_function("send and reap", |bencher| {
        let mut transmit = Transmit::new();
        bencher.iter_custom(|rounds| (0..rounds).map(|_| transmit.round()).sum());
    });
    group.finish();
}

criterion_group!(benches, rings);
criterion_main!(benches);

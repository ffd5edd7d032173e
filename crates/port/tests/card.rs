//! The port `sfc` on the model of a card, in one process: what the end-to-end tests can't look into.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use packet::{Burst, Checksum, Frame, Pool};
use port::{Port, QueuePair, Sfc, SfcOptions};
use sfc_model::Card;
use sfc_model::config::{Config, Function, Generation};
use sfc_model::device::{Device, Socket};
use sfc_model::wire::{Kind, Wire};
use traffic::{StreamConfig, Streams};

const BUFFER: usize = 2048;
const BUFFERS: usize = 16 * 1024;

/// The card's end of a cable.
struct Cable {
    incoming: Receiver<Vec<u8>>,
    outgoing: Sender<Vec<u8>>,
}

impl Wire for Cable {
    fn receive(&mut self, _now: Duration, frame: &mut [u8]) -> io::Result<Option<usize>> {
        let Ok(bytes) = self.incoming.try_recv() else { return Ok(None) };
        frame[..bytes.len()].copy_from_slice(&bytes);
        Ok(Some(bytes.len()))
    }

    fn send(&mut self, _now: Duration, frame: &[u8]) -> io::Result<()> {
        let _ = self.outgoing.send(frame.to_vec());
        Ok(())
    }

    fn waits(&self) -> bool {
        true
    }
}

/// A frame that came, and how.
struct Received {
    queue: usize,
    hash: u32,
    bytes: Vec<u8>,
}

/// A port on a card, with its queues, and our end of the cable. Fields are dropped in this order: the
/// queues go back to the port before it takes leave of the card.
struct Bench {
    port: Sfc,
    queues: Vec<QueuePair>,
    pool: Pool,
    to_card: Sender<Vec<u8>>,
    from_card: Receiver<Vec<u8>>,
    device: Device,
    _place: tempfile::TempDir,
}

impl Bench {
    fn new(config: Config, pairs: usize, set: impl FnOnce(&mut SfcOptions)) -> Self {
        let (to_card, incoming) = channel();
        let (outgoing, from_card) = channel();
        let wire = Box::new(Cable { incoming, outgoing });
        Self::on(wire, (to_card, from_card), config, pairs, set)
    }

    fn on(
        wire: Box<dyn Wire>,
        (to_card, from_card): (Sender<Vec<u8>>, Receiver<Vec<u8>>),
        config: Config,
        pairs: usize,
        set: impl FnOnce(&mut SfcOptions),
    ) -> Self {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("card.sock");
        let device =
            Device::start(Card::new(config), wire, &Socket::VfioUser(path.clone())).unwrap();
        let mut options = SfcOptions::new(path.to_string_lossy());
        set(&mut options);
        let mut port = Sfc::open(&options).unwrap();
        let memory = port.packet_memory(BUFFERS * BUFFER).unwrap().unwrap();
        let pool = Pool::from_memory(memory, BUFFER);
        let queues = port.open(pairs).unwrap();
        let mut bench = Self { port, queues, pool, to_card, from_card, device, _place: place };
        // The first poll hands buffers to the card, which takes a moment to see them.
        assert!(bench.poll().is_empty());
        std::thread::sleep(Duration::from_millis(50));
        bench
    }

    fn poll(&mut self) -> Vec<Received> {
        let mut received = Vec::new();
        let mut burst = Burst::new(64);
        for (queue, pair) in self.queues.iter_mut().enumerate() {
            pair.rx.rx_burst(&mut burst, &mut self.pool);
            for frame in burst.drain() {
                received.push(Received {
                    queue,
                    hash: frame.meta.hash.map_or(0, NonZeroU32::get),
                    bytes: frame.to_vec(),
                });
                self.pool.recycle(frame);
            }
        }
        received
    }

    /// Polls all queues until so many frames have come, or nothing more does; each with its queue.
    fn receive(&mut self, wanted: usize) -> Vec<Received> {
        let mut received = Vec::new();
        for _ in 0..50_000 {
            received.extend(self.poll());
            if received.len() >= wanted {
                break;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        received
    }

    /// Ends it all, in the order of the backend: workers give their queues up when they are called back.
    fn end(mut self) {
        let queues = std::mem::take(&mut self.queues);
        drop(queues);
        drop(self.port);
        let report = self.device.report();
        assert_eq!(report["violations"]["total"], 0, "{report}");
    }
}

fn medford() -> Config {
    Config::new(Generation::Medford, Function::Physical)
}

fn streams(config: StreamConfig, count: usize) -> Vec<Vec<u8>> {
    let mut streams = Streams::new(config);
    let mut buffer = vec![0; 16 * 1024];
    let mut frames = Vec::new();
    for _ in 0..count {
        let len = streams.write_next(&mut buffer).unwrap();
        frames.push(buffer[..len].to_vec());
    }
    frames
}

/// Addresses and ports of TCP over IPv4.
fn flow(frame: &[u8]) -> [u8; 12] {
    frame[26..38].try_into().unwrap()
}

#[test]
fn flows_are_spread_over_the_queues_and_stay_in_theirs() {
    for (generation, function) in [
        (Generation::Huntington, Function::Physical),
        (Generation::Medford, Function::Physical),
        (Generation::Medford2, Function::Physical),
    ] {
        let mut bench = Bench::new(Config::new(generation, function), 4, |_| {});
        let mut frames = streams(StreamConfig { flows: 512, ..StreamConfig::default() }, 2048);
        let mut received = Vec::new();
        // No more at a time than one queue has buffers for, should all go there.
        for some in frames.chunks(256) {
            for frame in some {
                bench.to_card.send(frame.clone()).unwrap();
            }
            received.extend(bench.receive(some.len()));
        }
        assert_eq!(received.len(), frames.len(), "{generation:?}");
        let mut hashes = BTreeMap::new();
        let mut used = BTreeSet::new();
        for got in &received {
            let hash = hashes.entry(flow(&got.bytes)).or_insert(got.hash);
            assert_eq!(*hash, got.hash, "the hash of a flow changes");
            // The key is random, the table is not: entry i is queue i mod 4.
            assert_eq!(got.queue, (got.hash % 128 % 4) as usize, "{generation:?}");
            used.insert(got.queue);
        }
        // With one queue, nine bits would all have to be lost on both of the queue's.
        assert!(hashes.len() == 512 && used.len() > 1, "{generation:?}: {used:?}");
        let mut bytes: Vec<_> = received.into_iter().map(|got| got.bytes).collect();
        bytes.sort();
        frames.sort();
        assert!(bytes == frames, "what came is what was sent");
        bench.end();
    }
}

#[test]
fn flows_go_to_the_queues_that_are_named() {
    let mut bench = Bench::new(medford(), 4, |_| {});
    let frames = streams(StreamConfig { flows: 512, run: 1, ..StreamConfig::default() }, 512);
    for queues in [&[2, 0][..], &[3], &[0, 1, 2, 3]] {
        assert!(bench.port.spread(queues).unwrap());
        let mut hashes = BTreeSet::new();
        for some in frames.chunks(128) {
            for frame in some {
                bench.to_card.send(frame.clone()).unwrap();
            }
            for got in bench.receive(some.len()) {
                let entry = (got.hash % 128) as usize;
                assert_eq!(got.queue, usize::from(queues[entry % queues.len()]), "{queues:?}");
                hashes.insert(got.hash);
            }
        }
        assert!(hashes.len() > 400, "{} of 512 flows came", hashes.len());
    }
    let refused = bench.port.spread(&[4]).unwrap_err().to_string();
    assert!(refused.starts_with("port 'sfc:"), "{refused}");
    bench.end();
}

#[test]
fn jumbo_frames_come_in_pieces_and_whole() {
    let mut bench = Bench::new(medford(), 1, |options| options.mtu = 9000);
    let config = StreamConfig { payload: 8900, flows: 3, ..StreamConfig::default() };
    let frames = streams(config, 60);
    for frame in &frames {
        bench.to_card.send(frame.clone()).unwrap();
    }
    let received: Vec<_> = bench.receive(frames.len()).into_iter().map(|got| got.bytes).collect();
    assert!(received == frames);
    bench.end();
}

#[test]
fn frames_are_sent_from_every_queue() {
    let mut bench = Bench::new(medford(), 3, |_| {});
    let frames = streams(StreamConfig::default(), 300);
    let mut burst = Burst::new(64);
    let (pool, queues) = (&mut bench.pool, &mut bench.queues);
    for (frame, queue) in frames.iter().zip((0..3).cycle()) {
        burst.push(Frame::copied_from(frame, pool).unwrap());
        let sent = queues[queue].tx.tx_burst(&mut burst, pool);
        assert_eq!(sent, 1);
        queues[queue].tx.reap(pool);
    }
    let wait = Duration::from_secs(5);
    let mut arrived: Vec<_> =
        frames.iter().map(|_| bench.from_card.recv_timeout(wait).unwrap()).collect();
    let mut frames = frames;
    arrived.sort();
    frames.sort();
    assert!(arrived == frames);
    bench.end();
}

#[test]
fn interrupts_are_kept_apart_in_every_generation() {
    for generation in [Generation::Huntington, Generation::Medford, Generation::Medford2] {
        for function in [Function::Physical, Function::Virtual] {
            let config = Config::new(generation, function);
            let own = config.mac;
            // Registers, the one of workaround 35388, or commands: what the card takes is no breach.
            let mut bench = Bench::new(config, 2, |options| options.moderation_us = 60);
            let mut frames = streams(StreamConfig::default(), 20);
            for frame in &mut frames {
                frame[..6].copy_from_slice(&own);
                bench.to_card.send(frame.clone()).unwrap();
            }
            assert_eq!(bench.receive(20).len(), 20, "{generation:?}, {function:?}");
            bench.end();
        }
    }
}

/// A frame in a VXLAN tunnel over IPv4, without a checksum of the outer UDP.
fn tunnelled(inner: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x08, 0x00];
    let len = |more: usize| u16::try_from(more + inner.len()).unwrap().to_be_bytes();
    let mut ip = vec![0x45, 0];
    ip.extend(len(36));
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 1, 0, 1, 10, 1, 0, 2]);
    let sum = !packet::checksum::sum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    frame.extend([0xc0, 0x00, 0x12, 0xb5]);
    frame.extend(len(16));
    frame.extend([0, 0, 0x08, 0, 0, 0, 0, 0, 7, 0]);
    frame.extend(inner);
    frame
}

#[test]
fn checksums_inside_tunnels_are_told() {
    let mut bench = Bench::new(medford(), 1, |_| {});
    let mut inner = streams(StreamConfig { payload: 1000, ..StreamConfig::default() }, 2);
    inner[1][900] ^= 1;
    for inner in &inner {
        bench.to_card.send(tunnelled(inner)).unwrap();
    }
    let mut told = Vec::new();
    let mut burst = Burst::new(64);
    for _ in 0..50_000 {
        bench.queues[0].rx.rx_burst(&mut burst, &mut bench.pool);
        for frame in burst.drain() {
            told.push(frame.meta.checksum);
            bench.pool.recycle(frame);
        }
        if told.len() == 2 {
            break;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    assert_eq!(told[0], Checksum::Verified { levels: 2 });
    assert!(!matches!(told[1], Checksum::Verified { levels: 2 }), "{told:?}");
    bench.end();
}

#[test]
fn two_cards_back_to_back() {
    let place = tempfile::tempdir().unwrap();
    let (a, b) = (place.path().join("a"), place.path().join("b"));
    let bench = |own: &Path, other: &Path| {
        let wire = Kind::Peer(own.to_owned(), other.to_owned()).open().unwrap();
        Bench::on(wire, channel(), medford(), 1, |_| {})
    };
    let (mut left, mut right) = (bench(&a, &b), bench(&b, &a));
    let frames = streams(StreamConfig::default(), 40);
    for turn in 0..2 {
        let (from, to) = if turn == 0 { (&mut left, &mut right) } else { (&mut right, &mut left) };
        let mut burst = Burst::new(64);
        for frame in &frames {
            burst.push(Frame::copied_from(frame, &mut from.pool).unwrap());
        }
        assert_eq!(from.queues[0].tx.tx_burst(&mut burst, &mut from.pool), frames.len());
        let received: Vec<_> = to.receive(frames.len()).into_iter().map(|got| got.bytes).collect();
        assert!(received == frames);
        from.queues[0].tx.reap(&mut from.pool);
    }
    left.end();
    right.end();
}

#[test]
fn a_virtual_function_receives_for_its_own_address() {
    let config = Config::new(Generation::Medford2, Function::Virtual);
    let own = config.mac;
    let mut bench = Bench::new(config, 1, |_| {});
    let mut frames = streams(StreamConfig::default(), 20);
    for frame in &mut frames[10..] {
        frame[..6].copy_from_slice(&own);
    }
    for frame in &frames {
        bench.to_card.send(frame.clone()).unwrap();
    }
    let received: Vec<_> = bench.receive(10).into_iter().map(|got| got.bytes).collect();
    assert!(received == frames[10..]);
    bench.end();
}

#[test]
fn the_card_goes_away_in_the_middle() {
    let mut bench = Bench::new(medford(), 1, |_| {});
    bench.device.inject("remove".parse().unwrap());
    let mut failed = false;
    for _ in 0..200 {
        bench.port.tend();
        bench.poll();
        failed = bench.queues[0].rx.end().is_some();
        if failed {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(failed, "nobody noticed");
    assert!(!bench.port.link().up);
    drop(std::mem::take(&mut bench.queues));
}

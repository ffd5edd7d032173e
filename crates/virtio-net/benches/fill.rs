//! What it costs to hand frames to a guest and to take them from it, per packet.
//!
//! Receive: bursts of 8 and 32 frames into a ring of 1024, with and without mergeable buffers: 60-byte
//! and 1514-byte frames, and super-packets of 45 segments. The driver's share is a store of the
//! available index: its ring names the same descriptors all the way round.

#[expect(dead_code, clippy::unwrap_used, reason = "shared with the unit tests, which use the rest")]
#[path = "../src/driver.rs"]
mod driver;
#[expect(dead_code, clippy::unwrap_used, reason = "shared with the unit tests, which use the rest")]
#[path = "../src/stream.rs"]
mod stream;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use packet::{Burst, Checksum, Frame, Pool};
use vm_memory::{Bytes, GuestAddress};

use virtio_net::feature::{Features, VIRTIO_NET_F_MRG_RXBUF};
use virtio_net::{RxFill, TxDrain, TxOffloads, header, ring};

use driver::Driver;
use stream::Stream;

const SIZE: u16 = 1024;

/// A driver with its buffers side by side, all of its memory mapped.
fn driver(len: u32) -> Driver {
    let stride = u64::from(len).next_multiple_of(64);
    let driver = Driver::with_stride(SIZE, 0, stride);
    for at in 0..SIZE {
        let zeros = vec![0; usize::try_from(len).expect("a length")];
        let buffer = GuestAddress(driver.buffer(at));
        driver.memory.write_slice(&zeros, buffer).expect("its own memory");
    }
    driver
}

fn plain(len: usize, pool: &mut Pool) -> Frame {
    let mut frame = Frame::copied_from(&vec![0x5a; len], pool).expect("enough buffers");
    frame.meta.checksum = Checksum::Verified { levels: 1 };
    frame
}

type Make = fn(&mut Pool) -> Frame;

fn fill(c: &mut Criterion) {
    let kinds: [(&str, Make, u32); 3] = [
        ("60B", |pool| plain(60, pool), 1536),
        ("1514B", |pool| plain(1514, pool), 1536),
        ("super45", |pool| Stream::tcp_v4(1440).merged(0, 45, pool), 4096),
    ];
    for (kind, make, buffer) in kinds {
        let mut group = c.benchmark_group(format!("fill/{kind}"));
        for mergeable in [true, false] {
            let features = Features::new(u64::MAX);
            let (name, features, buffer) = match mergeable {
                true => ("mergeable", features, buffer),
                false => ("whole", features.without(VIRTIO_NET_F_MRG_RXBUF), 65_600),
            };
            for batch in [8usize, 32] {
                group.throughput(Throughput::Elements(batch as u64));
                group.bench_function(BenchmarkId::new(name, batch), |b| {
                    b.iter_custom(|rounds| deliver(make, features, buffer, batch, rounds));
                });
            }
        }
        group.finish();
    }
}

/// Time to deliver `rounds` bursts; making the frames is not counted.
fn deliver(make: Make, features: Features, buffer: u32, batch: usize, rounds: u64) -> Duration {
    let mut driver = driver(buffer);
    driver.post_many(SIZE, buffer);
    let mut fill = RxFill::new(driver.ring(), features);
    let mut pool = Pool::new(batch * 46 * 16, 2048);
    let mut bursts: Vec<Vec<Frame>> = (0..16).map(|_| Vec::with_capacity(batch)).collect();
    let mut spent = Duration::ZERO;
    let mut rest = rounds;
    while rest > 0 {
        let count = usize::try_from(rest.min(16)).expect("16 at most");
        for burst in &mut bursts[..count] {
            burst.extend((0..batch).map(|_| make(&mut pool)));
        }
        #[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
        let start = Instant::now();
        for burst in &mut bursts[..count] {
            black_box(fill.deliver(burst, &mut pool));
            // All that was used is posted again.
            driver.set_avail_index(fill.next_avail().wrapping_add(SIZE));
        }
        spent += start.elapsed();
        rest -= count as u64;
    }
    assert_eq!(fill.counters().dropped(), 0);
    spent
}

fn drain(c: &mut Criterion) {
    let needs = header::NetHeader {
        flags: header::NEEDS_CSUM,
        gso_type: header::GSO_TCPV4,
        gso_size: 1440,
        csum_start: 34,
        csum_offset: 16,
        ..header::NetHeader::default()
    };
    let merged = [&needs.to_bytes()[..], &Stream::tcp_v4(1440).merged_bytes(0, 45)].concat();
    let kinds = [("60B", vec![0; 72]), ("1514B", vec![0; 1526]), ("super45", merged)];
    let everything = TxOffloads { csum: true, tso4: true, tso6: true, uso: true };
    let mut group = c.benchmark_group("drain");
    for (kind, bytes) in kinds {
        let mut driver = driver(u32::try_from(bytes.len()).expect("a length"));
        for _ in 0..SIZE {
            driver.send(&bytes, &[]);
        }
        let mut drain = TxDrain::new(driver.ring(), Features::new(u64::MAX));
        let (mut pool, mut burst) = (Pool::new(32 * 46, 2048), Burst::new(32));
        group.throughput(Throughput::Elements(32));
        group.bench_function(BenchmarkId::new(kind, 32), |b| {
            b.iter(|| {
                black_box(drain.drain(&mut burst, &mut pool, everything));
                burst.drain().for_each(|frame| pool.recycle(frame));
                driver.set_avail_index(drain.next_avail().wrapping_add(SIZE));
            });
        });
        assert_eq!(drain.counters().dropped() + drain.counters().bad_chains(), 0);
    }
    group.finish();
}

criterion_group!(benches, fill, drain);
criterion_main!(benches);

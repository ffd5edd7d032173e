//! The hot paths allocate nothing once they are warm: counted by the allocator itself.

#[expect(dead_code, clippy::unwrap_used, reason = "shared with the unit tests, which use the rest")]
#[path = "../src/driver.rs"]
mod driver;
#[expect(dead_code, clippy::unwrap_used, reason = "shared with the unit tests, which use the rest")]
#[path = "../src/stream.rs"]
mod stream;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use packet::{Burst, Frame, Pool};
use virtio_net::feature::Features;
use virtio_net::{RxFill, TxDrain, TxOffloads, header, ring};

use driver::Driver;
use stream::Stream;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator; counting on the side allocates nothing.
#[expect(unsafe_code, reason = "an allocator that counts")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often `work` allocates.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

const ALL: Features = Features::new(u64::MAX);

#[test]
fn counting_works() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn filling_allocates_nothing() {
    let mut driver = Driver::new(256, 0);
    let mut fill = RxFill::new(driver.ring(), ALL);
    let mut pool = Pool::new(512, 2048);
    let stream = Stream::tcp_v4(1448);
    let mut frames = Vec::with_capacity(64);
    let mut counted = Vec::new();
    for round in 0..20 {
        driver.used();
        let posted = 256 - fill.room().buffers;
        driver.post_many(if round == 0 { 256 } else { posted.min(200) }, 2048);
        for _ in 0..8 {
            frames.push(stream.frame(0, 1, &mut pool));
            frames.push(stream.partial(0, &mut pool));
            frames.push(stream.merged(0, 10, &mut pool));
        }
        counted.push(allocations(|| {
            fill.room();
            assert_eq!(fill.deliver(&mut frames, &mut pool).dropped, 0);
        }));
    }
    assert_eq!(counted[1..], [0; 19], "after the first burst");
    assert_eq!(fill.counters().supers, 160);
}

#[test]
fn cutting_for_a_guest_allocates_nothing() {
    let mut driver = Driver::new(256, 0);
    let mut fill = RxFill::new(driver.ring(), Features::default());
    let mut pool = Pool::new(512, 2048);
    let stream = Stream::tcp_v4(1000);
    let mut frames = Vec::with_capacity(64);
    let mut counted = Vec::new();
    for _ in 0..20 {
        driver.used();
        driver.post_many(50, 2048);
        frames.extend((0..5).map(|_| stream.merged(0, 10, &mut pool)));
        counted.push(allocations(|| {
            assert_eq!(fill.deliver(&mut frames, &mut pool).dropped, 0);
        }));
    }
    assert_eq!(counted[1..], [0; 19], "after the first burst");
    assert_eq!(fill.counters().cut, 100);
}

#[test]
fn draining_allocates_nothing() {
    let mut driver = Driver::new(64, 0);
    let mut drain = TxDrain::new(driver.ring(), ALL);
    let (mut pool, mut burst) = (Pool::new(512, 2048), Burst::new(64));
    let stream = Stream::tcp_v4(1448);
    let plain = [vec![0; 12], stream.segment(0, 1)].concat();
    let header = header::NetHeader {
        flags: header::NEEDS_CSUM,
        gso_type: header::GSO_TCPV4,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
        ..header::NetHeader::default()
    };
    let merged = [&header.to_bytes()[..], &stream.merged_bytes(0, 10)].concat();
    let everything = TxOffloads { csum: true, tso4: true, tso6: true, uso: true };
    let mut counted = Vec::new();
    for round in 0..20 {
        for _ in 0..4 {
            driver.send(&plain, &[]);
            driver.send(&merged, &[12, 66]);
        }
        let can = if round % 2 == 0 { everything } else { TxOffloads::default() };
        counted.push(allocations(|| {
            drain.drain(&mut burst, &mut pool, can);
            burst.drain().for_each(|frame: Frame| pool.recycle(frame));
        }));
        driver.used();
    }
    assert_eq!(counted[2..], [0; 18], "after the first burst of each kind");
    assert_eq!((drain.counters().packets, drain.counters().cut), (160, 40));
}

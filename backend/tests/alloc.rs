//! The polling thread allocates nothing per packet, in either direction: counted on the thread itself,
//! in the whole backend.
#![expect(unsafe_code, reason = "an allocator that counts is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guest::{Config, Connect, Guest, NetHeader};
use packet::build::TcpFrame;
use packet::{Burst, Pool};
use port::{Fill, Memory};
use traffic::{StreamConfig, Templates};
use vhost_user_gro::daemon::Endpoint;
use vhost_user_gro::daemon::device::Identity;
use vhost_user_gro::memory::CAPABILITIES;
use vhost_user_gro::running::{Parts, Running};
use vhost_user_gro::{Failure, offer, worker};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count for each thread.
struct Counting;

// SAFETY: everything is the system allocator's; a thread-local cell without destructor allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Default)]
struct Counts {
    ready: AtomicBool,
    received: AtomicU64,
    /// Allocations of the worker's thread when it was warm, and now.
    warm: AtomicU64,
    now: AtomicU64,
    frames: AtomicU64,
    sent: AtomicU64,
}

#[test]
fn the_worker_allocates_nothing_per_packet() {
    let counts = Arc::new(Counts::default());
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("vhost.sock");
    let mut pool = Pool::new(2048, 2048);
    let mut templates = Templates::new(StreamConfig { flows: 16, ..StreamConfig::default() });
    templates.prepare(&mut pool);
    let seen = Arc::clone(&counts);
    let source = move |burst: &mut Burst, pool: &mut Pool| {
        let under_way = templates.frames() - seen.received.load(Ordering::Acquire);
        if !seen.ready.load(Ordering::Acquire) || under_way + burst.room() as u64 > WINDOW {
            return Fill::Idle;
        }
        let made = templates.fill(burst, pool);
        // This runs on the worker's thread.
        if templates.frames() >= WARM && seen.warm.load(Ordering::Relaxed) == 0 {
            seen.warm.store(ALLOCATIONS.get(), Ordering::Relaxed);
        }
        seen.now.store(ALLOCATIONS.get(), Ordering::Relaxed);
        seen.frames.store(templates.frames(), Ordering::Release);
        Fill::Frames(made)
    };
    let taken = Arc::clone(&counts);
    let sink = move |frame, pool: &mut Pool| {
        taken.sent.fetch_add(1, Ordering::Relaxed);
        pool.recycle(frame);
    };
    let parts = Parts {
        port: Box::new(Memory::new("memory", source, sink).with_capabilities(CAPABILITIES)),
        pool,
        config: worker::Config {
            gro: gro::Config { flush_timeout: Duration::from_micros(20), ..gro::Config::default() },
            normal_batch: 8,
            spin: Some(Duration::from_micros(20)),
        },
        identity: Identity {
            features: offer::features(&[]).unwrap(),
            mac: None,
            mtu: None,
            pairs: 1,
            max_queue_size: 1024,
        },
    };
    let listen = || Endpoint::listen(&socket).map_err(|error| Failure::set_up(&error));
    let running = Running::start(parts, listen, |_| ()).unwrap();

    let config = Config { queue_size: 512, ..Config::new(Connect::Path(socket.clone())) };
    let mut guest = Guest::connect(config).unwrap();
    guest.read_net_config().unwrap();
    counts.ready.store(true, Ordering::Release);
    let mut frame = TcpFrame::v4();
    frame.payload = &[7; 1000];
    let frame = frame.to_vec();
    let deadline = now() + Duration::from_secs(60);
    while counts.frames.load(Ordering::Acquire) < FRAMES {
        guest.poll_rx_fast();
        counts.received.store(guest.rx_stats().segments, Ordering::Release);
        guest.send(NetHeader::default(), &frame);
        assert!(now() < deadline, "{:?}", running.stats());
    }
    let stats = running.stop();
    let (warm, last) = (counts.warm.load(Ordering::Relaxed), counts.now.load(Ordering::Relaxed));
    assert!(warm > 0, "the worker allocates while it starts: it is counted");
    assert_eq!(last, warm, "allocations in {} frames", FRAMES - WARM);
    assert!(stats.fill.supers > 0 && counts.sent.load(Ordering::Relaxed) > 1000, "{stats}");
}

#[expect(clippy::disallowed_methods, reason = "a limit for what must not hang")]
fn now() -> Instant {
    Instant::now()
}

/// Frames after which every list has the room that it needs.
const WARM: u64 = 50_000;
const FRAMES: u64 = 300_000;
/// Frames under way: fewer than the guest has buffers.
const WINDOW: u64 = 256;

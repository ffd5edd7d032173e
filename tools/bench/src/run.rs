//! One run: a backend, a guest, some seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use guest::{Connect, Guest};
use packet::{Burst, Pool};
use port::{Fill, Memory};
use traffic::Templates;
use vhost_user_gro::daemon::Endpoint;
use vhost_user_gro::daemon::device::Identity;
use vhost_user_gro::memory::CAPABILITIES;
use vhost_user_gro::offer;
use vhost_user_gro::running::{Parts, Running};
use vhost_user_gro::serve::BUFFER_SIZE;
use vhost_user_gro::worker::Config;

use crate::case::Case;

/// What a run showed.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub(crate) struct Figures {
    /// Million packets per second into the backend that reached the guest.
    pub(crate) mpps: f64,
    /// Their frames' bits.
    pub(crate) gbits: f64,
    /// Time of the worker's core per packet in.
    pub(crate) ns_per_packet: f64,
    /// Packets in per packet out.
    pub(crate) ratio: f64,
    /// Notifications of the guest per packet in.
    pub(crate) notifications_per_packet: f64,
}

impl Figures {
    /// The run with the median rate.
    pub(crate) fn median(runs: &[Self]) -> Self {
        let mut sorted = runs.to_vec();
        sorted.sort_by(|a, b| a.mpps.total_cmp(&b.mpps));
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }
}

/// Runs one configuration for a while.
pub(crate) fn run(case: &Case, gro: bool, batch: usize, time: Duration) -> anyhow::Result<Figures> {
    let [worker_core, guest_core] = cores();
    // The backend's threads inherit this thread's core.
    pin(worker_core)?;
    let config = case.config();
    let mut pool = Pool::new(BUFFERS, BUFFER_SIZE);
    let mut templates = Templates::new(config);
    templates.prepare(&mut pool);
    let frame_len = templates.frame_len();
    // Packets that the guest has received, and one more as soon as it is ready.
    let received = Arc::new(AtomicU64::new(0));
    let source = {
        let received = Arc::clone(&received);
        let mut open = false;
        move |burst: &mut Burst, pool: &mut Pool| {
            let reached = received.load(Ordering::Acquire);
            if !std::mem::replace(&mut open, reached > 0) {
                // The turn of the worker's loop that finds the guest ready may have begun before.
                return Fill::Idle;
            }
            // A sender that is ahead of the guest's buffers would measure drops.
            let under_way = templates.frames() + 1 - reached;
            if under_way + burst.room() as u64 > WINDOW {
                return Fill::Idle;
            }
            match templates.fill(burst, pool) {
                0 => Fill::Idle,
                made => Fill::Frames(made),
            }
        }
    };
    let sink = |frame, pool: &mut Pool| pool.recycle(frame);
    let directory = tempfile::tempdir().context("temporary directory")?;
    let socket = directory.path().join("bench.sock");
    let features = offer::features(&[]).map_err(|failure| anyhow!("{failure:?}"))?;
    let parts = Parts {
        port: Box::new(Memory::new("memory", source, sink).with_capabilities(CAPABILITIES)),
        pool,
        config: Config {
            gro: gro::Config { enabled: gro, ..gro::Config::default() },
            normal_batch: batch,
            spin: None,
        },
        identity: Identity { features, mac: None, mtu: None, pairs: 1, max_queue_size: RING },
    };
    let listen =
        || Endpoint::listen(&socket).map_err(|error| vhost_user_gro::Failure::set_up(&error));
    let running =
        Running::start(parts, listen, |_| ()).map_err(|failure| anyhow!("{failure:?}"))?;

    let stop = Arc::new(AtomicBool::new(false));
    let guest = {
        let (stop, received, socket) = (Arc::clone(&stop), Arc::clone(&received), socket.clone());
        thread::spawn(move || -> anyhow::Result<u64> {
            pin(guest_core)?;
            let config =
                guest::Config { queue_size: RING, ..guest::Config::new(Connect::Path(socket)) };
            let mut guest = Guest::connect(config)?;
            // Its answer comes when everything before it is in effect.
            guest.read_net_config()?;
            received.store(1, Ordering::Release);
            while !stop.load(Ordering::Relaxed) {
                if guest.poll_rx_fast() > 0 {
                    received.store(guest.rx_stats().segments + 1, Ordering::Release);
                }
            }
            Ok(guest.stats().rx.violations)
        })
    };
    thread::sleep(WARM_UP);
    let before = running.stats();
    thread::sleep(time);
    let after = running.stats();
    // The worker's own clock: its counters are some milliseconds old.
    let elapsed = (after.age - before.age).as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let violations = guest.join().map_err(|_| anyhow!("the guest panicked"))??;
    running.stop();
    if violations > 0 {
        return Err(anyhow!("the backend broke {violations} rules of the guest's"));
    }
    let dropped = after.fill.dropped() - before.fill.dropped();
    if dropped > 0 {
        return Err(anyhow!("{dropped} packets were dropped: the figures would be wrong"));
    }
    Ok(figures(
        after.fill.segments - before.fill.segments,
        after.fill.frames - before.fill.frames,
        after.fill.notified - before.fill.notified,
        frame_len,
        elapsed,
    ))
}

#[expect(clippy::cast_precision_loss, reason = "figures to four digits")]
fn figures(packets: u64, out: u64, notified: u64, frame_len: usize, seconds: f64) -> Figures {
    let packets = packets.max(1) as f64;
    Figures {
        mpps: packets / seconds / 1e6,
        gbits: packets * frame_len as f64 * 8.0 / seconds / 1e9,
        ns_per_packet: seconds * 1e9 / packets,
        ratio: packets / out.max(1) as f64,
        notifications_per_packet: notified as f64 / packets,
    }
}

/// Two of the cores that this process may use; the same one twice where there is only one.
fn cores() -> [usize; 2] {
    let mut allowed =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| ALLOWED.with(|set| set.is_set(*cpu)));
    let first = allowed.next().unwrap_or(0);
    [first, allowed.next().unwrap_or(first)]
}

thread_local! {
    /// The cores of this thread before it was pinned for the first time.
    static ALLOWED: rustix::thread::CpuSet =
        rustix::thread::sched_getaffinity(None).unwrap_or_default();
}

fn pin(core: usize) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("pinning to core {core}"))
}

const RING: u16 = 1024;
const BUFFERS: usize = 4096;
/// Packets under way: fewer than the ring has buffers.
const WINDOW: u64 = 768;
const WARM_UP: Duration = Duration::from_millis(300);

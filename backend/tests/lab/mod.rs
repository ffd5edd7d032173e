//! A backend on a memory port, with checked traffic both ways.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guest::header::{NEEDS_CSUM, NetHeader};
use guest::raw::Request;
use guest::{Config, Connect, Guest};
use packet::{Burst, Frame, Pool, checksum};
use port::{Fill, Memory};
use tempfile::TempDir;
use traffic::{Checker, ChecksumState, StreamConfig, Streams, Summary};
use vhost_user_gro::daemon::Endpoint;
use vhost_user_gro::daemon::device::Identity;
use vhost_user_gro::memory::CAPABILITIES;
use vhost_user_gro::running::{Parts, Running};
use vhost_user_gro::stats::Stats;
use vhost_user_gro::{Failure, offer, worker};

/// What the port sends and what it has got.
#[derive(Debug, Default)]
struct Wire {
    /// Frames that the port may send, counted from the start.
    allowed: AtomicU64,
    sent: AtomicU64,
    stopped: AtomicBool,
}

/// A running backend.
pub(crate) struct Lab {
    directory: TempDir,
    running: Running,
    wire: Arc<Wire>,
    sent_by_guest: Arc<Mutex<(Checker, Vec<String>)>>,
    streams: StreamConfig,
}

impl Lab {
    /// A backend that offers everything but `disabled`.
    pub(crate) fn new(streams: StreamConfig, disabled: &[&str]) -> Self {
        Self::with(streams, disabled, |path| {
            Endpoint::listen(&path).map_err(|error| Failure::set_up(&error))
        })
    }

    /// A backend with an endpoint of its own.
    pub(crate) fn with(
        streams: StreamConfig,
        disabled: &[&str],
        endpoint: impl FnOnce(PathBuf) -> Result<Endpoint, Failure>,
    ) -> Self {
        let directory = tempfile::tempdir().expect("temporary directory");
        let wire = Arc::new(Wire::default());
        let sent_by_guest = Arc::new(Mutex::new((Checker::new(&streams), Vec::new())));
        let disabled: Vec<_> = disabled.iter().map(ToString::to_string).collect();
        let features = offer::features(&disabled).expect("known features");
        let mac = [0x52, 0x54, 0, 1, 2, 3];
        let parts = Parts {
            port: Box::new(port(streams.clone(), Arc::clone(&wire), Arc::clone(&sent_by_guest))),
            pool: Pool::new(4096, 2048),
            config: worker::Config {
                gro: gro::Config::default(),
                normal_batch: 8,
                spin: Some(Duration::from_micros(20)),
            },
            identity: Identity {
                features: offer::with_identity(features, &disabled, Some(mac), Some(1500)),
                mac: Some(mac),
                mtu: Some(1500),
                pairs: 1,
                max_queue_size: 1024,
            },
        };
        let path = directory.path().join("vhost.sock");
        let running = Running::start(parts, || endpoint(path), |_| ()).expect("a backend");
        Self { directory, running, wire, sent_by_guest, streams }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("vhost.sock")
    }

    pub(crate) fn config(&self) -> Config {
        Config::new(Connect::Path(self.socket()))
    }

    pub(crate) fn checker(&self) -> Checker {
        Checker::new(&self.streams)
    }

    /// Lets the port send so many frames more.
    pub(crate) fn allow(&self, frames: u64) {
        self.wire.allowed.fetch_add(frames, Ordering::AcqRel);
    }

    /// Lets the port send `frames` frames to the guest, a window at a time, and checks each byte.
    pub(crate) fn receive(&self, guest: &mut Guest, checker: &mut Checker, frames: u64) {
        settle(guest);
        let (start, window) = (guest.stats().rx.segments, 64);
        let deadline = deadline();
        let mut allowed = 0;
        loop {
            let got = guest.stats().rx.segments - start;
            if got == frames {
                return;
            }
            if allowed == got && allowed < frames {
                let more = window.min(frames - allowed);
                self.allow(more);
                allowed += more;
            }
            assert!(!passed(deadline), "{got} of {frames} arrived: {:?}", self.running.stats());
            guest.poll_rx(|packet| {
                assert_eq!(packet.violation, None, "{:?}", packet.header);
                let state = if packet.header.flags & NEEDS_CSUM != 0 {
                    ChecksumState::PseudoHeader
                } else {
                    ChecksumState::Complete
                };
                checker.frame(packet.bytes, state).expect("as it was sent");
            });
        }
    }

    /// Sends frames from the guest and waits until the port has them, each byte checked.
    pub(crate) fn send(
        &self,
        guest: &mut Guest,
        frames: &[(NetHeader, Vec<u8>)],
        segments: u64,
    ) -> Summary {
        let deadline = deadline();
        for (header, frame) in frames {
            while !guest.send(*header, frame) {
                assert!(!passed(deadline), "the backend takes no frames: {:?}", guest.stats().tx);
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        loop {
            let (summary, wrong) = {
                let sent = self.sent_by_guest.lock().expect("no panic while it was held");
                (sent.0.summary(), sent.1.clone())
            };
            assert_eq!(wrong, [""; 0]);
            if summary.packets >= segments && guest.reap_tx() == 0 {
                return summary;
            }
            assert!(!passed(deadline), "{summary:?} of {segments}: {:?}", self.running.stats());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until the port has handed over all that it was allowed to, and forgets what came from the
    /// guest so far.
    #[allow(dead_code, reason = "not all programs that share this module need it")]
    pub(crate) fn start_over(&self) {
        let deadline = deadline();
        while self.wire.sent.load(Ordering::Acquire) < self.wire.allowed.load(Ordering::Acquire) {
            assert!(!passed(deadline), "the port is not polled: {:?}", self.running.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
        // Longer than anything is held, and than a turn of the worker's loop.
        std::thread::sleep(Duration::from_millis(20));
        let fresh = (Checker::new(&self.streams), Vec::new());
        *self.sent_by_guest.lock().expect("no panic while it was held") = fresh;
    }

    /// Stops the backend; its last counters.
    pub(crate) fn stop(self) -> Stats {
        self.wire.stopped.store(true, Ordering::Release);
        self.running.stop()
    }
}

/// Asks the backend something: its answer comes when everything before is in effect.
pub(crate) fn settle(guest: &mut Guest) {
    const GET_FEATURES: Request = Request(1);
    guest.raw().expect("a connection").ask(GET_FEATURES, 1, &[]).expect("an answer");
}

/// Frames of a stream as a guest sends them: `packets` packets, in super-packets of up to `merge`.
pub(crate) fn guest_frames(
    config: &StreamConfig,
    packets: usize,
    merge: usize,
) -> Vec<(NetHeader, Vec<u8>)> {
    assert_eq!(config.flows, 1);
    let (mut burst, mut pool) = (Burst::new(packets), Pool::new(packets, 2048));
    Streams::new(config.clone()).fill(&mut burst, &mut pool);
    let frames: Vec<_> = burst.drain().map(|frame| frame.to_vec()).collect();
    frames.chunks(merge).map(|chunk| join(config, chunk)).collect()
}

/// One super-packet with an open checksum; a single packet stays as it is.
fn join(config: &StreamConfig, chunk: &[Vec<u8>]) -> (NetHeader, Vec<u8>) {
    let mut bytes = chunk[0].clone();
    if chunk.len() == 1 {
        return (NetHeader::default(), bytes);
    }
    let parsed = packet::header::parse(&bytes).expect("a TCP packet");
    let (network, transport) =
        (usize::from(parsed.layout.network), usize::from(parsed.layout.transport));
    let header = usize::from(parsed.layout.payload);
    chunk[1..].iter().for_each(|next| bytes.extend(&next[header..]));
    let put = |bytes: &mut [u8], at: usize, value: usize| {
        bytes[at..at + 2]
            .copy_from_slice(&u16::try_from(value).expect("an IP packet").to_be_bytes());
    };
    let whole = bytes.len();
    if parsed.v6 {
        put(&mut bytes, network + 4, whole - network - 40);
    } else {
        put(&mut bytes, network + 2, whole - network);
        put(&mut bytes, network + 10, 0);
        let sum = !checksum::sum(&bytes[network..transport]);
        put(&mut bytes, network + 10, usize::from(sum));
    }
    let pseudo = checksum::pseudo_header(&bytes, &parsed, whole - transport);
    put(&mut bytes, transport + 16, usize::from(pseudo));
    let header = NetHeader {
        flags: NEEDS_CSUM,
        gso_type: if parsed.v6 { guest::header::GSO_TCPV6 } else { guest::header::GSO_TCPV4 },
        hdr_len: parsed.layout.payload,
        gso_size: config.payload,
        csum_start: parsed.layout.transport,
        csum_offset: 16,
        ..NetHeader::default()
    };
    (header, bytes)
}

fn port(
    config: StreamConfig,
    wire: Arc<Wire>,
    sent_by_guest: Arc<Mutex<(Checker, Vec<String>)>>,
) -> Memory {
    let mut streams = Streams::new(config);
    let mut allowed = 0;
    let source = move |burst: &mut Burst, pool: &mut Pool| {
        if wire.stopped.load(Ordering::Acquire) {
            return Fill::Drained;
        }
        // What was allowed at the last call: the turn of the worker's loop that finds it allowed may
        // have begun before what allowed it.
        let now = wire.allowed.load(Ordering::Acquire);
        let left = std::mem::replace(&mut allowed, now) - streams.frames();
        let mut part =
            Burst::new(burst.room().min(usize::try_from(left).expect("a test's frames")));
        streams.fill(&mut part, pool);
        wire.sent.store(streams.frames(), Ordering::Release);
        let made = part.len();
        part.drain().for_each(|frame| burst.push(frame));
        if made == 0 { Fill::Idle } else { Fill::Frames(made) }
    };
    let sink = move |frame: Frame, pool: &mut Pool| {
        let mut sent = sent_by_guest.lock().expect("no panic while it was held");
        if let Err(mismatch) = sent.0.frame(&frame.to_vec(), ChecksumState::Complete) {
            sent.1.push(mismatch.to_string());
        }
        pool.recycle(frame);
    };
    Memory::new("memory", source, sink).with_capabilities(CAPABILITIES)
}

/// Far longer than anything takes, even on a machine under load.
fn deadline() -> Instant {
    now() + Duration::from_secs(60)
}

fn passed(deadline: Instant) -> bool {
    now() > deadline
}

#[expect(clippy::disallowed_methods, reason = "a limit for what must not hang")]
fn now() -> Instant {
    Instant::now()
}

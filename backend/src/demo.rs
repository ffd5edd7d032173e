//! `demo`: merged packets on any Linux machine, without privileges, a NIC or a VM.
//!
//! Streams made in the process go through the whole backend, its vhost-user socket included, into the
//! built-in guest, which checks every byte. The streams never have more under way than the guest has
//! buffers for, so that nothing is lost and the guest can vouch for each byte at the end. With
//! `--nic model` they come in at the port of a card in software, and the driver for the real ones
//! receives them.

mod card;
mod screen;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use guest::{Connect, Guest};
use packet::{Burst, Pool};
use port::{Fill, Memory, Port};
use traffic::{Checker, ChecksumState, StreamConfig, Streams, Summary};

use crate::cli::{Demo, DemoNic, Switch};
use crate::daemon::Endpoint;
use crate::failure::Failure;
use crate::memory::CAPABILITIES;
use crate::running::{Parts, Running};
use crate::serve::identity;
use crate::worker::Config;
use screen::Screen;

/// How far sender and receiver are, in packets as they were sent.
#[derive(Debug, Default)]
struct Progress {
    sent: AtomicU64,
    received: AtomicU64,
    /// The guest is ready.
    open: AtomicBool,
    /// No more packets are made.
    closed: AtomicBool,
}

/// What the guest has to say at the end.
struct Report {
    summary: Summary,
    stats: guest::Stats,
    violations: Vec<String>,
    mismatches: Vec<String>,
}

/// Runs the demo.
///
/// # Errors
///
/// [`Failure::Running`] when not every byte arrived as it was sent, or when nothing could be set up.
pub fn run(options: &Demo) -> Result<(), Failure> {
    let config = StreamConfig {
        flows: options.flows,
        run: options.run,
        payload: if options.ipv6 { 1428 } else { 1448 },
        ipv6: options.ipv6,
        ..StreamConfig::default()
    };
    let directory = tempfile::tempdir().map_err(|error| Failure::running(&error))?;
    let socket = directory.path().join("demo.sock");
    let progress = Arc::new(Progress::default());
    let queue_size = options.features.max_queue_size.min(LARGEST_RING);
    let window = u64::from(queue_size / 2);
    let streams = (config.clone(), Arc::clone(&progress));
    let card = options.nic.map(|DemoNic::Model| {
        card::start(
            card::Sender::new(streams.0.clone(), streams.1.clone(), window),
            directory.path(),
        )
    });
    let (card, mut port) = match card.transpose()? {
        Some((card, port)) => (Some(card), port),
        None => (None, Box::new(port(streams.0, streams.1, window)) as Box<dyn Port>),
    };
    let pool = crate::serve::pool(&mut *port, BUFFERS)?;
    let parts = Parts {
        port,
        pool,
        config: Config {
            gro: options.gro.config(),
            normal_batch: options.gro.gro_normal_batch as usize,
            spin: Some(SPIN),
        },
        identity: identity(&options.features, None)?,
    };
    let listen = || Endpoint::listen(&socket).map_err(|error| Failure::set_up(&error));
    let running = Running::start(parts, listen, |_| ())?;
    let receiver = {
        let progress = Arc::clone(&progress);
        let socket = socket.clone();
        thread::spawn(move || receive(&socket, queue_size, &config, &progress))
    };

    let title = format!(
        "vhost-user-gro demo: {} TCP flows over {} in runs of {}, GRO {}{}",
        options.flows,
        if options.ipv6 { "IPv6" } else { "IPv4" },
        options.run,
        if options.gro.gro == Switch::On { "on" } else { "off" },
        if card.is_some() { ", received by the model of a card" } else { "" }
    );
    let mut screen = Screen::new(title);
    let ticks = options.seconds * TICKS_PER_SECOND;
    for tick in 1..=ticks {
        thread::sleep(Duration::from_millis(1000 / TICKS_PER_SECOND));
        if receiver.is_finished() {
            break;
        }
        screen.draw(tick, &running.stats());
    }
    progress.closed.store(true, Ordering::Release);
    let report = receiver
        .join()
        .map_err(|_| Failure::Running("the built-in guest panicked".to_owned()))?
        .map_err(|error| Failure::running(&error))?;
    let stats = running.stop();
    screen.finish(&stats);
    card.map_or(Ok(()), |card| card::close(&card))?;
    close(&report, progress.sent.load(Ordering::Acquire), &stats)
}

/// The sender: it never has more than `window` packets under way.
fn port(config: StreamConfig, progress: Arc<Progress>, window: u64) -> Memory {
    let mut streams = Streams::new(config);
    let mut open = false;
    let source = move |burst: &mut Burst, pool: &mut Pool| {
        if progress.closed.load(Ordering::Acquire) {
            return Fill::Drained;
        }
        if !std::mem::replace(&mut open, progress.open.load(Ordering::Acquire)) {
            // The turn of the worker's loop that finds the guest ready may have begun before.
            return Fill::Idle;
        }
        let under_way = streams.frames() - progress.received.load(Ordering::Acquire);
        if under_way + burst.room() as u64 > window {
            return Fill::Idle;
        }
        let made = streams.fill(burst, pool);
        progress.sent.store(streams.frames(), Ordering::Release);
        if made == 0 { Fill::Idle } else { Fill::Frames(made) }
    };
    let sink = |frame, pool: &mut Pool| pool.recycle(frame);
    Memory::new("memory", source, sink).with_capabilities(CAPABILITIES)
}

/// The receiver: a guest that checks every byte until everything that was sent has come.
fn receive(
    socket: &Path,
    queue_size: u16,
    config: &StreamConfig,
    progress: &Progress,
) -> guest::Result<Report> {
    let mut guest = Guest::connect(guest::Config {
        queue_size,
        ..guest::Config::new(Connect::Path(socket.to_owned()))
    })?;
    // Its answer comes when everything before it is in effect.
    guest.read_net_config()?;
    progress.open.store(true, Ordering::Release);
    let mut checker = Checker::new(config);
    let mut mismatches = Vec::new();
    let (mut quiet, mut received) = (0_u32, 0);
    loop {
        let came = guest.poll_rx(|packet| {
            let state = match packet.header.flags {
                flags if flags & guest::header::NEEDS_CSUM != 0 => ChecksumState::PseudoHeader,
                _ => ChecksumState::Complete,
            };
            if let Err(mismatch) = checker.frame(packet.bytes, state)
                && mismatches.len() < MAX_TOLD
            {
                mismatches.push(mismatch.to_string());
            }
            received += packet.header.segments(packet.bytes.len());
        });
        progress.received.store(received, Ordering::Release);
        if came > 0 {
            quiet = 0;
            continue;
        }
        let closed = progress.closed.load(Ordering::Acquire);
        if closed && received >= progress.sent.load(Ordering::Acquire) {
            break;
        }
        quiet += 1;
        if closed && quiet > PATIENCE {
            break;
        }
        if quiet.is_multiple_of(YIELD_EVERY) {
            // On a machine with one core the backend needs it to go on.
            thread::sleep(Duration::from_micros(50));
        }
    }
    let violations = guest.violations().first().to_vec();
    Ok(Report { summary: checker.summary(), stats: guest.stats(), violations, mismatches })
}

#[expect(clippy::print_stdout, reason = "the closing summary is what the demo is for")]
fn close(report: &Report, sent: u64, stats: &crate::stats::Stats) -> Result<(), Failure> {
    let Report { summary, stats: guest, violations, mismatches } = report;
    println!(
        "{} packets sent; the guest received {} packets that stand for {}, with {} notifications.",
        screen::number(sent),
        screen::number(summary.packets),
        screen::number(guest.rx.segments),
        screen::number(stats.fill.notified),
    );
    let whole = guest.rx.segments == sent && summary.lost_bytes == 0;
    if whole && summary.mismatches == 0 && violations.is_empty() {
        println!(
            "Every byte arrived: {} payload bytes compared, 0 lost, 0 different.",
            screen::number(summary.bytes)
        );
        return Ok(());
    }
    mismatches.iter().chain(violations).for_each(|line| println!("  {line}"));
    Err(Failure::Running(format!(
        "not every byte arrived: {} of {sent} packets, {} bytes lost, {} packets different, {} rules broken",
        guest.rx.segments,
        summary.lost_bytes,
        summary.mismatches,
        violations.len()
    )))
}

/// Room for what is under way and for what GRO holds.
const BUFFERS: u32 = 4096;
const LARGEST_RING: u16 = 1024;
const SPIN: Duration = Duration::from_micros(50);
const TICKS_PER_SECOND: u64 = 5;
/// Mismatches that are told in words.
const MAX_TOLD: usize = 10;
/// Empty polls, with a pause now and then, until the guest takes the rest for lost: about a second.
const PATIENCE: u32 = 5_000_000;
const YIELD_EVERY: u32 = 256;

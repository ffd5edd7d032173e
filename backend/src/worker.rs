//! The polling thread: the way of a packet, from the port to the guest and back.
//!
//! One turn of the loop: look whether control has changed something; read the time; pull frames from
//! the port through GRO into the guest's receive ring; push what the guest sends to the port; now and
//! then publish the statistics. When nothing has happened for a while the worker arms everything that
//! can wake it, looks once more, and sleeps.

mod rings;
mod sleep;

use std::sync::Arc;
use std::time::Duration;

use gro::{Accept, Completed, Engine, Instant, NormalBatch, Sink};
use packet::{Burst, Frame, Pool};
use port::{Armed, Capabilities, End, QueuePair, RxQueue, TxQueue};
use virtio_net::{RxFill, TxOffloads};

use crate::shared::Shared;
use crate::stats::Stats;
use rings::Rings;
use sleep::Sleeper;

/// How a worker is set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// The GRO engine.
    pub gro: gro::Config,
    /// Frames in a normal batch; at least 1.
    pub normal_batch: usize,
    /// How long to go on polling when nothing happens, before sleeping; `None` never sleeps.
    pub spin: Option<Duration>,
}

/// One worker: one queue pair of the port, and the guest's rings.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    config: Config,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    can: TxOffloads,
    pool: Pool,
    received: Burst,
    sending: Burst,
    engine: Engine,
    batch: NormalBatch,
    accept: Accept,
    rings: Rings,
    sleeper: Sleeper,
    seen: u64,
    stopping: bool,
    failed: Option<String>,
    start: std::time::Instant,
    idle_since: Option<Instant>,
    published: Instant,
    stats: Stats,
}

/// Where the normal batch goes: into the guest's ring, or nowhere when there is none.
struct Outlet<'a> {
    fill: Option<&'a mut RxFill>,
    no_ring: &'a mut u64,
}

impl Sink for Outlet<'_> {
    fn deliver(&mut self, frames: &mut Vec<Frame>, pool: &mut Pool) {
        if let Some(fill) = &mut self.fill {
            fill.deliver(frames, pool);
            return;
        }
        for frame in frames.drain(..) {
            *self.no_ring += frame.meta.gso.map_or(1, |gso| u64::from(gso.segments));
            pool.recycle(frame);
        }
    }
}

impl Worker {
    /// A worker for one queue pair, with the packet memory that it may use.
    ///
    /// # Errors
    ///
    /// When no epoll set can be made.
    pub fn new(
        shared: Arc<Shared>,
        config: Config,
        capabilities: Capabilities,
        queues: QueuePair,
        pool: Pool,
    ) -> std::io::Result<Self> {
        let QueuePair { rx, tx } = queues;
        let sleeper = Sleeper::new(&shared, rx.wait_fd())?;
        let can = TxOffloads {
            csum: capabilities.tx_checksum,
            tso4: capabilities.tx_tso4,
            tso6: capabilities.tx_tso6,
            uso: capabilities.tx_uso,
        };
        Ok(Self {
            engine: Engine::new(config.gro.clone()),
            batch: NormalBatch::new(config.normal_batch),
            shared,
            config,
            rx,
            tx,
            can,
            pool,
            received: Burst::new(BURST),
            sending: Burst::new(BURST),
            accept: Accept::default(),
            rings: Rings::default(),
            sleeper,
            seen: 0,
            stopping: false,
            failed: None,
            #[expect(
                clippy::disallowed_methods,
                reason = "the worker is the rim: it reads the clock"
            )]
            start: std::time::Instant::now(),
            idle_since: None,
            published: Instant::default(),
            stats: Stats::default(),
        })
    }

    /// Polls until control says stop, or until the port has failed.
    ///
    /// # Errors
    ///
    /// The reason why the port failed.
    pub fn run(mut self) -> Result<(), String> {
        while !self.stopping && self.failed.is_none() {
            if self.shared.generation() != self.seen {
                self.take_over();
            }
            let now = self.now();
            let worked = self.receive(now) + self.transmit();
            self.stats.polls += 1;
            if now.saturating_since(self.published) >= PUBLISH_EVERY {
                self.publish(now);
            }
            if worked > 0 {
                self.idle_since = None;
            } else {
                self.idle(now);
            }
        }
        self.rings.let_go(&mut self.pool);
        self.publish(self.now());
        self.shared.end();
        self.failed.map_or(Ok(()), Err)
    }

    /// The time since the worker's start.
    fn now(&self) -> Instant {
        let elapsed = self.start.elapsed();
        Instant::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Takes over what control has changed.
    #[cold]
    fn take_over(&mut self) {
        // The generation first: what changes after this line moves it again.
        self.seen = self.shared.generation();
        self.flush(Completed::FeatureChange);
        self.rings.let_go(&mut self.pool);
        let shared = Arc::clone(&self.shared);
        let mut plane = shared.plane();
        let connection = plane.connection.clone();
        self.stopping = plane.stop;
        for mac in plane.announce.drain(..) {
            self.announce(mac);
        }
        drop(plane);
        let kicks = match connection {
            Some(connection) if !self.stopping => self.rings.pick_up(&connection),
            _ => Vec::new(),
        };
        self.sleeper.set_kicks(kicks);
        for (drain, _) in self.rings.transmit() {
            drain.kick(false);
        }
        self.adapt();
        self.idle_since = None;
        shared.pass(self.seen);
    }

    /// Delivers everything that GRO holds, to the ring that it was meant for.
    fn flush(&mut self, reason: Completed) {
        let mut outlet = Outlet { fill: self.rings.receive(), no_ring: &mut self.stats.no_ring };
        self.engine.flush_all(reason, &mut self.batch, &mut outlet, &mut self.pool);
    }

    /// Lets GRO know what the guest can take now.
    #[inline]
    fn adapt(&mut self) {
        let accept = self.rings.receive().map_or_else(Accept::default, |fill| {
            let (may, room) = (fill.features().accept(), fill.room());
            Accept {
                tcp4: may.tso4,
                tcp6: may.tso6,
                max_size: room.super_limit,
                ..Accept::default()
            }
        });
        if accept != self.accept {
            self.engine.set_accept(accept);
            self.accept = accept;
        }
    }

    /// One poll of the port: up to a budget of frames, through GRO, into the guest's ring.
    fn receive(&mut self, now: Instant) -> usize {
        let mut total = 0;
        self.adapt();
        let mut outlet = Outlet { fill: self.rings.receive(), no_ring: &mut self.stats.no_ring };
        while total < BUDGET {
            let room = self.received.room();
            let count = self.rx.rx_burst(&mut self.received, &mut self.pool);
            total += count;
            self.engine.receive(
                now,
                &mut self.received,
                &mut self.batch,
                &mut outlet,
                &mut self.pool,
            );
            if count < room {
                break;
            }
        }
        self.engine.end_of_poll(now, &mut self.batch, &mut outlet, &mut self.pool);
        total
    }

    /// One turn for what the guest sends, and for what waits because the port was full.
    fn transmit(&mut self) -> usize {
        self.tx.reap(&mut self.pool);
        let mut total = 0;
        if !self.sending.is_empty() {
            total += self.tx.tx_burst(&mut self.sending, &mut self.pool);
        }
        for (drain, enabled) in self.rings.transmit() {
            if !enabled {
                total += drain.discard();
                continue;
            }
            let mut turns = BUDGET / BURST;
            // A full port leaves the rest in the burst, and what is not taken leaves the ring alone.
            while self.sending.is_empty() && turns > 0 {
                turns -= 1;
                let drained = drain.drain(&mut self.sending, &mut self.pool, self.can);
                if self.sending.is_empty() {
                    total += drained;
                    break;
                }
                total += self.tx.tx_burst(&mut self.sending, &mut self.pool);
            }
        }
        total
    }

    /// Nothing happened in this turn: spin on, or sleep.
    #[cold]
    fn idle(&mut self, now: Instant) {
        let since = *self.idle_since.get_or_insert(now);
        let Some(spin) = self.config.spin else { return };
        // Held packets are due too soon for a sleep, whose length the kernel rounds up.
        let due_soon =
            self.engine.deadline().is_some_and(|due| due.saturating_since(now) < SHORTEST_SLEEP);
        if now.saturating_since(since) < spin || due_soon {
            std::hint::spin_loop();
            return;
        }
        self.sleep(now);
    }

    /// Arms everything that can wake the worker, looks once more, and sleeps.
    fn sleep(&mut self, now: Instant) {
        let mut pending = false;
        for (drain, enabled) in self.rings.transmit() {
            pending |= drain.kick(true) && enabled;
        }
        let armed = self.rx.arm();
        let mut limit = match armed {
            Armed::Pending => Duration::ZERO,
            Armed::Sleep => LONGEST_SLEEP,
            // Nothing announces its frames: look again soon.
            Armed::Unsupported if self.rx.end().is_none() => NAP,
            Armed::Unsupported => LONGEST_SLEEP,
        };
        if let Some(deadline) = self.engine.deadline() {
            limit = limit.min(deadline.saturating_since(now));
        }
        if !self.sending.is_empty() {
            limit = limit.min(NAP);
        }
        // Control moves the generation before it wakes: seen here, or the wake-up ends the sleep.
        if !pending && self.shared.generation() == self.seen && !limit.is_zero() {
            self.stats.sleeps += 1;
            if limit < SHORTEST_SLEEP {
                std::thread::sleep(limit);
            } else if let Err(error) = self.sleeper.sleep(&self.shared, limit) {
                log::error!("sleep: {error}");
                std::thread::sleep(NAP);
            }
        }
        for (drain, _) in self.rings.transmit() {
            drain.kick(false);
        }
        self.look_for_ends();
    }

    /// What ends once and for all: the port, and rings that the guest has broken.
    fn look_for_ends(&mut self) {
        self.rings.tell_broken();
        if let Some(End::Failed(reason)) = self.rx.end() {
            self.failed = Some(reason.clone());
        }
    }

    /// Announces an address by reverse ARP, as a hypervisor does after a migration.
    fn announce(&mut self, mac: [u8; 6]) {
        let frame = crate::announce::rarp(mac);
        match Frame::copied_from(&frame, &mut self.pool) {
            Some(frame) if self.sending.room() > 0 => self.sending.push(frame),
            Some(frame) => self.pool.recycle(frame),
            None => log::warn!("no buffer for an announcement of the guest's address"),
        }
    }

    fn publish(&mut self, now: Instant) {
        self.published = now;
        self.look_for_ends();
        let (fill, drain) = self.rings.counters();
        self.stats.age = now.saturating_since(Instant::default());
        self.stats.port_rx = self.rx.counters();
        self.stats.port_tx = self.tx.counters();
        self.stats.gro = self.engine.counters().clone();
        self.stats.batches = self.batch.deliveries();
        self.stats.fill = fill;
        self.stats.drain = drain;
        self.stats.buffers = (self.pool.available(), self.pool.total());
        self.shared.publish(&self.stats);
    }
}

/// Frames that move in one step.
const BURST: usize = 64;
/// Frames of one direction in one turn, before the other has its turn.
const BUDGET: usize = 256;
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// The longest sleep: statistics stay fresh, and a wake-up that a kernel lost costs no more.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// The resolution of a sleep that descriptors can end.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);
/// A pause that lets others run, when nothing can announce the next event.
const NAP: Duration = Duration::from_micros(50);

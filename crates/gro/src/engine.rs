//! The engine: what is held, and what happens to each frame (`spec/gro.md` 2.8).

use std::vec::Drain;

use packet::{Burst, Checksum, Frame, Pool};

use crate::batch::{NormalBatch, Sink};
use crate::checks::{fits, why_not};
use crate::complete::repair;
use crate::config::{Accept, Config, Rules};
use crate::counters::{Completed, Counters, Passed};
use crate::parse::tcp::ENDING;
use crate::parse::{Packet, Scope, Stray, parse};
use crate::table::{Found, Slot, Table};
use crate::time::Instant;
use crate::verify::{is_known, is_valid};

/// One GRO engine: the held flows of one worker.
///
/// Its frames' buffers are lost when it is dropped while it holds some: [`Engine::flush_all`] first.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    accept: Accept,
    rules: Rules,
    table: Table,
    /// Flows are held that the guest can no longer take.
    stale: bool,
    counters: Counters,
}

/// Where frames go that leave the engine; it is the same for a whole burst.
struct Out<'a, S> {
    batch: &'a mut NormalBatch,
    sink: &'a mut S,
    pool: &'a mut Pool,
}

impl<S: Sink> Out<'_, S> {
    #[inline]
    fn push(&mut self, frame: Frame) {
        self.batch.push(frame, self.sink, self.pool);
    }
}

impl Engine {
    /// An engine that holds nothing, for a guest that takes nothing yet ([`Engine::set_accept`]). The
    /// only place where it allocates.
    pub fn new(config: Config) -> Self {
        let accept = Accept::default();
        Self {
            rules: Rules::new(&config, &accept),
            table: Table::new(config.max_flows, config.seed),
            config,
            accept,
            stale: false,
            counters: Counters::default(),
        }
    }

    /// What the guest can take from now on. Flows of a kind that it no longer takes are completed before
    /// the next frame; so that the guest gets nothing under the old rules any more,
    /// [`flush_all`](Self::flush_all) first. Other flows go on under the new limits.
    #[inline]
    pub fn set_accept(&mut self, accept: Accept) {
        self.accept = accept;
        self.set_rules();
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the settings, except the number of flows and the seed: these stay. When merging is
    /// switched off, held flows are completed before the next frame.
    pub fn set_config(&mut self, config: Config) {
        let Config { max_flows, seed, .. } = self.config;
        self.config = config;
        (self.config.max_flows, self.config.seed) = (max_flows, seed);
        self.set_rules();
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many flows are held.
    pub fn held(&self) -> usize {
        self.table.len()
    }

    /// When the oldest held flow has to be completed at the latest: when to call
    /// [`end_of_poll`](Self::end_of_poll) again even if nothing comes.
    pub fn deadline(&self) -> Option<Instant> {
        let oldest = self.table.oldest()?;
        Some(self.table.flow(oldest).since.after(self.config.flush_timeout))
    }

    /// Takes all frames of a burst in. What can't be held leaves through the batch, together with what
    /// is complete.
    #[inline]
    pub fn receive<S: Sink>(
        &mut self,
        now: Instant,
        burst: &mut Burst,
        batch: &mut NormalBatch,
        sink: &mut S,
        pool: &mut Pool,
    ) {
        let mut out = Out { batch, sink, pool };
        self.counters.received += burst.len() as u64;
        if self.stale {
            self.complete_all(Completed::FeatureChange, &mut out);
            self.stale = false;
        }
        if !self.rules.any() {
            let reason = if self.config.enabled { Passed::NoGuestFeature } else { Passed::GroOff };
            self.counters.pass_many(reason, burst.len() as u64);
            for frame in burst.drain() {
                out.push(frame);
            }
            return;
        }
        // Looked at in its place, and moved only once it is known where to.
        let mut frames = burst.drain();
        while let Some(frame) = frames.as_slice().first() {
            let mut packet = Packet::default();
            match parse(frame, &self.rules, &mut packet) {
                Ok(()) => self.tcp(now, &mut frames, &mut packet, &mut out),
                Err(stray) => self.stray(&mut frames, stray, &packet, &mut out),
            }
        }
    }

    /// The end of a poll: completes held flows (all, or with a flush timeout those that are old enough,
    /// counted from when their first packet came), then delivers the normal batch.
    #[inline]
    pub fn end_of_poll<S: Sink>(
        &mut self,
        now: Instant,
        batch: &mut NormalBatch,
        sink: &mut S,
        pool: &mut Pool,
    ) {
        let mut out = Out { batch, sink, pool };
        let timeout = self.config.flush_timeout;
        if self.stale {
            self.complete_all(Completed::FeatureChange, &mut out);
            self.stale = false;
        } else if timeout.is_zero() {
            self.complete_all(Completed::PollEnd, &mut out);
        } else {
            while let Some(oldest) = self.table.oldest()
                && now.saturating_since(self.table.flow(oldest).since) >= timeout
            {
                self.complete(oldest, Completed::Aged, &mut out);
            }
        }
        batch.flush(sink, pool);
    }

    /// Completes everything that is held, oldest first, and delivers the normal batch.
    pub fn flush_all<S: Sink>(
        &mut self,
        reason: Completed,
        batch: &mut NormalBatch,
        sink: &mut S,
        pool: &mut Pool,
    ) {
        self.complete_all(reason, &mut Out { batch, sink, pool });
        self.stale = false;
        batch.flush(sink, pool);
    }

    fn set_rules(&mut self) {
        let rules = Rules::new(&self.config, &self.accept);
        let lost = (self.rules.tcp4 && !rules.tcp4) || (self.rules.tcp6 && !rules.tcp6);
        self.stale |= lost && self.table.len() > 0;
        self.rules = rules;
    }

    #[inline]
    fn stray<S: Sink>(
        &mut self,
        frames: &mut Drain<'_, Frame>,
        stray: Stray,
        packet: &Packet,
        out: &mut Out<'_, S>,
    ) {
        if stray.scope != Scope::Nothing {
            self.let_pass(stray.scope, packet, out);
        }
        self.counters.pass(stray.reason);
        if let Some(frame) = frames.next() {
            out.push(frame);
        }
    }

    #[inline]
    fn tcp<S: Sink>(
        &mut self,
        now: Instant,
        frames: &mut Drain<'_, Frame>,
        packet: &mut Packet,
        out: &mut Out<'_, S>,
    ) {
        let Some(frame) = frames.as_slice().first() else { return };
        if packet.flush.is_none() && !is_known(frame, packet) {
            self.verify(frame, packet);
        }
        let hash = self.table.hash(&packet.key);
        match self.table.find(hash, packet, frame.head()) {
            Found::Flow(slot) => {
                let flow = self.table.flow_mut(slot);
                if let Some(fixed_id) = fits(flow, frame, packet, &self.rules) {
                    if let Some(frame) = frames.next() {
                        flow.append(frame, packet, fixed_id, out.pool);
                    }
                    let mss = flow.mss;
                    self.counters.merged += 1;
                    return self.appended(slot, mss, packet, out);
                }
                let reason = why_not(flow, frame, packet, &self.rules);
                self.complete(slot, reason, out);
            }
            Found::Sibling(slot) => self.complete(slot, Completed::OrderRule, out),
            Found::Nothing => {}
        }
        if let Some(frame) = frames.next() {
            self.hold_or_pass(now, hash, frame, packet, out);
        }
    }

    /// A packet was appended: is it the last one?
    #[inline]
    fn appended<S: Sink>(&mut self, slot: Slot, mss: u16, packet: &Packet, out: &mut Out<'_, S>) {
        let full = u32::from(mss) * u32::from(packet.count);
        if packet.word & ENDING != 0 {
            self.complete(slot, Completed::PshFin, out);
        } else if u32::from(packet.len) < full {
            self.complete(slot, Completed::ShortSegment, out);
        }
    }

    /// A packet that continues nothing: the first of a flow, or one that merges with nothing.
    #[inline]
    fn hold_or_pass<S: Sink>(
        &mut self,
        now: Instant,
        hash: u64,
        mut frame: Frame,
        packet: &Packet,
        out: &mut Out<'_, S>,
    ) {
        if packet.verified {
            // So that the guest need not sum it up again.
            frame.meta.checksum = Checksum::Verified { levels: 1 };
        }
        let full = u32::from(packet.segment) * u32::from(packet.count);
        let reason = if packet.flush.is_some() {
            packet.flush
        } else if packet.word & ENDING != 0 {
            Some(Passed::ControlFlag)
        } else if packet.segment < SMALLEST_SEGMENT {
            Some(Passed::SmallPayload)
        } else if u32::from(packet.len) < full {
            // A super-packet as input with a short last segment: nothing can follow.
            Some(Passed::UntrustedSuper)
        } else {
            None
        };
        if let Some(reason) = reason {
            self.counters.pass(reason);
            return out.push(frame);
        }
        if let Some(slot) = self.table.in_the_way(hash) {
            self.complete(slot, Completed::Evicted, out);
        }
        self.counters.held += 1;
        self.table.hold(hash, frame, packet, now);
    }

    #[inline]
    fn complete<S: Sink>(&mut self, slot: Slot, reason: Completed, out: &mut Out<'_, S>) {
        self.counters.complete(reason);
        let flow = self.table.release(slot);
        let mut frame = flow.frame.take().expect("a held flow has a frame");
        if flow.merged {
            repair(flow, &mut frame);
            self.counters.supers += 1;
            self.counters.segments += u64::from(flow.count);
            self.counters.bytes += frame.len() as u64;
        }
        out.push(frame);
    }

    fn complete_all<S: Sink>(&mut self, reason: Completed, out: &mut Out<'_, S>) {
        while let Some(oldest) = self.table.oldest() {
            self.complete(oldest, reason, out);
        }
    }

    /// The order rule: what a stray may belong to leaves before it.
    #[cold]
    fn let_pass<S: Sink>(&mut self, scope: Scope, packet: &Packet, out: &mut Out<'_, S>) {
        while let Some(slot) = self.table.find_in(scope, packet) {
            self.complete(slot, Completed::OrderRule, out);
        }
    }

    /// B9: a packet whose checksum is wrong goes on, to leave behind what is held of its flow.
    #[inline(never)]
    fn verify(&self, frame: &Frame, packet: &mut Packet) {
        packet.verified = self.rules.verify_checksums && is_valid(frame, packet);
        if !packet.verified {
            packet.flush = Some(Passed::L4Checksum);
        }
    }
}

/// Newer guests raise a smaller segment size to this (`spec/gro.md` 4.5).
const SMALLEST_SEGMENT: u16 = 8;

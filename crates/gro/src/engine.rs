//! The engine: what is held, and what happens to each frame.

use packet::{Burst, Checksum, Frame, Pool, checksum};

use crate::batch::{NormalBatch, Sink};
use crate::checks::{ENDING, FIN_PSH, Fit, fit};
use crate::complete::{pseudo_header, repair};
use crate::config::{Accept, Config};
use crate::counters::{Completed, Counters, Passed};
use crate::parse::{Packet, Parsed, parse};
use crate::table::{Flow, Slot, Table};
use crate::time::Instant;

/// One GRO engine: the held flows of one worker.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    accept: Accept,
    table: Table,
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
    /// An engine that holds nothing, for a guest that takes nothing yet ([`Engine::set_accept`]).
    pub fn new(config: Config) -> Self {
        let table = Table::new(config.max_flows);
        Self { config, accept: Accept::default(), table, counters: Counters::default() }
    }

    /// What the guest can take from now on. Flows that are held go on under the new limits; when the
    /// guest takes less than before, flush first.
    pub fn set_accept(&mut self, accept: Accept) {
        self.accept = accept;
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the settings, except the number of flows. When merging is switched off, flush first.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many flows are held.
    pub fn held(&self) -> usize {
        self.table.len()
    }

    /// When the oldest held flow has to be completed at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let oldest = self.table.oldest()?;
        Some(self.table.flow(oldest).since.after(self.config.flush_timeout))
    }

    /// Takes all frames of a burst in.
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
        if !self.config.enabled || !(self.accept.tcp4 || self.accept.tcp6) {
            let reason = if self.config.enabled { Passed::NoGuestFeature } else { Passed::GroOff };
            for frame in burst.drain() {
                self.counters.pass(reason);
                out.push(frame);
            }
            return;
        }
        for frame in burst.drain() {
            self.frame(now, frame, &mut out);
        }
    }

    /// The end of a poll: completes held flows (all, or with a flush timeout those that are old enough),
    /// then delivers the normal batch.
    #[inline]
    pub fn end_of_poll<S: Sink>(
        &mut self,
        now: Instant,
        batch: &mut NormalBatch,
        sink: &mut S,
        pool: &mut Pool,
    ) {
        let mut out = Out { batch, sink, pool };
        if self.config.flush_timeout.is_zero() {
            self.complete_all(Completed::PollEnd, &mut out);
        } else {
            while let Some(oldest) = self.table.oldest()
                && now.saturating_since(self.table.flow(oldest).since) >= self.config.flush_timeout
            {
                self.complete(oldest, Completed::Aged, &mut out);
            }
        }
        batch.flush(sink, pool);
    }

    /// Completes everything that is held, and delivers the normal batch.
    pub fn flush_all<S: Sink>(
        &mut self,
        reason: Completed,
        batch: &mut NormalBatch,
        sink: &mut S,
        pool: &mut Pool,
    ) {
        self.complete_all(reason, &mut Out { batch, sink, pool });
        batch.flush(sink, pool);
    }

    #[inline]
    fn frame<S: Sink>(&mut self, now: Instant, frame: Frame, out: &mut Out<'_, S>) {
        match parse(&frame, &self.config, self.accept) {
            Parsed::Tcp(packet) => self.tcp(now, frame, &packet, out),
            Parsed::Pass(reason) => self.pass(frame, reason, out),
            Parsed::Bypass(reason, key) => {
                self.complete_which(|flow| flow.key.same_addresses(&key), out);
                self.pass(frame, reason, out);
            }
            Parsed::BypassAll(reason) => {
                self.complete_all(Completed::OrderRule, out);
                self.pass(frame, reason, out);
            }
        }
    }

    #[inline]
    fn tcp<S: Sink>(
        &mut self,
        now: Instant,
        mut frame: Frame,
        packet: &Packet,
        out: &mut Out<'_, S>,
    ) {
        let (found, sibling) = self.table.find(packet.hash, &packet.key);
        if let Some(sibling) = sibling {
            self.complete(sibling, Completed::OrderRule, out);
        }
        if packet.flush.is_none() && !verify(&mut frame, packet) {
            // B9: it passes, behind what is held of its flow.
            if let Some(slot) = found {
                self.complete(slot, Completed::OrderRule, out);
            }
            self.pass(frame, Passed::L4Checksum, out);
            return;
        }
        let Some(slot) = found else { return self.hold_or_pass(now, frame, packet, out) };
        let flow = self.table.flow_mut(slot);
        let pieces = frame.piece_count();
        match fit(flow, frame.head(), packet, pieces, &self.config, self.accept) {
            Fit::Merge { fixed_id } => {
                merge(flow, frame, packet, fixed_id, out.pool);
                self.counters.merged += 1;
                if packet.word & ENDING != 0 {
                    self.complete(slot, Completed::PshFin, out);
                } else if usize::from(packet.len)
                    < usize::from(packet.segment.max(flow.mss)) * usize::from(packet.count)
                {
                    self.complete(slot, Completed::ShortSegment, out);
                }
            }
            Fit::Flush(reason) => {
                self.complete(slot, reason, out);
                self.hold_or_pass(now, frame, packet, out);
            }
        }
    }

    /// A packet that continues nothing: the first of a flow, or one that merges with nothing.
    fn hold_or_pass<S: Sink>(
        &mut self,
        now: Instant,
        frame: Frame,
        packet: &Packet,
        out: &mut Out<'_, S>,
    ) {
        let whole = usize::from(packet.segment) * usize::from(packet.count);
        let reason = if packet.flush.is_some() {
            packet.flush
        } else if packet.len == 0 {
            Some(Passed::ZeroPayload)
        } else if packet.word & ENDING != 0 {
            Some(Passed::ControlFlag)
        } else if packet.segment < SMALLEST_SEGMENT {
            Some(Passed::SmallPayload)
        } else if usize::from(packet.len) != whole {
            Some(Passed::UntrustedSuper)
        } else {
            None
        };
        if let Some(reason) = reason {
            return self.pass(frame, reason, out);
        }
        if let Some(slot) = self.table.in_the_way(packet.hash) {
            self.complete(slot, Completed::Evicted, out);
        }
        self.counters.held += 1;
        self.table.insert(Flow {
            key: packet.key,
            hash: packet.hash,
            v6: packet.v6,
            frame,
            since: now,
            network: packet.network,
            transport: packet.transport,
            payload: packet.payload,
            padding: packet.padding,
            mss: packet.segment,
            count: packet.count,
            merged: false,
            next_seq: packet.seq.wrapping_add(u32::from(packet.len)),
            ack: packet.ack,
            word: packet.word,
            late_flags: 0,
            network_fields: packet.network_fields,
            id: packet.id,
            fixed_id: false,
        });
    }

    #[inline]
    fn pass<S: Sink>(&mut self, frame: Frame, reason: Passed, out: &mut Out<'_, S>) {
        self.counters.pass(reason);
        out.push(frame);
    }

    #[inline]
    fn complete<S: Sink>(&mut self, slot: Slot, reason: Completed, out: &mut Out<'_, S>) {
        let mut flow = self.table.remove(slot);
        self.counters.complete(reason);
        if flow.merged {
            self.counters.supers += 1;
            repair(&mut flow);
        }
        out.push(flow.frame);
    }

    fn complete_all<S: Sink>(&mut self, reason: Completed, out: &mut Out<'_, S>) {
        while let Some(oldest) = self.table.oldest() {
            self.complete(oldest, reason, out);
        }
    }

    #[cold]
    fn complete_which<S: Sink>(&mut self, wanted: impl Fn(&Flow) -> bool, out: &mut Out<'_, S>) {
        while let Some(slot) = self.table.search(&wanted) {
            self.complete(slot, Completed::OrderRule, out);
        }
    }
}

/// Appends a packet's payload to a flow.
#[inline]
fn merge(flow: &mut Flow, mut frame: Frame, packet: &Packet, fixed_id: bool, pool: &mut Pool) {
    if flow.padding > 0 {
        flow.frame.truncate(flow.frame.len() - usize::from(flow.padding));
        flow.padding = 0;
    }
    if packet.padding > 0 {
        frame.truncate(usize::from(packet.payload) + usize::from(packet.len));
    }
    flow.frame.push(frame, usize::from(packet.payload), pool);
    flow.merged = true;
    flow.count += packet.count;
    flow.fixed_id = fixed_id;
    flow.next_seq = packet.seq.wrapping_add(u32::from(packet.len));
    let late = ((packet.word & FIN_PSH) >> 16) as u8;
    flow.late_flags |= late;
}

/// Whether the TCP checksum is right, by the port's word or by the bytes (`spec/gro.md` 3.2).
#[inline]
fn verify(frame: &mut Frame, packet: &Packet) -> bool {
    match frame.meta.checksum {
        Checksum::Verified { levels } if levels > 0 => true,
        Checksum::Partial { start, offset: 16 } if start == packet.transport => true,
        other => verify_bytes(frame, packet, other),
    }
}

fn verify_bytes(frame: &mut Frame, packet: &Packet, known: Checksum) -> bool {
    let (network, transport) = (usize::from(packet.network), usize::from(packet.transport));
    let len = usize::from(packet.payload) - transport + usize::from(packet.len);
    let pseudo = pseudo_header(frame.head(), network, packet.v6, len);
    let valid = |sum| checksum::add(pseudo, sum) == 0xffff;
    let by_hint = match known {
        Checksum::Sum(sum) => {
            // It covers the IP header too, and is not to be trusted when it says "wrong" (3.2 step 2).
            valid(checksum::sub(sum, checksum::sum(&frame.head()[LINK_LEN..transport])))
        }
        _ => false,
    };
    if !by_hint && !valid(checksum::sum_range(frame, transport, len)) {
        return false;
    }
    frame.meta.checksum = Checksum::Verified { levels: 1 };
    true
}

/// Newer guests raise a smaller segment size to this (`spec/gro.md` 4.5).
const SMALLEST_SEGMENT: u16 = 8;
const LINK_LEN: usize = 14;

//! Event, receive and transmit queues, and timers (4.5, 4.6).

use std::time::Duration;

use super::{ASSIGNED, Answer, Reply, Request, empty, error, refuse};
use crate::bits::{bit, bits, low32, number, size};
use crate::card::{Card, TICK_NS};
use crate::config::{flags1, flags2};
use crate::event;
use crate::evq::{Evq, Target};
use crate::queue::{Offload, Rxq, Txq};
use crate::ring::{PAGE, Ring};
use crate::violation::Rule;

/// Ticks that a timer's register can hold, and the field of workaround 35388.
const MAX_TICKS: u64 = 0x3fff;
const MAX_INDIRECT_TICKS: u32 = 255;

/// What receive and transmit queues have in common (4.5).
struct Common {
    ring: Ring,
    evq: usize,
    label: u64,
    instance: usize,
    flags: u64,
}

impl Card {
    /// The ring of a request: its size, and its pages from an offset on.
    fn ring(
        &mut self,
        request: &Request,
        least: u32,
        most: u32,
        at: usize,
    ) -> Result<Ring, super::Refusal> {
        let entries = request.dword(0);
        if !entries.is_power_of_two() || !(least..=most).contains(&entries) {
            self.wrong(Rule::RequestValue, &format!("a ring of {entries} entries"))?;
        }
        let count = Ring::pages(entries);
        if request.len() < at + 8 * count {
            self.wrong(Rule::RequestShort, "a ring without all of its pages")?;
        }
        let pages: Vec<u64> = (0..count).map(|index| request.qword(at + 8 * index)).collect();
        if let Some(page) = pages.iter().find(|&&page| page % PAGE != 0 || page >> 48 != 0) {
            self.wrong(Rule::Alignment, &format!("a ring's page at {page:#x}"))?;
        }
        let ring = Ring::new(pages, entries);
        if !ring.is_mapped(&self.host) {
            self.wrong(Rule::Unmapped, "a ring")?;
        }
        Ok(ring)
    }

    fn instance(&mut self, instance: u32) -> Result<usize, super::Refusal> {
        let Some(vis) = self.function.vis else {
            self.wrong(Rule::Order, "a queue before ALLOC_VIS")?;
            return Ok(0);
        };
        if size(instance) >= vis {
            self.wrong(Rule::RequestValue, &format!("queue {instance} of {vis}"))?;
        }
        Ok(size(instance))
    }

    pub(super) fn init_evq(&mut self, request: &Request) -> Answer {
        let ring = self.ring(request, 512, 32768, 36)?;
        let instance = self.instance(request.dword(4))?;
        if self.function.evqs.get(instance).is_some() {
            self.host.violation(Rule::Twice, format_args!("EVQ {instance}"));
            return refuse(error::EALREADY);
        }
        let flags = u64::from(request.dword(16));
        let (interrupting, cut_through) = (bit(flags, 0), bit(flags, 3));
        let kind = bits(flags, 7, 4);
        let v2 = self.config.has2(flags2::INIT_EVQ_V2);
        let (mode, load) = (request.dword(20), request.dword(8));
        if kind > if v2 { 3 } else { 0 } || cut_through && bit(flags, 4) || mode > 3 {
            return self.wrong(Rule::RequestValue, "INIT_EVQ: flags or timer mode");
        }
        let batching = self.config.has(flags1::RX_BATCHING);
        let (rx_merge, tx_merge) = match kind {
            0 => (bit(flags, 4), bit(flags, 5)),
            1 => (false, false),
            _ => (true, true),
        };
        let rx_merge = rx_merge && batching;
        let target = if interrupting {
            let vector = request.dword(24);
            if vector >= self.config.vectors() {
                return self.wrong(Rule::RequestValue, &format!("interrupt {vector}"));
            }
            Target::Vector(vector)
        } else {
            Target::Queue(self.instance(request.dword(24))?)
        };
        let mut evq = Evq::new(ring, target, rx_merge, tx_merge);
        if !evq.is_blank(&mut self.host) {
            self.host.violation(Rule::EventRing, format_args!("EVQ {instance}"));
        }
        if mode == 3 {
            evq.hold_off = Duration::from_nanos(u64::from(load) * TICK_NS);
        }
        evq.post(&mut self.host, event::driver(event::START_UP, number(instance)));
        self.function.evqs.put(instance, evq);
        let effect = u32::from(cut_through || kind == 1)
            | u32::from(rx_merge) << 1
            | u32::from(tx_merge) << 2;
        if v2 { Reply::new(8).dword(4, effect).done() } else { Reply::new(4).done() }
    }

    fn common(&mut self, request: &Request, most: u32) -> Result<Common, super::Refusal> {
        let ring = self.ring(request, 512, most, 28)?;
        let instance = self.instance(request.dword(12))?;
        let evq = size(request.dword(4));
        if self.function.evqs.get(evq).is_none() {
            self.wrong(Rule::Order, &format!("queue {instance} before its EVQ {evq}"))?;
        }
        self.need_vadaptor()?;
        let label = u64::from(request.dword(8));
        if label > 31 || request.dword(20) != 0 || request.dword(24) != ASSIGNED {
            self.wrong(Rule::RequestValue, &format!("queue {instance}: label, owner or port"))?;
        }
        Ok(Common { ring, evq, label, instance, flags: u64::from(request.dword(16)) })
    }

    pub(super) fn init_rxq(&mut self, request: &Request) -> Answer {
        let Common { ring, evq, label, instance, flags } = self.common(request, 4096)?;
        if self.function.rxqs[instance].is_some() {
            self.host.violation(Rule::Twice, format_args!("RXQ {instance}"));
            return refuse(error::EALREADY);
        }
        // Header split, CRC modes, chains, other DMA modes, snapshots, forced merging, NO_CONT_EV.
        let unknown =
            bits(flags, 0, 2) | bits(flags, 3, 5) | bits(flags, 10, 5) | bits(flags, 19, 13);
        if unknown != 0 {
            return refuse(error::ENOTSUP);
        }
        let scatter = !(bit(flags, 9) && self.config.has(flags1::RX_DISABLE_SCATTER));
        self.function.rxqs[instance] = Some(Rxq {
            ring,
            evq,
            label,
            prefix: bit(flags, 8),
            scatter,
            outer_classes: bit(flags, 18),
            posted: 0,
            taken: 0,
            open: None,
            flushing: false,
        });
        empty()
    }

    pub(super) fn init_txq(&mut self, request: &Request) -> Answer {
        let most = self.config.max_tx_ring(self.mc.indirect);
        let Common { ring, evq, label, instance, flags } = self.common(request, most)?;
        if self.function.txqs[instance].is_some() {
            self.host.violation(Rule::Twice, format_args!("TXQ {instance}"));
            return refuse(error::EALREADY);
        }
        let unknown = bits(flags, 0, 1) | bits(flags, 3, 6) | bits(flags, 13, 19);
        let tso = bit(flags, 12);
        if unknown != 0 || tso && !self.config.has2(flags2::TX_TSO_V2) {
            return refuse(error::ENOTSUP);
        }
        let contexts = self.function.txqs.iter().flatten().filter(|queue| queue.tso).count();
        if tso && number(contexts) >= u64::from(self.config.tso_contexts) {
            return refuse(error::ENOSPC);
        }
        self.function.txqs[instance] = Some(Txq {
            ring,
            evq,
            label,
            tso,
            offload: Offload {
                ip: !bit(flags, 1),
                l4: !bit(flags, 2),
                inner_ip: bit(flags, 10),
                inner_l4: bit(flags, 11),
            },
            vlan: None,
            segment: [None; 2],
            posted: 0,
            taken: 0,
            completed: None,
            pushed: false,
            dead: false,
            flushing: false,
        });
        empty()
    }

    pub(super) fn fini_evq(&mut self, request: &Request) -> Answer {
        let instance = size(request.dword(0));
        let function = &self.function;
        let in_use = function.rxqs.iter().flatten().any(|queue| queue.evq == instance)
            || function.txqs.iter().flatten().any(|queue| queue.evq == instance);
        if in_use {
            self.host.violation(Rule::InUse, format_args!("EVQ {instance}"));
            return refuse(error::EBUSY);
        }
        match self.function.evqs.take(instance) {
            Some(_) => empty(),
            None => refuse(error::EALREADY),
        }
    }

    pub(super) fn fini_rxq(&mut self, request: &Request) -> Answer {
        let queue = self.function.rxqs.get_mut(size(request.dword(0))).and_then(Option::as_mut);
        let Some(queue) = queue else { return refuse(error::EALREADY) };
        queue.flushing = true;
        empty()
    }

    pub(super) fn fini_txq(&mut self, request: &Request) -> Answer {
        let queue = self.function.txqs.get_mut(size(request.dword(0))).and_then(Option::as_mut);
        let Some(queue) = queue else { return refuse(error::EALREADY) };
        queue.flushing = true;
        empty()
    }

    pub(super) fn driver_event(&mut self, request: &Request) -> Answer {
        let (instance, event) = (size(request.dword(0)), request.qword(4));
        if low32(event & 0xffff_ffff) == u32::MAX || event >> 32 == u64::from(u32::MAX) {
            return self.wrong(Rule::RequestValue, "DRIVER_EVENT of ones");
        }
        if self.function.evqs.get(instance).is_none() {
            return refuse(error::ENOENT);
        }
        self.function.evqs.post(&mut self.host, instance, event);
        empty()
    }

    pub(super) fn get_evq_tmr_properties(&mut self, _: &Request) -> Answer {
        let tick = low32(TICK_NS);
        Reply::new(36)
            .dword(4, tick)
            .dword(8, low32(MAX_TICKS))
            .dword(12, 1)
            .dword(16, low32(TICK_NS * MAX_TICKS))
            .dword(20, tick)
            .dword(24, tick)
            .dword(28, MAX_INDIRECT_TICKS)
            .dword(32, 1)
            .done()
    }

    pub(super) fn set_evq_tmr(&mut self, request: &Request) -> Answer {
        let instance = size(request.dword(0));
        let (load, reload, mode) = (request.dword(4), request.dword(8), request.dword(12));
        if mode > 3 || u64::from(load.max(reload)) > TICK_NS * MAX_TICKS {
            return self.wrong(Rule::RequestValue, "SET_EVQ_TMR");
        }
        if self.function.evqs.get(instance).is_none() {
            return refuse(error::ENOENT);
        }
        let round = |ns: u32| ns - ns % low32(TICK_NS);
        self.set_hold_off(instance, mode, Duration::from_nanos(u64::from(round(load))));
        Reply::new(8).dword(0, round(load)).dword(4, round(reload)).done()
    }
}

//! The card: what registers, rings and commands act on.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bits::{le32, low16, low32, number, size};
use crate::config::{Config, Generation, window};
use crate::doorbells::Doorbells;
use crate::event;
use crate::evq::Evqs;
use crate::fault::{Fault, Faults, Scheduled};
use crate::filter::Filter;
use crate::host::{Host, Interrupts, NoInterrupts};
use crate::pci_config::{Asked, PciConfig};
use crate::queue::{Rxq, Txq};
use crate::rx::RssContext;
use crate::stats::{Counters, index};
use crate::violation::{Rule, Violations};

/// Offsets of registers in a window (2.2).
pub(crate) mod register {
    pub(crate) const HW_REV_ID: u64 = 0x000;
    pub(crate) const MC_STATUS: u64 = 0x010;
    pub(crate) const INT_ISR: u64 = 0x090;
    pub(crate) const MC_LWRD: u64 = 0x200;
    pub(crate) const MC_HWRD: u64 = 0x204;
    pub(crate) const EVQ_RPTR: u64 = 0x400;
    pub(crate) const EVQ_TMR: u64 = 0x420;
    pub(crate) const RX_DESC_UPD: u64 = 0x830;
    pub(crate) const TX_DESC_LOW: u64 = 0xa10;
    pub(crate) const TX_DESC_HIGH: u64 = 0xa14;
    pub(crate) const TX_DESC_PTR: u64 = 0xa18;
    pub(crate) const TX_DESC_REST: u64 = 0xa1c;
}

/// How long a reboot of the controller takes.
const REBOOT: Duration = Duration::from_millis(20);
/// Nanoseconds per tick of the timers.
pub(crate) const TICK_NS: u64 = 1920;

/// The management controller.
#[derive(Debug)]
pub(crate) struct Mc {
    pub(crate) boot_count: u16,
    pub(crate) booting_until: Option<Duration>,
    low: u32,
    pub(crate) request: Option<(Duration, u64)>,
    pub(crate) sequence: Option<u64>,
    /// The next request has to open an epoch.
    pub(crate) new_epoch: bool,
    /// After a reboot: older epochs are refused until a new one is opened, and doorbells of what is
    /// lost are no breach.
    pub(crate) forgotten: bool,
    pub(crate) attached: bool,
    pub(crate) link_v2: bool,
    pub(crate) events: bool,
    pub(crate) indirect: bool,
    pub(crate) chaining: bool,
    pub(crate) commands: u64,
    /// The list of tunnel ports that a reboot is due for (4.11).
    pub(crate) reboot_for_ports: Option<Vec<u16>>,
}

/// The port.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) cable: bool,
    pub(crate) forced_down: bool,
    pub(crate) mtu: u32,
    pub(crate) drain: bool,
    pub(crate) flow_control: u32,
    pub(crate) told: bool,
}

impl Port {
    pub(crate) fn is_up(&self) -> bool {
        self.cable && !self.forced_down
    }
}

/// What the function has: all of it goes with a reset.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) vis: Option<usize>,
    pub(crate) vadaptor: bool,
    pub(crate) mac: [u8; 6],
    pub(crate) evqs: Evqs,
    pub(crate) rxqs: Vec<Option<Rxq>>,
    pub(crate) txqs: Vec<Option<Txq>>,
    pub(crate) filters: Vec<Filter>,
    pub(crate) rss: Vec<RssContext>,
    pub(crate) next_handle: u64,
    pub(crate) tunnel_ports: Vec<u16>,
}

impl Function {
    fn new(config: &Config) -> Self {
        let vis = size(config.vis);
        Self {
            vis: None,
            vadaptor: false,
            mac: config.mac,
            evqs: Evqs::new(vis),
            rxqs: (0..vis).map(|_| None).collect(),
            txqs: (0..vis).map(|_| None).collect(),
            filters: Vec::new(),
            rss: Vec::new(),
            next_handle: 1,
            tunnel_ports: vec![4789],
        }
    }
}

/// A card with one function.
#[derive(Debug)]
pub struct Card {
    pub(crate) config: Config,
    pub(crate) host: Host,
    pub(crate) pci: PciConfig,
    pub(crate) mc: Mc,
    pub(crate) port: Port,
    pub(crate) function: Function,
    pub(crate) counters: Counters,
    pub(crate) faults: Faults,
    pub(crate) outgoing: Vec<Vec<u8>>,
    doorbells: Option<Doorbells>,
    /// Pushes in the making, by VI.
    pushes: Vec<[Option<u32>; 2]>,
    indirect_high: Vec<u32>,
    removed: bool,
    started: Option<Duration>,
}

impl Card {
    /// A card that was just powered on.
    pub fn new(config: Config) -> Self {
        let function = Function::new(&config);
        let pci = PciConfig::new(&config);
        let vis = size(config.vis);
        Self {
            function,
            pci,
            config,
            host: Host::new(),
            mc: Mc {
                boot_count: 1,
                booting_until: None,
                low: 0,
                request: None,
                sequence: None,
                new_epoch: true,
                forgotten: false,
                attached: false,
                link_v2: false,
                events: false,
                indirect: false,
                chaining: false,
                commands: 0,
                reboot_for_ports: None,
            },
            port: Port {
                cable: true,
                forced_down: false,
                mtu: 9240,
                drain: false,
                flow_control: 0,
                told: true,
            },
            counters: Counters::new(),
            faults: Faults::default(),
            outgoing: Vec::new(),
            doorbells: None,
            pushes: vec![[None; 2]; vis],
            indirect_high: vec![0; vis],
            removed: false,
            started: None,
        }
    }

    /// Its kind.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Breaches so far.
    pub fn violations(&self) -> &Violations {
        &self.host.violations
    }

    /// Registers that the host writes in shared memory rather than by [`write`](Self::write).
    pub(crate) fn share(&mut self, doorbells: Doorbells) {
        self.doorbells = Some(doorbells);
        self.publish_status();
    }

    pub(crate) fn set_interrupts(&mut self, interrupts: Box<dyn Interrupts>) {
        self.host.interrupts = interrupts;
    }

    /// Makes something go wrong, now or later.
    pub fn inject(&mut self, fault: Scheduled) {
        self.faults.waiting.push(fault);
    }

    /// Frames to be sent on the wire.
    pub(crate) fn take_outgoing(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.outgoing)
    }

    /// What happened, for a report: breaches and counters.
    pub fn report(&self) -> Value {
        let counter = |at| self.counters.get(at);
        json!({
            "violations": self.host.violations.to_json(),
            "commands": self.mc.commands,
            "boots": self.mc.boot_count,
            "rx_packets": counter(index::RX_PACKETS),
            "tx_packets": counter(index::TX_PACKETS),
            "rx_bytes": counter(index::RX_BYTES),
            "tx_bytes": counter(index::TX_BYTES),
            "rx_no_descriptors": counter(index::RX_NODESC_DROPS),
            "rx_no_filter": counter(index::RXDP_DISPATCHER_DROPPED),
            "rx_no_queue": counter(index::RXDP_QUEUE_DISABLED),
        })
    }

    // -- PCI --

    pub(crate) fn read_config(&mut self, at: u64, bytes: &mut [u8]) {
        if self.removed { bytes.fill(0xff) } else { self.pci.read(at, bytes) }
    }

    /// Whether MSI-X is switched on, and masked as a whole.
    pub(crate) fn msix(&self) -> (bool, bool) {
        self.pci.msix()
    }

    pub(crate) fn write_config(&mut self, at: u64, bytes: &[u8]) {
        if self.removed {
            return;
        }
        let asked = self.pci.write(at, bytes);
        self.host.bus_master = self.pci.bus_master();
        if asked == Asked::Reset {
            self.reset();
        }
    }

    /// Function level reset.
    pub(crate) fn reset(&mut self) {
        self.pci = PciConfig::new(&self.config);
        self.host.bus_master = false;
        self.forget_function();
        self.mc.request = None;
        self.mc.new_epoch = true;
        self.mc.forgotten = false;
        self.mc.attached = false;
        self.mc.events = false;
        if let Some(doorbells) = &self.doorbells {
            doorbells.drain();
        }
    }

    /// Everything that the function made is gone.
    pub(crate) fn forget_function(&mut self) {
        self.function = Function::new(&self.config);
        self.counters.periodic = None;
    }

    /// All queues and the VIs are gone.
    pub(crate) fn forget_queues(&mut self) {
        let new = Function::new(&self.config);
        let function = &mut self.function;
        (function.vis, function.evqs) = (None, new.evqs);
        (function.rxqs, function.txqs) = (new.rxqs, new.txqs);
    }

    // -- registers --

    fn status(&self) -> u32 {
        let state = if self.mc.booting_until.is_some() { 0x1111 } else { 0xb007 };
        state << 16 | u32::from(self.mc.boot_count)
    }

    pub(crate) fn publish_status(&self) {
        let value = if self.removed { u32::MAX } else { self.status() };
        if let Some(doorbells) = &self.doorbells {
            doorbells.store(register::MC_STATUS, value);
        }
    }

    /// Reads a register by its offset in the BAR.
    pub fn read(&mut self, offset: u64) -> u32 {
        if self.removed || !self.pci.memory_space() {
            return u32::MAX;
        }
        match offset {
            register::HW_REV_ID => 0xeb14_face,
            register::MC_STATUS => self.status(),
            register::INT_ISR => 0,
            _ => {
                self.host.violation(Rule::Access, format_args!("a read at {offset:#x}"));
                0
            }
        }
    }

    /// Writes a register by its offset in the BAR.
    pub fn write(&mut self, now: Duration, offset: u64, value: u32) {
        self.host.now = now;
        if self.removed || !self.pci.memory_space() {
            return;
        }
        let Some((vi, register)) = window(&self.config, offset) else {
            self.host.violation(Rule::Reserved, format_args!("{value:#x} at {offset:#x}"));
            return;
        };
        match (vi, register) {
            (0, register::MC_LWRD) => self.mc.low = value,
            (0, register::MC_HWRD) => self.mc_doorbell(value),
            (_, register::TX_DESC_LOW) => self.pushes[vi][0] = Some(value),
            (_, register::TX_DESC_HIGH) => self.pushes[vi][1] = Some(value),
            (_, register::TX_DESC_REST) if value == 0 => {}
            (_, register::TX_DESC_PTR) => {
                if self.mc.indirect && value >> 11 & 1 == 1 {
                    self.indirect(vi, value);
                } else {
                    let push = match std::mem::take(&mut self.pushes[vi]) {
                        [Some(low), Some(high)] => {
                            Some(Some(u64::from(low) | u64::from(high) << 32))
                        }
                        _ => None,
                    };
                    self.tx_doorbell(vi, value, push);
                }
            }
            (_, register::RX_DESC_UPD) => self.rx_doorbell(vi, value),
            (_, register::EVQ_RPTR) => {
                if self.mc.indirect {
                    self.host.violation(Rule::Workaround, "EVQ_RPTR with 35388");
                }
                self.release(vi, value);
            }
            (_, register::EVQ_TMR) => {
                if self.mc.indirect || self.config.generation == Generation::Medford {
                    self.host.violation(Rule::Workaround, "EVQ_TMR");
                }
                self.set_timer(vi, value >> 14 & 3, u64::from(value & 0x3fff));
            }
            _ => self.host.violation(Rule::Reserved, format_args!("{value:#x} at {offset:#x}")),
        }
        self.function.evqs.notify(&mut self.host);
    }

    /// Reads a stretch of the BAR, a register at a time; tells whether it is inside.
    pub(crate) fn read_bar(&mut self, offset: u64, bytes: &mut [u8]) -> bool {
        let inside = self.is_inside(offset, bytes.len());
        if inside {
            for (chunk, at) in bytes.chunks_mut(4).zip((offset..).step_by(4)) {
                let value = self.read(at).to_le_bytes();
                chunk.copy_from_slice(&value[..chunk.len()]);
            }
        }
        inside
    }

    /// Writes a stretch of the BAR, a register at a time, in ascending order.
    pub(crate) fn write_bar(&mut self, now: Duration, offset: u64, bytes: &[u8]) {
        if !self.is_inside(offset, bytes.len()) {
            return;
        }
        if !bytes.len().is_multiple_of(4) || !offset.is_multiple_of(4) {
            self.misaligned(offset, bytes.len());
            return;
        }
        for (chunk, at) in bytes.chunks_exact(4).zip((offset..).step_by(4)) {
            self.write(now, at, le32(chunk, 0));
        }
    }

    /// A register access that is not of whole words, or not inside.
    fn misaligned(&mut self, offset: u64, len: usize) {
        self.host.violation(Rule::Access, format_args!("{len} bytes at {offset:#x}"));
    }

    /// Whether an access is inside the BAR; one that is not is noted.
    fn is_inside(&mut self, offset: u64, len: usize) -> bool {
        let end = offset.checked_add(number(len));
        let inside = end.is_some_and(|end| end <= self.config.bar_len());
        if !inside {
            self.misaligned(offset, len);
        }
        inside
    }

    /// Whether frames can go anywhere.
    pub(crate) fn listens(&self) -> bool {
        !self.function.filters.is_empty()
    }

    fn release(&mut self, vi: usize, pointer: u32) {
        let Self { host, function, mc, .. } = self;
        match function.evqs.get(vi) {
            Some(evq) => evq.release(host, pointer, vi),
            None if mc.forgotten => {}
            None => host.violation(Rule::NoQueue, format_args!("read pointer of EVQ {vi}")),
        }
    }

    fn set_timer(&mut self, vi: usize, mode: u32, ticks: u64) {
        self.set_hold_off(vi, mode, Duration::from_nanos(ticks * TICK_NS));
    }

    pub(crate) fn set_hold_off(&mut self, vi: usize, mode: u32, time: Duration) {
        if let Some(evq) = self.function.evqs.get(vi) {
            evq.hold_off = if mode == 3 { time } else { Duration::ZERO };
        }
    }

    /// The register of workaround 35388 (2.7).
    fn indirect(&mut self, vi: usize, value: u32) {
        match value >> 8 & 0xf {
            8 => self.indirect_high[vi] = value & 0xff,
            9 => self.release(vi, self.indirect_high[vi] << 8 | value & 0xff),
            kind if kind >> 2 == 3 => self.set_timer(vi, kind & 3, u64::from(value & 0xff)),
            _ => self.host.violation(Rule::Reserved, format_args!("indirect {value:#x}")),
        }
    }

    fn mc_doorbell(&mut self, high: u32) {
        if high & 1 == 1 {
            self.mc.request = None;
            self.mc.new_epoch = true;
            return;
        }
        let address = u64::from(self.mc.low) << 32 | u64::from(high);
        if high & 0xff != 0 {
            self.host.violation(Rule::Alignment, format_args!("MCDI buffer at {address:#x}"));
        }
        if self.mc.request.is_some() {
            self.host.violation(Rule::RequestBusy, format_args!("at {address:#x}"));
        }
        self.mc.request = Some((self.host.now + self.faults.delay, address));
    }

    // -- time --

    /// Does what is due: doorbells in shared memory, commands, flushes, statistics, faults.
    /// Tells whether there was anything.
    pub fn poll(&mut self, now: Duration) -> bool {
        self.host.now = now;
        self.let_go_wrong();
        let mut busy = false;
        if let Some(doorbells) = self.doorbells.take() {
            // In this order: what a driver wrote before a command is seen before it.
            let command = doorbells.take(register::MC_HWRD);
            for vi in 0..size(self.config.vis) {
                busy |= self.poll_window(&doorbells, vi, now);
            }
            if let Some(high) = command {
                doorbells.audit(&mut self.host);
                self.mc.low = doorbells.load(register::MC_LWRD);
                if !self.removed && self.pci.memory_space() {
                    self.mc_doorbell(high);
                }
            }
            self.doorbells = Some(doorbells);
        }
        if let Some(until) = self.mc.booting_until
            && now >= until
        {
            self.mc.booting_until = None;
            self.publish_status();
        }
        if let Some((due, address)) = self.mc.request
            && now >= due
            && self.mc.booting_until.is_none()
            && !self.removed
        {
            self.mc.request = None;
            self.command(address);
            busy = true;
        }
        self.finish_flushes();
        self.upload_if_due();
        self.tell_link();
        self.function.evqs.notify(&mut self.host);
        busy
    }

    fn poll_window(&mut self, doorbells: &Doorbells, vi: usize, now: Duration) -> bool {
        let base = number(vi) * self.config.stride();
        let mut busy = false;
        for register in [register::RX_DESC_UPD, register::EVQ_TMR, register::EVQ_RPTR] {
            if let Some(value) = doorbells.take(base + register) {
                self.write(now, base + register, value);
                busy = true;
            }
        }
        // Only the last of several writes can be seen, so a push is known, not its content.
        if let Some(value) = doorbells.take(base + register::TX_DESC_PTR) {
            let pushed = doorbells.take(base + register::TX_DESC_LOW);
            let pushed =
                pushed.or_else(|| doorbells.take(base + register::TX_DESC_HIGH)).map(|_| None);
            doorbells.take(base + register::TX_DESC_HIGH);
            doorbells.take(base + register::TX_DESC_REST);
            if !self.removed {
                self.tx_doorbell(vi, value, pushed);
            }
            busy = true;
        }
        busy
    }

    /// Frames of the wire were handed over; tells of them.
    pub(crate) fn end_of_burst(&mut self) {
        self.flush_all_rx();
        self.function.evqs.notify(&mut self.host);
    }

    fn finish_flushes(&mut self) {
        for instance in 0..self.function.rxqs.len() {
            if self.function.rxqs[instance].as_ref().is_some_and(|queue| queue.flushing) {
                let evq = self.function.rxqs[instance].take().expect("it was just seen").evq;
                self.flushed(event::code::RX_FLUSH, evq, instance);
            }
            if self.function.txqs[instance].as_ref().is_some_and(|queue| queue.flushing) {
                let evq = self.function.txqs[instance].take().expect("it was just seen").evq;
                self.flushed(event::code::TX_FLUSH, evq, instance);
            }
        }
    }

    fn flushed(&mut self, code: u64, evq: usize, instance: usize) {
        let data = low32(number(instance));
        let own = event::controller(code, data);
        self.function.evqs.post(&mut self.host, evq, own);
        let copy = event::controller(code, data | 1 << 12);
        self.function.evqs.post(&mut self.host, 0, copy);
    }

    fn tell_link(&mut self) {
        let up = self.port.is_up();
        if std::mem::replace(&mut self.port.told, up) == up || !self.mc.events {
            return;
        }
        let event = if self.mc.link_v2 {
            let data = if up { 1 << 28 | 3 << 24 } else { 0 };
            event::controller(event::code::LINKCHANGE_V2, data)
        } else {
            let data = if up { 3 << 24 | 3 << 16 } else { 0 };
            event::controller(event::code::LINKCHANGE, data)
        };
        self.function.evqs.post(&mut self.host, 0, event);
    }

    fn upload_if_due(&mut self) {
        let Some(mut periodic) = self.counters.periodic else { return };
        if self.host.now >= periodic.next {
            periodic.next = self.host.now + periodic.period;
            self.counters.periodic = Some(periodic);
            self.upload(periodic.address, periodic.len);
            if periodic.clear {
                self.counters.clear();
            }
            if periodic.event {
                let generation = low32(self.counters.generation);
                let done = event::controller(event::code::MAC_STATS_DMA, generation);
                self.function.evqs.post(&mut self.host, 0, done);
            }
        }
    }

    /// Writes the start generation, the counters, and the end generation, in this order (4.10).
    pub(crate) fn upload(&mut self, address: u64, len: u64) {
        let what = "a statistics buffer";
        self.counters.generation += 1;
        let generation = self.counters.generation;
        let image = self.counters.image(len);
        self.host.store_qword(address, generation, what);
        self.host.write(address + 8, &image, what);
        self.host.store_qword(address + len - 8, generation, what);
    }

    /// The controller reboots: everything is lost but the attachment (8.5).
    pub(crate) fn reboot(&mut self) {
        let boot_count = self.mc.boot_count.wrapping_add(1);
        self.mc.boot_count = boot_count;
        self.mc.booting_until = Some(self.host.now + REBOOT);
        if self.mc.events {
            let event = event::controller(event::code::MC_REBOOT, u32::from(boot_count));
            self.function.evqs.post(&mut self.host, 0, event);
            self.function.evqs.notify(&mut self.host);
        }
        self.forget_function();
        self.counters.clear();
        self.mc.events = false;
        self.mc.indirect = false;
        self.mc.chaining = false;
        self.mc.forgotten = true;
        self.port.drain = false;
        // A request that was not answered never will be with a result.
        if let Some((_, address)) = self.mc.request.take() {
            self.refuse_stale(address);
        }
        self.publish_status();
    }

    fn let_go_wrong(&mut self) {
        if let Some(at) = self.faults.link_up_at
            && self.host.now >= at
        {
            self.faults.link_up_at = None;
            self.port.cable = true;
        }
        if self.faults.waiting.is_empty() || !self.mc.attached {
            return;
        }
        let now = self.host.now;
        let started = *self.started.get_or_insert(now);
        let (due, later): (Vec<_>, Vec<_>) =
            self.faults.waiting.drain(..).partition(|fault| now >= started + fault.after);
        self.faults.waiting = later;
        for Scheduled { fault, .. } in due {
            log::info!("fault: {fault:?}");
            match fault {
                Fault::McReboot => self.reboot(),
                Fault::McdiError { command, error } => self.faults.errors.push((command, error)),
                Fault::McdiDelay(time) => self.faults.delay = time,
                Fault::ShortReply { command, len } => self.faults.short.push((command, len)),
                Fault::BadChecksum(count) => self.faults.bad_checksum += count,
                Fault::CrcError(count) => self.faults.crc_error += count,
                Fault::LinkFlap(time) => {
                    self.port.cable = false;
                    self.faults.link_up_at = Some(now + time);
                }
                Fault::LoseEvents(count) => self.faults.lose_events += count,
                Fault::EvqOverflow => self.faults.overflow = true,
                Fault::BadPrefix(count) => self.faults.bad_prefix += count,
                Fault::Remove => {
                    self.removed = true;
                    self.forget_function();
                    self.publish_status();
                }
            }
        }
    }

    // -- memory --

    /// The host shows part of a file at a device address.
    pub(crate) fn map(
        &mut self,
        iova: u64,
        len: u64,
        file: std::fs::File,
        offset: u64,
    ) -> std::io::Result<()> {
        self.host.dma.map(iova, len, file, offset)
    }

    /// All memory is about to be shown anew.
    pub(crate) fn forget_memory(&mut self) {
        self.host.dma.clear();
    }

    /// The host takes memory away; using it still is a breach.
    pub(crate) fn unmap(&mut self, iova: u64, len: u64) -> bool {
        let in_use = self.function.evqs.iter().any(|evq| evq.ring.touches(iova, len))
            || self.function.rxqs.iter().flatten().any(|queue| queue.ring.touches(iova, len))
            || self.function.txqs.iter().flatten().any(|queue| queue.ring.touches(iova, len))
            || self.counters.periodic.is_some_and(|periodic| {
                periodic.address < iova.saturating_add(len)
                    && iova < periodic.address + periodic.len
            });
        if in_use {
            self.host.violation(Rule::UnmapInUse, format_args!("{len:#x} bytes at {iova:#x}"));
        }
        self.host.dma.unmap(iova, len)
    }

    /// The process of the driver is gone, and its memory with it.
    pub(crate) fn disconnect(&mut self) {
        self.host.dma.clear();
        self.set_interrupts(Box::new(NoInterrupts));
        self.reset();
    }

    /// The MTU of the card as a register would hold it.
    pub(crate) fn set_mtu(&mut self, mtu: u32) {
        self.port.mtu = u32::from(low16(u64::from(mtu.min(9240))));
    }
}

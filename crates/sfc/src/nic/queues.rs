//! Making queues and letting packets in: steps 10 to 22 of the bring-up (`spec/ef10.md` 8.1).

use pci::{Bar, DmaRing, PacketMemory};

use super::Nic;
use super::statistics::Buffer;
use crate::device::Kind;
use crate::error::Error;
use crate::event::ChecksumRules;
use crate::evq::EventQueue;
use crate::filter::{self, Filter, Target, Wanted};
use crate::mcdi::Code;
use crate::mcdi::command::{
    AllocVis, FlowControl, FreeVis, GetParserInfo, InitEvq, InitRxq, InitTxq, InsertFilter, Pages,
    RssAlloc, RssFree, RssSetFlags, RssSetKey, RssSetTable, SetLink, SetMac, SetTimer,
    VadaptorAlloc,
};
use crate::moderation::Timer;
use crate::registers::{
    EVQ_INDIRECT, EVQ_TMR, RX_DOORBELL, TX_DOORBELL, TX_PUSH, TX_PUSH_DOORBELL, WINDOW_USED,
    indirect_timer, timer,
};
use crate::rss;
use crate::rx::completion::Modes;
use crate::rx::{RxParts, RxQueue};
use crate::tx::{TxParts, TxQueue};

/// How queues are made.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many queue pairs: 1 to 64.
    pub pairs: u32,
    /// Descriptors of each receive queue: a power of two, 512 to 4096.
    pub rx_entries: u32,
    /// Descriptors of each transmit queue: a power of two, 512 to 2048.
    pub tx_entries: u32,
    /// The largest frame behind the Ethernet header, in bytes; at most [`SetMac::MAX_MTU`].
    pub mtu: u16,
    /// Addresses that packets are wanted for, beside the function's own.
    pub addresses: Vec<[u8; 6]>,
    /// What is wanted beside that.
    pub wanted: Wanted,
    /// The hash key for several queues.
    pub key: rss::Key,
    /// The pairs that receive what is spread by hash; empty: all.
    pub spread: Vec<u8>,
    /// How far apart interrupts are kept, in nanoseconds; 0: not at all.
    pub moderation_ns: u32,
}

impl Settings {
    /// Refuses what no card takes.
    pub(super) fn check(&self) -> Result<(), Error> {
        let ring =
            |entries: u32, max: u32| entries.is_power_of_two() && (512..=max).contains(&entries);
        let reason = if !(1..=rss::MAX_QUEUES as u64).contains(&u64::from(self.pairs)) {
            "a card has 1 to 64 queue pairs"
        } else if !ring(self.rx_entries, 4096) {
            "a receive ring has 512, 1024, 2048 or 4096 descriptors"
        } else if !ring(self.tx_entries, 2048) {
            "a transmit ring has 512, 1024 or 2048 descriptors"
        } else if self.mtu > SetMac::MAX_MTU {
            "the MTU is at most 9202 bytes"
        } else if self.spread.iter().any(|pair| u32::from(*pair) >= self.pairs) {
            "packets are spread over pairs that are there"
        } else {
            return Ok(());
        };
        Err(Error::Config(reason))
    }

    fn table(&self) -> rss::Table {
        if self.spread.is_empty() {
            let all: Vec<u8> = (0..).take(self.pairs as usize).collect();
            return rss::spread(&all);
        }
        rss::spread(&self.spread)
    }
}

/// How packets are spread over several queues.
#[derive(Debug, Clone, Copy)]
pub(super) struct HashContext {
    pub(super) id: u32,
    /// Whether its key and table are ours; else they are the firmware's.
    own: bool,
}

/// A receive queue and a transmit queue. Each is owned by the worker that polls it.
#[derive(Debug)]
pub struct Pair {
    /// Frames from the network.
    pub rx: RxQueue,
    /// Frames to the network.
    pub tx: TxQueue,
}

/// What could not be had as asked for. Nothing of it keeps packets from flowing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Notes {
    /// The function may not have packets for other addresses.
    pub promiscuous_refused: bool,
    /// The function may not have all multicast.
    pub multicast_refused: bool,
    /// No hash context was left: the first queue gets everything.
    pub no_rss: bool,
    /// No segmentation context was left, or the firmware has none.
    pub no_tso: bool,
    /// There are no interrupts: the queues can only be polled.
    pub no_interrupts: bool,
    /// The function gets no counters of the MAC.
    pub no_statistics: bool,
}

/// What exists while packets flow, beside the workers' queues.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) control: EventQueue,
    pub(super) filters: Vec<(Filter, u64)>,
    pub(super) rss: Option<HashContext>,
    pub(super) statistics: Option<Buffer>,
    pub(super) notes: Notes,
}

/// The event queue of receive queue `pair`.
pub(super) fn rx_events(pair: u32) -> u32 {
    1 + 2 * pair
}

/// The event queue of transmit queue `pair`.
pub(super) fn tx_events(pair: u32) -> u32 {
    2 + 2 * pair
}

/// Makes everything. When it fails the card has forgotten what had been made by then, and only then
/// its memory is freed: until it forgets, the card writes there.
pub(super) fn start(
    nic: &mut Nic,
    settings: &Settings,
    memory: PacketMemory,
) -> Result<(Started, Vec<Pair>), Error> {
    let mut notes = Notes { no_interrupts: nic.interrupts.is_empty(), ..Notes::default() };
    allocate_interfaces(nic, settings.pairs)?;
    allocate_adaptor(nic)?;
    let fields = nic.mcdi.call(&GetParserInfo)?;
    if !fields.contains(&Filter::BROADCAST.match_fields()) {
        return Err(Error::Lacks("filters by destination address"));
    }
    let rss = hash_context(nic, settings)?;
    notes.no_rss = settings.pairs > 1 && rss.is_none();
    set_link(nic)?;
    let control = event_queue(nic, 0, CONTROL_EVENTS, Some(0), 0)?;
    control.arm();
    let mut started = Started { control, filters: Vec::new(), rss, statistics: None, notes };
    let mut pairs = Vec::new();
    let filled = fill(nic, settings, memory, &mut started, &mut pairs);
    forget_on_error(nic, filled)?;
    Ok((started, pairs))
}

fn fill(
    nic: &mut Nic,
    settings: &Settings,
    memory: PacketMemory,
    started: &mut Started,
    pairs: &mut Vec<Pair>,
) -> Result<(), Error> {
    let Started { filters, rss, statistics, notes, .. } = started;
    tolerate_denial(nic.mcdi.call(&SetMac {
        mtu: settings.mtu,
        address: nic.info.address,
        flow_control: FlowControl::Both,
    }))?;
    for pair in 0..settings.pairs {
        let tx = transmit_queue(nic, pair, settings, memory, notes)?;
        let made = receive_queue(nic, pair, settings, memory, rss.is_some());
        let rx = forget_on_error(nic, made)?;
        pairs.push(Pair { rx, tx });
    }
    *filters = insert_filters(nic, settings, rss.map(|context| context.id), notes)?;
    *statistics = start_statistics(nic)?;
    notes.no_statistics = statistics.is_none();
    Ok(())
}

/// Makes the card forget what it was told of memory, before whoever returns the error frees it.
fn forget_on_error<T>(nic: &mut Nic, outcome: Result<T, Error>) -> Result<T, Error> {
    if outcome.is_err() {
        nic.forget();
    }
    outcome
}

/// One virtual interface for the controller's events, two per pair.
fn allocate_interfaces(nic: &mut Nic, pairs: u32) -> Result<(), Error> {
    super::gone_is_fine(nic.mcdi.call(&FreeVis))?;
    let wanted = 1 + 2 * pairs;
    let most = nic.bar.len() / u64::from(nic.info.window);
    let too_few = |count: u64| Error::Queues {
        wanted: pairs,
        granted: u32::try_from(count.saturating_sub(1) / 2).unwrap_or(u32::MAX),
    };
    if u64::from(wanted) > most {
        return Err(too_few(most));
    }
    match nic.mcdi.call(&AllocVis { min: 3, max: wanted }) {
        Ok(granted) if granted.count == wanted => Ok(()),
        Ok(granted) => Err(too_few(granted.count.into())),
        Err(error) if error.code() == Some(Code::ENOSPC) => Err(too_few(0)),
        Err(error) => Err(error),
    }
}

/// The adaptor that queues and filters hang on. A physical function without virtual ones may have one
/// already, which the reference's first driver takes any refusal for.
fn allocate_adaptor(nic: &mut Nic) -> Result<(), Error> {
    let permit_set_mac = nic.info.capabilities.flags1.permit_set_mac();
    match nic.mcdi.call(&VadaptorAlloc { permit_set_mac }) {
        Err(error) if error.code().is_some() && nic.info.identity.kind == Kind::Physical => Ok(()),
        outcome => outcome,
    }
}

/// Spreads packets over the queues: with our own key and table, else with the firmware's, else not.
fn hash_context(nic: &mut Nic, settings: &Settings) -> Result<Option<HashContext>, Error> {
    let flags1 = nic.info.capabilities.flags1;
    let queues = settings.pairs;
    if queues == 1 || flags1.rx_rss_limited() {
        return Ok(None);
    }
    match nic.mcdi.call(&RssAlloc { shared: false, queues }) {
        Ok(id) => {
            let programmed = program_context(nic, id, settings);
            if programmed.is_err() {
                // The first failure is the one to tell of.
                drop(nic.mcdi.call(&RssFree(id)));
            }
            programmed.map(|()| Some(HashContext { id, own: true }))
        }
        Err(error) if error.code().is_some() && queues.is_power_of_two() => {
            match nic.mcdi.call(&RssAlloc { shared: true, queues }) {
                Ok(id) => Ok(Some(HashContext { id, own: false })),
                Err(error) if error.code().is_some() => Ok(None),
                Err(error) => Err(error),
            }
        }
        Err(error) if error.code().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

fn program_context(nic: &mut Nic, context: u32, settings: &Settings) -> Result<(), Error> {
    let flags = rss::flags(nic.info.capabilities.flags1.additional_rss_modes());
    nic.mcdi.call(&RssSetFlags { context, flags })?;
    nic.mcdi.call(&RssSetTable { context, table: &settings.table() })?;
    nic.mcdi.call(&RssSetKey { context, key: &settings.key })
}

/// Spreads packets as the settings say from now on; whether the function has a say in it.
pub(super) fn spread(nic: &mut Nic, settings: &Settings) -> Result<bool, Error> {
    settings.check()?;
    let context = nic.started.as_ref().and_then(|started| started.rss);
    let Some(HashContext { id: context, own: true }) = context else { return Ok(false) };
    nic.mcdi.call(&RssSetTable { context, table: &settings.table() })?;
    Ok(true)
}

/// Advertises all that the PHY can do, where the function has a say in it.
fn set_link(nic: &mut Nic) -> Result<(), Error> {
    let Some(phy) = nic.info.phy else { return Ok(()) };
    tolerate_denial(nic.mcdi.call(&SetLink { capabilities: phy.supported }))
}

fn event_queue(
    nic: &mut Nic,
    instance: u32,
    entries: u32,
    vector: Option<u32>,
    moderation_ns: u32,
) -> Result<EventQueue, Error> {
    let ring = ring(nic, entries)?;
    let pages = pages(&ring);
    let window = window(nic, instance)?;
    // Emptied before the card is told of it.
    let queue = EventQueue::new(ring, &window, nic.info.indirect)?;
    let capabilities = nic.info.capabilities;
    let made = nic.mcdi.call(&InitEvq {
        instance,
        entries,
        vector: vector.filter(|_| !nic.interrupts.is_empty()),
        typed: capabilities.flags2.init_evq_v2(),
        merging: capabilities.flags1.rx_batching(),
        ring: pages,
    });
    // Without an answer it may have been made all the same.
    forget_on_error(nic, made)?;
    if vector.is_some() && moderation_ns > 0 {
        let moderated = moderate(nic, &window, instance, moderation_ns);
        forget_on_error(nic, moderated)?;
    }
    Ok(queue)
}

/// Keeps an event queue's interrupts apart (5.7).
fn moderate(nic: &mut Nic, window: &Bar, instance: u32, ns: u32) -> Result<(), Error> {
    let mode = Timer::mode(ns);
    match nic.info.timer {
        None => {}
        Some(Timer::Command { max_ns }) => {
            nic.mcdi.call(&SetTimer { instance, ns: ns.min(max_ns), mode })?;
        }
        Some(Timer::Indirect(ticks)) => {
            window.write(EVQ_INDIRECT, indirect_timer(mode.code(), ticks.of(ns)));
        }
        Some(Timer::Register(ticks)) => window.write(EVQ_TMR, timer(mode.code(), ticks.of(ns))),
    }
    Ok(())
}

fn transmit_queue(
    nic: &mut Nic,
    pair: u32,
    settings: &Settings,
    memory: PacketMemory,
    notes: &mut Notes,
) -> Result<TxQueue, Error> {
    let entries = settings.tx_entries;
    let ring = ring(nic, entries)?;
    let window = window(nic, pair)?;
    let (doorbell, push) = (window.register(TX_DOORBELL)?, window.register(TX_PUSH)?);
    let push = [push, window.register(TX_PUSH_DOORBELL)?];
    // As many events as descriptors, and the few that are no completions.
    let events = event_queue(nic, tx_events(pair), entries * 2, None, 0)?;
    let mut init = InitTxq {
        instance: pair,
        entries,
        event_queue: tx_events(pair),
        label: LABEL,
        tso: nic.info.capabilities.flags2.tx_tso_v2(),
        ring: pages(&ring),
    };
    let mut made = nic.mcdi.call(&init);
    // The adapter's segmentation contexts are used up.
    if init.tso && made.as_ref().is_err_and(|error| error.code() == Some(Code::ENOSPC)) {
        init.tso = false;
        made = nic.mcdi.call(&init);
    }
    forget_on_error(nic, made)?;
    notes.no_tso |= !init.tso;
    Ok(TxQueue::new(TxParts { events, ring, doorbell, push, memory, label: LABEL, tso: init.tso }))
}

fn receive_queue(
    nic: &mut Nic,
    pair: u32,
    settings: &Settings,
    memory: PacketMemory,
    hashed: bool,
) -> Result<RxQueue, Error> {
    let entries = settings.rx_entries;
    let vector = Some(pair + 1);
    let ring = ring(nic, entries)?;
    let doorbell = window(nic, pair)?.register(RX_DOORBELL)?;
    let events = event_queue(nic, rx_events(pair), entries * 2, vector, settings.moderation_ns)?;
    let flags1 = nic.info.capabilities.flags1;
    let made = nic.mcdi.call(&InitRxq {
        instance: pair,
        entries,
        event_queue: rx_events(pair),
        label: LABEL,
        scatter: true,
        ring: pages(&ring),
    });
    forget_on_error(nic, made)?;
    Ok(RxQueue::new(RxParts {
        events,
        ring,
        doorbell,
        memory,
        modes: Modes { label: LABEL, batching: flags1.rx_batching(), scatter: true },
        checksums: ChecksumRules::new(nic.info.identity.generation, flags1.vxlan_nvgre()),
        hashed,
        padding: nic.info.padding,
    }))
}

fn insert_filters(
    nic: &mut Nic,
    settings: &Settings,
    rss_context: Option<u32>,
    notes: &mut Notes,
) -> Result<Vec<(Filter, u64)>, Error> {
    let target = Target { queue: 0, rss_context };
    let own = nic.info.address;
    let more = settings.addresses.iter().filter(|address| **address != own);
    let more = more.map(|address| Filter::Address(*address));
    let mut inserted = Vec::new();
    for filter in filter::filters(own, settings.wanted).chain(more) {
        match nic.mcdi.call(&InsertFilter { filter, target }) {
            Ok(handle) => inserted.push((filter, handle)),
            Err(error) if error.is_denied() && filter == Filter::OtherUnicast => {
                notes.promiscuous_refused = true;
            }
            Err(error) if error.is_denied() && filter == Filter::OtherMulticast => {
                notes.multicast_refused = true;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(inserted)
}

/// Counters: by themselves for a physical function, on demand for a virtual one (8.2); or none.
fn start_statistics(nic: &mut Nic) -> Result<Option<Buffer>, Error> {
    let count = nic.info.capabilities.statistics;
    // Generation numbers at both ends, and the counters that every firmware has between them.
    if count < 97 {
        return Ok(None);
    }
    let periodic = nic.info.identity.kind == Kind::Physical;
    let buffer = Buffer::new(&mut *nic.function, count, periodic)?;
    match buffer.start(&mut nic.mcdi) {
        Ok(()) => Ok(Some(buffer)),
        Err(error) if error.code().is_some() => Ok(None),
        error => forget_on_error(nic, error).map(|()| None),
    }
}

/// The registers of a virtual interface.
fn window(nic: &Nic, instance: u32) -> Result<Bar, Error> {
    let offset = u64::from(instance) * u64::from(nic.info.window);
    Ok(nic.bar.window(offset, WINDOW_USED)?)
}

fn ring(nic: &mut Nic, entries: u32) -> Result<DmaRing<u64>, Error> {
    let region = nic.function.dma(entries as usize * size_of::<u64>(), Pages::BYTES)?;
    Ok(DmaRing::new(region, entries))
}

fn pages(ring: &DmaRing<u64>) -> Pages {
    Pages { address: ring.iova().get(), bytes: ring.entries() as usize * size_of::<u64>() }
}

/// What the function has no say in is as it is.
fn tolerate_denial(outcome: Result<(), Error>) -> Result<(), Error> {
    match outcome {
        Err(error) if error.is_denied() => Ok(()),
        outcome => outcome,
    }
}

/// Entries of event queue 0: the controller reports little.
pub(super) const CONTROL_EVENTS: u32 = 512;
/// Each queue has an event queue of its own, so that labels need not tell queues apart.
const LABEL: u8 = 0;

//! A Solarflare card's function, driven from user space: no kernel on the way of a packet.
//!
//! Life: opened (the controller answers, its firmware is known); packet memory set aside where the card
//! can reach it; opened for queues, which go to the workers; tended by a control thread, which reads what
//! the controller reports and, when the controller restarts or a queue breaks, calls the queues back,
//! brings the card up again and hands new ones over; at the end the queues come back, are destroyed,
//! and the card is left as it was found.
//!
//! Who owns what: this half owns the card's control side and, at all times that no worker does, the
//! queues. See [`exchange`] for how they change hands.

mod exchange;
mod options;
mod queues;

use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use pci::{EventFd, PacketMemory};
use sfc::nic::{Notice, Pair, Settings};
use sfc::{Nic, SystemClock, filter, rss};

pub use options::Options;

use crate::sys::borrow;
use crate::{Capabilities, Error, Link, Port, QueuePair};
use exchange::{Control, Held};
use queues::{SfcRx, SfcTx};

/// A function of a card as a port.
#[derive(Debug)]
pub struct Sfc {
    name: String,
    settings: Settings,
    nic: Option<Nic>,
    memory: Option<PacketMemory>,
    link: Link,
    node: Option<u32>,
    tso: bool,
    workers: Vec<Worker>,
    recovery: Option<Recovery>,
    failed: bool,
    /// Queues that came back without all the others. The card may still use their memory, so they go
    /// last.
    strays: (Vec<sfc::rx::RxQueue>, Vec<sfc::tx::TxQueue>),
}

/// The other ends of a worker's two queues, and what wakes it.
#[derive(Debug)]
struct Worker {
    rx: Control<sfc::rx::RxQueue>,
    tx: Control<sfc::tx::TxQueue>,
    interrupt: Option<EventFd>,
}

/// A recovery that has not worked out yet.
#[derive(Debug)]
struct Recovery {
    pairs: Vec<Pair>,
    attempts: u32,
    next: Instant,
}

impl Sfc {
    /// Opens the function.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] when it is not there, not for us to have, or not a card that the driver knows.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let name = options.to_string();
        let driver = |source| Error::Driver { port: name.clone(), source };
        let function = pci::open(&options.function).map_err(|error| driver(error.into()))?;
        Self::on(function, options)
    }

    /// Drives a function that has been opened already.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn on(function: Box<dyn pci::PciFunction>, options: &Options) -> Result<Self, Error> {
        let name = options.to_string();
        let driver = |source| Error::Driver { port: name.clone(), source };
        let node = function.numa_node();
        let mut nic = Nic::open(function, Box::new(SystemClock::new())).map_err(driver)?;
        let link = nic.link().map_err(driver)?;
        let settings = Settings {
            pairs: 1,
            rx_entries: options.rx_ring,
            tx_entries: options.tx_ring,
            mtu: options.mtu,
            addresses: Vec::new(),
            wanted: filter::Wanted { promiscuous: options.promiscuous, all_multicast: true },
            key: key(),
            spread: Vec::new(),
            moderation_ns: options.moderation_us * 1000,
        };
        Ok(Self {
            name,
            settings,
            nic: Some(nic),
            memory: None,
            link: port_link(&link),
            node,
            tso: false,
            workers: Vec::new(),
            recovery: None,
            failed: false,
            strays: (Vec::new(), Vec::new()),
        })
    }

    /// Reads what the controller has reported; whether the queues have to be made anew, and why.
    fn reports(&mut self) -> Result<Option<String>, sfc::Error> {
        let Some(nic) = &mut self.nic else { return Ok(None) };
        let mut reason = None;
        for notice in nic.notices()? {
            match notice {
                Notice::Link(change) => {
                    self.link = Link { up: change.up, speed_mbps: change.speed };
                    log::info!("{}: link {}", self.name, if change.up { "up" } else { "down" });
                }
                Notice::Restarted => {
                    reason = Some("the card's controller has restarted".to_owned())
                }
                Notice::RxBroken(queue) => reason = Some(format!("receive queue {queue} broke")),
                Notice::TxBroken(queue) => reason = Some(format!("transmit queue {queue} broke")),
            }
        }
        let broken = self.workers.iter().find_map(|worker| {
            let rx = worker.rx.broken().map(|fault| format!("receive queue: {fault}"));
            rx.or_else(|| worker.tx.broken().map(|fault| format!("transmit queue: {fault}")))
        });
        Ok(reason.or(broken))
    }

    /// Calls all queues back. `None` when a worker does not come by: it would ring the doorbells of
    /// queues that are not its own.
    fn call_back(&mut self) -> Option<Vec<Pair>> {
        for worker in &self.workers {
            worker.rx.call_back();
            worker.tx.call_back();
            if let Some(interrupt) = &worker.interrupt {
                // A full counter wakes as well.
                drop(interrupt.write(1));
            }
        }
        let deadline = now() + CALL_BACK_TIME;
        let left = || deadline.saturating_duration_since(now());
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for worker in &self.workers {
            rx.extend(worker.rx.take(left()));
            tx.extend(worker.tx.take(left()));
        }
        if rx.len() == self.workers.len() && tx.len() == self.workers.len() {
            return Some(rx.into_iter().zip(tx).map(|(rx, tx)| Pair { rx, tx }).collect());
        }
        self.strays.0.extend(rx);
        self.strays.1.extend(tx);
        None
    }

    /// Begins to make the queues anew.
    fn begin_recovery(&mut self, reason: &str) {
        log::warn!("{}: {reason}: making the queues anew", self.name);
        match self.call_back() {
            Some(pairs) => {
                self.recovery = Some(Recovery { pairs, attempts: 0, next: now() });
            }
            None => self.fail(&format!("{reason}, and a worker does not give its queue back")),
        }
    }

    /// One attempt, when it is time for one.
    fn try_recovery(&mut self) {
        let Some(recovery) = &mut self.recovery else { return };
        if self.failed {
            return;
        }
        let (Some(nic), Some(memory)) = (&mut self.nic, self.memory) else { return };
        if now() < recovery.next {
            return;
        }
        match nic.recover(&self.settings, memory) {
            Ok(pairs) if nic.notes().no_tso && self.tso => {
                // Guests have been promised that super-packets are cut. The card goes on writing into
                // these queues until the end.
                recovery.pairs = pairs;
                self.fail("the card can't cut super-packets any more");
            }
            Ok(pairs) => {
                let old = self.recovery.take().map_or_else(Vec::new, |recovery| recovery.pairs);
                if let Ok(link) = nic.link() {
                    self.link = port_link(&link);
                }
                self.hand_over(pairs, old);
                log::info!("{}: recovered", self.name);
            }
            Err(error) => {
                recovery.attempts += 1;
                recovery.next = now() + PAUSE * recovery.attempts;
                let last = recovery.attempts >= ATTEMPTS || matches!(error, sfc::Error::Removed);
                let reason = told(&error);
                log::warn!("{}: recovery: {reason}", self.name);
                if last {
                    self.fail(&reason);
                }
            }
        }
    }

    fn hand_over(&self, new: Vec<Pair>, old: Vec<Pair>) {
        for ((worker, new), old) in self.workers.iter().zip(new).zip(old) {
            worker.rx.hand_over(new.rx, old.rx);
            worker.tx.hand_over(new.tx, old.tx);
            if let Some(interrupt) = &worker.interrupt {
                drop(interrupt.write(1));
            }
        }
    }

    /// Gives the card up; the workers end with the reason.
    fn fail(&mut self, reason: &str) {
        self.failed = true;
        self.link.up = false;
        for worker in &self.workers {
            worker.rx.fail(reason);
            worker.tx.fail(reason);
            if let Some(interrupt) = &worker.interrupt {
                drop(interrupt.write(1));
            }
        }
    }

    fn setup(&self, reason: String) -> Error {
        Error::Card { port: self.name.clone(), reason }
    }

    fn describe(&self, nic: &Nic) {
        let notes = nic.notes();
        let name = &self.name;
        let address = nic.info().address.map(|byte| format!("{byte:02x}")).join(":");
        if notes.promiscuous_refused {
            log::warn!(
                "{name}: the function may receive for its own address only: give the guest {address}"
            );
        }
        if notes.multicast_refused {
            log::warn!("{name}: the function may not receive multicast: IPv6 will not work");
        }
        if notes.no_rss {
            log::warn!("{name}: no hash context left: the first queue receives everything");
        }
        if notes.no_tso {
            log::info!("{name}: the card does not cut super-packets: done in software");
        }
        if notes.no_interrupts {
            log::info!("{name}: no interrupts: queues are polled without sleeping for long");
        }
    }
}

impl Port for Sfc {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            rx_checksum: true,
            // Prefixes hold a hash only for packets that are spread over queues.
            rx_hash: self.settings.pairs > 1,
            rx_gso: false,
            tx_checksum: true,
            tx_tso4: self.tso,
            tx_tso6: self.tso,
            tx_uso: false,
            queue_pairs: rss::MAX_QUEUES.try_into().unwrap_or(u16::MAX),
        }
    }

    fn mac(&self) -> Option<[u8; 6]> {
        self.nic.as_ref().map(|nic| nic.info().address)
    }

    fn link(&self) -> Link {
        self.link
    }

    fn mtu(&self) -> Option<u16> {
        Some(self.settings.mtu)
    }

    fn packet_memory(&mut self, bytes: usize) -> Result<Option<&'static mut [u8]>, Error> {
        let posted = self.settings.rx_entries as usize * BUFFER;
        if bytes < 2 * posted {
            return Err(self.setup(format!(
                "{} buffers are too few for a receive ring of {}: give --buffers {} or a smaller rx=",
                bytes / BUFFER,
                self.settings.rx_entries,
                2 * self.settings.rx_entries
            )));
        }
        let Some(nic) = &mut self.nic else { return Ok(None) };
        let (memory, shown) = nic
            .packet_memory(bytes)
            .map_err(|source| Error::Driver { port: self.name.clone(), source })?;
        self.memory = Some(shown);
        Ok(Some(memory))
    }

    fn open(&mut self, pairs: usize) -> Result<Vec<QueuePair>, Error> {
        let have = if self.workers.is_empty() { rss::MAX_QUEUES } else { 0 };
        let too_many = Error::TooManyQueues { port: self.name.clone(), have, asked: pairs };
        if pairs == 0 || pairs > have {
            return if pairs == 0 { Ok(Vec::new()) } else { Err(too_many) };
        }
        let Some(memory) = self.memory else {
            return Err(self.setup("it was given no packet memory".to_owned()));
        };
        let Some(nic) = &mut self.nic else { return Err(too_many) };
        self.settings.pairs = u32::try_from(pairs).map_err(|_| too_many)?;
        let driver = |source| Error::Driver { port: self.name.clone(), source };
        let mut made = nic.start(&self.settings, memory).map_err(driver)?;
        // Changes between the first look and here may have been missed.
        let link = nic.link();
        if link.is_err() {
            // The first failure is the one to tell of.
            drop(nic.stop(&mut made));
        }
        self.link = port_link(&link.map_err(driver)?);
        self.tso = !nic.notes().no_tso;
        let mut queues = Vec::new();
        for (at, pair) in made.into_iter().enumerate() {
            let interrupt = || nic.interrupt(at).and_then(|interrupt| interrupt.try_clone().ok());
            let (rx, rx_control) = Held::new(pair.rx);
            let (tx, tx_control) = Held::new(pair.tx);
            self.workers.push(Worker { rx: rx_control, tx: tx_control, interrupt: interrupt() });
            queues.push(QueuePair {
                rx: Box::new(SfcRx::new(rx, interrupt())),
                tx: Box::new(SfcTx::new(tx)),
            });
        }
        if let Some(nic) = &self.nic {
            self.describe(nic);
        }
        Ok(queues)
    }

    fn numa_node(&self) -> Option<u32> {
        self.node
    }

    fn spread(&mut self, queues: &[u16]) -> Result<bool, Error> {
        let spread: Vec<u8> =
            queues.iter().map(|queue| u8::try_from(*queue).unwrap_or(u8::MAX)).collect();
        let settings = Settings { spread, ..self.settings.clone() };
        let mut done = true;
        // A recovery that is under way makes the queues by the new settings.
        if let (Some(nic), None) = (&mut self.nic, &self.recovery) {
            done = nic
                .spread(&settings)
                .map_err(|source| Error::Driver { port: self.name.clone(), source })?;
        }
        self.settings = settings;
        Ok(done)
    }

    fn tend_every(&self) -> Option<Duration> {
        Some(if self.recovery.is_some() { PAUSE } else { TEND_EVERY })
    }

    fn tend_fd(&self) -> Option<BorrowedFd<'_>> {
        self.nic.as_ref()?.control_interrupt().map(borrow)
    }

    fn tend(&mut self) {
        if self.failed {
            return;
        }
        if self.recovery.is_none() {
            match self.reports() {
                Ok(None) => return,
                Ok(Some(reason)) => self.begin_recovery(&reason),
                Err(error) => {
                    let reason = told(&error);
                    self.fail(&reason);
                    return;
                }
            }
        }
        self.try_recovery();
    }
}

impl Drop for Sfc {
    /// Leaves the card as it was found: no queue, no filter, no driver.
    fn drop(&mut self) {
        let Some(mut nic) = self.nic.take() else { return };
        let pairs = match self.recovery.take() {
            Some(recovery) => Some(recovery.pairs),
            None => self.call_back(),
        };
        // Without the queues their end can't be waited for: what remains is freed by force.
        let mut pairs = pairs.unwrap_or_default();
        let stopped = nic.stop(&mut pairs).and_then(|()| nic.close());
        if let Err(error) = stopped {
            log::warn!("{}: {}", self.name, told(&error));
        }
    }
}

fn port_link(link: &sfc::mcdi::command::Link) -> Link {
    Link { up: link.up, speed_mbps: link.up.then_some(link.speed) }
}

/// A hash key that nobody outside can know.
fn key() -> rss::Key {
    let mut key = [0x6d; rss::KEY_BYTES];
    if let Err(error) = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut key)) {
        log::warn!("no random hash key: {error}");
    }
    key
}

#[expect(clippy::disallowed_methods, reason = "control waits for workers and between attempts")]
fn now() -> Instant {
    Instant::now()
}

/// An error and its causes, on one line.
fn told(error: &sfc::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The size of a packet buffer, by which `--buffers` counts.
const BUFFER: usize = 2048;
const TEND_EVERY: Duration = Duration::from_millis(500);
/// How long a worker has to come by. It polls every second at least.
const CALL_BACK_TIME: Duration = Duration::from_secs(5);
/// Between two attempts to recover: so long, then twice, three times …
const PAUSE: Duration = Duration::from_millis(100);
const ATTEMPTS: u32 = 10;

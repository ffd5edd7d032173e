//! A function of the card from opening to leave-taking (`spec/ef10.md` section 8).
//!
//! ```text
//!  open ──▶ probed ──start──▶ queues with the workers ──stop──▶ probed ──close──▶ gone
//!             ▲                        │
//!             └───────── recover ◀─────┘  the controller restarted, stopped answering, or a queue broke
//! ```
//!
//! [`Nic`] is the control half: it talks to the controller, makes and destroys queues, and reads event
//! queue 0, on which the controller reports. The queues that it makes belong to workers. Before they
//! are destroyed or made anew they have to be handed back: the card writes into their memory until
//! then.
//!
//! Virtual interfaces are used like this: 0 for the controller's events; for pair `k`, event queue
//! `1 + 2k` for the receive queue, `2 + 2k` for the transmit queue, both of which have the number `k`.

mod probe;
mod queues;
mod self_test;
mod statistics;

use std::time::Duration;

use packet::Pool;
use pci::{Bar, EventFd, PacketMemory, PciFunction};

pub use probe::Info;
pub use queues::{Notes, Pair, Settings};
pub use self_test::Check;
pub use statistics::Statistics;

use crate::clock::Clock;
use crate::device::Identity;
use crate::error::Error;
use crate::event::{Event, LinkChange, McEvent};
use crate::mcdi::Mcdi;
use crate::mcdi::command::{
    DrvAttach, EntityReset, FiniEvq, FiniRxq, FiniTxq, FreeVis, GetLink, Link, RemoveFilter,
    RssFree, VadaptorFree,
};
use queues::Started;

/// One function of the card: the control half.
#[derive(Debug)]
pub struct Nic {
    function: Box<dyn PciFunction>,
    bar: Bar,
    mcdi: Mcdi,
    info: Info,
    interrupts: Vec<EventFd>,
    started: Option<Started>,
    /// Nothing has been made since the card was told to forget everything.
    forgotten: bool,
}

/// What the controller reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The link went up or down.
    Link(LinkChange),
    /// The controller has restarted, or is about to: [`Nic::recover`].
    Restarted,
    /// A receive queue broke; its worker has been told by the same event.
    RxBroken(u16),
    /// A transmit queue broke.
    TxBroken(u16),
}

impl Nic {
    /// Opens a function: checks what it is, talks to its controller, frees whatever a driver before us
    /// left, and finds out what its firmware can do. No queue exists afterwards, no packet arrives.
    ///
    /// # Errors
    ///
    /// When it is no EF10 function, its controller does not answer, or its firmware lacks what the
    /// driver needs.
    pub fn open(mut function: Box<dyn PciFunction>, clock: Box<dyn Clock>) -> Result<Self, Error> {
        let (vendor, device) = function.ids()?;
        let identity = Identity::of(vendor, device).ok_or(Error::NotOurs { vendor, device })?;
        function.enable()?;
        let bar = function.bar(identity.bar())?;
        let window = bar.window(0, crate::registers::WINDOW_USED)?;
        let mut mcdi = Mcdi::open(&mut *function, window, clock)?;
        let info = probe::probe(&mut mcdi, identity)?;
        Ok(Self {
            function,
            bar,
            mcdi,
            info,
            interrupts: Vec::new(),
            started: None,
            forgotten: true,
        })
    }

    /// What was found out when the function was opened, or after its controller's last restart.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The function's address or socket.
    pub fn name(&self) -> &str {
        self.function.name()
    }

    /// Sets memory for packets aside that the card can reach. It stays for the life of the process.
    ///
    /// # Errors
    ///
    /// When there is none, or the card can't be shown it.
    pub fn packet_memory(
        &mut self,
        bytes: usize,
    ) -> Result<(&'static mut [u8], PacketMemory), Error> {
        Ok(self.function.dma(bytes, PAGE)?.into_packet_memory())
    }

    /// Makes queue pairs and lets packets in.
    ///
    /// # Errors
    ///
    /// When the settings are beyond the card or its controller refuses; what had been made by then is
    /// freed again.
    ///
    /// # Panics
    ///
    /// When the function has been started already.
    pub fn start(&mut self, settings: &Settings, memory: PacketMemory) -> Result<Vec<Pair>, Error> {
        assert!(self.started.is_none(), "queues are made once");
        settings.check()?;
        self.want_interrupts(settings)?;
        self.forgotten = false;
        let made = queues::start(self, settings, memory);
        if made.is_err() {
            self.forget();
        }
        let (started, pairs) = made?;
        self.started = Some(started);
        Ok(pairs)
    }

    /// What could not be had as asked for, when the queues were made.
    pub fn notes(&self) -> Notes {
        self.started.as_ref().map_or_else(Notes::default, |started| started.notes)
    }

    /// The interrupt of a pair, which its worker sleeps on. The same one for the life of the process.
    pub fn interrupt(&self, pair: usize) -> Option<&EventFd> {
        self.interrupts.get(pair + 1)
    }

    /// The interrupt that says that [`Nic::notices`] has something to read.
    pub fn control_interrupt(&self) -> Option<&EventFd> {
        self.interrupts.first()
    }

    /// Reads what the controller has reported, and looks whether it is still the one we know. Asks
    /// for the next interrupt.
    ///
    /// # Errors
    ///
    /// [`Error::Removed`] when the card is gone. A restart is a notice.
    pub fn notices(&mut self) -> Result<Vec<Notice>, Error> {
        let mut notices = Vec::new();
        if let Some(interrupt) = self.interrupts.first() {
            // Not more than a count: what it announces is read below.
            drop(interrupt.read());
        }
        if let Some(started) = &mut self.started {
            // No more than the queue holds, so that this ends.
            for _ in 0..queues::CONTROL_EVENTS {
                let Some(raw) = started.control.take() else { break };
                notices.extend(notice(Event::decode(raw)));
            }
            started.control.arm();
        }
        match self.mcdi.check() {
            Ok(()) => {}
            Err(Error::Rebooted { .. }) => notices.push(Notice::Restarted),
            Err(error) => return Err(error),
        }
        Ok(notices)
    }

    /// Asks the controller for the state of the link.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn link(&mut self) -> Result<Link, Error> {
        self.mcdi.call(&GetLink)
    }

    /// Spreads packets over the pairs that the settings name from now on; answers whether the function
    /// has a say in that. Packets that are on their way arrive where they were meant to.
    ///
    /// # Errors
    ///
    /// When the settings name pairs that are not there, or the controller does not answer.
    pub fn spread(&mut self, settings: &Settings) -> Result<bool, Error> {
        queues::spread(self, settings)
    }

    /// The MAC's counters, as of at most a second or so ago; `None` when the card writes none.
    ///
    /// # Errors
    ///
    /// When the controller does not answer.
    pub fn statistics(&mut self) -> Result<Option<Statistics>, Error> {
        let Some(started) = &mut self.started else { return Ok(None) };
        let Some(buffer) = &mut started.statistics else { return Ok(None) };
        buffer.read(&mut self.mcdi)
    }

    /// Lets no more packets in, and destroys the queues, which the workers have handed back. Their
    /// buffers can be reclaimed afterwards, whether it answers an error or not.
    ///
    /// # Errors
    ///
    /// When a queue is not gone in time, or the controller does not answer; then everything is freed
    /// by force.
    pub fn stop(&mut self, pairs: &mut [Pair]) -> Result<(), Error> {
        // Its memory goes at the end: until it is torn down or forgotten, the card writes there.
        let Some(started) = self.started.take() else { return Ok(()) };
        let stopped = self.tear_down(&started, pairs);
        if stopped.is_err() && self.mcdi.call(&EntityReset).is_err() {
            self.stop_by_the_bus()?;
        }
        stopped
    }

    /// Nobody answers any more. A function that can't be reset is at least kept from memory.
    fn stop_by_the_bus(&mut self) -> Result<(), Error> {
        let reset = self.function.reset();
        if reset.is_err() {
            self.function.disable()?;
        }
        Ok(reset?)
    }

    /// Makes the card forget everything of the function at once, as the reference does on its way back.
    /// Whoever holds memory asks for it before letting go; the first one is enough.
    fn forget(&mut self) {
        if std::mem::replace(&mut self.forgotten, true) {
            return;
        }
        if self.mcdi.call(&EntityReset).is_err() && self.stop_by_the_bus().is_ok() {
            // A failure is told by what comes next.
            drop(self.function.enable());
        }
    }

    /// After a restart of the controller, its silence, or a broken queue: brings the function up again
    /// and makes all queues anew. The workers have handed the old ones back, and may reclaim their
    /// buffers afterwards.
    ///
    /// # Errors
    ///
    /// When that does not work out; it may be tried again, unless the card is gone.
    pub fn recover(
        &mut self,
        settings: &Settings,
        memory: PacketMemory,
    ) -> Result<Vec<Pair>, Error> {
        let silent = self.mcdi.is_dead();
        if silent || self.mcdi.restart().is_err() {
            self.function.reset()?;
            self.function.enable()?;
            self.mcdi.restart()?;
        }
        self.info = probe::probe(&mut self.mcdi, self.info.identity)?;
        // Only now the card has forgotten the memory of what was.
        self.started = None;
        self.start(settings, memory)
    }

    /// Takes leave of the card. The function has been stopped.
    ///
    /// # Errors
    ///
    /// When the controller does not answer; the function is then reset.
    pub fn close(mut self) -> Result<(), Error> {
        let left = self.mcdi.call(&DrvAttach { attach: false });
        if left.is_err() {
            self.function.reset()?;
        }
        self.function.disable()?;
        left.map(drop)
    }

    /// Asks for one interrupt for the control half and one per pair, once; without them the queues can
    /// only be polled.
    fn want_interrupts(&mut self, settings: &Settings) -> Result<(), Error> {
        if !self.interrupts.is_empty() {
            return Ok(());
        }
        match self.function.interrupts(settings.pairs as usize + 1) {
            Ok(interrupts) => self.interrupts = interrupts,
            Err(pci::Error::Interrupts { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The order of section 8.3 and 8.4.
    fn tear_down(&mut self, started: &Started, pairs: &mut [Pair]) -> Result<(), Error> {
        let Started { filters, rss, statistics, .. } = started;
        if let Some(buffer) = statistics {
            buffer.stop(&mut self.mcdi)?;
        }
        for &(filter, handle) in filters {
            self.mcdi.call(&RemoveFilter { filter, handle })?;
        }
        for (instance, _) in (0..).zip(&*pairs) {
            gone_is_fine(self.mcdi.call(&FiniRxq(instance)))?;
            gone_is_fine(self.mcdi.call(&FiniTxq(instance)))?;
        }
        self.wait_for_flushes(pairs)?;
        for (instance, _) in (0..).zip(&*pairs) {
            for queue in [queues::rx_events(instance), queues::tx_events(instance)] {
                gone_is_fine(self.mcdi.call(&FiniEvq(queue)))?;
            }
        }
        gone_is_fine(self.mcdi.call(&FiniEvq(0)))?;
        if let Some(context) = rss {
            self.mcdi.call(&RssFree(context.id))?;
        }
        // Allowed to have been refused when it was made.
        match self.mcdi.call(&VadaptorFree) {
            Err(error) if error.code().is_none() => return Err(error),
            _ => {}
        }
        gone_is_fine(self.mcdi.call(&FreeVis))
    }

    fn wait_for_flushes(&mut self, pairs: &mut [Pair]) -> Result<(), Error> {
        let deadline = self.mcdi.clock().now() + FLUSH_TIME;
        loop {
            let missing = (0..).zip(&mut *pairs).find_map(|(instance, pair)| {
                let queue = match (pair.rx.settle(), pair.tx.settle()) {
                    (true, true) => return None,
                    (false, _) => "receive",
                    (true, false) => "transmit",
                };
                Some(Error::NotFlushed { queue, instance, seconds: FLUSH_TIME.as_secs() })
            });
            let Some(error) = missing else { return Ok(()) };
            if self.mcdi.clock().now() >= deadline {
                return Err(error);
            }
            self.mcdi.clock().sleep(Duration::from_millis(1));
        }
    }
}

impl Pair {
    /// Gives all buffers back, once the card has been stopped.
    pub fn reclaim(&mut self, pool: &mut Pool) {
        self.rx.reclaim(pool);
        self.tx.reclaim(pool);
    }
}

/// What an event on queue 0 is worth reporting for.
fn notice(event: Event) -> Option<Notice> {
    Some(match event {
        Event::Mc(McEvent::LinkChange(change)) => Notice::Link(change),
        Event::Mc(McEvent::Reboot | McEvent::Assertion | McEvent::SelfTest) => Notice::Restarted,
        Event::Mc(McEvent::RxError { queue, .. }) => Notice::RxBroken(queue),
        Event::Mc(McEvent::TxError { queue, .. }) => Notice::TxBroken(queue),
        _ => return None,
    })
}

/// "Nothing there to free" is no failure of freeing it.
fn gone_is_fine(outcome: Result<(), Error>) -> Result<(), Error> {
    match outcome {
        Err(error) if error.is_gone() => Ok(()),
        outcome => outcome,
    }
}

const PAGE: usize = 4096;
const FLUSH_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;

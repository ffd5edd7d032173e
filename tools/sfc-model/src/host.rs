//! What the card has of the host: its memory, its interrupts, the time, and what it does wrong.

use std::fmt::{self, Debug};
use std::time::Duration;

use crate::memory::{DmaMap, Unmapped};
use crate::violation::{Rule, Violations};

/// Where interrupts go.
pub trait Interrupts: Send + Debug {
    /// Raises a vector of the function. One that is not set up is lost, as on the bus.
    fn raise(&mut self, vector: u32);
}

/// No interrupts: for drivers that poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn raise(&mut self, _vector: u32) {}
}

/// The host's side.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) dma: DmaMap,
    pub(crate) bus_master: bool,
    pub(crate) interrupts: Box<dyn Interrupts>,
    pub(crate) violations: Violations,
    /// Since the card was powered on; moves only between steps of the card.
    pub(crate) now: Duration,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self {
            dma: DmaMap::default(),
            bus_master: false,
            interrupts: Box::new(NoInterrupts),
            violations: Violations::default(),
            now: Duration::ZERO,
        }
    }

    pub(crate) fn violation(&mut self, rule: Rule, detail: impl fmt::Display) {
        self.violations.add(rule, detail);
    }

    /// Copies from the host; tells what it was for when it can't.
    pub(crate) fn read(&mut self, iova: u64, bytes: &mut [u8], what: &str) -> bool {
        let done = self.may_dma(what).map(|()| self.dma.read(iova, bytes));
        self.done(done, what)
    }

    /// Copies to the host.
    pub(crate) fn write(&mut self, iova: u64, bytes: &[u8], what: &str) -> bool {
        let done = self.may_dma(what).map(|()| self.dma.write(iova, bytes));
        self.done(done, what)
    }

    /// One 64-bit store, after everything written before.
    pub(crate) fn store_qword(&mut self, iova: u64, value: u64, what: &str) -> bool {
        let done = self.may_dma(what).map(|()| self.dma.store_qword(iova, value));
        self.done(done, what)
    }

    /// One 32-bit store, after everything written before.
    pub(crate) fn store_dword(&mut self, iova: u64, value: u32, what: &str) -> bool {
        let done = self.may_dma(what).map(|()| self.dma.store_dword(iova, value));
        self.done(done, what)
    }

    /// One 64-bit load.
    pub(crate) fn load_qword(&mut self, iova: u64, what: &str) -> Option<u64> {
        self.may_dma(what)?;
        match self.dma.load_qword(iova) {
            Ok(value) => Some(value),
            Err(unmapped) => {
                self.done(Some(Err(unmapped)), what);
                None
            }
        }
    }

    fn may_dma(&mut self, what: &str) -> Option<()> {
        if !self.bus_master {
            self.violation(Rule::BusMaster, what);
        }
        self.bus_master.then_some(())
    }

    fn done(&mut self, result: Option<Result<(), Unmapped>>, what: &str) -> bool {
        if let Some(Err(Unmapped(at))) = result {
            self.violation(Rule::Unmapped, format_args!("{what} at {at:#x}"));
        }
        matches!(result, Some(Ok(())))
    }
}

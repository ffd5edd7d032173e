//! The workers' halves of a card's queues.

use std::os::fd::BorrowedFd;

use packet::{Burst, Pool};
use pci::EventFd;

use super::exchange::{Held, Met};
use crate::sys::borrow;
use crate::{Armed, End, RxCounters, RxQueue, TxCounters, TxQueue};

/// A receive queue of the card.
#[derive(Debug)]
pub(super) struct SfcRx {
    held: Held<sfc::rx::RxQueue>,
    /// The same for the life of the port, through all recoveries.
    interrupt: Option<EventFd>,
    /// Of queues that are gone.
    before: RxCounters,
    end: Option<End>,
}

impl SfcRx {
    pub(super) fn new(held: Held<sfc::rx::RxQueue>, interrupt: Option<EventFd>) -> Self {
        Self { held, interrupt, before: RxCounters::default(), end: None }
    }

    #[cold]
    fn meet(&mut self, pool: &mut Pool) {
        let before = &mut self.before;
        let met = self.held.meet(pool, |queue| *before = sum(*before, rx(queue.counters())));
        if let Met::Failed(reason) = met {
            self.end = Some(End::Failed(reason));
        }
    }
}

impl RxQueue for SfcRx {
    fn rx_burst(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        if self.held.is_called() {
            self.meet(pool);
        }
        let Some(queue) = self.held.queue() else { return 0 };
        let count = queue.poll(burst, pool);
        if let Some(fault) = queue.end() {
            self.held.tell(|| fault.to_string());
        }
        count
    }

    fn arm(&mut self) -> Armed {
        let Some(interrupt) = &self.interrupt else { return Armed::Unsupported };
        // Before the queue is armed: what comes from here on is counted anew.
        drop(interrupt.read());
        if self.end.is_some() {
            return Armed::Sleep;
        }
        // Without a queue it is control's turn, which writes the descriptor when it has one.
        let Some(queue) = self.held.peek() else { return Armed::Sleep };
        if self.held.is_called() {
            return Armed::Pending;
        }
        queue.events().arm();
        if queue.is_pending() { Armed::Pending } else { Armed::Sleep }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.interrupt.as_ref().map(borrow)
    }

    fn counters(&self) -> RxCounters {
        let now = self.held.peek().map_or_else(RxCounters::default, |queue| rx(queue.counters()));
        sum(self.before, now)
    }

    fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }
}

/// A transmit queue of the card.
#[derive(Debug)]
pub(super) struct SfcTx {
    held: Held<sfc::tx::TxQueue>,
    before: TxCounters,
    /// Frames that came while there was no queue.
    homeless: u64,
}

impl SfcTx {
    pub(super) fn new(held: Held<sfc::tx::TxQueue>) -> Self {
        Self { held, before: TxCounters::default(), homeless: 0 }
    }

    #[cold]
    fn meet(&mut self, pool: &mut Pool) {
        let before = &mut self.before;
        // That there is no queue any more is the receive queue's to tell.
        let _: Met = self.held.meet(pool, |queue| *before = add(*before, tx(queue.counters())));
    }
}

impl TxQueue for SfcTx {
    fn tx_burst(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        if self.held.is_called() {
            self.meet(pool);
        }
        let Some(queue) = self.held.queue() else {
            // As on a wire without a link: lost, and counted.
            let count = burst.len();
            self.homeless += count as u64;
            burst.drain().for_each(|frame| pool.recycle(frame));
            return count;
        };
        let count = queue.send(burst, pool);
        if let Some(fault) = queue.end() {
            self.held.tell(|| fault.to_string());
        }
        count
    }

    fn reap(&mut self, pool: &mut Pool) {
        if self.held.is_called() {
            self.meet(pool);
        }
        if let Some(queue) = self.held.queue() {
            queue.reap(pool);
        }
    }

    fn counters(&self) -> TxCounters {
        let now = self.held.peek().map_or_else(TxCounters::default, |queue| tx(queue.counters()));
        let all = add(self.before, now);
        TxCounters { refused: all.refused + self.homeless, ..all }
    }
}

fn rx(counters: sfc::rx::RxCounters) -> RxCounters {
    RxCounters {
        frames: counters.frames,
        bytes: counters.bytes,
        no_buffer: counters.aborted,
        too_long: counters.truncated,
        malformed: counters.damaged + counters.bad_length,
        missed: 0,
    }
}

fn tx(counters: sfc::tx::TxCounters) -> TxCounters {
    TxCounters {
        frames: counters.frames - counters.lost,
        bytes: counters.bytes,
        refused: counters.refused + counters.lost,
        full: counters.full,
    }
}

fn sum(a: RxCounters, b: RxCounters) -> RxCounters {
    RxCounters {
        frames: a.frames + b.frames,
        bytes: a.bytes + b.bytes,
        no_buffer: a.no_buffer + b.no_buffer,
        too_long: a.too_long + b.too_long,
        malformed: a.malformed + b.malformed,
        missed: a.missed + b.missed,
    }
}

fn add(a: TxCounters, b: TxCounters) -> TxCounters {
    TxCounters {
        frames: a.frames + b.frames,
        bytes: a.bytes + b.bytes,
        refused: a.refused + b.refused,
        full: a.full + b.full,
    }
}

//! How a queue changes hands between control and its worker.
//!
//! A worker owns its queue and polls it without a lock. When the queue has to be made anew (the card's
//! controller restarted, a queue broke) or destroyed, control calls it back:
//!
//! ```text
//!   control                                worker, at its next burst
//!   call_back() ──── state: wanted ──────▶ puts the queue into the slot, polls nothing
//!   waits  ◀──────── state: parked ───────
//!   resets the card, makes queues
//!   hand_over() ──── state: offered ─────▶ reclaims the old queue's buffers, polls the new one
//!                    state: held
//! ```
//!
//! A worker that ends parks its queue too: the card writes into the queue's memory until control has
//! stopped it. On the way of a packet all this costs one load per burst.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use packet::Pool;

/// What changes hands.
pub(super) trait Queue: Send {
    /// Gives all buffers back; the card does not use them any more.
    fn reclaim(&mut self, pool: &mut Pool);
}

impl Queue for sfc::rx::RxQueue {
    fn reclaim(&mut self, pool: &mut Pool) {
        Self::reclaim(self, pool);
    }
}

impl Queue for sfc::tx::TxQueue {
    fn reclaim(&mut self, pool: &mut Pool) {
        Self::reclaim(self, pool);
    }
}

/// The place where control and worker meet.
#[derive(Debug)]
pub(super) struct Exchange<Q> {
    state: AtomicU8,
    slot: Mutex<Slot<Q>>,
    parked: Condvar,
}

#[derive(Debug)]
struct Slot<Q> {
    /// The queue that control called back, for control to take.
    parked: Option<Q>,
    /// The queue that replaces it, for the worker to take.
    new: Option<Q>,
    /// Queues that are no more, whose buffers the worker has to reclaim.
    spent: Vec<Q>,
    /// The worker has ended, or will never come by again.
    gone: bool,
    /// Why there will be no queue any more.
    failed: Option<String>,
    /// The worker found its queue broken, for this reason.
    broken: Option<String>,
}

impl<Q> Exchange<Q> {
    fn lock(&self) -> MutexGuard<'_, Slot<Q>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Control's end of an exchange.
#[derive(Debug)]
pub(super) struct Control<Q>(Arc<Exchange<Q>>);

impl<Q: Queue> Control<Q> {
    /// Calls the queue back; the worker parks it when it comes by.
    pub(super) fn call_back(&self) {
        let mut slot = self.0.lock();
        if let Some(queue) = slot.new.take() {
            // Offered, and not taken yet: the worker need not come by.
            slot.parked = Some(queue);
            self.0.state.store(PARKED, Ordering::Release);
        } else if slot.parked.is_none() {
            self.0.state.store(WANTED, Ordering::Release);
        }
    }

    /// Waits until the queue is parked, and takes it; `None` when the worker does not come by in time.
    pub(super) fn take(&self, limit: Duration) -> Option<Q> {
        let slot = self.0.lock();
        let waiting = |slot: &mut Slot<Q>| slot.parked.is_none() && !slot.gone;
        let waited = self.0.parked.wait_timeout_while(slot, limit, waiting);
        let (mut slot, _) = waited.unwrap_or_else(PoisonError::into_inner);
        slot.parked.take()
    }

    /// Hands a new queue over, and the old one for its buffers.
    pub(super) fn hand_over(&self, new: Q, old: Q) {
        let mut slot = self.0.lock();
        slot.broken = None;
        if slot.gone {
            // Nobody will take it: it waits for the end. The buffers of the old one are lost with it.
            slot.parked = Some(new);
            return;
        }
        slot.spent.push(old);
        slot.new = Some(new);
        self.0.state.store(OFFERED, Ordering::Release);
    }

    /// Tells the worker that no queue will come any more.
    pub(super) fn fail(&self, reason: &str) {
        self.0.lock().failed = Some(reason.to_owned());
        self.0.state.store(FAILED, Ordering::Release);
    }

    /// Why the worker found its queue broken, if it did.
    pub(super) fn broken(&self) -> Option<String> {
        self.0.lock().broken.clone()
    }
}

/// The worker's end of an exchange: the queue, while it has one.
#[derive(Debug)]
pub(super) struct Held<Q> {
    exchange: Arc<Exchange<Q>>,
    queue: Option<Q>,
    told: bool,
}

impl<Q: Queue> Held<Q> {
    /// Both ends, with the worker holding the queue.
    pub(super) fn new(queue: Q) -> (Self, Control<Q>) {
        let slot = Slot {
            parked: None,
            new: None,
            spent: Vec::new(),
            gone: false,
            failed: None,
            broken: None,
        };
        let exchange = Arc::new(Exchange {
            state: AtomicU8::new(HELD),
            slot: Mutex::new(slot),
            parked: Condvar::new(),
        });
        let control = Control(Arc::clone(&exchange));
        (Self { exchange, queue: Some(queue), told: false }, control)
    }

    /// Whether control wants something: [`Self::meet`] it.
    #[inline]
    pub(super) fn is_called(&self) -> bool {
        self.exchange.state.load(Ordering::Acquire) != HELD
    }

    /// The queue, while the worker has it.
    #[inline]
    pub(super) fn queue(&mut self) -> Option<&mut Q> {
        self.queue.as_mut()
    }

    /// As [`Self::queue`].
    pub(super) fn peek(&self) -> Option<&Q> {
        self.queue.as_ref()
    }

    /// Does what control wants. `leaving` sees the queue that goes, before it goes.
    #[cold]
    pub(super) fn meet(&mut self, pool: &mut Pool, leaving: impl FnOnce(&Q)) -> Met {
        let mut slot = self.exchange.lock();
        match self.exchange.state.load(Ordering::Acquire) {
            WANTED => {
                if let Some(queue) = self.queue.take() {
                    leaving(&queue);
                    slot.parked = Some(queue);
                }
                self.exchange.state.store(PARKED, Ordering::Release);
                self.exchange.parked.notify_all();
                Met::Parked
            }
            OFFERED => {
                slot.spent.drain(..).for_each(|mut old| old.reclaim(pool));
                self.queue = slot.new.take();
                self.told = false;
                self.exchange.state.store(HELD, Ordering::Release);
                Met::Replaced
            }
            FAILED => Met::Failed(slot.failed.clone().unwrap_or_default()),
            _ => Met::Parked,
        }
    }

    /// Tells control, once, that the queue is broken.
    #[cold]
    pub(super) fn tell(&mut self, reason: impl FnOnce() -> String) {
        if !self.told {
            self.told = true;
            self.exchange.lock().broken = Some(reason());
        }
    }
}

/// What came of a meeting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// The worker has no queue for now.
    Parked,
    /// The worker has a new queue.
    Replaced,
    /// There will be no queue any more, for this reason.
    Failed(String),
}

impl<Q> Drop for Held<Q> {
    fn drop(&mut self) {
        let mut slot = self.exchange.lock();
        slot.gone = true;
        // A queue that was offered and not taken is as much the card's as the one that was held.
        if let Some(queue) = self.queue.take().or_else(|| slot.new.take()) {
            slot.parked = Some(queue);
        }
        self.exchange.parked.notify_all();
    }
}

const HELD: u8 = 0;
const WANTED: u8 = 1;
const PARKED: u8 = 2;
const OFFERED: u8 = 3;
const FAILED: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue with a name and a buffer that it has to give back.
    #[derive(Debug)]
    struct Named(&'static str, Option<packet::Buffer>);

    impl Queue for Named {
        fn reclaim(&mut self, pool: &mut Pool) {
            pool.give(self.1.take().unwrap());
        }
    }

    fn now<Q: Queue>(control: &Control<Q>) -> Option<Q> {
        control.take(Duration::ZERO)
    }

    #[test]
    fn a_queue_is_called_back_and_replaced() {
        let mut pool = Pool::new(2, 64);
        let (mut held, control) = Held::new(Named("first", pool.take()));
        assert!(!held.is_called());
        control.call_back();
        assert!(held.is_called() && now(&control).is_none(), "not before the worker comes by");
        let mut left = None;
        assert_eq!(held.meet(&mut pool, |queue| left = Some(queue.0)), Met::Parked);
        assert_eq!(left, Some("first"));
        assert!(held.queue().is_none());
        let old = now(&control).unwrap();
        control.hand_over(Named("second", pool.take()), old);
        assert!(held.is_called() && pool.available() == 0);
        assert_eq!(held.meet(&mut pool, |_| ()), Met::Replaced);
        assert_eq!((held.queue().unwrap().0, pool.available()), ("second", 1));
        assert!(!held.is_called());
    }

    #[test]
    fn a_worker_that_ends_leaves_its_queue() {
        let (held, control) = Held::new(Named("first", None));
        drop(held);
        let old = now(&control).unwrap();
        assert_eq!(old.0, "first");
        control.hand_over(Named("second", None), old);
        control.call_back();
        assert_eq!(now(&control).unwrap().0, "second");
    }

    #[test]
    fn a_worker_that_ends_leaves_what_it_was_offered() {
        let mut pool = Pool::new(1, 64);
        let (mut held, control) = Held::new(Named("first", None));
        control.call_back();
        held.meet(&mut pool, |_| ());
        let old = now(&control).unwrap();
        control.hand_over(Named("second", None), old);
        drop(held);
        assert_eq!(now(&control).unwrap().0, "second");
    }

    #[test]
    fn what_was_offered_can_be_called_back_before_it_is_taken() {
        let mut pool = Pool::new(3, 64);
        let (mut held, control) = Held::new(Named("first", pool.take()));
        control.call_back();
        held.meet(&mut pool, |_| ());
        let first = now(&control).unwrap();
        control.hand_over(Named("second", pool.take()), first);
        control.call_back();
        let second = now(&control).unwrap();
        assert_eq!(second.0, "second", "without the worker");
        assert_eq!(held.meet(&mut pool, |_| ()), Met::Parked);
        control.hand_over(Named("third", pool.take()), second);
        assert_eq!(held.meet(&mut pool, |_| ()), Met::Replaced);
        assert_eq!((held.queue().unwrap().0, pool.available()), ("third", 2));
    }

    #[test]
    fn a_broken_queue_is_told_once_and_a_failure_is_final() {
        let mut pool = Pool::new(1, 64);
        let (mut held, control) = Held::new(Named("first", None));
        assert_eq!(control.broken(), None);
        held.tell(|| "label".to_owned());
        held.tell(|| panic!("told already"));
        assert_eq!(control.broken().as_deref(), Some("label"));
        control.fail("gone");
        assert_eq!(held.meet(&mut pool, |_| ()), Met::Failed("gone".to_owned()));
    }

    #[test]
    fn control_waits_for_a_worker_on_another_thread() {
        let (mut held, control) = Held::new(Named("first", None));
        control.call_back();
        let worker = std::thread::spawn(move || {
            let mut pool = Pool::new(1, 64);
            while !held.is_called() {
                std::hint::spin_loop();
            }
            held.meet(&mut pool, |_| ());
            held
        });
        assert_eq!(control.take(Duration::from_secs(10)).unwrap().0, "first");
        assert!(worker.join().unwrap().queue().is_none());
    }
}

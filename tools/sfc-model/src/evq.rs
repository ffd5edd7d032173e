//! Event queues (section 5): rings that the card writes, and when it interrupts.

use std::time::Duration;

use crate::event;
use crate::host::Host;
use crate::ring::Ring;
use crate::violation::Rule;

const EMPTY: u64 = u64::MAX;

/// Who is told of new events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// An interrupt vector.
    Vector(u32),
    /// Another event queue, by a wake-up event.
    Queue(usize),
}

/// An event queue.
#[derive(Debug)]
pub(crate) struct Evq {
    pub(crate) ring: Ring,
    pub(crate) target: Target,
    pub(crate) rx_merge: bool,
    pub(crate) tx_merge: bool,
    pub(crate) written: u64,
    released: u64,
    armed: bool,
    /// A fault on request wrote over everything: what the host does about it is no breach.
    flooded: bool,
    /// Least time between two notifications.
    pub(crate) hold_off: Duration,
    quiet_until: Duration,
}

impl Evq {
    pub(crate) fn new(ring: Ring, target: Target, rx_merge: bool, tx_merge: bool) -> Self {
        Self {
            ring,
            target,
            rx_merge,
            tx_merge,
            written: 0,
            released: 0,
            armed: false,
            flooded: false,
            hold_off: Duration::ZERO,
            quiet_until: Duration::ZERO,
        }
    }

    /// Writes an event. A slot that was not cleared is overwritten, as on the card (5.1).
    pub(crate) fn post(&mut self, host: &mut Host, event: u64) {
        let at = self.ring.address(self.written);
        let taken = host.load_qword(at, "an event ring").is_some_and(|old| old != EMPTY);
        if taken && !self.flooded {
            host.violation(Rule::EventOverflow, format_args!("event {}", self.written));
        }
        host.store_qword(at, event, "an event ring");
        self.written += 1;
    }

    /// Writes an event over the whole ring.
    pub(crate) fn flood(&mut self, host: &mut Host, event: u64) {
        self.flooded = true;
        for _ in 0..self.ring.entries() {
            self.post(host, event);
        }
    }

    /// Whether somebody is to be told now; disarms.
    pub(crate) fn due(&mut self, now: Duration) -> bool {
        let due = self.armed && self.written > self.released && now >= self.quiet_until;
        if due {
            self.armed = false;
            self.quiet_until = now + self.hold_off;
        }
        due
    }

    /// The host gives entries back and wants to be told of the next ones (5.7).
    pub(crate) fn release(&mut self, host: &mut Host, pointer: u32, instance: usize) {
        let size = self.ring.entries();
        if pointer >> 15 != 0 || u64::from(pointer) >= size {
            host.violation(
                Rule::PastRing,
                format_args!("read pointer {pointer:#x} of EVQ {instance}"),
            );
            return;
        }
        let behind = self.written.wrapping_sub(u64::from(pointer)) & (size - 1);
        // With a ring that is full to the last entry, the pointer alone does not tell.
        let Some(pointer) = self.written.checked_sub(behind).filter(|&at| at >= self.released)
        else {
            host.violation(Rule::EventNotWritten, format_args!("read pointer of EVQ {instance}"));
            return;
        };
        let looked_at = if self.flooded { pointer } else { self.released };
        for entry in looked_at.max(self.written.saturating_sub(size))..pointer {
            if host
                .load_qword(self.ring.address(entry), "an event ring")
                .is_some_and(|old| old != EMPTY)
            {
                host.violation(
                    Rule::EventNotCleared,
                    format_args!("entry {entry} of EVQ {instance}"),
                );
                break;
            }
        }
        self.released = pointer;
        self.armed = true;
    }

    /// Whether the ring is all ones.
    pub(crate) fn is_blank(&self, host: &mut Host) -> bool {
        let mut entries = [0; 64];
        let mut at = 0;
        while at < self.ring.entries() {
            let Some(len) = self.ring.load(host, at, &mut entries, "an event ring") else {
                return true;
            };
            if entries[..len].iter().any(|&entry| entry != EMPTY) {
                return false;
            }
            at += crate::bits::number(len);
        }
        true
    }
}

/// The event queues of the function.
#[derive(Debug, Default)]
pub(crate) struct Evqs(Vec<Option<Evq>>);

impl Evqs {
    pub(crate) fn new(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    pub(crate) fn get(&mut self, instance: usize) -> Option<&mut Evq> {
        self.0.get_mut(instance)?.as_mut()
    }

    pub(crate) fn put(&mut self, instance: usize, evq: Evq) {
        self.0[instance] = Some(evq);
    }

    pub(crate) fn take(&mut self, instance: usize) -> Option<Evq> {
        self.0.get_mut(instance)?.take()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Evq> {
        self.0.iter().flatten()
    }

    /// Posts an event, if the queue exists.
    pub(crate) fn post(&mut self, host: &mut Host, instance: usize, event: u64) {
        if let Some(evq) = self.get(instance) {
            evq.post(host, event);
        }
    }

    /// Interrupts and wake-ups that are due.
    pub(crate) fn notify(&mut self, host: &mut Host) {
        for instance in 0..self.0.len() {
            let now = host.now;
            let Some(evq) = self.get(instance) else { continue };
            if !evq.due(now) {
                continue;
            }
            match evq.target {
                Target::Vector(vector) => host.interrupts.raise(vector),
                Target::Queue(other) => {
                    let wake_up = event::driver(event::WAKE_UP, crate::bits::number(instance));
                    self.post(host, other, wake_up);
                    // The other queue may come before this one.
                    if let Some(other) = self.get(other)
                        && other.due(now)
                        && let Target::Vector(vector) = other.target
                    {
                        host.interrupts.raise(vector);
                    }
                }
            }
        }
    }
}

//! A transmit queue: frames become descriptors, completions give them back.
//!
//! Life: the first descriptor is an option that does nothing, pushed with its doorbell (7.5); then
//! [`TxQueue::send`] writes the descriptors of as many frames as fit, with one doorbell at the end, and
//! [`TxQueue::reap`] reads completions. A card that answers nonsense, or reports an error, ends the
//! queue ([`TxQueue::end`]); control makes it anew.
//!
//! Who owns what: a frame that was sent stays here, unread and untouched, until the card has completed
//! its last descriptor; then its buffers go to the pool.
//!
//! ```text
//!        removed                      added
//!           │ option │ A │ A │ B │ C … │
//!   ────────┴────────┴───┴───┴───┴─────┴──── at most `entries - HEADROOM` between the two
//!                          frame A is kept in the slot of its last descriptor
//! ```

use packet::{Burst, Frame, Pool};
use pci::{DmaRing, PacketMemory, Register, WriteOnly, acquire_from_device, release_to_device};

use super::descriptor::{self, ChecksumOption, MAX_BYTES};
use super::plan::{Plan, Source};
use super::{TxCounters, TxFault};
use crate::event::{Event, McEvent, TxEvent};
use crate::evq::EventQueue;

/// What a transmit queue is made of and how it behaves.
#[derive(Debug)]
pub struct TxParts {
    /// Its event queue, which serves no other queue.
    pub events: EventQueue,
    /// Its descriptors.
    pub ring: DmaRing<u64>,
    /// Its write pointer.
    pub doorbell: Register<u32, WriteOnly>,
    /// Where the first descriptor is pushed, then the write pointer behind it.
    pub push: [Register<u64, WriteOnly>; 2],
    /// Where all buffers come from.
    pub memory: PacketMemory,
    /// The label in its events.
    pub label: u8,
    /// The card cuts super-packets.
    pub tso: bool,
}

/// A transmit queue. Owned by one worker.
#[derive(Debug)]
pub struct TxQueue {
    parts: TxParts,
    in_flight: Box<[Option<Frame>]>,
    /// The slots of the last descriptors of the frames of one call.
    slots: Vec<u32>,
    added: u32,
    removed: u32,
    option: ChecksumOption,
    counters: TxCounters,
    end: Option<TxFault>,
    flushed: bool,
}

impl TxQueue {
    /// Makes the queue and pushes its first descriptor, which sets no option and flushes what a driver
    /// before us may have left half written (7.5).
    ///
    /// # Panics
    ///
    /// When the ring has no more entries than are left unused.
    pub fn new(mut parts: TxParts) -> Self {
        let entries = parts.ring.entries();
        assert!(entries > HEADROOM, "a transmit ring of {entries} entries");
        let option = ChecksumOption::default();
        parts.ring.write(0, option.encode());
        release_to_device();
        parts.push[0].write(option.encode());
        parts.push[1].write(1);
        Self {
            in_flight: (0..entries).map(|_| None).collect(),
            slots: Vec::with_capacity(SLOTS),
            added: 1,
            removed: 0,
            option,
            counters: TxCounters { doorbells: 1, ..TxCounters::default() },
            end: None,
            flushed: false,
            parts,
        }
    }

    /// Sends frames from the front of the burst as far as the ring has room; answers how many left the
    /// burst. Frames that can never be sent leave it too, and are counted. One doorbell at most.
    ///
    /// Once the queue has ended, every frame is refused.
    pub fn send(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        self.slots.clear();
        let before = self.added;
        let mut full = false;
        for frame in burst.frames_mut().iter_mut().take(SLOTS) {
            let Some(slot) = self.write(frame) else {
                full = true;
                break;
            };
            self.slots.push(slot);
        }
        self.counters.full += u64::from(full);
        if self.added != before {
            // The descriptors before the doorbell.
            release_to_device();
            self.parts.doorbell.write(self.added & self.parts.ring.mask());
            self.counters.doorbells += 1;
        }
        let left = self.slots.len();
        for (frame, &slot) in burst.drain_front(left).zip(&self.slots) {
            if slot == REFUSED {
                pool.recycle(frame);
            } else {
                self.in_flight[slot as usize] = Some(frame);
            }
        }
        left
    }

    /// Gives the buffers of completed frames back.
    pub fn reap(&mut self, pool: &mut Pool) {
        while self.end.is_none() {
            let Some(raw) = self.parts.events.take() else { break };
            match Event::decode(raw) {
                Event::Tx(event) => self.completion(event, pool),
                other => self.other(other),
            }
        }
    }

    /// The counters.
    pub fn counters(&self) -> TxCounters {
        self.counters
    }

    /// Why the queue sends no more frames, once that is so.
    pub fn end(&self) -> Option<TxFault> {
        self.end
    }

    /// How many descriptors are with the card.
    pub fn outstanding(&self) -> u32 {
        self.added.wrapping_sub(self.removed)
    }

    /// Reads events without giving frames back, while the queue is being torn down; answers whether the
    /// card has said that the queue is gone.
    pub fn settle(&mut self) -> bool {
        while let Some(raw) = self.parts.events.take() {
            self.other(Event::decode(raw));
        }
        self.flushed
    }

    /// Gives all frames back. The card must not use them any more: the queue is flushed, or the
    /// function has been reset or has restarted.
    pub fn reclaim(&mut self, pool: &mut Pool) {
        acquire_from_device();
        for frame in self.in_flight.iter_mut().filter_map(Option::take) {
            self.counters.lost += 1;
            pool.recycle(frame);
        }
        self.removed = self.added;
        self.flushed = true;
    }

    /// Writes a frame's descriptors; the slot of the last one, or [`REFUSED`], or `None` when there is
    /// no room.
    #[inline]
    fn write(&mut self, frame: &mut Frame) -> Option<u32> {
        if self.end.is_some() || self.flushed {
            self.counters.refused += 1;
            return Some(REFUSED);
        }
        // Addresses first: planning a frame changes its headers.
        let known = frame.pieces().all(|piece| self.parts.memory.iova_of(piece).is_some());
        let plan = if known { Plan::of(frame, self.parts.tso).ok() } else { None };
        let Some((plan, source)) = plan else {
            self.counters.refused += 1;
            return Some(REFUSED);
        };
        let option = ChecksumOption { ip: false, transport: plan.checksum };
        let room = self.parts.ring.entries() - HEADROOM;
        let needed = plan.descriptors(option != self.option);
        if needed > room {
            self.counters.refused += 1;
            return Some(REFUSED);
        }
        if needed > room - self.outstanding().min(room) {
            return None;
        }
        if option != self.option {
            self.option = option;
            self.post(option.encode());
        }
        self.count(frame, plan, source);
        let mut left = frame.len();
        let head = match plan.tso {
            Some((tso, header)) => {
                tso.encode().into_iter().for_each(|word| self.post(word));
                let (header, rest) = frame.head().split_at(header.into());
                self.data(header, &mut left);
                rest
            }
            None => frame.head(),
        };
        self.data(head, &mut left);
        for piece in frame.tail() {
            self.data(piece.bytes(), &mut left);
        }
        Some(self.added.wrapping_sub(1) & self.parts.ring.mask())
    }

    /// Descriptors for a stretch of a frame's bytes, of which `left` are still to come.
    #[inline]
    fn data(&mut self, bytes: &[u8], left: &mut usize) {
        for chunk in bytes.chunks(MAX_BYTES.into()) {
            *left -= chunk.len();
            let address = self.parts.memory.iova_of(chunk).expect("looked up before").get();
            let len = u16::try_from(chunk.len()).expect("no longer than MAX_BYTES");
            self.post(descriptor::data(address, len, *left > 0));
        }
    }

    #[inline]
    fn post(&mut self, word: u64) {
        self.parts.ring.write(self.added, word);
        self.added = self.added.wrapping_add(1);
    }

    #[inline]
    fn count(&mut self, frame: &Frame, plan: Plan, source: Source) {
        self.counters.frames += 1;
        self.counters.bytes += frame.len() as u64;
        self.counters.segmented += u64::from(plan.tso.is_some());
        match source {
            Source::Sender => {}
            Source::Card => self.counters.card_checksums += 1,
            Source::Software => self.counters.software_checksums += 1,
        }
    }

    /// All descriptors up to the one named are complete (5.4).
    #[inline]
    fn completion(&mut self, event: TxEvent, pool: &mut Pool) {
        if event.is_internal() {
            self.counters.other_events += 1;
            return;
        }
        if event.label() != self.parts.label {
            self.end = Some(TxFault::Label);
            return;
        }
        let mask = self.parts.ring.mask();
        let count = (u32::from(event.descriptor()).wrapping_sub(self.removed) & mask) + 1;
        if count > self.outstanding() {
            self.end = Some(TxFault::NeverPosted);
            return;
        }
        for _ in 0..count {
            let slot = (self.removed & mask) as usize;
            self.removed = self.removed.wrapping_add(1);
            if let Some(frame) = self.in_flight[slot].take() {
                pool.recycle(frame);
            }
        }
    }

    /// Events that are no completion.
    #[cold]
    fn other(&mut self, event: Event) {
        match event {
            Event::Mc(McEvent::TxFlushed { copy: false, .. }) => self.flushed = true,
            Event::Mc(McEvent::TxError { kind, .. }) => self.end = Some(TxFault::Reported(kind)),
            // The queue's own start-up event, and whatever newer firmware has to say.
            _ => self.counters.other_events += 1,
        }
    }
}

/// Descriptors that are never used: the ring is not filled completely, so that a completion's index
/// is never ambiguous.
const HEADROOM: u32 = 16;
/// Frames of one call at most.
const SLOTS: usize = 256;
/// No slot: the frame was not written.
const REFUSED: u32 = u32::MAX;

#[cfg(test)]
mod tests;

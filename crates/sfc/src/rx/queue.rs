//! A receive queue: events become frames, empty buffers become descriptors.
//!
//! Life: [`RxQueue::poll`] reads events; each names descriptors that are complete, whose buffers are
//! taken back from the card and become frames (or go back to the pool, counted, when the card says that
//! they are damaged or says what cannot be); then empty buffers from the pool are posted, with one
//! doorbell. A card that answers nonsense ends the queue ([`RxQueue::end`]); control resets it.
//!
//! Who owns what: a posted buffer is the card's, kept here as a [`Posted`] without any reference to its
//! bytes. A frame is the caller's. A packet in several descriptors is kept here until its last one.

use std::num::NonZeroU32;

use packet::{Buffer, Burst, Frame, Piece, Pool};
use pci::{DmaRing, PacketMemory, Posted, Register, WriteOnly, release_to_device};

use super::completion::{Completed, Modes, Progress};
use super::prefix::{self, Prefix};
use super::{RxCounters, RxFault, descriptor};
use crate::event::{ChecksumRules, Event, McEvent, RxEvent};
use crate::evq::EventQueue;

/// What a receive queue is made of and how it behaves.
#[derive(Debug)]
pub struct RxParts {
    /// Its event queue, which serves no other queue.
    pub events: EventQueue,
    /// Its descriptors.
    pub ring: DmaRing<u64>,
    /// Its write pointer.
    pub doorbell: Register<u32, WriteOnly>,
    /// Where all buffers come from.
    pub memory: PacketMemory,
    /// What its events depend on.
    pub modes: Modes,
    /// How checksum bits are read.
    pub checksums: ChecksumRules,
    /// Prefixes hold a hash.
    pub hashed: bool,
    /// The card pads its writes to a multiple of this many bytes, a power of two.
    pub padding: u16,
}

/// A receive queue. Owned by one worker.
#[derive(Debug)]
pub struct RxQueue {
    parts: RxParts,
    posted: Box<[Option<Posted>]>,
    progress: Progress,
    /// Packets of the last merged completion that are still to be handed out.
    merged: Merged,
    partial: Option<Partial>,
    counters: RxCounters,
    end: Option<RxFault>,
    flushed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Merged {
    event: RxEvent,
    left: u8,
}

/// A packet whose last descriptor has not come.
#[derive(Debug)]
struct Partial {
    frame: Frame,
    prefix: Option<Prefix>,
    damaged: bool,
    bad_length: bool,
}

impl RxQueue {
    /// A queue without buffers: the first poll posts them.
    ///
    /// # Panics
    ///
    /// When the padding is not a power of two.
    pub fn new(parts: RxParts) -> Self {
        assert!(parts.padding.is_power_of_two(), "padding is to an alignment");
        let posted = (0..parts.ring.entries()).map(|_| None).collect();
        Self {
            parts,
            posted,
            progress: Progress::default(),
            merged: Merged { event: RxEvent::new(0), left: 0 },
            partial: None,
            counters: RxCounters::default(),
            end: None,
            flushed: false,
        }
    }

    /// Adds what has arrived to the burst, as far as it has room, and posts empty buffers; answers how
    /// many frames it added. Never waits.
    pub fn poll(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        let before = burst.len();
        while burst.room() > 0 && self.end.is_none() {
            if self.merged.left > 0 {
                self.merged.left -= 1;
                self.merged_packet(burst, pool);
                continue;
            }
            let Some(raw) = self.parts.events.take() else { break };
            match Event::decode(raw) {
                Event::Rx(event) => self.completion(event, burst, pool),
                other => self.other(other),
            }
        }
        self.refill(pool);
        burst.len() - before
    }

    /// Posts empty buffers when a batch of descriptors is free, with one doorbell.
    pub fn refill(&mut self, pool: &mut Pool) {
        // Never completely full (6.1); the write pointer moves in eights (6.2).
        let target = self.parts.ring.entries() - HEADROOM;
        let free =
            target.saturating_sub(self.progress.added().wrapping_sub(self.progress.removed()));
        if free < BATCH || self.end.is_some() || self.flushed {
            return;
        }
        for _ in 0..free & !7 {
            let Some(buffer) = pool.take() else {
                self.counters.starved += 1;
                break;
            };
            if !self.post(buffer, pool) {
                break;
            }
        }
        if let Some(pointer) = self.progress.publish(self.parts.ring.mask()) {
            // The descriptors before the doorbell.
            release_to_device();
            self.parts.doorbell.write(pointer);
        }
    }

    /// The counters.
    pub fn counters(&self) -> RxCounters {
        self.counters
    }

    /// Why the queue gives no more frames, once that is so.
    pub fn end(&self) -> Option<RxFault> {
        self.end
    }

    /// Whether the card has said that the queue is gone.
    pub fn is_flushed(&self) -> bool {
        self.flushed
    }

    /// Reads events without handing out frames, while the queue is being torn down; answers whether the
    /// card has said that the queue is gone.
    pub fn settle(&mut self) -> bool {
        while let Some(raw) = self.parts.events.take() {
            self.other(Event::decode(raw));
        }
        self.flushed
    }

    /// Whether a poll would find something to do: packets of a merged completion, or an event.
    pub fn is_pending(&self) -> bool {
        self.merged.left > 0 || self.parts.events.is_pending()
    }

    /// Its event queue, for arming its interrupt.
    pub fn events(&self) -> &EventQueue {
        &self.parts.events
    }

    /// Gives all buffers back. The card must not use them any more: the queue is flushed, or the
    /// function has been reset or has restarted.
    pub fn reclaim(&mut self, pool: &mut Pool) {
        pci::acquire_from_device();
        self.merged.left = 0;
        if let Some(partial) = self.partial.take() {
            pool.recycle(partial.frame);
        }
        for posted in self.posted.iter_mut().filter_map(Option::take) {
            pool.give(Buffer::new(posted.take_back()));
        }
        self.flushed = true;
    }

    /// Writes one descriptor; `false`, with the buffer back in the pool, when it cannot be used.
    #[inline]
    fn post(&mut self, buffer: Buffer, pool: &mut Pool) -> bool {
        let posted = match self.parts.memory.post(buffer.into_memory()) {
            Ok(posted) => posted,
            Err(bytes) => {
                self.counters.foreign += 1;
                pool.give(Buffer::new(bytes));
                return false;
            }
        };
        let usable = self.usable(&posted);
        if usable < MIN_BUFFER {
            self.counters.foreign += 1;
            pool.give(Buffer::new(posted.take_back()));
            return false;
        }
        let index = self.progress.added();
        self.parts.ring.write(index, descriptor::encode(posted.iova().get(), usable));
        let slot = self.slot(index);
        self.posted[slot] = Some(posted);
        self.progress.add();
        true
    }

    #[inline]
    fn usable(&self, posted: &Posted) -> u16 {
        descriptor::usable_bytes(posted.iova().get(), posted.len(), self.parts.padding)
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        (index & self.parts.ring.mask()) as usize
    }

    /// Takes the oldest buffer back from the card, with how many bytes the card was told of.
    #[inline]
    fn take(&mut self) -> (Buffer, u16) {
        let slot = self.slot(self.progress.removed());
        self.progress.remove();
        let posted = self.posted[slot].take().expect("what was published is posted");
        let usable = self.usable(&posted);
        (Buffer::new(posted.take_back()), usable)
    }

    #[inline]
    fn completion(&mut self, event: RxEvent, burst: &mut Burst, pool: &mut Pool) {
        if event.is_internal() {
            self.counters.other_events += 1;
            return;
        }
        match self.progress.completed(event, self.parts.modes) {
            Ok(Completed::Single) => self.single(event, burst, pool),
            Ok(Completed::Merged { packets }) => self.merged = Merged { event, left: packets },
            Ok(Completed::Fragment { first: true }) => self.first_fragment(event),
            Ok(Completed::Fragment { first: false }) => self.next_fragment(event, pool),
            Ok(Completed::LastFragment) => {
                self.next_fragment(event, pool);
                self.finish(event, burst, pool);
            }
            Ok(Completed::Abort) => self.abort(pool),
            Err(fault) => self.end = Some(fault),
        }
    }

    /// A packet in one descriptor, its length in the event.
    #[inline]
    fn single(&mut self, event: RxEvent, burst: &mut Burst, pool: &mut Pool) {
        let (buffer, usable) = self.take();
        if event.continues() {
            // With scatter off: cut to the buffer.
            self.counters.truncated += 1;
            pool.give(buffer);
        } else if event.bytes() > usable {
            self.counters.bad_length += 1;
            pool.give(buffer);
        } else {
            self.deliver(event, buffer, event.bytes().saturating_sub(prefix::BYTES), burst, pool);
        }
    }

    /// A packet of a merged completion, its length in its prefix.
    #[inline]
    fn merged_packet(&mut self, burst: &mut Burst, pool: &mut Pool) {
        let (buffer, usable) = self.take();
        let len = Prefix::parse(buffer.bytes()).map_or(0, |prefix| prefix.len);
        if len > usable - prefix::BYTES {
            self.counters.bad_length += 1;
            pool.give(buffer);
        } else {
            self.deliver(self.merged.event, buffer, len, burst, pool);
        }
    }

    /// A frame of `len` bytes behind the prefix, into the burst.
    #[inline]
    fn deliver(
        &mut self,
        event: RxEvent,
        buffer: Buffer,
        len: u16,
        burst: &mut Burst,
        pool: &mut Pool,
    ) {
        if event.is_damaged() {
            self.counters.damaged += 1;
            pool.give(buffer);
        } else if len < MIN_FRAME {
            self.counters.bad_length += 1;
            pool.give(buffer);
        } else {
            let prefix = Prefix::parse(buffer.bytes());
            let mut frame = Frame::new(buffer, prefix::BYTES, len);
            self.describe(&mut frame, event, prefix);
            self.counters.frames += 1;
            self.counters.bytes += u64::from(len);
            burst.push(frame);
        }
    }

    #[inline]
    fn describe(&self, frame: &mut Frame, event: RxEvent, prefix: Option<Prefix>) {
        frame.meta.checksum = self.parts.checksums.verdict(event);
        if self.parts.hashed && event.is_hashed() {
            frame.meta.hash = prefix.and_then(|prefix| NonZeroU32::new(prefix.hash));
        }
    }

    fn first_fragment(&mut self, event: RxEvent) {
        let (buffer, usable) = self.take();
        let len = event.bytes().saturating_sub(prefix::BYTES);
        let bad_length = event.bytes() > usable || len < MIN_FRAME;
        let prefix = Prefix::parse(buffer.bytes());
        let frame = Frame::new(buffer, prefix::BYTES, if bad_length { 0 } else { len });
        self.partial = Some(Partial { frame, prefix, damaged: event.is_damaged(), bad_length });
    }

    fn next_fragment(&mut self, event: RxEvent, pool: &mut Pool) {
        let (buffer, usable) = self.take();
        let partial = self.partial.as_mut().expect("a first fragment came before");
        let bad_length = event.bytes() > usable || event.bytes() == 0;
        partial.damaged |= event.is_damaged();
        partial.bad_length |= bad_length;
        let len = if bad_length { 0 } else { event.bytes() };
        partial.frame.push_piece(Piece::new(buffer, 0, len), pool);
    }

    fn finish(&mut self, event: RxEvent, burst: &mut Burst, pool: &mut Pool) {
        let Some(partial) = self.partial.take() else { return };
        let mut frame = partial.frame;
        if partial.damaged {
            self.counters.damaged += 1;
            pool.recycle(frame);
        } else if partial.bad_length {
            self.counters.bad_length += 1;
            pool.recycle(frame);
        } else {
            // The verdict is the last event's, the hash stands in front of the first piece.
            self.describe(&mut frame, event, partial.prefix);
            self.counters.frames += 1;
            self.counters.bytes += frame.len() as u64;
            burst.push(frame);
        }
    }

    #[cold]
    fn abort(&mut self, pool: &mut Pool) {
        self.counters.aborted += 1;
        if let Some(partial) = self.partial.take() {
            pool.recycle(partial.frame);
        }
    }

    /// Events that are no completion.
    #[cold]
    fn other(&mut self, event: Event) {
        match event {
            Event::Mc(McEvent::RxFlushed { copy: false, .. }) => self.flushed = true,
            Event::Mc(McEvent::RxError { kind, .. }) => self.end = Some(RxFault::Reported(kind)),
            // The queue's own start-up event, and whatever newer firmware has to say.
            _ => self.counters.other_events += 1,
        }
    }
}

/// Descriptors that are never posted: the ring is not filled completely.
const HEADROOM: u32 = 16;
/// How many descriptors have to be free before any are posted.
const BATCH: u32 = 32;
/// A buffer of less use than this is none.
const MIN_BUFFER: u16 = prefix::BYTES + 64;
/// The Ethernet header.
const MIN_FRAME: u16 = 14;

#[cfg(test)]
mod tests;

//! The device side of a split virtqueue (virtio 2.7) over cached, checked pointers.
//!
//! Life of a ring: the guest sets it up, [`SplitRing::new`] checks size, alignment and place of its
//! three structures and keeps where they are; then, burst by burst,
//!
//! 1. [`available`](SplitRing::available) reads the guest's index once;
//! 2. [`chain`](SplitRing::chain) checks the n-th chain and makes its buffers the ones to
//!    [`write`](SplitRing::write) to or [`read`](SplitRing::read) from;
//! 3. [`give_back`](SplitRing::give_back) writes a used element, which the guest does not see yet;
//! 4. [`publish`](SplitRing::publish) lets the guest see all of them, with one store;
//! 5. [`notify`](SplitRing::notify) calls the guest, if it wants to be called.
//!
//! ```text
//!                next_avail                    avail.idx (guest)
//!                    ▼                             ▼
//!   avail.ring  ─────┬─────────────────────────────┬────────▶   both run freely in 16 bits,
//!     given back     │          available          │  free      masked where they are used
//!   used.ring   ─────┴──────────────┬──────────────┴────────▶
//!               published ▲         ▲ next_used: written, not yet published
//! ```
//!
//! The ring belongs to one worker. When it breaks it stays broken, says why, and takes nothing from the
//! guest any more; the guest has to set it up again. This is the crate's one module with `unsafe` code: the
//! accesses to memory are in `memory`, and what is here and in `chain` is built on them.

mod chain;
mod error;
mod memory;
mod notifier;

use std::fmt;
use std::sync::atomic::{Ordering, fence};

use virtio_queue::{Queue, QueueT};

pub use chain::Access;
pub use error::{AreaKind, ChainError, Fault, RingError};
pub use memory::{Memory, Outside};
pub use notifier::Notifier;

use crate::feature::{Features, VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use chain::{Descriptor, Limits};
use memory::{Area, Scatter};

/// What the guest has set up, and where to go on.
#[derive(Debug)]
pub struct RingSetup {
    /// Number of descriptors: a power of two up to 32768.
    pub size: u16,
    /// Guest address of the descriptor table.
    pub desc: u64,
    /// Guest address of the available ring.
    pub avail: u64,
    /// Guest address of the used ring.
    pub used: u64,
    /// Index of the next chain to take.
    pub next_avail: u16,
    /// Index of the next used element to write.
    pub next_used: u16,
    /// EVENT_IDX was negotiated.
    pub event_idx: bool,
    /// INDIRECT_DESC was negotiated.
    pub indirect: bool,
    /// How to call the guest; without one it is never called.
    pub call: Option<Notifier>,
}

impl RingSetup {
    /// What a queue of the protocol library was set up with.
    pub fn from_queue(queue: &Queue, features: Features, call: Option<Notifier>) -> Self {
        Self {
            size: queue.size(),
            desc: queue.desc_table(),
            avail: queue.avail_ring(),
            used: queue.used_ring(),
            next_avail: queue.next_avail(),
            next_used: queue.next_used(),
            event_idx: features.has(VIRTIO_RING_F_EVENT_IDX),
            indirect: features.has(VIRTIO_RING_F_INDIRECT_DESC),
            call,
        }
    }
}

/// A split virtqueue, device side.
pub struct SplitRing {
    desc: Area,
    avail: Area,
    used: Area,
    scatter: Scatter,
    size: u16,
    next_avail: u16,
    /// The guest's index as it was read last.
    avail_seen: u16,
    next_used: u16,
    /// The index that the guest sees.
    published: u16,
    /// The index that the guest saw when it was last considered whether to call it.
    considered: u16,
    event_idx: bool,
    indirect: bool,
    call: Option<Notifier>,
    /// The guest was called at least once since the ring was set up.
    called: bool,
    broken: Option<RingError>,
}

/// A chain that was found good. Its buffers are the ring's to read or write until
/// [`forget_buffers`](SplitRing::forget_buffers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// Index of its first descriptor: what to give it back by.
    pub head: u16,
    /// Bytes of all its buffers.
    pub len: u32,
}

/// What came of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notified {
    /// The guest was called.
    Called,
    /// The guest did not want to be.
    Suppressed,
    /// There is no call descriptor, or its other end is gone.
    Unreachable,
}

impl SplitRing {
    /// A ring as the guest has set it up.
    ///
    /// # Errors
    ///
    /// When the size is no power of two up to 32768, or one of the three structures is not aligned (16,
    /// 2 and 4 bytes, 2.7) or does not lie in one region of guest memory.
    pub fn new(memory: Memory, setup: RingSetup) -> Result<Self, RingError> {
        let RingSetup { size, next_avail, next_used, event_idx, indirect, call, .. } = setup;
        if !size.is_power_of_two() || size > MAX_SIZE {
            return Err(RingError::Size(size));
        }
        let entries = usize::from(size);
        let area = |area, address: u64, len, align: usize| {
            if !address.is_multiple_of(align as u64) {
                return Err(RingError::Alignment { area, address, align });
            }
            let outside = RingError::OutsideMemory { area, address, len };
            Area::new(&memory, address, len).ok_or(outside)
        };
        // Two fields in front of each ring, and one behind it: the event index.
        let desc = area(AreaKind::Descriptors, setup.desc, Descriptor::SIZE * entries, 16)?;
        let avail = area(AreaKind::Available, setup.avail, 4 + 2 * entries + 2, 2)?;
        let used = area(AreaKind::Used, setup.used, 4 + USED_ELEMENT * entries + 2, 4)?;
        Ok(Self {
            desc,
            avail,
            used,
            scatter: Scatter::new(memory, entries),
            size,
            next_avail,
            avail_seen: next_avail,
            next_used,
            published: next_used,
            considered: next_used,
            event_idx,
            indirect,
            call,
            called: false,
            broken: None,
        })
    }

    /// How many chains the guest has made available. Reads the guest's index, once.
    ///
    /// # Errors
    ///
    /// When the ring is broken, or is found to be: the guest claims more chains than there are.
    #[inline]
    pub fn available(&mut self) -> Result<u16, RingError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        // Orders the reads of the entries and descriptors behind that of the index; its partner is the
        // guest's barrier between writing them and moving the index (2.7.13.3).
        let index = self.avail.load_acquire(INDEX);
        let count = index.wrapping_sub(self.next_avail);
        if count > self.size {
            let (next, size) = (self.next_avail, self.size);
            return Err(self.breaks(RingError::AvailJump { index, next, size }));
        }
        self.avail_seen = index;
        Ok(count)
    }

    /// How many chains were there when the guest's index was read last, without those that were given
    /// back since.
    #[inline]
    pub fn seen(&self) -> u16 {
        self.avail_seen.wrapping_sub(self.next_avail)
    }

    /// Checks the n-th of the available chains, 0 being the next, and adds its buffers behind those that
    /// the ring has in hand.
    ///
    /// # Errors
    ///
    /// When the chain breaks a rule: none of its buffers is added. When the ring does.
    ///
    /// # Panics
    ///
    /// In debug builds, when the chain is not available.
    #[inline]
    pub fn chain(&mut self, nth: u16, access: Access) -> Result<Chain, Fault> {
        let head = self.head(nth).map_err(Fault::Ring)?;
        let at = usize::from(head) * Descriptor::SIZE;
        let descriptor = Descriptor::from_words(self.desc.read_16(at));
        if descriptor.is_plain(access)
            && self.scatter.push_whole(descriptor.address, descriptor.len)
        {
            return Ok(Chain { head, len: descriptor.len });
        }
        self.walk(head, descriptor, access)
    }

    fn walk(&mut self, head: u16, first: Descriptor, access: Access) -> Result<Chain, Fault> {
        let limits = Limits { size: self.size, indirect: self.indirect, access };
        let before = self.scatter.parts();
        match chain::walk(&self.desc, first, limits, &mut self.scatter) {
            Ok(len) => Ok(Chain { head, len }),
            Err(reason) => {
                self.scatter.truncate(before);
                Err(Fault::Chain { head, reason })
            }
        }
    }

    /// The head of the n-th available chain, which is not looked at.
    ///
    /// # Errors
    ///
    /// When there is no such descriptor: the ring is broken.
    ///
    /// # Panics
    ///
    /// In debug builds, when the chain is not available.
    #[inline]
    pub fn head(&mut self, nth: u16) -> Result<u16, RingError> {
        debug_assert!(nth < self.seen(), "the chain is available");
        if let Some(error) = self.broken {
            return Err(error);
        }
        let slot = self.next_avail.wrapping_add(nth) & (self.size - 1);
        let head = self.avail.read_u16(RING + 2 * usize::from(slot));
        if head >= self.size {
            return Err(self.breaks(RingError::HeadOutOfRange { head, size: self.size }));
        }
        Ok(head)
    }

    /// Lets go of the buffers of all chains in hand. The next read or write starts at the first buffer
    /// of the next chain that is checked.
    #[inline]
    pub fn forget_buffers(&mut self) {
        self.scatter.clear();
    }

    /// Writes to the buffers in hand, behind what was written before; answers how many bytes had room.
    #[inline]
    pub fn write(&mut self, from: &[u8]) -> usize {
        self.scatter.write(from)
    }

    /// Writes a few bytes as [`write`](Self::write) does.
    #[inline]
    pub fn write_array<const N: usize>(&mut self, bytes: [u8; N]) -> usize {
        self.scatter.write_array(bytes)
    }

    /// Reads from the buffers in hand, behind what was read before; answers how many bytes there were.
    #[inline]
    pub fn read(&mut self, to: &mut [u8]) -> usize {
        self.scatter.read(to)
    }

    /// Reads a few bytes as [`read`](Self::read) does, each once; `None` when there are fewer.
    #[inline]
    pub fn read_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.scatter.read_array()
    }

    /// Gives the next available chain back: writes its used element, which the guest sees after
    /// [`publish`](Self::publish). `len` is how many bytes were written to it.
    ///
    /// # Panics
    ///
    /// In debug builds, when no chain is available.
    #[inline]
    pub fn give_back(&mut self, head: u16, len: u32) {
        debug_assert!(self.seen() > 0, "a chain is given back once");
        let slot = usize::from(self.next_used & (self.size - 1));
        let element = u64::from(head) | u64::from(len) << 32;
        self.used.write_array(RING + USED_ELEMENT * slot, element.to_le_bytes());
        self.next_used = self.next_used.wrapping_add(1);
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    /// Lets the guest see everything that was given back; answers how many chains that are.
    #[inline]
    pub fn publish(&mut self) -> u16 {
        let count = self.next_used.wrapping_sub(self.published);
        if count > 0 {
            // Orders the writes of elements and buffers before that of the index; its partner is the
            // guest's barrier between reading the index and the elements (2.7.8.2).
            self.used.store_release(INDEX, self.next_used);
            self.published = self.next_used;
        }
        count
    }

    /// Calls the guest about what was published since the last time, if it wants to know.
    #[inline]
    pub fn notify(&mut self) -> Notified {
        let (old, new) = (self.considered, self.published);
        if old == new {
            return Notified::Suppressed;
        }
        self.considered = new;
        // Orders the write of the index before the read of what the guest wants. Without it the guest
        // could ask for a call and not see the index, while we see neither (2.7.10.1).
        fence(Ordering::SeqCst);
        // The guest may have missed a call of whoever had the ring before: the first is never left out.
        if self.called && !self.wants_call(old, new) {
            return Notified::Suppressed;
        }
        self.called = true;
        match &self.call {
            Some(call) if call.notify().is_ok() => Notified::Called,
            _ => Notified::Unreachable,
        }
    }

    #[inline]
    fn wants_call(&self, old: u16, new: u16) -> bool {
        if self.event_idx {
            // Called when the index passes the event: old <= event < new, in wrapping distances.
            let event = self.avail.read_u16(RING + 2 * usize::from(self.size));
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.avail.read_u16(FLAGS) & NO_INTERRUPT == 0
        }
    }

    /// Asks for a kick when the guest makes the next chain available; answers whether there is one
    /// already, for which no kick may come.
    pub fn enable_notification(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        if self.event_idx {
            self.used.write_u16(RING + USED_ELEMENT * usize::from(self.size), self.next_avail);
        } else {
            self.used.write_u16(FLAGS, 0);
        }
        // Orders the wish before the look: the guest moves its index and then reads the wish (2.7.10).
        fence(Ordering::SeqCst);
        // An index that makes no sense is work too: taking it breaks the ring.
        self.avail.load_acquire(INDEX) != self.next_avail
    }

    /// Asks for no kicks. Some may come nevertheless.
    pub fn disable_notification(&mut self) {
        if self.broken.is_some() {
            return;
        }
        if self.event_idx {
            // An event that has just passed is as far away as can be.
            let passed = self.next_avail.wrapping_sub(1);
            self.used.write_u16(RING + USED_ELEMENT * usize::from(self.size), passed);
        } else {
            self.used.write_u16(FLAGS, NO_NOTIFY);
        }
    }

    /// Why the ring no longer works.
    #[inline]
    pub fn broken(&self) -> Option<&RingError> {
        self.broken.as_ref()
    }

    /// How many descriptors it has.
    #[inline]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Index of the next chain to take.
    #[inline]
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Index of the next used element to write.
    #[inline]
    pub fn next_used(&self) -> u16 {
        self.next_used
    }

    #[cold]
    fn breaks(&mut self, error: RingError) -> RingError {
        self.broken = Some(error);
        error
    }
}

impl fmt::Debug for SplitRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitRing")
            .field("size", &self.size)
            .field("next_avail", &self.next_avail)
            .field("next_used", &self.next_used)
            .field("event_idx", &self.event_idx)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

// Offsets in the available and the used ring: both start with flags and index.
const FLAGS: usize = 0;
const INDEX: usize = 2;
const RING: usize = 4;
/// Bytes of a used element: head and length, 32 bits each.
const USED_ELEMENT: usize = 8;
/// `avail.flags`: the guest does not want to be called.
const NO_INTERRUPT: u16 = 1;
/// `used.flags`: the device does not want to be kicked.
const NO_NOTIFY: u16 = 1;
const MAX_SIZE: u16 = 32768;

#[cfg(test)]
pub(crate) mod guarded;
#[cfg(test)]
mod tests;

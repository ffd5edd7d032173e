//! What a receive completion completes: the arithmetic of `spec/ef10.md` 5.3, "completed descriptors".
//!
//! ```text
//!   removed            removed + n        published  added
//!      │ n completed now    │  still with the  │ <8 │
//!  ────┴────────────────────┴── card ──────────┴────┴───   free-running counts; the event carries the
//!                                                          low 4 bits of `removed + n`
//! ```
//!
//! [`Progress`] holds the counts and how many fragments of a scattered packet have come. It knows
//! nothing of buffers: it answers what the event means, or that it can mean nothing.

use super::RxFault;
use crate::event::RxEvent;

/// How far a receive ring is.
///
/// Invariant: `removed` ≤ `published` ≤ `added` by wrapping distance, `added` is less than a ring ahead of
/// `removed`, and `published` is a multiple of 8.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    added: u32,
    published: u32,
    removed: u32,
    fragments: u16,
}

/// What one event completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completed {
    /// A packet in one descriptor, its length in the event.
    Single,
    /// Several packets of one descriptor each, their lengths in their prefixes.
    Merged {
        /// How many: 2 to 15.
        packets: u8,
    },
    /// One more descriptor of a packet that goes on.
    Fragment {
        /// Whether it is the packet's first.
        first: bool,
    },
    /// The last descriptor of a scattered packet.
    LastFragment,
    /// The scattered packet ran out of descriptors: forget what came of it. No descriptor completes.
    Abort,
}

/// What the queue was created with, as far as its events depend on it.
#[derive(Debug, Clone, Copy)]
pub struct Modes {
    /// The queue's label.
    pub label: u8,
    /// Completions may be merged (capability `RX_BATCHING`).
    pub batching: bool,
    /// Packets may take several descriptors.
    pub scatter: bool,
}

/// The most fragments that the largest frame can take: jumbo frames in buffers of 1 KiB.
const MAX_FRAGMENTS: u16 = 16;

impl Progress {
    /// How many descriptors the card has.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.published.wrapping_sub(self.removed)
    }

    /// The count of descriptors ever added: the next slot, modulo the ring's size.
    #[inline]
    pub fn added(&self) -> u32 {
        self.added
    }

    /// The count of descriptors ever retired: the oldest slot, modulo the ring's size.
    #[inline]
    pub fn removed(&self) -> u32 {
        self.removed
    }

    /// One more descriptor is written.
    #[inline]
    pub fn add(&mut self) {
        self.added = self.added.wrapping_add(1);
    }

    /// Gives the card the descriptors written so far, down to a multiple of 8 (6.2); the write pointer
    /// for the doorbell when that is any.
    #[inline]
    pub fn publish(&mut self, mask: u32) -> Option<u32> {
        let pointer = self.added & !7;
        if pointer == self.published {
            return None;
        }
        self.published = pointer;
        Some(pointer & mask)
    }

    /// The oldest descriptor is retired.
    #[inline]
    pub fn remove(&mut self) {
        debug_assert!(self.posted() > 0, "only what was posted is retired");
        self.removed = self.removed.wrapping_add(1);
    }

    /// What the event completes. The caller retires as many descriptors as the answer names, before
    /// the next event.
    ///
    /// # Errors
    ///
    /// When the event cannot come from a card in its right mind: another queue's label, descriptors
    /// that were never posted, merging where there is none. The queue cannot be trusted afterwards.
    #[inline]
    pub fn completed(&mut self, event: RxEvent, modes: Modes) -> Result<Completed, RxFault> {
        if event.label() != modes.label {
            return Err(RxFault::Label);
        }
        let next = u32::from(event.next_descriptor());
        let count = next.wrapping_sub(self.removed) & 15;
        if count > self.posted() {
            return Err(RxFault::NeverPosted);
        }
        match (count, self.fragments) {
            (0, 0) => Err(RxFault::NothingCompleted),
            (0, _) => {
                self.fragments = 0;
                Ok(Completed::Abort)
            }
            (1, 0) if !event.continues() || !modes.scatter => Ok(Completed::Single),
            (1, _) if event.continues() => self.fragment(),
            (1, _) => {
                self.fragments = 0;
                Ok(Completed::LastFragment)
            }
            (packets, 0) if modes.batching && !event.continues() => {
                let packets = u8::try_from(packets).expect("masked: at most 15");
                Ok(Completed::Merged { packets })
            }
            _ => Err(RxFault::Merged),
        }
    }

    fn fragment(&mut self) -> Result<Completed, RxFault> {
        if self.fragments + 1 >= MAX_FRAGMENTS {
            return Err(RxFault::TooManyFragments);
        }
        self.fragments += 1;
        Ok(Completed::Fragment { first: self.fragments == 1 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MODES: Modes = Modes { label: 0, batching: true, scatter: true };
    const CONT: u64 = 1 << 14;

    fn event(next: u32, flags: u64) -> RxEvent {
        RxEvent::new(flags | u64::from(next & 15) << 48)
    }

    /// A ring with `posted` descriptors, `removed` retired.
    fn ring(removed: u32, posted: u32) -> Progress {
        let added = removed.wrapping_add(posted);
        Progress { added, published: added, removed, fragments: 0 }
    }

    fn retire(progress: &mut Progress, count: u32) {
        (0..count).for_each(|_| progress.remove());
    }

    #[test]
    fn one_and_several() {
        for removed in [0, 14, 15, 16, 1000, u32::MAX - 1, u32::MAX] {
            let mut progress = ring(removed, 64);
            let next = |n| event(removed.wrapping_add(n), 0);
            assert_eq!(progress.completed(next(1), MODES), Ok(Completed::Single));
            for packets in 2..=15 {
                assert_eq!(
                    progress.completed(next(packets.into()), MODES),
                    Ok(Completed::Merged { packets })
                );
            }
        }
    }

    #[test]
    fn a_scattered_packet() {
        let mut progress = ring(30, 64);
        let step = |progress: &mut Progress, flags| {
            let completed = progress.completed(event(progress.removed() + 1, flags), MODES);
            retire(progress, 1);
            completed
        };
        assert_eq!(step(&mut progress, CONT), Ok(Completed::Fragment { first: true }));
        assert_eq!(step(&mut progress, CONT), Ok(Completed::Fragment { first: false }));
        assert_eq!(step(&mut progress, 0), Ok(Completed::LastFragment));
        assert_eq!(step(&mut progress, 0), Ok(Completed::Single));
    }

    #[test]
    fn an_abort_forgets_the_fragments() {
        let mut progress = ring(0, 64);
        progress.completed(event(1, CONT), MODES).unwrap();
        retire(&mut progress, 1);
        assert_eq!(progress.completed(event(1, 0), MODES), Ok(Completed::Abort));
        assert_eq!(progress.completed(event(2, 0), MODES), Ok(Completed::Single));
    }

    #[test]
    fn no_merging_inside_a_scattered_packet() {
        let mut progress = ring(0, 64);
        progress.completed(event(1, CONT), MODES).unwrap();
        retire(&mut progress, 1);
        assert_eq!(progress.completed(event(3, 0), MODES), Err(RxFault::Merged));
    }

    #[test]
    fn nonsense_is_a_fault() {
        let mut progress = ring(5, 4);
        let label = RxEvent::new(1 << 16 | 6 << 48);
        assert_eq!(progress.completed(label, MODES), Err(RxFault::Label));
        assert_eq!(progress.completed(event(5, 0), MODES), Err(RxFault::NothingCompleted));
        assert_eq!(progress.completed(event(10, 0), MODES), Err(RxFault::NeverPosted));
        assert_eq!(progress.completed(event(7, CONT), MODES), Err(RxFault::Merged));
        let single = Modes { batching: false, ..MODES };
        assert_eq!(progress.completed(event(7, 0), single), Err(RxFault::Merged));
    }

    #[test]
    fn a_packet_without_end_is_a_fault() {
        let mut progress = ring(0, 64);
        let fault = (1..64).find_map(|next| {
            let outcome = progress.completed(event(next, CONT), MODES);
            retire(&mut progress, 1);
            outcome.err()
        });
        assert_eq!(fault, Some(RxFault::TooManyFragments));
    }

    #[test]
    fn the_write_pointer_moves_in_eights() {
        let mut progress = Progress::default();
        let mut add = |count| {
            (0..count).for_each(|_| progress.add());
            (progress.publish(511), progress.posted())
        };
        assert_eq!(add(7), (None, 0));
        assert_eq!(add(1), (Some(8), 8));
        assert_eq!(add(0), (None, 8));
        assert_eq!(add(15), (Some(16), 16));
        assert_eq!(add(512 - 23), (Some(0), 512));
    }

    #[test]
    fn without_scatter_a_continued_packet_is_a_cut_one() {
        let mut progress = ring(0, 64);
        let modes = Modes { scatter: false, ..MODES };
        assert_eq!(progress.completed(event(1, CONT), modes), Ok(Completed::Single));
    }

    proptest! {
        #[test]
        fn never_more_than_was_posted(
            removed: u32,
            posted in 0u32..4096,
            events: Vec<u64>,
            batching: bool,
            scatter: bool,
        ) {
            let mut progress = ring(removed, posted);
            let modes = Modes { label: 0, batching, scatter };
            for raw in events {
                let count = match progress.completed(RxEvent::new(raw & !(31 << 16)), modes) {
                    Ok(Completed::Merged { packets }) => packets.into(),
                    Ok(Completed::Abort) | Err(_) => 0,
                    Ok(_) => 1,
                };
                prop_assert!(count <= progress.posted());
                retire(&mut progress, count);
            }
        }
    }
}

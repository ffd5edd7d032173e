//! The driver's side of one split ring (virtio 1.3, 2.7): descriptors and available ring are ours to
//! write, the used ring is the device's.
//!
//! ```text
//!   descriptors  n × (address, length, flags, next)          driver writes
//!   available    flags, index, n × head, used_event           driver writes
//!   used         flags, index, n × (id, length), avail_event   device writes
//! ```
//!
//! Indices run free in 16 bits and are masked at use. A [`View`] is taken once per burst.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use vm_memory::{Bytes, VolatileMemory};

use crate::memory::{INSIDE, Memory, Place, Slice};

/// One split ring.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Arc<Memory>,
    size: u16,
    descriptors: Place,
    avail: Place,
    used: Place,
}

/// A descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

/// The descriptor goes on at its `next`.
pub(crate) const NEXT: u16 = 1;
/// The device writes here.
pub(crate) const WRITE: u16 = 2;
/// The descriptor's bytes are descriptors.
pub(crate) const INDIRECT: u16 = 4;

/// An element of the used ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) id: u32,
    pub(crate) len: u32,
}

impl Ring {
    /// The bytes that a ring of this size takes.
    pub(crate) fn len(size: u16) -> usize {
        Self::used_offset(size) + 6 + 8 * usize::from(size)
    }

    /// A ring whose parts follow each other at `place`, all zero.
    pub(crate) fn new(memory: Arc<Memory>, place: Place, size: u16) -> Self {
        let at = |offset| Place { offset: place.offset + offset, ..place };
        let (avail, used) = (at(Self::avail_offset(size)), at(Self::used_offset(size)));
        let ring = Self { memory, size, descriptors: place, avail, used };
        ring.clear();
        ring
    }

    /// Zeroes all parts, as a driver does before it hands a ring to a device that was reset.
    pub(crate) fn clear(&self) {
        self.memory.slice(self.descriptors, Self::len(self.size)).copy_from(&vec![
            0u8;
            Self::len(
                self.size
            )
        ]);
    }

    /// Descriptors in the ring.
    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    /// The host addresses of descriptors, available ring and used ring.
    pub(crate) fn user_addresses(&self) -> [u64; 3] {
        [self.descriptors, self.avail, self.used].map(|place| self.memory.user_address(place))
    }

    /// Access for one burst.
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        View {
            region: self.memory.region(self.descriptors.region),
            size: self.size,
            descriptors: self.descriptors.offset,
            avail: self.avail.offset,
            used: self.used.offset,
        }
    }

    fn avail_offset(size: u16) -> usize {
        16 * usize::from(size)
    }

    fn used_offset(size: u16) -> usize {
        (Self::avail_offset(size) + 6 + 2 * usize::from(size)).next_multiple_of(64)
    }
}

/// A ring, ready for a burst of accesses.
#[derive(Debug)]
pub(crate) struct View<'a> {
    region: Slice<'a>,
    size: u16,
    descriptors: usize,
    avail: usize,
    used: usize,
}

impl View<'_> {
    /// The index that the device has published. Acquire: the used elements and the buffers up to it
    /// are read after it.
    #[inline]
    pub(crate) fn used_index(&self) -> u16 {
        u16::from_le(self.region.load(self.used + 2, Ordering::Acquire).expect(INSIDE))
    }

    /// The used element at a position, read once.
    #[inline]
    pub(crate) fn used(&self, position: u16) -> Used {
        let offset = self.used + 4 + 8 * self.slot(position);
        let word = u64::from_le(self.region.get_ref::<u64>(offset).expect(INSIDE).load());
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of the element")]
        Used { id: word as u32, len: (word >> 32) as u32 }
    }

    /// Writes a descriptor of the ring's own table.
    pub(crate) fn set_descriptor(&self, index: u16, descriptor: Descriptor) {
        let offset = self.descriptors + 16 * self.slot(index);
        write_descriptor(&self.region, offset, descriptor);
    }

    /// Writes an entry of the available ring; the device sees it after the next [`Self::publish`].
    #[inline]
    pub(crate) fn set_avail(&self, position: u16, head: u16) {
        let offset = self.avail + 4 + 2 * self.slot(position);
        self.region.get_ref::<u16>(offset).expect(INSIDE).store(head.to_le());
    }

    /// Publishes the available ring up to `index`. Release: descriptors, entries and bytes to send
    /// were written before it.
    #[inline]
    pub(crate) fn publish(&self, index: u16) {
        self.region.store(index.to_le(), self.avail + 2, Ordering::Release).expect(INSIDE);
    }

    /// Whether the device wants to hear of the entries from `old` up to `new`, which were published
    /// before (virtio 1.3, 2.7.10). The fence orders that publishing before the look at what the
    /// device asks for; its partner is the device's, between asking and a last look at the index.
    #[inline]
    pub(crate) fn wants_kick(&self, event_idx: bool, old: u16, new: u16) -> bool {
        fence(Ordering::SeqCst);
        if event_idx {
            let offset = self.used + 4 + 8 * usize::from(self.size);
            let event = u16::from_le(self.region.load(offset, Ordering::Relaxed).expect(INSIDE));
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            let flags: u16 = self.region.load(self.used, Ordering::Relaxed).expect(INSIDE);
            u16::from_le(flags) & NO_NOTIFY == 0
        }
    }

    /// Tells the device not to notify us; `seen` is how far we have read the used ring.
    #[inline]
    pub(crate) fn suppress(&self, event_idx: bool, seen: u16) {
        if event_idx {
            // Just behind: the device would have to publish 65,535 elements to get there.
            self.set_used_event(seen.wrapping_sub(1));
        } else {
            self.set_avail_flags(NO_INTERRUPT);
        }
    }

    /// Asks the device to notify us of the next used element. Whoever arms looks at the used index
    /// once more before sleeping; the fence orders that look behind the asking.
    pub(crate) fn arm(&self, event_idx: bool, seen: u16) {
        if event_idx {
            self.set_used_event(seen);
        } else {
            self.set_avail_flags(0);
        }
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn set_used_event(&self, position: u16) {
        let offset = self.avail + 4 + 2 * usize::from(self.size);
        self.region.store(position.to_le(), offset, Ordering::Relaxed).expect(INSIDE);
    }

    fn set_avail_flags(&self, flags: u16) {
        self.region.store(flags.to_le(), self.avail, Ordering::Relaxed).expect(INSIDE);
    }

    #[inline]
    fn slot(&self, position: u16) -> usize {
        usize::from(position & (self.size - 1))
    }
}

/// Writes a descriptor into a table, be it a ring's or an indirect one.
#[inline]
pub(crate) fn write_descriptor(table: &Slice<'_>, offset: usize, descriptor: Descriptor) {
    let second = u64::from(descriptor.len)
        | u64::from(descriptor.flags) << 32
        | u64::from(descriptor.next) << 48;
    table.get_ref::<u64>(offset).expect(INSIDE).store(descriptor.address.to_le());
    table.get_ref::<u64>(offset + 8).expect(INSIDE).store(second.to_le());
}

/// In the available ring's flags.
const NO_INTERRUPT: u16 = 1;
/// In the used ring's flags.
const NO_NOTIFY: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Plan;

    fn ring(size: u16) -> (Arc<Memory>, Ring, Place) {
        let len = Ring::len(size);
        let mut plan = Plan::new(1, 0, &[(len, 1)]);
        let place = plan.place(len);
        let memory = Arc::new(plan.build(false).unwrap());
        (Arc::clone(&memory), Ring::new(memory, place, size), place)
    }

    #[test]
    fn the_layout_is_the_specifications() {
        let (memory, ring, place) = ring(4);
        let [descriptors, avail, used] = ring.user_addresses();
        assert_eq!((avail - descriptors, used - descriptors), (64, 128));
        let view = ring.view();
        let descriptor = Descriptor { address: 0x1122, len: 9, flags: NEXT | WRITE, next: 3 };
        view.set_descriptor(5, descriptor);
        view.set_avail(6, 3);
        view.publish(7);
        let mut bytes = [0; 128];
        memory.slice(place, 128).read_slice(&mut bytes, 0).unwrap();
        assert_eq!(bytes[16..32], [0x22, 0x11, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 3, 0, 3, 0]);
        assert_eq!(bytes[64..76], [0, 0, 7, 0, 0, 0, 0, 0, 3, 0, 0, 0]);

        let device = memory.slice(Place { offset: 128, ..place }, 6 + 8 * 4);
        device.write_slice(&[0, 0, 2, 0, 1, 0, 0, 0, 60, 0, 0, 0], 0).unwrap();
        assert_eq!(view.used_index(), 2);
        let used = view.used(4);
        assert_eq!((used.id, used.len), (1, 60));
        ring.clear();
        assert_eq!(ring.view().used_index(), 0);
    }

    #[test]
    fn kicks_follow_what_the_device_asks() {
        let (memory, ring, place) = ring(4);
        let view = ring.view();
        let device = memory.slice(Place { offset: 128, ..place }, 6 + 8 * 4);
        assert!(view.wants_kick(false, 0, 1));
        device.write_slice(&[1, 0], 0).unwrap();
        assert!(!view.wants_kick(false, 0, 1));
        for (event, old, new, wanted) in [
            (0u16, 0, 1, true),
            (1, 0, 1, false),
            (1, 0, 2, true),
            (0xffff, 0xfffe, 1, true),
            (0xfffd, 0xfffe, 1, false),
            (1, 0xfffe, 1, false),
        ] {
            device.write_slice(&event.to_le_bytes(), 4 + 32).unwrap();
            assert_eq!(view.wants_kick(true, old, new), wanted, "{event} in {old}..{new}");
        }
    }

    #[test]
    fn notifications_are_asked_for_and_refused() {
        let (memory, ring, place) = ring(4);
        let view = ring.view();
        let avail = memory.slice(Place { offset: 64, ..place }, 14);
        let half = |offset| avail.load::<u16>(offset, Ordering::Relaxed).unwrap();
        view.suppress(false, 9);
        assert_eq!(half(0), 1);
        view.arm(false, 9);
        assert_eq!(half(0), 0);
        view.suppress(true, 0);
        assert_eq!(half(12), 0xffff);
        view.arm(true, 9);
        assert_eq!(half(12), 9);
    }
}

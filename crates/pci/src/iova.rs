//! The device's address space: which ranges are taken, and where there is room.
//!
//! Memory of our own goes to addresses from 128 GiB upwards: above the platform's reserved ranges and
//! above guest memory, which is mapped where the guest has it, and below 512 GiB, the 39 bits that
//! even the smallest IOMMUs translate (EF10 descriptors have 48, spec section 1.2).

use std::collections::BTreeMap;
use std::fmt;

use crate::Error;

/// An address as the device uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Iova(u64);

impl Iova {
    /// That address.
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The number that descriptors and registers hold.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address that many bytes further on; wraps at the end of the address space.
    #[inline]
    #[must_use]
    pub const fn add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl From<Iova> for u64 {
    fn from(iova: Iova) -> Self {
        iova.0
    }
}

impl fmt::Display for Iova {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IOVA {:#x}", self.0)
    }
}

const OURS: u64 = 1 << 37;
const OURS_END: u64 = 1 << 39;

/// Ranges that are taken, by where they begin.
///
/// Invariant: ranges are not empty, do not overlap, and end below 2^64.
#[derive(Debug, Default)]
pub(crate) struct IovaMap {
    taken: BTreeMap<u64, u64>,
}

impl IovaMap {
    /// A map in which these stretches, each from its first to its last address, are taken already.
    pub(crate) fn without(reserved: &[(u64, u64)]) -> Self {
        let mut map = Self::default();
        let mut reserved = reserved.to_vec();
        reserved.sort_unstable();
        let mut free = 0;
        for (first, last) in reserved {
            // The last byte of the address space is in no range; it is of no use to anybody.
            let (from, end) = (first.max(free), last.saturating_add(1));
            if from < end {
                map.taken.insert(from, end - from);
                free = end;
            }
        }
        map
    }

    /// Takes the lowest free range of our own.
    pub(crate) fn allocate(&mut self, len: u64, align: u64) -> Result<Iova, Error> {
        debug_assert!(len > 0 && align.is_power_of_two());
        let full = || Error::IovaFull { bytes: len };
        let mut start = OURS.checked_next_multiple_of(align).ok_or_else(full)?;
        // Only ranges that reach into ours matter, and each moves the candidate behind it.
        for (&from, &taken) in &self.taken {
            let end = from + taken;
            if end <= start {
                continue;
            }
            if start.checked_add(len).is_some_and(|end| end <= from) {
                break;
            }
            start = end.checked_next_multiple_of(align).ok_or_else(full)?;
        }
        if start.checked_add(len).is_none_or(|end| end > OURS_END) {
            return Err(full());
        }
        self.taken.insert(start, len);
        Ok(Iova(start))
    }

    /// Takes exactly this range.
    pub(crate) fn take(&mut self, iova: Iova, len: u64) -> Result<(), Error> {
        let taken = Error::IovaTaken { iova, bytes: len };
        let Some(end) = iova.0.checked_add(len).filter(|_| len > 0) else { return Err(taken) };
        let before = self.taken.range(..end).next_back();
        if before.is_some_and(|(from, len)| from + len > iova.0) {
            return Err(taken);
        }
        self.taken.insert(iova.0, len);
        Ok(())
    }

    /// Gives a range back.
    pub(crate) fn release(&mut self, iova: Iova) {
        self.taken.remove(&iova.0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_lowest_hole_that_fits_is_taken() {
        let mut map = IovaMap::default();
        let first = map.allocate(0x1000, 0x1000).unwrap();
        let second = map.allocate(0x3000, 0x1000).unwrap();
        let third = map.allocate(0x20_0000, 0x20_0000).unwrap();
        assert_eq!(second, first.add(0x1000));
        assert_eq!(third, first.add(0x20_0000));
        map.release(second);
        assert_eq!(map.allocate(0x2000, 0x1000).unwrap(), second);
        assert_eq!(map.allocate(0x2000, 0x1000).unwrap(), second.add(0x2000));
    }

    #[test]
    fn the_space_ends() {
        let mut map = IovaMap::default();
        map.allocate(OURS_END - OURS, 1).unwrap();
        assert!(matches!(map.allocate(1, 1), Err(Error::IovaFull { bytes: 1 })));
        assert!(map.allocate(1, 1 << 63).is_err());
    }

    #[test]
    fn reserved_stretches_are_taken() {
        let mut map = IovaMap::without(&[(0x3000, 0x4fff), (0x1000, 0x37ff), (u64::MAX, u64::MAX)]);
        assert!(map.take(Iova(0x1000), 1).is_err() && map.take(Iova(0x4fff), 1).is_err());
        assert!(map.take(Iova(0), 0x1000).is_ok() && map.take(Iova(0x5000), 1).is_ok());
        assert!(map.allocate(1 << 20, 1 << 20).is_ok());
    }

    #[test]
    fn fixed_ranges_do_not_overlap() {
        let mut map = IovaMap::default();
        map.take(Iova(0x1000), 0x2000).unwrap();
        for (at, len) in
            [(0x1000, 1), (0x2fff, 1), (0, 0x1001), (0x800, 0x8000), (u64::MAX, 2), (0, 0)]
        {
            assert!(map.take(Iova(at), len).is_err(), "{len:#x} at {at:#x}");
        }
        map.take(Iova(0x3000), 0x1000).unwrap();
        map.take(Iova(0), 0x1000).unwrap();
    }

    proptest! {
        #[test]
        fn no_two_ranges_overlap(
            steps in prop::collection::vec((any::<bool>(), 1_u64..1 << 36, 0_u32..30, any::<bool>()), 1..40),
        ) {
            let mut map = IovaMap::default();
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (fixed, len, align, give_back) in steps {
                let got = if fixed {
                    let at = Iova(OURS - (1 << 35) + len);
                    map.take(at, len).map(|()| at)
                } else {
                    map.allocate(len, 1 << align)
                };
                if let Ok(Iova(at)) = got {
                    prop_assert!(held.iter().all(|&(from, size)| at + len <= from || from + size <= at));
                    prop_assert!(fixed || at.is_multiple_of(1 << align));
                    held.push((at, len));
                }
                if give_back && !held.is_empty() {
                    map.release(Iova(held.swap_remove(0).0));
                }
            }
        }
    }
}

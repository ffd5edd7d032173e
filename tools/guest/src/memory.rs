//! The guest's memory: anonymous files that both sides map, apart in the guest's physical addresses.
//!
//! A [`Plan`] collects what is needed and gives each piece a [`Place`] (the regions in turn, so that
//! buffers lie in all of them); [`Plan::build`] then makes the files. Nothing is ever given back:
//! rings and buffers live as long as the guest.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::VhostUserMemoryRegionInfo;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use crate::error::{Error, Result};

/// A view of guest memory. The device may write there at any time, so it yields values only.
pub(crate) type Slice<'a> = VolatileSlice<'a, ()>;

/// Where something lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) region: usize,
    pub(crate) offset: usize,
}

/// What will have to fit.
#[derive(Debug)]
pub(crate) struct Plan {
    filled: Vec<usize>,
    limit: usize,
    next: usize,
}

impl Plan {
    /// A plan for `pieces`, each a length and how often it occurs, over that many regions, with at
    /// least `least` bytes in all.
    pub(crate) fn new(regions: usize, least: u64, pieces: &[(usize, usize)]) -> Self {
        let total: usize = pieces.iter().map(|(len, count)| lines(*len) * count).sum();
        let largest = pieces.iter().map(|(len, _)| lines(*len)).max().unwrap_or(0);
        let least = usize::try_from(least).unwrap_or(0) / regions;
        let limit = (total / regions + largest).max(least).next_multiple_of(PAGE);
        Self { filled: vec![0; regions], limit, next: 0 }
    }

    /// A place for one of the pieces.
    ///
    /// # Panics
    ///
    /// When the piece was not announced.
    pub(crate) fn place(&mut self, len: usize) -> Place {
        let (len, regions) = (lines(len), self.filled.len());
        for turn in 0..regions {
            let region = (self.next + turn) % regions;
            let offset = self.filled[region];
            if self.limit - offset >= len {
                self.filled[region] += len;
                self.next = region + 1;
                return Place { region, offset };
            }
        }
        panic!("the plan has room for what was announced");
    }

    /// Makes the memory.
    pub(crate) fn build(&self, user_is_guest: bool) -> Result<Memory> {
        let mut guest_address = LOWEST;
        let mut regions = Vec::with_capacity(self.filled.len());
        for index in 0..self.filled.len() {
            // Not at the start of its file, so that the offset of a region counts.
            let file_offset = (index * PAGE) as u64;
            let region = Region::new(self.limit, file_offset, guest_address, user_is_guest)
                .map_err(|error| Error::System("guest memory", error))?;
            guest_address = (guest_address + self.limit as u64).next_multiple_of(HUGE) + GAP;
            regions.push(region);
        }
        Ok(Memory { regions })
    }
}

/// The guest's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    regions: Vec<Region>,
}

#[derive(Debug)]
struct Region {
    mapping: MmapRegion,
    guest_address: u64,
    user_address: u64,
}

impl Memory {
    /// A whole region.
    #[inline]
    pub(crate) fn region(&self, index: usize) -> Slice<'_> {
        self.regions[index].mapping.as_volatile_slice()
    }

    /// Some bytes.
    ///
    /// # Panics
    ///
    /// When they reach beyond the region.
    #[inline]
    pub(crate) fn slice(&self, place: Place, len: usize) -> Slice<'_> {
        self.regions[place.region].mapping.get_slice(place.offset, len).expect(INSIDE)
    }

    /// The address the guest has for a place.
    pub(crate) fn guest_address(&self, place: Place) -> u64 {
        self.regions[place.region].guest_address + place.offset as u64
    }

    /// The address the guest's host has for a place.
    pub(crate) fn user_address(&self, place: Place) -> u64 {
        self.regions[place.region].user_address + place.offset as u64
    }

    /// The regions as the back end is told of them.
    pub(crate) fn describe(&self) -> Vec<VhostUserMemoryRegionInfo> {
        self.regions
            .iter()
            .map(|region| {
                let file = region.mapping.file_offset().expect("a region is made from a file");
                VhostUserMemoryRegionInfo {
                    guest_phys_addr: region.guest_address,
                    memory_size: region.mapping.size() as u64,
                    userspace_addr: region.user_address,
                    mmap_offset: file.start(),
                    mmap_handle: file.file().as_raw_fd(),
                }
            })
            .collect()
    }
}

impl Region {
    fn new(
        len: usize,
        file_offset: u64,
        guest_address: u64,
        user_is_guest: bool,
    ) -> io::Result<Self> {
        let file = File::from(memfd_create("guest-memory", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, file_offset + len as u64)?;
        let mapping = MmapRegion::from_file(FileOffset::new(file, file_offset), len)
            .map_err(io::Error::other)?;
        let user_address = if user_is_guest { guest_address } else { guest_address + USER };
        Ok(Self { mapping, guest_address, user_address })
    }
}

/// The bytes to set aside for something: an odd number of cache lines, so that buffers of a round size
/// don't all start in the same few sets of the cache.
fn lines(len: usize) -> usize {
    len.next_multiple_of(LINE) | LINE
}

pub(crate) const INSIDE: &str = "what the plan placed lies inside its region";

/// A cache line; everything starts on one of its own.
const LINE: usize = 64;
const PAGE: usize = 4096;
const HUGE: u64 = 2 << 20;
/// Between two regions of guest-physical space.
const GAP: u64 = 256 << 20;
/// The guest-physical address of the first region.
const LOWEST: u64 = 1 << 20;
/// From guest-physical addresses to those of the guest's (imagined) host process.
const USER: u64 = 0x7f00_0000_0000;

#[cfg(test)]
mod tests {
    use vm_memory::Bytes;

    use super::*;

    #[test]
    fn every_announced_piece_finds_room_in_turn() {
        for regions in 1..=4 {
            let pieces = [(100, 37), (65_600, 9), (4097, 3)];
            let mut plan = Plan::new(regions, 0, &pieces);
            let mut places = Vec::new();
            for (len, count) in pieces {
                for _ in 0..count {
                    places.push((plan.place(len), len));
                }
            }
            let memory = plan.build(false).unwrap();
            assert_eq!(memory.describe().len(), regions);
            let used: std::collections::BTreeSet<_> = places.iter().map(|p| p.0.region).collect();
            assert_eq!(used.len(), regions);
            // No two overlap: each is filled with its number, then read back.
            for (number, (place, len)) in places.iter().enumerate() {
                let byte = u8::try_from(number).unwrap();
                memory.slice(*place, *len).copy_from(&vec![byte; *len]);
            }
            for (number, (place, len)) in places.iter().enumerate() {
                let mut bytes = vec![0; *len];
                memory.slice(*place, *len).read_slice(&mut bytes, 0).unwrap();
                assert!(bytes.iter().all(|byte| usize::from(*byte) == number));
            }
        }
    }

    #[test]
    fn regions_are_apart_and_described() {
        let memory = Plan::new(3, 3 << 20, &[]).build(false).unwrap();
        let described = memory.describe();
        for (index, pair) in described.windows(2).enumerate() {
            assert!(pair[0].guest_phys_addr + pair[0].memory_size < pair[1].guest_phys_addr);
            assert_eq!(pair[0].mmap_offset, index as u64 * 4096);
        }
        assert_eq!(described[2].memory_size, 1 << 20);
        let place = Place { region: 2, offset: 64 };
        assert_eq!(memory.guest_address(place), described[2].guest_phys_addr + 64);
        assert_eq!(memory.user_address(place), described[2].userspace_addr + 64);
        let flat = Plan::new(1, 4096, &[]).build(true).unwrap();
        assert_eq!(flat.user_address(Place { region: 0, offset: 8 }), LOWEST + 8);
    }
}

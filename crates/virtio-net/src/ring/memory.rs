//! Guest memory as this crate reaches it: checked stretches behind cached pointers.
//!
//! [`Memory`] finds the host address of a guest address. [`Area`] is a ring structure: found and checked
//! once, then read and written by offset. [`Scatter`] is the buffers of a chain: each checked when it is
//! added, then read and written in one pass. All three keep the mapping alive; no pointer leaves them.
//!
//! The guest may change any of this memory at any time. So nothing here makes a reference to it: ring
//! fields are volatile or atomic accesses of one word, bulk data is copied.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

/// An address range that is not, or not wholly, guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at guest address {address:#x} are not all guest memory")]
pub struct Outside {
    /// First guest address.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A guest's memory, as it was mapped when this was made.
///
/// Not shared between threads: each ring has its own, with its own memory of the region that was hit
/// last.
pub struct Memory {
    /// In the order of their guest addresses, none empty, none overlapping.
    regions: Box<[Region]>,
    last: Cell<Region>,
    mapping: Arc<GuestMemoryMmap<()>>,
}

/// A pointer into the mapping.
#[derive(Clone, Copy)]
struct Host(NonNull<u8>);

// SAFETY: the memory behind it is shared with another process anyway, is valid on all threads, and is
// only accessed through the functions of this module, none of which relies on being alone.
unsafe impl Send for Host {}

#[derive(Clone, Copy)]
struct Region {
    start: u64,
    len: u64,
    host: Host,
}

impl Memory {
    /// The regions of this mapping.
    pub fn new(mapping: Arc<GuestMemoryMmap<()>>) -> Self {
        let mut regions: Vec<_> = mapping
            .iter()
            .filter_map(|region| {
                let (start, len) = (region.start_addr().0, region.len());
                let host = Host(NonNull::new(region.as_ptr())?);
                (len > 0).then_some(Region { start, len, host })
            })
            .collect();
        regions.sort_unstable_by_key(|region| region.start);
        let nowhere = Region { start: 0, len: 0, host: Host(NonNull::dangling()) };
        let last = Cell::new(regions.first().copied().unwrap_or(nowhere));
        Self { regions: regions.into(), last, mapping }
    }

    /// Copies guest memory from `address` on into `to`. The regions that it lies in may be several, when
    /// one starts where the other ends.
    ///
    /// # Errors
    ///
    /// When not all of it is guest memory; `to` may then be filled in part.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Outside> {
        let outside = Outside { address, len: to.len() as u64 };
        let (mut address, mut rest) = (address, to);
        while !rest.is_empty() {
            let part = self.part(address, rest.len() as u64).ok_or(outside)?;
            let (now, later) = rest.split_at_mut(part.len);
            part.read(0, now);
            address = address.wrapping_add(part.len as u64);
            rest = later;
        }
        Ok(())
    }

    /// Copies `from` into guest memory from `address` on, across regions as [`read`](Self::read) does.
    ///
    /// # Errors
    ///
    /// When not all of it is guest memory; a part may then be written.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), Outside> {
        let outside = Outside { address, len: from.len() as u64 };
        let (mut address, mut rest) = (address, from);
        while !rest.is_empty() {
            let part = self.part(address, rest.len() as u64).ok_or(outside)?;
            let (now, later) = rest.split_at(part.len);
            part.write(0, now);
            address = address.wrapping_add(part.len as u64);
            rest = later;
        }
        Ok(())
    }

    /// 16 bytes as two little-endian words, each byte read once and from then on ours.
    #[inline]
    pub(super) fn read_16(&self, address: u64) -> Result<[u64; 2], Outside> {
        match self.part(address, 16) {
            Some(part) if part.len == 16 => Ok(part.read_16(0)),
            _ => {
                let mut bytes = [[0; 8]; 2];
                self.read(address, bytes.as_flattened_mut())?;
                Ok(bytes.map(u64::from_le_bytes))
            }
        }
    }

    /// What lies at this address in one region: `len` bytes, or less when the region ends before;
    /// never nothing.
    #[inline]
    fn part(&self, address: u64, len: u64) -> Option<Part> {
        let mut region = self.last.get();
        let mut offset = address.wrapping_sub(region.start);
        if offset >= region.len {
            region = self.search(address)?;
            offset = address - region.start;
            self.last.set(region);
        }
        let len = len.min(region.len - offset);
        let (Ok(offset), Ok(len)) = (usize::try_from(offset), usize::try_from(len)) else {
            return None;
        };
        // SAFETY: the offset was checked to lie inside the region, which is one mapping.
        let host = Host(unsafe { region.host.0.add(offset) });
        Some(Part { host, len })
    }

    #[cold]
    fn search(&self, address: u64) -> Option<Region> {
        let behind = self.regions.partition_point(|region| region.start <= address);
        let region = self.regions[..behind].last()?;
        (address - region.start < region.len).then_some(*region)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let regions = self.regions.iter();
        f.debug_list()
            .entries(regions.map(|region| format!("{:#x}+{:#x}", region.start, region.len)))
            .finish()
    }
}

/// A stretch of guest memory in one region. Valid as long as the mapping is: whoever has one has the
/// [`Memory`] that it came from, or its mapping.
#[derive(Clone, Copy)]
struct Part {
    host: Host,
    len: usize,
}

impl Part {
    #[inline]
    fn read(self, offset: usize, to: &mut [u8]) {
        assert!(offset <= self.len && to.len() <= self.len - offset, "inside the part");
        // SAFETY: the offset is inside the part, see above.
        let from = unsafe { self.host.0.add(offset) };
        // SAFETY: as many bytes are inside the part; `to` is our own memory, which no guest's overlaps.
        unsafe { from.as_ptr().copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    #[inline]
    fn write(self, offset: usize, from: &[u8]) {
        assert!(offset <= self.len && from.len() <= self.len - offset, "inside the part");
        // SAFETY: the offset is inside the part, see above.
        let to = unsafe { self.host.0.add(offset) };
        // SAFETY: as many bytes are inside the part; `from` is our own memory, which no guest's overlaps.
        unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// A few bytes, each read once and from then on ours.
    #[inline]
    fn read_array<const N: usize>(self, offset: usize) -> [u8; N] {
        assert!(offset <= self.len && N <= self.len - offset, "inside the part");
        // SAFETY: the offset is inside the part, see above.
        let from = unsafe { self.host.0.add(offset) };
        // SAFETY: N bytes are inside the part, and bytes have no alignment.
        unsafe { from.cast::<[u8; N]>().as_ptr().read_volatile() }
    }

    /// 16 bytes, each read once; two loads where the address is aligned, as it is in every table that a
    /// sane driver makes.
    #[inline]
    fn read_16(self, offset: usize) -> [u64; 2] {
        assert!(offset <= self.len && 16 <= self.len - offset, "inside the part");
        // SAFETY: the offset is inside the part, see above.
        let from = unsafe { self.host.0.add(offset) }.cast::<u64>();
        if !from.is_aligned() {
            let [first, second] = [self.read_array(offset), self.read_array(offset + 8)];
            return [u64::from_le_bytes(first), u64::from_le_bytes(second)];
        }
        // SAFETY: the second word is inside the part as well.
        let behind = unsafe { from.add(1) };
        // SAFETY: the word is inside the part and aligned, see above.
        let first = unsafe { from.as_ptr().read_volatile() };
        // SAFETY: as for the first.
        let second = unsafe { behind.as_ptr().read_volatile() };
        [u64::from_le(first), u64::from_le(second)]
    }

    #[inline]
    fn write_array<const N: usize>(self, offset: usize, bytes: [u8; N]) {
        assert!(offset <= self.len && N <= self.len - offset, "inside the part");
        // SAFETY: the offset is inside the part, see above.
        let to = unsafe { self.host.0.add(offset) };
        // SAFETY: N bytes are inside the part, and bytes have no alignment.
        unsafe { to.cast::<[u8; N]>().as_ptr().write(bytes) };
    }

    /// The address of an aligned 16-bit field.
    #[inline]
    fn field(self, offset: usize) -> NonNull<u16> {
        assert!(offset.is_multiple_of(2) && offset + 2 <= self.len, "inside the part");
        // SAFETY: the offset is inside the part, see above.
        unsafe { self.host.0.add(offset) }.cast()
    }
}

/// A structure in guest memory that lies in one region: a descriptor table or half a ring.
pub(super) struct Area {
    /// At least 2-byte aligned in our address space.
    part: Part,
    /// Keeps the part valid.
    _mapping: Arc<GuestMemoryMmap<()>>,
}

impl Area {
    /// `len` bytes at the guest address; `None` when they are not all in one region.
    pub(super) fn new(memory: &Memory, address: u64, len: usize) -> Option<Self> {
        let part = memory.part(address, len as u64)?;
        let aligned = part.host.0.cast::<u16>().is_aligned();
        (aligned && part.len == len).then(|| Self { part, _mapping: Arc::clone(&memory.mapping) })
    }

    /// Reads a 16-bit field, once.
    #[inline]
    pub(super) fn read_u16(&self, offset: usize) -> u16 {
        let field = self.part.field(offset);
        // SAFETY: the field is inside the area and aligned: `field` checks it, `new` the area's start.
        u16::from_le(unsafe { field.as_ptr().read_volatile() })
    }

    /// Writes a 16-bit field.
    #[inline]
    pub(super) fn write_u16(&self, offset: usize, value: u16) {
        let field = self.part.field(offset);
        // SAFETY: as for `read_u16`.
        unsafe { field.as_ptr().write_volatile(value.to_le()) };
    }

    /// Reads an index and orders everything that is read later behind it.
    #[inline]
    pub(super) fn load_acquire(&self, offset: usize) -> u16 {
        let field = self.part.field(offset);
        // SAFETY: as for `read_u16`; all accesses to an index are atomic, on the guest's side as well.
        let field = unsafe { AtomicU16::from_ptr(field.as_ptr()) };
        u16::from_le(field.load(Ordering::Acquire))
    }

    /// Writes an index and orders everything that was written before ahead of it.
    #[inline]
    pub(super) fn store_release(&self, offset: usize, value: u16) {
        let field = self.part.field(offset);
        // SAFETY: as for `load_acquire`.
        let field = unsafe { AtomicU16::from_ptr(field.as_ptr()) };
        field.store(value.to_le(), Ordering::Release);
    }

    /// Reads 16 bytes as two little-endian words, once.
    #[inline]
    pub(super) fn read_16(&self, offset: usize) -> [u64; 2] {
        self.part.read_16(offset)
    }

    /// Writes bytes.
    #[inline]
    pub(super) fn write_array<const N: usize>(&self, offset: usize, bytes: [u8; N]) {
        self.part.write_array(offset, bytes);
    }
}

/// The buffers of one or several chains, in order, and a position in them.
pub(super) struct Scatter {
    memory: Memory,
    parts: Vec<Part>,
    /// The position: the part, and the offset in it.
    at: usize,
    offset: usize,
}

impl Scatter {
    pub(super) fn new(memory: Memory, capacity: usize) -> Self {
        Self { memory, parts: Vec::with_capacity(capacity), at: 0, offset: 0 }
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Forgets all buffers; the position is the start again.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.at = 0;
        self.offset = 0;
    }

    /// How many parts the buffers lie in.
    #[inline]
    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Forgets all parts but the first `count`.
    #[inline]
    pub(super) fn truncate(&mut self, count: usize) {
        self.parts.truncate(count);
    }

    /// Adds a buffer that lies in one region; answers whether it does.
    #[inline]
    pub(super) fn push_whole(&mut self, address: u64, len: u32) -> bool {
        match self.memory.part(address, u64::from(len)) {
            Some(part) if part.len as u64 == u64::from(len) => {
                self.parts.push(part);
                true
            }
            _ => false,
        }
    }

    /// Adds a buffer, in as many parts as there are regions.
    #[inline]
    pub(super) fn push(&mut self, address: u64, len: u32) -> Result<(), Outside> {
        let whole = u64::from(len);
        let outside = Outside { address, len: whole };
        let (mut address, mut rest) = (address, whole);
        while rest > 0 {
            let part = self.memory.part(address, rest).ok_or(outside)?;
            self.parts.push(part);
            rest -= part.len as u64;
            address = address.wrapping_add(part.len as u64);
        }
        Ok(())
    }

    /// Writes at the position and moves it; answers how many bytes there was room for.
    #[inline]
    pub(super) fn write(&mut self, from: &[u8]) -> usize {
        let mut rest = from;
        while let Some(part) = self.parts.get(self.at) {
            let count = rest.len().min(part.len - self.offset);
            let (now, later) = rest.split_at(count);
            part.write(self.offset, now);
            rest = later;
            if rest.is_empty() {
                self.offset += count;
                break;
            }
            self.at += 1;
            self.offset = 0;
        }
        from.len() - rest.len()
    }

    /// Writes a few bytes at the position and moves it; answers how many there was room for.
    #[inline]
    pub(super) fn write_array<const N: usize>(&mut self, bytes: [u8; N]) -> usize {
        match self.parts.get(self.at) {
            Some(part) if part.len - self.offset >= N => {
                part.write_array(self.offset, bytes);
                self.offset += N;
                N
            }
            _ => self.write(&bytes),
        }
    }

    /// Reads from the position and moves it; answers how many bytes there were.
    #[inline]
    pub(super) fn read(&mut self, to: &mut [u8]) -> usize {
        let whole = to.len();
        let mut rest = to;
        while let Some(part) = self.parts.get(self.at) {
            let count = rest.len().min(part.len - self.offset);
            let (now, later) = rest.split_at_mut(count);
            part.read(self.offset, now);
            rest = later;
            if rest.is_empty() {
                self.offset += count;
                break;
            }
            self.at += 1;
            self.offset = 0;
        }
        whole - rest.len()
    }

    /// Reads a few bytes from the position, each once, and moves it; `None` when there are fewer.
    #[inline]
    pub(super) fn read_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        match self.parts.get(self.at) {
            Some(part) if part.len - self.offset >= N => {
                let bytes = part.read_array(self.offset);
                self.offset += N;
                Some(bytes)
            }
            _ => {
                let mut bytes = [0; N];
                for byte in &mut bytes {
                    *byte = self.read_byte()?;
                }
                Some(bytes)
            }
        }
    }

    fn read_byte(&mut self) -> Option<u8> {
        while let Some(part) = self.parts.get(self.at) {
            if self.offset < part.len {
                let [byte] = part.read_array(self.offset);
                self.offset += 1;
                return Some(byte);
            }
            self.at += 1;
            self.offset = 0;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    fn memory(regions: &[(u64, usize)]) -> (Arc<GuestMemoryMmap<()>>, Memory) {
        let ranges: Vec<_> = regions.iter().map(|(at, len)| (GuestAddress(*at), *len)).collect();
        let map = Arc::new(GuestMemoryMmap::from_ranges(&ranges).unwrap());
        let memory = Memory::new(Arc::clone(&map));
        (map, memory)
    }

    #[test]
    fn copies_cross_adjacent_regions_and_stop_at_gaps() {
        let (map, memory) = memory(&[(0x1000, 0x1000), (0x2000, 0x1000), (0x4000, 0x1000)]);
        let bytes: Vec<u8> = (0..=255).collect();
        memory.write(0x1f80, &bytes).unwrap();
        let mut back = vec![0; 256];
        map.read_slice(&mut back, GuestAddress(0x1f80)).unwrap();
        assert_eq!(back, bytes);
        back.fill(0);
        memory.read(0x1f80, &mut back).unwrap();
        assert_eq!(back, bytes);
        let outside = Err(Outside { address: 0x2f80, len: 256 });
        assert_eq!(memory.write(0x2f80, &bytes), outside);
        assert_eq!(memory.read(0x2f80, &mut back), outside);
        for address in [0, 0xfff, 0x3000, 0x3fff, 0x5000, u64::MAX] {
            assert!(memory.read(address, &mut [0]).is_err(), "{address:#x}");
        }
        assert_eq!(memory.read(0x3000, &mut []), Ok(()));
    }

    #[test]
    fn an_address_range_does_not_wrap_around() {
        let (_map, memory) = memory(&[(0, 0x1000), (u64::MAX - 0xfff, 0xfff)]);
        assert!(memory.write(u64::MAX - 8, &[1; 16]).is_err());
        assert!(Area::new(&memory, u64::MAX - 8, 16).is_none());
    }

    #[test]
    fn an_area_lies_in_one_region() {
        let (_map, memory) = memory(&[(0x1000, 0x1000), (0x2000, 0x1000)]);
        assert!(Area::new(&memory, 0x1ff0, 16).is_some());
        assert!(Area::new(&memory, 0x1ff0, 18).is_none());
        assert!(Area::new(&memory, 0x1001, 16).is_none(), "not aligned in our address space");
        let area = Area::new(&memory, 0x2000, 16).unwrap();
        area.write_u16(2, 0x1234);
        assert_eq!(area.read_u16(2), 0x1234);
        area.store_release(4, 7);
        assert_eq!(area.load_acquire(4), 7);
    }

    #[test]
    #[should_panic(expected = "inside the part")]
    fn an_area_ends() {
        let (_map, memory) = memory(&[(0x1000, 0x1000)]);
        Area::new(&memory, 0x1000, 16).unwrap().write_u16(16, 1);
    }

    #[test]
    fn buffers_are_written_and_read_in_order() {
        let (map, memory) = memory(&[(0x1000, 0x1000), (0x2000, 0x1000)]);
        let mut scatter = Scatter::new(memory, 4);
        scatter.push(0x1100, 3).unwrap();
        scatter.push(0x1ffe, 4).unwrap();
        scatter.push(0x1200, 5).unwrap();
        assert_eq!(scatter.parts(), 4, "the second buffer lies in two regions");
        assert_eq!(scatter.push(0x2fff, 2), Err(Outside { address: 0x2fff, len: 2 }));
        scatter.truncate(4);
        assert_eq!(scatter.write_array(*b"ab"), 2);
        assert_eq!(scatter.write_array(*b"cdef"), 4);
        assert_eq!(scatter.write(b"ghijklmn"), 6);
        let mut bytes = [0; 5];
        map.read_slice(&mut bytes, GuestAddress(0x1200)).unwrap();
        assert_eq!(&bytes, b"hijkl");

        scatter.clear();
        scatter.push(0x1100, 3).unwrap();
        scatter.push(0x1ffe, 4).unwrap();
        assert_eq!(scatter.read_array(), Some(*b"a"));
        assert_eq!(scatter.read_array(), Some(*b"bcd"));
        assert_eq!(scatter.read(&mut bytes), 3);
        assert_eq!(&bytes[..3], b"efg");
        assert_eq!(scatter.read_array::<1>(), None);
    }
}

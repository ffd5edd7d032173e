//! DMA memory: what the device and we both read and write.
//!
//! Life of a region: memory is set aside, zeroed, and mapped at an [`Iova`] that the device uses; the
//! driver reads and writes values at offsets, or makes it a [`DmaRing`], or packet memory
//! ([`DmaRegion::into_packet_memory`]); when it is dropped the device loses it first, then the memory
//! goes. The driver stops the device's use of a region before it drops it.
//!
//! The order between memory and doorbells has two names, and no other fence is written by drivers:
//!
//! ```text
//!   driver                                      device
//!   write descriptors
//!   release_to_device() ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▶
//!   write the doorbell                          reads the descriptors it was told of
//!                                               writes packet, then the event
//!   read the event: it is valid
//!   acquire_from_device() ◀┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
//!   read the packet
//! ```

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use crate::iova::IovaMap;
use crate::memory::{Cells, HUGE_PAGE, Memory, PAGE, as_u64};
use crate::packets::PacketMemory;
use crate::{Error, Iova, Value};

/// Everything written to DMA memory before this is seen by the device before the doorbell written
/// after it. Partner: the device's own read of descriptors after the doorbell.
///
/// On x86-64 stores reach memory and device in program order, and this holds the compiler to it.
#[inline]
pub fn release_to_device() {
    fence(Ordering::Release);
}

/// Everything read from DMA memory after this is at least as new as the event read before it.
/// Partner: the device's writing the packet before its event.
///
/// On x86-64 loads are done in program order, and this holds the compiler to it.
#[inline]
pub fn acquire_from_device() {
    fence(Ordering::Acquire);
}

/// How a way in shows memory to its device.
pub(crate) trait Mapper: Send + Sync {
    /// Memory of the kind the device can be shown.
    fn allocate(&self, len: usize) -> io::Result<Memory> {
        Memory::shared(len)
    }

    /// Shows all of it to the device at that address.
    fn map(&self, iova: Iova, memory: &Arc<Memory>) -> Result<(), Error>;

    /// Takes it away again.
    fn unmap(&self, iova: Iova, len: u64) -> Result<(), Error>;
}

/// A function's view of memory: which addresses are taken, and the way to map more.
pub(crate) struct Space {
    name: String,
    taken: Mutex<IovaMap>,
    mapper: Box<dyn Mapper>,
}

impl Space {
    pub(crate) fn new(name: &str, taken: IovaMap, mapper: Box<dyn Mapper>) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), taken: Mutex::new(taken), mapper })
    }

    /// Zeroed memory, mapped where there is room.
    pub(crate) fn allocate(self: &Arc<Self>, len: usize, align: usize) -> Result<DmaRegion, Error> {
        if len == 0 || !align.is_power_of_two() {
            return Err(Error::DmaShape { bytes: len, align });
        }
        let memory = self.mapper.allocate(len).map_err(|source| Error::Memory {
            name: self.name.clone(),
            bytes: len,
            source,
        })?;
        // Huge pages of memory become huge pages of the IOMMU when the addresses agree.
        let page = if memory.len() >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let bytes = as_u64(memory.len());
        let iova = self.taken().allocate(bytes, as_u64(align.max(page)))?;
        self.map(iova, memory, len)
    }

    /// Part of a file, mapped at an address of the caller's choice.
    pub(crate) fn map_file(
        self: &Arc<Self>,
        iova: Iova,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<DmaRegion, Error> {
        let whole = |value: u64| value.is_multiple_of(as_u64(PAGE));
        if len == 0 || !whole(as_u64(len)) || !whole(iova.get()) || !whole(offset) {
            return Err(Error::NotPages { iova, offset, bytes: len });
        }
        let memory = file
            .try_clone_to_owned()
            .and_then(|file| Memory::of_file(file, offset, len))
            .map_err(|source| Error::Memory { name: self.name.clone(), bytes: len, source })?;
        self.taken().take(iova, as_u64(len))?;
        self.map(iova, memory, len)
    }

    /// Maps memory at an address that has been taken for it.
    fn map(self: &Arc<Self>, iova: Iova, memory: Memory, len: usize) -> Result<DmaRegion, Error> {
        let memory = Arc::new(memory);
        if let Err(error) = self.mapper.map(iova, &memory) {
            self.taken().release(iova);
            return Err(error);
        }
        let mapping = Mapping { iova, len: as_u64(memory.len()), space: Some(Arc::clone(self)) };
        Ok(DmaRegion { mapping, memory, len })
    }

    fn taken(&self) -> std::sync::MutexGuard<'_, IovaMap> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device's sight of a region; dropping it ends that.
struct Mapping {
    iova: Iova,
    len: u64,
    space: Option<Arc<Space>>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Some(space) = &self.space else { return };
        match space.mapper.unmap(self.iova, self.len) {
            Ok(()) => space.taken().release(self.iova),
            // The address stays taken. The memory may go all the same: a kernel or server that did not
            // take the mapping away holds the pages by itself.
            Err(error) => log::warn!("{}: {} stays mapped: {error}", space.name, self.iova),
        }
    }
}

/// Memory that the device reads and writes, at [`Self::iova`].
///
/// Values are little-endian in memory. What the device wrote is a value that was read once: read it
/// into a local, check it, use the local.
pub struct DmaRegion {
    // In this order: the device loses the memory before it is freed.
    mapping: Mapping,
    memory: Arc<Memory>,
    len: usize,
}

impl DmaRegion {
    /// Where the device sees the first byte.
    #[inline]
    pub fn iova(&self) -> Iova {
        self.mapping.iova
    }

    /// The length asked for, in bytes. The mapping ends at the next page's end.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reads a value, once.
    ///
    /// # Panics
    ///
    /// When it is not whole inside the region, or the offset is not a multiple of its size.
    #[inline]
    pub fn read<V: Value>(&self, offset: usize) -> V {
        self.check(offset, size_of::<V>());
        self.memory.load(offset)
    }

    /// Writes a value.
    ///
    /// # Panics
    ///
    /// As [`Self::read`].
    #[inline]
    pub fn write<V: Value>(&self, offset: usize, value: V) {
        self.check(offset, size_of::<V>());
        self.memory.store(offset, value);
    }

    /// Copies bytes out, each as it is at some moment of the call.
    ///
    /// # Panics
    ///
    /// When they are not all inside.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.check(offset, bytes.len());
        self.memory.copy_out(offset, bytes);
    }

    /// Copies bytes in.
    ///
    /// # Panics
    ///
    /// When they do not all fit.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        self.memory.copy_in(offset, bytes);
    }

    /// Makes it packet memory: plain bytes of ours for the life of the process, from which stretches
    /// are lent to the device. All of it is handed out here, once; the [`PacketMemory`] does the
    /// lending.
    ///
    /// The device sees the memory for as long as the function is open.
    pub fn into_packet_memory(self) -> (&'static mut [u8], PacketMemory) {
        let Self { mut mapping, memory, len } = self;
        // Not unmapped one by one; closing the function does.
        mapping.space = None;
        PacketMemory::new(memory, len, mapping.iova)
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        let inside = offset <= self.len && len <= self.len - offset;
        assert!(inside, "{len} bytes at {offset} of a DMA region of {} bytes", self.len);
    }
}

impl fmt::Debug for DmaRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaRegion({} bytes at {})", self.len, self.iova())
    }
}

/// A ring of values in DMA memory: descriptors for the device, or events from it.
///
/// Indices run free and are masked here, so an index never leaves the ring.
pub struct DmaRing<V> {
    // In this order: cells first, then the device's sight of the memory, then the memory.
    cells: Cells<V>,
    region: DmaRegion,
}

impl<V: Value> DmaRing<V> {
    /// A ring of `entries` values from the start of the region on.
    ///
    /// # Panics
    ///
    /// When `entries` is not a power of two or they do not all fit.
    pub fn new(region: DmaRegion, entries: u32) -> Self {
        let bytes = usize::try_from(entries).ok().and_then(|n| n.checked_mul(size_of::<V>()));
        let fits = bytes.is_some_and(|bytes| bytes <= region.len);
        let cells = region.memory.cells(0, entries).filter(|_| fits);
        let cells = cells.expect("a power of two of entries that the region has room for");
        Self { cells, region }
    }

    /// Where the device sees the first entry.
    pub fn iova(&self) -> Iova {
        self.region.iova()
    }

    /// How many entries there are.
    pub fn entries(&self) -> u32 {
        self.mask() + 1
    }

    /// What an index is masked with.
    #[inline]
    pub fn mask(&self) -> u32 {
        self.cells.mask()
    }

    /// Reads the entry at that index modulo the number of entries: one load.
    #[inline]
    pub fn read(&self, index: u32) -> V {
        self.cells.load(index)
    }

    /// Writes the entry at that index modulo the number of entries: one store.
    #[inline]
    pub fn write(&mut self, index: u32, value: V) {
        self.cells.store(index, value);
    }

    /// Writes the same value everywhere.
    pub fn fill(&mut self, value: V) {
        for index in 0..self.entries() {
            self.write(index, value);
        }
    }
}

impl<V: Value> fmt::Debug for DmaRing<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaRing({} entries at {})", self.entries(), self.iova())
    }
}

#[cfg(test)]
mod tests {
    use crate::fake::{Fake, Script};
    use crate::{DmaRing, Error, PciFunction};

    fn fake() -> Fake {
        Fake::new(0x1000, Script::new())
    }

    #[test]
    fn both_sides_see_the_same_bytes() {
        let mut fake = fake();
        let host = fake.host();
        let region = fake.dma(100, 256).unwrap();
        assert!(region.iova().get().is_multiple_of(256));
        let mut bytes = [1; 100];
        host.read(region.iova(), &mut bytes);
        assert_eq!(bytes, [0; 100]);
        host.write(region.iova().add(8), &[1, 2, 3, 4]);
        assert_eq!(region.read::<u32>(8), 0x0403_0201);
        region.write(16, 0xa1b2_u16);
        host.read(region.iova().add(16), &mut bytes[..2]);
        assert_eq!(bytes[..2], [0xb2, 0xa1]);
    }

    #[test]
    #[should_panic(expected = "no memory of the host")]
    fn a_dropped_region_is_gone_for_the_device() {
        let mut fake = fake();
        let host = fake.host();
        let iova = fake.dma(8, 8).unwrap().iova();
        host.write(iova, &[1]);
    }

    #[test]
    fn addresses_are_used_again() {
        let mut fake = fake();
        let first = fake.dma(8, 8).unwrap();
        let second = fake.dma(8, 8).unwrap();
        let iova = first.iova();
        assert_ne!(iova, second.iova());
        drop(first);
        assert_eq!(fake.dma(8, 8).unwrap().iova(), iova);
    }

    #[test]
    #[should_panic(expected = "of a DMA region of 10 bytes")]
    fn the_rest_of_the_page_is_not_the_region() {
        let region = fake().dma(10, 1).unwrap();
        region.write(8, 0_u32);
    }

    #[test]
    fn shapes_that_no_memory_has() {
        assert!(matches!(fake().dma(0, 1), Err(Error::DmaShape { .. })));
        assert!(matches!(fake().dma(8, 3), Err(Error::DmaShape { .. })));
    }

    #[test]
    fn a_ring_turns_around() {
        let mut fake = fake();
        let host = fake.host();
        let mut ring = DmaRing::<u64>::new(fake.dma(64, 64).unwrap(), 8);
        ring.fill(u64::MAX);
        ring.write(u32::MAX, 7);
        ring.write(0, 8);
        assert_eq!((ring.read(7), ring.read(8), ring.read(1)), (7, 8, u64::MAX));
        let mut last = [0; 8];
        host.read(ring.iova().add(56), &mut last);
        assert_eq!(u64::from_le_bytes(last), 7);
    }

    #[test]
    #[should_panic(expected = "room for")]
    fn a_ring_larger_than_its_region_is_refused() {
        DmaRing::<u64>::new(fake().dma(63, 64).unwrap(), 8);
    }
}

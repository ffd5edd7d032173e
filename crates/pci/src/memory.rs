//! Memory that a device shares with us, and the only place that touches it: volatile loads and stores.
//!
//! Life: mapped from a file (a memfd for DMA, the server's for a BAR, the guest's for its memory)
//! or, for the fake, taken from the heap; used through offsets that are checked when they enter or
//! through [`Cell`]s and [`Cells`] that were checked when they were made; unmapped when the last
//! owner is gone. Every cell owns a share of the memory, so none can outlive it.
//!
//! The other side may change any byte at any time: bytes are copied out as values and no reference
//! to them is ever made here.

#![expect(unsafe_code, reason = "mmap, and volatile access to what a device writes")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::Value;

/// The size of a huge page on the machines this is for.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// The size of a plain page; `IOMMU` mappings are whole pages.
pub(crate) const PAGE: usize = 4096;

/// A stretch of shared memory.
///
/// Invariant: `base..base + len` is mapped, readable and writable until drop, and `base` is at least
/// page-aligned.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

enum Backing {
    /// Mapped from this file, from that offset on; kept to be given to the other side.
    Mapped { file: OwnedFd, offset: u64 },
    /// Registers of a device, which stays open as long as they are mapped.
    Device { _owner: Arc<dyn Send + Sync> },
    /// From the heap.
    Heap(Layout),
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mapped { .. } => "Mapped",
            Self::Device { .. } => "Device",
            Self::Heap(_) => "Heap",
        })
    }
}

// SAFETY: the memory is only accessed by volatile operations on raw pointers, which any thread may do;
// that others write to it at the same time is what it is for.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed memory of at least `len` bytes in a file of its own: huge pages when it is half a huge
    /// page or more and the system has some free, plain pages otherwise.
    pub(crate) fn shared(len: usize) -> io::Result<Self> {
        if len >= HUGE_PAGE / 2 {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
            // No huge page free is the usual case and not worth a word.
            if let Ok(memory) = Self::memfd(len.next_multiple_of(HUGE_PAGE), flags) {
                return Ok(memory);
            }
        }
        Self::memfd(len.next_multiple_of(PAGE), MemfdFlags::CLOEXEC)
    }

    fn memfd(len: usize, flags: MemfdFlags) -> io::Result<Self> {
        let file = rustix::fs::memfd_create("vhost-user-gro-dma", flags)?;
        rustix::fs::ftruncate(&file, as_u64(len))?;
        let base = map(file.as_fd(), 0, len)?;
        Ok(Self { base, len, backing: Backing::Mapped { file, offset: 0 } })
    }

    /// Part of a file that others map too; the file is kept.
    ///
    /// Fails when the file is known to end before the part does: touching it would be fatal.
    pub(crate) fn of_file(file: OwnedFd, offset: u64, len: usize) -> io::Result<Self> {
        let size = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        if offset.checked_add(as_u64(len)).is_none_or(|end| end > size) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the file has {size} bytes, wanted are {len} at {offset}"),
            ));
        }
        let base = map(file.as_fd(), offset, len)?;
        Ok(Self { base, len, backing: Backing::Mapped { file, offset } })
    }

    /// Registers, by the descriptor of an open device; the owner of that device is kept.
    pub(crate) fn of_device(
        device: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        owner: Arc<dyn Send + Sync>,
    ) -> io::Result<Self> {
        let base = map(device, offset, len)?;
        Ok(Self { base, len, backing: Backing::Device { _owner: owner } })
    }

    /// Zeroed memory from the heap, in whole pages.
    ///
    /// # Panics
    ///
    /// When `len` is 0 or no layout has it.
    pub(crate) fn heap(len: usize) -> Self {
        assert!(len > 0, "memory of no bytes");
        let len = len.next_multiple_of(PAGE);
        let layout = Layout::from_size_align(len, PAGE).expect("a size that memory can have");
        // SAFETY: the layout's size is not 0, by the assertion above.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Self { base, len, backing: Backing::Heap(layout) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first byte. What is done with it obeys the module's rule: volatile, or owned by the
    /// protocol with the device.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The file the memory is in, and where in it.
    pub(crate) fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.backing {
            Backing::Mapped { file, offset } => Some((file.as_fd(), *offset)),
            Backing::Device { .. } | Backing::Heap(_) => None,
        }
    }

    /// Whether `len` bytes at `offset` are inside.
    #[inline]
    pub(crate) fn contains(&self, offset: usize, len: usize) -> bool {
        offset <= self.len && len <= self.len - offset
    }

    /// A pointer to a value inside; `None` when it is not whole inside or not aligned.
    #[inline]
    fn pointer<V: Value>(&self, offset: usize) -> Option<NonNull<V>> {
        if !self.contains(offset, size_of::<V>()) || !offset.is_multiple_of(size_of::<V>()) {
            return None;
        }
        // SAFETY: the offset is inside the mapping, checked above.
        let pointer = unsafe { self.base.add(offset) };
        Some(pointer.cast())
    }

    /// Reads a value.
    ///
    /// # Panics
    ///
    /// When it is not whole inside, or not aligned.
    #[inline]
    pub(crate) fn load<V: Value>(&self, offset: usize) -> V {
        let pointer = self.pointer(offset).expect("an aligned offset inside the memory");
        load(pointer)
    }

    /// Writes a value.
    ///
    /// # Panics
    ///
    /// As [`Self::load`].
    #[inline]
    pub(crate) fn store<V: Value>(&self, offset: usize, value: V) {
        let pointer = self.pointer(offset).expect("an aligned offset inside the memory");
        store(pointer, value);
    }

    /// Copies bytes out, whatever they are at that moment.
    ///
    /// # Panics
    ///
    /// When they are not all inside.
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        assert!(self.contains(offset, bytes.len()), "bytes inside the memory");
        let head = self.to_aligned(offset, bytes.len());
        let (head, rest) = bytes.split_at_mut(head);
        let mut at = offset;
        for byte in head {
            *byte = self.load(at);
            at += 1;
        }
        let mut words = rest.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.load::<u64>(at).to_le_bytes());
            at += 8;
        }
        for byte in words.into_remainder() {
            *byte = self.load(at);
            at += 1;
        }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    ///
    /// When they do not all fit.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        assert!(self.contains(offset, bytes.len()), "bytes inside the memory");
        let head = self.to_aligned(offset, bytes.len());
        let (head, rest) = bytes.split_at(head);
        let mut at = offset;
        for &byte in head {
            self.store(at, byte);
            at += 1;
        }
        let words = rest.chunks_exact(8);
        let tail = words.remainder();
        for word in words {
            let word = word.try_into().expect("chunks of 8");
            self.store(at, u64::from_le_bytes(word));
            at += 8;
        }
        for &byte in tail {
            self.store(at, byte);
            at += 1;
        }
    }

    /// How many bytes of a copy come before the first multiple of 8.
    fn to_aligned(&self, offset: usize, len: usize) -> usize {
        (offset.next_multiple_of(8) - offset).min(len)
    }

    /// One value inside, checked here and never again; `None` as for [`Self::pointer`].
    pub(crate) fn cell<V: Value>(self: &Arc<Self>, offset: usize) -> Option<Cell<V>> {
        Some(Cell { pointer: self.pointer(offset)?, _memory: Arc::clone(self) })
    }

    /// A ring of values inside, checked here and never again; `None` when `count` is not a power of
    /// two, or as for [`Self::pointer`].
    pub(crate) fn cells<V: Value>(self: &Arc<Self>, offset: usize, count: u32) -> Option<Cells<V>> {
        let bytes = usize::try_from(count).ok()?.checked_mul(size_of::<V>())?;
        if !count.is_power_of_two() || !self.contains(offset, bytes) {
            return None;
        }
        let first = self.pointer(offset)?;
        Some(Cells { first, mask: count - 1, _memory: Arc::clone(self) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.backing {
            Backing::Mapped { .. } | Backing::Device { .. } => {
                // SAFETY: mapped by us with this base and length, and nobody holds a cell any more:
                // each owns a share of the memory.
                let result = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
                debug_assert!(result.is_ok(), "unmapping what was mapped: {result:?}");
            }
            Backing::Heap(layout) => {
                // SAFETY: allocated by us with this layout, and nobody holds a cell any more.
                unsafe { dealloc(self.base.as_ptr(), layout) };
            }
        }
    }
}

/// One value in shared memory: a load or a store, nothing else.
#[derive(Debug, Clone)]
pub(crate) struct Cell<V> {
    pointer: NonNull<V>,
    _memory: Arc<Memory>,
}

// SAFETY: as for the memory that the pointer points into.
unsafe impl<V: Value> Send for Cell<V> {}
// SAFETY: as above.
unsafe impl<V: Value> Sync for Cell<V> {}

impl<V: Value> Cell<V> {
    #[inline]
    pub(crate) fn load(&self) -> V {
        load(self.pointer)
    }

    #[inline]
    pub(crate) fn store(&self, value: V) {
        store(self.pointer, value);
    }
}

/// A ring of values in shared memory. Indices run free and are masked here.
///
/// Invariant: `mask + 1` aligned values from `first` on are inside the memory.
#[derive(Debug)]
pub(crate) struct Cells<V> {
    first: NonNull<V>,
    mask: u32,
    _memory: Arc<Memory>,
}

// SAFETY: as for the memory that the pointer points into.
unsafe impl<V: Value> Send for Cells<V> {}

impl<V: Value> Cells<V> {
    #[inline]
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    #[inline]
    fn pointer(&self, index: u32) -> NonNull<V> {
        let index = (index & self.mask) as usize;
        // SAFETY: the masked index is below the count, so the value is inside, by the invariant.
        unsafe { self.first.add(index) }
    }

    #[inline]
    pub(crate) fn load(&self, index: u32) -> V {
        load(self.pointer(index))
    }

    #[inline]
    pub(crate) fn store(&self, index: u32, value: V) {
        store(self.pointer(index), value);
    }
}

/// The one volatile load. Private: its callers hold a pointer made by [`Memory::pointer`] or
/// [`Cells::pointer`] and a share of the memory.
#[inline]
fn load<V: Value>(pointer: NonNull<V>) -> V {
    // SAFETY: aligned and inside mapped memory, by the callers; any bits are a value of these types.
    let value = unsafe { ptr::read_volatile(pointer.as_ptr()) };
    value.swap_if_big_endian()
}

/// The one volatile store, as [`load`].
#[inline]
fn store<V: Value>(pointer: NonNull<V>, value: V) {
    // SAFETY: aligned and inside mapped memory, by the callers, and no reference to it exists.
    unsafe { ptr::write_volatile(pointer.as_ptr(), value.swap_if_big_endian()) }
}

/// Maps part of a file, present from the start, wherever there is room.
fn map(file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: no address is asked for, so no other mapping is replaced.
    let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, flags, file, offset)? };
    Ok(NonNull::new(base.cast()).expect("a mapping is not at address 0"))
}

/// A length in the type that files and devices use.
pub(crate) fn as_u64(len: usize) -> u64 {
    u64::try_from(len).expect("usize has 64 bits or fewer")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_copy_at_any_offset_comes_back() {
        let memory = Memory::heap(PAGE);
        let bytes: Vec<u8> = (1..=100).collect();
        for offset in [0, 1, 7, 8, 13, PAGE - 100] {
            for len in [0, 1, 7, 8, 9, 64, 100] {
                memory.copy_in(offset, &bytes[..len]);
                let mut back = vec![0; len];
                memory.copy_out(offset, &mut back);
                assert_eq!(back, bytes[..len], "offset {offset}, {len} bytes");
            }
        }
    }

    #[test]
    fn values_are_little_endian() {
        let memory = Memory::heap(1);
        memory.store(8, 0x0123_4567_89ab_cdef_u64);
        assert_eq!(memory.load::<u8>(8), 0xef);
        assert_eq!(memory.load::<u16>(14), 0x0123);
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs memfd and mmap")]
    fn two_mappings_of_a_file_show_the_same_bytes() {
        let memory = Memory::shared(3 * PAGE).unwrap();
        assert_eq!(memory.load::<u64>(2 * PAGE), 0);
        let (file, offset) = memory.file().unwrap();
        let file = file.try_clone_to_owned().unwrap();
        assert_eq!(offset, 0);
        let other = Memory::of_file(file, as_u64(PAGE), 2 * PAGE).unwrap();
        memory.store(2 * PAGE, 77_u32);
        assert_eq!(other.load::<u32>(PAGE), 77);
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs memfd and mmap")]
    fn a_file_that_is_too_short_is_refused() {
        let memory = Memory::shared(PAGE).unwrap();
        let file = memory.file().unwrap().0.try_clone_to_owned().unwrap();
        let error = Memory::of_file(file, 0, 2 * PAGE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let file = memory.file().unwrap().0.try_clone_to_owned().unwrap();
        assert!(Memory::of_file(file, u64::MAX, PAGE).is_err());
    }

    #[test]
    #[should_panic(expected = "inside the memory")]
    fn a_load_over_the_end_is_refused() {
        let _: u32 = Memory::heap(PAGE).load(PAGE);
    }

    proptest! {
        #[test]
        fn cells_exist_exactly_for_aligned_places_inside(offset in 0_usize..2 * PAGE) {
            let memory = Arc::new(Memory::heap(PAGE));
            let inside = offset + 8 <= PAGE && offset % 8 == 0;
            prop_assert_eq!(memory.cell::<u64>(offset).is_some(), inside);
            let inside = offset < PAGE;
            prop_assert_eq!(memory.cell::<u8>(offset).is_some(), inside);
        }

        #[test]
        fn a_ring_never_leaves_its_bounds(
            offset in 0_usize..PAGE,
            count in 0_u32..1024,
            index in any::<u32>(),
        ) {
            let memory = Arc::new(Memory::heap(PAGE));
            let fits = count.is_power_of_two()
                && offset % 4 == 0
                && offset + 4 * usize::try_from(count).unwrap() <= PAGE;
            let cells = memory.cells::<u32>(offset, count);
            prop_assert_eq!(cells.is_some(), fits);
            if let Some(cells) = cells {
                cells.store(index, 9);
                let place = offset + 4 * usize::try_from(index % count).unwrap();
                prop_assert_eq!(memory.load::<u32>(place), 9);
                prop_assert_eq!(cells.load(index % count), 9);
            }
        }
    }
}

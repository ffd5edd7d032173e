//! Packet memory: plain bytes of ours, lent to the device and taken back.
//!
//! Life of a stretch: the driver owns it as `&'static mut [u8]` (in a packet buffer); [`PacketMemory::post`]
//! turns it into a [`Posted`], which holds no reference, for as long as its descriptor is with the
//! device; when the completion is there, [`Posted::take_back`] makes it ours again. So nobody reads
//! or writes the bytes while the device may, and afterwards they are ordinary memory.
//!
//! That a device no longer writes to what it has completed is the device's part of the bargain. One
//! that breaks it spoils packets in memory that holds nothing but packets.

#![expect(unsafe_code, reason = "memory is handed between us and the device")]

use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::Iova;
use crate::memory::{Memory, as_u64};

/// Lends stretches of one region to the device. Cheap to copy; lives as long as the process.
#[derive(Clone, Copy)]
pub struct PacketMemory {
    base: NonNull<u8>,
    len: usize,
    iova: Iova,
}

// SAFETY: an address and two numbers; the memory behind it never goes away.
unsafe impl Send for PacketMemory {}
// SAFETY: as above; only `post` makes pointers from it, out of memory that the caller owns.
unsafe impl Sync for PacketMemory {}

impl PacketMemory {
    /// Leaks the memory and hands all of it out.
    pub(crate) fn new(memory: Arc<Memory>, len: usize, iova: Iova) -> (&'static mut [u8], Self) {
        let base = memory.base();
        assert!(len <= memory.len(), "a region is inside its memory");
        Box::leak(Box::new(memory));
        // SAFETY: the bytes are mapped for the life of the process, since a share of the memory has
        // just been leaked; they are initialised (zeroed, or written by others); the region they were
        // has been consumed, so nothing else of ours refers to them.
        let bytes = unsafe { slice::from_raw_parts_mut(base.as_ptr(), len) };
        (bytes, Self { base, len, iova })
    }

    /// How many bytes there are, in use or not.
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Gives a stretch of this memory away, for the device.
    ///
    /// # Errors
    ///
    /// Gives the stretch back when it is not part of this memory.
    #[inline]
    pub fn post(&self, bytes: &'static mut [u8]) -> Result<Posted, &'static mut [u8]> {
        let Some(offset) = self.offset(bytes) else { return Err(bytes) };
        // From the memory's own pointer: the reference ends here, and what the device writes in the
        // meantime has nothing to do with it.
        // SAFETY: the offset is inside the memory, by `offset`.
        let pointer = unsafe { self.base.add(offset) };
        Ok(Posted { pointer, len: bytes.len(), iova: self.iova.add(as_u64(offset)) })
    }

    /// Where the device sees these bytes, to read them while they are lent to nobody: for transmit,
    /// where the frame is kept untouched until its completion. `None` when they are not part of this
    /// memory.
    #[inline]
    pub fn iova_of(&self, bytes: &[u8]) -> Option<Iova> {
        Some(self.iova.add(as_u64(self.offset(bytes)?)))
    }

    #[inline]
    fn offset(&self, bytes: &[u8]) -> Option<usize> {
        let offset = bytes.as_ptr().addr().checked_sub(self.base.as_ptr().addr())?;
        (offset <= self.len && bytes.len() <= self.len - offset).then_some(offset)
    }
}

impl fmt::Debug for PacketMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PacketMemory({} bytes at {})", self.len, self.iova)
    }
}

/// A stretch of packet memory that is with the device.
///
/// Dropping it loses the memory, but nothing worse.
#[must_use = "the memory is lost unless it is taken back"]
pub struct Posted {
    pointer: NonNull<u8>,
    len: usize,
    iova: Iova,
}

// SAFETY: it owns its bytes as the `&'static mut [u8]` did that it was made from.
unsafe impl Send for Posted {}

impl Posted {
    /// Where the device sees the first byte.
    #[inline]
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// How many bytes the device may use.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a buffer with no room is of no use")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Takes the memory back, after [`acquire_from_device`](crate::acquire_from_device) and once the
    /// device has completed it, or has been stopped.
    #[inline]
    pub fn take_back(self) -> &'static mut [u8] {
        // SAFETY: `post` consumed the only reference to exactly these bytes, of memory that lives as
        // long as the process, and this consumes what it gave.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Posted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Posted({} bytes at {})", self.len, self.iova)
    }
}

#[cfg(test)]
mod tests {
    use crate::fake::{Fake, Script};
    use crate::{PciFunction, acquire_from_device};

    #[test]
    fn a_buffer_goes_to_the_device_and_comes_back() {
        let mut fake = Fake::new(0x1000, Script::new());
        let host = fake.host();
        let region = fake.dma(4096, 64).unwrap();
        let iova = region.iova();
        let (bytes, memory) = region.into_packet_memory();
        let (first, second) = bytes.split_at_mut(2048);
        first[0] = 9;
        let posted = memory.post(second).unwrap();
        assert_eq!((posted.iova(), posted.len()), (iova.add(2048), 2048));
        host.write(posted.iova(), b"packet");
        acquire_from_device();
        let second = posted.take_back();
        assert_eq!(&second[..7], b"packet\0");
        second[0] = b'P';
        let mut seen = [0; 2];
        host.read(memory.iova_of(&second[..2]).unwrap(), &mut seen);
        assert_eq!((&seen, first[0]), (b"Pa", 9));
    }

    #[test]
    fn memory_from_elsewhere_is_given_back() {
        let mut fake = Fake::new(0x1000, Script::new());
        let (_, memory) = fake.dma(4096, 64).unwrap().into_packet_memory();
        let (other, _) = fake.dma(4096, 64).unwrap().into_packet_memory();
        assert_eq!(memory.iova_of(other), None);
        assert_eq!(memory.post(other).unwrap_err().len(), 4096);
    }

    #[test]
    fn memory_outlives_the_function() {
        let mut fake = Fake::new(0x1000, Script::new());
        let (bytes, memory) = fake.dma(64, 64).unwrap().into_packet_memory();
        drop(fake);
        let posted = memory.post(bytes).unwrap();
        posted.take_back()[63] = 1;
    }
}

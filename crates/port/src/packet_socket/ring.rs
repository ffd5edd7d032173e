//! The kernel's receive ring (TPACKET_V2), mapped.
//!
//! ```text
//!  slot n           slot n+1
//!  ┌──────┬────┬───────┬──────┬───────────┬──────┐
//!  │status│ …  │ addr. │ vnet │ frame     │      │   status: kernel's (0) or ours (USER)
//!  └──────┴────┴───────┴──────┴───────────┴──────┘
//!  0           32      mac-10 mac    mac+caplen
//! ```
//!
//! The kernel fills a slot and then sets its status; we read the status (acquire), copy what we want
//! out, and set it back (release). Slots are taken in order, and one call to `peek` reads each field
//! once. What the kernel wrote yields values, and bytes only by copy: nothing borrows from the ring.
//!
//! Why version 2: its slots are handed over one by one, at once. Version 3 hands over whole blocks, a
//! block that does not fill only after a timer of at least 1 ms (one tick of the clock before Linux
//! 6.18), which a TCP flow would see as round-trip time.

#![expect(unsafe_code, reason = "memory that the kernel writes to")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// The mapped ring.
#[derive(Debug)]
pub(super) struct Ring {
    base: NonNull<u8>,
    slot_size: usize,
    slots: usize,
    next: usize,
}

// SAFETY: the mapping belongs to the ring alone, and any thread may read and write it.
unsafe impl Send for Ring {}

/// What the kernel says of the frame in a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Slot {
    /// TP_STATUS_… bits.
    pub(super) status: u32,
    /// The frame's length.
    pub(super) len: usize,
    /// How much of it is in the slot.
    pub(super) captured: usize,
    /// Where it begins in the slot.
    pub(super) offset: usize,
    pub(super) vlan_tci: u16,
    pub(super) vlan_tpid: u16,
    /// PACKET_HOST, PACKET_OUTGOING, …
    pub(super) kind: u8,
}

impl Ring {
    /// Asks for a ring of `slots` slots of `slot_size` bytes, and maps it. The version and the virtio
    /// header have to be chosen before.
    ///
    /// # Panics
    ///
    /// When the slot size is no power of two from 2048 to [`BLOCK`], or the slots do not fill blocks.
    pub(super) fn new(socket: BorrowedFd<'_>, slot_size: usize, slots: usize) -> io::Result<Self> {
        assert!(slot_size.is_power_of_two() && (2048..=BLOCK).contains(&slot_size), "slot size");
        let len = slot_size * slots;
        assert!(len > 0 && len.is_multiple_of(BLOCK), "slots fill whole blocks");
        let word = |value: usize| {
            u32::try_from(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
        };
        let request = libc::tpacket_req {
            tp_block_size: word(BLOCK)?,
            tp_block_nr: word(len / BLOCK)?,
            tp_frame_size: word(slot_size)?,
            tp_frame_nr: word(slots)?,
        };
        sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else is touched.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { base, slot_size, slots, next: 0 })
    }

    /// The size of a slot in bytes.
    pub(super) fn slot_size(&self) -> usize {
        self.slot_size
    }

    /// How many slots.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// The next slot in order, when the kernel has filled it.
    #[inline]
    pub(super) fn peek(&self) -> Option<Slot> {
        // Acquire: the other fields and the frame are read after the status that the kernel wrote
        // after them.
        let status = self.status().load(Ordering::Acquire);
        (status & libc::TP_STATUS_USER != 0).then(|| Slot {
            status,
            len: self.length(LEN),
            captured: self.length(CAPTURED),
            offset: usize::from(u16::from_ne_bytes(self.field(MAC))),
            vlan_tci: u16::from_ne_bytes(self.field(VLAN_TCI)),
            vlan_tpid: u16::from_ne_bytes(self.field(VLAN_TPID)),
            kind: self.field::<1>(KIND)[0],
        })
    }

    /// Copies bytes of the next slot out.
    ///
    /// # Panics
    ///
    /// When they are not all inside the slot.
    #[inline]
    pub(super) fn copy(&self, offset: usize, to: &mut [u8]) {
        let end = offset.checked_add(to.len());
        assert!(end.is_some_and(|end| end <= self.slot_size), "a copy stays inside its slot");
        let from = self.at(offset);
        // SAFETY: the source lies inside the slot (checked above), which is mapped for the life of the
        // ring; the target is ours alone and can't overlap it.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    /// Gives the next slot back to the kernel and goes on to the one behind it.
    #[inline]
    pub(super) fn release(&mut self) {
        // Release: all reads of the slot are done before the kernel may fill it again.
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = if self.next + 1 == self.slots { 0 } else { self.next + 1 };
    }

    /// The status word of the next slot.
    #[inline]
    fn status(&self) -> &AtomicU32 {
        // SAFETY: slots begin at multiples of 2048 in the mapping, so the word is aligned; it is
        // mapped for the life of the ring, and both sides access it atomically.
        unsafe { AtomicU32::from_ptr(self.at(0).cast()) }
    }

    /// A length field of the next slot.
    #[inline]
    fn length(&self, at: usize) -> usize {
        usize::try_from(u32::from_ne_bytes(self.field(at))).unwrap_or(usize::MAX)
    }

    /// A field of the next slot, in bytes.
    #[inline]
    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.copy(at, &mut bytes);
        bytes
    }

    /// A place in the next slot; `offset` is at most the slot's size.
    #[inline]
    fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: `next` is below `slots` (see `release`), so that this stays inside the mapping of
        // `slots * slot_size` bytes or at its end.
        unsafe { self.base.as_ptr().add(self.next * self.slot_size + offset) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is the ring's own, has this length, and nothing borrows from it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.slots * self.slot_size) };
    }
}

/// Blocks that the kernel sets the ring's memory aside in; slots do not cross them.
pub(super) const BLOCK: usize = 1 << 16;
/// Where the kernel puts the first byte of a frame at the earliest, without a virtio header.
pub(super) const FIRST_BYTE: usize = libc::TPACKET2_HDRLEN;

// `struct tpacket2_hdr`, and the packet type in the `struct sockaddr_ll` behind it.
const LEN: usize = std::mem::offset_of!(libc::tpacket2_hdr, tp_len);
const CAPTURED: usize = std::mem::offset_of!(libc::tpacket2_hdr, tp_snaplen);
const MAC: usize = std::mem::offset_of!(libc::tpacket2_hdr, tp_mac);
const VLAN_TCI: usize = std::mem::offset_of!(libc::tpacket2_hdr, tp_vlan_tci);
const VLAN_TPID: usize = std::mem::offset_of!(libc::tpacket2_hdr, tp_vlan_tpid);
const KIND: usize = 32 + std::mem::offset_of!(libc::sockaddr_ll, sll_pkttype);
const _: () = assert!(std::mem::offset_of!(libc::tpacket2_hdr, tp_status) == 0);
const _: () = assert!(size_of::<libc::tpacket2_hdr>() == 32);

/// A ring without a kernel, for tests: anonymous memory that a test writes slots into.
#[cfg(test)]
impl Ring {
    pub(super) fn fake(slot_size: usize, slots: usize) -> Self {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let len = slot_size * slots;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else is touched.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: NonNull::new(base.cast()).unwrap(), slot_size, slots, next: 0 }
    }

    /// Writes bytes into the slot that is `ahead` of the next one.
    pub(super) fn write(&mut self, ahead: usize, offset: usize, bytes: &[u8]) {
        let number = (self.next + ahead) % self.slots;
        assert!(offset + bytes.len() <= self.slot_size);
        // SAFETY: inside the mapping (checked above).
        let to = unsafe { self.base.as_ptr().add(number * self.slot_size + offset) };
        // SAFETY: as above; the source is another object.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Writes a slot as the kernel would.
    pub(super) fn fill(&mut self, ahead: usize, slot: Slot) {
        let word = |value: usize| u32::try_from(value).unwrap().to_ne_bytes();
        self.write(ahead, LEN, &word(slot.len));
        self.write(ahead, CAPTURED, &word(slot.captured));
        self.write(ahead, MAC, &u16::try_from(slot.offset).unwrap().to_ne_bytes());
        self.write(ahead, VLAN_TCI, &slot.vlan_tci.to_ne_bytes());
        self.write(ahead, VLAN_TPID, &slot.vlan_tpid.to_ne_bytes());
        self.write(ahead, KIND, &[slot.kind]);
        self.write(ahead, 0, &(slot.status | libc::TP_STATUS_USER).to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_in_order_and_wrap() {
        let mut ring = Ring::fake(2048, 4);
        assert_eq!(ring.peek(), None);
        for number in 0..10 {
            let slot = Slot { len: number, captured: number, offset: 90, ..Slot::default() };
            ring.fill(0, slot);
            ring.write(0, 90, &[7; 3]);
            let expected = Slot { status: libc::TP_STATUS_USER, ..slot };
            assert_eq!(ring.peek(), Some(expected));
            let mut bytes = [0; 4];
            ring.copy(89, &mut bytes);
            assert_eq!(bytes, [0, 7, 7, 7]);
            ring.release();
            assert_eq!(ring.peek(), None);
        }
    }

    #[test]
    #[should_panic(expected = "inside its slot")]
    fn a_copy_does_not_leave_the_slot() {
        Ring::fake(2048, 2).copy(2047, &mut [0; 2]);
    }
}

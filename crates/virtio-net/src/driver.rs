//! The other side of a ring, for tests and benches: a driver that posts chains in a guest memory of its
//! own and takes used ones back.
//!
//! Guest memory: a region with the three structures and room for indirect tables, a gap, and a region
//! with one buffer per descriptor.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::ring::{Memory, Notifier, RingSetup, SplitRing};

/// Guest address of the descriptor table.
pub(crate) const DESC: u64 = 0x10_0000;
/// Guest address of the available ring.
pub(crate) const AVAIL: u64 = 0x12_0000;
/// Guest address of the used ring.
pub(crate) const USED: u64 = 0x13_0000;
/// Guest address of the room for indirect tables.
pub(crate) const TABLES: u64 = 0x14_0000;
/// Guest address of the first buffer.
pub(crate) const BUFFERS: u64 = 0x100_0000;
/// Bytes from one buffer to the next, unless told otherwise.
pub(crate) const STRIDE: u64 = 0x2_0000;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// A driver and its guest's memory.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) memory: Arc<GuestMemoryMmap<()>>,
    pub(crate) size: u16,
    pub(crate) event_idx: bool,
    pub(crate) indirect: bool,
    /// Index of the next available entry; published by `expose`.
    avail: u16,
    /// Index of the next used element to look at.
    seen: u16,
    start: u16,
    free: Vec<u16>,
    stride: u64,
}

impl Driver {
    /// A driver whose ring indexes start at `start`.
    pub(crate) fn new(size: u16, start: u16) -> Self {
        Self::with_stride(size, start, STRIDE)
    }

    /// The same, with so many bytes from one buffer to the next.
    pub(crate) fn with_stride(size: u16, start: u16, stride: u64) -> Self {
        let buffers = usize::from(size) * usize::try_from(stride).unwrap();
        let ranges = [(GuestAddress(DESC), 0x10_0000), (GuestAddress(BUFFERS), buffers)];
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&ranges).unwrap());
        let driver = Self {
            memory,
            size,
            event_idx: false,
            indirect: true,
            avail: start,
            seen: start,
            start,
            free: (0..size).rev().collect(),
            stride,
        };
        driver.store(AVAIL + 2, start);
        driver.store(USED + 2, start);
        driver
    }

    /// What the device is told.
    pub(crate) fn setup(&self, call: Option<Notifier>) -> RingSetup {
        RingSetup {
            size: self.size,
            desc: DESC,
            avail: AVAIL,
            used: USED,
            next_avail: self.start,
            next_used: self.start,
            event_idx: self.event_idx,
            indirect: self.indirect,
            call,
        }
    }

    /// The device's side.
    pub(crate) fn ring(&self) -> SplitRing {
        SplitRing::new(Memory::new(Arc::clone(&self.memory)), self.setup(None)).unwrap()
    }

    /// Guest address of a descriptor's own buffer.
    pub(crate) fn buffer(&self, descriptor: u16) -> u64 {
        BUFFERS + u64::from(descriptor) * self.stride
    }

    /// Writes a descriptor to the table.
    pub(crate) fn describe(&self, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        self.describe_at(DESC, index, address, len, flags, next);
    }

    /// Writes a descriptor to a table elsewhere.
    pub(crate) fn describe_at(
        &self,
        table: u64,
        index: u16,
        address: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let at = table + 16 * u64::from(index);
        self.memory.write_obj(address, GuestAddress(at)).unwrap();
        self.memory.write_obj(len, GuestAddress(at + 8)).unwrap();
        self.memory.write_obj(flags, GuestAddress(at + 12)).unwrap();
        self.memory.write_obj(next, GuestAddress(at + 14)).unwrap();
    }

    /// Puts a head into the available ring; the device does not see it yet.
    pub(crate) fn enter(&mut self, head: u16) {
        let slot = u64::from(self.avail & (self.size - 1));
        self.memory.write_obj(head, GuestAddress(AVAIL + 4 + 2 * slot)).unwrap();
        self.avail = self.avail.wrapping_add(1);
    }

    /// Lets the device see all entries.
    pub(crate) fn expose(&self) {
        self.store(AVAIL + 2, self.avail);
    }

    /// Posts a chain of buffers of these lengths, each its descriptor's own; its head.
    pub(crate) fn post(&mut self, lengths: &[u32], flags: u16) -> u16 {
        let mut chain: Vec<u16> = Vec::new();
        for _ in lengths {
            chain.push(self.free.pop().expect("a free descriptor"));
        }
        for (at, (index, len)) in chain.iter().zip(lengths).enumerate() {
            let (more, next) = chain.get(at + 1).map_or((0, 0), |next| (NEXT, *next));
            self.describe(*index, self.buffer(*index), *len, flags | more, next);
        }
        self.enter(chain[0]);
        self.expose();
        chain[0]
    }

    /// Posts `count` chains of one buffer each.
    pub(crate) fn post_many(&mut self, count: u16, len: u32) {
        for _ in 0..count {
            self.post(&[len], WRITE);
        }
    }

    /// Posts a packet to send: its bytes cut at these lengths, the rest in the last buffer.
    pub(crate) fn send(&mut self, bytes: &[u8], cuts: &[usize]) -> u16 {
        let mut rest = bytes;
        let mut parts: Vec<&[u8]> = Vec::new();
        for cut in cuts {
            let (part, behind) = rest.split_at((*cut).min(rest.len()));
            parts.push(part);
            rest = behind;
        }
        parts.push(rest);
        parts.retain(|part| !part.is_empty());
        let lengths: Vec<_> = parts.iter().map(|part| u32::try_from(part.len()).unwrap()).collect();
        let indexes: Vec<_> = self.free.iter().rev().take(parts.len()).copied().collect();
        for (index, part) in indexes.iter().zip(&parts) {
            self.memory.write_slice(part, GuestAddress(self.buffer(*index))).unwrap();
        }
        self.post(&lengths, 0)
    }

    /// The used elements that the device has published since the last look. Their descriptors are free
    /// again.
    pub(crate) fn used(&mut self) -> Vec<(u16, u32)> {
        let index = self.used_index();
        let mut elements = Vec::new();
        while self.seen != index {
            let at = USED + 4 + 8 * u64::from(self.seen & (self.size - 1));
            let id: u32 = self.memory.read_obj(GuestAddress(at)).unwrap();
            let len: u32 = self.memory.read_obj(GuestAddress(at + 4)).unwrap();
            let id = u16::try_from(id).unwrap();
            elements.push((id, len));
            self.release(id);
            self.seen = self.seen.wrapping_add(1);
        }
        elements
    }

    /// The used index that the device has published.
    pub(crate) fn used_index(&self) -> u16 {
        self.memory.load(GuestAddress(USED + 2), Ordering::Acquire).unwrap()
    }

    /// The packets among what is used: bytes with header, over as many buffers as the header says.
    /// Chains given back without a byte are left out.
    pub(crate) fn packets(&mut self, header_len: usize) -> Vec<Vec<u8>> {
        let chains: Vec<_> = self.used_chains();
        let mut packets = Vec::new();
        let mut chains = chains.into_iter().filter(|bytes| !bytes.is_empty());
        while let Some(mut packet) = chains.next() {
            if header_len == 12 {
                let count = u16::from_le_bytes([packet[10], packet[11]]);
                for _ in 1..count {
                    packet.extend(chains.next().expect("as many buffers as the header says"));
                }
            }
            packets.push(packet);
        }
        packets
    }

    /// The written bytes of each used chain.
    pub(crate) fn used_chains(&mut self) -> Vec<Vec<u8>> {
        let used = self.used();
        used.iter().map(|(head, len)| self.chain_bytes(*head, *len)).collect()
    }

    /// The first bytes of a chain of plain descriptors.
    pub(crate) fn chain_bytes(&self, head: u16, len: u32) -> Vec<u8> {
        let (mut index, mut rest) = (head, usize::try_from(len).unwrap());
        let mut bytes = Vec::new();
        while rest > 0 {
            let (address, room, flags, next) = self.described(index);
            let count = rest.min(usize::try_from(room).unwrap());
            let mut part = vec![0; count];
            self.memory.read_slice(&mut part, GuestAddress(address)).unwrap();
            bytes.extend(part);
            rest -= count;
            assert!(rest == 0 || flags & NEXT != 0, "used length within the chain");
            index = next;
        }
        bytes
    }

    /// The descriptors of a chain that came back.
    fn release(&mut self, head: u16) {
        let mut index = head;
        for _ in 0..self.size {
            let (.., flags, next) = self.described(index);
            self.free.push(index);
            if flags & NEXT == 0 || flags & INDIRECT != 0 || next >= self.size {
                break;
            }
            index = next;
        }
    }

    fn described(&self, index: u16) -> (u64, u32, u16, u16) {
        let at = DESC + 16 * u64::from(index);
        (
            self.memory.read_obj(GuestAddress(at)).unwrap(),
            self.memory.read_obj(GuestAddress(at + 8)).unwrap(),
            self.memory.read_obj(GuestAddress(at + 12)).unwrap(),
            self.memory.read_obj(GuestAddress(at + 14)).unwrap(),
        )
    }

    /// Writes the available ring's flags: 1 wants no calls.
    pub(crate) fn set_flags(&self, flags: u16) {
        self.store(AVAIL, flags);
    }

    /// Writes the used event: the used index at which the driver wants a call.
    pub(crate) fn set_used_event(&self, event: u16) {
        self.store(AVAIL + 4 + 2 * u64::from(self.size), event);
    }

    /// Writes the available index as it likes.
    pub(crate) fn set_avail_index(&self, index: u16) {
        self.store(AVAIL + 2, index);
    }

    /// What the device says about kicks: the used ring's flags, and the available event.
    pub(crate) fn kicks(&self) -> (u16, u16) {
        let event = USED + 4 + 8 * u64::from(self.size);
        let memory = &self.memory;
        (
            memory.read_obj(GuestAddress(USED)).unwrap(),
            memory.read_obj(GuestAddress(event)).unwrap(),
        )
    }

    fn store(&self, address: u64, value: u16) {
        self.memory.store(value, GuestAddress(address), Ordering::Release).unwrap();
    }
}

//! Descriptors, and the walk along a chain of them (virtio 2.7.5).
//!
//! ```text
//!  avail.ring ─head─▶ desc ─next─▶ desc ─next─▶ desc            a chain in the table
//!  avail.ring ─head─▶ desc ─addr─▶ [ desc ─next─▶ desc ]        an indirect table
//! ```
//!
//! Each descriptor is read once into a value of ours. The walk is bounded, so a loop is only a chain
//! that is too long.

use super::error::ChainError;
use super::memory::{Area, Scatter};

/// Which buffers a chain must have: all of a chain in a network queue go one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The device reads: a transmit queue.
    Read,
    /// The device writes: a receive queue.
    Write,
}

/// A descriptor as it was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Descriptor {
    pub(super) address: u64,
    pub(super) len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    pub(super) const SIZE: usize = 16;

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the fields of the second word")]
    pub(super) const fn from_words([address, rest]: [u64; 2]) -> Self {
        Self { address, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }

    /// Whether the descriptor is all there is of its chain, with nothing to object to.
    #[inline]
    pub(super) const fn is_plain(self, access: Access) -> bool {
        let flags = match access {
            Access::Read => 0,
            Access::Write => WRITE,
        };
        // Only these three flags mean something in a split ring; others are ignored.
        self.flags & (NEXT | WRITE | INDIRECT) == flags && self.len > 0
    }
}

/// How far and where a walk may go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) size: u16,
    pub(super) indirect: bool,
    pub(super) access: Access,
}

/// Walks the chain that starts with `first`, which was read from the table already, and adds its
/// buffers to the scatter list; answers how many bytes they have.
pub(super) fn walk(
    table: &Area,
    first: Descriptor,
    limits: Limits,
    scatter: &mut Scatter,
) -> Result<u32, ChainError> {
    let mut walk = Walk { limits, scatter, bytes: 0 };
    if first.flags & INDIRECT != 0 {
        return walk.indirect(first);
    }
    let mut descriptor = first;
    for _ in 0..limits.size {
        if descriptor.flags & INDIRECT != 0 {
            // The last of a chain may be indirect (2.7.5.3.2), and then it is the chain's end.
            return walk.indirect(descriptor);
        }
        walk.buffer(descriptor)?;
        if descriptor.flags & NEXT == 0 {
            return Ok(walk.bytes);
        }
        if descriptor.next >= limits.size {
            return Err(ChainError::NextOutOfRange);
        }
        let at = usize::from(descriptor.next) * Descriptor::SIZE;
        descriptor = Descriptor::from_words(table.read_16(at));
    }
    Err(ChainError::Loop)
}

struct Walk<'a> {
    limits: Limits,
    scatter: &'a mut Scatter,
    bytes: u32,
}

impl Walk<'_> {
    fn buffer(&mut self, descriptor: Descriptor) -> Result<(), ChainError> {
        let access = if descriptor.flags & WRITE == 0 { Access::Read } else { Access::Write };
        if access != self.limits.access {
            return Err(ChainError::Direction);
        }
        if descriptor.len == 0 {
            return Err(ChainError::ZeroLength);
        }
        self.bytes = self.bytes.checked_add(descriptor.len).ok_or(ChainError::TooLong)?;
        self.scatter
            .push(descriptor.address, descriptor.len)
            .map_err(|_outside| ChainError::Outside)
    }

    fn indirect(mut self, table: Descriptor) -> Result<u32, ChainError> {
        if !self.limits.indirect {
            return Err(ChainError::IndirectNotNegotiated);
        }
        if table.flags & NEXT != 0 {
            return Err(ChainError::IndirectNext);
        }
        if table.len == 0 {
            return Err(ChainError::IndirectEmpty);
        }
        let Ok(size @ 1..) = u16::try_from(table.len / ENTRY) else {
            return Err(ChainError::IndirectLength);
        };
        if !table.len.is_multiple_of(ENTRY) {
            return Err(ChainError::IndirectLength);
        }
        // A chain is not to be longer than the ring (2.7.5.3.1), but Linux makes longer ones in
        // indirect tables when the ring is small.
        let bound = size.min(self.limits.size.max(LONGEST_INDIRECT));
        let mut next = 0;
        for _ in 0..bound {
            let at = table.address.wrapping_add(u64::from(next) * u64::from(ENTRY));
            let memory = self.scatter.memory();
            let words = memory.read_16(at).map_err(|_outside| ChainError::IndirectOutside)?;
            let descriptor = Descriptor::from_words(words);
            if descriptor.flags & INDIRECT != 0 {
                return Err(ChainError::IndirectNested);
            }
            self.buffer(descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(self.bytes);
            }
            if descriptor.next >= size {
                return Err(ChainError::NextOutOfRange);
            }
            next = descriptor.next;
        }
        Err(ChainError::Loop)
    }
}

/// Bytes of an entry in an indirect table.
const ENTRY: u32 = 16;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Descriptors in an indirect table that are followed whatever the ring's size.
const LONGEST_INDIRECT: u16 = 1024;

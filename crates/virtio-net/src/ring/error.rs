//! What can be wrong with a ring or a chain.

use std::fmt;

/// Why a ring can't be used, or no longer. It stays so until it is set up anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The size is no power of two between 1 and 32768 (2.7).
    #[error("ring size {0} is no power of two up to 32768")]
    Size(u16),
    /// A structure is not aligned as it must be (2.7).
    #[error("{area} at guest address {address:#x} is not aligned to {align} bytes")]
    Alignment {
        /// Which structure.
        area: AreaKind,
        /// Its guest address.
        address: u64,
        /// What it has to be aligned to.
        align: usize,
    },
    /// A structure does not lie in one region of guest memory.
    #[error("{area} at guest address {address:#x} is not {len} bytes in one memory region")]
    OutsideMemory {
        /// Which structure.
        area: AreaKind,
        /// Its guest address.
        address: u64,
        /// Its length in bytes.
        len: usize,
    },
    /// The guest made more buffers available than the ring has (2.7.6).
    #[error("available index {index} is more than {size} ahead of {next}")]
    AvailJump {
        /// The index as the guest wrote it.
        index: u16,
        /// The next index that would be taken.
        next: u16,
        /// The ring's size.
        size: u16,
    },
    /// An available ring entry names a descriptor that does not exist.
    #[error("chain head {head} is outside a table of {size} descriptors")]
    HeadOutOfRange {
        /// The descriptor index as the guest wrote it.
        head: u16,
        /// The ring's size.
        size: u16,
    },
}

/// One of the three parts of a split ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AreaKind {
    /// The descriptor table.
    Descriptors,
    /// The available ring.
    Available,
    /// The used ring.
    Used,
}

impl fmt::Display for AreaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Descriptors => "descriptor table",
            Self::Available => "available ring",
            Self::Used => "used ring",
        })
    }
}

/// Why a chain can't be used. It is given back with no byte written, and the ring goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum ChainError {
    /// `next` names a descriptor outside the table.
    #[error("next descriptor outside the table")]
    NextOutOfRange,
    /// More descriptors than the ring has (2.7.5.2), so most likely a loop.
    #[error("loop, or more descriptors than the ring has")]
    Loop,
    /// An indirect table without the feature.
    #[error("indirect descriptor that was not negotiated")]
    IndirectNotNegotiated,
    /// An indirect descriptor inside an indirect table (2.7.5.3.1).
    #[error("indirect descriptor inside an indirect table")]
    IndirectNested,
    /// INDIRECT and NEXT on the same descriptor (2.7.5.3.1).
    #[error("indirect descriptor with a next one")]
    IndirectNext,
    /// An indirect table without a descriptor.
    #[error("empty indirect table")]
    IndirectEmpty,
    /// The table's length is no multiple of 16, or it has more descriptors than can be linked.
    #[error("indirect table length is no multiple of 16, or too large")]
    IndirectLength,
    /// An indirect table outside guest memory.
    #[error("indirect table outside guest memory")]
    IndirectOutside,
    /// A buffer outside guest memory.
    #[error("buffer outside guest memory")]
    Outside,
    /// A buffer of no bytes.
    #[error("buffer of no bytes")]
    ZeroLength,
    /// A buffer to write into where one to read from belongs, or the reverse.
    #[error("buffer of the wrong direction")]
    Direction,
    /// The buffers of the chain have more bytes than a used length can tell.
    #[error("more than 4 GiB in one chain")]
    TooLong,
    /// Not even room for the packet header.
    #[error("too short for the packet header")]
    TooShort,
}

impl ChainError {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::NextOutOfRange,
        Self::Loop,
        Self::IndirectNotNegotiated,
        Self::IndirectNested,
        Self::IndirectNext,
        Self::IndirectEmpty,
        Self::IndirectLength,
        Self::IndirectOutside,
        Self::Outside,
        Self::ZeroLength,
        Self::Direction,
        Self::TooLong,
        Self::TooShort,
    ];

    /// How many reasons there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The reason's name in counters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NextOutOfRange => "next_out_of_range",
            Self::Loop => "loop",
            Self::IndirectNotNegotiated => "indirect_not_negotiated",
            Self::IndirectNested => "indirect_nested",
            Self::IndirectNext => "indirect_next",
            Self::IndirectEmpty => "indirect_empty",
            Self::IndirectLength => "indirect_length",
            Self::IndirectOutside => "indirect_outside",
            Self::Outside => "outside",
            Self::ZeroLength => "zero_length",
            Self::Direction => "direction",
            Self::TooLong => "too_long",
            Self::TooShort => "too_short",
        }
    }
}

/// What [`SplitRing::chain`](super::SplitRing::chain) can find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The ring is broken.
    Ring(RingError),
    /// The chain is bad: it has to be given back.
    Chain {
        /// Its head, to give it back by.
        head: u16,
        /// What is wrong.
        reason: ChainError,
    },
}

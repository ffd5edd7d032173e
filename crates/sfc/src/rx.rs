//! Receiving (`spec/ef10.md` section 6).

pub mod completion;
pub mod descriptor;
pub mod prefix;
mod queue;

pub use queue::{RxParts, RxQueue};

/// What a receive queue has done so far. Free-running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RxCounters {
    /// Frames handed out.
    pub frames: u64,
    /// Their bytes, without prefix and frame check sequence.
    pub bytes: u64,
    /// Packets that the card reported as damaged: a bad frame check sequence, an ECC error.
    pub damaged: u64,
    /// Packets cut because they did not fit into a buffer.
    pub truncated: u64,
    /// Packets with a length that cannot be: beyond the buffer, or shorter than an Ethernet header.
    pub bad_length: u64,
    /// Scattered packets for whose rest there was no descriptor.
    pub aborted: u64,
    /// Refills that ended early because the pool was empty.
    pub starved: u64,
    /// Buffers of the pool that could not be posted: not from the packet memory, or too small.
    pub foreign: u64,
    /// Events that are no completion and nothing that the queue acts on.
    pub other_events: u64,
}

/// What a card cannot have meant: its receive queue is not used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RxFault {
    /// An event for another queue.
    #[error("a completion with another queue's label")]
    Label,
    /// More descriptors completed than were posted.
    #[error("a completion for a descriptor that was never posted")]
    NeverPosted,
    /// No descriptor completed, and no packet was in progress.
    #[error("a completion of nothing")]
    NothingCompleted,
    /// Several descriptors at once where that cannot be.
    #[error("a merged completion where there can be none")]
    Merged,
    /// A packet in more fragments than the largest frame has.
    #[error("a packet in too many fragments")]
    TooManyFragments,
    /// The card reported that the queue is broken.
    #[error("the card reports an error of the queue (kind {0})")]
    Reported(
        /// The kind it gives.
        u8,
    ),
}

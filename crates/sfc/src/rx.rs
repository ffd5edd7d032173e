//! Receiving (`spec/ef10.md` section 6).

pub mod completion;
pub mod descriptor;
pub mod prefix;

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

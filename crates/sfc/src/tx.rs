//! Transmitting (`spec/ef10.md` section 7).

pub mod descriptor;
mod plan;
mod queue;

pub use queue::{TxParts, TxQueue};

/// What a transmit queue has done so far. Free-running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxCounters {
    /// Frames given to the card; a super-packet counts once.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that the card cuts into segments.
    pub segmented: u64,
    /// Transport checksums that the card completes.
    pub card_checksums: u64,
    /// Transport checksums completed here, because the card does not know the protocol.
    pub software_checksums: u64,
    /// Frames that can never be sent: not from the packet memory, or beyond what the card takes.
    pub refused: u64,
    /// Frames that were with the card when the queue ended. Whether they were sent is not known.
    pub lost: u64,
    /// Times that the ring was full and frames stayed with the caller.
    pub full: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Events that are no completion and nothing that the queue acts on.
    pub other_events: u64,
}

/// What a card cannot have meant, or has reported: its transmit queue is not used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TxFault {
    /// An event for another queue.
    #[error("a completion with another queue's label")]
    Label,
    /// A descriptor completed that is not with the card.
    #[error("a completion for a descriptor that was never posted")]
    NeverPosted,
    /// The card reported that the queue is broken.
    #[error("the card reports an error of the queue (kind {0})")]
    Reported(
        /// The kind it gives.
        u8,
    ),
}

//! Receive and transmit queues as the controller made them (4.5).

use crate::ring::Ring;

/// A receive queue.
#[derive(Debug)]
pub(crate) struct Rxq {
    pub(crate) ring: Ring,
    pub(crate) evq: usize,
    pub(crate) label: u64,
    pub(crate) prefix: bool,
    pub(crate) scatter: bool,
    pub(crate) outer_classes: bool,
    /// Descriptors handed over and taken, since the queue was made.
    pub(crate) posted: u64,
    pub(crate) taken: u64,
    pub(crate) open: Option<Open>,
    pub(crate) flushing: bool,
}

/// Completions that were not told yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) flags: u64,
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
}

/// A transmit queue.
#[derive(Debug)]
pub(crate) struct Txq {
    pub(crate) ring: Ring,
    pub(crate) evq: usize,
    pub(crate) label: u64,
    pub(crate) tso: bool,
    pub(crate) offload: Offload,
    pub(crate) vlan: Option<[u16; 2]>,
    pub(crate) segment: [Option<u64>; 2],
    pub(crate) posted: u64,
    pub(crate) taken: u64,
    /// What is completed and not told.
    pub(crate) completed: Option<u64>,
    pub(crate) pushed: bool,
    pub(crate) dead: bool,
    pub(crate) flushing: bool,
}

/// Checksums that are filled in (7.3).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offload {
    pub(crate) ip: bool,
    pub(crate) l4: bool,
    pub(crate) inner_ip: bool,
    pub(crate) inner_l4: bool,
}

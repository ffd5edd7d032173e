//! Traffic whose every byte can be checked.
//!
//! [`Streams`] makes complete frames of many TCP or UDP flows, whose payload is a function of the flow
//! and of the position in the flow's stream; [`Checker`] takes frames as a guest has them, merged or
//! not, and says whether each byte is the one that was sent. [`Templates`] makes frames for benchmarks,
//! at the cost of a header.

#![forbid(unsafe_code)]

mod checker;
mod flow;
mod pattern;
mod streams;
mod templates;

pub use checker::{Checker, ChecksumState, Mismatch, Summary};
pub use streams::Streams;
pub use templates::Templates;

/// What the streams look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// How many flows, 1 to 65536.
    pub flows: u32,
    /// Consecutive packets of one flow before the next one's turn; at least 1.
    pub run: u32,
    /// Payload bytes of each packet; at least 8 for UDP, at least 1 for TCP.
    pub payload: u16,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// UDP instead of TCP.
    pub udp: bool,
    /// TCP timestamps (12 bytes of options, the same in all segments).
    pub timestamps: bool,
    /// Frames carry a verdict of "checksum verified", as from a NIC that checks.
    pub checksum_hint: bool,
    /// Stop after so many frames.
    pub total_frames: Option<u64>,
}

impl Default for StreamConfig {
    /// 64 TCP flows over IPv4 in runs of 4 full-size segments with timestamps, for ever.
    fn default() -> Self {
        Self {
            flows: 64,
            run: 4,
            payload: 1448,
            ipv6: false,
            udp: false,
            timestamps: true,
            checksum_hint: true,
            total_frames: None,
        }
    }
}

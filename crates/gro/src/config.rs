//! What may be merged: the operator's settings, and what the guest can take.

use std::time::Duration;

/// The operator's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Merge at all.
    pub enabled: bool,
    /// How long a packet may be held, counted from when it was held first. Zero: until the end of the
    /// poll, and no longer.
    pub flush_timeout: Duration,
    /// The largest super-packet, in bytes behind the Ethernet header; at most 65535.
    pub max_size: u32,
    /// How many flows are held at once. Rounded up to a power of two; at least 8.
    pub max_flows: usize,
    /// Use the IP length of a frame that Ethernet has padded, instead of not merging it (`spec/gro.md`
    /// 7.1).
    pub trim_padding: bool,
    /// Merge packets whose IPv4 id stands still although they may be fragmented (DF clear). A guest that
    /// forwards and segments them again counts the ids up.
    pub merge_fixed_id_without_df: bool,
    /// Merge packets that all carry CWR. A virtio-net header can't say so (4.8).
    pub merge_cwr: bool,
    /// Mixed into the hash, so that a sender can't choose flows that meet in one bucket.
    pub seed: u64,
}

impl Config {
    /// The rules of the newest Linux kernels, for comparison with them.
    pub fn kernel_profile() -> Self {
        Self { merge_fixed_id_without_df: true, merge_cwr: true, ..Self::default() }
    }
}

impl Default for Config {
    /// The rules for a guest behind a virtio-net header.
    fn default() -> Self {
        Self {
            enabled: true,
            flush_timeout: Duration::ZERO,
            max_size: LARGEST,
            max_flows: 2048,
            trim_padding: false,
            merge_fixed_id_without_df: false,
            merge_cwr: false,
            seed: 0,
        }
    }
}

/// What the guest can take, with the features that it has negotiated and the room that it has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// TCP super-packets over IPv4.
    pub tcp4: bool,
    /// TCP super-packets over IPv6.
    pub tcp6: bool,
    /// The largest super-packet, in bytes behind the Ethernet header.
    pub max_size: u32,
    /// The most pieces that a super-packet may lie in.
    pub max_pieces: u16,
}

impl Accept {
    /// A guest that takes everything.
    pub const ALL: Self = Self { tcp4: true, tcp6: true, max_size: LARGEST, max_pieces: u16::MAX };
}

impl Default for Accept {
    /// A guest that takes no super-packets.
    fn default() -> Self {
        Self { tcp4: false, tcp6: false, ..Self::ALL }
    }
}

/// An IP packet has a 16-bit length.
pub(crate) const LARGEST: u32 = 65_535;

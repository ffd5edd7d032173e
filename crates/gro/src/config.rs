//! What may be merged: the operator's settings, and what the guest can take.

use std::time::Duration;

use crate::parse::tcp::CWR;

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
    /// How many flows are held at once: rounded up to a power of two, at least 8, at most 32768. Each
    /// eight share a bucket.
    pub max_flows: usize,
    /// Sum up the bytes of packets whose checksum the port has not verified. Otherwise such packets pass.
    pub verify_checksums: bool,
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
            verify_checksums: true,
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

/// What a packet is measured by: settings and guest taken together, once per change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) tcp4: bool,
    pub(crate) tcp6: bool,
    pub(crate) trim_padding: bool,
    pub(crate) verify_checksums: bool,
    /// An IPv4 id may stand still although DF is clear.
    pub(crate) fixed_id_without_df: bool,
    /// TCP flags that a packet behind the first may not have.
    pub(crate) never: u32,
    /// Bytes behind the Ethernet header.
    pub(crate) max_size: u32,
    pub(crate) max_pieces: u16,
}

impl Rules {
    pub(crate) fn new(config: &Config, accept: &Accept) -> Self {
        Self {
            tcp4: config.enabled && accept.tcp4,
            tcp6: config.enabled && accept.tcp6,
            trim_padding: config.trim_padding,
            verify_checksums: config.verify_checksums,
            fixed_id_without_df: config.merge_fixed_id_without_df,
            never: if config.merge_cwr { 0 } else { CWR },
            max_size: config.max_size.min(accept.max_size).min(LARGEST),
            max_pieces: accept.max_pieces,
        }
    }

    /// Whether anything can be merged.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.tcp4 || self.tcp6
    }
}

/// An IP packet has a 16-bit length.
const LARGEST: u32 = 65_535;

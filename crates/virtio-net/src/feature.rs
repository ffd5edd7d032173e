//! Feature bits (virtio 5.1.3 and 6) and what follows from a negotiated set of them.

use std::fmt;

pub use virtio_bindings::virtio_config::{
    VIRTIO_F_IN_ORDER, VIRTIO_F_RING_RESET, VIRTIO_F_VERSION_1,
};
pub use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_GUEST_OFFLOADS, VIRTIO_NET_F_CTRL_VQ,
    VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN,
    VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_GUEST_UFO,
    VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HASH_REPORT,
    VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_UFO,
    VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MAC, VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_NET_F_MTU, VIRTIO_NET_F_RSS, VIRTIO_NET_F_SPEED_DUPLEX, VIRTIO_NET_F_STATUS,
};
pub use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// The bit by which a vhost-user back end says that it speaks protocol features. It travels among the
/// virtio features and is none.
pub const VHOST_USER_F_PROTOCOL_FEATURES: u32 = 30;

/// The bit by which a vhost-user front end asks for a log of written pages (migration).
pub const VHOST_F_LOG_ALL: u32 = 26;

/// A set of feature bits, offered or negotiated.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Features(u64);

/// Which kinds of receive offload a guest takes (virtio 5.1.3.1 for what depends on what).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GuestOffloads {
    /// A partial or verified checksum (GUEST_CSUM).
    pub csum: bool,
    /// TCP super-packets over IPv4 (GUEST_TSO4, and GUEST_CSUM as it requires).
    pub tso4: bool,
    /// TCP super-packets over IPv6 (GUEST_TSO6, and GUEST_CSUM as it requires).
    pub tso6: bool,
    /// TCP super-packets with CWR on their first segment (GUEST_ECN).
    pub ecn: bool,
    /// UDP super-packets over IPv4 (GUEST_USO4).
    pub uso4: bool,
    /// UDP super-packets over IPv6 (GUEST_USO6).
    pub uso6: bool,
}

/// Which kinds of transmit offload a guest may ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostOffloads {
    /// A partial checksum (CSUM).
    pub csum: bool,
    /// TCP super-packets over IPv4 (HOST_TSO4).
    pub tso4: bool,
    /// TCP super-packets over IPv6 (HOST_TSO6).
    pub tso6: bool,
    /// TCP super-packets with CWR on their first segment (HOST_ECN).
    pub ecn: bool,
    /// UDP super-packets (HOST_USO).
    pub uso: bool,
}

impl Features {
    /// The set with these bits.
    #[inline]
    pub const fn new(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits of the set.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether the feature with this bit number is in the set.
    #[inline]
    pub const fn has(self, bit: u32) -> bool {
        bit < u64::BITS && self.0 & (1 << bit) != 0
    }

    /// The set and one more feature.
    ///
    /// # Panics
    ///
    /// When the bit number is above 63.
    #[inline]
    #[must_use]
    pub const fn with(self, bit: u32) -> Self {
        assert!(bit < u64::BITS, "there are 64 feature bits");
        Self(self.0 | 1 << bit)
    }

    /// The set without one feature.
    ///
    /// # Panics
    ///
    /// When the bit number is above 63.
    #[inline]
    #[must_use]
    pub const fn without(self, bit: u32) -> Self {
        assert!(bit < u64::BITS, "there are 64 feature bits");
        Self(self.0 & !(1 << bit))
    }

    /// The set without a feature and without those that can't be offered when it is missing (5.1.3.1).
    #[must_use]
    pub fn withhold(self, bit: u32) -> Self {
        let mut rest = self.without(bit);
        for (needs, needed) in DEPENDENCIES {
            if rest.has(*needs) && !needed.iter().any(|bit| rest.has(*bit)) {
                rest = rest.without(*needs);
            }
        }
        rest
    }

    /// The bytes of the packet header in both directions (5.1.6.1): 12, or 10 for a legacy driver that
    /// has not negotiated MRG_RXBUF either.
    #[inline]
    pub const fn header_len(self) -> usize {
        if self.has(VIRTIO_F_VERSION_1) || self.has(VIRTIO_NET_F_MRG_RXBUF) { 12 } else { 10 }
    }

    /// What the guest takes on receive.
    #[inline]
    pub const fn accept(self) -> GuestOffloads {
        let csum = self.has(VIRTIO_NET_F_GUEST_CSUM);
        let tso4 = csum && self.has(VIRTIO_NET_F_GUEST_TSO4);
        let tso6 = csum && self.has(VIRTIO_NET_F_GUEST_TSO6);
        GuestOffloads {
            csum,
            tso4,
            tso6,
            ecn: (tso4 || tso6) && self.has(VIRTIO_NET_F_GUEST_ECN),
            uso4: csum && self.has(VIRTIO_NET_F_GUEST_USO4),
            uso6: csum && self.has(VIRTIO_NET_F_GUEST_USO6),
        }
    }

    /// What the guest may ask for on transmit.
    #[inline]
    pub const fn allow(self) -> HostOffloads {
        let csum = self.has(VIRTIO_NET_F_CSUM);
        let tso4 = csum && self.has(VIRTIO_NET_F_HOST_TSO4);
        let tso6 = csum && self.has(VIRTIO_NET_F_HOST_TSO6);
        HostOffloads {
            csum,
            tso4,
            tso6,
            ecn: (tso4 || tso6) && self.has(VIRTIO_NET_F_HOST_ECN),
            uso: csum && self.has(VIRTIO_NET_F_HOST_USO),
        }
    }
}

/// The bit number of a feature by its short name: `mrg_rxbuf` for VIRTIO_NET_F_MRG_RXBUF.
pub fn by_name(name: &str) -> Option<u32> {
    NAMES.iter().find(|(_, known)| *known == name).map(|(bit, _)| *bit)
}

/// The short name of a feature.
pub fn name(bit: u32) -> Option<&'static str> {
    NAMES.iter().find(|(known, _)| *known == bit).map(|(_, name)| *name)
}

/// All features that have a name here, lowest bit first.
pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(_, name)| *name)
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for bit in (0..u64::BITS).filter(|bit| self.has(*bit)) {
            match name(bit) {
                Some(name) => write!(f, "{between}{name}")?,
                None => write!(f, "{between}bit{bit}")?,
            }
            between = ",";
        }
        if self.0 == 0 { f.write_str("none") } else { Ok(()) }
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features({:#x}: {self})", self.0)
    }
}

const NAMES: &[(u32, &str)] = &[
    (VIRTIO_NET_F_CSUM, "csum"),
    (VIRTIO_NET_F_GUEST_CSUM, "guest_csum"),
    (VIRTIO_NET_F_CTRL_GUEST_OFFLOADS, "ctrl_guest_offloads"),
    (VIRTIO_NET_F_MTU, "mtu"),
    (VIRTIO_NET_F_MAC, "mac"),
    (VIRTIO_NET_F_GUEST_TSO4, "guest_tso4"),
    (VIRTIO_NET_F_GUEST_TSO6, "guest_tso6"),
    (VIRTIO_NET_F_GUEST_ECN, "guest_ecn"),
    (VIRTIO_NET_F_GUEST_UFO, "guest_ufo"),
    (VIRTIO_NET_F_HOST_TSO4, "host_tso4"),
    (VIRTIO_NET_F_HOST_TSO6, "host_tso6"),
    (VIRTIO_NET_F_HOST_ECN, "host_ecn"),
    (VIRTIO_NET_F_HOST_UFO, "host_ufo"),
    (VIRTIO_NET_F_MRG_RXBUF, "mrg_rxbuf"),
    (VIRTIO_NET_F_STATUS, "status"),
    (VIRTIO_NET_F_CTRL_VQ, "ctrl_vq"),
    (VIRTIO_NET_F_GUEST_ANNOUNCE, "guest_announce"),
    (VIRTIO_NET_F_MQ, "mq"),
    (VHOST_F_LOG_ALL, "log_all"),
    (VIRTIO_RING_F_INDIRECT_DESC, "indirect_desc"),
    (VIRTIO_RING_F_EVENT_IDX, "event_idx"),
    (VHOST_USER_F_PROTOCOL_FEATURES, "protocol_features"),
    (VIRTIO_F_VERSION_1, "version_1"),
    (VIRTIO_F_IN_ORDER, "in_order"),
    (VIRTIO_F_RING_RESET, "ring_reset"),
    (VIRTIO_NET_F_GUEST_USO4, "guest_uso4"),
    (VIRTIO_NET_F_GUEST_USO6, "guest_uso6"),
    (VIRTIO_NET_F_HOST_USO, "host_uso"),
    (VIRTIO_NET_F_HASH_REPORT, "hash_report"),
    (VIRTIO_NET_F_RSS, "rss"),
    (VIRTIO_NET_F_SPEED_DUPLEX, "speed_duplex"),
];

/// A feature and those of which it needs at least one (5.1.3.1); in an order in which one pass over
/// the list takes everything away that a missing feature takes along.
const DEPENDENCIES: &[(u32, &[u32])] = &[
    (VIRTIO_NET_F_GUEST_TSO4, &[VIRTIO_NET_F_GUEST_CSUM]),
    (VIRTIO_NET_F_GUEST_TSO6, &[VIRTIO_NET_F_GUEST_CSUM]),
    (VIRTIO_NET_F_GUEST_ECN, &[VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6]),
    (VIRTIO_NET_F_GUEST_UFO, &[VIRTIO_NET_F_GUEST_CSUM]),
    (VIRTIO_NET_F_GUEST_USO4, &[VIRTIO_NET_F_GUEST_CSUM]),
    (VIRTIO_NET_F_GUEST_USO6, &[VIRTIO_NET_F_GUEST_CSUM]),
    (VIRTIO_NET_F_HOST_TSO4, &[VIRTIO_NET_F_CSUM]),
    (VIRTIO_NET_F_HOST_TSO6, &[VIRTIO_NET_F_CSUM]),
    (VIRTIO_NET_F_HOST_ECN, &[VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6]),
    (VIRTIO_NET_F_HOST_UFO, &[VIRTIO_NET_F_CSUM]),
    (VIRTIO_NET_F_HOST_USO, &[VIRTIO_NET_F_CSUM]),
    (VIRTIO_NET_F_MQ, &[VIRTIO_NET_F_CTRL_VQ]),
    (VIRTIO_NET_F_RSS, &[VIRTIO_NET_F_CTRL_VQ]),
    (VIRTIO_NET_F_CTRL_GUEST_OFFLOADS, &[VIRTIO_NET_F_CTRL_VQ]),
    (VIRTIO_NET_F_GUEST_ANNOUNCE, &[VIRTIO_NET_F_CTRL_VQ]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bits_go_both_ways() {
        for (bit, short) in NAMES {
            assert_eq!(by_name(short), Some(*bit));
            assert_eq!(name(*bit), Some(*short));
        }
        assert_eq!(by_name("mrg_rxbuf"), Some(15));
        assert_eq!(by_name("guest_tso4"), Some(7));
        assert_eq!(by_name("nonsense"), None);
        assert!(NAMES.is_sorted_by_key(|(bit, _)| bit), "listed lowest bit first");
    }

    #[test]
    fn a_set_prints_its_names() {
        let set = Features::default().with(VIRTIO_NET_F_CSUM).with(VIRTIO_F_VERSION_1).with(63);
        assert_eq!(set.to_string(), "csum,version_1,speed_duplex");
        assert_eq!(set.with(4).to_string(), "csum,bit4,version_1,speed_duplex");
        assert_eq!(Features::default().to_string(), "none");
        assert!(!set.has(64));
    }

    #[test]
    fn the_header_has_ten_bytes_only_for_a_legacy_driver() {
        let legacy = Features::default();
        assert_eq!(legacy.header_len(), 10);
        assert_eq!(legacy.with(VIRTIO_NET_F_MRG_RXBUF).header_len(), 12);
        assert_eq!(legacy.with(VIRTIO_F_VERSION_1).header_len(), 12);
    }

    #[test]
    fn receive_offloads_need_guest_csum() {
        let tso = Features::default().with(VIRTIO_NET_F_GUEST_TSO4).with(VIRTIO_NET_F_GUEST_ECN);
        assert_eq!(tso.accept(), GuestOffloads::default());
        let accept = tso.with(VIRTIO_NET_F_GUEST_CSUM).accept();
        assert!(accept.csum && accept.tso4 && accept.ecn && !accept.tso6);
    }

    #[test]
    fn what_depends_on_a_withheld_feature_goes_with_it() {
        let all = Features::new(u64::MAX);
        let rest = all.withhold(VIRTIO_NET_F_GUEST_CSUM);
        assert_eq!(rest.accept(), GuestOffloads::default());
        assert!(!rest.has(VIRTIO_NET_F_GUEST_TSO4) && !rest.has(VIRTIO_NET_F_GUEST_ECN));
        assert!(rest.has(VIRTIO_NET_F_HOST_TSO4));
        let rest = all.withhold(VIRTIO_NET_F_GUEST_TSO4);
        assert!(rest.has(VIRTIO_NET_F_GUEST_ECN), "it can still go with GUEST_TSO6");
        assert!(!all.withhold(VIRTIO_NET_F_CTRL_VQ).has(VIRTIO_NET_F_MQ));
    }
}

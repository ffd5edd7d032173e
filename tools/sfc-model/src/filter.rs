//! Which queue a received frame goes to (4.7).

use crate::parse::{Encap, Parsed};

/// Fields that a filter can match (4.7).
pub(crate) mod field {
    pub(crate) const SRC_IP: u32 = 1;
    pub(crate) const DST_IP: u32 = 1 << 1;
    pub(crate) const SRC_PORT: u32 = 1 << 3;
    pub(crate) const DST_MAC: u32 = 1 << 4;
    pub(crate) const DST_PORT: u32 = 1 << 5;
    pub(crate) const ETHER_TYPE: u32 = 1 << 6;
    pub(crate) const OUTER_VLAN: u32 = 1 << 8;
    pub(crate) const IP_PROTO: u32 = 1 << 9;
    pub(crate) const INNER_UNKNOWN_MULTICAST: u32 = 1 << 24;
    pub(crate) const INNER_UNKNOWN_UNICAST: u32 = 1 << 25;
    pub(crate) const UNKNOWN_MULTICAST: u32 = 1 << 30;
    pub(crate) const UNKNOWN_UNICAST: u32 = 1 << 31;
}
use field::{
    DST_IP, DST_MAC, DST_PORT, ETHER_TYPE, INNER_UNKNOWN_MULTICAST, INNER_UNKNOWN_UNICAST,
    IP_PROTO, OUTER_VLAN, SRC_IP, SRC_PORT, UNKNOWN_MULTICAST, UNKNOWN_UNICAST,
};

/// What can be matched, highest priority first.
pub(crate) const SUPPORTED: &[u32] = &[
    SRC_IP | DST_IP | SRC_PORT | DST_PORT | ETHER_TYPE | IP_PROTO,
    DST_IP | DST_PORT | ETHER_TYPE | IP_PROTO,
    DST_MAC | OUTER_VLAN,
    DST_MAC,
    UNKNOWN_UNICAST | OUTER_VLAN,
    UNKNOWN_MULTICAST | OUTER_VLAN,
    UNKNOWN_UNICAST,
    UNKNOWN_MULTICAST,
];

/// What can be matched of tunnels.
pub(crate) const SUPPORTED_ENCAP: &[u32] = &[
    ETHER_TYPE | IP_PROTO | INNER_UNKNOWN_UNICAST,
    ETHER_TYPE | IP_PROTO | INNER_UNKNOWN_MULTICAST,
];

/// What a frame is compared with, and where it goes.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    pub(crate) handle: u64,
    pub(crate) fields: u32,
    pub(crate) dst_mac: [u8; 6],
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) ether_type: u16,
    pub(crate) outer_vlan: u16,
    pub(crate) protocol: u8,
    pub(crate) src_ip: [u8; 16],
    pub(crate) dst_ip: [u8; 16],
    /// Network identifier and kind of tunnel, as in the request.
    pub(crate) vni: u32,
    pub(crate) exclusive: bool,
    pub(crate) host: bool,
    pub(crate) queue: usize,
    pub(crate) rss: Option<u32>,
}

impl Filter {
    /// Whether the filter takes all of its traffic for itself: INSERT, not SUBSCRIBE (4.7).
    pub(crate) fn must_be_exclusive(&self) -> bool {
        let address = self.dst_ip[0];
        let multicast_ip =
            if self.ether_type == 0x0800 { address >> 4 == 0xe } else { address == 0xff };
        self.fields & DST_MAC != 0 && self.dst_mac[0] & 1 == 0
            || self.fields & DST_IP != 0 && self.fields & ETHER_TYPE != 0 && !multicast_ip
    }

    /// Whether another one would match the same.
    pub(crate) fn same_match(&self, other: &Self) -> bool {
        (self.fields, self.dst_mac, self.src_port, self.dst_port, self.ether_type, self.outer_vlan)
            == (
                other.fields,
                other.dst_mac,
                other.src_port,
                other.dst_port,
                other.ether_type,
                other.outer_vlan,
            )
            && (self.protocol, self.src_ip, self.dst_ip, self.vni)
                == (other.protocol, other.src_ip, other.dst_ip, other.vni)
    }

    /// Classes are compared by their place in [`SUPPORTED`].
    fn class(&self) -> usize {
        SUPPORTED.iter().position(|&fields| fields == self.fields).unwrap_or(usize::MAX)
    }

    fn matches(&self, frame: &[u8], parsed: &Parsed) -> bool {
        let outer = &parsed.outer;
        let has = |field: u32| self.fields & field != 0;
        let multicast = frame[0] & 1 == 1;
        let ip = |wanted: &[u8; 16], at: &std::ops::Range<usize>| {
            frame.get(at.clone()).is_some_and(|ip| !ip.is_empty() && wanted.starts_with(ip))
        };
        let ports = outer.ports(frame);
        let inner_multicast = parsed.inner.as_ref().map(|inner| frame[inner.mac] & 1 == 1);
        !(has(DST_MAC) && self.dst_mac != frame[..6]
            || has(OUTER_VLAN)
                && (outer.tag_count == 0 || outer.tags[0] & 0xfff != self.outer_vlan & 0xfff)
            || has(ETHER_TYPE) && self.ether_type != outer.ether_type
            || has(IP_PROTO) && self.protocol != outer.protocol
            || has(SRC_IP) && !ip(&self.src_ip, &outer.source)
            || has(DST_IP) && !ip(&self.dst_ip, &outer.destination)
            || has(SRC_PORT) && ports.is_none_or(|ports| ports.0 != self.src_port)
            || has(DST_PORT) && ports.is_none_or(|ports| ports.1 != self.dst_port)
            || has(UNKNOWN_UNICAST) && multicast
            || has(UNKNOWN_MULTICAST) && !multicast
            || (has(INNER_UNKNOWN_UNICAST) || has(INNER_UNKNOWN_MULTICAST))
                && (parsed.encap == Encap::None
                    || inner_multicast != Some(has(INNER_UNKNOWN_MULTICAST))))
    }
}

/// The filters that take a frame, without duplicates of a queue: the first class that matches, or, for
/// multicast with chaining, every class.
pub(crate) fn select<'a>(
    filters: &'a [Filter],
    frame: &[u8],
    parsed: &Parsed,
    chaining: bool,
) -> Vec<&'a Filter> {
    let mut found: Vec<&Filter> =
        filters.iter().filter(|filter| filter.host && filter.matches(frame, parsed)).collect();
    found.sort_by_key(|filter| filter.class());
    if let Some(first) = found.first().map(|filter| filter.class())
        && !(chaining && frame[0] & 1 == 1)
    {
        found.retain(|filter| filter.class() == first);
    }
    let mut seen = Vec::new();
    found.retain(|filter| {
        let new = !seen.contains(&filter.queue);
        seen.push(filter.queue);
        new
    });
    found
}

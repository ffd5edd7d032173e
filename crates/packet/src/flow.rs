//! What packets of one flow have in common, for spreading flows over queues: the outermost addresses,
//! and the ports where each packet has them.
//!
//! It goes by what a card's receive-side scaling goes by (`spec/ef10.md` 4.8), with another hash: a port
//! that reports one has done the work already, and elsewhere nobody asks for Toeplitz's.

use std::num::NonZeroU32;

use crate::VlanTag;
use crate::header::{
    ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_LEN, IPV6_LEN, MAX_EXTENSIONS, MAX_TAGS,
    PROTOCOL_TCP, PROTOCOL_UDP, VLAN_LEN, is_ipv6_extension, is_vlan,
};

/// The outermost headers of a packet, as far as they are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow<'a> {
    /// The first EtherType that is no VLAN tag's; 0 when the frame ends before it.
    pub ethertype: u16,
    /// The identifier of the outermost VLAN tag.
    pub vlan: Option<u16>,
    /// Source and destination.
    pub addresses: Addresses<'a>,
    /// What the IP header says follows it; of IPv6, what follows the extension headers.
    pub protocol: Option<u8>,
    /// TCP and UDP: source and destination port. Fragments have none, not even the first one: what
    /// belongs together has to stay together.
    pub ports: Option<[u16; 2]>,
}

/// IP addresses in the order of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses<'a> {
    /// No IP header.
    None,
    /// IPv4: source, destination.
    V4(&'a [u8; 8]),
    /// IPv6: source, destination.
    V6(&'a [u8; 32]),
}

impl<'a> Flow<'a> {
    /// Reads the headers in a frame's first bytes. `stripped` is a VLAN tag that the port took out.
    #[inline]
    pub fn of(head: &'a [u8], stripped: Option<VlanTag>) -> Self {
        let mut flow = Self {
            ethertype: 0,
            vlan: stripped.map(|tag| tag.tci & VLAN_ID),
            addresses: Addresses::None,
            protocol: None,
            ports: None,
        };
        let Some(mut ethertype) = u16_at(head, ETHERNET_LEN - 2) else { return flow };
        let mut at = ETHERNET_LEN;
        for _ in 0..MAX_TAGS {
            if !is_vlan(ethertype) {
                break;
            }
            let Some(next) = u16_at(head, at + 2) else { return flow };
            let tag = || u16_at(head, at).map(|tci| tci & VLAN_ID);
            flow.vlan = flow.vlan.or_else(tag);
            (ethertype, at) = (next, at + VLAN_LEN);
        }
        flow.ethertype = ethertype;
        match ethertype {
            ETHERTYPE_IPV4 => flow.ipv4(head, at),
            ETHERTYPE_IPV6 => flow.ipv6(head, at),
            _ => None,
        };
        flow
    }

    /// A hash that packets of one flow share; `seed` keeps others from choosing where theirs go.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low half has all bits mixed in")]
    pub fn hash(&self, seed: u64) -> NonZeroU32 {
        let mixed = match self.addresses {
            Addresses::None => u64::from(self.ethertype) ^ seed,
            Addresses::V4(both) => u64::from_ne_bytes(*both) ^ seed,
            Addresses::V6(both) => {
                let [a, b, c, d] = std::array::from_fn(|word| {
                    let bytes = both[word * 8..].first_chunk().expect("four words of eight bytes");
                    u64::from_ne_bytes(*bytes)
                });
                fold(a ^ seed, b ^ 0xbf58_476d_1ce4_e5b9)
                    ^ fold(c ^ 0x94d0_49bb_1331_11eb, d ^ seed)
            }
        };
        let ports = self.ports.map_or(0, |[from, to]| u64::from(from) << 48 | u64::from(to) << 32);
        let hash = fold(mixed ^ ports, 0x9e37_79b9_7f4a_7c15);
        NonZeroU32::new(hash as u32).unwrap_or(NonZeroU32::MIN)
    }

    #[inline]
    fn ipv4(&mut self, head: &'a [u8], at: usize) -> Option<()> {
        let ip: &[u8; IPV4_LEN] = head.get(at..)?.first_chunk()?;
        let len = usize::from(ip[0] & 0xf) * 4;
        if ip[0] >> 4 != 4 || len < IPV4_LEN {
            return None;
        }
        self.addresses = Addresses::V4(ip.last_chunk()?);
        self.protocol = Some(ip[9]);
        let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
        if !fragment { self.transport(head, at + len) } else { None }
    }

    #[inline]
    fn ipv6(&mut self, head: &'a [u8], at: usize) -> Option<()> {
        let ip: &[u8; IPV6_LEN] = head.get(at..)?.first_chunk()?;
        if ip[0] >> 4 != 6 {
            return None;
        }
        self.addresses = Addresses::V6(ip.last_chunk()?);
        let (mut next, mut behind) = (ip[6], at + IPV6_LEN);
        for _ in 0..MAX_EXTENSIONS {
            if !is_ipv6_extension(next) {
                break;
            }
            let extension: &[u8; 2] = head.get(behind..)?.first_chunk()?;
            next = extension[0];
            behind += (usize::from(extension[1]) + 1) * 8;
        }
        self.protocol = Some(next);
        self.transport(head, behind)
    }

    #[inline]
    fn transport(&mut self, head: &[u8], at: usize) -> Option<()> {
        if !matches!(self.protocol, Some(PROTOCOL_TCP | PROTOCOL_UDP)) {
            return None;
        }
        self.ports = Some([u16_at(head, at)?, u16_at(head, at + 2)?]);
        Some(())
    }
}

/// A product of 128 bits, folded: every bit of the input reaches every bit of the result.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves of the product are used")]
pub fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// The identifier in a tag's control information.
const VLAN_ID: u16 = 0xfff;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header;

    fn ethernet(ethertype: u16, rest: &[u8]) -> Vec<u8> {
        [&[2; 12][..], &ethertype.to_be_bytes(), rest].concat()
    }

    fn ipv4(protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
        let mut ip = [0; IPV4_LEN];
        (ip[0], ip[9]) = (0x45, protocol);
        ip[6..8].copy_from_slice(&fragment.to_be_bytes());
        ip[12..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        [&ip[..], rest].concat()
    }

    fn ipv6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut ip = [0; IPV6_LEN];
        (ip[0], ip[6], ip[8], ip[39]) = (0x60, next, 0xfd, 2);
        [&ip[..], rest].concat()
    }

    const PORTS: [u8; 8] = [0x12, 0x34, 0x00, 0x50, 0, 0, 0, 0];

    #[test]
    fn headers_are_found() {
        let frame = ethernet(ETHERTYPE_IPV4, &ipv4(PROTOCOL_TCP, 0x4000, &PORTS));
        let flow = Flow::of(&frame, None);
        assert_eq!((flow.ethertype, flow.vlan), (ETHERTYPE_IPV4, None));
        assert_eq!(flow.addresses, Addresses::V4(&[10, 0, 0, 1, 10, 0, 0, 2]));
        assert_eq!((flow.protocol, flow.ports), (Some(6), Some([0x1234, 80])));
        let tagged = [&[0x20, 7][..], &[0x86, 0xdd], &ipv6(0, &[17, 0, 0, 0, 0, 0, 0, 0])].concat();
        let frame = ethernet(0x8100, &[&tagged[..], &PORTS].concat());
        let flow = Flow::of(&frame, None);
        assert_eq!((flow.ethertype, flow.vlan), (ETHERTYPE_IPV6, Some(7)));
        assert_eq!((flow.protocol, flow.ports), (Some(17), Some([0x1234, 80])));
        let stripped = Flow::of(&frame, Some(VlanTag { tpid: 0x88a8, tci: 0xf009 }));
        assert_eq!(stripped.vlan, Some(9));
        assert_eq!(Flow::of(&ethernet(0x0806, &[]), None).ethertype, 0x0806);
    }

    #[test]
    fn what_is_not_there_is_not_made_up() {
        let whole = ethernet(ETHERTYPE_IPV4, &ipv4(PROTOCOL_UDP, 0, &PORTS));
        for len in 0..whole.len() {
            let flow = Flow::of(&whole[..len], None);
            assert_eq!(flow.ports.is_some(), len >= 38, "{len} bytes");
            assert_eq!(flow.protocol.is_some(), len >= 34, "{len} bytes");
            assert_eq!(flow.ethertype != 0, len >= 14, "{len} bytes");
        }
        // Looped extension headers end somewhere.
        let loops: Vec<u8> = [0, 0, 0, 0, 0, 0, 0, 0].repeat(50);
        assert_eq!(Flow::of(&ethernet(ETHERTYPE_IPV6, &ipv6(0, &loops)), None).ports, None);
    }

    #[test]
    fn fragments_go_by_their_addresses() {
        let frame = |fragment| ethernet(ETHERTYPE_IPV4, &ipv4(PROTOCOL_UDP, fragment, &PORTS));
        let (first, last) = (frame(0x2000), frame(0x0008));
        let hash = |frame: &[u8]| Flow::of(frame, None).hash(5);
        assert_eq!(hash(&first), hash(&last));
        assert_ne!(hash(&first), hash(&frame(0)));
    }

    #[test]
    fn every_byte_that_counts_counts_and_no_other() {
        let counted = |frame: &[u8], bytes: std::ops::Range<usize>| {
            let hash = Flow::of(frame, None).hash(1);
            for at in 0..frame.len() {
                let mut other = frame.to_vec();
                other[at] ^= 1;
                let same = Flow::of(&other, None).hash(1) == hash;
                if bytes.contains(&at) {
                    assert!(!same, "byte {at}");
                }
            }
            hash
        };
        let frame = ethernet(ETHERTYPE_IPV4, &ipv4(PROTOCOL_TCP, 0, &PORTS));
        let hash = counted(&frame, 26..38);
        assert_ne!(Flow::of(&frame, None).hash(2), hash, "the seed counts");
        let mut answer = frame.clone();
        answer[38..].fill(0xff);
        (answer[1], answer[15], answer[22]) = (7, 7, 7);
        assert_eq!(Flow::of(&answer, None).hash(1), hash, "addresses, TOS, TTL and the rest don't");
        counted(&ethernet(ETHERTYPE_IPV6, &ipv6(PROTOCOL_UDP, &PORTS)), 22..58);
    }

    #[test]
    fn flows_spread_evenly() {
        let mut queues = [0_u32; 4];
        for port in 0..4096_u16 {
            let mut frame = ethernet(ETHERTYPE_IPV4, &ipv4(PROTOCOL_TCP, 0, &PORTS));
            frame[34..36].copy_from_slice(&port.to_be_bytes());
            let hash = Flow::of(&frame, None).hash(0x1234_5678_9abc_def0).get();
            queues[hash as usize % 128 % 4] += 1;
        }
        assert!(queues.iter().all(|count| (900..1150).contains(count)), "{queues:?}");
    }

    #[test]
    fn it_agrees_with_the_parser_of_tools() {
        let frame = ethernet(ETHERTYPE_IPV6, &ipv6(PROTOCOL_UDP, &PORTS));
        let parsed = header::parse(&frame).unwrap();
        let at = usize::from(parsed.layout.transport);
        let ports = Flow::of(&frame, None).ports.unwrap();
        assert_eq!(frame[at..at + 2], ports[0].to_be_bytes());
    }
}

//! What identifies a flow, as a few machine words (`spec/gro.md` 2.1 to 2.4: L1 to L5, M1 to M4).
//!
//! ```text
//!  link[0]       MAC addresses, first 8 bytes
//!  link[1]       │ MAC, last 4 │ EtherType │ stripped tag? IPv6? │ protocol │
//!  tags          in-band VLAN tags, 4 bytes each: control information, inner EtherType
//!  ports         │ TCP ports │ stripped tag: protocol identifier, control information │
//!  addresses[0]  IPv4: both addresses                ─┐ an IPv4 key ends here
//!  addresses[1…3]  IPv6: the rest of both addresses   │
//!  label         IPv6: version and flow label, first next-header, length of extension headers
//! ```
//!
//! Words are compared, never computed with, so they are read in the machine's own byte order. Three
//! questions are asked of two keys: same flow; same connection (addresses, ports, VLAN), which matters
//! for order even if MAC addresses or flow label differ; same addresses.

use packet::VlanTag;
use packet::flow::fold;

/// The identity of a flow. IPv6 extension headers are in it by their length only; whoever finds equal
/// keys compares their bytes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Key {
    link: [u64; 2],
    tags: u64,
    ports: u64,
    addresses: [u64; 4],
    label: u64,
}

impl Key {
    /// The part that every frame has.
    #[inline]
    pub(crate) fn link(link: &[u8; 14], stripped: Option<VlanTag>, tags: u64) -> Self {
        let mut key = Self {
            link: [word64(link, 0), word32(link, 8) | word16(link, 12) << 32],
            tags,
            ..Self::default()
        };
        if let Some(tag) = stripped {
            key.link[1] |= STRIPPED;
            key.ports = u64::from(tag.tpid) << 48 | u64::from(tag.tci) << 32;
        }
        key
    }

    /// Adds what identifies an IPv4 packet.
    #[inline]
    pub(crate) fn set_ipv4(&mut self, ip: &[u8; 20]) {
        self.link[1] |= u64::from(ip[9]) << 56;
        self.addresses[0] = word64(ip, 12);
    }

    /// Adds what identifies an IPv6 packet: `protocol` follows `extensions` bytes of extension headers.
    #[inline]
    pub(crate) fn set_ipv6(&mut self, ip: &[u8; 40], protocol: u8, extensions: u16) {
        self.link[1] |= u64::from(protocol) << 56 | IPV6;
        self.addresses = [word64(ip, 8), word64(ip, 16), word64(ip, 24), word64(ip, 32)];
        let first = u32::from_be_bytes([ip[0], ip[1], ip[2], ip[3]]) & 0xf00f_ffff; // M2
        self.label = u64::from(first) | u64::from(ip[6]) << 32 | u64::from(extensions) << 48;
    }

    /// Adds the ports.
    #[inline]
    pub(crate) fn set_ports(&mut self, ports: [u8; 4]) {
        self.ports |= u64::from(u32::from_ne_bytes(ports));
    }

    /// Whether the packet is IPv6.
    #[inline]
    pub(crate) fn is_ipv6(&self) -> bool {
        self.link[1] & IPV6 != 0
    }

    /// Whether there are IPv6 extension headers.
    #[inline]
    pub(crate) fn has_extensions(&self) -> bool {
        self.label >> 48 != 0
    }

    /// Whether the packets belong to one flow.
    #[inline]
    pub(crate) fn same_flow(&self, other: &Self) -> bool {
        let differing = self.link[0] ^ other.link[0]
            | self.link[1] ^ other.link[1]
            | self.tags ^ other.tags
            | self.ports ^ other.ports
            | self.addresses[0] ^ other.addresses[0];
        differing == 0
            && (!self.is_ipv6() || (self.rest_of_addresses(other) | self.label ^ other.label) == 0)
    }

    /// Whether the packets belong to one connection: equal addresses, ports and VLAN tags, whatever
    /// else they differ in.
    #[inline]
    pub(crate) fn same_connection(&self, other: &Self) -> bool {
        self.same_addresses(other) && self.ports == other.ports
    }

    /// Whether the packets have the same addresses, protocol and VLAN tags.
    #[inline]
    pub(crate) fn same_addresses(&self, other: &Self) -> bool {
        let differing = (self.link[1] ^ other.link[1]) & !MAC
            | self.tags ^ other.tags
            | (self.ports ^ other.ports) >> 32
            | self.addresses[0] ^ other.addresses[0]
            | self.rest_of_addresses(other);
        differing == 0
    }

    /// Whether the packets have the same MAC addresses and EtherType, and the same stripped tag.
    pub(crate) fn same_link(&self, other: &Self) -> bool {
        self.link[0] == other.link[0]
            && (self.link[1] ^ other.link[1]) & (MAC | ETHERTYPE | STRIPPED) == 0
            && (self.ports ^ other.ports) >> 32 == 0
    }

    /// A hash of addresses and ports: packets of one connection meet, whatever else they differ in and
    /// whether a port reported a hash for them or not. (The kernel takes the port's, and two packets of
    /// a flow with different ones do not match there.)
    #[inline]
    pub(crate) fn hash(&self, seed: u64) -> u64 {
        fold(self.mixed_addresses(seed) ^ (self.ports << 32), 0x9e37_79b9_7f4a_7c15)
    }

    /// A hash of the addresses alone.
    #[inline]
    pub(crate) fn address_hash(&self, seed: u64) -> u64 {
        fold(self.mixed_addresses(seed), 0xd6e8_feb8_6659_fd93)
    }

    #[inline]
    fn mixed_addresses(&self, seed: u64) -> u64 {
        let [a, b, c, d] = self.addresses;
        if self.is_ipv6() {
            fold(a ^ seed, b ^ 0xbf58_476d_1ce4_e5b9) ^ fold(c ^ 0x94d0_49bb_1331_11eb, d ^ seed)
        } else {
            a ^ seed
        }
    }

    #[inline]
    fn rest_of_addresses(&self, other: &Self) -> u64 {
        self.addresses[1] ^ other.addresses[1]
            | self.addresses[2] ^ other.addresses[2]
            | self.addresses[3] ^ other.addresses[3]
    }
}

#[inline]
fn word64<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let word = bytes[at..].first_chunk().expect("a constant offset inside the array");
    u64::from_ne_bytes(*word)
}

#[inline]
fn word32<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let word = bytes[at..].first_chunk().expect("a constant offset inside the array");
    u64::from(u32::from_ne_bytes(*word))
}

#[inline]
fn word16<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]))
}

const MAC: u64 = 0xffff_ffff;
const ETHERTYPE: u64 = 0xffff << 32;
const STRIPPED: u64 = 1 << 48;
const IPV6: u64 = 1 << 49;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(change: impl Fn(&mut [u8; 14], &mut [u8; 20], &mut [u8; 4])) -> Key {
        let (mut link, mut ip, mut ports) = ([2; 14], [3; 20], [4; 4]);
        change(&mut link, &mut ip, &mut ports);
        let mut key = Key::link(&link, None, 0);
        key.set_ipv4(&ip);
        key.set_ports(ports);
        key
    }

    #[test]
    fn every_byte_counts() {
        let base = key(|_, _, _| {});
        assert!(base.same_flow(&key(|_, _, _| {})));
        for at in 0..14 {
            let other = key(|link, _, _| link[at] ^= 1);
            assert!(!base.same_flow(&other) && !base.same_link(&other), "link byte {at}");
            assert_eq!(base.same_connection(&other), at < 12, "link byte {at}");
        }
        for at in [9, 12, 13, 14, 15, 16, 17, 18, 19] {
            let other = key(|_, ip, _| ip[at] ^= 1);
            assert!(!base.same_flow(&other) && !base.same_addresses(&other), "IP byte {at}");
        }
        for at in 0..4 {
            let other = key(|_, _, ports| ports[at] ^= 1);
            assert!(!base.same_connection(&other) && base.same_addresses(&other), "port byte {at}");
        }
    }

    #[test]
    fn a_stripped_tag_is_not_an_absent_one() {
        let link = [2; 14];
        let tag = |tpid, tci| Key::link(&link, Some(VlanTag { tpid, tci }), 0);
        assert!(tag(0x8100, 5).same_flow(&tag(0x8100, 5)));
        for other in [Key::link(&link, None, 0), tag(0x8100, 6), tag(0x88a8, 5), tag(0, 0)] {
            assert!(!tag(0x8100, 5).same_flow(&other));
            assert!(!tag(0x8100, 5).same_link(&other));
        }
        assert!(!tag(0, 0).same_flow(&Key::link(&link, None, 0)));
    }
}

//! Finds the outermost IP and transport header of a frame.
//!
//! Bounded: at most two VLAN tags and four IPv6 extension headers. No length of the frame is trusted
//! further than the bytes that are there.

use packet::Layout;

/// Where a frame's headers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Headers {
    pub(super) layout: Layout,
    /// IPv6 or IPv4.
    pub(super) v6: bool,
    /// TCP or UDP.
    pub(super) protocol: u8,
    /// The IP packet's length by its own header.
    pub(super) ip_bytes: usize,
}

impl Headers {
    /// The headers, when the frame is an unfragmented TCP or UDP packet over IP with whole headers in
    /// its head piece.
    pub(super) fn find(head: &[u8]) -> Option<Self> {
        let (network, ether_type) = ethernet(head)?;
        let (v6, ip_bytes, protocol, transport) = match ether_type {
            IPV4 => ipv4(head, network)?,
            IPV6 => ipv6(head, network)?,
            _ => return None,
        };
        let length = match protocol {
            super::TCP => usize::from(*head.get(transport + 12)? >> 4) * 4,
            super::UDP => 8,
            _ => return None,
        };
        let least = if protocol == super::TCP { 20 } else { 8 };
        let payload = transport + length;
        if length < least || payload > head.len() || payload > network + ip_bytes {
            return None;
        }
        let short = |at: usize| u16::try_from(at).ok();
        let layout = Layout {
            network: short(network)?,
            transport: short(transport)?,
            payload: short(payload)?,
        };
        Some(Self { layout, v6, protocol, ip_bytes })
    }
}

/// The offset and the type of what is behind the Ethernet header and its VLAN tags.
fn ethernet(head: &[u8]) -> Option<(usize, u16)> {
    let mut at = 12;
    for _ in 0..=MOST_TAGS {
        let ether_type = word(head, at)?;
        at += 2;
        if !matches!(ether_type, VLAN | SERVICE_VLAN) {
            return Some((at, ether_type));
        }
        at += 2;
    }
    None
}

/// Version, length, protocol and end of an IPv4 header.
fn ipv4(head: &[u8], network: usize) -> Option<(bool, usize, u8, usize)> {
    let first = *head.get(network)?;
    let header = usize::from(first & 15) * 4;
    let fragment = word(head, network + 6)? & 0x3fff;
    let protocol = *head.get(network + 9)?;
    if first >> 4 != 4 || header < 20 || fragment != 0 || head.len() < network + header {
        return None;
    }
    Some((false, usize::from(word(head, network + 2)?), protocol, network + header))
}

/// Version, length, protocol and end of an IPv6 header with its extension headers (RFC 8200, 4).
fn ipv6(head: &[u8], network: usize) -> Option<(bool, usize, u8, usize)> {
    if *head.get(network)? >> 4 != 6 || head.len() < network + 40 {
        return None;
    }
    let mut next = *head.get(network + 6)?;
    let mut at = network + 40;
    for _ in 0..MOST_EXTENSIONS {
        if !matches!(next, HOP_BY_HOP | ROUTING | DESTINATION) {
            break;
        }
        next = *head.get(at)?;
        at += (usize::from(*head.get(at + 1)?) + 1) * 8;
    }
    Some((true, 40 + usize::from(word(head, network + 4)?), next, at))
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;
const MOST_TAGS: usize = 2;
const MOST_EXTENSIONS: usize = 4;

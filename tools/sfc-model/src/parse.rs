//! What the card understands of a frame, for classes (5.3), checksums and segmentation (7.3, 7.4).

use std::ops::Range;

use crate::bits::{be16, be32, low8};

/// Network layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum L3 {
    Unknown,
    V4,
    V6,
    V4Fragment,
    V6Fragment,
    Arp,
}

/// Transport layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum L4 {
    Unknown,
    Tcp,
    Udp,
}

/// A tunnel's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encap {
    None,
    /// VXLAN and Geneve.
    Udp,
    Gre,
}

/// The headers of one Ethernet frame, outer or inner. Offsets are in bytes of the whole frame.
#[derive(Clone, Debug)]
pub(crate) struct Headers {
    pub(crate) mac: usize,
    pub(crate) tags: [u16; 2],
    pub(crate) tag_count: u8,
    pub(crate) ether_type: u16,
    pub(crate) l3: L3,
    pub(crate) l3_at: usize,
    pub(crate) protocol: u8,
    pub(crate) source: Range<usize>,
    pub(crate) destination: Range<usize>,
    pub(crate) l4: L4,
    pub(crate) l4_at: usize,
    /// Where the network layer's datagram ends.
    pub(crate) end: usize,
}

impl Headers {
    pub(crate) fn is_ip(&self) -> bool {
        !matches!(self.l3, L3::Unknown | L3::Arp)
    }

    pub(crate) fn is_v4(&self) -> bool {
        matches!(self.l3, L3::V4 | L3::V4Fragment)
    }

    /// Where the checksum of the transport layer is.
    pub(crate) fn l4_checksum_at(&self) -> Option<usize> {
        match self.l4 {
            L4::Tcp => Some(self.l4_at + 16),
            L4::Udp => Some(self.l4_at + 6),
            L4::Unknown => None,
        }
    }

    /// Where the payload of the transport layer begins.
    pub(crate) fn payload_at(&self, frame: &[u8]) -> Option<usize> {
        match self.l4 {
            L4::Tcp => Some(self.l4_at + usize::from(frame.get(self.l4_at + 12)? >> 4) * 4),
            L4::Udp => Some(self.l4_at + 8),
            L4::Unknown => None,
        }
    }

    /// Source and destination port.
    pub(crate) fn ports(&self, frame: &[u8]) -> Option<(u16, u16)> {
        (self.l4 != L4::Unknown)
            .then(|| Some((be16(frame, self.l4_at)?, be16(frame, self.l4_at + 2)?)))
            .flatten()
    }
}

/// A frame: its headers, and those of the frame inside a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Parsed {
    pub(crate) outer: Headers,
    pub(crate) encap: Encap,
    pub(crate) inner: Option<Headers>,
}

/// Parses a frame; `None` when it is too short for an Ethernet header.
pub(crate) fn parse(frame: &[u8], tunnel_ports: &[u16]) -> Option<Parsed> {
    let outer = headers(frame, 0)?;
    let (encap, inner_at) = tunnel(frame, &outer, tunnel_ports).unwrap_or((Encap::None, 0));
    let inner = (encap != Encap::None).then(|| headers(frame, inner_at)).flatten();
    let encap = if inner.is_some() { encap } else { Encap::None };
    Some(Parsed { outer, encap, inner })
}

fn tunnel(frame: &[u8], outer: &Headers, ports: &[u16]) -> Option<(Encap, usize)> {
    const TRANSPARENT_ETHERNET: u16 = 0x6558;
    if matches!(outer.l3, L3::V4 | L3::V6) && outer.protocol == 47 {
        let flags = be16(frame, outer.l4_at)?;
        let optional = [0x8000, 0x2000, 0x1000].iter().filter(|&&flag| flags & flag != 0).count();
        return (flags & 7 == 0 && be16(frame, outer.l4_at + 2)? == TRANSPARENT_ETHERNET)
            .then_some((Encap::Gre, outer.l4_at + 4 + 4 * optional));
    }
    let (_, port) = outer.ports(frame)?;
    (outer.l4 == L4::Udp && ports.contains(&port)).then_some((Encap::Udp, outer.l4_at + 16))
}

fn headers(frame: &[u8], mac: usize) -> Option<Headers> {
    let mut found = Headers {
        mac,
        tags: [0; 2],
        tag_count: 0,
        ether_type: be16(frame, mac + 12)?,
        l3: L3::Unknown,
        l3_at: mac + 14,
        protocol: 0,
        source: 0..0,
        destination: 0..0,
        l4: L4::Unknown,
        l4_at: 0,
        end: frame.len(),
    };
    while matches!(found.ether_type, 0x8100 | 0x88a8 | 0x9100) && found.tag_count < 2 {
        let (Some(tag), Some(next)) = (be16(frame, found.l3_at), be16(frame, found.l3_at + 2))
        else {
            break;
        };
        found.tags[usize::from(found.tag_count)] = tag;
        found.tag_count += 1;
        found.ether_type = next;
        found.l3_at += 4;
    }
    match found.ether_type {
        0x0800 => v4(frame, &mut found),
        0x86dd => v6(frame, &mut found),
        0x0806 => {
            found.l3 = L3::Arp;
            Some(())
        }
        _ => None,
    };
    if matches!(found.l3, L3::V4 | L3::V6) {
        let (l4, len) = match found.protocol {
            6 => (L4::Tcp, 20),
            17 => (L4::Udp, 8),
            _ => (L4::Unknown, 0),
        };
        if found.l4_at + len <= found.end {
            found.l4 = l4;
        }
    }
    Some(found)
}

fn v4(frame: &[u8], found: &mut Headers) -> Option<()> {
    let at = found.l3_at;
    let first = *frame.get(at)?;
    let len = usize::from(first & 0xf) * 4;
    let total = usize::from(be16(frame, at + 2)?);
    if first >> 4 != 4 || len < 20 || total < len || at + total > frame.len() {
        return None;
    }
    let fragment = be16(frame, at + 6)?;
    found.l3 = if fragment & 0x3fff == 0 { L3::V4 } else { L3::V4Fragment };
    found.protocol = frame[at + 9];
    found.source = at + 12..at + 16;
    found.destination = at + 16..at + 20;
    found.l4_at = at + len;
    found.end = at + total;
    Some(())
}

fn v6(frame: &[u8], found: &mut Headers) -> Option<()> {
    let at = found.l3_at;
    let end = at + 40 + usize::from(be16(frame, at + 4)?);
    if low8(u64::from(be32(frame, at)? >> 28)) != 6 || end > frame.len() {
        return None;
    }
    let mut next = frame[at + 6];
    let mut l4_at = at + 40;
    let mut l3 = L3::V6;
    while matches!(next, 0 | 43 | 44 | 60) && l4_at + 8 <= end {
        let len = if next == 44 { 8 } else { 8 + usize::from(frame[l4_at + 1]) * 8 };
        if next == 44 {
            l3 = L3::V6Fragment;
        }
        next = frame[l4_at];
        l4_at += len;
    }
    found.l3 = l3;
    found.protocol = next;
    found.source = at + 8..at + 24;
    found.destination = at + 24..at + 40;
    found.l4_at = l4_at.min(end);
    found.end = end;
    Some(())
}

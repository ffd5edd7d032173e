//! Where the headers of a frame are, found without trust in any length.
//!
//! For paths that are taken once per super-packet, and for tools. GRO has a parser of its own, since it
//! has to know why a frame can't be merged and must pay little for those that can't.

use crate::Layout;

/// What stands in front of a frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parsed {
    /// Where the headers are. All of them lie inside the bytes that were parsed.
    pub layout: Layout,
    /// IPv6 or not (then IPv4).
    pub v6: bool,
    /// TCP or not (then UDP).
    pub tcp: bool,
    /// Length of the IP packet in bytes as its own header has it. It may exceed the frame, or be less:
    /// Ethernet pads short frames.
    pub ip_len: usize,
}

/// Why a frame has no TCP or UDP header that could be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A header reaches beyond the bytes at hand.
    #[error("a header is cut off")]
    Truncated,
    /// Neither IPv4 nor IPv6.
    #[error("EtherType {0:#06x} is not IP")]
    EtherType(u16),
    /// An IP header whose version or length field is impossible.
    #[error("malformed IP header")]
    Ip,
    /// A fragment: what follows its IP header need not be a transport header.
    #[error("IP fragment")]
    Fragment,
    /// Neither TCP nor UDP, or IPv6 extension headers beyond those that GRO knows.
    #[error("IP protocol {0} is neither TCP nor UDP")]
    Protocol(u8),
    /// A TCP header whose length field is impossible.
    #[error("malformed TCP header")]
    Tcp,
}

/// Finds the innermost headers of a frame without tunnels: Ethernet, up to two VLAN tags, IPv4 with
/// options or IPv6 with hop-by-hop, routing and destination options, and TCP or UDP.
///
/// # Errors
///
/// See [`ParseError`].
pub fn parse(head: &[u8]) -> Result<Parsed, ParseError> {
    let (mut ethertype, mut network) = (u16_at(head, 12)?, ETHERNET_LEN);
    for _ in 0..MAX_TAGS {
        if !is_vlan(ethertype) {
            break;
        }
        ethertype = u16_at(head, network + 2)?;
        network += VLAN_LEN;
    }
    let (v6, protocol, transport, ip_len) = match ethertype {
        ETHERTYPE_IPV4 => {
            let (protocol, transport, len) = ipv4(head, network)?;
            (false, protocol, transport, len)
        }
        ETHERTYPE_IPV6 => {
            let (protocol, transport, len) = ipv6(head, network)?;
            (true, protocol, transport, len)
        }
        other => return Err(ParseError::EtherType(other)),
    };
    let (tcp, len) = match protocol {
        PROTOCOL_TCP => {
            let len = usize::from(u8_at(head, transport + 12)? >> 4) * 4;
            if len < TCP_LEN {
                return Err(ParseError::Tcp);
            }
            (true, len)
        }
        PROTOCOL_UDP => (false, UDP_LEN),
        other => return Err(ParseError::Protocol(other)),
    };
    let payload = transport + len;
    if payload > head.len() {
        return Err(ParseError::Truncated);
    }
    let offset = |at: usize| u16::try_from(at).map_err(|_| ParseError::Truncated);
    let layout = Layout {
        network: offset(network)?,
        transport: offset(transport)?,
        payload: offset(payload)?,
    };
    Ok(Parsed { layout, v6, tcp, ip_len })
}

/// Protocol, offset of what follows, length of the packet.
fn ipv4(head: &[u8], at: usize) -> Result<(u8, usize, usize), ParseError> {
    let first = u8_at(head, at)?;
    let len = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || len < IPV4_LEN {
        return Err(ParseError::Ip);
    }
    // More fragments, or an offset.
    if u16_at(head, at + 6)? & 0x3fff != 0 {
        return Err(ParseError::Fragment);
    }
    Ok((u8_at(head, at + 9)?, at + len, usize::from(u16_at(head, at + 2)?)))
}

/// Protocol, offset of what follows, length of the packet.
fn ipv6(head: &[u8], at: usize) -> Result<(u8, usize, usize), ParseError> {
    if u8_at(head, at)? >> 4 != 6 {
        return Err(ParseError::Ip);
    }
    let (mut next, mut behind) = (u8_at(head, at + 6)?, at + IPV6_LEN);
    for _ in 0..MAX_EXTENSIONS {
        if !is_ipv6_extension(next) {
            break;
        }
        next = u8_at(head, behind)?;
        behind += (usize::from(u8_at(head, behind + 1)?) + 1) * 8;
    }
    if next == EXTENSION_FRAGMENT {
        return Err(ParseError::Fragment);
    }
    Ok((next, behind, IPV6_LEN + usize::from(u16_at(head, at + 4)?)))
}

/// Whether this EtherType announces a VLAN tag in the frame: 802.1Q or 802.1ad.
#[inline]
pub const fn is_vlan(ethertype: u16) -> bool {
    matches!(ethertype, 0x8100 | 0x88a8)
}

/// Whether a next-header value is an extension header that is skipped: hop-by-hop options, routing,
/// destination options.
#[inline]
pub const fn is_ipv6_extension(next: u8) -> bool {
    matches!(next, 0 | 43 | 60)
}

fn u8_at(bytes: &[u8], at: usize) -> Result<u8, ParseError> {
    bytes.get(at).copied().ok_or(ParseError::Truncated)
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, ParseError> {
    let pair = bytes.get(at..at + 2).ok_or(ParseError::Truncated)?;
    Ok(u16::from_be_bytes([pair[0], pair[1]]))
}

/// Bytes of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;
/// Bytes of a VLAN tag in a frame.
pub const VLAN_LEN: usize = 4;
/// Bytes of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header without extension headers.
pub const IPV6_LEN: usize = 40;
/// Bytes of a TCP header without options.
pub const TCP_LEN: usize = 20;
/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IP protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

const EXTENSION_FRAGMENT: u8 = 44;
pub(crate) const MAX_TAGS: usize = 2;
/// As many as anybody has a use for; the loop must end.
pub(crate) const MAX_EXTENSIONS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{TcpFrame, UdpFrame};
    use proptest::prelude::*;

    #[test]
    fn headers_are_found_behind_tags_and_extensions() {
        let places = |bytes: &[u8]| {
            let parsed = parse(bytes).unwrap();
            (parsed.layout.network, parsed.layout.transport, parsed.layout.payload, parsed.ip_len)
        };
        let mut tcp = TcpFrame::v4();
        tcp.payload = &[1, 2, 3];
        assert_eq!(places(&tcp.to_vec()), (14, 34, 54, 43));
        tcp.options = &[1; 12];
        tcp.link.tags = &[(0x88a8, 5), (0x8100, 6)];
        assert_eq!(places(&tcp.to_vec()), (22, 42, 74, 55));
        let mut tcp = TcpFrame::v6();
        tcp.ip.set_extensions(&[(60, &[0; 8]), (0, &[0; 16])]);
        assert_eq!(places(&tcp.to_vec()), (14, 78, 98, 84));
        let mut udp = UdpFrame::v4();
        udp.ip.set_options(&[1; 8]);
        assert_eq!(places(&udp.to_vec()), (14, 42, 50, 36));
    }

    #[test]
    fn what_has_no_transport_header_says_why() {
        let good = TcpFrame::v4().to_vec();
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            parse(&bytes)
        };
        assert_eq!(parse(&good[..53]), Err(ParseError::Truncated));
        assert_eq!(parse(&[]), Err(ParseError::Truncated));
        assert_eq!(changed(13, 6), Err(ParseError::EtherType(0x0806)));
        assert_eq!(changed(14, 0x44), Err(ParseError::Ip));
        assert_eq!(changed(14, 0x65), Err(ParseError::Ip));
        assert_eq!(changed(20, 0x20), Err(ParseError::Fragment));
        assert_eq!(changed(23, 1), Err(ParseError::Protocol(1)));
        assert_eq!(changed(46, 0x40), Err(ParseError::Tcp));
        assert_eq!(changed(46, 0x60), Err(ParseError::Truncated));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_parsed_within_their_bounds(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            ethertype in prop::sample::select(vec![0x0800_u16, 0x86dd, 0x8100, 0x88a8]),
            first in prop::sample::select(vec![0x45_u8, 0x46, 0x60, 0x4f]),
        ) {
            if bytes.len() > 14 {
                bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
                bytes[14] = first;
            }
            if let Ok(parsed) = parse(&bytes) {
                let Layout { network, transport, payload } = parsed.layout;
                prop_assert!(network < transport && transport < payload);
                prop_assert!(usize::from(payload) <= bytes.len());
            }
        }
    }
}

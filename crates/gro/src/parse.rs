//! From bytes to a key and the fields that merging looks at.
//!
//! Everything that identifies a flow goes into one array of words, so that a flow is matched by one
//! comparison. A frame that can't be merged is let go as soon as that is known; the rule numbers are
//! those of `spec/gro.md` 2.

use packet::header::{
    ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_LEN, IPV6_LEN, PROTOCOL_TCP, TCP_LEN,
    VLAN_LEN, is_ipv6_extension, is_vlan,
};
use packet::{Frame, VlanTag, checksum};

use crate::config::{Accept, Config};
use crate::counters::Passed;

/// What identifies a flow: addresses, ports, link header, tags, flow label, place of the TCP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key([u64; 9]);

impl Key {
    /// Whether the packets belong to one connection, though they may differ in what else identifies a
    /// flow: link header, tags and addresses are equal, flow label and extension headers need not be.
    pub(crate) fn same_connection(&self, other: &Self) -> bool {
        self.0[..8] == other.0[..8]
    }

    /// Whether two packets have the same IP addresses.
    pub(crate) fn same_addresses(&self, other: &Self) -> bool {
        self.0[4..8] == other.0[4..8]
    }
}

/// A TCP packet, parsed.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) key: Key,
    pub(crate) hash: u32,
    pub(crate) v6: bool,
    /// Offsets from the start of the frame.
    pub(crate) network: u16,
    pub(crate) transport: u16,
    pub(crate) payload: u16,
    /// Payload bytes, Ethernet padding left out.
    pub(crate) len: u16,
    /// Bytes of Ethernet padding; not 0 only where they are to be trimmed.
    pub(crate) padding: u16,
    /// Payload bytes of each segment: `len`, unless the packet is a super-packet itself.
    pub(crate) segment: u16,
    /// Segments that it stands for.
    pub(crate) count: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// Bytes 12 to 15 of the TCP header: data offset, flags, window.
    pub(crate) word: u32,
    /// IPv4: TOS, TTL, DF. IPv6: traffic class, hop limit.
    pub(crate) network_fields: NetworkFields,
    /// IPv4 identification.
    pub(crate) id: u16,
    /// Set when the packet may not be merged though its flow is known (class F).
    pub(crate) flush: Option<Passed>,
}

/// What has to be equal in the IP headers of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NetworkFields {
    pub(crate) class: u8,
    pub(crate) hops: u8,
    pub(crate) df: bool,
}

/// What a frame turned out to be.
pub(crate) enum Parsed {
    /// Something that merges with nothing, and whose place among held flows does not matter.
    Pass(Passed),
    /// Something that may belong to a held flow of these addresses, but can't be merged (class B).
    Bypass(Passed, Key),
    /// Something that can't be merged and may belong to any held flow.
    BypassAll(Passed),
    /// A TCP packet.
    Tcp(Packet),
}

/// Parses a frame.
#[inline]
pub(crate) fn parse(frame: &Frame, config: &Config, accept: Accept) -> Parsed {
    let head = frame.head();
    let Some(link) = head.first_chunk::<ETHERNET_LEN>() else {
        return Parsed::Pass(Passed::Truncated);
    };
    let mut words = [0; 9];
    words[0] = u64::from(be32(link, 0)) << 32 | u64::from(be32(link, 4));
    words[1] = u64::from(be32(link, 8)) << 16 | u64::from(be16(link, 12));
    words[3] = frame.meta.vlan.map_or(0, stripped);
    let mut ethertype = be16(link, 12);
    let mut network = ETHERNET_LEN;
    while is_vlan(ethertype) {
        let Some(tag) = head.get(network..).and_then(<[u8]>::first_chunk::<VLAN_LEN>) else {
            return Parsed::Pass(Passed::Truncated);
        };
        if network >= ETHERNET_LEN + MAX_TAGS * VLAN_LEN {
            return Parsed::Pass(Passed::NoHandler);
        }
        words[2] = words[2] << 32 | u64::from(be32(tag, 0));
        ethertype = be16(tag, 2);
        network += VLAN_LEN;
    }
    match ethertype {
        ETHERTYPE_IPV4 => ipv4(frame, network, words, config, accept),
        ETHERTYPE_IPV6 => ipv6(frame, network, words, config, accept),
        _ => Parsed::Pass(Passed::NoHandler),
    }
}

#[inline]
fn ipv4(
    frame: &Frame,
    network: usize,
    mut words: [u64; 9],
    config: &Config,
    accept: Accept,
) -> Parsed {
    let Some(ip) = frame.head().get(network..).and_then(<[u8]>::first_chunk::<IPV4_LEN>) else {
        return Parsed::BypassAll(Passed::Truncated); // B1
    };
    if ip[9] != PROTOCOL_TCP {
        return Parsed::Pass(Passed::NoHandler); // B3
    }
    if !accept.tcp4 {
        return Parsed::Pass(Passed::NoGuestFeature);
    }
    words[4] = u64::from(be32(ip, 12)) << 32 | u64::from(be32(ip, 16));
    if ip[0] != 0x45 {
        return Parsed::Bypass(Passed::IpOptions, Key(words)); // B2
    }
    let fragment = be16(ip, 6);
    if fragment & 0x3fff != 0 {
        return Parsed::Bypass(Passed::Fragment, Key(words)); // B4
    }
    if checksum::sum(ip) != 0xffff {
        return Parsed::Bypass(Passed::IpChecksum, Key(words)); // B5
    }
    let flush = (fragment & 0x8000 != 0).then_some(Passed::ReservedBit); // F2
    let fields = NetworkFields { class: ip[1], hops: ip[8], df: fragment & 0x4000 != 0 };
    let at = At {
        network,
        transport: network + IPV4_LEN,
        end: network + usize::from(be16(ip, 2)),
        v6: false,
    };
    tcp(frame, at, words, flush, fields, be16(ip, 4), config)
}

fn ipv6(
    frame: &Frame,
    network: usize,
    mut words: [u64; 9],
    config: &Config,
    accept: Accept,
) -> Parsed {
    let head = frame.head();
    let Some(ip) = head.get(network..).and_then(<[u8]>::first_chunk::<IPV6_LEN>) else {
        return Parsed::BypassAll(Passed::Truncated); // B6
    };
    if !accept.tcp6 {
        return Parsed::Pass(Passed::NoGuestFeature);
    }
    for (word, at) in [(4, 8), (5, 16), (6, 24), (7, 32)] {
        words[word] = u64::from(be32(ip, at)) << 32 | u64::from(be32(ip, at + 4));
    }
    let first = be32(ip, 0);
    if first >> 28 != 6 {
        return Parsed::Bypass(Passed::IpOptions, Key(words));
    }
    let (mut next, mut transport, mut extensions) = (ip[6], network + IPV6_LEN, 0);
    while is_ipv6_extension(next) {
        extensions += 1;
        let Some(two) = head.get(transport..).and_then(<[u8]>::first_chunk::<2>) else {
            return Parsed::Bypass(Passed::Truncated, Key(words));
        };
        if extensions > MAX_EXTENSIONS {
            return Parsed::Bypass(Passed::ExtensionHeader, Key(words));
        }
        next = two[0];
        transport += (usize::from(two[1]) + 1) * 8;
    }
    if next != PROTOCOL_TCP {
        return match next {
            // A fragment, or something that hides what follows.
            44 | 50 | 51 | 135 => Parsed::Bypass(Passed::ExtensionHeader, Key(words)), // B7
            _ => Parsed::Pass(Passed::NoHandler),
        };
    }
    words[8] = u64::from(first & 0xf_ffff) << 32;
    #[expect(clippy::cast_possible_truncation, reason = "eight bits of 32")]
    let fields = NetworkFields { class: (first >> 20) as u8, hops: ip[7], df: false };
    let end = network + IPV6_LEN + usize::from(be16(ip, 4));
    let at = At { network, transport, end, v6: true };
    tcp(frame, at, words, None, fields, 0, config)
}

/// Where the headers are, and where the IP packet ends by its own word.
#[derive(Clone, Copy)]
struct At {
    network: usize,
    transport: usize,
    end: usize,
    v6: bool,
}

#[inline]
fn tcp(
    frame: &Frame,
    at: At,
    mut words: [u64; 9],
    mut flush: Option<Passed>,
    network_fields: NetworkFields,
    id: u16,
    config: &Config,
) -> Parsed {
    let head = frame.head();
    let Some(tcp) = head.get(at.transport..).and_then(<[u8]>::first_chunk::<TCP_LEN>) else {
        return Parsed::Bypass(Passed::L4Header, Key(words)); // B8
    };
    let header = usize::from(tcp[12] >> 4) * 4;
    let payload = at.transport + header;
    let whole = frame.len();
    if header < TCP_LEN || payload > head.len() {
        return Parsed::Bypass(Passed::L4Header, Key(words)); // B8
    }
    words[3] |= u64::from(be32(tcp, 0)) << 32;
    words[8] |= at.transport as u64;
    let mut padding = 0;
    if at.end != whole {
        let trim = config.trim_padding && at.end < whole && at.end >= payload;
        if trim && frame.piece_count() == 1 {
            padding = whole - at.end;
        } else {
            flush = flush.or(Some(Passed::IpLength)); // F1, F3
        }
    }
    let (mut segment, mut count) = (0, 1);
    if let Some(gso) = frame.meta.gso {
        // 1.8: only what can be continued as if we had merged it.
        if gso.trusted && gso.kind.is_tcp() && !gso.fixed_id && !gso.ecn && gso.size > 0 {
            segment = gso.size;
            count = (whole - payload).div_ceil(usize::from(gso.size));
        } else {
            flush = flush.or(Some(Passed::UntrustedSuper));
        }
    }
    let narrow = |value: usize| u16::try_from(value);
    let (Ok(network), Ok(transport), Ok(payload_at), Ok(len), Ok(padding), Ok(count)) = (
        narrow(at.network),
        narrow(at.transport),
        narrow(payload),
        narrow(whole - payload - padding),
        narrow(padding),
        narrow(count),
    ) else {
        return Parsed::Bypass(Passed::IpLength, Key(words));
    };
    Parsed::Tcp(Packet {
        hash: hash(&words, at.v6, config.seed),
        key: Key(words),
        v6: at.v6,
        network,
        transport,
        payload: payload_at,
        len,
        padding,
        segment: if segment == 0 { len } else { segment },
        count,
        seq: be32(tcp, 4),
        ack: be32(tcp, 8),
        word: be32(tcp, 12),
        network_fields,
        id,
        flush,
    })
}

/// Over addresses and ports only, so that packets of one connection meet in one bucket whatever else
/// they differ in, whether the port reported a hash or not.
#[inline]
fn hash(words: &[u64; 9], v6: bool, seed: u64) -> u32 {
    let ports = words[3] >> 32;
    let mut mixed = mix(words[4] ^ seed, ports ^ 0x9e37_79b9_7f4a_7c15);
    if v6 {
        mixed = mix(mixed ^ words[5], words[6] ^ 0xbf58_476d_1ce4_e5b9) ^ mix(words[7], mixed | 1);
    }
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is as good as the upper")]
    let hash = mixed as u32;
    hash
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves of the product are used")]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// A stripped tag as part of a key; no tag at all is 0, which no tag is.
fn stripped(tag: VlanTag) -> u64 {
    // The lower half of the word: the upper one holds the ports.
    u64::from(tag.tpid) << 16 | u64::from(tag.tci)
}

#[inline]
fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// 802.1Q inside 802.1ad, and no more.
const MAX_TAGS: usize = 2;
/// The loop must end; nobody sends as many.
const MAX_EXTENSIONS: usize = 8;

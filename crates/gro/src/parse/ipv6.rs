//! The IPv6 header and its extension headers (`spec/gro.md` 2.3).

use packet::Frame;
use packet::header::{ETHERNET_LEN, IPV6_LEN, PROTOCOL_TCP, is_ipv6_extension};

use super::tcp::{self, At};
use super::{Packet, Scope, Stray, be16, be32, chunk, stray};
use crate::config::Rules;
use crate::counters::Passed;
use crate::key::Key;

#[inline]
pub(super) fn parse(
    frame: &Frame,
    link: &[u8; ETHERNET_LEN],
    network: usize,
    tags: u64,
    rules: &Rules,
    packet: &mut Packet,
) -> Result<(), Stray> {
    let Some(ip) = chunk::<IPV6_LEN>(frame.head(), network) else {
        packet.key = Key::link(link, frame.meta.vlan, tags);
        return stray(Passed::Truncated, Scope::Link); // B6
    };
    let mut extensions = 0;
    if ip[6] != PROTOCOL_TCP {
        match skip_extensions(frame.head(), network + IPV6_LEN, ip[6]) {
            Ok(len) => extensions = len,
            Err(Stray { scope: Scope::Nothing, reason }) => return stray(reason, Scope::Nothing),
            Err(other) => {
                packet.key = Key::link(link, frame.meta.vlan, tags);
                packet.key.set_ipv6(ip, PROTOCOL_TCP, 0);
                return Err(other);
            }
        }
    }
    if !rules.tcp6 {
        return stray(Passed::NoGuestFeature, Scope::Nothing);
    }
    packet.key = Key::link(link, frame.meta.vlan, tags);
    packet.key.set_ipv6(ip, PROTOCOL_TCP, extensions);
    let first = be32(ip, 0);
    if first >> 28 != 6 {
        return stray(Passed::IpOptions, Scope::Addresses);
    }
    packet.network = (first << 4) & 0xff00_0000 | u32::from(ip[7]) << 16;
    let end = network + IPV6_LEN + usize::from(be16(ip, 4));
    let transport = network + IPV6_LEN + usize::from(extensions);
    tcp::parse(frame, At { network, transport, end }, rules, packet)
}

/// The length of the extension headers in front of a TCP header (B7).
#[cold]
fn skip_extensions(head: &[u8], start: usize, first: u8) -> Result<u16, Stray> {
    let strange = Stray { reason: Passed::ExtensionHeader, scope: Scope::Addresses };
    let (mut next, mut at) = (first, start);
    for _ in 0..MAX_EXTENSIONS {
        if !is_ipv6_extension(next) {
            break;
        }
        let two = chunk::<2>(head, at).ok_or(strange)?;
        next = two[0];
        at += (usize::from(two[1]) + 1) * 8;
    }
    match next {
        PROTOCOL_TCP => u16::try_from(at - start).map_err(|_| strange),
        FRAGMENT => Err(Stray { reason: Passed::Fragment, scope: Scope::Addresses }),
        next if is_ipv6_extension(next) => Err(strange),
        _ => Err(Stray { reason: Passed::NoHandler, scope: Scope::Nothing }),
    }
}

/// The loop must end; nobody sends as many.
const MAX_EXTENSIONS: usize = 8;
const FRAGMENT: u8 = 44;

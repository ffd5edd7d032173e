//! The IPv4 header (`spec/gro.md` 2.2).

use packet::Frame;
use packet::header::{ETHERNET_LEN, IPV4_LEN, PROTOCOL_TCP};

use super::tcp::{self, At};
use super::{Packet, Scope, Stray, be16, chunk, stray};
use crate::config::Rules;
use crate::counters::Passed;
use crate::key::Key;
use crate::sum::sum;

#[inline]
pub(super) fn parse(
    frame: &Frame,
    link: &[u8; ETHERNET_LEN],
    network: usize,
    tags: u64,
    rules: &Rules,
    packet: &mut Packet,
) -> Result<(), Stray> {
    let Some(ip) = chunk::<IPV4_LEN>(frame.head(), network) else {
        packet.key = Key::link(link, frame.meta.vlan, tags);
        return stray(Passed::Truncated, Scope::Link); // B1
    };
    if ip[9] != PROTOCOL_TCP {
        return stray(Passed::NoHandler, Scope::Nothing); // B3
    }
    if !rules.tcp4 {
        return stray(Passed::NoGuestFeature, Scope::Nothing);
    }
    packet.key = Key::link(link, frame.meta.vlan, tags);
    packet.key.set_ipv4(ip);
    if ip[0] != 0x45 {
        return stray(Passed::IpOptions, Scope::Addresses); // B2
    }
    let fragment = be16(ip, 6);
    if fragment & (MORE_FRAGMENTS | OFFSET) != 0 {
        return stray(Passed::Fragment, Scope::Addresses); // B4
    }
    if sum(ip) != 0xffff {
        packet.flush = Some(Passed::IpChecksum); // B5; ports are known, so its flow is, too
    } else if fragment & RESERVED != 0 {
        packet.flush = Some(Passed::ReservedBit); // F2
    }
    packet.id = be16(ip, 4);
    packet.network =
        u32::from(ip[1]) << 24 | u32::from(ip[8]) << 16 | u32::from(fragment & DONT_FRAGMENT);
    let end = network + usize::from(be16(ip, 2));
    tcp::parse(frame, At { network, transport: network + IPV4_LEN, end }, rules, packet)
}

/// The don't-fragment flag, in the flags as in [`Packet::network`].
pub(crate) const DONT_FRAGMENT: u16 = 0x4000;
const RESERVED: u16 = 0x8000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

//! VLAN tags in the frame: 802.1Q, 802.1ad, and one inside the other (`spec/gro.md` 2.1, L5 and L6).

use packet::Frame;
use packet::header::{ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, VLAN_LEN, is_vlan};

use super::{Packet, Scope, Stray, be16, be32, chunk, ipv4, ipv6, stray};
use crate::config::Rules;
use crate::counters::Passed;

/// Walks the tags and goes on with the IP header. Not inlined: the untagged way stays short.
#[inline(never)]
pub(super) fn parse(
    frame: &Frame,
    link: &[u8; ETHERNET_LEN],
    rules: &Rules,
    packet: &mut Packet,
) -> Result<(), Stray> {
    let (mut network, mut tags) = (ETHERNET_LEN, 0);
    for _ in 0..MAX_TAGS {
        // A frame that ends here has no IP header, and a flow that it may belong to can't be told.
        let Some(tag) = chunk::<VLAN_LEN>(frame.head(), network) else {
            return stray(Passed::Truncated, Scope::Nothing);
        };
        tags = tags << 32 | u64::from(be32(tag, 0));
        network += VLAN_LEN;
        match be16(tag, 2) {
            ETHERTYPE_IPV4 => return ipv4::parse(frame, link, network, tags, rules, packet),
            ETHERTYPE_IPV6 => return ipv6::parse(frame, link, network, tags, rules, packet),
            tpid if is_vlan(tpid) => {}
            _ => return stray(Passed::NoHandler, Scope::Nothing), // L6
        }
    }
    stray(Passed::Recursion, Scope::Nothing)
}

/// As many as fit the key. The kernel goes to 15; more than two are not found in the field, and a bound
/// there must be.
const MAX_TAGS: usize = 2;

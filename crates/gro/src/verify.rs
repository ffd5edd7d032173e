//! Whether a packet's TCP checksum is right, by the port's word or by the bytes (`spec/gro.md` 3.2).

use packet::header::{ETHERNET_LEN, PROTOCOL_TCP};
use packet::{Checksum, Frame, checksum};

use crate::parse::Packet;
use crate::sum::sum;

/// Whether somebody who is trusted has verified the checksum, or will fill it in (3.2 step 1).
#[inline]
pub(crate) fn is_known(frame: &Frame, packet: &Packet) -> bool {
    match frame.meta.checksum {
        Checksum::Verified { levels } => levels > 0,
        Checksum::Partial { start, offset } => {
            start == packet.layout.transport && usize::from(offset) == TCP_CHECKSUM
        }
        Checksum::Sum(_) | Checksum::Unknown => false,
    }
}

/// Verifies the checksum, by the port's sum if there is one and it says "right", else by the bytes
/// (3.2 steps 2 and 3). The packet has whole headers and an IP length that is the frame's, or less.
pub(crate) fn is_valid(frame: &Frame, packet: &Packet) -> bool {
    let (head, transport) = (frame.head(), usize::from(packet.layout.transport));
    let len = usize::from(packet.layout.payload) - transport + usize::from(packet.len);
    let Ok(len16) = u16::try_from(len) else { return false };
    let pseudo = pseudo_header(head, packet.layout.network, packet.key.is_ipv6(), len16);
    let valid = |sum| checksum::add(pseudo, sum) == 0xffff;
    match frame.meta.checksum {
        // A sum that covers padding is not one of the packet (S5).
        Checksum::Sum(sum) if packet.padding == 0 => {
            let headers = checksum::sum(&head[ETHERNET_LEN..transport]);
            valid(checksum::sub(sum, headers)) || valid(checksum::sum_range(frame, transport, len))
        }
        // It covers another part: nobody has computed the TCP checksum, and nobody will.
        Checksum::Partial { .. } => false,
        _ => valid(checksum::sum_range(frame, transport, len)),
    }
}

/// The folded sum of a TCP pseudo-header; `len` is the TCP header and its payload in bytes.
///
/// # Panics
///
/// When the IP header does not lie in `head`.
#[inline]
pub(crate) fn pseudo_header(head: &[u8], network: u16, v6: bool, len: u16) -> u16 {
    let ip = &head[usize::from(network)..];
    let addresses = if v6 {
        sum(ip[8..].first_chunk::<32>().expect("an IPv6 header was parsed here"))
    } else {
        sum(ip[12..].first_chunk::<8>().expect("an IPv4 header was parsed here"))
    };
    checksum::add(checksum::add(addresses, u16::from(PROTOCOL_TCP)), len)
}

/// Where the checksum is in a TCP header.
pub(crate) const TCP_CHECKSUM: usize = 16;

//! The end of a held flow: the headers of a super-packet, repaired (`spec/gro.md` 3.4).

use packet::header::{ETHERNET_LEN, IPV6_LEN};
use packet::{Checksum, Frame, Gso, GsoKind, checksum};

use crate::flow::Flow;
use crate::verify::{TCP_CHECKSUM, pseudo_header};

/// Makes the frame of a flow of several packets one valid super-packet: lengths, IPv4 header checksum,
/// FIN and PSH of its last packet, and a transport checksum that is the pseudo-header's. Everything else
/// is the first packet's.
#[inline]
pub(crate) fn repair(flow: &Flow, frame: &mut Frame) {
    let (network, transport) =
        (usize::from(flow.layout.network), usize::from(flow.layout.transport));
    let v6 = flow.key.is_ipv6();
    // Everything behind the Ethernet header is at most 65535 bytes.
    let size = flow.size as usize + ETHERNET_LEN;
    let head = frame.head_mut();
    let kind = if v6 {
        put(head, network + 4, narrow(size - network - IPV6_LEN));
        GsoKind::TcpV6
    } else {
        let ip = &mut head[network..];
        let total = narrow(size - network);
        let (old, sum) = (be16(ip, 2), be16(ip, 10));
        put(ip, 2, total);
        put(ip, 10, checksum::update(sum, old, total));
        GsoKind::TcpV4
    };
    head[transport + 13] |= flow.late;
    let pseudo = pseudo_header(head, flow.layout.network, v6, narrow(size - transport));
    put(head, transport + TCP_CHECKSUM, pseudo);

    frame.meta.checksum = Checksum::Partial { start: flow.layout.transport, offset: 16 };
    frame.meta.layout = flow.layout;
    frame.meta.gso = Some(Gso {
        kind,
        size: flow.mss,
        segments: flow.count,
        fixed_id: flow.fixed_id,
        ecn: false,
        trusted: true,
    });
}

#[inline]
fn narrow(len: usize) -> u16 {
    u16::try_from(len).expect("the size of a super-packet is limited to 65535")
}

#[inline]
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

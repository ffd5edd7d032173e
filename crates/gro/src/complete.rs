//! The end of a held flow: the headers of a super-packet, repaired (`spec/gro.md` 3.4).

use packet::header::{IPV6_LEN, PROTOCOL_TCP};
use packet::{Checksum, Gso, GsoKind, Layout, checksum};

use crate::table::Flow;

/// Makes the frame of a flow of several packets one valid super-packet: lengths, IPv4 header checksum,
/// FIN and PSH of its last packet, and a transport checksum that is the pseudo-header's.
pub(crate) fn repair(flow: &mut Flow) {
    let (network, transport) = (usize::from(flow.network), usize::from(flow.transport));
    let whole = flow.frame.len();
    let head = flow.frame.head_mut();
    head[transport + 13] |= flow.late_flags;
    if flow.v6 {
        put(head, network + 4, whole - network - IPV6_LEN);
    } else {
        let old = u16::from_be_bytes([head[network + 2], head[network + 3]]);
        let sum = u16::from_be_bytes([head[network + 10], head[network + 11]]);
        let new = put(head, network + 2, whole - network);
        put(head, network + 10, usize::from(checksum::update(sum, old, new)));
    }
    let pseudo = pseudo_header(head, network, flow.v6, whole - transport);
    put(head, transport + TCP_CHECKSUM, usize::from(pseudo));

    let kind = if flow.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
    let meta = &mut flow.frame.meta;
    meta.checksum = Checksum::Partial { start: flow.transport, offset: 16 };
    meta.layout =
        Layout { network: flow.network, transport: flow.transport, payload: flow.payload };
    meta.gso = Some(Gso {
        kind,
        size: flow.mss,
        segments: flow.count,
        fixed_id: flow.fixed_id,
        ecn: false,
        trusted: true,
    });
}

/// The folded sum of a TCP pseudo-header; `len` is the TCP header and its payload in bytes.
#[inline]
pub(crate) fn pseudo_header(head: &[u8], network: usize, v6: bool, len: usize) -> u16 {
    let addresses =
        if v6 { &head[network + 8..network + 40] } else { &head[network + 12..network + 20] };
    let len = u16::try_from(len).expect("an IP packet has at most 65535 bytes");
    checksum::add(checksum::add(checksum::sum(addresses), u16::from(PROTOCOL_TCP)), len)
}

fn put(head: &mut [u8], at: usize, value: usize) -> u16 {
    let value = u16::try_from(value).expect("the size of a super-packet is limited to 65535");
    head[at..at + 2].copy_from_slice(&value.to_be_bytes());
    value
}

const TCP_CHECKSUM: usize = 16;

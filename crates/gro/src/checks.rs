//! Whether a packet continues the flow that was found (`spec/gro.md` 2.2 to 2.4, C1 to C15).
//!
//! These checks run once, against the one flow that was found; they never decide which flow that is.

use packet::header::{ETHERNET_LEN, IPV6_LEN, TCP_LEN};

use crate::config::{Accept, Config};
use crate::counters::Completed;
use crate::parse::Packet;
use crate::table::Flow;

/// How a packet fits behind a held flow.
pub(crate) enum Fit {
    /// It continues the flow. The id of the flow stands still if `fixed_id`.
    Merge { fixed_id: bool },
    /// It does not, for this reason.
    Flush(Completed),
}

/// Compares. `pieces` is how many pieces the packet's frame has.
#[inline]
pub(crate) fn fit(
    flow: &Flow,
    head: &[u8],
    packet: &Packet,
    pieces: usize,
    config: &Config,
    accept: Accept,
) -> Fit {
    if packet.flush.is_some() {
        return Fit::Flush(Completed::ControlPacket);
    }
    let differing = flow.word ^ packet.word;
    if differing & !FIN_PSH != 0 {
        // C7: the lower half is the window.
        let window_only = differing & 0xffff_0000 & !FIN_PSH == 0;
        return Fit::Flush(if window_only { Completed::Window } else { Completed::Flags });
    }
    if flow.ack != packet.ack {
        return Fit::Flush(Completed::Ack); // C8
    }
    let options = usize::from(packet.transport) + TCP_LEN..usize::from(packet.payload);
    let options_differ = flow.frame.head()[options.clone()] != head[options];
    if options_differ {
        return Fit::Flush(Completed::Options); // C9
    }
    if let Some(reason) = network_differs(flow, packet) {
        return Fit::Flush(reason);
    }
    if packet.len == 0 {
        return Fit::Flush(Completed::PureAck); // C11
    }
    // C11, and C14 for a super-packet, whose segments have to be of the same size.
    if packet.segment > flow.mss || (packet.count > 1 && packet.segment != flow.mss) {
        return Fit::Flush(Completed::LongerSegment);
    }
    if packet.seq != flow.next_seq {
        return Fit::Flush(Completed::Sequence); // C12
    }
    if packet.word & CWR != 0 && !config.merge_cwr {
        return Fit::Flush(Completed::Flags); // 4.8
    }
    let Some(fixed_id) = id_mode(flow, packet, config) else {
        return Fit::Flush(Completed::Id);
    };
    if extensions_differ(flow, head, packet) {
        return Fit::Flush(Completed::Options); // M3
    }
    // C15. In-band VLAN tags count.
    let size =
        flow.frame.len() - usize::from(flow.padding) - ETHERNET_LEN + usize::from(packet.len);
    if size > config.max_size.min(accept.max_size) as usize {
        return Fit::Flush(Completed::SizeLimit);
    }
    if flow.count.checked_add(packet.count).is_none()
        || flow.frame.piece_count() + pieces > usize::from(accept.max_pieces)
    {
        return Fit::Flush(Completed::SegmentLimit);
    }
    Fit::Merge { fixed_id }
}

#[inline]
fn network_differs(flow: &Flow, packet: &Packet) -> Option<Completed> {
    let (held, new) = (flow.network_fields, packet.network_fields);
    if held == new {
        return None;
    }
    Some(match (packet.v6, held.hops != new.hops, held.class != new.class) {
        (false, true, _) => Completed::Ttl,         // C1
        (false, false, true) => Completed::Tos,     // C2
        (false, false, false) => Completed::Df,     // C3
        (true, _, true) => Completed::TrafficClass, // C5
        (true, _, false) => Completed::HopLimit,    // C6
    })
}

/// C4. Whether the id stands still from now on; `None` when it neither does nor counts up.
#[inline]
fn id_mode(flow: &Flow, packet: &Packet, config: &Config) -> Option<bool> {
    if packet.v6 {
        return Some(false);
    }
    let off = packet.id.wrapping_sub(flow.id);
    let fixed = if flow.count == 1 { off == 0 } else { flow.fixed_id };
    let may_stand_still = packet.network_fields.df || config.merge_fixed_id_without_df;
    match fixed {
        true if off == 0 && may_stand_still => Some(true),
        false if off == flow.count => Some(false),
        _ => None,
    }
}

/// The bytes of IPv6 extension headers; the key has only their length.
#[inline]
fn extensions_differ(flow: &Flow, head: &[u8], packet: &Packet) -> bool {
    let (start, end) = (usize::from(packet.network) + IPV6_LEN, usize::from(packet.transport));
    packet.v6 && end > start && {
        // The first next-header value stands in the IP header.
        let next = usize::from(packet.network) + 6;
        flow.frame.head()[next] != head[next] || flow.frame.head()[start..end] != head[start..end]
    }
}

/// FIN and PSH in bytes 12 to 15 of the TCP header.
pub(crate) const FIN_PSH: u32 = (FIN | PSH) << 16;
/// Flags that end a super-packet: URG, PSH, RST, SYN, FIN.
pub(crate) const ENDING: u32 = (0x20 | PSH | 0x04 | 0x02 | FIN) << 16;
const FIN: u32 = 0x01;
const PSH: u32 = 0x08;
const CWR: u32 = 0x80 << 16;

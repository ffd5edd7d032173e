//! Whether a packet continues the flow that was found (`spec/gro.md` 2.2 to 2.4, C1 to C15).
//!
//! These checks run once, against the one flow that was found; they never decide which flow that is.
//! [`fits`] answers by few comparisons, which is all that a packet pays that is merged; only when it says
//! no does [`why_not`] look for the reason.

use packet::Frame;
use packet::header::TCP_LEN;

use crate::config::Rules;
use crate::counters::{Completed, Passed};
use crate::flow::{Flow, pieces};
use crate::parse::Packet;
use crate::parse::ipv4::DONT_FRAGMENT;
use crate::parse::tcp::{FIN_PSH, WINDOW};

/// Whether a packet continues a flow; if so, whether the flow's IPv4 id stands still from now on.
#[inline]
pub(crate) fn fits(flow: &Flow, frame: &Frame, packet: &Packet, rules: &Rules) -> Option<bool> {
    let differing = (flow.word ^ packet.word) & !FIN_PSH
        | packet.word & rules.never
        | flow.ack ^ packet.ack
        | flow.next_seq ^ packet.seq
        | flow.network ^ packet.network
        | flow.more_options ^ packet.more_options;
    let options = flow.options ^ packet.options;
    let fits = packet.flush.is_none()
        && differing == 0
        && options == 0
        && packet.segment <= flow.mss
        && flow.size + u32::from(packet.len) <= rules.max_size
        && segments_fit(flow, packet)
        && pieces_fit(flow, frame, rules)
        && (packet.has_usual_options() || same_options(flow, frame, packet));
    if fits { id_stands_still(flow, packet, rules) } else { None }
}

/// The reason why a packet does not continue a flow, in the order of the specification.
#[cold]
pub(crate) fn why_not(flow: &Flow, frame: &Frame, packet: &Packet, rules: &Rules) -> Completed {
    if let Some(reason) = packet.flush {
        return match reason {
            Passed::ControlFlag => Completed::ControlPacket,
            Passed::ZeroPayload => Completed::PureAck,
            _ => Completed::OrderRule,
        };
    }
    let differing = (flow.word ^ packet.word) & !FIN_PSH;
    if differing & !WINDOW != 0 || packet.word & rules.never != 0 {
        return Completed::Flags; // C7, 4.8
    }
    if differing != 0 {
        return Completed::Window; // C7
    }
    if flow.ack != packet.ack {
        return Completed::Ack; // C8
    }
    if !same_options(flow, frame, packet) {
        return Completed::Options; // C9
    }
    if let Some(reason) = network_differs(flow, packet) {
        return reason; // C10
    }
    if packet.segment > flow.mss {
        return Completed::LongerSegment; // C11
    }
    if flow.next_seq != packet.seq {
        return Completed::Sequence; // C12
    }
    if packet.count > 1 && packet.segment != flow.mss {
        return Completed::Refused; // C14
    }
    if flow.size + u32::from(packet.len) > rules.max_size {
        return Completed::SizeLimit; // C15
    }
    if !segments_fit(flow, packet) || !pieces_fit(flow, frame, rules) {
        return Completed::SegmentLimit; // C15
    }
    Completed::Id // C4
}

/// C1 to C3, C5 and C6.
fn network_differs(flow: &Flow, packet: &Packet) -> Option<Completed> {
    let differing = flow.network ^ packet.network;
    let (class, hops, df) = (differing >> 24, differing >> 16 & 0xff, differing & 0xffff);
    Some(match (packet.key.is_ipv6(), class, hops, df) {
        (_, 0, 0, 0) => return None,
        (false, _, 1.., _) => Completed::Ttl,
        (false, 1.., _, _) => Completed::Tos,
        (false, ..) => Completed::Df,
        (true, 1.., _, _) => Completed::TrafficClass,
        (true, ..) => Completed::HopLimit,
    })
}

/// C4, by the rule of the newest kernels: the second packet decides whether the id counts up or stands
/// still. A virtio-net header can't say which (4.8), so that a fragmentable packet has to count.
#[inline]
fn id_stands_still(flow: &Flow, packet: &Packet, rules: &Rules) -> Option<bool> {
    if packet.key.is_ipv6() {
        return Some(false);
    }
    let off = packet.id.wrapping_sub(flow.id);
    let fixed = if flow.count == 1 { off == 0 } else { flow.fixed_id };
    if fixed {
        let may = packet.network & u32::from(DONT_FRAGMENT) != 0 || rules.fixed_id_without_df;
        // The ids inside a super-packet as input must stand still as well.
        (off == 0 && may && (packet.count == 1 || packet.fixed_id)).then_some(true)
    } else {
        (off == flow.count && !packet.fixed_id).then_some(false)
    }
}

/// C9, by the bytes. The data offsets are equal.
#[cold]
fn same_options(flow: &Flow, frame: &Frame, packet: &Packet) -> bool {
    let start = usize::from(packet.layout.transport) + TCP_LEN;
    let range = start..usize::from(packet.layout.payload);
    flow.head().get(range.clone()) == frame.head().get(range)
}

/// C14, and a count that fits its 16 bits.
#[inline]
fn segments_fit(flow: &Flow, packet: &Packet) -> bool {
    (packet.count == 1 || packet.segment == flow.mss)
        && flow.count.checked_add(packet.count).is_some()
}

#[inline]
fn pieces_fit(flow: &Flow, frame: &Frame, rules: &Rules) -> bool {
    flow.pieces.checked_add(pieces(frame)).is_some_and(|all| all <= rules.max_pieces)
}

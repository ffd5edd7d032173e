//! What a guest asks for with a packet, judged (5.1.6.2): everything in the header is a claim.
//!
//! A checksum request has to lie inside the packet, and its field inside the headers. A segmentation
//! request has to be negotiated, to have a size, to come with a checksum request, and to be about a
//! packet whose own headers say the same. The header's length field is a hint and not looked at.

use packet::{Checksum, Frame, Gso, GsoKind, Layout};

use crate::counters::TxDrop;
use crate::feature::HostOffloads;
use crate::header::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, NetHeader};

/// What is to be done with a packet, in the words of a frame's metadata.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) checksum: Checksum,
    pub(super) gso: Option<Gso>,
    pub(super) layout: Layout,
}

#[inline]
pub(super) fn judge(
    frame: &Frame,
    header: NetHeader,
    allow: HostOffloads,
) -> Result<Request, TxDrop> {
    // Flags that are not known are ignored.
    if header.flags & NEEDS_CSUM == 0 {
        return match header.gso_type {
            GSO_NONE => Ok(Request::default()),
            _ => Err(TxDrop::Segmentation),
        };
    }
    if !allow.csum {
        return Err(TxDrop::NotNegotiated);
    }
    let (start, offset) = (header.csum_start, header.csum_offset);
    let end = usize::from(start) + usize::from(offset) + 2;
    if usize::from(start) < ETHERNET || end > frame.head().len() {
        return Err(TxDrop::Checksum);
    }
    let checksum = Checksum::Partial { start, offset };
    if header.gso_type == GSO_NONE {
        let layout = layout(frame.head(), start, offset);
        return Ok(Request { checksum, gso: None, layout });
    }
    let (gso, layout) = segmentation(frame, header, allow)?;
    Ok(Request { checksum, gso, layout })
}

/// What kind of super-packet it is, if it is one: a packet of one segment is none.
fn segmentation(
    frame: &Frame,
    header: NetHeader,
    allow: HostOffloads,
) -> Result<(Option<Gso>, Layout), TxDrop> {
    let ecn = header.gso_type & GSO_ECN != 0;
    let (allowed, v6, tcp) = match header.gso_type & !GSO_ECN {
        GSO_TCPV4 => (allow.tso4, Some(false), true),
        GSO_TCPV6 => (allow.tso6, Some(true), true),
        GSO_UDP_L4 => (allow.uso && !ecn, None, false),
        _ => (false, None, false),
    };
    if !allowed || ecn && !allow.ecn {
        return Err(TxDrop::NotNegotiated);
    }
    let size = usize::from(header.gso_size);
    if size == 0 {
        return Err(TxDrop::Segmentation);
    }
    let parsed = packet::header::parse(frame.head()).map_err(|_unknown| TxDrop::Headers)?;
    let layout = parsed.layout;
    let field = if tcp { TCP_FIELD } else { UDP_FIELD };
    if parsed.tcp != tcp
        || v6.is_some_and(|v6| v6 != parsed.v6)
        || layout.transport != header.csum_start
        || field != header.csum_offset
    {
        return Err(TxDrop::Headers);
    }
    let payload = frame.len() - usize::from(layout.payload);
    if payload <= size {
        return Ok((None, layout));
    }
    let segments = payload.div_ceil(size);
    let most = if tcp { MOST_SEGMENTS } else { MOST_DATAGRAMS };
    let segments = match u16::try_from(segments) {
        Ok(count) if count <= most => count,
        _ => return Err(TxDrop::Segmentation),
    };
    let kind = match (tcp, parsed.v6) {
        (true, false) => GsoKind::TcpV4,
        (true, true) => GsoKind::TcpV6,
        (false, false) => GsoKind::UdpV4,
        (false, true) => GsoKind::UdpV6,
    };
    let size = header.gso_size;
    Ok((Some(Gso { kind, size, segments, fixed_id: false, ecn, trusted: false }), layout))
}

/// Where the headers of a packet with a checksum request are: enough for a port that has to name them.
#[inline]
fn layout(head: &[u8], start: u16, offset: u16) -> Layout {
    let tagged = matches!(head.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]));
    let network = if tagged { 18 } else { 14 };
    let end = start.saturating_add(offset).saturating_add(2);
    let transport_len = match offset {
        TCP_FIELD => head.get(usize::from(start) + 12).map_or(0, |byte| u16::from(byte >> 4) * 4),
        _ => 8,
    };
    let payload = start.saturating_add(transport_len).max(end);
    let payload = payload.min(u16::try_from(head.len()).unwrap_or(u16::MAX));
    Layout { network, transport: start, payload }
}

const ETHERNET: usize = 14;
/// Where the checksum is in a TCP header.
const TCP_FIELD: u16 = 16;
/// Where the checksum is in a UDP header.
const UDP_FIELD: u16 = 6;
/// Segments of a TCP super-packet at most: 64 KiB in the smallest segments that a sender may be made to
/// send (47 bytes and up).
const MOST_SEGMENTS: u16 = 1400;
/// Datagrams of a UDP super-packet at most.
const MOST_DATAGRAMS: u16 = 128;

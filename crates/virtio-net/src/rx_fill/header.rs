//! Which header a frame gets, by what is known about it and what the guest has negotiated (5.1.6.4.1).
//!
//! | frame | guest has | header |
//! |---|---|---|
//! | checksum verified | GUEST_CSUM | DATA_VALID |
//! | checksum partial | GUEST_CSUM | NEEDS_CSUM, start and offset |
//! | checksum partial | | zeros, once the checksum is completed |
//! | super-packet | its GUEST_TSO or GUEST_USO | NEEDS_CSUM, type, sizes, start and offset |
//! | super-packet | | none: it is cut |
//! | anything else | | zeros |
//!
//! Every field that has no meaning in a case is zero, and DATA_VALID and NEEDS_CSUM are never together.

use packet::{Checksum, Frame, Gso, GsoKind};

use crate::counters::RxDrop;
use crate::feature::GuestOffloads;
use crate::header::{
    DATA_VALID, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, NetHeader,
};

/// What to do with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// Hand it over with this header; the number of buffers is not known yet.
    Hand(NetHeader),
    /// Complete its checksum first.
    Complete,
    /// Cut it into segments.
    Cut,
    /// It can't be delivered.
    Drop(RxDrop),
}

#[inline]
pub(super) fn plan(frame: &Frame, accept: GuestOffloads) -> Plan {
    if frame.head().len() < ETHERNET {
        return Plan::Drop(RxDrop::TooShort);
    }
    if let Some(gso) = frame.meta.gso {
        return super_packet(frame, gso, accept);
    }
    match frame.meta.checksum {
        Checksum::Verified { .. } if accept.csum => Plan::Hand(VALID),
        Checksum::Partial { start, offset } => partial(frame, start, offset, accept),
        _ => Plan::Hand(NOTHING),
    }
}

#[inline]
fn super_packet(frame: &Frame, gso: Gso, accept: GuestOffloads) -> Plan {
    let (gso_type, taken, field) = match gso.kind {
        GsoKind::TcpV4 => (GSO_TCPV4, accept.tso4, TCP_FIELD),
        GsoKind::TcpV6 => (GSO_TCPV6, accept.tso6, TCP_FIELD),
        GsoKind::UdpV4 => (GSO_UDP_L4, accept.uso4, UDP_FIELD),
        GsoKind::UdpV6 => (GSO_UDP_L4, accept.uso6, UDP_FIELD),
    };
    let Checksum::Partial { start, offset } = frame.meta.checksum else { return Plan::Cut };
    let layout = frame.meta.layout;
    let headers = usize::from(layout.payload);
    // A guest drops a packet whose header does not fit its bytes (and so would lose 45 segments): what
    // is not certain to fit is cut, by its own headers.
    let fits = start == layout.transport
        && offset == field
        && layout.network < layout.transport
        && layout.transport < layout.payload
        && layout.payload - layout.transport > offset + 1
        && layout.payload <= u16::MAX - TAG
        && headers <= frame.head().len()
        && gso.size > 0;
    if !(taken && fits) || gso.ecn && !(accept.ecn && gso.kind.is_tcp()) {
        return Plan::Cut;
    }
    let payload = frame.len() - headers;
    if payload <= usize::from(gso.size) {
        return partial(frame, start, offset, accept);
    }
    let segments = payload.div_ceil(usize::from(gso.size));
    if segments != usize::from(gso.segments)
        || !gso.kind.is_tcp() && segments > UDP_SEGMENTS
        || !gso.trusted && !is_of_kind(frame, gso.kind)
    {
        return Plan::Cut;
    }
    let shift = tag_shift(frame);
    Plan::Hand(NetHeader {
        flags: NEEDS_CSUM,
        gso_type: if gso.ecn { gso_type | GSO_ECN } else { gso_type },
        hdr_len: layout.payload + shift,
        gso_size: gso.size,
        csum_start: start + shift,
        csum_offset: offset,
        num_buffers: 1,
    })
}

/// A frame whose checksum is still to be computed, by numbers that may be foreign.
#[inline]
fn partial(frame: &Frame, start: u16, offset: u16, accept: GuestOffloads) -> Plan {
    if !accept.csum {
        return Plan::Complete;
    }
    let end = usize::from(start) + usize::from(offset) + 2;
    if usize::from(start) < ETHERNET || end > frame.head().len() || start > u16::MAX - TAG {
        return Plan::Drop(RxDrop::Malformed);
    }
    Plan::Hand(NetHeader {
        flags: NEEDS_CSUM,
        csum_start: start + tag_shift(frame),
        csum_offset: offset,
        ..NOTHING
    })
}

/// Whether the headers are what is said about them, for super-packets of foreign origin.
fn is_of_kind(frame: &Frame, kind: GsoKind) -> bool {
    packet::header::parse(frame.head()).is_ok_and(|parsed| {
        let same = parsed.v6 == kind.is_v6() && parsed.tcp == kind.is_tcp();
        same && parsed.layout == frame.meta.layout
    })
}

/// Offsets in the header count from the frame's start as the guest sees it: with the tag in.
#[inline]
fn tag_shift(frame: &Frame) -> u16 {
    frame.meta.vlan.map_or(0, |_| TAG)
}

const NOTHING: NetHeader = NetHeader {
    flags: 0,
    gso_type: GSO_NONE,
    hdr_len: 0,
    gso_size: 0,
    csum_start: 0,
    csum_offset: 0,
    num_buffers: 1,
};
const VALID: NetHeader = NetHeader { flags: DATA_VALID, ..NOTHING };

const ETHERNET: usize = 14;
const TAG: u16 = 4;
/// Where the checksum is in a TCP header.
const TCP_FIELD: u16 = 16;
/// Where the checksum is in a UDP header.
const UDP_FIELD: u16 = 6;
/// Datagrams in a UDP super-packet that every guest takes.
const UDP_SEGMENTS: usize = 64;

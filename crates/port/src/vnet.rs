//! The virtio-net header that packet sockets and taps carry in front of each frame: what it says of a
//! received frame, and how a frame that is sent is described.
//!
//! Kernel and process are on the same machine, so the fields are in native byte order (a legacy
//! header). Receiving: what the kernel wrote is copied out once ([`Header::from_bytes`]) and checked
//! against the frame's own bytes ([`Header::describe`]); only then does a frame count as a
//! super-packet. Sending: [`Header::of`] is the reverse.

use packet::header::{self, ETHERNET_LEN, PROTOCOL_TCP, PROTOCOL_UDP, Parsed, VLAN_LEN};
use packet::{Checksum, Frame, Gso, GsoKind, Layout, checksum};

/// The header's fields in host order (virtio 5.1.6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Header {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

/// The header does not fit the frame behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mismatch;

impl Header {
    /// The header's length without `num_buffers`, as packet sockets have it.
    pub(crate) const LEN: usize = 10;
    /// The header's length with `num_buffers`, as taps have it here.
    pub(crate) const LEN_WITH_BUFFERS: usize = 12;

    pub(crate) fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let [l0, l1] = self.hdr_len.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.csum_start.to_ne_bytes();
        let [o0, o1] = self.csum_offset.to_ne_bytes();
        [self.flags, self.gso_type, l0, l1, g0, g1, s0, s1, o0, o1]
    }

    /// Checks the header against the frame and writes what it says to the frame's metadata.
    ///
    /// # Errors
    ///
    /// When they contradict each other; the frame is no use then: its checksum may be incomplete, or
    /// it stands for several packets that can't be cut apart.
    pub(crate) fn describe(self, frame: &mut Frame) -> Result<(), Mismatch> {
        if self.gso_type != GSO_NONE {
            return self.describe_super(frame);
        }
        if self.flags & NEEDS_CSUM != 0 {
            self.describe_partial(frame)
        } else {
            if self.flags & DATA_VALID != 0 {
                frame.meta.checksum = Checksum::Verified { levels: 1 };
            }
            Ok(())
        }
    }

    /// The header for a frame that is sent, with a VLAN tag of the metadata put into the bytes.
    ///
    /// # Errors
    ///
    /// When an offset leaves the header's 16 bits.
    pub(crate) fn of(frame: &Frame) -> Result<Self, Mismatch> {
        let shift = if frame.meta.vlan.is_some() { VLAN_TAG } else { 0 };
        let mut header = Self::default();
        if let Checksum::Partial { start, offset } = frame.meta.checksum {
            header.flags = NEEDS_CSUM;
            header.csum_start = start.checked_add(shift).ok_or(Mismatch)?;
            header.csum_offset = offset;
        }
        if let Some(gso) = frame.meta.gso {
            header.gso_type = match gso.kind {
                GsoKind::TcpV4 => GSO_TCPV4,
                GsoKind::TcpV6 => GSO_TCPV6,
                GsoKind::UdpV4 | GsoKind::UdpV6 => GSO_UDP_L4,
            };
            if gso.ecn && gso.kind.is_tcp() {
                header.gso_type |= GSO_ECN;
            }
            header.gso_size = gso.size;
            header.hdr_len = frame.meta.layout.payload.checked_add(shift).ok_or(Mismatch)?;
        }
        Ok(header)
    }

    /// A frame whose checksum was never computed.
    fn describe_partial(self, frame: &mut Frame) -> Result<(), Mismatch> {
        let (start, offset) = (self.csum_start, self.csum_offset);
        let field_end = usize::from(start) + usize::from(offset) + 2;
        if usize::from(start) < ETHERNET_LEN || field_end > frame.head().len() {
            return Err(Mismatch);
        }
        frame.meta.checksum = Checksum::Partial { start, offset };
        // The sum may start at something that is no TCP or UDP header of ours to find (a tunnel).
        frame.meta.layout = match header::parse(frame.head()) {
            Ok(found) if found.layout.transport == start => found.layout,
            _ => Layout { network: NETWORK, transport: start, payload: start },
        };
        Ok(())
    }

    /// A super-packet: everything that says how it is cut has to fit its bytes.
    fn describe_super(self, frame: &mut Frame) -> Result<(), Mismatch> {
        let found = header::parse(frame.head()).map_err(|_| Mismatch)?;
        let kind = match (self.gso_type & !GSO_ECN, found.v6, found.tcp) {
            (GSO_TCPV4, false, true) => GsoKind::TcpV4,
            (GSO_TCPV6, true, true) => GsoKind::TcpV6,
            (GSO_UDP_L4, false, false) => GsoKind::UdpV4,
            (GSO_UDP_L4, true, false) => GsoKind::UdpV6,
            _ => return Err(Mismatch),
        };
        let payload = frame.len() - usize::from(found.layout.payload);
        let whole = usize::from(found.layout.network) + found.ip_len == frame.len();
        if !whole || self.gso_size == 0 || payload == 0 {
            return Err(Mismatch);
        }
        self.complete_to_partial(frame, &found)?;
        let segments = payload.div_ceil(usize::from(self.gso_size));
        let segments = u16::try_from(segments).map_err(|_| Mismatch)?;
        frame.meta.layout = found.layout;
        // A super-packet of one segment is just a packet.
        frame.meta.gso = (segments > 1).then_some(Gso {
            kind,
            size: self.gso_size,
            segments,
            fixed_id: false,
            ecn: self.gso_type & GSO_ECN != 0 && kind.is_tcp(),
            trusted: true,
        });
        Ok(())
    }

    /// A super-packet has a partial checksum. A card that merges (LRO) leaves a verified one: then the
    /// field gets the pseudo-header sum here.
    fn complete_to_partial(self, frame: &mut Frame, found: &Parsed) -> Result<(), Mismatch> {
        let start = found.layout.transport;
        let offset = checksum_field(found);
        if self.flags & NEEDS_CSUM != 0 {
            if (self.csum_start, self.csum_offset) != (start, offset) {
                return Err(Mismatch);
            }
        } else if self.flags & DATA_VALID != 0 {
            let sum = pseudo_header(found, frame.head()).ok_or(Mismatch)?;
            let at = usize::from(start) + usize::from(offset);
            let field = frame.head_mut().get_mut(at..at + 2).ok_or(Mismatch)?;
            field.copy_from_slice(&sum.to_be_bytes());
        } else {
            // Never verified (spec gro.md 4.11 Z5): cutting it would make bad checksums good.
            return Err(Mismatch);
        }
        frame.meta.checksum = Checksum::Partial { start, offset };
        Ok(())
    }
}

/// A frame that was received without a header although its checksum was never computed: says so in the
/// metadata, from the frame's own bytes.
///
/// # Errors
///
/// When it is neither TCP nor UDP, so that nobody can tell where its checksum is.
pub(crate) fn describe_unfinished(frame: &mut Frame) -> Result<(), Mismatch> {
    let found = header::parse(frame.head()).map_err(|_| Mismatch)?;
    let offset = checksum_field(&found);
    frame.meta.checksum = Checksum::Partial { start: found.layout.transport, offset };
    frame.meta.layout = found.layout;
    Ok(())
}

/// Where the checksum is, from the start of the transport header.
fn checksum_field(found: &Parsed) -> u16 {
    if found.tcp { 16 } else { 6 }
}

/// The folded pseudo-header sum over everything behind the IP header and its extensions.
fn pseudo_header(found: &Parsed, head: &[u8]) -> Option<u16> {
    let network = usize::from(found.layout.network);
    let length = (network + found.ip_len).checked_sub(found.layout.transport.into())?;
    let protocol = if found.tcp { PROTOCOL_TCP } else { PROTOCOL_UDP };
    let ip = head.get(network..)?;
    Some(if found.v6 {
        let source = ip.get(8..)?.first_chunk()?;
        let destination = ip.get(24..)?.first_chunk()?;
        let length = u32::try_from(length).ok()?;
        checksum::pseudo_header_v6(source, destination, protocol, length)
    } else {
        let source = *ip.get(12..)?.first_chunk()?;
        let destination = *ip.get(16..)?.first_chunk()?;
        let length = u16::try_from(length).ok()?;
        checksum::pseudo_header_v4(source, destination, protocol, length)
    })
}

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;
#[expect(clippy::cast_possible_truncation, reason = "it is 14")]
const NETWORK: u16 = ETHERNET_LEN as u16;
#[expect(clippy::cast_possible_truncation, reason = "it is 4")]
const VLAN_TAG: u16 = VLAN_LEN as u16;

#[cfg(test)]
mod tests;

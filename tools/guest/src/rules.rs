//! Whether a received header is one that the guest's features allow, and fits the packet behind it:
//! what a careful guest would check (rules V1 to V10 and the guards against guest drops).
//!
//! The packet is parsed here, by a reading of its own: the device's is what is being judged.

use packet::checksum;

use crate::features::{
    GUEST_CSUM, GUEST_ECN, GUEST_TSO4, GUEST_TSO6, GUEST_UFO, GUEST_USO4, GUEST_USO6, HASH_REPORT,
    RSC_EXT,
};
use crate::header::{
    DATA_VALID, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM,
    NetHeader, RSC_INFO,
};
use crate::violation::Violation;

/// What the device has to keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) features: u64,
    pub(crate) mtu: Option<u16>,
}

impl Rules {
    /// The first rule that the header breaks with this frame.
    pub(crate) fn check(&self, header: &NetHeader, frame: &[u8]) -> Result<(), Violation> {
        self.flags(header)?;
        self.fields(header)?;
        let packet = Packet::parse(frame);
        if header.flags & NEEDS_CSUM != 0 {
            partial(header, frame, packet.as_ref())?;
        }
        if header.flags & DATA_VALID != 0 && packet.as_ref().is_some_and(|p| !p.sums_up(frame)) {
            return Err(Violation::ChecksumNotValid);
        }
        if header.gso_type == GSO_NONE {
            self.single(frame)
        } else {
            self.segmented(header, frame, packet.as_ref())
        }
    }

    fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    fn flags(&self, header: &NetHeader) -> Result<(), Violation> {
        let mut allowed = 0;
        if self.has(GUEST_CSUM) {
            allowed |= NEEDS_CSUM | DATA_VALID;
        }
        if self.has(RSC_EXT) {
            allowed |= RSC_INFO;
        }
        if header.flags & !allowed != 0 {
            return Err(Violation::FlagNotAcked);
        }
        if header.flags & NEEDS_CSUM != 0 && header.flags & DATA_VALID != 0 {
            return Err(Violation::BothFlags);
        }
        let kind = header.gso_type & !GSO_ECN;
        let acked = match kind {
            GSO_NONE => header.gso_type == GSO_NONE,
            GSO_TCPV4 => self.has(GUEST_TSO4),
            GSO_TCPV6 => self.has(GUEST_TSO6),
            GSO_UDP => self.has(GUEST_UFO),
            GSO_UDP_L4 => self.has(GUEST_USO4 | GUEST_USO6),
            _ => false,
        };
        let congestion = header.gso_type & GSO_ECN != 0;
        let tcp = matches!(kind, GSO_TCPV4 | GSO_TCPV6);
        if !acked || congestion && !(tcp && self.has(GUEST_ECN)) {
            return Err(Violation::TypeNotAcked);
        }
        Ok(())
    }

    /// The fields that nothing gives a meaning to (V10).
    fn fields(&self, header: &NetHeader) -> Result<(), Violation> {
        let partial = header.flags & NEEDS_CSUM != 0;
        let position = header.csum_start != 0 || header.csum_offset != 0;
        if position && !partial && header.flags & RSC_INFO == 0 {
            return Err(Violation::StrayField);
        }
        if header.gso_type == GSO_NONE && !partial && header.hdr_len != 0 {
            return Err(Violation::StrayField);
        }
        let hash = header.hash_value != 0 || header.hash_report != 0;
        if hash && !self.has(HASH_REPORT) || header.padding != 0 {
            return Err(Violation::StrayField);
        }
        if (header.gso_type == GSO_NONE) != (header.gso_size == 0) {
            return Err(Violation::SegmentSize);
        }
        Ok(())
    }

    fn single(&self, frame: &[u8]) -> Result<(), Violation> {
        let link = link_layer(frame).map_or(ETHERNET, |(_, network)| network);
        match self.mtu {
            Some(mtu) if frame.len() > usize::from(mtu) + link => Err(Violation::LongerThanMtu),
            _ => Ok(()),
        }
    }

    fn segmented(
        &self,
        header: &NetHeader,
        frame: &[u8],
        packet: Option<&Packet>,
    ) -> Result<(), Violation> {
        if header.flags & NEEDS_CSUM == 0 {
            return Err(Violation::NoChecksum);
        }
        let packet = packet.ok_or(Violation::TypeMismatch)?;
        let (v6, protocol) = match header.gso_type & !GSO_ECN {
            GSO_TCPV4 => (false, TCP),
            GSO_TCPV6 => (true, TCP),
            _ => (packet.v6, UDP),
        };
        if packet.v6 != v6 || packet.protocol != protocol {
            return Err(Violation::TypeMismatch);
        }
        if header.gso_type == GSO_UDP_L4 {
            let feature = if packet.v6 { GUEST_USO6 } else { GUEST_USO4 };
            if !self.has(feature) {
                return Err(Violation::TypeNotAcked);
            }
        }
        if packet.end != frame.len() {
            return Err(Violation::IpLength);
        }
        let hdr_len = usize::from(header.hdr_len);
        if hdr_len < packet.payload || hdr_len > frame.len() {
            return Err(Violation::HeaderLength);
        }
        let size = usize::from(header.gso_size);
        if protocol == TCP && size < SMALLEST_SEGMENT {
            return Err(Violation::SegmentSize);
        }
        // Each segment is a frame that the wire could have carried.
        if self.mtu.is_some_and(|mtu| size + packet.payload - packet.network > usize::from(mtu)) {
            return Err(Violation::LongerThanMtu);
        }
        let segments = (frame.len() - packet.payload).div_ceil(size);
        if segments < 2 || protocol == UDP && segments > 64 {
            return Err(Violation::SegmentCount);
        }
        if self.has(RSC_EXT) && protocol == TCP {
            let said = (usize::from(header.csum_start), header.csum_offset);
            if header.flags & RSC_INFO == 0 || said != (segments, 0) {
                return Err(Violation::RscInfo);
            }
        }
        Ok(())
    }
}

/// A partial checksum: where it says it is, and what it holds (V3).
fn partial(header: &NetHeader, frame: &[u8], packet: Option<&Packet>) -> Result<(), Violation> {
    let packet = packet.ok_or(Violation::ChecksumPosition)?;
    let offset = packet.checksum_offset();
    if header.flags & RSC_INFO == 0 {
        let said = (usize::from(header.csum_start), usize::from(header.csum_offset));
        if said != (packet.transport, offset) {
            return Err(Violation::ChecksumPosition);
        }
    }
    if header.hdr_len != 0 && usize::from(header.hdr_len) < packet.payload {
        return Err(Violation::HeaderLength);
    }
    let field = half(frame, packet.transport + offset).ok_or(Violation::ChecksumPosition)?;
    // A difference of zero has two encodings.
    if !matches!(checksum::sub(field, packet.pseudo_header), 0 | 0xffff) {
        return Err(Violation::ChecksumNotPartial);
    }
    Ok(())
}

/// A TCP or UDP packet that is no fragment: offsets from the start of the frame.
#[derive(Debug)]
struct Packet {
    v6: bool,
    protocol: u8,
    network: usize,
    transport: usize,
    payload: usize,
    /// The end of the IP packet.
    end: usize,
    pseudo_header: u16,
}

impl Packet {
    fn parse(frame: &[u8]) -> Option<Self> {
        let (kind, network) = link_layer(frame)?;
        match kind {
            0x0800 => Self::v4(frame, network),
            0x86dd => Self::v6(frame, network),
            _ => None,
        }
    }

    fn v4(frame: &[u8], network: usize) -> Option<Self> {
        let header = frame.get(network..network + 20)?;
        let header_len = usize::from(header[0] & 15) * 4;
        let fragment = half(header, 6)? & 0x3fff;
        if header[0] >> 4 != 4 || header_len < 20 || fragment != 0 {
            return None;
        }
        let (transport, end) = (network + header_len, network + usize::from(half(header, 2)?));
        let len = u16::try_from(end.checked_sub(transport)?).ok()?;
        let protocol = header[9];
        let (source, destination) =
            (header[12..16].try_into().ok()?, header[16..20].try_into().ok()?);
        let pseudo_header = checksum::pseudo_header_v4(source, destination, protocol, len);
        Self::transport(frame, false, protocol, [network, transport, end], pseudo_header)
    }

    fn v6(frame: &[u8], network: usize) -> Option<Self> {
        let header = frame.get(network..network + 40)?;
        let end = network + 40 + usize::from(half(header, 4)?);
        let (mut protocol, mut transport) = (header[6], network + 40);
        // Hop-by-hop, routing and destination options; a handful at most.
        for _ in 0..8 {
            if !matches!(protocol, 0 | 43 | 60) {
                break;
            }
            let extension = frame.get(transport..transport + 2)?;
            protocol = extension[0];
            transport += (usize::from(extension[1]) + 1) * 8;
        }
        let len = u32::try_from(end.checked_sub(transport)?).ok()?;
        let (source, destination) =
            (header[8..24].try_into().ok()?, header[24..40].try_into().ok()?);
        let pseudo_header = checksum::pseudo_header_v6(source, destination, protocol, len);
        Self::transport(frame, true, protocol, [network, transport, end], pseudo_header)
    }

    fn transport(
        frame: &[u8],
        v6: bool,
        protocol: u8,
        [network, transport, end]: [usize; 3],
        pseudo_header: u16,
    ) -> Option<Self> {
        let payload = match protocol {
            TCP => transport + usize::from(frame.get(transport + 12)? >> 4) * 4,
            UDP => transport + 8,
            _ => return None,
        };
        let least = transport + if protocol == TCP { 20 } else { 8 };
        let complete = (least..=end).contains(&payload) && end <= frame.len();
        complete.then_some(Self { v6, protocol, network, transport, payload, end, pseudo_header })
    }

    fn checksum_offset(&self) -> usize {
        if self.protocol == TCP { 16 } else { 6 }
    }

    /// Whether the complete checksum is right. A UDP datagram without one is.
    fn sums_up(&self, frame: &[u8]) -> bool {
        let field = half(frame, self.transport + self.checksum_offset());
        if self.protocol == UDP && !self.v6 && field == Some(0) {
            return true;
        }
        let sum = checksum::sum(&frame[self.transport..self.end]);
        checksum::add(sum, self.pseudo_header) == 0xffff
    }
}

/// The EtherType behind at most two VLAN tags, and where the network header starts.
fn link_layer(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = 12;
    for _ in 0..2 {
        if !matches!(half(frame, at)?, 0x8100 | 0x88a8) {
            break;
        }
        at += 4;
    }
    Some((half(frame, at)?, at + 2))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

const ETHERNET: usize = 14;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Newer guests raise a smaller TCP segment size to this and so change the boundaries.
const SMALLEST_SEGMENT: usize = 8;

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;

//! Frames made from scratch, with right lengths and checksums: for tests and traffic.
//!
//! Every field stands open, so that a test can say what is special about its frame and leave the rest
//! as it is. To make a frame that is wrong, build a right one and change its bytes.

use crate::checksum;
use crate::header::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_TCP, PROTOCOL_UDP};

/// The Ethernet header.
#[derive(Debug, Clone, Copy)]
pub struct Link<'a> {
    /// Destination address.
    pub destination: [u8; 6],
    /// Source address.
    pub source: [u8; 6],
    /// VLAN tags in the frame, outermost first: protocol identifier, control information.
    pub tags: &'a [(u16, u16)],
}

/// The IP header.
#[derive(Debug, Clone, Copy)]
pub enum Ip<'a> {
    /// Version 4.
    V4 {
        /// Source address.
        source: [u8; 4],
        /// Destination address.
        destination: [u8; 4],
        /// Type of service.
        tos: u8,
        /// Identification.
        id: u16,
        /// Flags and fragment offset; don't fragment is 0x4000.
        flags: u16,
        /// Time to live.
        ttl: u8,
        /// Options; a multiple of 4 bytes.
        options: &'a [u8],
    },
    /// Version 6.
    V6 {
        /// Source address.
        source: [u8; 16],
        /// Destination address.
        destination: [u8; 16],
        /// Traffic class.
        class: u8,
        /// Flow label, 20 bits.
        label: u32,
        /// Hop limit.
        hop_limit: u8,
        /// Extension headers in order: header type, and its bytes (a multiple of 8; the first two are
        /// filled in).
        extensions: &'a [(u8, &'a [u8])],
    },
}

impl<'a> Ip<'a> {
    /// IPv4 from 10.0.0.1 to 10.0.0.2, don't fragment, TTL 64, id 1000.
    pub const fn v4() -> Self {
        Self::V4 {
            source: [10, 0, 0, 1],
            destination: [10, 0, 0, 2],
            tos: 0,
            id: 1000,
            flags: 0x4000,
            ttl: 64,
            options: &[],
        }
    }

    /// IPv6 from fd00::1 to fd00::2, hop limit 64.
    pub const fn v6() -> Self {
        let mut addresses = [[0; 16]; 2];
        addresses[0][0] = 0xfd;
        addresses[0][15] = 1;
        addresses[1][0] = 0xfd;
        addresses[1][15] = 2;
        Self::V6 {
            source: addresses[0],
            destination: addresses[1],
            class: 0,
            label: 0,
            hop_limit: 64,
            extensions: &[],
        }
    }

    /// Sets IPv4 options.
    ///
    /// # Panics
    ///
    /// When this is IPv6.
    pub fn set_options(&mut self, new: &'a [u8]) {
        match self {
            Self::V4 { options, .. } => *options = new,
            Self::V6 { .. } => panic!("IPv6 has extension headers"),
        }
    }

    /// Sets IPv6 extension headers.
    ///
    /// # Panics
    ///
    /// When this is IPv4.
    pub fn set_extensions(&mut self, new: &'a [(u8, &'a [u8])]) {
        match self {
            Self::V6 { extensions, .. } => *extensions = new,
            Self::V4 { .. } => panic!("IPv4 has options"),
        }
    }

    /// Sets the IPv4 identification; IPv6 has none.
    pub fn set_id(&mut self, new: u16) {
        if let Self::V4 { id, .. } = self {
            *id = new;
        }
    }

    fn ethertype(&self) -> u16 {
        match self {
            Self::V4 { .. } => ETHERTYPE_IPV4,
            Self::V6 { .. } => ETHERTYPE_IPV6,
        }
    }

    fn pseudo_header(&self, protocol: u8, len: usize) -> u16 {
        match self {
            Self::V4 { source, destination, .. } => {
                let len = u16::try_from(len).expect("an IPv4 packet has at most 65535 bytes");
                checksum::pseudo_header_v4(*source, *destination, protocol, len)
            }
            Self::V6 { source, destination, .. } => {
                let len = u32::try_from(len).expect("an IPv6 packet has at most 65575 bytes");
                checksum::pseudo_header_v6(source, destination, protocol, len)
            }
        }
    }

    fn write(&self, bytes: &mut Vec<u8>, protocol: u8, behind: usize) {
        match self {
            Self::V4 { source, destination, tos, id, flags, ttl, options } => {
                let start = bytes.len();
                let words = 5 + options.len() / 4;
                bytes.push(0x40 | u8::try_from(words).expect("options of at most 40 bytes"));
                bytes.push(*tos);
                bytes.extend(u16_bytes(words * 4 + behind));
                bytes.extend(id.to_be_bytes());
                bytes.extend(flags.to_be_bytes());
                bytes.extend([*ttl, protocol, 0, 0]);
                bytes.extend(source);
                bytes.extend(destination);
                bytes.extend(*options);
                let sum = !checksum::sum(&bytes[start..]);
                bytes[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
            }
            Self::V6 { source, destination, class, label, hop_limit, extensions } => {
                let skipped: usize = extensions.iter().map(|(_, bytes)| bytes.len()).sum();
                bytes.extend((6 << 28 | u32::from(*class) << 20 | label).to_be_bytes());
                bytes.extend(u16_bytes(skipped + behind));
                bytes.push(extensions.first().map_or(protocol, |(kind, _)| *kind));
                bytes.push(*hop_limit);
                bytes.extend(source);
                bytes.extend(destination);
                for (at, (_, extension)) in extensions.iter().enumerate() {
                    bytes.push(extensions.get(at + 1).map_or(protocol, |(kind, _)| *kind));
                    let words = extension.len() / 8 - 1;
                    bytes.push(u8::try_from(words).expect("an extension has at most 2 KiB"));
                    bytes.extend(&extension[2..]);
                }
            }
        }
    }
}

/// A TCP segment.
#[derive(Debug, Clone, Copy)]
pub struct TcpFrame<'a> {
    /// Ethernet.
    pub link: Link<'a>,
    /// IP.
    pub ip: Ip<'a>,
    /// Source and destination port.
    pub ports: (u16, u16),
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// The reserved bits and the flags: FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE 64, CWR 128.
    pub flags: u16,
    /// Window.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options; a multiple of 4 bytes.
    pub options: &'a [u8],
    /// Payload.
    pub payload: &'a [u8],
}

impl TcpFrame<'_> {
    /// An empty ACK over IPv4: seq 1, ack 5000, window 1000.
    pub const fn v4() -> Self {
        Self::new(Ip::v4())
    }

    /// An empty ACK over IPv6.
    pub const fn v6() -> Self {
        Self::new(Ip::v6())
    }

    const fn new(ip: Ip<'static>) -> Self {
        Self {
            link: LINK,
            ip,
            ports: (40_000, 5001),
            seq: 1,
            ack: 5000,
            flags: 0x10,
            window: 1000,
            urgent: 0,
            options: &[],
            payload: &[],
        }
    }

    /// The frame's bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut header = Vec::with_capacity(60);
        header.extend(self.ports.0.to_be_bytes());
        header.extend(self.ports.1.to_be_bytes());
        header.extend(self.seq.to_be_bytes());
        header.extend(self.ack.to_be_bytes());
        let words = u16::try_from(5 + self.options.len() / 4).expect("at most 40 bytes of options");
        header.extend((words << 12 | self.flags).to_be_bytes());
        header.extend(self.window.to_be_bytes());
        header.extend([0, 0]);
        header.extend(self.urgent.to_be_bytes());
        header.extend(self.options);
        frame(&self.link, &self.ip, PROTOCOL_TCP, &header, 16, self.payload)
    }

    /// Writes the frame to the start of `to`; its length.
    ///
    /// # Panics
    ///
    /// When `to` is too short.
    pub fn write(&self, to: &mut [u8]) -> usize {
        let bytes = self.to_vec();
        to[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    }
}

/// A UDP datagram.
#[derive(Debug, Clone, Copy)]
pub struct UdpFrame<'a> {
    /// Ethernet.
    pub link: Link<'a>,
    /// IP.
    pub ip: Ip<'a>,
    /// Source and destination port.
    pub ports: (u16, u16),
    /// Payload.
    pub payload: &'a [u8],
}

impl UdpFrame<'_> {
    /// An empty datagram over IPv4.
    pub const fn v4() -> Self {
        Self { link: LINK, ip: Ip::v4(), ports: (40_000, 5001), payload: &[] }
    }

    /// An empty datagram over IPv6.
    pub const fn v6() -> Self {
        Self { link: LINK, ip: Ip::v6(), ports: (40_000, 5001), payload: &[] }
    }

    /// The frame's bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut header = Vec::with_capacity(8);
        header.extend(self.ports.0.to_be_bytes());
        header.extend(self.ports.1.to_be_bytes());
        header.extend(u16_bytes(8 + self.payload.len()));
        header.extend([0, 0]);
        frame(&self.link, &self.ip, PROTOCOL_UDP, &header, 6, self.payload)
    }

    /// Writes the frame to the start of `to`; its length.
    ///
    /// # Panics
    ///
    /// When `to` is too short.
    pub fn write(&self, to: &mut [u8]) -> usize {
        let bytes = self.to_vec();
        to[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    }
}

/// Makes the checksums of a TCP or UDP frame right again after a change; frames that have none stay as
/// they are. Bytes behind the IP packet (padding) are left out.
pub fn fix_checksums(bytes: &mut [u8]) {
    let Ok(parsed) = crate::header::parse(bytes) else { return };
    let (network, transport) =
        (usize::from(parsed.layout.network), usize::from(parsed.layout.transport));
    let end = (network + parsed.ip_len).min(bytes.len()).max(transport);
    if !parsed.v6 {
        bytes[network + 10..network + 12].fill(0);
        let sum = !checksum::sum(&bytes[network..transport]);
        bytes[network + 10..network + 12].copy_from_slice(&sum.to_be_bytes());
    }
    let field = transport + if parsed.tcp { 16 } else { 6 };
    bytes[field..field + 2].fill(0);
    let pseudo = checksum::pseudo_header(&bytes[..end], &parsed, end - transport);
    let sum = !checksum::add(pseudo, checksum::sum(&bytes[transport..end]));
    let sum = if sum == 0 && !parsed.tcp { 0xffff } else { sum };
    bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

fn frame(
    link: &Link<'_>,
    ip: &Ip<'_>,
    protocol: u8,
    header: &[u8],
    field: usize,
    payload: &[u8],
) -> Vec<u8> {
    let behind = header.len() + payload.len();
    let mut bytes = Vec::with_capacity(128 + behind);
    bytes.extend(link.destination);
    bytes.extend(link.source);
    for (tpid, tci) in link.tags {
        bytes.extend(tpid.to_be_bytes());
        bytes.extend(tci.to_be_bytes());
    }
    bytes.extend(ip.ethertype().to_be_bytes());
    ip.write(&mut bytes, protocol, behind);
    let transport = bytes.len();
    bytes.extend(header);
    bytes.extend(payload);
    let pseudo = ip.pseudo_header(protocol, behind);
    let sum = !checksum::add(pseudo, checksum::sum(&bytes[transport..]));
    let sum = if sum == 0 && protocol == PROTOCOL_UDP { 0xffff } else { sum };
    bytes[transport + field..transport + field + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn u16_bytes(len: usize) -> [u8; 2] {
    u16::try_from(len).expect("an IP packet has at most 65535 bytes").to_be_bytes()
}

/// Locally administered addresses.
const LINK: Link<'static> =
    Link { destination: [2, 0, 0, 0, 0, 2], source: [2, 0, 0, 0, 0, 1], tags: &[] };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_right_and_are_made_right_again() {
        let mut tcp = TcpFrame::v6();
        tcp.payload = b"odd";
        let mut udp = UdpFrame::v4();
        udp.payload = b"even";
        for bytes in [tcp.to_vec(), udp.to_vec(), TcpFrame::v4().to_vec()] {
            let parsed = crate::header::parse(&bytes).unwrap();
            let transport = usize::from(parsed.layout.transport);
            let pseudo = checksum::pseudo_header(&bytes, &parsed, bytes.len() - transport);
            assert_eq!(checksum::add(pseudo, checksum::sum(&bytes[transport..])), 0xffff);
            let mut changed = bytes.clone();
            changed[transport] ^= 1;
            fix_checksums(&mut changed);
            assert_ne!(changed, bytes);
            changed[transport] ^= 1;
            fix_checksums(&mut changed);
            assert_eq!(changed, bytes);
        }
    }
}

//! TCP segments, the super-packet that they make, and the way back, for tests.
//!
//! Written from the specifications for itself: what the crate under test does with a frame is compared
//! with what is done here.

use packet::checksum::{add, pseudo_header_v4, pseudo_header_v6, sum};
use packet::{Checksum, Frame, Gso, GsoKind, Layout, Pool};

use crate::header::{NEEDS_CSUM, NetHeader};

/// One direction of a TCP connection whose segments carry `size` bytes each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) v6: bool,
    pub(crate) size: usize,
    /// The first segment has CWR.
    pub(crate) cwr: bool,
}

impl Stream {
    pub(crate) fn tcp_v4(size: usize) -> Self {
        Self { v6: false, size, cwr: false }
    }

    pub(crate) fn tcp_v6(size: usize) -> Self {
        Self { v6: true, size, cwr: false }
    }

    /// The bytes of segment `at` of `count`: ids count up, the last one has PSH and fewer bytes.
    pub(crate) fn segment(self, at: usize, count: usize) -> Vec<u8> {
        let last = at + 1 == count;
        let len = if last { self.size - 1 } else { self.size };
        let payload: Vec<_> = (0..len).map(|byte| pattern(at * self.size + byte)).collect();
        let flags = 0x10 | if last { 8 } else { 0 } | if self.cwr && at == 0 { 0x80 } else { 0 };
        self.packet(at, flags, &payload)
    }

    /// The same as a frame of which nothing is known.
    pub(crate) fn frame(self, at: usize, count: usize, pool: &mut Pool) -> Frame {
        Frame::copied_from(&self.segment(at, count), pool).unwrap()
    }

    /// A single segment whose checksum was never computed.
    pub(crate) fn partial(self, at: usize, pool: &mut Pool) -> Frame {
        let mut bytes = self.segment(at, at + 1);
        let start = self.transport();
        set_pseudo_header(&mut bytes, start, 16);
        let mut frame = Frame::copied_from(&bytes, pool).unwrap();
        let start = u16::try_from(start).unwrap();
        frame.meta.checksum = Checksum::Partial { start, offset: 16 };
        frame
    }

    /// The bytes of `count` segments merged: the checksum field has the pseudo-header's sum.
    pub(crate) fn merged_bytes(self, first: usize, count: usize) -> Vec<u8> {
        let headers = self.headers();
        let parts: Vec<_> = (0..count).map(|at| self.segment(first + at, first + count)).collect();
        let payload: Vec<_> = parts.iter().flat_map(|part| part[headers..].to_vec()).collect();
        let flags = parts.iter().fold(0, |flags, part| flags | part[self.transport() + 13]);
        let mut bytes = self.packet(first, flags, &payload);
        set_pseudo_header(&mut bytes, self.transport(), 16);
        bytes
    }

    /// `count` segments merged, one piece each, as the GRO engine hands them over.
    pub(crate) fn merged(self, first: usize, count: usize, pool: &mut Pool) -> Frame {
        let bytes = self.merged_bytes(first, count);
        let mut parts = bytes[self.headers()..].chunks(self.size);
        let head = [&bytes[..self.headers()], parts.next().unwrap()].concat();
        let mut frame = Frame::copied_from(&head, pool).unwrap();
        for part in parts {
            let piece = Frame::copied_from(part, pool).unwrap();
            frame.push(piece, 0, pool);
        }
        let start = u16::try_from(self.transport()).unwrap();
        frame.meta.checksum = Checksum::Partial { start, offset: 16 };
        frame.meta.gso = Some(Gso {
            kind: if self.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 },
            size: u16::try_from(self.size).unwrap(),
            segments: u16::try_from(count).unwrap(),
            fixed_id: false,
            ecn: self.cwr,
            trusted: true,
        });
        frame.meta.layout = Layout { network: 14, transport: start, payload: start + 32 };
        frame
    }

    fn transport(self) -> usize {
        if self.v6 { 54 } else { 34 }
    }

    fn headers(self) -> usize {
        self.transport() + 32
    }

    fn packet(self, at: usize, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        let transport_len = u16::try_from(32 + payload.len()).unwrap();
        if self.v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend(transport_len.to_be_bytes());
            bytes.extend([6, 64]);
            bytes.extend([[0xfd; 16], [0xfe; 16]].concat());
        } else {
            bytes.extend([8, 0, 0x45, 0]);
            bytes.extend((20 + transport_len).to_be_bytes());
            bytes.extend((77 + u16::try_from(at).unwrap()).to_be_bytes());
            bytes.extend([0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        bytes.extend([0x12, 0x34, 0, 80]);
        bytes.extend(sequence(at * self.size));
        bytes.extend([0, 0, 0, 9, 0x80, flags, 1, 0, 0, 0, 0, 0]);
        bytes.extend([1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
        bytes.extend(payload);
        complete(&mut bytes);
        bytes
    }
}

/// What a guest's driver gets, as it was on the wire: cut by the header's word, checksums complete.
pub(crate) fn normalise(header: NetHeader, bytes: &[u8]) -> Vec<Vec<u8>> {
    if header.gso_type == 0 {
        let mut bytes = bytes.to_vec();
        if header.flags & NEEDS_CSUM != 0 {
            let start = usize::from(header.csum_start);
            let field = start + usize::from(header.csum_offset);
            let value = !sum(&bytes[start..]);
            bytes[field..field + 2].copy_from_slice(&value.to_be_bytes());
        }
        return vec![bytes];
    }
    let (headers, transport) = (usize::from(header.hdr_len), usize::from(header.csum_start));
    let mut expected = bytes.to_vec();
    set_pseudo_header(&mut expected, transport, 16);
    assert_eq!(expected, bytes, "the checksum field of a super-packet is the pseudo-header's sum");
    let network = network(bytes);
    let v6 = bytes[network] >> 4 == 6;
    let parts: Vec<_> = bytes[headers..].chunks(usize::from(header.gso_size)).collect();
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let first = u32::from(word(transport + 4)) << 16 | u32::from(word(transport + 6));
    let mut offset = 0;
    let mut segments = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let mut segment = [&bytes[..headers], part].concat();
        let len = u16::try_from(segment.len() - network).unwrap();
        if v6 {
            segment[network + 4..network + 6].copy_from_slice(&(len - 40).to_be_bytes());
        } else {
            let id = word(network + 4) + u16::try_from(at).unwrap();
            segment[network + 2..network + 4].copy_from_slice(&len.to_be_bytes());
            segment[network + 4..network + 6].copy_from_slice(&id.to_be_bytes());
        }
        let seq = first.wrapping_add(offset);
        segment[transport + 4..transport + 8].copy_from_slice(&seq.to_be_bytes());
        if at + 1 < parts.len() {
            segment[transport + 13] &= !0x09;
        }
        if at > 0 {
            segment[transport + 13] &= !0x80;
        }
        complete(&mut segment);
        offset += u32::try_from(part.len()).unwrap();
        segments.push(segment);
    }
    segments
}

/// Computes all checksums of a TCP packet.
pub(crate) fn complete(bytes: &mut [u8]) {
    let network = network(bytes);
    let mut transport = network + 40;
    if bytes[network] >> 4 == 4 {
        transport = network + 20;
        bytes[network + 10..network + 12].fill(0);
        let value = !sum(&bytes[network..transport]);
        bytes[network + 10..network + 12].copy_from_slice(&value.to_be_bytes());
    }
    set_pseudo_header(bytes, transport, 16);
    let value = !sum(&bytes[transport..]);
    bytes[transport + 16..transport + 18].copy_from_slice(&value.to_be_bytes());
}

/// Writes the pseudo-header's sum to the checksum field.
pub(crate) fn set_pseudo_header(bytes: &mut [u8], transport: usize, field: usize) {
    let network = network(bytes);
    let len = u16::try_from(bytes.len() - transport).unwrap();
    let protocol = if field == 16 { 6 } else { 17 };
    let value = if bytes[network] >> 4 == 6 {
        let address = |at: usize| <&[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap();
        pseudo_header_v6(address(network + 8), address(network + 24), protocol, u32::from(len))
    } else {
        let address = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap();
        pseudo_header_v4(address(network + 12), address(network + 16), protocol, len)
    };
    bytes[transport + field..transport + field + 2].copy_from_slice(&add(value, 0).to_be_bytes());
}

fn network(bytes: &[u8]) -> usize {
    if bytes[12..14] == [0x81, 0] || bytes[12..14] == [0x88, 0xa8] { 18 } else { 14 }
}

fn pattern(at: usize) -> u8 {
    u8::try_from(at * 7 % 251).unwrap()
}

fn sequence(offset: usize) -> [u8; 4] {
    0xffff_ff00u32.wrapping_add(u32::try_from(offset).unwrap()).to_be_bytes()
}

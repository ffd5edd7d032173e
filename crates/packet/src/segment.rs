//! Segmentation: a super-packet cut into the packets that it stands for (`spec/gro.md` 6.1).
//!
//! The inverse of merging, and what is done for a guest that can't take a super-packet or for a port
//! that can't cut one. The headers are found anew from the bytes, since the super-packet may be a
//! guest's.

use crate::checksum::Running;
use crate::header::{self, ParseError, Parsed};
use crate::{Checksum, Frame, Gso, Meta, Piece, Pool, checksum};

/// Why a frame can't be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// It is one packet already.
    #[error("the frame is no super-packet")]
    NotGso,
    /// Its headers can't be found.
    #[error("headers")]
    Headers(#[from] ParseError),
    /// It says that it is something else than its headers say.
    #[error("the kind of segmentation does not fit the headers")]
    Kind,
    /// Segments of no bytes, or no payload at all.
    #[error("segment size or payload is zero")]
    Empty,
    /// A segment would be longer than an IP packet can be, or its headers longer than a buffer.
    #[error("{0} bytes are too long for a segment or its headers")]
    TooLong(usize),
    /// The pool has fewer buffers than the segments take.
    #[error("{needed} buffers needed, {available} available")]
    NoBuffers {
        /// How many buffers the segments take.
        needed: usize,
        /// How many there are.
        available: usize,
    },
}

/// Cuts a super-packet into complete frames and hands them to `each` in order; answers how many. The
/// super-packet's buffers go back to the pool. Each segment is a copy, with all checksums computed
/// while its bytes are copied.
///
/// # Errors
///
/// See [`SegmentError`]; the frame comes back as it was.
pub fn segment(
    frame: Frame,
    pool: &mut Pool,
    mut each: impl FnMut(Frame),
) -> Result<usize, (Frame, SegmentError)> {
    let plan = match Plan::new(&frame, pool) {
        Ok(plan) => plan,
        Err(error) => return Err((frame, error)),
    };
    let mut source = Source::new(&frame, plan.header_len);
    for index in 0..plan.segments {
        each(plan.cut(&frame, index, &mut source, pool));
    }
    pool.recycle(frame);
    Ok(plan.segments)
}

/// Everything that is the same for all segments.
struct Plan {
    gso: Gso,
    parsed: Parsed,
    header_len: usize,
    payload: usize,
    segments: usize,
}

impl Plan {
    fn new(frame: &Frame, pool: &Pool) -> Result<Self, SegmentError> {
        let gso = frame.meta.gso.ok_or(SegmentError::NotGso)?;
        let parsed = header::parse(frame.head())?;
        if parsed.tcp != gso.kind.is_tcp() || parsed.v6 != gso.kind.is_v6() {
            return Err(SegmentError::Kind);
        }
        let header_len = usize::from(parsed.layout.payload);
        let (size, payload) = (usize::from(gso.size), frame.len() - header_len);
        if size == 0 || payload == 0 {
            return Err(SegmentError::Empty);
        }
        let longest = header_len + size.min(payload);
        if longest - usize::from(parsed.layout.network) > usize::from(u16::MAX) {
            return Err(SegmentError::TooLong(longest));
        }
        let segments = payload.div_ceil(size);
        if header_len > pool.buffer_size() {
            return Err(SegmentError::TooLong(header_len));
        }
        let needed = segments * longest.div_ceil(pool.buffer_size());
        let available = pool.available();
        if needed > available {
            return Err(SegmentError::NoBuffers { needed, available });
        }
        Ok(Self { gso, parsed, header_len, payload, segments })
    }

    /// Makes one segment.
    fn cut(&self, frame: &Frame, index: usize, source: &mut Source<'_>, pool: &mut Pool) -> Frame {
        let size = usize::from(self.gso.size);
        let payload = size.min(self.payload - index * size);
        let mut sum = Running::default();
        let mut segment = {
            let mut buffer = pool.take().expect("buffers were counted before");
            let fits = (pool.buffer_size() - self.header_len).min(payload);
            let len = self.header_len + fits;
            buffer.bytes_mut()[..self.header_len].copy_from_slice(&frame.head()[..self.header_len]);
            source.copy(&mut buffer.bytes_mut()[self.header_len..len], &mut sum);
            Frame::new(buffer, 0, u16::try_from(len).expect("a buffer has at most 65535 bytes"))
        };
        let whole = self.header_len + payload;
        while segment.len() < whole {
            let mut buffer = pool.take().expect("buffers were counted before");
            let len = (whole - segment.len()).min(pool.buffer_size());
            source.copy(&mut buffer.bytes_mut()[..len], &mut sum);
            let len = u16::try_from(len).expect("a buffer has at most 65535 bytes");
            segment.push_piece(Piece::new(buffer, 0, len), pool);
        }
        segment.meta = Meta {
            checksum: Checksum::Verified { levels: 1 },
            gso: None,
            layout: self.parsed.layout,
            ..frame.meta
        };
        self.finish(&mut segment, index, sum.sum);
        segment
    }

    /// Repairs the headers, which are copies of the super-packet's. `payload` is the payload's folded
    /// sum; it starts at an even offset, as both transport headers are whole words.
    fn finish(&self, segment: &mut Frame, index: usize, payload: u16) {
        let (network, transport) =
            (usize::from(self.parsed.layout.network), usize::from(self.parsed.layout.transport));
        let whole = segment.len();
        #[expect(clippy::cast_possible_truncation, reason = "an id wraps")]
        let step = index as u16;
        let head = segment.head_mut();
        if self.parsed.v6 {
            put_u16(head, network + 4, whole - network - header::IPV6_LEN);
        } else {
            put_u16(head, network + 2, whole - network);
            if !self.gso.fixed_id {
                let id = u16::from_be_bytes([head[network + 4], head[network + 5]]);
                put_u16(head, network + 4, usize::from(id.wrapping_add(step)));
            }
            put_u16(head, network + 10, 0);
            let sum = !checksum::sum(&head[network..transport]);
            put_u16(head, network + 10, usize::from(sum));
        }
        let field = if self.parsed.tcp {
            self.finish_tcp(&mut head[transport..], index);
            transport + 16
        } else {
            put_u16(head, transport + 4, whole - transport);
            transport + 6
        };
        put_u16(head, field, 0);
        let pseudo = checksum::pseudo_header(head, &self.parsed, whole - transport);
        let header = checksum::sum(&head[transport..self.header_len]);
        let sum = !checksum::add(checksum::add(pseudo, header), payload);
        let sum = if sum == 0 && !self.parsed.tcp { 0xffff } else { sum };
        put_u16(head, field, usize::from(sum));
    }

    fn finish_tcp(&self, tcp: &mut [u8], index: usize) {
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let before = u32::try_from(index * usize::from(self.gso.size))
            .expect("a super-packet's payload is far below 4 GiB");
        tcp[4..8].copy_from_slice(&seq.wrapping_add(before).to_be_bytes());
        if index + 1 < self.segments {
            tcp[13] &= !(FIN | PSH);
        }
        if index > 0 && self.gso.ecn {
            tcp[13] &= !CWR;
        }
    }
}

/// The payload, read in one pass across the pieces and summed on the way.
struct Source<'a> {
    frame: &'a Frame,
    piece: usize,
    offset: usize,
}

impl<'a> Source<'a> {
    fn new(frame: &'a Frame, offset: usize) -> Self {
        Self { frame, piece: 0, offset }
    }

    fn copy(&mut self, to: &mut [u8], sum: &mut Running) {
        let mut rest = to;
        while !rest.is_empty() {
            let bytes = match self.piece {
                0 => self.frame.head(),
                behind => self.frame.tail()[behind - 1].bytes(),
            };
            let count = rest.len().min(bytes.len() - self.offset);
            let (now, later) = rest.split_at_mut(count);
            let part = &bytes[self.offset..self.offset + count];
            sum.append(checksum::copy_and_sum(part, now), count);
            rest = later;
            self.offset += count;
            if self.offset == bytes.len() {
                self.piece += 1;
                self.offset = 0;
            }
        }
    }
}

fn put_u16(bytes: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).expect("lengths were checked to fit an IP packet");
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

const FIN: u8 = 1;
const PSH: u8 = 8;
const CWR: u8 = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GsoKind;
    use crate::build::{Ip, TcpFrame, UdpFrame};
    use proptest::prelude::*;

    const PAYLOAD: usize = 5000;
    const BUFFERS: usize = 1200;

    fn payload() -> Vec<u8> {
        (0..PAYLOAD).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
    }

    /// A super-packet of several pieces of odd sizes.
    fn super_packet(bytes: &[u8], gso: Gso, pool: &mut Pool) -> Frame {
        let mut frame = Frame::copied_from(&bytes[..777], pool).unwrap();
        for part in bytes[777..].chunks(1001) {
            frame.push(Frame::copied_from(part, pool).unwrap(), 0, pool);
        }
        frame.meta.gso = Some(gso);
        frame
    }

    fn gso(kind: GsoKind, size: u16) -> Gso {
        let segments = u16::try_from(PAYLOAD.div_ceil(usize::from(size))).unwrap();
        Gso { kind, size, segments, fixed_id: false, ecn: false, trusted: true }
    }

    fn cut(bytes: &[u8], gso: Gso, buffer_size: usize) -> Vec<Vec<u8>> {
        let mut pool = Pool::new(BUFFERS, buffer_size);
        let frame = super_packet(bytes, gso, &mut pool);
        let mut frames = Vec::new();
        let count = segment(frame, &mut pool, |frame| frames.push(frame)).unwrap();
        assert_eq!(count, frames.len());
        let bytes = frames.iter().map(Frame::to_vec).collect();
        frames.into_iter().for_each(|frame| pool.recycle(frame));
        assert_eq!(pool.available(), BUFFERS);
        bytes
    }

    fn tcp_segments(frame: &TcpFrame<'_>, gso: Gso) -> Vec<Vec<u8>> {
        let chunks = frame.payload.chunks(usize::from(gso.size));
        let last = chunks.len() - 1;
        let one = |(index, payload)| {
            let mut one = *frame;
            one.payload = payload;
            one.seq = frame.seq.wrapping_add(u32::try_from(index).unwrap() * u32::from(gso.size));
            if index < last {
                one.flags &= !u16::from(FIN | PSH);
            }
            if index > 0 && gso.ecn {
                one.flags &= !u16::from(CWR);
            }
            if let (Ip::V4 { id, .. }, false) = (&mut one.ip, gso.fixed_id) {
                *id = id.wrapping_add(u16::try_from(index).unwrap());
            }
            one.to_vec()
        };
        chunks.enumerate().map(one).collect()
    }

    fn udp_segments(frame: &UdpFrame<'_>, gso: Gso) -> Vec<Vec<u8>> {
        let chunks = frame.payload.chunks(usize::from(gso.size)).enumerate();
        let one = |(index, payload)| {
            let mut one = UdpFrame { payload, ..*frame };
            if let (Ip::V4 { id, .. }, false) = (&mut one.ip, gso.fixed_id) {
                *id = id.wrapping_add(u16::try_from(index).unwrap());
            }
            one.to_vec()
        };
        chunks.map(one).collect()
    }

    #[test]
    fn tcp_is_cut_into_what_the_sender_would_have_sent() {
        let payload = payload();
        for (mut frame, kind) in
            [(TcpFrame::v4(), GsoKind::TcpV4), (TcpFrame::v6(), GsoKind::TcpV6)]
        {
            frame.payload = &payload;
            frame.options = &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
            frame.flags |= u16::from(FIN | PSH | CWR);
            frame.seq = u32::MAX - 2000;
            frame.ip.set_id(u16::MAX);
            frame.link.tags = &[(0x8100, 5)];
            for (fixed_id, ecn) in [(false, false), (true, true)] {
                let gso = Gso { fixed_id, ecn, ..gso(kind, 1448) };
                for buffer_size in [2048, 1100] {
                    assert_eq!(cut(&frame.to_vec(), gso, buffer_size), tcp_segments(&frame, gso));
                }
            }
        }
    }

    #[test]
    fn udp_is_cut_into_datagrams() {
        let payload = payload();
        let mut frame = UdpFrame::v6();
        frame.payload = &payload;
        let gso = gso(GsoKind::UdpV6, 1200);
        assert_eq!(cut(&frame.to_vec(), gso, 2048), udp_segments(&frame, gso));
    }

    #[test]
    fn what_can_not_be_cut_comes_back() {
        let payload = payload();
        let mut frame = TcpFrame::v4();
        frame.payload = &payload;
        let bytes = frame.to_vec();
        let refused = |bytes: &[u8], gso: Option<Gso>, buffers: usize| {
            let mut pool = Pool::new(buffers, 2048);
            let filler = self::gso(GsoKind::TcpV4, 1);
            let mut frame = super_packet(bytes, filler, &mut pool);
            frame.meta.gso = gso;
            let (frame, error) =
                segment(frame, &mut pool, |_| panic!("nothing is cut")).unwrap_err();
            assert_eq!(frame.to_vec(), bytes);
            error
        };
        let good = Some(gso(GsoKind::TcpV4, 1448));
        assert_eq!(refused(&bytes, None, 64), SegmentError::NotGso);
        assert_eq!(refused(&bytes, Some(gso(GsoKind::TcpV6, 1448)), 64), SegmentError::Kind);
        assert_eq!(refused(&bytes, Some(gso(GsoKind::UdpV4, 1448)), 64), SegmentError::Kind);
        let zero = Some(Gso { size: 0, ..gso(GsoKind::TcpV4, 1) });
        assert_eq!(refused(&bytes, zero, 64), SegmentError::Empty);
        assert_eq!(refused(&bytes, good, 8), SegmentError::NoBuffers { needed: 4, available: 2 });
        let mut arp = bytes.clone();
        arp[13] = 6;
        assert!(matches!(refused(&arp, good, 64), SegmentError::Headers(_)));
    }

    #[test]
    fn what_fits_no_packet_or_buffer_comes_back() {
        let mut pool = Pool::new(64, 2048);
        let mut tcp = TcpFrame::v4();
        tcp.payload = &[7; 1000];
        let mut frame = Frame::copied_from(&tcp.to_vec(), &mut pool).unwrap();
        frame.meta.gso = Some(gso(GsoKind::TcpV4, u16::MAX));
        let (mut frame, error) = segment(frame, &mut Pool::new(64, 53), |_| {}).unwrap_err();
        assert_eq!(error, SegmentError::TooLong(54));
        for _ in 0..33 {
            frame.push(Frame::copied_from(&[7; 2000], &mut pool).unwrap(), 0, &mut pool);
        }
        let (frame, error) = segment(frame, &mut Pool::new(64, 2048), |_| {}).unwrap_err();
        assert_eq!(error, SegmentError::TooLong(54 + 65_535));
        assert_eq!(frame.len(), 54 + 1000 + 33 * 2000);
    }

    proptest! {
        /// Cutting is the inverse of joining, whatever the sizes of payload, segments and buffers.
        #[test]
        fn segments_join_to_the_super_packet(
            payload in prop::collection::vec(any::<u8>(), 800..9000),
            size in 8_u16..9000,
            buffer_size in 1001_usize..4000,
            (v6, udp, fixed_id, ecn) in any::<(bool, bool, bool, bool)>(),
            (flags, seq, id) in any::<(u8, u32, u16)>(),
        ) {
            let kind = match (v6, udp) {
                (false, false) => GsoKind::TcpV4,
                (true, false) => GsoKind::TcpV6,
                (false, true) => GsoKind::UdpV4,
                (true, true) => GsoKind::UdpV6,
            };
            let gso = Gso { kind, size, segments: 0, fixed_id, ecn, trusted: false };
            let mut tcp = if v6 { TcpFrame::v6() } else { TcpFrame::v4() };
            tcp.ip.set_id(id);
            (tcp.payload, tcp.flags, tcp.seq) = (&payload, u16::from(flags), seq);
            let udp_frame = UdpFrame { link: tcp.link, ip: tcp.ip, ports: tcp.ports, payload: &payload };
            let (bytes, expected) = if udp {
                (udp_frame.to_vec(), udp_segments(&udp_frame, gso))
            } else {
                (tcp.to_vec(), tcp_segments(&tcp, gso))
            };
            prop_assert_eq!(cut(&bytes, gso, buffer_size), expected);
        }

        #[test]
        fn arbitrary_bytes_are_cut_or_come_back(
            head in prop::collection::vec(any::<u8>(), 1..120),
            tail in prop::collection::vec(any::<u8>(), 0..400),
            looks_like_tcp in any::<bool>(),
            size in any::<u16>(),
            kind in prop::sample::select(vec![GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::UdpV4]),
        ) {
            let mut pool = Pool::new(600, 128);
            let mut head = head;
            if looks_like_tcp && head.len() > 60 {
                head[12..15].copy_from_slice(&[8, 0, 0x45]);
                head[20..24].copy_from_slice(&[0x40, 0, 64, 6]);
                head[46] = 0x50;
            }
            let mut frame = Frame::copied_from(&head, &mut pool).unwrap();
            for part in tail.chunks(100) {
                let part = Frame::copied_from(part, &mut pool).unwrap();
                frame.push(part, 0, &mut pool);
            }
            frame.meta.gso = Some(Gso { kind, size, segments: 2, fixed_id: false, ecn: true, trusted: false });
            let mut frames = Vec::new();
            if let Err((frame, _)) = segment(frame, &mut pool, |frame| frames.push(frame)) {
                prop_assert!(frames.is_empty());
                pool.recycle(frame);
            }
            for frame in frames {
                let parsed = header::parse(frame.head()).unwrap();
                prop_assert!(crate::transport_is_valid(&frame, &parsed));
                pool.recycle(frame);
            }
            prop_assert_eq!(pool.available(), 600);
        }
    }
}

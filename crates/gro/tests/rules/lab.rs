//! The language of these tests: *give* frames, *expect* what left since, end the poll, *expect* again.
//!
//! The batch has a threshold of 1, so that everything that leaves the engine is seen at once. Frames are
//! named by the order in which they were given, from 0: `lone(2)` is the third one, bit for bit, and
//! `joined(0..4)` is one super-packet of the first four, which means that cutting it gives back exactly
//! these.

use std::time::Duration;

use gro::{Accept, Completed, Config, Engine, Instant, NormalBatch, Passed, Sink};
use packet::build::{Ip, TcpFrame};
use packet::{
    Burst, Checksum, Frame, Gso, GsoKind, Meta, Pool, complete_checksum, header, segment,
};

/// Takes notes.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) frames: Vec<Frame>,
    /// Frames of each delivery.
    pub(crate) deliveries: Vec<usize>,
}

impl Sink for Recorder {
    fn deliver(&mut self, frames: &mut Vec<Frame>, _: &mut Pool) {
        self.deliveries.push(frames.len());
        self.frames.append(frames);
    }
}

/// An engine, and everything that went in and came out.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) engine: Engine,
    pub(crate) batch: NormalBatch,
    pub(crate) pool: Pool,
    pub(crate) sink: Recorder,
    given: Vec<(Vec<u8>, Meta)>,
    now: Instant,
}

/// A frame to give.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub(crate) bytes: Vec<u8>,
    pub(crate) meta: Meta,
    /// Where to cut it into pieces.
    pub(crate) cuts: Vec<usize>,
}

/// What is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    Lone(usize),
    Joined(Vec<usize>),
}

pub(crate) fn lone(index: usize) -> Expected {
    Expected::Lone(index)
}

pub(crate) fn joined(indices: impl IntoIterator<Item = usize>) -> Expected {
    Expected::Joined(indices.into_iter().collect())
}

impl Lab {
    /// The rules of the kernel (`spec/gro.md` 7.1), in which the tables are stated.
    pub(crate) fn kernel() -> Self {
        Self::new(Config::kernel_profile())
    }

    /// The rules for a guest.
    pub(crate) fn guest() -> Self {
        Self::new(Config::default())
    }

    pub(crate) fn new(config: Config) -> Self {
        let mut engine = Engine::new(config);
        engine.set_accept(Accept { tcp4: true, tcp6: true, ..Accept::default() });
        Self {
            engine,
            batch: NormalBatch::new(1),
            pool: Pool::new(160, 16384),
            sink: Recorder::default(),
            given: Vec::new(),
            now: Instant::from_nanos(1_000_000),
        }
    }

    /// Gives one frame to the engine, now.
    pub(crate) fn give(&mut self, frame: impl Into<Given>) {
        let Given { bytes, meta, cuts } = frame.into();
        let mut start = 0;
        let mut parts = Vec::new();
        for end in cuts.into_iter().chain([bytes.len()]) {
            parts.push(&bytes[start..end]);
            start = end;
        }
        let mut frame = Frame::copied_from(parts[0], &mut self.pool).expect("room for the frame");
        for part in &parts[1..] {
            let part = Frame::copied_from(part, &mut self.pool).expect("room for the frame");
            frame.push(part, 0, &mut self.pool);
        }
        frame.meta = meta;
        self.given.push((bytes, meta));
        let mut burst = Burst::new(1);
        burst.push(frame);
        let Self { engine, batch, sink, pool, now, .. } = self;
        engine.receive(*now, &mut burst, batch, sink, pool);
    }

    pub(crate) fn give_all<F: Into<Given>>(&mut self, frames: impl IntoIterator<Item = F>) {
        for frame in frames {
            self.give(frame);
        }
    }

    pub(crate) fn end_of_poll(&mut self) {
        let Self { engine, batch, sink, pool, now, .. } = self;
        engine.end_of_poll(*now, batch, sink, pool);
    }

    pub(crate) fn flush_all(&mut self, reason: Completed) {
        let Self { engine, batch, sink, pool, .. } = self;
        engine.flush_all(reason, batch, sink, pool);
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// What has left since the last call is exactly this.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "so that a list can be written at the call")]
    pub(crate) fn expect<const N: usize>(&mut self, expected: [Expected; N]) {
        let frames: Vec<_> = self.sink.frames.drain(..).collect();
        let seen: Vec<_> = frames.into_iter().map(|frame| self.recognise(frame)).collect();
        assert_eq!(seen, expected);
    }

    #[track_caller]
    pub(crate) fn expect_nothing(&mut self) {
        self.expect([]);
    }

    /// Everything that comes out before the end of the poll, then everything that comes out at the end.
    #[track_caller]
    pub(crate) fn expect_poll<const N: usize, const M: usize>(
        &mut self,
        before: [Expected; N],
        end: [Expected; M],
    ) {
        self.expect(before);
        self.end_of_poll();
        self.expect(end);
    }

    /// Takes the only frame that has left.
    #[track_caller]
    pub(crate) fn take(&mut self) -> Frame {
        assert_eq!(self.sink.frames.len(), 1, "one frame has left");
        self.sink.frames.remove(0)
    }

    #[track_caller]
    pub(crate) fn expect_passed(&self, reason: Passed, count: u64) {
        assert_eq!(self.engine.counters().passed_for(reason), count, "{reason:?}");
    }

    #[track_caller]
    pub(crate) fn expect_completed(&self, reason: Completed, count: u64) {
        assert_eq!(self.engine.counters().completed_for(reason), count, "{reason:?}");
    }

    /// Finds out which of the given frames this is.
    #[track_caller]
    fn recognise(&mut self, frame: Frame) -> Expected {
        let bytes = frame.to_vec();
        let same = |(given, meta): &(Vec<u8>, Meta)| {
            // Only a checksum that was verified may be told of.
            let told = Meta { checksum: frame.meta.checksum, ..*meta };
            let verified = frame.meta.checksum == meta.checksum
                || frame.meta.checksum == Checksum::Verified { levels: 1 };
            *given == bytes && frame.meta == told && verified
        };
        let position = self.given.iter().position(same);
        if let Some(index) = position {
            self.pool.recycle(frame);
            // Each is recognised once.
            self.given[index].0.clear();
            return Expected::Lone(index);
        }
        Expected::Joined(self.cut(frame))
    }

    #[track_caller]
    fn cut(&mut self, mut frame: Frame) -> Vec<usize> {
        check_super(&frame);
        let gso = frame.meta.gso.expect("neither as it was given, nor a super-packet");
        let mut parts = Vec::new();
        complete_checksum(&mut frame).expect("a partial checksum that can be completed");
        let parsed = header::parse(frame.head()).expect("headers of a super-packet");
        assert!(packet::transport_is_valid(&frame, &parsed), "the super-packet's checksum");
        let count = segment(frame, &mut self.pool, |part| parts.push(part))
            .map_err(|(_, error)| error)
            .expect("a super-packet that can be cut");
        assert_eq!(count, usize::from(gso.segments));
        let mut indices = Vec::new();
        let mut parts = parts.into_iter().peekable();
        while let Some(part) = parts.next() {
            let bytes = part.to_vec();
            self.pool.recycle(part);
            let index = self.given.iter().position(|(given, meta)| {
                let payload = usize::from(parsed.layout.payload);
                match meta.gso {
                    // A super-packet as input stands for several of the segments: its first is enough
                    // here, the payload of the rest is counted below.
                    Some(_) => {
                        given.len() > payload && given[payload..].starts_with(&bytes[payload..])
                    }
                    None => without_padding(given) == bytes,
                }
            });
            let index = index.unwrap_or_else(|| panic!("a segment that was not given: {bytes:x?}"));
            let rest = self.given[index].1.gso.map_or(0, |gso| gso.segments - 1);
            for _ in 0..rest {
                self.pool.recycle(parts.next().expect("all segments of a super-packet"));
            }
            self.given[index].0.clear();
            indices.push(index);
        }
        indices
    }
}

/// What is true of every super-packet (`spec/gro.md` 3.4, 4.4, I7, I9).
#[track_caller]
pub(crate) fn check_super(frame: &Frame) {
    let gso = frame.meta.gso.expect("a super-packet");
    let parsed = header::parse(frame.head()).expect("headers of a super-packet");
    assert_eq!(frame.meta.layout, parsed.layout);
    let start = parsed.layout.transport;
    assert_eq!(frame.meta.checksum, Checksum::Partial { start, offset: 16 });
    assert_eq!(gso.kind, if parsed.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 });
    assert!(gso.trusted && !gso.ecn);
    let payload = frame.len() - usize::from(parsed.layout.payload);
    assert!(gso.segments >= 2 && gso.size >= 8);
    assert_eq!(payload.div_ceil(usize::from(gso.size)), usize::from(gso.segments));
    assert_eq!(parsed.ip_len, frame.len() - usize::from(parsed.layout.network));
    assert!(frame.len() - 14 <= 65535);
    if !parsed.v6 {
        let network = usize::from(parsed.layout.network);
        let ip = &frame.head()[network..network + 20];
        assert_eq!(packet::checksum::sum(ip), 0xffff, "the IPv4 header's checksum");
    }
}

/// A frame without what lies behind its IP packet.
fn without_padding(bytes: &[u8]) -> &[u8] {
    header::parse(bytes).map_or(bytes, |parsed| {
        let end = usize::from(parsed.layout.network) + parsed.ip_len;
        bytes.get(..end).unwrap_or(bytes)
    })
}

impl From<Vec<u8>> for Given {
    /// A frame whose checksum the NIC has verified.
    fn from(bytes: Vec<u8>) -> Self {
        let meta = Meta { checksum: Checksum::Verified { levels: 1 }, ..Meta::default() };
        Self { bytes, meta, cuts: Vec::new() }
    }
}

impl From<TcpFrame<'_>> for Given {
    fn from(frame: TcpFrame<'_>) -> Self {
        Self::from(frame.to_vec())
    }
}

/// Small changes to a frame.
pub(crate) trait Change: Into<Given> {
    /// Nothing is known about its checksum.
    fn unverified(self) -> Given {
        self.with_checksum(Checksum::Unknown)
    }

    fn with_checksum(self, checksum: Checksum) -> Given {
        let mut given = self.into();
        given.meta.checksum = checksum;
        given
    }

    fn with_hash(self, hash: u32) -> Given {
        let mut given = self.into();
        given.meta.hash = std::num::NonZeroU32::new(hash);
        given
    }

    fn with_tag(self, tpid: u16, tci: u16) -> Given {
        let mut given = self.into();
        given.meta.vlan = Some(packet::VlanTag { tpid, tci });
        given
    }

    /// It is a super-packet.
    fn with_gso(self, size: u16, segments: u16, trusted: bool) -> Given {
        let mut given = self.into();
        let v6 = given.bytes[12] == 0x86;
        let kind = if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        given.meta.gso = Some(Gso { kind, size, segments, fixed_id: false, ecn: false, trusted });
        given
    }

    /// Padded behind the IP packet, with bytes that are not zero.
    fn padded_to(self, len: usize) -> Given {
        let mut given = self.into();
        assert!(given.bytes.len() < len);
        given.bytes.resize(len, 0xa5);
        given
    }

    /// Some bytes changed, and the checksums with them.
    fn edited(self, edit: impl FnOnce(&mut [u8])) -> Given {
        let mut given = self.spoiled(edit);
        packet::build::fix_checksums(&mut given.bytes);
        given
    }

    /// Some bytes changed, but not the checksums.
    fn spoiled(self, edit: impl FnOnce(&mut [u8])) -> Given {
        let mut given = self.into();
        edit(&mut given.bytes);
        given
    }

    fn cut_at(self, cuts: &[usize]) -> Given {
        let mut given = self.into();
        given.cuts = cuts.to_vec();
        given
    }
}

impl<T: Into<Given>> Change for T {}

/// A TCP sender: sequence numbers and ids go on from packet to packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    /// What is the same in all packets, and the next sequence number and id.
    pub(crate) base: TcpFrame<'static>,
}

impl Stream {
    pub(crate) fn v4() -> Self {
        Self { base: TcpFrame::v4() }
    }

    pub(crate) fn v6() -> Self {
        Self { base: TcpFrame::v6() }
    }

    /// The next packet, with so many bytes of payload.
    pub(crate) fn next(&mut self, len: usize) -> TcpFrame<'static> {
        let mut frame = self.base;
        // The payload depends on the place in the stream, so that no two segments are equal.
        let start = frame.seq as usize % 251;
        frame.payload = &PATTERN[start..start + len];
        self.base.seq = self.base.seq.wrapping_add(u32::try_from(len).expect("a packet"));
        if let Ip::V4 { id, .. } = &mut self.base.ip {
            *id = id.wrapping_add(1);
        }
        frame
    }

    /// The next packets.
    pub(crate) fn take<const N: usize>(&mut self, lens: [usize; N]) -> [TcpFrame<'static>; N] {
        lens.map(|len| self.next(len))
    }
}

/// Sets the id of an IPv4 frame.
pub(crate) fn with_id(mut frame: TcpFrame<'static>, id: u16) -> TcpFrame<'static> {
    frame.ip.set_id(id);
    frame
}

/// Adds flags to a frame.
pub(crate) fn with_flags(mut frame: TcpFrame<'static>, flags: u16) -> TcpFrame<'static> {
    frame.flags |= flags;
    frame
}

pub(crate) const FIN: u16 = 0x01;
pub(crate) const SYN: u16 = 0x02;
pub(crate) const RST: u16 = 0x04;
pub(crate) const PSH: u16 = 0x08;
pub(crate) const URG: u16 = 0x20;
pub(crate) const ECE: u16 = 0x40;
pub(crate) const CWR: u16 = 0x80;

static PATTERN: [u8; 16384] = {
    let mut bytes = [0; 16384];
    let mut at = 0;
    while at < bytes.len() {
        #[expect(clippy::cast_possible_truncation, reason = "below 253")]
        let byte = ((at * at / 7 + at * 31 + 7) % 253) as u8;
        bytes[at] = byte;
        at += 1;
    }
    bytes
};

//! The GRO engine with arbitrary frames and times.

use std::cell::Cell;
use std::time::Duration;

use gro::{Accept, Completed, Config, Engine, Instant, NormalBatch, Sink};
use packet::build::TcpFrame;
use packet::{Burst, Checksum, Frame, Pool};

use crate::input::Input;

const BUFFERS: usize = 256;
const BUFFER: usize = 2048;

/// Keeps what is delivered.
#[derive(Default)]
struct Keep(Vec<Frame>);

impl Sink for Keep {
    fn deliver(&mut self, frames: &mut Vec<Frame>, _: &mut Pool) {
        self.0.append(frames);
    }
}

/// Input: a byte of switches, then frames (a byte of metadata and time, two of length, the bytes).
///
/// Every frame that goes in comes out, alone or in a super-packet, and every buffer comes back.
pub(crate) fn accounts(data: &[u8]) {
    let mut input = Input(data);
    let switches = input.u8();
    let accept = Accept { tcp4: switches & 1 != 0, tcp6: switches & 2 != 0, ..Accept::default() };
    let (mut sent, mut now) = (0, Instant::default());
    let mut rig = Rig::new(accept);
    while !input.is_empty() && sent < BUFFERS / 2 {
        let meta = input.u8();
        let len = usize::from(input.u16()) % BUFFER;
        let bytes = input.bytes(len);
        if let Some(mut frame) = Frame::copied_from(bytes, &mut rig.pool) {
            frame.meta.checksum = match meta & 3 {
                0 => Checksum::Unknown,
                1 => Checksum::Verified { levels: 1 },
                2 => Checksum::Verified { levels: 2 },
                _ => Checksum::Sum(u16::from(meta) << 8),
            };
            rig.burst.push(frame);
            sent += 1;
        }
        if meta & 4 != 0 || rig.burst.room() == 0 {
            now = now.after(Duration::from_micros(u64::from(meta >> 3)));
            rig.receive(now);
        }
    }
    rig.receive(now);
    let frames = rig.finish();
    let stands_for = |frame: &Frame| frame.meta.gso.map_or(1, |gso| usize::from(gso.segments));
    assert_eq!(frames.iter().map(stands_for).sum::<usize>(), sent, "no frame is lost or doubled");
    rig.close(frames);
}

/// Input: per frame three bytes: flow and flags, payload length, what is odd about it. Frames are proper
/// TCP segments, in order but for the odd ones.
///
/// Cutting what comes out gives the bytes that went in, per flow in the order in which they went in.
pub(crate) fn round_trip(data: &[u8]) {
    const FLOWS: usize = 4;
    let mut input = Input(data);
    let mut rig = Rig::new(Accept { tcp4: true, tcp6: true, ..Accept::default() });
    let mut next = [1000_u32; FLOWS];
    let mut sent: [Vec<Vec<u8>>; FLOWS] = Default::default();
    let payload = [0x5a; 256];
    let (mut count, mut id) = (0_u16, [0_u16; FLOWS]);
    while !input.is_empty() && count < 100 {
        let [kind, len, odd] = input.array();
        let flow = usize::from(kind & 3);
        let mut tcp = if kind & 4 == 0 { TcpFrame::v4() } else { TcpFrame::v6() };
        tcp.ports = (1000 + u16::from(kind & 7), 2000);
        tcp.payload = &payload[..usize::from(len)];
        tcp.seq = next[flow];
        if odd & 0x80 != 0 {
            tcp.seq = tcp.seq.wrapping_add(u32::from(odd & 0x7f));
        }
        tcp.ip.set_id(id[flow]);
        id[flow] = id[flow].wrapping_add(u16::from(odd & 0x40 == 0));
        next[flow] = next[flow].wrapping_add(u32::from(len));
        let bytes = tcp.to_vec();
        // Both IP versions of a number are flows of their own here.
        if let Some(frame) = Frame::copied_from(&bytes, &mut rig.pool) {
            rig.burst.push(frame);
            sent[flow].push(bytes);
        }
        count += 1;
        if kind & 0x80 != 0 || rig.burst.room() == 0 {
            rig.receive(Instant::default());
        }
    }
    rig.receive(Instant::default());
    let mut came: [Vec<Vec<u8>>; FLOWS] = Default::default();
    for frame in rig.finish() {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        if frame.meta.gso.is_some() {
            let mut cut = Vec::new();
            let outcome = packet::segment(frame, &mut rig.pool, |part| cut.push(part));
            assert!(outcome.is_ok(), "what was merged can be cut");
            for part in cut {
                parts.push(part.to_vec());
                rig.pool.recycle(part);
            }
        } else {
            parts.push(frame.to_vec());
            rig.pool.recycle(frame);
        }
        for part in parts {
            let parsed = packet::header::parse(&part);
            let at = parsed.map_or(0, |parsed| usize::from(parsed.layout.transport));
            let port = u16::from_be_bytes([part[at], part[at + 1]]);
            came[usize::from((port - 1000) & 3)].push(part);
        }
    }
    rig.close(Vec::new());
    for flow in 0..FLOWS {
        // IPv4 and IPv6 of one number share a list, but are merged apart: compare each by itself.
        for version in [0x45, 0x60] {
            let of = |frames: &[Vec<u8>]| {
                let frames = frames.iter().filter(|frame| frame[14] == version);
                frames.cloned().collect::<Vec<_>>()
            };
            assert_eq!(of(&came[flow]), of(&sent[flow]), "flow {flow}, {version:#x}");
        }
    }
}

thread_local! {
    /// Packet memory lives as long as the process: used again by the next run.
    static POOL: Cell<Option<Pool>> = const { Cell::new(None) };
}

struct Rig {
    engine: Engine,
    batch: NormalBatch,
    pool: Pool,
    burst: Burst,
    sink: Keep,
}

impl Rig {
    fn new(accept: Accept) -> Self {
        let config = Config { flush_timeout: Duration::from_micros(20), ..Config::default() };
        let mut engine = Engine::new(config);
        engine.set_accept(accept);
        Self {
            engine,
            batch: NormalBatch::new(8),
            pool: POOL.take().unwrap_or_else(|| Pool::new(BUFFERS, BUFFER)),
            burst: Burst::new(16),
            sink: Keep::default(),
        }
    }

    fn receive(&mut self, now: Instant) {
        let Self { engine, batch, pool, burst, sink } = self;
        engine.receive(now, burst, batch, sink, pool);
        engine.end_of_poll(now, batch, sink, pool);
    }

    /// Everything that was delivered, and what was still held.
    fn finish(&mut self) -> Vec<Frame> {
        let Self { engine, batch, pool, sink, .. } = self;
        engine.flush_all(Completed::FeatureChange, batch, sink, pool);
        std::mem::take(&mut sink.0)
    }

    fn close(mut self, frames: Vec<Frame>) {
        frames.into_iter().for_each(|frame| self.pool.recycle(frame));
        assert_eq!(self.pool.available(), self.pool.total(), "every buffer comes back");
        POOL.set(Some(self.pool));
    }
}

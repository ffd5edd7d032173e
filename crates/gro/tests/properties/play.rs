//! Plays steps to an engine, and finds out which inputs each frame that comes out stands for.

use std::cell::RefCell;
use std::time::Duration;

use gro::{Accept, Completed, Config, Counters, Engine, Instant, NormalBatch, Sink};
use packet::{Burst, Checksum, Frame, Gso, Layout, Meta, Pool, header, segment};

use crate::traffic::{Input, Step};

/// The engine's settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) enabled: bool,
    pub(crate) kernel: bool,
    pub(crate) trim_padding: bool,
    pub(crate) max_size: u32,
    pub(crate) max_pieces: u16,
    pub(crate) max_flows: usize,
    pub(crate) batch: usize,
    pub(crate) flush_timeout: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            enabled: true,
            kernel: true,
            trim_padding: true,
            max_size: 65535,
            max_pieces: u16::MAX,
            max_flows: 64,
            batch: 8,
            flush_timeout: Duration::ZERO,
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Everything that went in, with its time.
    pub(crate) inputs: Vec<Input>,
    /// Everything that came out, in order.
    pub(crate) units: Vec<Unit>,
    /// Ends of polls.
    pub(crate) polls: Vec<Instant>,
    pub(crate) counters: Counters,
    pub(crate) lost_buffers: usize,
}

/// A frame that came out.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) bytes: Vec<u8>,
    pub(crate) gso: Option<Gso>,
    pub(crate) layout: Layout,
    pub(crate) checksum: Checksum,
    pub(crate) pieces: usize,
    /// When it came out.
    pub(crate) at: Instant,
    /// The inputs that it stands for.
    pub(crate) inputs: Vec<usize>,
    /// It, cut again; empty if it is no super-packet.
    pub(crate) segments: Vec<Vec<u8>>,
}

impl Unit {
    /// What the guest sees of it.
    pub(crate) fn content(&self) -> (Vec<u8>, Option<Gso>) {
        (self.bytes.clone(), self.gso)
    }
}

#[derive(Debug, Default)]
struct Recorder {
    frames: Vec<(Instant, Frame)>,
    now: Instant,
}

impl Sink for Recorder {
    fn deliver(&mut self, frames: &mut Vec<Frame>, _: &mut Pool) {
        assert!(!frames.is_empty(), "a delivery of nothing");
        self.frames.extend(frames.drain(..).map(|frame| (self.now, frame)));
    }
}

thread_local! {
    /// A pool's memory is for the life of the process: all cases of a thread share one.
    static POOL: RefCell<Pool> = RefCell::new(Pool::new(512, 2048));
}

/// Lends the pool.
pub(crate) fn with_pool<R>(work: impl FnOnce(&mut Pool) -> R) -> R {
    POOL.with_borrow_mut(work)
}

/// Plays the steps; at the end, everything is flushed.
pub(crate) fn play(steps: &[Step], setup: &Setup) -> Outcome {
    with_pool(|pool| play_with(steps, setup, pool))
}

fn play_with(steps: &[Step], setup: &Setup, pool: &mut Pool) -> Outcome {
    let available = pool.available();
    let profile = if setup.kernel { Config::kernel_profile() } else { Config::default() };
    let mut engine = Engine::new(Config {
        enabled: setup.enabled,
        flush_timeout: setup.flush_timeout,
        max_flows: setup.max_flows,
        trim_padding: setup.trim_padding,
        ..profile
    });
    engine.set_accept(Accept {
        tcp4: true,
        tcp6: true,
        max_size: setup.max_size,
        max_pieces: setup.max_pieces,
    });
    let mut batch = NormalBatch::new(setup.batch);
    let mut sink = Recorder::default();
    let mut burst = Burst::new(1);
    let (mut inputs, mut polls) = (Vec::new(), Vec::new());
    for step in steps {
        let now = sink.now;
        match step {
            Step::Give(input) => {
                burst.push(frame(input, pool));
                inputs.push(Input { at: now, ..input.clone() });
                engine.receive(now, &mut burst, &mut batch, &mut sink, pool);
            }
            Step::EndOfPoll => {
                engine.end_of_poll(now, &mut batch, &mut sink, pool);
                assert!(batch.is_empty());
                assert!(engine.deadline().is_none_or(|deadline| deadline > now));
                polls.push(now);
            }
            Step::FlushAll => {
                engine.flush_all(Completed::Reset, &mut batch, &mut sink, pool);
                assert_eq!((engine.held(), batch.len(), engine.deadline()), (0, 0, None));
            }
            Step::Wait(time) => sink.now = now.after(*time),
        }
    }
    engine.flush_all(Completed::Shutdown, &mut batch, &mut sink, pool);
    let mut left: Vec<_> = inputs.iter().map(Some).collect();
    let frames = std::mem::take(&mut sink.frames);
    let units = frames.into_iter().map(|(at, frame)| unit(at, frame, &mut left, pool)).collect();
    let lost_buffers = available - pool.available();
    Outcome { inputs, units, polls, counters: engine.counters().clone(), lost_buffers }
}

fn frame(input: &Input, pool: &mut Pool) -> Frame {
    let (first, second) = input.bytes.split_at(input.cut.unwrap_or(input.bytes.len()));
    let mut frame = Frame::copied_from(first, pool).expect("a buffer");
    if input.cut.is_some() {
        let second = Frame::copied_from(second, pool).expect("a buffer");
        frame.push(second, 0, pool);
    }
    frame.meta = meta(input);
    frame
}

fn meta(input: &Input) -> Meta {
    Meta {
        checksum: input.checksum,
        hash: input.hash,
        vlan: input.vlan,
        gso: input.gso,
        ..Meta::default()
    }
}

/// Recognises a frame. Each input is found once, so that of equal ones the first comes first.
fn unit(at: Instant, frame: Frame, left: &mut [Option<&Input>], pool: &mut Pool) -> Unit {
    let bytes = frame.to_vec();
    let Meta { gso, layout, checksum, .. } = frame.meta;
    let pieces = frame.piece_count();
    let untouched = left.iter().position(|input| {
        input.is_some_and(|input| {
            // No more than a checksum that was verified is said of it.
            let known = Meta { checksum, ..meta(input) };
            let told = checksum == input.checksum || checksum == Checksum::Verified { levels: 1 };
            input.bytes == bytes && frame.meta == known && told
        })
    });
    let (mut inputs, mut segments) = (Vec::new(), Vec::new());
    if let Some(index) = untouched {
        inputs.push(index);
        pool.recycle(frame);
    } else {
        let vlan = frame.meta.vlan;
        let mut parts = Vec::new();
        segment(frame, pool, |part| parts.push(part))
            .map_err(|(_, error)| error)
            .expect("neither an input as it was, nor a super-packet");
        for part in parts {
            let bytes = part.to_vec();
            pool.recycle(part);
            let wanted = comparable(&bytes);
            let index = left.iter().position(|input| {
                input.is_some_and(|input| comparable(&input.bytes) == wanted && input.vlan == vlan)
            });
            inputs.push(index.expect("a segment that did not come in"));
            segments.push(bytes);
            left[inputs[inputs.len() - 1]] = None;
        }
    }
    for index in &inputs {
        left[*index] = None;
    }
    Unit { bytes, gso, layout, checksum, pieces, at, inputs, segments }
}

/// A packet without what may differ after it was merged and cut again (`spec/gro.md` 6.3): padding, and
/// an urgent pointer without URG, with the checksum over it.
fn comparable(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Ok(parsed) = header::parse(&bytes) {
        let end = usize::from(parsed.layout.network) + parsed.ip_len;
        bytes.truncate(end.max(usize::from(parsed.layout.payload)));
        let transport = usize::from(parsed.layout.transport);
        if parsed.tcp && bytes[transport + 13] & 0x20 == 0 {
            bytes[transport + 16..transport + 20].fill(0);
        }
    }
    bytes
}

//! The normal batch: everything that leaves GRO, merged or not, in one queue (`spec/gro.md` 1.4).
//!
//! One queue keeps the order between a completed flow and what passes behind it. It is delivered when
//! it stands for as many packets as the threshold says, and at the end of each poll.

use packet::{Frame, Pool};

/// Where batches go.
pub trait Sink {
    /// Takes all frames out, oldest first. One call is one batch.
    fn deliver(&mut self, frames: &mut Vec<Frame>, pool: &mut Pool);
}

/// Frames on their way out.
#[derive(Debug)]
pub struct NormalBatch {
    frames: Vec<Frame>,
    /// Packets that they stand for, since the last delivery.
    packets: usize,
    threshold: usize,
    deliveries: u64,
}

impl NormalBatch {
    /// A batch that is delivered when it stands for `threshold` packets (`gro_normal_batch`).
    ///
    /// # Panics
    ///
    /// When the threshold is 0.
    pub fn new(threshold: usize) -> Self {
        assert!(threshold >= 1, "a batch has at least one packet");
        Self { frames: Vec::with_capacity(threshold), packets: 0, threshold, deliveries: 0 }
    }

    /// Adds a frame; delivers if that fills the batch. A super-packet counts for its segments.
    #[inline]
    pub fn push<S: Sink>(&mut self, frame: Frame, sink: &mut S, pool: &mut Pool) {
        self.packets += frame.meta.gso.map_or(1, |gso| usize::from(gso.segments.max(1)));
        self.frames.push(frame);
        if self.packets >= self.threshold {
            self.flush(sink, pool);
        }
    }

    /// Delivers what is there.
    #[inline]
    pub fn flush<S: Sink>(&mut self, sink: &mut S, pool: &mut Pool) {
        if self.frames.is_empty() {
            return;
        }
        self.packets = 0;
        self.deliveries += 1;
        sink.deliver(&mut self.frames, pool);
        debug_assert!(self.frames.is_empty(), "a sink takes all frames");
    }

    /// Frames that wait.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// How often something was delivered.
    pub fn deliveries(&self) -> u64 {
        self.deliveries
    }
}

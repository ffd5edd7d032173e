//! Sends streams, paced by the clock it is told.

use std::time::Duration;

use guest::{Guest, NetHeader};
use packet::{Burst, Frame, Pool};
use traffic::Streams;

use crate::cli::Send;

/// What is sent, and how far it has come.
pub(crate) struct Sender {
    streams: Streams,
    pool: Pool,
    burst: Burst,
    /// Made and not yet taken.
    waiting: Vec<Frame>,
    pps: u64,
    sent: u64,
}

impl Sender {
    pub(crate) fn new(send: &Send) -> Self {
        Self {
            streams: Streams::new(send.stream.clone()),
            pool: Pool::new(BURST, 65_535),
            burst: Burst::new(BURST),
            waiting: Vec::with_capacity(BURST),
            pps: send.pps,
            sent: 0,
        }
    }

    /// Sends what is due after `time`, at most a burst. Returns how many frames were taken.
    pub(crate) fn send(&mut self, guest: &mut Guest, time: Duration) -> usize {
        let due = match self.pps {
            0 => u64::MAX,
            pps => {
                u64::try_from(time.as_nanos() * u128::from(pps) / 1_000_000_000).unwrap_or(u64::MAX)
            }
        };
        let count = usize::try_from(due.saturating_sub(self.sent)).unwrap_or(BURST).min(BURST);
        if count == 0 {
            return 0;
        }
        if self.waiting.is_empty() {
            self.streams.fill(&mut self.burst, &mut self.pool);
            self.waiting.extend(self.burst.drain());
        }
        let frames = self.waiting.iter().take(count);
        let taken = guest.send_all(0, frames.map(|frame| (NetHeader::default(), frame.head())));
        for frame in self.waiting.drain(..taken) {
            self.pool.recycle(frame);
        }
        self.sent += taken as u64;
        taken
    }
}

/// Frames per burst.
const BURST: usize = 32;

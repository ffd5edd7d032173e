//! Keeps a rate: how many frames are due by now.
//!
//! The rate counts from the first question. After a pause (nobody asked for long, no buffers) it does
//! not catch up with more than a tenth of a second's worth of frames.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Pace {
    pps: NonZeroU32,
    /// From when on frames are counted, and how many were sent since.
    origin: Option<(Instant, u64)>,
}

impl Pace {
    pub(super) fn new(pps: NonZeroU32) -> Self {
        Self { pps, origin: None }
    }

    /// How many frames may be sent now. The first is due at once.
    pub(super) fn due(&mut self, now: Instant) -> usize {
        let (start, sent) = *self.origin.get_or_insert((now, 0));
        let elapsed = now.saturating_duration_since(start);
        let due = 1 + self.frames_in(elapsed);
        let backlog = due.saturating_sub(sent);
        let most = 1 + self.frames_in(LONGEST_BACKLOG);
        if backlog > most {
            self.origin = Some((start, due - most));
        }
        usize::try_from(backlog.min(most)).unwrap_or(usize::MAX)
    }

    /// Counts what was sent.
    pub(super) fn sent(&mut self, count: usize) {
        if let Some((_, sent)) = &mut self.origin {
            *sent += count as u64;
        }
    }

    fn frames_in(&self, time: Duration) -> u64 {
        let frames = time.as_nanos() * u128::from(self.pps.get()) / 1_000_000_000;
        u64::try_from(frames).unwrap_or(u64::MAX)
    }
}

const LONGEST_BACKLOG: Duration = Duration::from_millis(100);

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an instant has no other beginning")]
mod tests {
    use super::*;

    #[test]
    fn frames_fall_due_at_the_rate() {
        let start = Instant::now();
        let mut pace = Pace::new(NonZeroU32::new(1000).unwrap());
        assert_eq!(pace.due(start), 1);
        pace.sent(1);
        assert_eq!(pace.due(start + Duration::from_micros(999)), 0);
        assert_eq!(pace.due(start + Duration::from_millis(1)), 1);
        assert_eq!(pace.due(start + Duration::from_millis(5)), 5);
        pace.sent(3);
        assert_eq!(pace.due(start + Duration::from_millis(5)), 2);
    }

    #[test]
    fn a_pause_is_not_caught_up() {
        let start = Instant::now();
        let mut pace = Pace::new(NonZeroU32::new(1000).unwrap());
        assert_eq!(pace.due(start), 1);
        let later = start + Duration::from_secs(60);
        assert_eq!(pace.due(later), 101);
        pace.sent(101);
        assert_eq!(pace.due(later + Duration::from_millis(2)), 2);
    }
}

//! Time for the control half: waits on the card have a limit, and tests own the clock.

use std::fmt;
use std::time::{Duration, Instant};

/// A clock that can also wait. Control only: nothing on a polling thread reads one.
pub trait Clock: Send + fmt::Debug {
    /// Time since some moment in the past; never goes back.
    fn now(&self) -> Duration;

    /// Waits about that long.
    fn sleep(&self, time: Duration);
}

/// The machine's own clock.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// Starts at 0 now.
    #[expect(clippy::disallowed_methods, reason = "this is the rim where time comes in")]
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

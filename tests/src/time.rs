//! Time limits for waits. Only this module reads the clock.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// A point in time after which waiting is an error.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
}

impl Deadline {
    /// The point `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self { at: now() + limit }
    }

    /// Whether it has passed.
    pub fn passed(self) -> bool {
        now() >= self.at
    }

    /// What is left until then.
    pub fn left(self) -> Duration {
        self.at.saturating_duration_since(now())
    }
}

/// Measures how long something took.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    started: Instant,
}

impl Stopwatch {
    /// Starts measuring.
    pub fn start() -> Self {
        Self { started: now() }
    }

    /// The time since the start.
    pub fn elapsed(self) -> Duration {
        now() - self.started
    }
}

/// Asks `ready` again and again until it answers with a value. Fails with `what` after `limit`.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Deadline::after(limit);
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if deadline.passed() {
            bail!("waited {} s in vain for {what}", limit.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[expect(clippy::disallowed_methods, reason = "end-to-end tests run in real time")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_value() {
        let mut asked = 0;
        let value = wait_for("a value", Duration::from_secs(5), || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn waiting_names_what_did_not_come() {
        let error = wait_for::<()>("a sign", Duration::ZERO, || Ok(None)).unwrap_err();
        assert_eq!(error.to_string(), "waited 0 s in vain for a sign");
    }
}

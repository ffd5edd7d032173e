//! Time, as it comes in from outside.

use std::time::Duration;

/// Nanoseconds since some start that the caller chose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// So many nanoseconds after the start.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds after the start.
    #[inline]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The time that has passed since an earlier instant; nothing when that one is later.
    #[inline]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// So much later; the end of time when that is beyond it.
    #[inline]
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

//! Interrupt moderation: how a time becomes what the card is told (`spec/ef10.md` 5.7).

use crate::device::Generation;
use crate::mcdi::command::{Clocks, TimerMode, TimerProperties};

/// How event timers are set on this function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    /// By command (bug 61265).
    Command {
        /// The longest time, in nanoseconds.
        max_ns: u32,
    },
    /// By the indirect register (bug 35388).
    Indirect(Ticks),
    /// By the queue's own register.
    Register(Ticks),
}

/// A counter in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    /// Nanoseconds per tick, at least 1.
    pub ns: u32,
    /// The largest value.
    pub max: u32,
}

impl Ticks {
    /// A time in ticks: none is none, a part of a tick is one, else rounded down; at most the largest
    /// value.
    pub fn of(self, ns: u32) -> u32 {
        if ns == 0 { 0 } else { (ns / self.ns.max(1)).max(1).min(self.max) }
    }
}

impl Timer {
    /// Picks the way from the workarounds in effect and from what the firmware tells of its timers.
    pub fn from_properties(properties: TimerProperties, by_command: bool, indirect: bool) -> Self {
        let ticks = |ns: u32, max: u32, limit: u32| Ticks { ns: ns.max(1), max: max.min(limit) };
        if by_command {
            Self::Command { max_ns: properties.command_max_ns }
        } else if indirect {
            Self::Indirect(ticks(properties.indirect_ns, properties.indirect_max, INDIRECT_MAX))
        } else {
            Self::Register(ticks(properties.register_ns, properties.register_max, REGISTER_MAX))
        }
    }

    /// The same without the firmware's word: a tick is 1536 cycles of the clock that counts on this
    /// generation.
    pub fn from_clocks(
        clocks: Clocks,
        generation: Generation,
        by_command: bool,
        indirect: bool,
    ) -> Self {
        let mhz = match generation {
            Generation::Huntington => clocks.system_mhz,
            Generation::Medford | Generation::Medford2 => clocks.datapath_mhz,
        };
        let ns = (1_536_000 / mhz.max(1)).max(1);
        if by_command {
            Self::Command { max_ns: ns.saturating_mul(REGISTER_MAX + 1) }
        } else if indirect {
            Self::Indirect(Ticks { ns, max: INDIRECT_MAX })
        } else {
            Self::Register(Ticks { ns, max: REGISTER_MAX })
        }
    }

    /// The mode for a time.
    pub fn mode(ns: u32) -> TimerMode {
        if ns == 0 { TimerMode::Disabled } else { TimerMode::HoldOff }
    }
}

const REGISTER_MAX: u32 = (1 << 14) - 1;
const INDIRECT_MAX: u32 = (1 << 8) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    const PROPERTIES: TimerProperties = TimerProperties {
        register_ns: 1920,
        register_max: 16_383,
        command_max_ns: 1_000_000,
        command_step_ns: 100,
        indirect_ns: 3840,
        indirect_max: 1000,
    };

    #[test]
    fn ticks_are_rounded_down_but_not_to_none() {
        let ticks = Ticks { ns: 1920, max: 16_383 };
        let table =
            [(0, 0), (1, 1), (1919, 1), (1920, 1), (3839, 1), (60_000, 31), (u32::MAX, 16_383)];
        for (ns, expected) in table {
            assert_eq!(ticks.of(ns), expected, "{ns} ns");
        }
        assert_eq!(Ticks { ns: 0, max: 255 }.of(1000), 255, "a card that says 0 is not divided by");
    }

    #[test]
    fn workarounds_pick_the_way() {
        assert_eq!(
            Timer::from_properties(PROPERTIES, true, true),
            Timer::Command { max_ns: 1_000_000 }
        );
        assert_eq!(
            Timer::from_properties(PROPERTIES, false, true),
            Timer::Indirect(Ticks { ns: 3840, max: 255 })
        );
        assert_eq!(
            Timer::from_properties(PROPERTIES, false, false),
            Timer::Register(Ticks { ns: 1920, max: 16_383 })
        );
    }

    #[test]
    fn each_generation_counts_its_own_clock() {
        let clocks = Clocks { system_mhz: 800, datapath_mhz: 400 };
        let tick = |generation| match Timer::from_clocks(clocks, generation, false, false) {
            Timer::Register(ticks) => ticks.ns,
            other => panic!("{other:?}"),
        };
        assert_eq!((tick(Generation::Huntington), tick(Generation::Medford)), (1920, 3840));
        assert_eq!(
            Timer::from_clocks(clocks, Generation::Medford, true, false),
            Timer::Command { max_ns: 3840 * 16_384 }
        );
    }

    #[test]
    fn modes() {
        assert_eq!(Timer::mode(0), TimerMode::Disabled);
        assert_eq!(Timer::mode(1), TimerMode::HoldOff);
    }
}

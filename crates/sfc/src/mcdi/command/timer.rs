//! Event timers (4.6).

use super::{Command, words};
use crate::mcdi::body::{Malformed, Reply, Request};

/// `GET_EVQ_TMR_PROPERTIES`.
#[derive(Debug, Clone, Copy)]
pub struct GetTimerProperties;

/// Units and limits of the three ways to set a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerProperties {
    /// Nanoseconds per tick of the register.
    pub register_ns: u32,
    /// The register's largest value.
    pub register_max: u32,
    /// The longest time by command, in nanoseconds.
    pub command_max_ns: u32,
    /// The command's granularity in nanoseconds.
    pub command_step_ns: u32,
    /// Nanoseconds per tick of the indirect register (bug 35388).
    pub indirect_ns: u32,
    /// The indirect register's largest value.
    pub indirect_max: u32,
}

impl Command for GetTimerProperties {
    const CODE: u16 = 0x122;
    const NAME: &'static str = "GET_EVQ_TMR_PROPERTIES";
    type Reply = TimerProperties;

    fn request(&self) -> Request {
        words([])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<TimerProperties, Malformed> {
        if reply.len() < 36 {
            return Err(Malformed);
        }
        Ok(TimerProperties {
            register_ns: reply.u32(4)?,
            register_max: reply.u32(8)?,
            command_max_ns: reply.u32(16)?,
            command_step_ns: reply.u32(20)?,
            indirect_ns: reply.u32(24)?,
            indirect_max: reply.u32(28)?,
        })
    }
}

/// What a timer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimerMode {
    /// Nothing.
    Disabled,
    /// Keeps consecutive interrupts apart.
    HoldOff,
}

impl TimerMode {
    /// Its code, the same in registers and in the command.
    pub fn code(self) -> u32 {
        match self {
            Self::Disabled => 0,
            Self::HoldOff => 3,
        }
    }
}

/// `SET_EVQ_TMR`: load and reload are the same.
#[derive(Debug, Clone, Copy)]
pub struct SetTimer {
    /// The event queue.
    pub instance: u32,
    /// The time.
    pub ns: u32,
    /// The mode.
    pub mode: TimerMode,
}

impl Command for SetTimer {
    const CODE: u16 = 0x120;
    const NAME: &'static str = "SET_EVQ_TMR";
    /// The time in effect, in nanoseconds.
    type Reply = u32;

    fn request(&self) -> Request {
        words([self.instance, self.ns, self.ns, self.mode.code()])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<u32, Malformed> {
        reply.u32(4)?;
        reply.u32(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_command() {
        let set = SetTimer { instance: 1, ns: 60_000, mode: TimerMode::HoldOff };
        let request = set.request();
        let reply = Reply(request.bytes());
        assert_eq!([0, 4, 8, 12].map(|at| reply.u32(at)), [Ok(1), Ok(60_000), Ok(60_000), Ok(3)]);
        assert_eq!(set.reply(Reply(&[0, 1, 0, 0, 0, 1, 0, 0])), Ok(256));
        assert_eq!(set.reply(Reply(&[0; 4])), Err(Malformed));
    }

    #[test]
    fn properties() {
        let bytes: Vec<u8> = (0u32..9).flat_map(u32::to_le_bytes).collect();
        let properties = GetTimerProperties.reply(Reply(&bytes)).unwrap();
        let TimerProperties { register_ns, register_max, command_max_ns, .. } = properties;
        assert_eq!((register_ns, register_max, command_max_ns), (1, 2, 4));
        assert_eq!((properties.indirect_ns, properties.indirect_max), (6, 7));
        assert_eq!(GetTimerProperties.reply(Reply(&bytes[..32])), Err(Malformed));
    }
}

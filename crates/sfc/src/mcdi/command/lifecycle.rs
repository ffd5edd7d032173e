//! Attach, detach, reset, the controller's own health (4.2).

use super::{Command, silent, words};
use crate::mcdi::body::{Malformed, Reply, Request};

/// `GET_ASSERTS`: reads what the controller stored when it last failed, and clears it.
#[derive(Debug, Clone, Copy)]
pub struct GetAsserts;

/// What the controller stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asserts {
    /// 1 when nothing failed, else what did.
    pub flags: u32,
    /// Where.
    pub program_counter: u32,
}

impl Asserts {
    /// Whether nothing is stored.
    pub fn is_clean(self) -> bool {
        self.flags == 1
    }
}

impl Command for GetAsserts {
    const CODE: u16 = 0x6;
    const NAME: &'static str = "GET_ASSERTS";
    type Reply = Asserts;

    fn request(&self) -> Request {
        words([1])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<Asserts, Malformed> {
        if reply.len() < 140 {
            return Err(Malformed);
        }
        Ok(Asserts { flags: reply.u32(0)?, program_counter: reply.u32(4)? })
    }
}

/// `REBOOT` with AFTER_ASSERTION: takes the controller out of its assertion handler; nothing
/// otherwise.
#[derive(Debug, Clone, Copy)]
pub struct Reboot;

silent!(Reboot, 0x3d, "REBOOT", |self| words([1]));

/// `DRV_ATTACH`: announces the driver (with whatever firmware runs), or takes leave.
#[derive(Debug, Clone, Copy)]
pub struct DrvAttach {
    /// Attached from now on, or not.
    pub attach: bool,
}

impl Command for DrvAttach {
    const CODE: u16 = 0x1c;
    const NAME: &'static str = "DRV_ATTACH";
    /// The function flags, when the firmware tells them.
    type Reply = Option<u32>;

    fn request(&self) -> Request {
        const WANT_V2_LINKCHANGES: u32 = 1 << 4;
        const DONT_CARE: u32 = u32::MAX;
        let state = if self.attach { 1 | WANT_V2_LINKCHANGES } else { 0 };
        words([state, 1, DONT_CARE])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<Option<u32>, Malformed> {
        reply.u32(0)?;
        Ok(reply.u32(4).ok())
    }
}

/// `ENTITY_RESET`: frees all that the function has allocated.
#[derive(Debug, Clone, Copy)]
pub struct EntityReset;

silent!(EntityReset, 0x20, "ENTITY_RESET", |self| words([1]));

/// `LOG_CTRL`: sends the controller's events to event queue 0.
#[derive(Debug, Clone, Copy)]
pub struct LogControl;

silent!(LogControl, 0x7, "LOG_CTRL", |self| words([2, 0]));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        assert_eq!(GetAsserts.request().bytes(), [1, 0, 0, 0]);
        let attach = DrvAttach { attach: true }.request();
        assert_eq!(attach.bytes(), [0x11, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        let detach = DrvAttach { attach: false }.request();
        assert_eq!(detach.bytes()[..8], [0, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(LogControl.request().bytes(), [2, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn replies() {
        let mut asserts = [0; 140];
        asserts[0] = 1;
        assert!(GetAsserts.reply(Reply(&asserts)).unwrap().is_clean());
        assert_eq!(GetAsserts.reply(Reply(&asserts[..136])), Err(Malformed));
        let attach = DrvAttach { attach: true };
        assert_eq!(attach.reply(Reply(&[0, 0, 0, 0])), Ok(None));
        assert_eq!(attach.reply(Reply(&[0, 0, 0, 0, 3, 0, 0, 0])), Ok(Some(3)));
        assert_eq!(attach.reply(Reply(&[])), Err(Malformed));
    }
}

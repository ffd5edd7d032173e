//! The commands that the driver uses, each with its request and its reply (`spec/ef10.md` section 4).
//!
//! A command is a plain struct of what varies; [`Command::request`] lays it out, [`Command::reply`]
//! reads the answer. Nothing here talks to a card: see [`Mcdi`](super::Mcdi).

mod discovery;
mod filter;
mod lifecycle;
mod port;
mod queue;
mod rss;
mod timer;
mod vi;

pub use discovery::{
    Capabilities, Clocks, Flags1, Flags2, FunctionInfo, GetCapabilities, GetClock, GetFunctionInfo,
    GetMacAddresses, GetPortAssignment, GetRxdpConfig, GetVersion, GetWorkarounds, Version,
    VportGetMacAddresses, Workaround, Workarounds,
};
pub use filter::{GetParserInfo, InsertFilter, RemoveFilter};
pub use lifecycle::{Asserts, DrvAttach, EntityReset, GetAsserts, LogControl, Reboot};
pub use port::{
    FlowControl, GetLink, GetPhyConfig, Link, MacStatistics, PhyConfig, SetLink, SetMac,
    StatisticsMode,
};
pub use queue::{DriverEvent, FiniEvq, FiniRxq, FiniTxq, InitEvq, InitRxq, InitTxq, Pages};
pub use rss::{RssAlloc, RssFree, RssSetFlags, RssSetKey, RssSetTable};
pub use timer::{GetTimerProperties, SetTimer, TimerMode, TimerProperties};
pub use vi::{AllocVis, FreeVis, VadaptorAlloc, VadaptorFree, Vis};

use super::body::{Malformed, Reply, Request};

/// One command.
pub trait Command {
    /// Its number.
    const CODE: u16;
    /// Its name in the reference, for messages.
    const NAME: &'static str;
    /// What it answers.
    type Reply;

    /// The payload of the request.
    fn request(&self) -> Request;

    /// Reads the payload of the reply.
    ///
    /// # Errors
    ///
    /// [`Malformed`] when the reply lacks what it has to hold.
    fn reply(&self, reply: Reply<'_>) -> Result<Self::Reply, Malformed>;
}

/// The port that the function was given: what every command of this driver names as its port.
pub const PORT_ASSIGNED: u32 = 0x0100_0000;

/// A command whose reply is empty: its number, its name, and its request.
macro_rules! silent {
    ($type:ty, $code:literal, $name:literal, |$self:ident| $request:expr) => {
        impl crate::mcdi::command::Command for $type {
            const CODE: u16 = $code;
            const NAME: &'static str = $name;
            type Reply = ();

            fn request(&$self) -> crate::mcdi::body::Request {
                $request
            }

            fn reply(
                &self,
                _: crate::mcdi::body::Reply<'_>,
            ) -> Result<(), crate::mcdi::body::Malformed> {
                Ok(())
            }
        }
    };
}
use silent;

/// A request of one or more 32-bit fields.
fn words<const N: usize>(fields: [u32; N]) -> Request {
    let mut request = Request::zeroed(4 * N);
    for (at, field) in fields.into_iter().enumerate() {
        request.u32(4 * at, field);
    }
    request
}

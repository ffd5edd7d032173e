//! Generic Receive Offload: merging the packets of a stream as they are received.
//!
//! [`Engine`] takes bursts of frames, holds the first packet of each flow, appends the payload of those
//! that follow, and completes a flow when something says that it ends: a rule, a limit, the end of the
//! poll or its age. What leaves it, merged or not, goes through the [`NormalBatch`] to a [`Sink`]. The
//! rules are those of the Linux kernel, in `spec/gro.md`, whose numbers (C7, M2, B4, …) the comments use.
//!
//! Pure: no I/O, no clock (time is an argument), no allocation per packet. The one principle: cutting a
//! super-packet again has to give the packets that came in.
//!
//! ```text
//!  burst ─▶ parse ─▶ look up ─▶ compare ─┬─▶ append to the held frame
//!             │         │          │     └─▶ complete the held frame, hold or pass the new one
//!             └─ pass ◀─┴─ hold    └──────────────────▶ normal batch ─▶ sink
//! ```

#![forbid(unsafe_code)]

mod batch;
mod checks;
mod complete;
mod config;
mod counters;
mod engine;
mod flow;
mod key;
mod parse;
mod sum;
mod table;
mod time;
mod verify;

pub use batch::{NormalBatch, Sink};
pub use config::{Accept, Config};
pub use counters::{Completed, Counters, Passed};
pub use engine::Engine;
pub use time::Instant;

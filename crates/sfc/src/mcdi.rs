//! Talking to the management controller (`spec/ef10.md` sections 3 and 4).
//!
//! One request at a time: it is written into a DMA buffer, the doorbell is rung, the response comes in
//! the same buffer. [`command`] has the commands; `header` and `body` the layout.

mod body;
mod code;
pub mod command;
pub mod header;
mod transport;

pub use body::{Malformed, Reply, Request};
pub use code::Code;
pub use transport::Mcdi;

//! A driver for EF10 network functions (Solarflare SFN7xxx, SFN8xxx, X2).

#![forbid(unsafe_code)]

pub mod device;
pub mod event;
pub mod evq;
pub mod filter;
pub mod mcdi;
pub mod moderation;
pub mod nic;
pub mod registers;
pub mod rss;
pub mod rx;
pub mod tx;

mod clock;
mod error;

#[cfg(test)]
mod card;

pub use clock::{Clock, SystemClock};
pub use error::Error;
pub use nic::Nic;

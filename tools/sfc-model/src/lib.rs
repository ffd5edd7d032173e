//! A software model of one network function of a Solarflare EF10 card, with a checking eye on its driver.
//!
//! It was written from the data sheet alone, never from a driver: section numbers in comments are those
//! of that reference. What the reference marks as unverified is said where it matters. A driver that
//! breaks a rule is not stopped but counted: [`Card::violations`], by [`Rule`].
//!
//! [`Card`] is the card without threads, clocks or sockets: registers are read and written, time is told,
//! frames go in and out. A [`device`] lets it run, for a driver in another process and with a
//! network on its [`wire`].

mod bits;
mod card;
mod checksum;
pub mod config;
pub mod device;
mod doorbells;
mod event;
mod evq;
pub mod fault;
mod filter;
mod host;
mod mcdi;
mod memory;
mod parse;
mod pci_config;
mod queue;
mod ring;
mod rx;
mod stats;
#[cfg(test)]
mod tests;
mod toeplitz;
mod transport;
mod tx;
mod violation;
pub mod wire;

pub use card::Card;
pub use host::{Interrupts, NoInterrupts};
pub use violation::{Rule, Violations};

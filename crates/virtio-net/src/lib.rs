//! The device side of a virtio-net device: feature bits, the packet header, and the two queues.
//!
//! [`RxFill`] takes frames and fills the guest's receive ring; [`TxDrain`] empties the guest's transmit
//! ring into frames. Both own their [`ring::SplitRing`] and are made anew whenever the guest sets the
//! ring up. Section numbers in this crate are those of the virtio specification, version 1.3.
//!
//! ```text
//!   frames ──▶ RxFill ──header, bytes──▶ guest buffers ──used ring──▶ guest      (receive)
//!   frames ◀── TxDrain ◀─checked header, copied bytes── avail ring ◀── guest     (transmit)
//! ```
//!
//! Nothing that the guest writes is trusted: a chain that breaks the rules is given back unused and
//! counted, a ring that breaks them stops, and neither can make the device touch memory outside the
//! guest's own.

pub mod counters;
pub mod feature;
pub mod header;
#[expect(unsafe_code, reason = "guest memory is reached through checked, cached pointers")]
pub mod ring;

mod rx_fill;
mod tx_drain;

#[cfg(test)]
mod driver;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod stream;

pub use counters::{RxDrop, RxFillCounters, TxDrainCounters, TxDrop};
pub use feature::{Features, GuestOffloads};
pub use rx_fill::{Delivered, Room, RxFill};
pub use tx_drain::{TxDrain, TxOffloads};

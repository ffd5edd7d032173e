//! The parts of the `vhost-user-gro` program, as a library for it and for benchmarks.
//!
//! [`worker`] is the polling thread, [`daemon`] the vhost-user side, [`shared`] where the two meet;
//! [`serve`] puts them together for a VM and [`demo`] for a look without one.

pub mod announce;
pub mod cli;
pub mod daemon;
pub mod demo;
pub mod failure;
pub mod inherited;
pub mod memory;
pub mod nic;
pub mod offer;
pub mod running;
pub mod serve;
pub mod shared;
pub mod stats;
pub mod worker;

mod tending;

pub use failure::{Failure, chain};

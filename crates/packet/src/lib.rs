//! Frames and what can be done to their bytes: header views and builders, checksums, segmentation.
//!
//! Pure: no I/O, no clock, no descriptor. A [`Frame`] owns the [`Buffer`]s its bytes live in; buffers
//! come from a [`Pool`] and go back to it, and a [`Burst`] carries frames from one stage to the next.

#![forbid(unsafe_code)]

pub mod checksum;

mod buffer;
mod burst;
mod frame;

pub use buffer::{Buffer, Pool};
pub use burst::Burst;
pub use frame::{Checksum, Frame, Gso, GsoKind, Layout, Meta, Piece, VlanTag};

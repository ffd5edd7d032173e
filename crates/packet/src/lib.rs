//! Frames and what can be done to their bytes: header views and builders, checksums, segmentation.
//!
//! Pure: no I/O, no clock, no descriptor. A [`Frame`] owns the [`Buffer`]s its bytes live in; buffers
//! come from a [`Pool`] and go back to it, and a [`Burst`] carries frames from one stage to the next.

pub mod build;
pub mod checksum;
pub mod flow;
pub mod header;

mod buffer;
mod burst;
mod complete;
mod frame;
mod segment;

pub use buffer::{Buffer, Pool, Spare};
pub use burst::Burst;
pub use complete::{CompleteError, complete_checksum, transport_is_valid};
pub use frame::{Checksum, Frame, Gso, GsoKind, Layout, Meta, Piece, VlanTag};
pub use segment::{SegmentError, segment};

//! Networks for the card's port.

#[cfg(feature = "wires")]
mod capture;
#[cfg(feature = "wires")]
mod kind;
#[cfg(feature = "wires")]
mod packet_socket;
#[cfg(feature = "wires")]
mod peer;
#[cfg(feature = "wires")]
mod tap;

use std::io;
use std::time::Duration;

#[cfg(feature = "wires")]
pub use kind::{Kind, Malformed};

/// What is plugged into the port. Frames have no check sequence.
pub trait Wire: Send {
    /// Takes a frame that came in; tells its length, or that there is none. Longer frames are cut.
    ///
    /// # Errors
    ///
    /// When the network is gone.
    fn receive(&mut self, now: Duration, frame: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends a frame. One that the network does not take now is lost, as on a wire.
    ///
    /// # Errors
    ///
    /// When the network is gone.
    fn send(&mut self, now: Duration, frame: &[u8]) -> io::Result<()>;

    /// Whether frames wait until somebody wants them: those of a capture do.
    fn waits(&self) -> bool {
        false
    }
}

//! A tap interface: the host's network stack is the other end of the cable.

use std::io;
use std::time::Duration;

use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::Wire;
use super::kind::none_if_would_block;

/// A tap.
pub(super) struct Tap(SyncDevice);

impl Tap {
    pub(super) fn open(name: &str) -> io::Result<Self> {
        // No offloads: the host hands over frames as they would be on a wire.
        let builder =
            DeviceBuilder::new().name(name).layer(Layer::L2).offload(false).inherit_enable_state();
        let tap = builder.build_sync()?;
        tap.set_nonblocking(true)?;
        Ok(Self(tap))
    }
}

impl Wire for Tap {
    fn receive(&mut self, _now: Duration, frame: &mut [u8]) -> io::Result<Option<usize>> {
        none_if_would_block(self.0.recv(frame))
    }

    fn send(&mut self, _now: Duration, frame: &[u8]) -> io::Result<()> {
        match self.0.send(frame) {
            // An interface that is down takes nothing.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                Ok(())
            }
            result => none_if_would_block(result).map(|_| ()),
        }
    }
}

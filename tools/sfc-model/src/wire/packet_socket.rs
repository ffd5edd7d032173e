//! A packet socket on an interface of the host.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom, send,
    socket,
};

use super::Wire;
use super::kind::none_if_would_block;

/// Frames that the host itself sends (packet(7)).
const OUTGOING: u8 = 4;

/// A socket that is bound to an interface.
pub(super) struct PacketSocket(OwnedFd);

impl PacketSocket {
    pub(super) fn open(name: &str) -> io::Result<Self> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no interface '{name}'"));
        let address = getifaddrs()?
            .filter(|interface| interface.interface_name == name)
            .find_map(|interface| interface.address?.as_link_addr().copied())
            .ok_or_else(missing)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
        bind(fd.as_raw_fd(), &address)?;
        Ok(Self(fd))
    }
}

impl Wire for PacketSocket {
    fn receive(&mut self, _now: Duration, frame: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let got = recvfrom::<LinkAddr>(self.0.as_raw_fd(), frame).map_err(io::Error::from);
            match none_if_would_block(got)? {
                None => return Ok(None),
                Some((_, Some(from))) if from.pkttype() == OUTGOING => {}
                Some((len, _)) => return Ok(Some(len)),
            }
        }
    }

    fn send(&mut self, _now: Duration, frame: &[u8]) -> io::Result<()> {
        match send(self.0.as_raw_fd(), frame, MsgFlags::empty()) {
            // No room, too long for it, or down: lost, as on a wire.
            Ok(_) => Ok(()),
            Err(
                nix::Error::EAGAIN
                | nix::Error::ENOBUFS
                | nix::Error::EMSGSIZE
                | nix::Error::ENETDOWN,
            ) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

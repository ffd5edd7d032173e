//! What can be asked of a network interface, and how a port words what went wrong with one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::sys::{self, InterfaceRequest};
use crate::{Error, Link};

/// A network interface, asked through a socket of its network namespace.
#[derive(Debug)]
pub(crate) struct Interface {
    name: String,
    index: i32,
    socket: OwnedFd,
}

impl Interface {
    /// Looks the interface up in the network namespace of the calling thread.
    pub(crate) fn find(name: &str) -> io::Result<Self> {
        let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
        let mut request = InterfaceRequest::new(name);
        request.ask(socket.as_fd(), libc::SIOCGIFINDEX)?;
        Ok(Self { name: name.to_owned(), index: request.int(), socket })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn index(&self) -> i32 {
        self.index
    }

    /// The Ethernet address; `None` for interfaces of another kind.
    pub(crate) fn mac(&self) -> Option<[u8; 6]> {
        let request = self.ask(libc::SIOCGIFHWADDR).ok()?;
        let [_, _, mac @ ..] = request.data;
        let ethernet = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&request.short());
        ethernet.then(|| [mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]])
    }

    pub(crate) fn mtu(&self) -> Option<u16> {
        u16::try_from(self.ask(libc::SIOCGIFMTU).ok()?.int()).ok()
    }

    pub(crate) fn link(&self) -> Link {
        let flags = self.ask(libc::SIOCGIFFLAGS).map_or(0, |request| request.short());
        let need = UP | RUNNING;
        Link { up: flags & need == need, speed_mbps: None }
    }

    /// Whether the interface that was found is still there, under whatever name.
    pub(crate) fn exists(&self) -> bool {
        let mut request = InterfaceRequest::new("");
        request.data[..4].copy_from_slice(&self.index.to_ne_bytes());
        match request.ask(self.socket.as_fd(), libc::SIOCGIFNAME) {
            Ok(()) => true,
            // Anything else says nothing about the interface.
            Err(error) => error.raw_os_error() != Some(libc::ENODEV),
        }
    }

    fn ask(&self, code: libc::c_ulong) -> io::Result<InterfaceRequest> {
        let mut request = InterfaceRequest::new(&self.name);
        request.ask(self.socket.as_fd(), code)?;
        Ok(request)
    }
}

/// The error of a step of setting up a port on an interface.
pub(crate) fn set_up_error(
    port: &str,
    doing: &'static str,
    hint: String,
    source: io::Error,
) -> Error {
    Error::SetUp { port: port.to_owned(), doing, hint, source }
}

/// What to say when the interface is not there.
pub(crate) fn missing(name: &str) -> String {
    format!("interface '{name}' does not exist: `ip link` lists what there is")
}

#[expect(clippy::cast_possible_truncation, reason = "low flag bits")]
const UP: u16 = libc::IFF_UP as u16;
#[expect(clippy::cast_possible_truncation, reason = "low flag bits")]
const RUNNING: u16 = libc::IFF_RUNNING as u16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_and_asked() {
        let lo = Interface::find("lo").unwrap();
        assert!(lo.index() > 0 && lo.exists());
        assert_eq!((lo.name(), lo.mac()), ("lo", Some([0; 6])));
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        let error = Interface::find("none-such").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        let gone = Interface { index: i32::MAX, ..Interface::find("lo").unwrap() };
        assert!(!gone.exists());
    }
}

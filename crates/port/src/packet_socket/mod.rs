//! A packet socket: any Ethernet interface of the kernel as a port, without a driver of ours.
//!
//! Receiving: the kernel copies each frame into a mapped ring of small slots; we copy it into a pool
//! buffer and give the slot back, without a system call. A frame longer than a slot (the kernel's own
//! super-packets, or a peer with segmentation offload) waits whole in the socket's queue beside its
//! slot and costs one call for its up to 64 KiB. Sending: one call per burst.
//!
//! Every frame has a virtio-net header beside it, both ways: checksums that were never computed and
//! super-packets pass as they are.
//!
//! Two sockets, one per direction, so that neither eats the other's errors. The interface is made
//! promiscuous for as long as the port lives; its own frames (those of the kernel's stack that leave by
//! it) are not received. The kernel's stack still sees what arrives: give the port an interface that
//! has no addresses.

mod batch;
mod ring;
mod rx;
mod tx;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use libc::c_int;

use crate::interface::{Interface, missing, set_up_error};
use crate::vnet::Header;
use crate::{Capabilities, Error, Link, Port, QueuePair, sys};
use ring::Ring;
use rx::PacketRx;
use tx::PacketTx;

/// How a packet socket is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The receive ring's memory in bytes; rounded up to blocks of 64 KiB.
    pub ring_bytes: usize,
    /// Use the kernel's virtio-net header; without it checksums are not known and neither
    /// super-packets nor partial checksums pass. For kernels that lack it, and for tests.
    pub vnet_header: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { ring_bytes: 8 << 20, vnet_header: true }
    }
}

/// An interface, through packet sockets.
#[derive(Debug)]
pub struct PacketSocket {
    name: String,
    interface: Arc<Interface>,
    capabilities: Capabilities,
    queues: Option<(PacketRx, PacketTx)>,
}

impl PacketSocket {
    /// Opens the interface with the usual options.
    ///
    /// # Errors
    ///
    /// [`Error::SetUp`] when there is no such interface, or when packet sockets are not allowed.
    pub fn open(interface: &str) -> Result<Self, Error> {
        Self::with_options(interface, &Options::default())
    }

    /// Opens the interface. Frames are received from here on, as far as the ring holds them.
    ///
    /// # Errors
    ///
    /// [`Error::SetUp`] when there is no such interface, when packet sockets are not allowed, or when
    /// the kernel has no memory for the ring.
    pub fn with_options(interface: &str, options: &Options) -> Result<Self, Error> {
        let name = format!("packet:{interface}");
        let wrong = |doing, hint: &str| {
            let (name, hint) = (name.clone(), hint.to_owned());
            move |source| set_up_error(&name, doing, hint, source)
        };
        let found = Interface::find(interface)
            .map_err(wrong("look up the interface", &missing(interface)))?;
        if found.mac().is_none() {
            let source = io::Error::from(io::ErrorKind::InvalidInput);
            let hint = "it is no Ethernet interface: give another one";
            return Err(wrong("look at the interface", hint)(source));
        }
        let found = Arc::new(found);
        let (receiving, sending) = (open_socket(&name)?, open_socket(&name)?);
        let vnet = options.vnet_header && use_header(&receiving, &sending);
        if !vnet {
            log::info!("{name}: no virtio-net header: checksums and super-packets do not pass");
        }
        let uso = vnet && knows_uso(sending.as_fd());
        enlarge(receiving.as_fd(), libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
        enlarge(sending.as_fd(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
        // Refused by kernels before 4.20: then the packet type tells.
        let _ = set(receiving.as_fd(), libc::PACKET_IGNORE_OUTGOING, 1);
        set(receiving.as_fd(), libc::PACKET_VERSION, TPACKET_V2)
            .and_then(|()| set(receiving.as_fd(), libc::PACKET_COPY_THRESH, 1))
            .map_err(wrong("choose the ring's version", "the kernel is too old"))?;
        let (slot_size, slots) = geometry(found.mtu(), options.ring_bytes);
        let ring = Ring::new(receiving.as_fd(), slot_size, slots)
            .map_err(wrong("set the receive ring aside", "the kernel is short of memory"))?;
        promiscuous(receiving.as_fd(), found.index())
            .map_err(wrong("make the interface promiscuous", "check the interface"))?;
        // Only now, so that no frame goes past the ring.
        let bind = |socket: &OwnedFd, protocol| {
            sys::bind_packet(socket.as_fd(), found.index(), protocol)
                .map_err(wrong("bind to the interface", &missing(interface)))
        };
        bind(&sending, 0)?;
        bind(&receiving, ALL_PROTOCOLS)?;
        if !found.link().up {
            log::warn!("{name}: the link is down: `ip link set {interface} up`");
        }
        let capabilities = Capabilities {
            rx_checksum: vnet,
            rx_hash: false,
            rx_gso: vnet,
            tx_checksum: vnet,
            tx_tso4: vnet,
            tx_tso6: vnet,
            tx_uso: uso,
            queue_pairs: 1,
        };
        let rx = PacketRx::new(Arc::clone(&found), receiving, ring, vnet);
        let queues = Some((rx, PacketTx::new(sending, vnet)));
        Ok(Self { name, interface: found, capabilities, queues })
    }
}

impl Port for PacketSocket {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn mac(&self) -> Option<[u8; 6]> {
        self.interface.mac()
    }

    fn link(&self) -> Link {
        self.interface.link()
    }

    fn mtu(&self) -> Option<u16> {
        self.interface.mtu()
    }

    fn open(&mut self, pairs: usize) -> Result<Vec<QueuePair>, Error> {
        crate::hand_out(&self.name, pairs, &mut self.queues, |(rx, tx)| QueuePair {
            rx: Box::new(rx),
            tx: Box::new(tx),
        })
    }
}

/// A packet socket that receives nothing yet.
fn open_socket(port: &str) -> Result<OwnedFd, Error> {
    sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(|source| {
        let hint = match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "needs CAP_NET_RAW: run as root or `setcap cap_net_raw+ep` the program"
            }
            _ => "the kernel has no packet sockets: use another port",
        };
        set_up_error(port, "open a packet socket", hint.to_owned(), source)
    })
}

/// Turns the virtio-net header on for both directions, or for none.
fn use_header(receiving: &OwnedFd, sending: &OwnedFd) -> bool {
    let both = [receiving, sending];
    let on = both.iter().all(|fd| set(fd.as_fd(), libc::PACKET_VNET_HDR, 1).is_ok());
    if !on {
        for fd in both {
            let _ = set(fd.as_fd(), libc::PACKET_VNET_HDR, 0);
        }
    }
    on
}

/// Whether the kernel takes UDP super-packets (Linux 6.2). There is nothing to ask for that; the
/// option to choose the header's length came a little later (6.6) and can be tried.
fn knows_uso(sending: BorrowedFd<'_>) -> bool {
    let length = c_int::try_from(Header::LEN).expect("it is 10");
    set(sending, libc::PACKET_VNET_HDR_SZ, length).is_ok()
}

/// Room for super-packets in the socket's own queue; without CAP_NET_ADMIN as much as is allowed.
fn enlarge(socket: BorrowedFd<'_>, force: c_int, ask: c_int) {
    let set = |name| sys::set_option(socket, libc::SOL_SOCKET, name, &QUEUE_BYTES);
    if let Err(error) = set(force).or_else(|_| set(ask)) {
        log::debug!("socket queue: {error}");
    }
}

fn promiscuous(socket: BorrowedFd<'_>, index: i32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: u16::try_from(libc::PACKET_MR_PROMISC).expect("it is 1"),
        mr_alen: 0,
        mr_address: [0; 8],
    };
    sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

fn set(socket: BorrowedFd<'_>, name: c_int, value: c_int) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_PACKET, name, &value)
}

/// The size of a slot and how many: a slot holds a frame of the interface's MTU with its tag, and
/// everything that the kernel puts in front. Very large MTUs go the way of super-packets.
fn geometry(mtu: Option<u16>, ring_bytes: usize) -> (usize, usize) {
    let frame = usize::from(mtu.unwrap_or(u16::MAX)) + 14 + 4;
    let slot_size = (FRONT + frame).next_power_of_two().clamp(2048, LARGEST_SLOT);
    let bytes = ring_bytes.max(1).next_multiple_of(ring::BLOCK);
    (slot_size, bytes / slot_size)
}

/// ETH_P_ALL.
const ALL_PROTOCOLS: u16 = 3;
const TPACKET_V2: c_int = 1;
const QUEUE_BYTES: c_int = 8 << 20;
const LARGEST_SLOT: usize = 16 << 10;
/// The slot's header, its address, the virtio header and alignment.
const FRONT: usize = 96;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fit_the_mtu() {
        assert_eq!(geometry(Some(1500), 8 << 20), (2048, 4096));
        assert_eq!(geometry(Some(9000), 8 << 20), (16_384, 512));
        assert_eq!(geometry(Some(68), 1), (2048, 32));
        assert_eq!(geometry(None, 8 << 20), (16_384, 512));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = PacketSocket::open("none-such").unwrap_err().to_string();
        assert_eq!(
            error,
            "port 'packet:none-such': look up the interface: interface 'none-such' does not exist: \
             `ip link` lists what there is"
        );
    }
}

//! A tap interface: the kernel's network stack is on the other side of it.
//!
//! An existing tap is opened (`ip tuntap add NAME mode tap user USER` makes one that needs no
//! privileges); one that does not exist is created for the life of the process, which needs
//! CAP_NET_ADMIN. Addresses, bridges and bringing it up are the operator's.
//!
//! A tap gives and takes one frame per system call, with a virtio-net header in front. Checksums and
//! segmentation are left to whoever is last: super-packets come in and go out whole.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use packet::{Burst, Frame, Pool};

use crate::interface::{Interface, set_up_error};
use crate::pieces::{Reader, Received, SHORTEST};
use crate::sys::{self, InterfaceRequest};
use crate::vnet::Header;
use crate::{
    Armed, Capabilities, End, Error, Link, Port, QueuePair, RxCounters, RxQueue, TxCounters,
    TxQueue,
};

/// A tap interface as a port.
#[derive(Debug)]
pub struct Tap {
    name: String,
    interface: Arc<Interface>,
    capabilities: Capabilities,
    file: Option<File>,
}

impl Tap {
    /// Opens the tap of that name, or creates it.
    ///
    /// # Errors
    ///
    /// [`Error::SetUp`] when there are no taps here, when that is not allowed, or when the interface is
    /// of another kind or in use.
    pub fn open(interface: &str) -> Result<Self, Error> {
        let name = format!("tap:{interface}");
        let wrong = |doing, hint: String| {
            let name = name.clone();
            move |source| set_up_error(&name, doing, hint, source)
        };
        let existed = Interface::find(interface).is_ok();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(DEVICE)
            .map_err(wrong(
                "open /dev/net/tun",
                "load the module tun, or use another port".into(),
            ))?;
        attach(&file, interface)
            .map_err(|error| wrong("attach to the interface", hint(interface, &error))(error))?;
        sys::ioctl_int(file.as_fd(), libc::TUNSETVNETHDRSZ, HEADER_LEN)
            .map_err(wrong("set the header's length", OLD_KERNEL.into()))?;
        let uso = take_offloads(&file)
            .map_err(wrong("turn checksums and segmentation over", OLD_KERNEL.into()))?;
        let found = Interface::find(interface)
            .map_err(wrong("look up the interface", crate::interface::missing(interface)))?;
        if !existed {
            log::info!(
                "{name}: created for the life of this process; bring it up with `ip link set {interface} up`"
            );
        } else if !found.link().up {
            log::warn!("{name}: the interface is down: `ip link set {interface} up`");
        }
        let capabilities = Capabilities {
            rx_checksum: true,
            rx_hash: false,
            rx_gso: true,
            tx_checksum: true,
            tx_tso4: true,
            tx_tso6: true,
            tx_uso: uso,
            queue_pairs: 1,
        };
        Ok(Self { name, interface: Arc::new(found), capabilities, file: Some(file) })
    }
}

impl Port for Tap {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// None: the interface's address is that of the kernel on the other side.
    fn mac(&self) -> Option<[u8; 6]> {
        None
    }

    fn link(&self) -> Link {
        self.interface.link()
    }

    fn mtu(&self) -> Option<u16> {
        self.interface.mtu()
    }

    fn open(&mut self, pairs: usize) -> Result<Vec<QueuePair>, Error> {
        crate::hand_out(&self.name, pairs, &mut self.file, |file| {
            let file = Arc::new(file);
            let rx = TapRx {
                interface: self.interface.name().to_owned(),
                file: Arc::clone(&file),
                reader: Reader::new(),
                counters: RxCounters::default(),
                end: None,
            };
            let tx = TapTx { file, joined: Vec::new(), counters: TxCounters::default() };
            QueuePair { rx: Box::new(rx), tx: Box::new(tx) }
        })
    }
}

/// Attaches the descriptor to the interface, which is created when there is none of that name.
fn attach(file: &File, interface: &str) -> io::Result<()> {
    let one = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    // One that was made with multi_queue wants to be asked for with it.
    let attempts = [one, one | libc::IFF_MULTI_QUEUE];
    let mut result = Ok(());
    for flags in attempts {
        let flags = u16::try_from(flags).expect("tap flags have 16 bits");
        let mut request = InterfaceRequest::new(interface);
        request.data[..2].copy_from_slice(&flags.to_ne_bytes());
        result = request.ask(file.as_fd(), libc::TUNSETIFF);
        match &result {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            _ => break,
        }
    }
    result
}

/// Says which work the kernel may leave to us; answers whether UDP segmentation is part of it.
fn take_offloads(file: &File) -> io::Result<bool> {
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    // Kernels before 6.2 refuse what they do not know.
    if sys::ioctl_value(file.as_fd(), libc::TUNSETOFFLOAD, (tcp | udp).into()).is_ok() {
        return Ok(true);
    }
    sys::ioctl_value(file.as_fd(), libc::TUNSETOFFLOAD, tcp.into()).map(|()| false)
}

fn hint(interface: &str, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => format!(
            "needs CAP_NET_ADMIN, or a tap made for you: `ip tuntap add {interface} mode tap user USER`"
        ),
        Some(libc::EBUSY) => {
            format!("'{interface}' is in use by another process: give another name")
        }
        Some(libc::EINVAL) => format!("'{interface}' is no tap interface: give another name"),
        _ => "check the name".to_owned(),
    }
}

#[derive(Debug)]
struct TapRx {
    interface: String,
    file: Arc<File>,
    reader: Reader,
    counters: RxCounters,
    end: Option<End>,
}

impl RxQueue for TapRx {
    fn rx_burst(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        if self.end.is_some() {
            return 0;
        }
        let before = burst.len();
        // Frames that are dropped take a turn too, so that a call ends.
        for _ in 0..burst.room() {
            let mut header = [0; Header::LEN_WITH_BUFFERS];
            match self.reader.read(&self.file, &mut header, pool) {
                Received::Frame(mut frame) => {
                    // num_buffers behind the plain header says nothing about a tap's frames.
                    let plain = *header.first_chunk().expect("the longer header begins like it");
                    let described = Header::from_bytes(plain).describe(&mut frame);
                    if described.is_ok() && frame.len() >= SHORTEST {
                        burst.push(frame);
                    } else {
                        self.counters.malformed += 1;
                        pool.recycle(frame);
                    }
                }
                Received::Nothing => break,
                Received::NoBuffer => self.counters.no_buffer += 1,
                Received::TooLong => self.counters.too_long += 1,
                Received::Short => self.counters.malformed += 1,
                Received::Failed(error) => {
                    self.fail(&error);
                    break;
                }
            }
        }
        let added = &burst.frames()[before..];
        self.counters.count(added);
        added.len()
    }

    fn arm(&mut self) -> Armed {
        if self.end.is_some() {
            Armed::Unsupported
        } else if sys::readable(self.file.as_fd()) {
            Armed::Pending
        } else {
            Armed::Sleep
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn counters(&self) -> RxCounters {
        self.counters
    }

    fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }
}

impl TapRx {
    #[cold]
    fn fail(&mut self, error: &io::Error) {
        let interface = &self.interface;
        let reason = if error.raw_os_error() == Some(libc::EBADFD) {
            format!("tap interface '{interface}' is gone")
        } else {
            format!("tap interface '{interface}': read: {error}")
        };
        self.end = Some(End::Failed(reason));
    }
}

#[derive(Debug)]
struct TapTx {
    file: Arc<File>,
    /// Room to join a frame of very many pieces in; used by few frames, if any.
    joined: Vec<u8>,
    counters: TxCounters,
}

impl TxQueue for TapTx {
    fn tx_burst(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        let (mut left, mut full) = (0, false);
        for frame in burst.frames() {
            match self.send(frame) {
                Sent::Yes => {
                    self.counters.frames += 1;
                    self.counters.bytes += frame.len() as u64;
                }
                Sent::Refused => self.counters.refused += 1,
                Sent::Full => {
                    full = true;
                    break;
                }
            }
            left += 1;
        }
        self.counters.full += u64::from(full);
        for frame in burst.drain_front(left) {
            pool.recycle(frame);
        }
        left
    }

    fn reap(&mut self, _pool: &mut Pool) {}

    fn counters(&self) -> TxCounters {
        self.counters
    }
}

/// What became of a frame.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Yes,
    Refused,
    Full,
}

impl TapTx {
    fn send(&mut self, frame: &Frame) -> Sent {
        let Ok(header) = Header::of(frame) else { return Sent::Refused };
        let mut bytes = [0; Header::LEN_WITH_BUFFERS];
        bytes[..Header::LEN].copy_from_slice(&header.to_bytes());
        let head = frame.head();
        if head.len() < SHORTEST {
            return Sent::Refused;
        }
        let mut tag = [0; 4];
        let (addresses, rest) = head.split_at(12);
        let tag: &[u8] = match frame.meta.vlan {
            Some(vlan) => {
                tag[..2].copy_from_slice(&vlan.tpid.to_be_bytes());
                tag[2..].copy_from_slice(&vlan.tci.to_be_bytes());
                &tag
            }
            None => &[],
        };
        let mut slices = [IoSlice::new(&[]); MOST_PIECES + 4];
        let front = [&bytes[..], addresses, tag, rest];
        for (slice, part) in slices.iter_mut().zip(front) {
            *slice = IoSlice::new(part);
        }
        let tail = frame.tail();
        let count = if tail.len() <= MOST_PIECES {
            for (slice, piece) in slices[4..].iter_mut().zip(tail) {
                *slice = IoSlice::new(piece.bytes());
            }
            4 + tail.len()
        } else {
            self.joined.resize(frame.len() - head.len(), 0);
            frame.copy_out(head.len(), &mut self.joined);
            slices[4] = IoSlice::new(&self.joined);
            5
        };
        loop {
            match (&*self.file).write_vectored(&slices[..count]) {
                // A frame is taken whole or not at all.
                Ok(written) if written > 0 => return Sent::Yes,
                Ok(_) => return Sent::Refused,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return Sent::Full,
                    // Down, gone, or a frame that the kernel does not take: a wire loses it too.
                    _ => return Sent::Refused,
                },
            }
        }
    }
}

const DEVICE: &str = "/dev/net/tun";
const OLD_KERNEL: &str = "the kernel is too old or not Linux: use another port";
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "it is 12")]
const HEADER_LEN: i32 = Header::LEN_WITH_BUFFERS as i32;
/// A super-packet of 64 KiB in buffers of 2 KiB has 33.
const MOST_PIECES: usize = 44;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_explained() {
        let hint = |code| hint("vm0", &io::Error::from_raw_os_error(code));
        assert!(hint(libc::EPERM).contains("ip tuntap add vm0 mode tap user"));
        assert!(hint(libc::EBUSY).contains("in use"));
        assert!(hint(libc::EINVAL).contains("no tap interface"));
    }
}

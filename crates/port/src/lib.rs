//! Where frames come from and go to: one trait for every kind of port.
//!
//! A [`Port`] is the control half: it is opened once and hands out its queues as objects. A queue
//! belongs to one worker; moving it is moving a value. The kinds: packet socket and tap on any Linux
//! machine, capture replay, a Solarflare card's function, and a port in memory for demos and benches.
//!
//! Nothing in a port chooses by protocol: what enters GRO is not its business. A port reads headers
//! only to check what the other side says of a frame beside its bytes.
//!
//! [`parse`] reads how a port is named on the command line, [`build`] opens it.

mod interface;
mod memory;
mod packet_socket;
mod pcap;
mod pieces;
mod sfc;
mod spec;
mod sys;
mod tap;
mod vnet;

pub use self::sfc::{Options as SfcOptions, Sfc};
pub use memory::{Fill, Memory};
pub use packet_socket::{Options as PacketSocketOptions, PacketSocket};
pub use pcap::Pcap;
pub use spec::{Replay, Spec, build, parse};
pub use tap::Tap;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use packet::{Burst, Frame, Pool};

/// The control half of a port. Never used on a polling thread.
pub trait Port: Send + fmt::Debug {
    /// The port as the user named it, for messages: `packet:eth1`.
    fn name(&self) -> &str;

    /// What the port does for its frames.
    fn capabilities(&self) -> Capabilities;

    /// The port's own address, when it has one.
    fn mac(&self) -> Option<[u8; 6]>;

    /// The state of the link now.
    fn link(&self) -> Link;

    /// The largest frame behind the Ethernet header, in bytes, when the port knows.
    fn mtu(&self) -> Option<u16>;

    /// Hands out `pairs` queue pairs, once.
    ///
    /// # Errors
    ///
    /// When the port has fewer, or was opened before.
    fn open(&mut self, pairs: usize) -> Result<Vec<QueuePair>, Error>;

    /// Memory for the packets of this port, in which its buffers have to lie, for the life of the
    /// process; asked for before [`Self::open`]. `None`: any memory will do.
    ///
    /// # Errors
    ///
    /// When it can't be had.
    fn packet_memory(&mut self, _bytes: usize) -> Result<Option<&'static mut [u8]>, Error> {
        Ok(None)
    }

    /// The NUMA node that the port's device is attached to, when the machine has several and says so.
    fn numa_node(&self) -> Option<u32> {
        None
    }

    /// From now on, frames that are spread over receive queues by their hash go to these only; answers
    /// whether the port has a say in that.
    ///
    /// # Errors
    ///
    /// When the device refuses or does not answer.
    fn spread(&mut self, _queues: &[u16]) -> Result<bool, Error> {
        Ok(false)
    }

    /// How often, at least, [`Self::tend`] has to be called; `None`: the port needs no tending.
    fn tend_every(&self) -> Option<Duration> {
        None
    }

    /// Readable when there is a reason to tend the port before its time.
    fn tend_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Looks after the port: changes of the link, recovery of its device. What it can't mend ends the
    /// receive queues with a reason.
    fn tend(&mut self) {}
}

/// A receive queue and the transmit queue beside it.
#[derive(Debug)]
pub struct QueuePair {
    /// Frames from the port.
    pub rx: Box<dyn RxQueue>,
    /// Frames to the port.
    pub tx: Box<dyn TxQueue>,
}

/// One receive queue, owned by one worker.
pub trait RxQueue: Send + fmt::Debug {
    /// Fills the burst's room with what has arrived, in buffers taken from the pool; answers how many
    /// frames it added. Never waits. When the pool is empty, frames stay in the port or are counted as
    /// dropped there.
    fn rx_burst(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize;

    /// Gets ready to sleep: after [`Armed::Sleep`], [`wait_fd`](Self::wait_fd) becomes readable when the
    /// next frame arrives. No wake-up is lost: what came in the meantime answers [`Armed::Pending`].
    fn arm(&mut self) -> Armed;

    /// The descriptor to sleep on (readable means work), when the port has one.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// What was received and dropped so far.
    fn counters(&self) -> RxCounters;

    /// Why the queue will never give a frame again, once that is so.
    fn end(&self) -> Option<&End>;
}

/// One transmit queue, owned by one worker.
pub trait TxQueue: Send + fmt::Debug {
    /// Sends frames from the front of the burst as far as the port takes them and gives their buffers
    /// back; answers how many left. What does not fit stays with the caller. A frame that can never be
    /// sent is dropped and counted, and counts as one that left.
    ///
    /// The port gets only what its [`Capabilities`] allow: other frames are cut and their checksums
    /// completed before.
    fn tx_burst(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize;

    /// Gives back the buffers of frames that the port has finished with.
    fn reap(&mut self, pool: &mut Pool);

    /// What was sent and dropped so far.
    fn counters(&self) -> TxCounters;
}

/// What a port does for its frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Received frames carry a checksum verdict.
    pub rx_checksum: bool,
    /// Received frames carry a hash.
    pub rx_hash: bool,
    /// Received frames may be super-packets.
    pub rx_gso: bool,
    /// Transmitted frames may have a partial checksum.
    pub tx_checksum: bool,
    /// Transmitted frames may be TCP super-packets over IPv4.
    pub tx_tso4: bool,
    /// Transmitted frames may be TCP super-packets over IPv6.
    pub tx_tso6: bool,
    /// Transmitted frames may be UDP super-packets (UDP_L4).
    pub tx_uso: bool,
    /// How many queue pairs the port has.
    pub queue_pairs: u16,
}

/// The state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Whether frames can pass.
    pub up: bool,
    /// Mbit/s, when known.
    pub speed_mbps: Option<u32>,
}

/// The answer of [`RxQueue::arm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// Nothing is there: sleep on the descriptor.
    Sleep,
    /// Something arrived meanwhile: poll again.
    Pending,
    /// The port has nothing to sleep on: poll again, or in a while.
    Unsupported,
}

/// Why a receive queue has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The source is used up: a capture that is replayed once.
    Drained,
    /// The port failed: the reason, for one log line.
    Failed(String),
}

/// Receive counters of one queue. Frames, unless they say bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RxCounters {
    /// Frames handed over.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Dropped: no free buffer.
    pub no_buffer: u64,
    /// Dropped: longer than what the port can take in.
    pub too_long: u64,
    /// Dropped: header from the port that makes no sense.
    pub malformed: u64,
    /// Dropped by the kernel or the card before we saw them.
    pub missed: u64,
}

/// Transmit counters of one queue. Frames, unless they say bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxCounters {
    /// Frames sent.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Dropped: the port refused the frame for good.
    pub refused: u64,
    /// Times that the port was full and frames stayed with the caller.
    pub full: u64,
}

impl RxCounters {
    /// Counts frames that are handed over.
    #[inline]
    fn count(&mut self, frames: &[Frame]) {
        self.frames += frames.len() as u64;
        self.bytes += frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
    }
}

impl TxCounters {
    /// Counts frames that are sent.
    #[inline]
    fn count(&mut self, frames: &[Frame]) {
        self.frames += frames.len() as u64;
        self.bytes += frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
    }
}

/// Hands out the only queue pair of a port, which `queues` holds until then.
fn hand_out<T>(
    port: &str,
    asked: usize,
    queues: &mut Option<T>,
    pair: impl FnOnce(T) -> QueuePair,
) -> Result<Vec<QueuePair>, Error> {
    let have = usize::from(queues.is_some());
    if asked > have {
        return Err(Error::TooManyQueues { port: port.to_owned(), have, asked });
    }
    let taken = if asked == 0 { None } else { queues.take() };
    Ok(taken.map(pair).into_iter().collect())
}

/// What goes wrong when a port is set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The specification of the port can't be understood.
    #[error("port '{spec}': {reason}")]
    Spec {
        /// What was given.
        spec: String,
        /// What is wrong with it and how it should look.
        reason: String,
    },
    /// Something that the port needs is not there, or is not allowed.
    #[error("port '{port}': {doing}: {hint}")]
    SetUp {
        /// The port as the user named it.
        port: String,
        /// What was being done.
        doing: &'static str,
        /// How to mend it.
        hint: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A card can't be used as asked for.
    #[error("port '{port}': {reason}")]
    Card {
        /// The port as the user named it.
        port: String,
        /// What is wrong and how to mend it.
        reason: String,
    },
    /// A card can't be brought up.
    #[error("port '{port}'")]
    Driver {
        /// The port as the user named it.
        port: String,
        /// What the driver says.
        #[source]
        source: ::sfc::Error,
    },
    /// A capture can't be used.
    #[error("port '{port}': {reason}")]
    Capture {
        /// The port as the user named it.
        port: String,
        /// What is wrong and how to mend it.
        reason: String,
    },
    /// More queue pairs were asked for than there are.
    #[error("port '{port}' has {have} queue pair(s), not {asked}: ask for fewer with --queues")]
    TooManyQueues {
        /// The port as the user named it.
        port: String,
        /// How many it has left.
        have: usize,
        /// How many were asked for.
        asked: usize,
    },
}

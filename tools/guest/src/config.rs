//! What a guest is to be like: how it reaches the back end, what it asks for, how it lays out memory.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use crate::features;

/// How the guest and the back end find each other.
#[derive(Debug)]
pub enum Connect {
    /// The back end listens here. Tried for a while, as the back end may not be up yet.
    Path(PathBuf),
    /// The guest listens here, and the back end connects. The guest makes the socket and removes it.
    Listen(PathBuf),
    /// A connection that exists already. It can't be made a second time.
    Stream(UnixStream),
}

/// The order of messages, and the reading of the protocol, of a front end that people run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageOrder {
    /// Features, memory, rings, then each ring enabled.
    Plain,
    /// Rings are enabled, several times, before any features are acked; the base comes before the
    /// addresses; GET_QUEUE_NUM counts pairs; STATUS, NET_MTU and RARP where offered, no CONFIG.
    Qemu,
    /// Everything asks for an answer; addresses before base; GET_QUEUE_NUM counts rings; all memory
    /// in one table.
    CloudHypervisor,
    /// The driver in the kernel of User Mode Linux: no GET_QUEUE_NUM, the call descriptor first and a
    /// pipe, a channel for the back end's own requests, user addresses equal to guest addresses.
    Uml,
}

/// How the guest is told that buffers were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// An eventfd.
    Event,
    /// The write end of a pipe, eight bytes for each notification.
    Pipe,
}

/// Whether the guest sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Never: it tells the device not to notify it.
    Spin,
    /// When its rings are empty: it arms notifications ([`Guest::wait`](crate::Guest::wait)).
    Wait,
}

/// A guest.
#[derive(Debug)]
pub struct Config {
    /// How to reach the back end.
    pub connect: Connect,
    /// How often a connection is tried, ten milliseconds apart.
    pub attempts: u32,
    /// The features wanted; acked is what is wanted and offered. See [`features`].
    pub features: u64,
    /// The features never to ack.
    pub without: u64,
    /// Ack exactly `features` (where offered). Otherwise VERSION_1 and PROTOCOL_FEATURES are added and
    /// bits whose requirements are not met are left out, as a real driver does.
    pub exact_features: bool,
    /// The protocol features wanted; `None` asks for what the front end named by `order` asks for.
    pub protocol_features: Option<u64>,
    /// The order of messages.
    pub order: MessageOrder,
    /// Descriptors per ring, a power of two.
    pub queue_size: u16,
    /// Pairs of rings.
    pub queue_pairs: u16,
    /// Bytes per receive buffer, header included; `None`: 2048 where packets may take several buffers,
    /// else what the largest packet needs.
    pub rx_buffer_size: Option<u32>,
    /// Descriptors per receive buffer: one, or a chain whose first descriptor holds only the header.
    pub rx_chain: u16,
    /// Descriptors per packet sent: one, or a chain whose first descriptor holds only the header.
    pub tx_chain: u16,
    /// Send by indirect descriptors where negotiated.
    pub tx_indirect: bool,
    /// Bytes of guest memory at least; more is made where the buffers need it.
    pub memory: u64,
    /// Regions that the memory is split into, with gaps between them: 1 to 4.
    pub regions: usize,
    /// Tell the back end of the regions from the highest address down.
    pub regions_reversed: bool,
    /// How the guest is told of used buffers.
    pub call: Call,
    /// Whether the guest sleeps.
    pub poll: Poll,
    /// The MTU that the guest's host has set for it; `None` takes the device's word, if it has one.
    pub mtu: Option<u16>,
}

impl Config {
    /// A guest like most: default features, one pair of rings of 256, polling.
    pub fn new(connect: Connect) -> Self {
        Self {
            connect,
            attempts: 500,
            features: features::DEFAULT,
            without: 0,
            exact_features: false,
            protocol_features: None,
            order: MessageOrder::Plain,
            queue_size: 256,
            queue_pairs: 1,
            rx_buffer_size: None,
            rx_chain: 1,
            tx_chain: 1,
            tx_indirect: false,
            memory: 16 << 20,
            regions: 1,
            regions_reversed: false,
            call: Call::Event,
            poll: Poll::Spin,
            mtu: None,
        }
    }

    /// The same guest under another front end, which brings its way of being called.
    #[must_use]
    pub fn under(mut self, order: MessageOrder) -> Self {
        self.order = order;
        self.call = if order == MessageOrder::Uml { Call::Pipe } else { Call::Event };
        self
    }

    /// The features to ack of those offered.
    pub(crate) fn acked(&self, offered: u64) -> u64 {
        let offered = offered & !self.without;
        if self.exact_features {
            return self.features & offered;
        }
        let mut wanted = self.features | features::VERSION_1 | features::PROTOCOL_FEATURES;
        if self.queue_pairs > 1 {
            wanted |= features::MQ;
        }
        features::consistent(wanted & offered)
    }

    /// The protocol features to ask for.
    pub(crate) fn wanted_protocol(&self) -> u64 {
        use features::protocol::{
            BACKEND_REQ, CONFIG, CONFIGURE_MEM_SLOTS, MQ, NET_MTU, RARP, REPLY_ACK, RESET_DEVICE,
            STATUS,
        };
        self.protocol_features.unwrap_or(match self.order {
            MessageOrder::Plain => MQ | REPLY_ACK | CONFIG | CONFIGURE_MEM_SLOTS | RESET_DEVICE,
            MessageOrder::Qemu => {
                MQ | RARP | REPLY_ACK | NET_MTU | RESET_DEVICE | CONFIGURE_MEM_SLOTS | STATUS
            }
            MessageOrder::CloudHypervisor => MQ | REPLY_ACK | CONFIG | CONFIGURE_MEM_SLOTS,
            MessageOrder::Uml => REPLY_ACK | BACKEND_REQ | CONFIG,
        })
    }

    /// What is wrong with these settings, if something is.
    pub(crate) fn mistake(&self) -> Option<&'static str> {
        let (rx, tx) = (self.rx_chain, self.tx_chain);
        if !self.queue_size.is_power_of_two() || self.queue_size > 32768 {
            Some("a queue has 1 to 32768 descriptors, a power of two")
        } else if self.queue_pairs == 0 || self.queue_pairs > 64 {
            Some("there are 1 to 64 pairs of queues")
        } else if !(1..=4).contains(&self.regions) {
            Some("memory has 1 to 4 regions")
        } else if !(1..=self.queue_size).contains(&rx) || !(1..=64).contains(&tx) {
            Some("a chain has at least one descriptor and fits its queue")
        } else if !self.tx_indirect && tx > self.queue_size {
            Some("a chain to send fits its queue")
        } else if self.rx_buffer_size.is_some_and(|size| !(64..=1 << 20).contains(&size)) {
            Some("a receive buffer has 64 bytes to 1 MiB")
        } else {
            None
        }
    }
}

//! The control side: messages on the socket, in the order of the front end that is being played.
//!
//! Ordinary messages go through the `vhost` crate's [`Frontend`]; what it can't or won't send (a ring
//! enabled before features are acked, a pipe to call by, STATUS, NET_SET_MTU, SEND_RARP, a count of
//! queues read as pairs) is written by hand on the same socket. Requests are answered in order, and
//! only one is ever under way, so the two don't get in each other's way.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use vhost::vhost_user::{
    Frontend, VhostUserFrontend, VhostUserProtocolFeatures,
    message::{VhostUserConfigFlags, VhostUserHeaderFlag},
};
use vhost::{VhostBackend, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use crate::call::CallFd;
use crate::config::{Config, MessageOrder};
use crate::error::{Error, Result};
use crate::features::{MTU, PROTOCOL_FEATURES, protocol};
use crate::memory::Memory;
use crate::raw::{NEED_REPLY, Raw, Request};
use crate::ring::Ring;

/// What the device says of itself (virtio 1.3, 5.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetConfig {
    /// Its address, with MAC.
    pub mac: [u8; 6],
    /// Bit 0: the link is up; with STATUS.
    pub status: u16,
    /// Pairs of queues, with MQ.
    pub max_queue_pairs: u16,
    /// The largest packet behind the Ethernet header, with MTU.
    pub mtu: u16,
}

/// A ring, as it is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) ring: &'a Ring,
    pub(crate) kick: &'a EventFd,
    pub(crate) call: &'a CallFd,
    pub(crate) base: u16,
}

/// A connection.
pub(crate) struct Control {
    frontend: Frontend,
    raw: Raw,
    order: MessageOrder,
    /// Virtio features on offer.
    pub(crate) offered: u64,
    /// Protocol features on offer.
    pub(crate) protocol_offered: u64,
    /// Protocol features acked.
    pub(crate) protocol: u64,
    /// Whether PROTOCOL_FEATURES was acked, so that rings start disabled.
    enables: bool,
    /// Every message asks for an answer.
    ack_all: bool,
    /// Whether the regions have been added, which is done once in a connection.
    added: bool,
    /// Our end of the back end's own channel.
    channel: Option<UnixStream>,
}

impl Control {
    /// Greets the back end: features, protocol features, number of queues, ownership.
    pub(crate) fn open(stream: UnixStream, config: &Config) -> Result<Self> {
        let copy = stream.try_clone().map_err(|error| Error::System("a descriptor", error))?;
        let raw = Raw::new(copy);
        raw.patience(Some(PATIENCE)).map_err(|error| Error::System("a time limit", error))?;
        let rings = u64::from(config.queue_pairs) * 2;
        let mut control = Self {
            frontend: Frontend::from_stream(stream, rings),
            raw,
            order: config.order,
            offered: 0,
            protocol_offered: 0,
            protocol: 0,
            enables: false,
            ack_all: false,
            added: false,
            channel: None,
        };
        control.greet(config)?;
        Ok(control)
    }

    fn greet(&mut self, config: &Config) -> Result<()> {
        let qemu = self.order == MessageOrder::Qemu;
        if !qemu {
            sent("SET_OWNER", self.frontend.set_owner())?;
        }
        self.offered = sent("GET_FEATURES", self.frontend.get_features())?;
        if self.offered & PROTOCOL_FEATURES != 0
            && config.acked(self.offered) & PROTOCOL_FEATURES != 0
        {
            self.negotiate(config.wanted_protocol())?;
        }
        if self.has(protocol::BACKEND_REQ) {
            let (ours, theirs) =
                UnixStream::pair().map_err(|error| Error::System("a channel", error))?;
            sent("SET_BACKEND_REQ_FD", self.frontend.set_backend_request_fd(&theirs))?;
            self.channel = Some(ours);
        }
        if self.has(protocol::MQ) && self.order != MessageOrder::Uml {
            self.count_queues(config.queue_pairs)?;
        }
        if self.has(protocol::CONFIGURE_MEM_SLOTS) {
            let offered = sent("GET_MAX_MEM_SLOTS", self.frontend.get_max_mem_slots())?;
            if offered < config.regions as u64 {
                return Err(Error::TooFewSlots { wanted: config.regions, offered });
            }
        }
        if qemu {
            sent("SET_OWNER", self.frontend.set_owner())?;
            self.offered = sent("GET_FEATURES", self.frontend.get_features())?;
        }
        Ok(())
    }

    fn negotiate(&mut self, wanted: u64) -> Result<()> {
        let offered = sent("GET_PROTOCOL_FEATURES", self.frontend.get_protocol_features())?;
        self.protocol_offered = offered.bits();
        let acked = wanted & self.protocol_offered;
        let acked = VhostUserProtocolFeatures::from_bits_truncate(acked);
        sent("SET_PROTOCOL_FEATURES", self.frontend.set_protocol_features(acked))?;
        self.protocol = acked.bits();
        self.ack_all = self.has(protocol::REPLY_ACK) && self.order != MessageOrder::Qemu;
        self.ask_for_answers(self.ack_all);
        Ok(())
    }

    fn count_queues(&mut self, wanted: u16) -> Result<()> {
        let (offered, needed, unit) = match self.order {
            MessageOrder::CloudHypervisor => {
                let rings = sent("GET_QUEUE_NUM", self.frontend.get_queue_num())?;
                (rings, u64::from(wanted) * 2, "rings")
            }
            // Asked by hand: the crate would take the answer for a limit of rings.
            _ => (self.ask(Request::GET_QUEUE_NUM)?, u64::from(wanted), "pairs"),
        };
        if offered < needed {
            return Err(Error::TooFewQueues { wanted, offered, unit });
        }
        Ok(())
    }

    /// Hands over features, memory and rings, and lets the device begin.
    pub(crate) fn start(
        &mut self,
        acked: u64,
        (memory, reversed): (&Memory, bool),
        rings: &[Setup<'_>],
        mtu: Option<u16>,
    ) -> Result<()> {
        self.enables = acked & PROTOCOL_FEATURES != 0;
        if self.order == MessageOrder::Qemu {
            for (index, setup) in rings.iter().enumerate() {
                self.call(index, setup.call)?;
            }
            // Three times, as firmware resets the device again and again.
            for _ in 0..if self.enables { 3 } else { 0 } {
                for index in 0..rings.len() {
                    self.enable_by_hand(index, true)?;
                }
            }
        }
        sent("SET_FEATURES", self.frontend.set_features(acked))?;
        self.status_change(FEATURES_OK)?;
        if let (Some(mtu), true) = (mtu, self.has(protocol::NET_MTU) && acked & MTU != 0) {
            self.set_mtu(mtu)?;
        }
        self.memory(memory, reversed)?;
        for (index, setup) in rings.iter().enumerate() {
            self.ring(index, setup)?;
        }
        for (index, setup) in rings.iter().enumerate() {
            if self.order == MessageOrder::Uml {
                sent("SET_VRING_KICK", self.frontend.set_vring_kick(index, setup.kick))?;
            }
            if self.order != MessageOrder::Qemu {
                self.enable(index, true)?;
            }
        }
        self.status_change(DRIVER_OK)
    }

    /// Sets one ring up; it still has to be enabled, if it ever was not.
    pub(crate) fn ring(&mut self, index: usize, setup: &Setup<'_>) -> Result<()> {
        if self.order == MessageOrder::Uml {
            self.call(index, setup.call)?;
        }
        let size = setup.ring.size();
        sent("SET_VRING_NUM", self.frontend.set_vring_num(index, size))?;
        if self.order == MessageOrder::CloudHypervisor {
            self.addresses(index, setup)?;
            sent("SET_VRING_BASE", self.frontend.set_vring_base(index, setup.base))?;
            self.call(index, setup.call)?;
            return sent("SET_VRING_KICK", self.frontend.set_vring_kick(index, setup.kick));
        }
        sent("SET_VRING_BASE", self.frontend.set_vring_base(index, setup.base))?;
        self.addresses(index, setup)?;
        if self.order != MessageOrder::Uml {
            sent("SET_VRING_KICK", self.frontend.set_vring_kick(index, setup.kick))?;
            self.call(index, setup.call)?;
        }
        Ok(())
    }

    /// Sets one ring up that was stopped, and lets the device go on with it.
    pub(crate) fn restart(&mut self, index: usize, setup: &Setup<'_>) -> Result<()> {
        self.ring(index, setup)?;
        if self.order == MessageOrder::Uml {
            sent("SET_VRING_KICK", self.frontend.set_vring_kick(index, setup.kick))?;
        }
        self.enable(index, true)
    }

    /// Stops a ring; the answer is where the device would go on.
    pub(crate) fn stop(&mut self, index: usize) -> Result<u32> {
        sent("GET_VRING_BASE", self.frontend.get_vring_base(index))
    }

    /// Enables or disables a ring, if rings are enabled by message at all.
    pub(crate) fn enable(&mut self, index: usize, enable: bool) -> Result<()> {
        if !self.enables {
            return Ok(());
        }
        sent("SET_VRING_ENABLE", self.frontend.set_vring_enable(index, enable))
    }

    /// The configuration space.
    pub(crate) fn net_config(&mut self) -> Result<NetConfig> {
        if !self.has(protocol::CONFIG) {
            return Err(Error::NotNegotiated("CONFIG"));
        }
        let flags = VhostUserConfigFlags::empty();
        let answer = self.frontend.get_config(0, 12, flags, &[0; 12]);
        let (_, bytes) = sent("GET_CONFIG", answer)?;
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let mut mac = [0; 6];
        mac.copy_from_slice(&bytes[..6]);
        Ok(NetConfig { mac, status: half(6), max_queue_pairs: half(8), mtu: half(10) })
    }

    /// The device goes back to where it was before the driver came.
    pub(crate) fn reset_device(&mut self) -> Result<()> {
        if !self.has(protocol::RESET_DEVICE) {
            return Err(Error::NotNegotiated("RESET_DEVICE"));
        }
        sent("RESET_DEVICE", self.frontend.reset_device())
    }

    /// Reads the device status.
    pub(crate) fn status(&mut self) -> Result<u8> {
        self.need(protocol::STATUS, "STATUS")?;
        Ok(self.ask(Request::GET_STATUS)?.to_le_bytes()[0])
    }

    /// Sets the device status.
    pub(crate) fn set_status(&mut self, status: u8) -> Result<()> {
        self.need(protocol::STATUS, "STATUS")?;
        self.tell(Request::SET_STATUS, &u64::from(status).to_ne_bytes(), &[], self.ack_all)
    }

    /// Tells the device the MTU that the host has set.
    pub(crate) fn set_mtu(&mut self, mtu: u16) -> Result<()> {
        self.need(protocol::NET_MTU, "NET_MTU")?;
        let answer = self.has(protocol::REPLY_ACK);
        self.tell(Request::NET_SET_MTU, &u64::from(mtu).to_ne_bytes(), &[], answer)
    }

    /// Asks the device to announce the guest's address, as after a migration.
    pub(crate) fn send_rarp(&mut self, mac: [u8; 6]) -> Result<()> {
        self.need(protocol::RARP, "RARP")?;
        let [a, b, c, d, e, f] = mac;
        self.tell(Request::SEND_RARP, &[a, b, c, d, e, f, 0, 0], &[], self.ack_all)
    }

    /// Whether the back end is still there.
    pub(crate) fn alive(&self) -> bool {
        let mut byte = [0u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(self.raw.stream(), &mut byte[..], flags) {
            Ok((count, _)) => count > 0,
            Err(error) => error == rustix::io::Errno::AGAIN,
        }
    }

    /// The connection for messages written by hand.
    pub(crate) fn raw(&self) -> &Raw {
        &self.raw
    }

    /// Our end of the channel for the back end's own requests.
    pub(crate) fn channel(&self) -> Option<&UnixStream> {
        self.channel.as_ref()
    }

    fn memory(&mut self, memory: &Memory, reversed: bool) -> Result<()> {
        let mut regions = memory.describe();
        if reversed {
            regions.reverse();
        }
        let one_table = matches!(self.order, MessageOrder::CloudHypervisor | MessageOrder::Uml);
        let answers = self.has(protocol::REPLY_ACK);
        self.ask_for_answers(answers);
        if self.has(protocol::CONFIGURE_MEM_SLOTS) && !one_table {
            let new = if self.added { &[] } else { regions.as_slice() };
            for region in new {
                sent("ADD_MEM_REG", self.frontend.add_mem_region(region).map(drop))?;
            }
            self.added = true;
        } else {
            sent("SET_MEM_TABLE", self.frontend.set_mem_table(&regions).map(drop))?;
        }
        self.ask_for_answers(self.ack_all);
        Ok(())
    }

    fn addresses(&mut self, index: usize, setup: &Setup<'_>) -> Result<()> {
        let [descriptors, avail, used] = setup.ring.user_addresses();
        let size = setup.ring.size();
        let data = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: descriptors,
            used_ring_addr: used,
            avail_ring_addr: avail,
            log_addr: None,
        };
        sent("SET_VRING_ADDR", self.frontend.set_vring_addr(index, &data))
    }

    fn call(&mut self, index: usize, call: &CallFd) -> Result<()> {
        match call {
            CallFd::Event(event) => {
                sent("SET_VRING_CALL", self.frontend.set_vring_call(index, event))
            }
            CallFd::Pipe { theirs, .. } => {
                let body = (index as u64).to_ne_bytes();
                self.tell(Request::SET_VRING_CALL, &body, &[theirs.as_fd()], self.ack_all)
            }
        }
    }

    /// The crate refuses this before SET_FEATURES; other front ends do it.
    fn enable_by_hand(&mut self, index: usize, enable: bool) -> Result<()> {
        let mut body = [0; 8];
        let index = u32::try_from(index).expect("there are few rings");
        body[..4].copy_from_slice(&index.to_ne_bytes());
        body[4..].copy_from_slice(&u32::from(enable).to_ne_bytes());
        self.tell(Request::SET_VRING_ENABLE, &body, &[], false)
    }

    /// One step of the driver's life, where the front end reports it.
    fn status_change(&mut self, status: u8) -> Result<()> {
        if self.order == MessageOrder::Qemu && self.has(protocol::STATUS) {
            self.set_status(status)?;
        }
        Ok(())
    }

    /// After the rings were stopped, the driver is gone.
    pub(crate) fn driver_gone(&mut self) -> Result<()> {
        self.status_change(0)
    }

    fn ask_for_answers(&self, ask: bool) {
        let flags =
            if ask { VhostUserHeaderFlag::NEED_REPLY } else { VhostUserHeaderFlag::empty() };
        self.frontend.set_hdr_flags(flags);
    }

    fn has(&self, feature: u64) -> bool {
        self.protocol & feature != 0
    }

    fn need(&self, feature: u64, name: &'static str) -> Result<()> {
        if self.has(feature) { Ok(()) } else { Err(Error::NotNegotiated(name)) }
    }

    fn ask(&self, request: Request) -> Result<u64> {
        let answer = self.raw.ask(request, 0, &[]);
        let value = answer.and_then(|message| {
            message.value().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        });
        value.map_err(|error| Error::Raw(request, error))
    }

    fn tell(
        &self,
        request: Request,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        answer: bool,
    ) -> Result<()> {
        let failed = |error| Error::Raw(request, error);
        let flags = if answer { NEED_REPLY } else { 0 };
        self.raw.send(request, flags, body, fds).map_err(failed)?;
        if !answer {
            return Ok(());
        }
        match self.raw.answer(request).map_err(failed)?.value() {
            Some(0) => Ok(()),
            value => Err(Error::Refused(request, value.unwrap_or(u64::MAX))),
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("order", &self.order)
            .field("offered", &format_args!("{:#x}", self.offered))
            .field("protocol", &format_args!("{:#x}", self.protocol))
            .finish_non_exhaustive()
    }
}

fn sent<T>(what: &'static str, result: vhost::Result<T>) -> Result<T> {
    result.map_err(|error| Error::Message(what, error))
}

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Device status (virtio 1.3, 2.1): the driver's choice of features is final.
const FEATURES_OK: u8 = 8;
/// Device status: acknowledged, driver found, features chosen, driver ready.
const DRIVER_OK: u8 = 15;

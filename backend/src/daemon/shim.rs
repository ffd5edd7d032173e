//! The thin layer between a front end and the protocol library.
//!
//! `vhost-user-backend` is used unmodified; this layer stands between its socket and the front end's
//! and mends what real front ends stumble over (`spec/vhost-user.md`, 2.3):
//!
//! - SET_VRING_ENABLE before SET_FEATURES (QEMU) would end the connection: held until the features are
//!   known, the last word for each ring counts.
//! - GET_QUEUE_NUM means pairs to QEMU and rings to Cloud Hypervisor: one answer that serves both.
//! - STATUS, NET_MTU and SEND_RARP are unknown to the library: answered here, told to the device.
//! - Memory regions must arrive sorted for the library: sorted here, with their descriptors.
//! - A region that lies outside its file would be a SIGBUS on the polling thread: refused here.
//!
//! [`Shim`] is a pure state machine, message in, actions out; [`super::relay`] moves the bytes.

use std::os::fd::OwnedFd;

use super::message::Message;
use super::regions;
use super::request as req;

/// What to do about a message of the front end.
#[derive(Debug)]
pub(super) enum Action {
    /// Hand it to the protocol library.
    Forward(Message),
    /// Answer it; the library never sees it.
    Answer(Message),
    /// Tell the device.
    Tell(Notice),
}

/// What the front end said that the library has no word for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// The guest driver's device status; 0 is a reset.
    Status(u8),
    /// The MTU that the front end wants to use.
    Mtu(u64),
    /// Announce this address on the network: the guest has moved here.
    Announce([u8; 6]),
}

/// Why a connection can't go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The body of a request is too short for what it has to say.
    #[error("vhost-user request {request}: body of {len} bytes is too short")]
    Short {
        /// Request code.
        request: u32,
        /// Length of the body in bytes.
        len: usize,
    },
    /// A memory table that can't be used, from a front end that asked for no acknowledgement.
    #[error("guest memory refused")]
    Memory(#[from] regions::Error),
}

/// The state of one connection, as far as the shim needs it.
#[derive(Debug)]
pub(super) struct Shim {
    queue_num: u64,
    protocol_features: u64,
    /// What SET_FEATURES said last; `None` before.
    features: Option<u64>,
    held_enables: Vec<(u32, u32)>,
    status: u8,
    mtu: Option<u64>,
    regions: regions::Table,
}

impl Shim {
    /// A new connection. `pairs` is how many queue pairs the device serves; it has to have 4 rings for
    /// each, since a front end that counts pairs may use twice as many as were meant. `mtu` is the
    /// port's, when it is known.
    pub(super) fn new(pairs: u16, mtu: Option<u16>) -> Self {
        Self {
            queue_num: 2 * u64::from(pairs),
            protocol_features: 0,
            features: None,
            held_enables: Vec::new(),
            status: 0,
            mtu: mtu.map(u64::from),
            regions: regions::Table::default(),
        }
    }

    /// What to do about a request, in order.
    ///
    /// # Errors
    ///
    /// When the connection has to end.
    pub(super) fn request(&mut self, message: Message) -> Result<Vec<Action>, Error> {
        let short = Error::Short { request: message.request, len: message.body.len() };
        Ok(match message.request {
            req::SET_FEATURES => {
                let features = message.u64_at(0).ok_or(short)?;
                self.features = Some(features);
                let mut actions = vec![Action::Forward(message)];
                // Without the bit the library enables all rings itself.
                let held = std::mem::take(&mut self.held_enables);
                if features & PROTOCOL_FEATURES != 0 {
                    actions.extend(held.into_iter().map(|(index, on)| {
                        let body = [index.to_le_bytes(), on.to_le_bytes()].concat();
                        Action::Forward(Message::request(req::SET_VRING_ENABLE, body))
                    }));
                }
                actions
            }
            req::SET_PROTOCOL_FEATURES => {
                self.protocol_features = message.u64_at(0).ok_or(short)?;
                let rest = self.protocol_features & !OURS;
                let mut message = message;
                message.body = rest.to_le_bytes().to_vec();
                vec![Action::Forward(message)]
            }
            req::GET_QUEUE_NUM => {
                vec![Action::Answer(Message::answer(message.request, self.queue_num))]
            }
            req::SET_VRING_ENABLE => {
                let index = message.u32_at(0).ok_or(short)?;
                let on = message.u32_at(4).unwrap_or(0);
                match self.features {
                    Some(features) if features & PROTOCOL_FEATURES != 0 => {
                        vec![Action::Forward(message)]
                    }
                    // The rings of such a connection are always enabled.
                    Some(_) => self.acknowledge(&message, true).into_iter().collect(),
                    None => {
                        self.held_enables.retain(|(held, _)| *held != index);
                        self.held_enables.push((index, on));
                        self.held_enables.truncate(MAX_RINGS);
                        self.acknowledge(&message, true).into_iter().collect()
                    }
                }
            }
            req::SET_MEM_TABLE => {
                let acknowledged = self.acknowledges(&message);
                match self.regions.replace(message) {
                    Ok(message) => vec![Action::Forward(message)],
                    Err((message, error)) => self.refuse(&message, error, acknowledged)?,
                }
            }
            req::ADD_MEM_REG => {
                let acknowledged = self.acknowledges(&message);
                match self.regions.add(message) {
                    Ok(message) => vec![Action::Forward(message)],
                    Err((message, error)) => self.refuse(&message, error, acknowledged)?,
                }
            }
            req::REM_MEM_REG => {
                // Some front ends attach the region's descriptor; the library refuses it.
                let mut message = message;
                message.fds.clear();
                self.regions.remove(&message);
                vec![Action::Forward(message)]
            }
            req::SET_STATUS => {
                // One byte of meaning in a 64-bit value.
                let status = message.body.first().copied().ok_or(short)?;
                self.status = status;
                let told = Action::Tell(Notice::Status(status));
                [Some(told), self.acknowledge(&message, true)].into_iter().flatten().collect()
            }
            req::GET_STATUS => {
                vec![Action::Answer(Message::answer(message.request, u64::from(self.status)))]
            }
            req::NET_SET_MTU => {
                let mtu = message.u64_at(0).ok_or(short)?;
                let fits = self.mtu.is_none_or(|ours| mtu <= ours) && mtu >= MIN_MTU;
                let told = Action::Tell(Notice::Mtu(mtu));
                [Some(told), self.acknowledge(&message, fits)].into_iter().flatten().collect()
            }
            req::SEND_RARP => {
                let mac = message.body.get(..6).and_then(|mac| mac.try_into().ok()).ok_or(short)?;
                let told = Action::Tell(Notice::Announce(mac));
                [Some(told), self.acknowledge(&message, true)].into_iter().flatten().collect()
            }
            _ => vec![Action::Forward(message)],
        })
    }

    /// What the front end gets for an answer of the library.
    pub(super) fn answer(&mut self, mut message: Message) -> Message {
        if message.request == req::GET_PROTOCOL_FEATURES
            && let Some(features) = message.u64_at(0)
        {
            message.body = (features | OURS).to_le_bytes().to_vec();
        }
        message
    }

    /// Whether a forwarded request will be answered by the library.
    pub(super) fn expects_answer(&self, message: &Message) -> bool {
        req::ALWAYS_ANSWERED.contains(&message.request) || self.acknowledges(message)
    }

    fn acknowledges(&self, message: &Message) -> bool {
        message.needs_reply() && self.protocol_features & REPLY_ACK != 0
    }

    fn acknowledge(&self, message: &Message, success: bool) -> Option<Action> {
        self.acknowledges(message)
            .then(|| Action::Answer(Message::answer(message.request, u64::from(!success))))
    }

    /// A refusal that the front end hears about leaves the connection as it was; one that it would
    /// never hear about has to end it.
    fn refuse(
        &self,
        message: &Message,
        error: regions::Error,
        acknowledged: bool,
    ) -> Result<Vec<Action>, Error> {
        if !acknowledged {
            return Err(error.into());
        }
        log::error!("guest memory refused: {error}");
        Ok(vec![Action::Answer(Message::answer(message.request, 1))])
    }
}

/// Owned descriptors of a message, by position; a helper for the region table.
pub(super) fn take_fds(message: &mut Message) -> Vec<OwnedFd> {
    std::mem::take(&mut message.fds)
}

const PROTOCOL_FEATURES: u64 = 1 << 30;
const REPLY_ACK: u64 = 1 << 3;
/// Protocol features that are served here: RARP, NET_MTU, STATUS.
const OURS: u64 = 1 << 2 | 1 << 4 | 1 << 16;
/// More rings than any device of ours has.
const MAX_RINGS: usize = 64;
/// RFC 791: every link carries 68 bytes.
const MIN_MTU: u64 = 68;

#[cfg(test)]
mod tests {
    use super::super::message::{NEED_REPLY, VERSION};
    use super::*;

    fn enable(index: u32, on: u32) -> Message {
        Message::request(req::SET_VRING_ENABLE, [index.to_le_bytes(), on.to_le_bytes()].concat())
    }

    fn value(request: u32, value: u64) -> Message {
        Message::request(request, value.to_le_bytes().to_vec())
    }

    fn needing_reply(mut message: Message) -> Message {
        message.flags |= NEED_REPLY;
        message
    }

    /// The actions in short: what is forwarded, answered, told.
    fn short(actions: &[Action]) -> Vec<String> {
        let short = |action: &Action| match action {
            Action::Forward(message) => format!("forward {} {:?}", message.request, message.body),
            Action::Answer(message) => {
                format!("answer {} {:?}", message.request, message.u64_at(0))
            }
            Action::Tell(notice) => format!("tell {notice:?}"),
        };
        actions.iter().map(short).collect()
    }

    #[test]
    fn enables_before_the_features_are_held_and_the_last_word_counts() {
        let mut shim = Shim::new(1, None);
        for message in [enable(0, 1), enable(1, 1), enable(0, 0), enable(0, 1)] {
            assert!(shim.request(message).unwrap().is_empty());
        }
        let actions = shim.request(value(req::SET_FEATURES, PROTOCOL_FEATURES)).unwrap();
        assert_eq!(
            short(&actions)[1..],
            ["forward 18 [1, 0, 0, 0, 1, 0, 0, 0]", "forward 18 [0, 0, 0, 0, 1, 0, 0, 0]"]
        );
        assert_eq!(short(&shim.request(enable(1, 0)).unwrap()).len(), 1);
    }

    #[test]
    fn without_protocol_features_no_enable_reaches_the_library() {
        let mut shim = Shim::new(1, None);
        shim.request(enable(0, 1)).unwrap();
        assert_eq!(shim.request(value(req::SET_FEATURES, 0)).unwrap().len(), 1);
        assert!(shim.request(enable(0, 0)).unwrap().is_empty());
    }

    #[test]
    fn queue_num_serves_who_counts_pairs_and_who_counts_rings() {
        let mut shim = Shim::new(2, None);
        let actions = shim.request(Message::request(req::GET_QUEUE_NUM, vec![])).unwrap();
        assert_eq!(short(&actions), ["answer 17 Some(4)"]);
    }

    #[test]
    fn our_protocol_features_are_added_and_kept_from_the_library() {
        let mut shim = Shim::new(1, None);
        let answer = shim.answer(Message::answer(req::GET_PROTOCOL_FEATURES, 0b1001));
        assert_eq!(answer.u64_at(0), Some(0b1001 | OURS));
        let actions = shim.request(value(req::SET_PROTOCOL_FEATURES, 0b1001 | OURS)).unwrap();
        assert_eq!(short(&actions), ["forward 16 [9, 0, 0, 0, 0, 0, 0, 0]"]);
    }

    #[test]
    fn status_mtu_and_announcement_are_answered_here() {
        let mut shim = Shim::new(1, Some(1500));
        shim.request(value(req::SET_PROTOCOL_FEATURES, REPLY_ACK)).unwrap();
        let mut ask = |message| short(&shim.request(message).unwrap());
        assert_eq!(ask(value(req::SET_STATUS, 0xf)), ["tell Status(15)"]);
        assert_eq!(
            ask(Message { flags: VERSION, ..Message::request(req::GET_STATUS, vec![]) }),
            ["answer 40 Some(15)"]
        );
        let set_mtu = |mtu| needing_reply(value(req::NET_SET_MTU, mtu));
        assert_eq!(ask(set_mtu(1400)), ["tell Mtu(1400)", "answer 20 Some(0)"]);
        assert_eq!(ask(set_mtu(9000)), ["tell Mtu(9000)", "answer 20 Some(1)"]);
        let mac = u64::from_le_bytes([2, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(ask(value(req::SEND_RARP, mac)), ["tell Announce([2, 0, 0, 0, 0, 1])"]);
    }

    #[test]
    fn requests_without_their_body_end_the_connection() {
        let mut shim = Shim::new(1, None);
        for request in [
            req::SET_FEATURES,
            req::SET_PROTOCOL_FEATURES,
            req::SET_VRING_ENABLE,
            req::SET_STATUS,
            req::NET_SET_MTU,
            req::SEND_RARP,
        ] {
            let error = shim.request(Message::request(request, vec![])).unwrap_err();
            assert!(matches!(error, Error::Short { .. }), "{request}: {error}");
        }
    }
}

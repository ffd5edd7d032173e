//! Which messages a guest sends, and when, under each front end: read by hand at the other end.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use guest::features::{self, protocol};
use guest::raw::{NEED_REPLY, REPLY, Raw, Request};
use guest::{Config, Connect, Guest, MessageOrder};

/// A back end that agrees to everything and writes down what it was asked.
struct Recorder {
    stream: UnixStream,
    offered: u64,
    protocol: u64,
    queues: u64,
}

impl Recorder {
    /// Answers until the guest is gone; the messages, with the ring that they name, if they do.
    fn record(self) -> JoinHandle<Vec<String>> {
        std::thread::spawn(move || {
            let raw = Raw::new(self.stream.try_clone().unwrap());
            let mut log = Vec::new();
            while let Ok(message) = raw.receive() {
                let request = message.request;
                let first = message.body.first().copied().unwrap_or(0);
                let value = message.value().unwrap_or(0);
                log.push(match request {
                    Request::SET_VRING_NUM
                    | Request::SET_VRING_ADDR
                    | Request::SET_VRING_BASE
                    | Request::GET_VRING_BASE
                    | Request::SET_VRING_KICK
                    | Request::SET_VRING_CALL
                    | Request::SET_VRING_ENABLE => format!("{request:?} {first}"),
                    Request::SET_STATUS | Request::NET_SET_MTU => format!("{request:?} {value}"),
                    _ => format!("{request:?}"),
                });
                let body = match request {
                    Request::GET_FEATURES => self.offered.to_ne_bytes().to_vec(),
                    Request::GET_PROTOCOL_FEATURES => self.protocol.to_ne_bytes().to_vec(),
                    Request::GET_QUEUE_NUM => self.queues.to_ne_bytes().to_vec(),
                    Request::GET_MAX_MEM_SLOTS => 32u64.to_ne_bytes().to_vec(),
                    Request::GET_STATUS => 15u64.to_ne_bytes().to_vec(),
                    Request::GET_VRING_BASE => [first, 0, 0, 0, 0, 0, 0, 0].to_vec(),
                    Request::GET_CONFIG => {
                        let mut body = message.body.clone();
                        body[12..].copy_from_slice(&[2, 0, 0, 0, 0, 9, 1, 0, 1, 0, 0xdc, 5]);
                        body
                    }
                    _ if message.flags & NEED_REPLY != 0 => 0u64.to_ne_bytes().to_vec(),
                    _ => continue,
                };
                raw.send(request, REPLY, &body, &[]).unwrap();
            }
            log
        })
    }
}

const EVERYTHING: u64 = protocol::MQ
    | protocol::RARP
    | protocol::REPLY_ACK
    | protocol::NET_MTU
    | protocol::BACKEND_REQ
    | protocol::CONFIG
    | protocol::RESET_DEVICE
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::STATUS;

fn start(order: MessageOrder, offered: u64) -> (Guest, JoinHandle<Vec<String>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let queues = if order == MessageOrder::CloudHypervisor { 2 } else { 1 };
    let recorder = Recorder { stream: theirs, offered, protocol: EVERYTHING, queues }.record();
    let mut config = Config::new(Connect::Stream(ours)).under(order);
    config.regions = 2;
    config.mtu = Some(1400);
    (Guest::connect(config).unwrap(), recorder)
}

fn messages(text: &str) -> Vec<String> {
    text.split(',').map(|word| word.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn plain_goes_from_features_to_rings() {
    let (guest, recorder) = start(MessageOrder::Plain, features::DEFAULT);
    drop(guest);
    let expected = messages(
        "SET_OWNER, GET_FEATURES, GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM,
        GET_MAX_MEM_SLOTS, GET_CONFIG, SET_FEATURES, ADD_MEM_REG, ADD_MEM_REG,
        SET_VRING_NUM 0, SET_VRING_BASE 0, SET_VRING_ADDR 0, SET_VRING_KICK 0, SET_VRING_CALL 0,
        SET_VRING_NUM 1, SET_VRING_BASE 1, SET_VRING_ADDR 1, SET_VRING_KICK 1, SET_VRING_CALL 1,
        SET_VRING_ENABLE 0, SET_VRING_ENABLE 1",
    );
    assert_eq!(recorder.join().unwrap(), expected);
}

#[test]
fn qemu_enables_first_and_asks_again_on_reload() {
    let (mut guest, recorder) = start(MessageOrder::Qemu, features::DEFAULT);
    assert_eq!(guest.status().unwrap(), 15);
    guest.send_rarp([2, 0, 0, 0, 0, 1]).unwrap();
    guest.reload(None).unwrap();
    drop(guest);
    let enables = "SET_VRING_CALL 0, SET_VRING_CALL 1, SET_VRING_ENABLE 0, SET_VRING_ENABLE 1,
        SET_VRING_ENABLE 0, SET_VRING_ENABLE 1, SET_VRING_ENABLE 0, SET_VRING_ENABLE 1,
        SET_FEATURES, SET_STATUS 8, NET_SET_MTU 1400";
    let rings = "SET_VRING_NUM 0, SET_VRING_BASE 0, SET_VRING_ADDR 0, SET_VRING_KICK 0,
        SET_VRING_CALL 0, SET_VRING_NUM 1, SET_VRING_BASE 1, SET_VRING_ADDR 1, SET_VRING_KICK 1,
        SET_VRING_CALL 1, SET_STATUS 15";
    let expected = messages(&format!(
        "GET_FEATURES, GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM,
        GET_MAX_MEM_SLOTS, SET_OWNER, GET_FEATURES, {enables}, ADD_MEM_REG, ADD_MEM_REG, {rings},
        GET_STATUS, SEND_RARP, GET_VRING_BASE 0, GET_VRING_BASE 1, SET_STATUS 0, {enables}, {rings}"
    ));
    assert_eq!(recorder.join().unwrap(), expected);
}

#[test]
fn cloud_hypervisor_has_one_table_and_addresses_before_base() {
    let (guest, recorder) = start(MessageOrder::CloudHypervisor, features::DEFAULT);
    drop(guest);
    let expected = messages(
        "SET_OWNER, GET_FEATURES, GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM,
        GET_MAX_MEM_SLOTS, GET_CONFIG, SET_FEATURES, SET_MEM_TABLE,
        SET_VRING_NUM 0, SET_VRING_ADDR 0, SET_VRING_BASE 0, SET_VRING_CALL 0, SET_VRING_KICK 0,
        SET_VRING_NUM 1, SET_VRING_ADDR 1, SET_VRING_BASE 1, SET_VRING_CALL 1, SET_VRING_KICK 1,
        SET_VRING_ENABLE 0, SET_VRING_ENABLE 1",
    );
    assert_eq!(recorder.join().unwrap(), expected);
}

#[test]
fn uml_brings_a_channel_and_calls_first() {
    let (guest, recorder) = start(MessageOrder::Uml, features::DEFAULT);
    assert!(guest.backend_channel().is_some());
    drop(guest);
    let expected = messages(
        "SET_OWNER, GET_FEATURES, GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES,
        SET_BACKEND_REQ_FD, GET_CONFIG, SET_FEATURES, SET_MEM_TABLE,
        SET_VRING_CALL 0, SET_VRING_NUM 0, SET_VRING_BASE 0, SET_VRING_ADDR 0,
        SET_VRING_CALL 1, SET_VRING_NUM 1, SET_VRING_BASE 1, SET_VRING_ADDR 1,
        SET_VRING_KICK 0, SET_VRING_ENABLE 0, SET_VRING_KICK 1, SET_VRING_ENABLE 1",
    );
    assert_eq!(recorder.join().unwrap(), expected);
}

#[test]
fn without_protocol_features_nothing_is_enabled() {
    for order in [MessageOrder::Plain, MessageOrder::Qemu, MessageOrder::Uml] {
        let offered = features::DEFAULT & !features::PROTOCOL_FEATURES;
        let (guest, recorder) = start(order, offered);
        assert_eq!(guest.acked() & features::PROTOCOL_FEATURES, 0);
        drop(guest);
        let log = recorder.join().unwrap();
        assert!(log.iter().any(|message| message == "SET_MEM_TABLE"));
        assert!(!log.iter().any(|message| message.contains("ENABLE") || message.contains("PROTO")));
    }
}

#[test]
fn more_queues_than_there_are_is_an_error() {
    for (order, queues) in [(MessageOrder::Qemu, 1), (MessageOrder::CloudHypervisor, 3)] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let offered = features::DEFAULT;
        let recorder = Recorder { stream: theirs, offered, protocol: EVERYTHING, queues }.record();
        let mut config = Config::new(Connect::Stream(ours)).under(order);
        config.queue_pairs = 2;
        let error = Guest::connect(config).unwrap_err();
        assert!(matches!(error, guest::Error::TooFewQueues { wanted: 2, .. }), "{error}");
        recorder.join().unwrap();
    }
}

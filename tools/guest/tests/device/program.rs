//! The program: its verdict, its exit code, its lines.

use std::process::{Command, Output};

use guest::NetHeader;
use guest::features::DEFAULT;
use packet::{Burst, Pool};
use traffic::{StreamConfig, Streams};

use crate::backend::{Delivery, Device};

/// A device that answers each frame with the next ones of a stream, the last byte of one changed.
fn device(stream: StreamConfig, wrong: Option<u64>) -> Device {
    let mut streams = Streams::new(stream);
    let (mut pool, mut burst, mut number) = (Pool::new(8, 2048), Burst::new(8), 0);
    Device::new(DEFAULT, 1, move |_, _| {
        streams.fill(&mut burst, &mut pool);
        let frames = burst.drain().map(|frame| {
            let mut bytes = frame.head().to_vec();
            number += 1;
            if wrong == Some(number) {
                *bytes.last_mut().unwrap() ^= 1;
            }
            pool.recycle(frame);
            Delivery::lawful(NetHeader::default(), &bytes)
        });
        frames.collect()
    })
}

fn program(device: &Device, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vhost-user-guest"))
        .args(["--socket-path", device.path.to_str().unwrap()])
        .args(arguments)
        .output()
        .unwrap()
}

fn stream() -> StreamConfig {
    StreamConfig { flows: 3, payload: 1000, ipv6: true, ..StreamConfig::default() }
}

const CHECK: &[&str] =
    &["--check", "flows=3,payload=1000,ipv6", "--send", "pps=2000,size=100", "--count", "800"];

#[test]
fn traffic_that_is_right_is_found_right() {
    for more in [&["--lossless"][..], &["--json", "--wait"]] {
        let device = device(stream(), None);
        let output = program(&device, &[CHECK, more].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        if more.contains(&"--json") {
            let last: serde_json::Value =
                serde_json::from_str(text.lines().last().unwrap()).unwrap();
            assert_eq!(last["verdict"], "ok");
            let packets = last["rx_packets"].as_u64().unwrap();
            assert!(packets >= 800);
            assert_eq!(last["checked_bytes"], packets * 1000);
            assert_eq!(last["lost_bytes"], 0);
        } else {
            assert!(text.ends_with("verdict: ok\n"), "{text}");
        }
    }
}

#[test]
fn a_wrong_byte_is_exit_code_1() {
    let device = device(stream(), Some(500));
    let output = program(&device, CHECK);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("verdict: bytes differ"), "{text}");
}

#[test]
fn what_can_not_begin_is_exit_code_2() {
    let device = device(stream(), None);
    for arguments in [&["--queue-size", "100"][..], &["--send", "pps"], &["--features", "teleport"]]
    {
        let output = program(&device, arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(!output.stderr.is_empty());
    }
    // The device was never asked; it ends when somebody comes and goes.
    drop(std::os::unix::net::UnixStream::connect(&device.path).unwrap());
}

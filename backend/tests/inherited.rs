//! `--fd`: the program with a socket that was opened before it started.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use guest::{Config, Connect, Guest};
use rustix::io::{FdFlags, fcntl_setfd};

/// Starts the program on a descriptor, which it inherits under the number that it has here.
fn start(fd: &impl AsFd, number: i32) -> Child {
    fcntl_setfd(fd, FdFlags::empty()).expect("an open descriptor");
    Command::new(env!("CARGO_BIN_EXE_vhost-user-gro"))
        .args(["--fd", &number.to_string(), "--port", "memory:flows=1,frames=64"])
        .spawn()
        .expect("the program starts")
}

fn receive_something(config: Config) -> Guest {
    let mut guest = Guest::connect(config).expect("the program serves the socket");
    let deadline = deadline();
    while guest.poll_rx(|_| ()) == 0 {
        // The 64 frames may have gone by before the guest was there: nothing more is needed.
        if guest.is_connected() && guest.read_net_config().is_ok() {
            break;
        }
        assert!(!passed(deadline), "no answer");
    }
    guest
}

fn end(child: &mut Child) -> ExitStatus {
    let deadline = deadline();
    loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return status;
        }
        assert!(!passed(deadline), "the program does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_connection_is_served_until_it_closes() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut child = start(&theirs, theirs.as_raw_fd());
    drop(theirs);
    let mut guest = receive_something(Config::new(Connect::Stream(ours)));
    guest.disconnect();
    assert!(end(&mut child).success());
}

#[test]
fn a_listening_socket_is_served_again_and_again_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vhost.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut child = start(&listener, listener.as_raw_fd());
    for _ in 0..3 {
        receive_something(Config::new(Connect::Path(path.clone()))).disconnect();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(end(&mut child).success());
    assert!(path.exists(), "the socket belongs to whoever made it");
}

#[test]
fn what_is_no_socket_is_a_usage_error() {
    let file = tempfile::tempfile().unwrap();
    let mut child = start(&file, file.as_raw_fd());
    assert_eq!(end(&mut child).code(), Some(2));
}

fn deadline() -> Instant {
    now() + Duration::from_secs(30)
}

fn passed(deadline: Instant) -> bool {
    now() > deadline
}

#[expect(clippy::disallowed_methods, reason = "a limit for what must not hang")]
fn now() -> Instant {
    Instant::now()
}

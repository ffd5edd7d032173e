//! Network namespaces for a test, gone when it ends.
//!
//! A namespace is made by `ip netns add` and entered by a thread of the test; what the thread starts
//! and opens belongs to it.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace of the test's own.
pub(crate) struct NetNs {
    pub(crate) name: String,
}

impl NetNs {
    /// A new namespace without IPv6 chatter, or `None` (and a word why) when that is not allowed.
    pub(crate) fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("port-{}-{number}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        match made {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                eprintln!("skipped: ip netns: {}", String::from_utf8_lossy(&output.stderr).trim());
                return None;
            }
            Err(error) => {
                eprintln!("skipped: ip: {error}");
                return None;
            }
        }
        let ns = Self { name };
        ns.enter(|| {
            // The stack would send neighbour and router messages of its own.
            for which in ["all", "default"] {
                let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
                let _ = std::fs::write(path, "1");
            }
        });
        ns.ip("link set lo up");
        Some(ns)
    }

    /// Two namespaces and a veth pair between them: `va` in the first, `vb` in the second, both up.
    pub(crate) fn pair() -> Option<(Self, Self)> {
        let (left, right) = (Self::new()?, Self::new()?);
        left.ip(&format!("link add va type veth peer name vb netns {}", right.name));
        left.ip("link set va up");
        right.ip("link set vb up");
        Some((left, right))
    }

    /// Runs `ip` in the namespace; it has to succeed.
    pub(crate) fn ip(&self, arguments: &str) {
        self.run(&format!("ip {arguments}"));
    }

    /// Runs a command in the namespace; it has to succeed.
    pub(crate) fn run(&self, command: &str) {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.name])
            .args(command.split_whitespace())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}");
    }

    /// Runs a closure in a thread that is in the namespace, and waits for it.
    pub(crate) fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(file.as_fd(), network).unwrap();
                body()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

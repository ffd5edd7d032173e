//! Network namespaces made for a test, and removed with it.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::command::run;

/// Every namespace of ours is called `vug-<pid of the test program>-<role>`.
const PREFIX: &str = "vug-";

/// A named network namespace.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes the namespace for `role`, with its loopback interface up.
    pub fn new(role: &str) -> Result<Self> {
        let name = format!("{PREFIX}{}-{role}", std::process::id());
        run("ip", &["netns", "add", &name])?;
        let namespace = Self { name };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` in it.
    pub fn ip(&self, args: &[&str]) -> Result<String> {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend_from_slice(args);
        run("ip", &all)
    }

    /// Runs any tool in it.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut all = vec!["netns", "exec", self.name.as_str(), program];
        all.extend_from_slice(args);
        run("ip", &all)
    }

    /// Sets a value under /proc/sys/net.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let script = format!("echo {value} > /proc/sys/net/{key}");
        self.run("sh", &["-c", &script]).map(|_| ())
    }

    /// A command that will run in it, under its own process id (`ip netns exec` replaces itself).
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A leftover is removed by the next run, see `remove_leftovers`.
        let _ = run("ip", &["netns", "del", &self.name]);
    }
}

/// Removes the namespaces of earlier test programs that died before they could.
pub fn remove_leftovers() -> Result<()> {
    for line in run("ip", &["netns", "list"])?.lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        if owner(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            run("ip", &["netns", "del", name])?;
        }
    }
    Ok(())
}

/// The process id in the name of one of our namespaces.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_namespaces_have_an_owner() {
        assert_eq!(owner("vug-123-peer"), Some(123));
        assert_eq!(owner("vug-x-peer"), None);
        assert_eq!(owner("blue"), None);
        assert_eq!(owner(""), None);
    }
}

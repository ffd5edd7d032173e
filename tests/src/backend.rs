//! The backend under test, as a process.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{lab::Lab, process::Process, time::wait_for};

/// Names the program to test; without it, `target/release/vhost-user-gro` is taken.
pub const PROGRAM_VARIABLE: &str = "VHOST_USER_GRO";

/// A backend on the wire of a [`Lab`], listening on a socket. It can be killed and started again.
#[derive(Debug)]
pub struct Backend {
    process: Process,
    socket: PathBuf,
}

impl Backend {
    /// Starts it with further options and waits until it listens.
    pub fn start(lab: &Lab, options: &[&str]) -> Result<Self> {
        let socket = lab.socket();
        let mut command = lab.dut().command(&program()?);
        command.arg("--socket-path").arg(&socket).args(["--port", lab.port()]).args(options);
        log_level(&mut command);
        let mut process = Process::spawn("backend", lab.logs(), command)?;
        wait_for("the backend to listen on its socket", START_LIMIT, || {
            if let Some(status) = process.ended()? {
                bail!("the backend ended at start ({status})");
            }
            // The socket's file may be one that a killed backend left: ask who listens.
            Ok(listens(&process, &socket)?.then_some(()))
        })?;
        Ok(Self { process, socket })
    }

    /// Starts it as the side that connects, to the socket a VMM listens on.
    pub fn start_client(lab: &Lab, socket: &Path, options: &[&str]) -> Result<Self> {
        let mut command = lab.dut().command(&program()?);
        command.arg("--client").arg("--socket-path").arg(socket).args(["--port", lab.port()]);
        command.args(options);
        log_level(&mut command);
        let process = Process::spawn("backend", lab.logs(), command)?;
        Ok(Self { process, socket: socket.to_owned() })
    }

    /// The socket it listens on, or connects to.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ends it with SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill()
    }

    /// Ends it with SIGTERM, as a service manager does. It has to leave at once, with success.
    pub fn stop(mut self) -> Result<()> {
        let status = self.process.terminate(STOP_LIMIT).context("after SIGTERM")?;
        if !status.success() {
            bail!("the backend ended with {status} after SIGTERM");
        }
        Ok(())
    }

    /// Fails if it is no longer running.
    pub fn check_running(&mut self) -> Result<()> {
        match self.process.ended()? {
            None => Ok(()),
            Some(status) => bail!("the backend ended by itself ({status})"),
        }
    }
}

/// The program to test.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(PROGRAM_VARIABLE) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("{PROGRAM_VARIABLE} names {}, which is no file", path.display());
        }
        return Ok(path);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    let path = target.join("release/vhost-user-gro");
    if !path.is_file() {
        bail!("no {}: cargo build --release -p vhost-user-gro", path.display());
    }
    Ok(path)
}

/// What the tests are run with, or enough to see what happened.
fn log_level(command: &mut Command) {
    if std::env::var_os("RUST_LOG").is_none() {
        command.env("RUST_LOG", "info");
    }
}

/// A command for the program with `options`, outside of any namespace.
pub fn command(options: &[impl AsRef<OsStr>]) -> Result<Command> {
    let mut command = Command::new(program()?);
    command.args(options);
    Ok(command)
}

/// Whether a socket in the network namespace of `process` listens at `path` (/proc/net/unix, proc(5)).
fn listens(process: &Process, path: &Path) -> Result<bool> {
    let table = format!("/proc/{}/net/unix", process.id());
    match fs::read_to_string(&table) {
        Ok(text) => Ok(listens_in(&text, &path.to_string_lossy())),
        Err(_) if !Path::new(&table).exists() => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot read {table}")),
    }
}

fn listens_in(table: &str, path: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        matches!(fields[..], [_, _, _, ACCEPTS_CONNECTIONS, _, _, _, bound] if bound == path)
    })
}

/// `__SO_ACCEPTCON` of the kernel, as the table prints it.
const ACCEPTS_CONNECTIONS: &str = "00010000";
const START_LIMIT: Duration = Duration::from_secs(15);
const STOP_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listening_socket_counts() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0000: 00000003 00000000 00000000 0001 03 7 /b\n\
                     0000: 00000002 00000000 00010000 0001 01 8 /a\n\
                     0000: 00000002 00000000 00010000 0001 01 9\n";
        assert!(listens_in(table, "/a"));
        assert!(!listens_in(table, "/b"));
    }
}

//! The backend under test, as a process.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{command::release_program, lab::Lab, process::Process, time::wait_for};

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
        // A backend that was killed has left the socket's file: wait for another one.
        let left = file(&socket);
        let mut process = Process::spawn("backend", lab.logs(), command)?;
        wait_for("the backend to make its socket", START_LIMIT, || {
            if let Some(status) = process.ended()? {
                bail!("the backend ended at start ({status})");
            }
            let found = file(&socket);
            Ok((found.is_some() && found != left).then_some(()))
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

    /// Waits until it ends by itself; tells how, and what it printed.
    pub fn wait(mut self, limit: Duration) -> Result<(ExitStatus, String)> {
        let status = self.process.wait(limit)?;
        Ok((status, self.process.output()?))
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
    release_program("vhost-user-gro")
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

/// What tells a file from another one of the same name: inode, and when that was written.
fn file(path: &Path) -> Option<(u64, i64, i64)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

const START_LIMIT: Duration = Duration::from_secs(15);
const STOP_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_made_again_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert_eq!(file(&path), None);
        fs::write(&path, "").unwrap();
        let first = file(&path);
        assert_eq!(file(&path), first);
        fs::remove_file(&path).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&path, "").unwrap();
        assert_ne!(file(&path), first);
    }
}

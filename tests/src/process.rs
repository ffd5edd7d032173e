//! A process started by a test: its output goes to a log, and it ends with the test.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{command::find_program, time::wait_for};

/// A running process and the log its stdout and stderr go to. Ended when dropped: asked first, then
/// killed, with all it started (it leads a process group of its own).
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Bytes of the log that were there before this process: a restarted one appends.
    log_start: u64,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `command`; `name` is for messages, and names the log `<dir>/<name>.log`.
    pub fn spawn(name: &str, dir: &Path, command: Command) -> Result<Self> {
        let mut command = tied_to_us(command);
        let log = dir.join(format!("{name}.log"));
        let mut out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open the log {}", log.display()))?;
        writeln!(out, "$ {command:?}")
            .with_context(|| format!("cannot write {}", log.display()))?;
        let log_start = log_len(&out)?;
        let err = out.try_clone().context("cannot duplicate the log's descriptor")?;
        let child = command
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}: {command:?}"))?;
        Ok(Self { name: name.to_owned(), child, log, log_start, ended: None })
    }

    /// The file its output goes to.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it printed since it was started.
    pub fn output(&self) -> Result<String> {
        let bytes = fs::read(&self.log)
            .with_context(|| format!("cannot read the log {}", self.log.display()))?;
        let start = usize::try_from(self.log_start).unwrap_or(usize::MAX).min(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[start..]).into_owned())
    }

    /// The exit status, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended =
                self.child.try_wait().with_context(|| format!("cannot wait for {}", self.name))?;
        }
        Ok(self.ended)
    }

    /// Waits until `find` sees what it looks for in the output. Ending too early is an error.
    pub fn wait_for_output<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut find: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        let what = format!("{}: {what}", self.name);
        wait_for(&what, limit, || {
            // Ask for the end first: what was printed before it is then complete.
            let ended = self.ended()?;
            if let Some(found) = find(&self.output()?) {
                return Ok(Some(found));
            }
            if let Some(status) = ended {
                bail!("{} ended ({status}) before {what}", self.name);
            }
            Ok(None)
        })
    }

    /// Waits for its end.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        wait_for(&what, limit, || self.ended())
    }

    /// Asks it to end (SIGTERM) and waits for that.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(limit)
    }

    /// Ends it at once (SIGKILL), with what it started.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.wait(Duration::from_secs(10)).map(|_| ())
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.ended()?.is_some() {
            return Ok(());
        }
        // Not waited for yet, so the id is still its own and cannot be another's.
        let group = Pid::from_child(&self.child);
        kill_process_group(group, signal)
            .with_context(|| format!("cannot send {signal:?} to {}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.terminate(Duration::from_secs(3)).is_err() {
            // Nobody to tell here; a process that outlives SIGKILL is the machine's trouble.
            let _ = self.kill();
        }
    }
}

/// The same command, to be killed by the kernel should this program end without dropping it.
fn tied_to_us(command: Command) -> Command {
    let Some(setpriv) = find_program("setpriv") else {
        return command;
    };
    let mut tied = Command::new(setpriv);
    tied.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => tied.env(name, value),
            None => tied.env_remove(name),
        };
    }
    tied
}

fn log_len(log: &File) -> Result<u64> {
    Ok(log.metadata().context("cannot read the size of the log")?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_awaited() {
        let dir = tempfile::tempdir().unwrap();
        let mut process =
            Process::spawn("talker", dir.path(), shell("echo hello; exec sleep 60")).unwrap();
        let found = process.wait_for_output("a greeting", LIMIT, |text| text.find("hello"));
        assert_eq!(found.unwrap(), 0);
        assert!(process.ended().unwrap().is_none());
    }

    #[test]
    fn an_early_end_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Process::spawn("short", dir.path(), shell("exit 3")).unwrap();
        let error = process.wait_for_output("a word", LIMIT, |_| None::<()>).unwrap_err();
        assert!(error.to_string().starts_with("short ended (exit status: 3)"), "{error}");
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let process = Process::spawn("sleeper", dir.path(), shell("exec sleep 60")).unwrap();
        let proc_dir = format!("/proc/{}", process.id());
        assert!(Path::new(&proc_dir).exists());
        drop(process);
        assert!(!Path::new(&proc_dir).exists());
    }
}

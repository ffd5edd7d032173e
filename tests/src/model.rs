//! The software model of a card, as a process: its driver is the backend, its network the peer's tap.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{command::release_program, netns::Namespace, process::Process, time::wait_for};

/// A running model.
#[derive(Debug)]
pub struct Model {
    process: Process,
    socket: PathBuf,
    report: PathBuf,
}

impl Model {
    /// Starts one in a namespace, with its socket in a directory of a short name; `way` is the option
    /// that says who comes there.
    pub fn start(
        logs: &Path,
        namespace: &Namespace,
        sockets: &Path,
        wire: &str,
        way: &str,
        options: &[&str],
    ) -> Result<Self> {
        let (socket, report) = (sockets.join("card.sock"), logs.join("model.json"));
        let mut command = namespace.command(&release_program("sfc-model")?);
        command.arg(way).arg(&socket).args(["--wire", wire]);
        command.arg("--report").arg(&report).args(options);
        let mut process = Process::spawn("model", logs, command)?;
        wait_for("the model to make its socket", LIMIT, || {
            if let Some(status) = process.ended()? {
                anyhow::bail!("the model ended at start ({status})");
            }
            Ok(socket.exists().then_some(()))
        })?;
        Ok(Self { process, socket, report })
    }

    /// Where its driver comes.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Waits until so many of the faults that were asked for have happened.
    pub fn wait_for_faults(&mut self, count: usize) -> Result<()> {
        self.process.wait_for_output("the faults", FAULT_LIMIT, |text| {
            (text.matches(" fault: ").count() >= count).then_some(())
        })
    }

    /// Ends it, and reads what it counted.
    pub fn stop(mut self) -> Result<Report> {
        let status = self.process.terminate(LIMIT)?;
        ensure!(status.success(), "the model ended with {status}");
        let text = fs::read_to_string(&self.report)
            .with_context(|| format!("cannot read {}", self.report.display()))?;
        Ok(Report(serde_json::from_str(&text).context("the model's report")?))
    }
}

/// What a model counted.
#[derive(Debug)]
pub struct Report(Value);

impl Report {
    /// Fails when its driver broke a rule of the card.
    pub fn check_no_violations(&self) -> Result<()> {
        let violations = &self.0["violations"];
        let total = violations["total"].as_u64().context("no violations in the report")?;
        ensure!(total == 0, "the driver broke rules of the card: {violations}");
        Ok(())
    }

    /// A counter.
    pub fn count(&self, name: &str) -> Result<u64> {
        self.0[name].as_u64().with_context(|| format!("no counter {name} in {}", self.0))
    }
}

const LIMIT: Duration = Duration::from_secs(10);
const FAULT_LIMIT: Duration = Duration::from_secs(30);

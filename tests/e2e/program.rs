//! The program by itself: the demo, its memory, and how it leaves.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    backend,
    process::Process,
    suite::{Test, note},
    time::wait_for,
};

use crate::cli::pcap;

pub(crate) const TESTS: &[Test] = &[
    test("demo_without_privileges", |logs| demo(logs, &[])),
    test("demo_with_the_model_of_a_card", |logs| demo(logs, &["--nic", "model"])),
    test("idle_memory_under_16_mb", idle_memory),
    test("sigterm_ends_it_with_a_summary", sigterm),
];

const fn test(name: &'static str, run: fn(&Path) -> Result<()>) -> Test {
    Test { name, needs: &[], run }
}

/// The first command of the README, as a user with no rights at all.
fn demo(logs: &Path, options: &[&str]) -> Result<()> {
    let place = tempfile::tempdir().context("cannot make a directory")?;
    let program = place.path().join("vhost-user-gro");
    fs::copy(backend::program()?, &program).context("cannot copy the program")?;
    for path in [place.path(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("cannot set the permissions of {}", path.display()))?;
    }
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["--bounding-set=-all", "--no-new-privs", "--"]).arg(&program);
        command
    } else {
        Command::new(&program)
    };
    command.args(["demo", "--seconds", "2"]).args(options).env("TMPDIR", "/tmp");
    let mut process = Process::spawn("backend", logs, command)?;
    let status = process.wait(Duration::from_secs(30))?;
    let output = process.output()?;
    ensure!(status.success(), "the demo ended with {status}");
    note(output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default());
    Ok(())
}

/// Without its packet buffers (256 of 2 KiB remain), an idle backend is small.
fn idle_memory(logs: &Path) -> Result<()> {
    let place = tempfile::tempdir().context("cannot make a directory")?;
    let (process, _) = start(logs, place.path(), &["--buffers", "256"])?;
    thread::sleep(Duration::from_millis(500));
    let path = format!("/proc/{}/status", process.id());
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let resident_kb: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok())
        .with_context(|| format!("no VmRSS in {path}"))?;
    note(&format!("{resident_kb} KB resident"));
    ensure!(resident_kb < 16 * 1024, "{resident_kb} KB are resident, not under 16 MB");
    Ok(())
}

fn sigterm(logs: &Path) -> Result<()> {
    let place = tempfile::tempdir().context("cannot make a directory")?;
    let (mut process, socket) = start(logs, place.path(), &[])?;
    let status = process.terminate(Duration::from_secs(2)).context("after SIGTERM")?;
    ensure!(status.success(), "it ended with {status} after SIGTERM");
    ensure!(!process.output()?.trim().is_empty(), "no summary was printed");
    ensure!(!socket.exists(), "the socket's file was left behind");
    Ok(())
}

/// A backend that replays a capture and waits for a front end.
fn start(logs: &Path, place: &Path, options: &[&str]) -> Result<(Process, PathBuf)> {
    let socket = place.join("v.sock");
    let port = format!("pcap:{},loop,pps=1000", pcap(place)?);
    let mut command = backend::command(&["--port", port.as_str()])?;
    command.arg("--socket-path").arg(&socket).args(options).env_remove("RUST_LOG");
    let mut process = Process::spawn("backend", logs, command)?;
    wait_for("the socket", Duration::from_secs(10), || {
        ensure!(process.ended()?.is_none(), "the backend ended at start");
        Ok(socket.exists().then_some(()))
    })?;
    Ok((process, socket))
}

//! The command line: bad input gets one line that says what and how to mend it, and exit code 2.

use std::{
    fs::{self, File},
    os::unix::net::UnixListener,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use e2e::{backend, process::Process, suite::Test};

pub(crate) const TESTS: &[Test] = &[
    test("cli_unknown_option", |dir| refused(dir, &["--no-such-option"], "--no-such-option")),
    test("cli_no_socket", |dir| refused_raw(dir, &["--port", "tap:x"], "--socket-path")),
    test("cli_no_port", |dir| {
        let socket = socket(dir);
        refused_raw(dir, &["--socket-path", &socket], "--port")
    }),
    test("cli_unknown_kind_of_port", |dir| refused(dir, &["--port", "carrier:pigeon"], "carrier")),
    test("cli_missing_interface", |dir| {
        refused(dir, &["--port", "packet:no-such-if"], "no-such-if")
    }),
    test("cli_missing_pcap", |dir| {
        refused(dir, &["--port", "pcap:/no/such.pcap"], "/no/such.pcap")
    }),
    test("cli_no_pcap", |dir| {
        let path = dir.join("text.pcap");
        fs::write(&path, "this is no capture, but it is long enough to be taken for one\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        refused(dir, &["--port", &format!("pcap:{}", path.display())], "text.pcap")
    }),
    test("cli_empty_pcap", |dir| {
        let path = dir.join("empty.pcap");
        File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        refused(dir, &["--port", &format!("pcap:{}", path.display())], "empty.pcap")
    }),
    test("cli_bad_pcap_option", |dir| {
        let pcap = pcap(dir)?;
        refused(dir, &["--port", &format!("pcap:{pcap},pps=fast")], "fast")
    }),
    test("cli_normal_batch_of_zero", |dir| {
        let port = format!("pcap:{}", pcap(dir)?);
        refused(dir, &["--port", &port, "--gro-normal-batch", "0"], "--gro-normal-batch")
    }),
    test("cli_gro_maybe", |dir| {
        let port = format!("pcap:{}", pcap(dir)?);
        refused(dir, &["--port", &port, "--gro", "maybe"], "maybe")
    }),
    test("cli_unknown_feature", |dir| {
        let port = format!("pcap:{}", pcap(dir)?);
        refused(dir, &["--port", &port, "--disable-feature", "warp_drive"], "warp_drive")
    }),
    test("cli_bad_mac", |dir| {
        let port = format!("pcap:{}", pcap(dir)?);
        refused(dir, &["--port", &port, "--mac", "52:54"], "52:54")
    }),
    test("cli_socket_in_use", |dir| {
        let port = format!("pcap:{}", pcap(dir)?);
        let short = tempfile::tempdir().context("cannot make a directory")?;
        let socket = short.path().join("used.sock");
        let _used = UnixListener::bind(&socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        let socket = socket.to_string_lossy();
        refused_raw(dir, &["--port", &port, "--socket-path", &socket], "used.sock")
    }),
    test("cli_socket_in_no_directory", |dir| {
        let port = format!("pcap:{}", pcap(dir)?);
        let socket = "/no/such/directory/v.sock";
        refused_raw(dir, &["--port", &port, "--socket-path", socket], socket)
    }),
    test("cli_socket_path_is_a_file", |dir| {
        let port = format!("pcap:{}", pcap(dir)?);
        let path = dir.join("precious.txt");
        fs::write(&path, "precious").with_context(|| format!("cannot write {}", path.display()))?;
        let socket = path.to_string_lossy();
        refused_raw(dir, &["--port", &port, "--socket-path", &socket], "precious.txt")?;
        ensure!(fs::read(&path)? == b"precious", "the file was touched");
        Ok(())
    }),
];

const fn test(name: &'static str, run: fn(&Path) -> Result<()>) -> Test {
    Test { name, needs: &[], run }
}

/// Runs the backend with a socket of its own and `options`; see [`refused_raw`].
fn refused(dir: &Path, options: &[&str], named: &str) -> Result<()> {
    let short = tempfile::tempdir().context("cannot make a directory")?;
    let socket = socket(short.path());
    // Every refusal but that of a port needs a port that would do.
    let mut all = vec!["--socket-path", &socket];
    let port = format!("pcap:{}", pcap(dir)?);
    if !options.contains(&"--port") {
        all.extend_from_slice(&["--port", &port]);
    }
    all.extend_from_slice(options);
    refused_raw(dir, &all, named)
}

/// The backend has to refuse `options`: exit code 2 and one line on stderr that contains `named`.
fn refused_raw(dir: &Path, options: &[&str], named: &str) -> Result<()> {
    let mut command = backend::command(options)?;
    command.env("RUST_BACKTRACE", "1").env_remove("RUST_LOG");
    let mut process = Process::spawn("backend", dir, command)?;
    let status = process.wait(Duration::from_secs(10)).context("it was not refused")?;
    let output = process.output()?;
    ensure!(status.code() == Some(2), "it ended with {status}, not with exit code 2:\n{output}");
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    ensure!(lines.len() == 1, "{} lines were printed, not one:\n{output}", lines.len());
    ensure!(lines[0].contains(named), "the line does not name {named}: {}", lines[0]);
    Ok(())
}

fn socket(dir: &Path) -> String {
    dir.join("v.sock").to_string_lossy().into_owned()
}

/// A capture file with one frame in it (libpcap's format, microseconds, Ethernet).
pub(crate) fn pcap(dir: &Path) -> Result<String> {
    let path = dir.join("one.pcap");
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1, 0, 0, 60, 60] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&[0xff; 60]);
    fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.to_string_lossy().into_owned())
}

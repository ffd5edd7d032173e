//! Runs the tests one after the other and says of each: ok, failed with the ends of all its logs, or
//! skipped with the reason.

use std::{
    fmt, fs,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{
    backend, command,
    kernel::Kernel,
    netns::{self, Namespace},
    qemu,
    time::{Deadline, Stopwatch},
    uml,
};

/// Without this variable nothing is run: `cargo test --workspace` leaves the machine alone.
pub const RUN_VARIABLE: &str = "E2E";
/// Names the directory of the logs; without it, `e2e-logs` beside the test program's build.
pub const LOGS_VARIABLE: &str = "E2E_LOGS";

/// A test.
#[derive(Clone, Copy)]
pub struct Test {
    /// What it shows.
    pub name: &'static str,
    /// What it cannot do without.
    pub needs: &'static [Need],
    /// Runs it, with a directory of its own for logs.
    pub run: fn(&Path) -> Result<()>,
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Something of the machine a test cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Network namespaces with a veth pair, and ethtool.
    Namespaces,
    /// Tap interfaces.
    Tap,
    /// QEMU, a kernel for it, and busybox.
    Qemu,
    /// QEMU and its boot ROM for virtio-net.
    BootRom,
    /// A User Mode Linux kernel and busybox.
    Uml,
}

impl Need {
    /// Why it is not there, if it is not.
    fn missing(self) -> Option<String> {
        let found = match self {
            Self::Namespaces => namespaces(),
            Self::Tap => tap(),
            Self::Qemu => program(qemu::PROGRAM, "qemu-system-x86")
                .and_then(|()| program("busybox", "busybox-static"))
                .and_then(|()| Kernel::find().map(|_| ())),
            Self::BootRom => program(qemu::PROGRAM, "qemu-system-x86").and_then(|()| boot_rom()),
            Self::Uml => {
                program("busybox", "busybox-static").and_then(|()| uml::kernel().map(|_| ()))
            }
        };
        found.err().map(|error| format!("{error:#}").replace('\n', " "))
    }
}

/// Runs those of `tests` whose name contains one of the program's arguments, or all. `--list` names
/// them only.
pub fn main(tests: &[Test]) -> ExitCode {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--nocapture").collect();
    if arguments.iter().any(|argument| argument == "--list") {
        for test in tests {
            say(&format!("{}: test", test.name));
        }
        return ExitCode::SUCCESS;
    }
    if std::env::var_os(RUN_VARIABLE).is_none_or(|value| value != "1") {
        say(&format!("end-to-end tests: none run here; tests/run does, or {RUN_VARIABLE}=1"));
        return ExitCode::SUCCESS;
    }
    match run(tests, &arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("end-to-end tests cannot run: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected tests and returns how many failed.
fn run(tests: &[Test], filters: &[String]) -> Result<usize> {
    backend::program()?;
    let logs = logs_directory()?;
    if Need::Namespaces.missing().is_none() {
        netns::remove_leftovers()?;
    }
    let selected = |test: &&Test| {
        let wanted = |filter: &String| test.name.contains(filter.as_str());
        filters.is_empty() || filters.iter().any(wanted)
    };
    let deadline = Deadline::after(TOTAL_LIMIT);
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for test in tests.iter().filter(selected) {
        if deadline.passed() {
            say(&format!(
                "test {} ... FAILED: not run, the time for all tests is used up",
                test.name
            ));
            failed += 1;
            continue;
        }
        if let Some(reason) = test.needs.iter().find_map(|need| need.missing()) {
            say(&format!("test {} ... skipped: {reason}", test.name));
            skipped += 1;
            continue;
        }
        let dir = logs.join(test.name);
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let watch = Stopwatch::start();
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| (test.run)(&dir)))
            .unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked, see above")));
        let seconds = watch.elapsed().as_secs_f32();
        match outcome {
            Ok(()) => {
                say(&format!("test {} ... ok ({seconds:.1} s)", test.name));
                passed += 1;
            }
            Err(error) => {
                say(&format!("test {} ... FAILED ({seconds:.1} s): {error:#}", test.name));
                show_logs(&dir);
                failed += 1;
            }
        }
    }
    say(&format!("end-to-end: {passed} passed, {failed} failed, {skipped} skipped"));
    Ok(failed)
}

/// Says something a test measured.
pub fn note(text: &str) {
    say(&format!("     {text}"));
}

fn show_logs(dir: &Path) {
    for name in ["guest", "backend", "peer"] {
        let path = dir.join(format!("{name}.log"));
        if path.is_file() {
            say(&format!("---- the end of {}", path.display()));
            say(&command::tail(&path, TAIL_LINES));
        }
    }
    say("----");
}

fn logs_directory() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(LOGS_VARIABLE) {
        return Ok(PathBuf::from(path));
    }
    let test = std::env::current_exe().context("cannot tell where the test program is")?;
    let build = test.ancestors().nth(2).context("the test program has no directory")?;
    Ok(build.join("e2e-logs"))
}

fn program(name: &str, package: &str) -> Result<()> {
    command::find_program(name).map(|_| ()).with_context(|| format!("no {name} ({package})"))
}

fn namespaces() -> Result<()> {
    program("ip", "iproute2")?;
    program("ethtool", "ethtool")?;
    let probe = Namespace::new("probe").context("no network namespaces here, root is needed")?;
    probe.ip(&["link", "add", "probe0", "type", "veth", "peer", "name", "probe1"])?;
    // Entering one takes more rights than making one.
    probe.run("true", &[]).context("network namespaces cannot be entered here")?;
    Ok(())
}

fn tap() -> Result<()> {
    let probe = Namespace::new("probe")?;
    probe
        .ip(&["tuntap", "add", "dev", "probe0", "mode", "tap"])
        .context("no tap interfaces here")?;
    Ok(())
}

fn boot_rom() -> Result<()> {
    let found = BOOT_ROMS.iter().any(|path| Path::new(path).is_file());
    found.then_some(()).context("no boot ROM for virtio-net (ipxe-qemu)")
}

#[expect(clippy::print_stdout, reason = "the suite reports on stdout")]
fn say(line: &str) {
    println!("{line}");
}

const BOOT_ROMS: [&str; 2] =
    ["/usr/lib/ipxe/qemu/efi-virtio.rom", "/usr/share/qemu/efi-virtio.rom"];
const TAIL_LINES: usize = 30;
/// When nothing works, every test waits until its limit: this ends it.
const TOTAL_LIMIT: Duration = Duration::from_secs(15 * 60);

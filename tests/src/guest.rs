//! What a guest is given and what it answers: the initramfs, the plan, the lines on its console.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    command::find_program,
    cpio::Archive,
    kernel::Module,
    payload,
    peer::{GUEST_V4, GUEST_V6, PEER_V4, PEER_V6, TRANSFER_PORT},
    process::Process,
    time::Deadline,
};

/// The internet protocol a transfer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "4",
            Self::V6 => "6",
        })
    }
}

/// What the guest does once its interface is up, a step after the other; then it switches itself off.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    script: String,
}

impl Plan {
    /// Nothing to do.
    pub fn new() -> Self {
        Self::default()
    }

    /// IPv4 and IPv6, `bytes` to the guest and then back, each.
    pub fn both_ways(bytes: u64) -> Self {
        [Family::V4, Family::V6]
            .into_iter()
            .fold(Self::new(), |plan, family| plan.get(family, bytes).put(family))
    }

    /// Transfers to the guest without end.
    pub fn traffic(family: Family, bytes: u64) -> Self {
        Self { script: format!("traffic {family} {bytes}\n") }
    }

    /// Adds: the guest fetches `bytes`.
    pub fn get(self, family: Family, bytes: u64) -> Self {
        self.step(&format!("get {family} {bytes}"))
    }

    /// Adds: the driver lets go of its PCI device, and takes it again.
    pub fn rebind_driver(self) -> Self {
        self.step("rebind")
    }

    /// Adds: the guest sends back what it fetched last.
    pub fn put(self, family: Family) -> Self {
        self.step(&format!("put {family}"))
    }

    /// Adds: the guest unloads its network driver and loads it again.
    pub fn reload_driver(self) -> Self {
        self.step("reload")
    }

    /// Adds: the guest reboots. After that it follows the plan from its start.
    pub fn reboot(self) -> Self {
        self.step("reboot -f")
    }

    fn step(mut self, line: &str) -> Self {
        self.script.push_str(line);
        self.script.push('\n');
        self
    }
}

/// An initramfs that does what a plan says, in `dir`.
pub fn initramfs(dir: &Path, plan: &Plan, modules: &[Module]) -> Result<PathBuf> {
    let mut archive = busybox(INIT, modules)?;
    archive.file("addresses", 0o644, addresses().as_bytes());
    archive.file("plan", 0o644, plan.script.as_bytes());
    write(dir, archive)
}

/// An initramfs that runs a program of ours by a script of its own.
pub fn initramfs_with(
    dir: &Path,
    init: &str,
    program: &Path,
    modules: &[Module],
) -> Result<PathBuf> {
    let name = program.file_name().context("a program without a name")?.to_string_lossy();
    let content =
        fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let mut archive = busybox(init, modules)?;
    archive.file(&format!("bin/{name}"), 0o755, &content);
    write(dir, archive)
}

/// Busybox, an init script, and modules in the order to load them.
fn busybox(init: &str, modules: &[Module]) -> Result<Archive> {
    let busybox = find_program("busybox").context("no busybox: install busybox-static")?;
    let busybox =
        fs::read(&busybox).with_context(|| format!("cannot read {}", busybox.display()))?;
    let mut archive = Archive::new();
    for name in ["bin", "dev", "modules"] {
        archive.directory(name);
    }
    archive.device("dev/console", 5, 1);
    archive.device("dev/null", 1, 3);
    archive.file("bin/busybox", 0o755, &busybox);
    archive.link("bin/sh", "busybox");
    archive.file("init", 0o755, init.as_bytes());
    let mut order = String::new();
    for module in modules {
        archive.file(&format!("modules/{}", module.name), 0o644, &module.content);
        writeln!(order, "{}", module.name).context("cannot list the modules")?;
    }
    if !order.is_empty() {
        archive.file("modules.order", 0o644, order.as_bytes());
    }
    Ok(archive)
}

fn write(dir: &Path, archive: Archive) -> Result<PathBuf> {
    let path = dir.join("initramfs");
    fs::write(&path, archive.finish())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn addresses() -> String {
    format!(
        "peer_v4={PEER_V4}\npeer_v6={PEER_V6}\nguest_v4={GUEST_V4}\nguest_v6={GUEST_V6}\n\
         transfer_port={TRANSFER_PORT}\n"
    )
}

/// A line the guest printed for the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What it is about: `up`, `get`, `put`, `traffic`, `end`, `broken`.
    pub what: String,
    values: BTreeMap<String, String>,
}

impl Answer {
    /// A value by its key.
    pub fn text(&self, key: &str) -> Result<&str> {
        match self.values.get(key) {
            Some(value) => Ok(value),
            None => bail!("the guest's answer {self:?} lacks {key}"),
        }
    }

    /// A value that is a number.
    pub fn number(&self, key: &str) -> Result<u64> {
        let text = self.text(key)?;
        text.parse().with_context(|| format!("{key}={text} is no number, in {self:?}"))
    }

    /// Whether the guest negotiated a feature bit (the kernel shows them as a string of digits).
    pub fn has_feature(&self, bit: usize) -> Result<bool> {
        Ok(self.text("features")?.as_bytes().get(bit) == Some(&b'1'))
    }

    /// Bytes per packet the guest's driver received during a transfer.
    pub fn mean_received(&self) -> Result<u64> {
        Ok(self.number("rx_bytes")? / self.number("rx_packets")?.max(1))
    }

    /// Fails unless `bytes` of payload arrived as they were sent.
    pub fn check_intact(&self, bytes: u64) -> Result<()> {
        let (arrived, hash) = (self.number("bytes")?, self.text("sha256")?);
        if arrived != bytes {
            bail!("{arrived} of {bytes} bytes were transferred: {self:?}");
        }
        let expected = payload::hash(bytes)?;
        if hash != expected {
            bail!("the bytes are not those that were sent ({expected}): {self:?}");
        }
        Ok(())
    }

    fn parse(line: &str) -> Option<Self> {
        let (_, text) = line.split_once("E2E ")?;
        let mut words = text.split_whitespace();
        let what = words.next()?.to_owned();
        let values = words
            .filter_map(|word| word.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Some(Self { what, values })
    }
}

/// A guest that runs, and its console.
#[derive(Debug)]
pub struct Guest {
    process: Process,
    read: usize,
}

impl Guest {
    /// Takes over a process whose output is the console.
    pub fn new(process: Process) -> Self {
        Self { process, read: 0 }
    }

    /// The next answer on the console. The guest has to give it within `limit`.
    pub fn next(&mut self, limit: Duration) -> Result<Answer> {
        let skip = self.read;
        let answer = self.process.wait_for_output("an answer of the guest", limit, |console| {
            answers(console).nth(skip)
        })?;
        self.read += 1;
        match answer.what.as_str() {
            "broken" => bail!("the guest is broken: {}", answer.text("what")?),
            "note" => self.next(limit),
            _ => Ok(answer),
        }
    }

    /// The next answer, which has to be about `what`.
    pub fn expect(&mut self, what: &str, limit: Duration) -> Result<Answer> {
        let answer = self.next(limit)?;
        if answer.what != what {
            bail!("the guest was to answer {what}, and answered {answer:?}");
        }
        Ok(answer)
    }

    /// Skips answers until one is as wanted.
    pub fn wait_for(
        &mut self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&Answer) -> bool,
    ) -> Result<Answer> {
        let deadline = Deadline::after(limit);
        loop {
            let answer = self.next(deadline.left()).with_context(|| format!("no {what}"))?;
            if wanted(&answer) {
                return Ok(answer);
            }
        }
    }

    /// Drops the answers that are already on the console.
    pub fn skip_to_now(&mut self) -> Result<()> {
        self.read = answers(&self.process.output()?).count();
        Ok(())
    }

    /// Waits for text anywhere on the console.
    pub fn wait_for_text(&mut self, text: &str, limit: Duration) -> Result<()> {
        self.process.wait_for_output(&format!("{text:?} on the console"), limit, |console| {
            console.contains(text).then_some(())
        })
    }

    /// Waits until the guest has switched itself off.
    pub fn wait(&mut self, limit: Duration) -> Result<()> {
        let status = self.process.wait(limit)?;
        if !status.success() {
            bail!("the guest ended with {status}");
        }
        Ok(())
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// The complete answers on a console.
fn answers(console: &str) -> impl Iterator<Item = Answer> {
    let complete = console.rfind('\n').map_or("", |end| &console[..end]);
    complete.lines().filter_map(Answer::parse)
}

const INIT: &str = include_str!("../guest/init.sh");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_among_other_output() {
        let console =
            "[    0.1] booting\r\n\u{1b}[cE2E up mtu=1500 features=1101\r\nE2E end\r\nE2E g";
        let found: Vec<Answer> = answers(console).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].number("mtu").unwrap(), 1500);
        assert!(found[0].has_feature(1).unwrap());
        assert!(!found[0].has_feature(2).unwrap());
        assert!(!found[0].has_feature(70).unwrap());
        assert_eq!(found[1].what, "end");
    }

    #[test]
    fn a_damaged_transfer_is_told_from_a_short_one() {
        let hash = payload::hash(10).unwrap();
        let answer = |text: &str| Answer::parse(text).unwrap();
        assert!(answer(&format!("E2E get bytes=10 sha256={hash}")).check_intact(10).is_ok());
        let short = answer(&format!("E2E get bytes=9 sha256={hash}")).check_intact(10);
        assert!(short.unwrap_err().to_string().starts_with("9 of 10 bytes"));
        let damaged = answer("E2E get bytes=10 sha256=00").check_intact(10);
        assert!(damaged.unwrap_err().to_string().starts_with("the bytes are not those"));
    }

    #[test]
    fn a_plan_is_a_script_of_steps() {
        assert_eq!(Plan::both_ways(5).script, "get 4 5\nput 4\nget 6 5\nput 6\n");
    }

    #[test]
    fn the_init_script_is_a_shell_script() {
        if let Some(busybox) = find_program("busybox") {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("init");
            fs::write(&path, INIT).unwrap();
            let path = path.to_string_lossy();
            crate::command::run(&busybox.to_string_lossy(), &["sh", "-n", &path]).unwrap();
        }
    }
}

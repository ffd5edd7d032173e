//! Host tools (`ip`, `ethtool`, …) run to their end.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// Runs a tool and returns what it printed. A failure names the command line and carries its stderr.
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    let line = format!("{program} {}", args.join(" "));
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run `{line}`"))?;
    if !output.status.success() {
        bail!(
            "`{line}` failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Where `program` is found on `PATH`, with the places added that a user's `PATH` may lack.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        .map(|dir| Path::new(dir).join(program))
        .find(|candidate| candidate.is_file())
}

/// Where cargo puts what it builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from)
}

/// A program of this project, as `cargo build --release` makes it.
pub fn release_program(name: &str) -> Result<PathBuf> {
    let path = target().join("release").join(name);
    if !path.is_file() {
        bail!("no {}: cargo build --release --workspace", path.display());
    }
    Ok(path)
}

/// SHA-256 of what `write` produces, as lower-case hexadecimal, computed by the host's `sha256sum`.
pub fn sha256(write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> Result<String> {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run `sha256sum`")?;
    let mut input = child.stdin.take().context("sha256sum has no input")?;
    let written = write(&mut input);
    drop(input);
    let output = child.wait_with_output().context("sha256sum did not end")?;
    written.context("cannot produce what is to be hashed")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let hash = text.split_whitespace().next().context("sha256sum printed nothing")?;
    Ok(hash.to_owned())
}

/// The last `lines` lines of a file, or a remark why there are none.
pub fn tail(path: &Path, lines: usize) -> String {
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return format!("({}: {error})", path.display()),
    };
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_its_complaint() {
        let error = run("ls", &["/no/such/place"]).unwrap_err().to_string();
        assert!(error.contains("`ls /no/such/place` failed"), "{error}");
        assert!(error.contains("No such file"), "{error}");
    }

    #[test]
    fn a_hash_is_the_known_one() {
        let hash = sha256(|out| out.write_all(b"abc")).unwrap();
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_tail_is_the_end_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert_eq!(tail(&path, 2), "two\nthree");
        assert_eq!(tail(&path, 9), "one\ntwo\nthree");
    }
}

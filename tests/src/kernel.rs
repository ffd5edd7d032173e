//! The Linux kernel a QEMU guest boots: Debian's, from /boot or from an unpacked package.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

/// Names a directory that holds an unpacked kernel package (`boot/`, `lib/modules/`) instead of `/`.
pub const ROOT_VARIABLE: &str = "E2E_KERNEL_ROOT";

/// A kernel and the place of its modules.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The compressed image.
    pub image: PathBuf,
    modules: PathBuf,
}

/// A module file, with the name it has in the guest.
#[derive(Debug)]
pub struct Module {
    /// The file's name without its directory.
    pub name: String,
    /// What is in it.
    pub content: Vec<u8>,
}

impl Kernel {
    /// The newest kernel that has its modules here.
    pub fn find() -> Result<Self> {
        let root =
            std::env::var_os(ROOT_VARIABLE).map_or_else(|| PathBuf::from("/"), PathBuf::from);
        Self::find_in(&root)
    }

    fn find_in(root: &Path) -> Result<Self> {
        let modules = root.join("lib/modules");
        let mut found = Vec::new();
        for entry in fs::read_dir(&modules).into_iter().flatten() {
            let entry = entry.with_context(|| format!("cannot list {}", modules.display()))?;
            let version = entry.file_name().to_string_lossy().into_owned();
            let kernel =
                Self { image: root.join(format!("boot/vmlinuz-{version}")), modules: entry.path() };
            if kernel.image.is_file() && kernel.modules.join("modules.dep").is_file() {
                found.push((entry.file_name(), kernel));
            }
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        let Some((_, kernel)) = found.pop() else {
            bail!("no kernel with modules in {}: install linux-image-amd64", root.display());
        };
        Ok(kernel)
    }

    /// A module by name with all it needs, in the order to load them. What is built into the kernel
    /// is left out.
    pub fn modules(&self, names: &[&str]) -> Result<Vec<Module>> {
        let table = self.read("modules.dep")?;
        let builtin = self.read("modules.builtin")?;
        let mut seen = BTreeSet::new();
        let mut modules = Vec::new();
        for name in names {
            for path in load_order(&table, &builtin, name)
                .with_context(|| format!("in {}", self.modules.display()))?
            {
                if seen.insert(path.to_owned()) {
                    modules.push(self.module(path)?);
                }
            }
        }
        Ok(modules)
    }

    fn module(&self, path: &str) -> Result<Module> {
        let file = self.modules.join(path);
        if !path.ends_with(".ko") {
            bail!("{} is compressed, and the guest loads plain modules only", file.display());
        }
        let content =
            fs::read(&file).with_context(|| format!("cannot read module {}", file.display()))?;
        Ok(Module { name: file_name(path).to_owned(), content })
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = self.modules.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

/// The paths to load for module `name`, dependencies first (modules.dep(5) lists them last first).
fn load_order<'a>(table: &'a str, builtin: &str, name: &str) -> Result<Vec<&'a str>> {
    // As in modprobe(8), a dash in a file's name is an underscore in the module's.
    let file = format!("{name}.ko");
    let module = |path: &str| file_name(path).replace('-', "_");
    for line in table.lines() {
        let Some((path, needs)) = line.split_once(':') else {
            continue;
        };
        if module(path).starts_with(&file) {
            let mut order: Vec<&str> = needs.split_whitespace().rev().collect();
            order.push(path);
            return Ok(order);
        }
    }
    if builtin.lines().any(|path| module(path) == file) {
        return Ok(Vec::new());
    }
    bail!("the kernel has no module {name}")
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "a/ring.ko:\na/net.ko: b/fail.ko a/ring.ko\nb/fail.ko: a/ring.ko\n";

    #[test]
    fn dependencies_come_first() {
        assert_eq!(load_order(TABLE, "", "net").unwrap(), ["a/ring.ko", "b/fail.ko", "a/net.ko"]);
    }

    #[test]
    fn built_in_needs_nothing() {
        assert!(load_order(TABLE, "kernel/x/pci.ko\n", "pci").unwrap().is_empty());
    }

    #[test]
    fn an_unknown_module_is_named() {
        let error = load_order(TABLE, "", "nix").unwrap_err();
        assert_eq!(error.to_string(), "the kernel has no module nix");
    }

    #[test]
    fn no_kernel_says_what_to_install() {
        let dir = tempfile::tempdir().unwrap();
        let error = Kernel::find_in(dir.path()).unwrap_err().to_string();
        assert!(error.contains("install linux-image-amd64"), "{error}");
    }
}

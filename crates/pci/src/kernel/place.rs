//! Where a function is in sysfs, and what is wrong with it before it is opened.
//!
//! Every refusal here has a cure, and the message names it with the function's own address in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use iommufd_ioctls::IommufdError;
use vfio_ioctls::VfioError;

use crate::{Error, Iova};

/// Where the kernel's file systems are: elsewhere in tests.
#[derive(Debug)]
pub(super) struct Roots {
    pub(super) sys: PathBuf,
    pub(super) dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sys: "/sys".into(), dev: "/dev".into() }
    }
}

/// A function that can be opened, as far as can be told by looking.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) address: String,
    pub(super) sysfs: PathBuf,
    /// Whether it has a character device of its own, and the kernel iommufd.
    pub(super) has_cdev: bool,
    /// Stretches of the device's addresses that the platform keeps: first, last.
    pub(super) reserved: Vec<(u64, u64)>,
    /// The NUMA node that the function is attached to, where the platform says so.
    pub(super) numa_node: Option<u32>,
    group: String,
}

impl Place {
    pub(super) fn find(roots: &Roots, address: &str) -> Result<Self, Error> {
        let name = || address.to_owned();
        let sysfs = roots.sys.join("bus/pci/devices").join(address);
        if !sysfs.exists() {
            return Err(Error::NoFunction { name: name() });
        }
        if !roots.sys.join("bus/pci/drivers/vfio-pci").exists() {
            return Err(Error::NoVfio { name: name() });
        }
        let Some(group) = link_name(&sysfs.join("iommu_group")) else {
            return Err(Error::NoIommu { name: name() });
        };
        match link_name(&sysfs.join("driver")) {
            Some(driver) if driver == "vfio-pci" => {}
            driver => {
                return Err(Error::Driver { name: name(), driver: driver.unwrap_or_default() });
            }
        }
        let groups = roots.sys.join("kernel/iommu_groups").join(&group);
        let others = others(roots, &groups, address);
        if !others.is_empty() {
            return Err(Error::Shared { name: name(), group, others: others.join(", ") });
        }
        // A kernel without these devices may list their names in sysfs all the same.
        let iommufd = roots.dev.join("iommu");
        let cdev = cdev(&sysfs).map(|cdev| roots.dev.join("vfio/devices").join(cdev));
        let cdev = cdev.filter(|cdev| cdev.exists() && iommufd.exists());
        let file = cdev.clone().unwrap_or_else(|| roots.dev.join("vfio").join(&group));
        check_access(address, &file)?;
        if cdev.is_some() {
            check_access(address, &iommufd)?;
        }
        let reserved = fs::read_to_string(groups.join("reserved_regions"));
        // -1 on platforms that do not say.
        let node = fs::read_to_string(sysfs.join("numa_node"));
        let numa_node = node.ok().and_then(|node| node.trim().parse().ok());
        Ok(Self {
            address: name(),
            sysfs,
            numa_node,
            has_cdev: cdev.is_some(),
            reserved: reserved.map(|text| regions(&text)).unwrap_or_default(),
            group,
        })
    }

    /// What the library's refusal means.
    pub(super) fn explain(&self, error: VfioError) -> Error {
        let name = self.address.clone();
        let group = self.group.clone();
        let busy = |error: &io::Error| {
            error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error())
        };
        match error {
            VfioError::OpenGroup(source, _) | VfioError::OpenDeviceCdev(source)
                if busy(&source) =>
            {
                Error::InUse { name }
            }
            // How a second holder of a character device is told.
            VfioError::VfioDeviceBindIommufd(errno)
                if [rustix::io::Errno::BUSY, rustix::io::Errno::INVAL]
                    .iter()
                    .any(|busy| busy.raw_os_error() == errno.errno()) =>
            {
                Error::InUse { name }
            }
            // Looked for before: it came in between.
            VfioError::GroupViable => {
                Error::Shared { name, group, others: "another function".into() }
            }
            source => Error::Vfio { name, doing: "open it", source },
        }
    }
}

/// What the refusal to map memory means.
pub(super) fn explain_map(name: &str, iova: Iova, bytes: u64, error: VfioError) -> Error {
    let errno = match &error {
        VfioError::IommuDmaMap(errno)
        | VfioError::IommufdIoctlError(IommufdError::IommuIoasMap(errno)) => Some(errno.errno()),
        _ => None,
    };
    let is = |wanted: rustix::io::Errno| errno == Some(wanted.raw_os_error());
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    if let Some(limit) = limit
        && is(rustix::io::Errno::NOMEM)
    {
        return Error::LockedMemory { name: name.to_owned(), bytes, limit };
    }
    if is(rustix::io::Errno::EXIST) {
        return Error::IovaTaken { iova, bytes };
    }
    Error::Vfio { name: name.to_owned(), doing: "map memory for DMA", source: error }
}

/// The last component of what a link leads to.
fn link_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

fn entries(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let names =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// The name of its character device, where the kernel makes one.
fn cdev(sysfs: &Path) -> Option<String> {
    entries(&sysfs.join("vfio-dev")).into_iter().next()
}

/// The group's other functions that a driver of the kernel holds. Bridges stay with theirs (which
/// does no DMA for them), and vfio-pci's are nobody's.
fn others(roots: &Roots, group: &Path, address: &str) -> Vec<String> {
    let devices = roots.sys.join("bus/pci/devices");
    let held = |other: &String| {
        let driver = link_name(&devices.join(other).join("driver"))?;
        let harmless = ["vfio-pci", "pci-stub", "pcieport"].contains(&driver.as_str());
        (!harmless).then(|| format!("{other} ({driver})"))
    };
    let members = entries(&group.join("devices")).into_iter().filter(|other| other != address);
    members.filter_map(|other| held(&other)).collect()
}

/// Whether the file can be opened; it is closed at once.
fn check_access(address: &str, file: &Path) -> Result<(), Error> {
    let name = address.to_owned();
    match fs::OpenOptions::new().read(true).write(true).open(file) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(Error::Permission { name, file: file.to_owned() })
        }
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
            Err(Error::InUse { name })
        }
        Err(source) => Err(Error::Kernel { name, doing: "open its group", source }),
    }
}

/// Stretches of `reserved_regions` (sysfs-kernel-iommu_groups), but those that may be used all the
/// same.
fn regions(text: &str) -> Vec<(u64, u64)> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        let (first, last) = (hex(words.next()?)?, hex(words.next()?)?);
        (words.next() != Some("direct-relaxable") && first <= last).then_some((first, last))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const ADDRESS: &str = "0000:03:00.0";
    const OTHER: &str = "0000:03:00.1";

    /// A machine as a directory: one function, bound to vfio-pci, alone in group 7.
    struct Machine {
        _dir: tempfile::TempDir,
        roots: Roots,
    }

    impl Machine {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let roots = Roots { sys: dir.path().join("sys"), dev: dir.path().join("dev") };
            let machine = Self { _dir: dir, roots };
            create_dir_all(machine.sys("bus/pci/drivers/vfio-pci")).unwrap();
            create_dir_all(machine.sys("kernel/iommu_groups/7/devices")).unwrap();
            create_dir_all(machine.roots.dev.join("vfio")).unwrap();
            write(machine.roots.dev.join("vfio/vfio"), "").unwrap();
            write(machine.roots.dev.join("vfio/7"), "").unwrap();
            machine.function(ADDRESS, Some("vfio-pci"));
            machine
        }

        fn sys(&self, path: &str) -> PathBuf {
            self.roots.sys.join(path)
        }

        fn function(&self, address: &str, driver: Option<&str>) {
            let device = self.sys("bus/pci/devices").join(address);
            create_dir_all(&device).unwrap();
            symlink("../../../kernel/iommu_groups/7", device.join("iommu_group")).unwrap();
            write(self.sys("kernel/iommu_groups/7/devices").join(address), "").unwrap();
            if let Some(driver) = driver {
                symlink(format!("../../drivers/{driver}"), device.join("driver")).unwrap();
            }
        }

        fn find(&self) -> Result<Place, Error> {
            Place::find(&self.roots, ADDRESS)
        }

        fn refusal(&self) -> String {
            self.find().unwrap_err().to_string()
        }
    }

    #[test]
    fn a_function_that_is_ready_is_found() {
        let machine = Machine::new();
        let reserved =
            "0x00000000fee00000 0x00000000feefffff msi\n0x1000 0x1fff direct-relaxable\n";
        write(machine.sys("kernel/iommu_groups/7/reserved_regions"), reserved).unwrap();
        let place = machine.find().unwrap();
        assert_eq!(place.group, "7");
        assert_eq!(place.reserved, [(0xfee0_0000, 0xfeef_ffff)]);
        assert!(!place.has_cdev);
        assert_eq!(place.numa_node, None);
        let device = machine.sys("bus/pci/devices").join(ADDRESS);
        for (text, node) in [("-1\n", None), ("1\n", Some(1))] {
            write(device.join("numa_node"), text).unwrap();
            assert_eq!(machine.find().unwrap().numa_node, node);
        }
    }

    #[test]
    fn a_character_device_is_preferred_where_there_is_iommufd() {
        let machine = Machine::new();
        create_dir_all(machine.sys("bus/pci/devices").join(ADDRESS).join("vfio-dev/vfio0"))
            .unwrap();
        create_dir_all(machine.roots.dev.join("vfio/devices")).unwrap();
        write(machine.roots.dev.join("vfio/devices/vfio0"), "").unwrap();
        assert!(!machine.find().unwrap().has_cdev, "without /dev/iommu");
        write(machine.roots.dev.join("iommu"), "").unwrap();
        assert!(machine.find().unwrap().has_cdev);
        fs::remove_file(machine.roots.dev.join("vfio/devices/vfio0")).unwrap();
        assert!(!machine.find().unwrap().has_cdev, "without the device itself");
    }

    #[test]
    fn every_refusal_says_how_to_mend_it() {
        let machine = Machine::new();
        let text = Place::find(&machine.roots, "0000:99:00.0").unwrap_err().to_string();
        assert!(text.contains("no PCI function") && text.contains("lspci -D"), "{text}");

        fs::remove_dir_all(machine.sys("bus/pci/drivers/vfio-pci")).unwrap();
        let text = machine.refusal();
        assert!(text.contains("modprobe vfio-pci"), "{text}");
        create_dir_all(machine.sys("bus/pci/drivers/vfio-pci")).unwrap();

        let device = machine.sys("bus/pci/devices").join(ADDRESS);
        fs::remove_file(device.join("driver")).unwrap();
        let text = machine.refusal();
        assert!(text.contains("no driver") && text.contains("driver_override"), "{text}");
        symlink("../../drivers/sfc", device.join("driver")).unwrap();
        let text = machine.refusal();
        assert!(text.contains("`sfc`") && text.contains("driver_override"), "{text}");
        fs::remove_file(device.join("driver")).unwrap();
        symlink("../../drivers/vfio-pci", device.join("driver")).unwrap();

        fs::remove_file(device.join("iommu_group")).unwrap();
        let text = machine.refusal();
        assert!(text.contains("intel_iommu=on"), "{text}");
    }

    #[test]
    fn a_shared_group_names_the_others() {
        let machine = Machine::new();
        machine.function(OTHER, Some("vfio-pci"));
        machine.function("0000:00:1c.0", Some("pcieport"));
        machine.function("0000:03:00.2", None);
        assert!(machine.find().is_ok(), "nobody else holds those");
        machine.function("0000:03:00.3", Some("sfc"));
        let text = machine.refusal();
        assert!(text.contains("0000:03:00.3 (sfc)") && !text.contains(OTHER), "{text}");
    }

    #[test]
    fn files_that_may_not_be_opened() {
        let machine = Machine::new();
        let file = machine.roots.dev.join("vfio/7");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
        // Root may open anything.
        if !rustix::process::geteuid().is_root() {
            let text = machine.refusal();
            assert!(text.contains("chown") && text.contains("vfio/7"), "{text}");
        }
        fs::remove_file(&file).unwrap();
        assert!(matches!(machine.find(), Err(Error::Kernel { doing: "open its group", .. })));
    }

    #[test]
    fn what_the_kernel_refuses_later() {
        let place = Machine::new().find().unwrap();
        let busy = io::Error::from_raw_os_error(rustix::io::Errno::BUSY.raw_os_error());
        assert!(matches!(
            place.explain(VfioError::OpenGroup(busy, "7".into())),
            Error::InUse { .. }
        ));
        assert!(matches!(place.explain(VfioError::GroupViable), Error::Shared { .. }));
        let no_memory = vmm_sys_util::errno::Error::new(rustix::io::Errno::NOMEM.raw_os_error());
        let by_iommufd = VfioError::IommufdIoctlError(IommufdError::IommuIoasMap(no_memory));
        let limited =
            rustix::process::getrlimit(rustix::process::Resource::Memlock).current.is_some();
        for error in [VfioError::IommuDmaMap(no_memory), by_iommufd] {
            let error = explain_map(ADDRESS, Iova::new(0), 1 << 20, error);
            assert_eq!(matches!(error, Error::LockedMemory { .. }), limited, "{error}");
        }
        let limit = Error::LockedMemory { name: ADDRESS.into(), bytes: 1 << 20, limit: 1 << 16 };
        let text = limit.to_string();
        assert!(text.contains("ulimit -l") && text.contains("LimitMEMLOCK"), "{text}");
        let bound = vmm_sys_util::errno::Error::new(rustix::io::Errno::INVAL.raw_os_error());
        let error = place.explain(VfioError::VfioDeviceBindIommufd(bound));
        assert!(matches!(error, Error::InUse { .. }));
        let exists = vmm_sys_util::errno::Error::new(rustix::io::Errno::EXIST.raw_os_error());
        let error = explain_map(ADDRESS, Iova::new(0), 1 << 20, VfioError::IommuDmaMap(exists));
        assert!(matches!(error, Error::IovaTaken { .. }));
    }
}

//! An initramfs: a cpio archive in the "newc" format the kernel unpacks at boot
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

/// An archive being put together in memory.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// An archive with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory. Parents have to be added before what is in them.
    pub fn directory(&mut self, name: &str) {
        self.entry(name, S_IFDIR | 0o755, 2, (0, 0), &[]);
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, permissions: u32, content: &[u8]) {
        self.entry(name, S_IFREG | permissions, 1, (0, 0), content);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, name: &str, target: &str) {
        self.entry(name, S_IFLNK | 0o777, 1, (0, 0), target.as_bytes());
    }

    /// Adds a character device.
    pub fn device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(name, S_IFCHR | 0o600, 1, (major, minor), &[]);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, 1, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, links: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let content_len = u32::try_from(content.len()).expect("files of an initramfs are small");
        let name_len = u32::try_from(name.len() + 1).expect("names are short");
        let fields = [
            self.entries, // inode
            mode,
            0, // user
            0, // group
            links,
            0, // time
            content_len,
            0, // device the archive's files were on, major and minor
            0,
            device.0,
            device.1,
            name_len,
            0, // checksum, none in this format
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

const S_IFCHR: u32 = 0o020_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_the_trailer_is_last() {
        let mut archive = Archive::new();
        archive.directory("bin");
        archive.file("bin/x", 0o755, b"abcde");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"07070100000001000041ED"));
        // header 110 + name 4 = 114, padded to 116: the second entry
        assert_eq!(&bytes[116..122], b"070701");
        assert!(bytes.windows(5).any(|window| window == b"abcde"));
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}

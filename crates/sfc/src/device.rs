//! Which cards these are, and where their registers lie (`spec/ef10.md` sections 1 and 2).

/// A generation of the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// SFN7xxx (SFC9120, SFC9140).
    Huntington,
    /// SFN8xxx (SFC9220, SFC9240).
    Medford,
    /// X2 series (SFC9250).
    Medford2,
}

/// Physical or virtual function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A port of its own.
    Physical,
    /// One of a port's virtual functions.
    Virtual,
}

/// What a function's PCI identifiers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The generation. No register tells it.
    pub generation: Generation,
    /// Physical or virtual.
    pub kind: Kind,
}

impl Identity {
    /// Looks a function up by its PCI vendor and device numbers; `None` for anything else, cards with
    /// unprogrammed flash included.
    pub fn of(vendor: u16, device: u16) -> Option<Self> {
        if vendor != VENDOR {
            return None;
        }
        let kind = if device & 0x1000 == 0 { Kind::Physical } else { Kind::Virtual };
        let generation = match device & !0x1000 {
            0x0903 | 0x0923 => Generation::Huntington,
            0x0a03 => Generation::Medford,
            0x0b03 => Generation::Medford2,
            _ => return None,
        };
        Some(Self { generation, kind })
    }

    /// The BAR that holds the virtual interfaces' windows.
    pub fn bar(self) -> u8 {
        match (self.kind, self.generation) {
            (Kind::Physical, Generation::Huntington | Generation::Medford) => 2,
            _ => 0,
        }
    }
}

/// The PCI vendor number of all of them.
pub const VENDOR: u16 = 0x1924;

/// The size of a virtual interface's window in bytes, from the capabilities' `VI_WINDOW_MODE`; `None`
/// for a mode in no table.
pub fn window_bytes(mode: u8) -> Option<u32> {
    match mode {
        0 => Some(8 << 10),
        1 => Some(16 << 10),
        2 => Some(64 << 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities() {
        use Generation::{Huntington, Medford, Medford2};
        use Kind::{Physical, Virtual};
        let table = [
            (0x0903, Huntington, Physical, 2),
            (0x1903, Huntington, Virtual, 0),
            (0x0923, Huntington, Physical, 2),
            (0x1923, Huntington, Virtual, 0),
            (0x0a03, Medford, Physical, 2),
            (0x1a03, Medford, Virtual, 0),
            (0x0b03, Medford2, Physical, 0),
            (0x1b03, Medford2, Virtual, 0),
        ];
        for (device, generation, kind, bar) in table {
            let identity = Identity::of(VENDOR, device).unwrap();
            assert_eq!(identity, Identity { generation, kind });
            assert_eq!(identity.bar(), bar, "{device:#x}");
        }
        for device in [0x0901, 0x0913, 0x0b13, 0x0710, 0x2903] {
            assert_eq!(Identity::of(VENDOR, device), None, "{device:#x}");
        }
        assert_eq!(Identity::of(0x8086, 0x0903), None);
    }
}

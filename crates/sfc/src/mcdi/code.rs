//! What the controller answers instead of a reply (`spec/ef10.md` 3.6).

use std::fmt;

/// An error code of the controller. Open: codes in no table are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    /// Not permitted for this function.
    pub const EPERM: Self = Self(1);
    /// No such object.
    pub const ENOENT: Self = Self(2);
    /// An assertion failure interrupted the command.
    pub const EINTR: Self = Self(4);
    /// Input or output failed.
    pub const EIO: Self = Self(5);
    /// The caller lacks access.
    pub const EACCES: Self = Self(0xd);
    /// A resource is exhausted.
    pub const ENOSPC: Self = Self(0x1c);
    /// The command is not implemented.
    pub const ENOSYS: Self = Self(0x26);
    /// Not supported.
    pub const ENOTSUP: Self = Self(0x5f);
    /// Already in that state.
    pub const EALREADY: Self = Self(0x72);
    /// A limited object could not be allocated.
    pub const ALLOC_FAIL: Self = Self(0x1000);
    /// The virtual function has no port yet.
    pub const NO_EVB_PORT: Self = Self(0x1002);
    /// A privilege is missing.
    pub const NO_PRIVILEGE: Self = Self(0x1013);

    /// Whether the function may not do this: a matter of privilege, not of the request.
    pub fn is_denied(self) -> bool {
        matches!(self, Self::EPERM | Self::EACCES | Self::NO_PRIVILEGE)
    }

    /// Whether the firmware does not know the command or the feature.
    pub fn is_unsupported(self) -> bool {
        matches!(self, Self::ENOSYS | Self::ENOTSUP)
    }

    fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0x1 => "operation not permitted",
            0x2 => "no such object",
            0x4 => "interrupted by an assertion failure",
            0x5 => "I/O failure",
            0x6 => "already exists",
            0xb => "try again",
            0xc => "out of memory",
            0xd => "access denied",
            0x10 => "busy",
            0x13 => "no such device",
            0x16 => "bad argument",
            0x1c => "resource exhausted",
            0x1e => "read only",
            0x22 => "out of range",
            0x26 => "command not implemented",
            0x3e => "timer expired",
            0x5f => "not supported",
            0x72 => "already in that state",
            0x1000 => "allocation failed",
            0x1001 => "no vAdaptor on the port",
            0x1002 => "no port assigned to the function yet",
            0x1003 => "no vSwitch on the port",
            0x100b => "datapath disabled",
            0x100f => "no MAC address assigned",
            0x1010 => "waiting for a proxy's authorisation",
            0x1013 => "missing privilege",
            0x1014 => "filters still installed",
            0x1017 => "queue full",
            0x101a => "VIs still allocated",
            _ => return None,
        })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#x})", self.0),
            None => write!(f, "error {:#x}", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_have_words_and_others_their_number() {
        assert_eq!(Code::ENOSYS.to_string(), "command not implemented (0x26)");
        assert_eq!(Code(0xabcd).to_string(), "error 0xabcd");
        assert!(Code::EACCES.is_denied() && !Code::ENOSYS.is_denied());
        assert!(Code::ENOTSUP.is_unsupported() && !Code::EPERM.is_unsupported());
    }
}

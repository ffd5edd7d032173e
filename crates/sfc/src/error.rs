//! What can go wrong on the control side. The hot path has no errors, only counters and a queue's end.

use crate::mcdi::Code;

/// Why the card could not be brought up or asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The way to the function failed.
    #[error("the PCI function cannot be used")]
    Pci(#[from] pci::Error),
    /// Some other device.
    #[error("PCI device {vendor:04x}:{device:04x} is not an EF10 network function")]
    NotOurs {
        /// Its vendor number.
        vendor: u16,
        /// Its device number.
        device: u16,
    },
    /// The controller does not come up.
    #[error("the card's controller has not started (status {status:#010x})")]
    NotStarted {
        /// What its status register says.
        status: u32,
    },
    /// Reads give all-ones.
    #[error("the card is gone: its registers read as all-ones")]
    Removed,
    /// No answer in time; the controller is not asked again until the function is reset.
    #[error("{command}: the card's controller has not answered within {seconds} s")]
    Timeout {
        /// What it was asked.
        command: &'static str,
        /// How long was waited.
        seconds: u64,
    },
    /// The controller timed out before.
    #[error("{command}: not sent, the card's controller has stopped answering")]
    Dead {
        /// What it was to be asked.
        command: &'static str,
    },
    /// The controller has restarted, and all that was allocated is gone.
    #[error("{command}: the card's controller has restarted")]
    Rebooted {
        /// What it was asked.
        command: &'static str,
    },
    /// The controller says no.
    #[error("{command}: {code}")]
    Refused {
        /// What it was asked.
        command: &'static str,
        /// Its answer.
        code: Code,
    },
    /// The answer belongs to another request, or lacks what it has to hold.
    #[error("{command}: the card's controller answers nonsense")]
    Malformed {
        /// What it was asked.
        command: &'static str,
    },
    /// The firmware cannot do what the driver needs.
    #[error("the card's firmware lacks {0}")]
    Lacks(
        /// What.
        &'static str,
    ),
    /// More queues than the card gives.
    #[error("{wanted} queue pairs are wanted, the card gives {granted}")]
    Queues {
        /// Wanted.
        wanted: u32,
        /// To be had.
        granted: u32,
    },
    /// A configuration that no card takes.
    #[error("{0}")]
    Config(
        /// What is wrong.
        &'static str,
    ),
    /// A queue is not gone in time.
    #[error("{queue} queue {instance} has not been flushed within {seconds} s")]
    NotFlushed {
        /// Receive or transmit.
        queue: &'static str,
        /// Which.
        instance: u32,
        /// How long was waited.
        seconds: u64,
    },
}

impl Error {
    /// The controller's own code, when it refused.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the function may not do this.
    pub fn is_denied(&self) -> bool {
        self.code().is_some_and(Code::is_denied)
    }

    /// Whether there is nothing of what was to be freed.
    pub fn is_gone(&self) -> bool {
        matches!(self.code(), Some(Code::EALREADY | Code::ENOENT))
    }

    /// Whether the firmware does not know this.
    pub fn is_unsupported(&self) -> bool {
        self.code().is_some_and(Code::is_unsupported)
    }
}

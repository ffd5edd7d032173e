//! What can go wrong between the guest and its back end.

use std::io;
use std::path::PathBuf;

use crate::raw::Request;

/// Why a guest could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings contradict each other.
    #[error("{0}")]
    Config(&'static str),
    /// Nobody answers at the socket.
    #[error("can't connect to the back end at {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The last attempt's error.
        source: io::Error,
    },
    /// The guest's own socket can't be made.
    #[error("can't listen at {}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A connection handed over ready-made has ended.
    #[error("the connection was handed over ready-made and can't be made again")]
    NoWayBack,
    /// There is no connection at the moment.
    #[error("not connected to a back end")]
    NotConnected,
    /// A message failed, or its answer was not one.
    #[error("{0} failed")]
    Message(&'static str, #[source] vhost::Error),
    /// A message failed that was written by hand.
    #[error("{0:?} failed")]
    Raw(Request, #[source] io::Error),
    /// The back end answered a request with an error code.
    #[error("the back end refused {0:?} with code {1}")]
    Refused(Request, u64),
    /// More queues than the back end has.
    #[error("{wanted} pairs of queues are wanted, the back end answers {offered} {unit}")]
    TooFewQueues {
        /// Pairs wanted.
        wanted: u16,
        /// The back end's answer.
        offered: u64,
        /// What the answer counts.
        unit: &'static str,
    },
    /// More regions than the back end takes.
    #[error("{wanted} memory regions are wanted, the back end takes {offered}")]
    TooFewSlots {
        /// Regions.
        wanted: usize,
        /// The back end's answer.
        offered: u64,
    },
    /// A back end that came back no longer offers what the driver uses.
    #[error("the back end no longer offers the features {0:#x}, which the driver uses")]
    FeaturesLost(u64),
    /// The protocol feature was not negotiated.
    #[error("{0} was not negotiated")]
    NotNegotiated(&'static str),
    /// Memory, a descriptor or a pipe can't be made.
    #[error("can't make {0}")]
    System(&'static str, #[source] io::Error),
}

/// Of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

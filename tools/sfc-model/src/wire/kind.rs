//! Wires by name.

use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use super::{Wire, capture, packet_socket, peer, tap};

/// Which wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tap interface, made if it isn't there.
    Tap(String),
    /// An interface of the host, by a packet socket. Turn its offloads off: what it would do late, like
    /// checksums and segmentation, the card would see undone. VLAN tags that the host takes off are lost.
    Packet(String),
    /// Frames of a capture, at its pace; what is sent goes to a second one.
    Capture(PathBuf, Option<PathBuf>),
    /// Another model, or whoever speaks datagrams of one frame: own socket, and the other's.
    Peer(PathBuf, PathBuf),
}

/// `KIND:ARGUMENTS` is not understood.
#[derive(Debug, thiserror::Error)]
#[error("wire '{0}': must be tap:NAME, packet:INTERFACE, pcap:IN[,OUT] or peer:OWN,OTHER")]
pub struct Malformed(String);

impl FromStr for Kind {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let wrong = || Malformed(text.to_owned());
        let (kind, rest) =
            text.split_once(':').filter(|(_, rest)| !rest.is_empty()).ok_or_else(wrong)?;
        let two = rest
            .split_once(',')
            .map(|(first, second)| (PathBuf::from(first), PathBuf::from(second)));
        match (kind, two) {
            ("tap", _) => Ok(Self::Tap(rest.into())),
            ("packet", _) => Ok(Self::Packet(rest.into())),
            ("pcap", None) => Ok(Self::Capture(rest.into(), None)),
            ("pcap", Some((input, output))) => Ok(Self::Capture(input, Some(output))),
            ("peer", Some((own, other))) => Ok(Self::Peer(own, other)),
            _ => Err(wrong()),
        }
    }
}

impl Kind {
    /// Plugs it in.
    ///
    /// # Errors
    ///
    /// When the interface or the file is not there, or may not be used.
    pub fn open(&self) -> io::Result<Box<dyn Wire>> {
        Ok(match self {
            Self::Tap(name) => Box::new(tap::Tap::open(name)?),
            Self::Packet(name) => Box::new(packet_socket::PacketSocket::open(name)?),
            Self::Capture(input, output) => {
                Box::new(capture::Capture::open(input, output.as_deref())?)
            }
            Self::Peer(own, other) => Box::new(peer::Peer::open(own, other)?),
        })
    }
}

/// What a descriptor that does not block says when there is nothing.
pub(super) fn none_if_would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read() {
        let parse = |text: &str| text.parse::<Kind>().ok();
        assert_eq!(parse("tap:t0"), Some(Kind::Tap("t0".into())));
        assert_eq!(parse("packet:eth0"), Some(Kind::Packet("eth0".into())));
        assert_eq!(parse("pcap:a"), Some(Kind::Capture("a".into(), None)));
        assert_eq!(parse("pcap:a,b"), Some(Kind::Capture("a".into(), Some("b".into()))));
        assert_eq!(parse("peer:a,b"), Some(Kind::Peer("a".into(), "b".into())));
        for wrong in ["", "tap", "tap:", "peer:a", "string:x"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}

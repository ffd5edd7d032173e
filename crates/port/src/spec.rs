//! How a port is named on the command line: `packet:eth1`, `tap:tap0`, `pcap:FILE,loop,pps=1000`,
//! `sfc:0000:03:00.0`.
//!
//! [`parse`] reads the text and touches nothing; [`build`] opens what it names. A port in memory has
//! no text that says what its frames are: who wants one builds it (see [`Memory`](crate::Memory)).

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;

use crate::sfc::Options;
use crate::{Error, PacketSocket, Pcap, Port, Sfc, Tap};

/// A port as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spec {
    /// `packet:IFNAME`: a packet socket on an interface.
    Packet(String),
    /// `tap:NAME`: a tap interface.
    Tap(String),
    /// `pcap:FILE[,loop][,pps=N]`: a capture that is replayed.
    Pcap(Replay),
    /// `sfc:FUNCTION[,…]`: a function of a Solarflare card.
    Sfc(Options),
    /// `memory` with whatever stands behind it: for the program to build.
    Memory(String),
}

/// What is replayed, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// The capture: pcap or pcapng.
    pub file: PathBuf,
    /// Begin again at the end.
    pub repeat: bool,
    /// Frames per second; `None`: as fast as they are taken.
    pub pps: Option<NonZeroU32>,
}

/// Reads the name of a port.
///
/// A file name can't contain a comma: what follows one is an option.
///
/// # Errors
///
/// [`Error::Spec`] with what is wrong and how it should look.
pub fn parse(spec: &str) -> Result<Spec, Error> {
    let wrong = |reason: String| Error::Spec { spec: spec.to_owned(), reason };
    if let Some(rest) = spec.strip_prefix("memory") {
        let after = rest.strip_prefix([':', ',']);
        if let Some(rest) = after.or_else(|| rest.is_empty().then_some("")) {
            return Ok(Spec::Memory(rest.to_owned()));
        }
    }
    let Some((kind, rest)) = spec.split_once(':') else {
        return Err(wrong(format!("no kind of port: write {KINDS}")));
    };
    match kind {
        "packet" => interface(rest).map(Spec::Packet).map_err(wrong),
        "tap" => interface(rest).map(Spec::Tap).map_err(wrong),
        "pcap" => replay(rest).map(Spec::Pcap).map_err(wrong),
        "sfc" => Options::parse(rest).map(Spec::Sfc).map_err(wrong),
        _ => Err(wrong(format!("'{kind}' is no kind of port: write {KINDS}"))),
    }
}

/// Opens the port.
///
/// # Errors
///
/// What the kind's own `open` says; [`Error::Spec`] for a port in memory, which can't be built from
/// its name alone.
pub fn build(spec: &Spec) -> Result<Box<dyn Port>, Error> {
    Ok(match spec {
        Spec::Packet(interface) => Box::new(PacketSocket::open(interface)?),
        Spec::Tap(interface) => Box::new(Tap::open(interface)?),
        Spec::Pcap(replay) => Box::new(Pcap::load(replay)?),
        Spec::Sfc(options) => Box::new(Sfc::open(options)?),
        Spec::Memory(_) => {
            let reason = "a port in memory has no frames of its own here".to_owned();
            return Err(Error::Spec { spec: spec.to_string(), reason });
        }
    })
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet(interface) => write!(f, "packet:{interface}"),
            Self::Tap(interface) => write!(f, "tap:{interface}"),
            Self::Pcap(replay) => write!(f, "{replay}"),
            Self::Sfc(options) => options.fmt(f),
            Self::Memory(rest) if rest.is_empty() => f.write_str("memory"),
            Self::Memory(rest) => write!(f, "memory:{rest}"),
        }
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pcap:{}", self.file.display())?;
        if self.repeat {
            f.write_str(",loop")?;
        }
        self.pps.map_or(Ok(()), |pps| write!(f, ",pps={pps}"))
    }
}

/// A name that the kernel can know an interface by.
fn interface(name: &str) -> Result<String, String> {
    let odd = |c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace();
    match name {
        "" => Err("the name of the interface is missing: `ip link` lists them".to_owned()),
        "." | ".." => Err(format!("'{name}' can't be the name of an interface")),
        _ if name.len() > LONGEST_NAME => {
            Err(format!("'{name}' is too long: an interface has at most {LONGEST_NAME} characters"))
        }
        _ if name.contains(odd) => Err(format!("'{name}' can't be the name of an interface")),
        _ => Ok(name.to_owned()),
    }
}

fn replay(text: &str) -> Result<Replay, String> {
    let mut parts = text.split(',');
    let file = parts.next().unwrap_or_default();
    if file.is_empty() {
        return Err(format!("the name of the capture is missing: write {PCAP}"));
    }
    let mut replay = Replay { file: file.into(), repeat: false, pps: None };
    for option in parts {
        if option == "loop" {
            replay.repeat = true;
        } else if let Some(value) = option.strip_prefix("pps=") {
            let pps = value.parse().map_err(|_| {
                format!("pps={value}: frames per second are a whole number from 1 to {}", u32::MAX)
            })?;
            replay.pps = Some(pps);
        } else {
            return Err(format!("'{option}' is no option of a replay: write {PCAP}"));
        }
    }
    Ok(replay)
}

/// IFNAMSIZ of the kernel, without the final zero.
const LONGEST_NAME: usize = 15;
const KINDS: &str = "packet:IFNAME, tap:NAME, pcap:FILE[,loop][,pps=N], sfc:FUNCTION or memory";
const PCAP: &str = "pcap:FILE[,loop][,pps=N]";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_what_is_meant() {
        assert_eq!(parse("packet:eth1").unwrap(), Spec::Packet("eth1".into()));
        assert_eq!(parse("tap:vm0").unwrap(), Spec::Tap("vm0".into()));
        assert_eq!(parse("memory").unwrap(), Spec::Memory(String::new()));
        assert_eq!(parse("memory:flows=4").unwrap(), Spec::Memory("flows=4".into()));
        assert_eq!(parse("memory,flows=4").unwrap(), Spec::Memory("flows=4".into()));
        let replay = Replay { file: "a/b:c.pcap".into(), repeat: true, pps: NonZeroU32::new(250) };
        assert_eq!(parse("pcap:a/b:c.pcap,pps=250,loop").unwrap(), Spec::Pcap(replay));
        let replay = Replay { file: "x".into(), repeat: false, pps: None };
        assert_eq!(parse("pcap:x").unwrap(), Spec::Pcap(replay));
    }

    #[test]
    fn a_spec_prints_as_it_is_read() {
        for text in ["packet:eth1", "tap:vm0", "pcap:x.pcap,loop,pps=7", "memory", "memory:a=b"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let table = [
            ("", "no kind of port"),
            ("eth0", "no kind of port"),
            ("memoryless", "no kind of port"),
            ("dpdk:0000:01:00.0", "'dpdk' is no kind of port"),
            ("packet:", "the name of the interface is missing"),
            ("packet:a/b", "can't be the name of an interface"),
            ("packet:..", "can't be the name of an interface"),
            ("tap:sixteen-letters-x", "too long"),
            ("pcap:", "the name of the capture is missing"),
            ("pcap:x,pps=0", "a whole number from 1"),
            ("pcap:x,pps=fast", "a whole number from 1"),
            ("pcap:x,looop", "'looop' is no option of a replay"),
        ];
        for (spec, reason) in table {
            let error = parse(spec).unwrap_err().to_string();
            assert!(error.contains(reason), "{spec}: {error}");
        }
    }

    #[test]
    fn a_port_in_memory_is_not_built_here() {
        let error = build(&Spec::Memory("x".into())).unwrap_err().to_string();
        assert!(error.starts_with("port 'memory:x'"), "{error}");
    }
}

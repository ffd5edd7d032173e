//! Faults on request: what can go wrong with a card, made to go wrong.

use std::str::FromStr;
use std::time::Duration;

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The controller reboots: everything of the function is lost.
    McReboot,
    /// A command fails with an error code, until the end.
    McdiError {
        /// The command.
        command: u32,
        /// What it answers.
        error: u32,
    },
    /// Every command takes so long.
    McdiDelay(Duration),
    /// Replies of a command are cut.
    ShortReply {
        /// The command.
        command: u32,
        /// Bytes that remain.
        len: usize,
    },
    /// So many received frames are said to have a wrong TCP or UDP checksum.
    BadChecksum(u64),
    /// So many received frames are said to have a wrong frame check sequence.
    CrcError(u64),
    /// The link goes down, and up again after a while.
    LinkFlap(Duration),
    /// So many receive events are not written.
    LoseEvents(u64),
    /// The next receive event is written over the whole ring.
    EvqOverflow,
    /// So many receive prefixes have a length that can't be.
    BadPrefix(u64),
    /// The function falls off the bus.
    Remove,
}

/// A fault, and when it happens after the function was first attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// What.
    pub fault: Fault,
    /// When.
    pub after: Duration,
}

/// `KIND[=ARG][@SECONDS]` is not understood.
#[derive(Debug, thiserror::Error)]
#[error("fault '{text}': {why}")]
pub struct Malformed {
    text: String,
    why: &'static str,
}

impl FromStr for Scheduled {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let wrong = |why| Malformed { text: text.to_owned(), why };
        let (kind, after) = match text.split_once('@') {
            Some((kind, after)) => {
                (kind, seconds(after).ok_or_else(|| wrong("seconds after '@'"))?)
            }
            None => (text, Duration::ZERO),
        };
        let (kind, argument) = kind.split_once('=').unwrap_or((kind, ""));
        let count = || match argument {
            "" => Ok(1),
            _ => argument.parse().map_err(|_| wrong("the argument must be a number")),
        };
        let pair = || {
            let (command, value) = argument.split_once(':')?;
            Some((number(command)?, number(value)?))
        };
        let time = || seconds(argument).ok_or_else(|| wrong("the argument must be seconds"));
        let fault = match kind {
            "mc-reboot" => Fault::McReboot,
            "mcdi-error" => {
                let (command, error) =
                    pair().ok_or_else(|| wrong("the argument must be CMD:ERR"))?;
                Fault::McdiError { command, error }
            }
            "mcdi-delay" => Fault::McdiDelay(time()?),
            "short-reply" => {
                let (command, len) = pair().ok_or_else(|| wrong("the argument must be CMD:LEN"))?;
                Fault::ShortReply { command, len: len as usize }
            }
            "bad-checksum" => Fault::BadChecksum(count()?),
            "crc-error" => Fault::CrcError(count()?),
            "link-flap" => Fault::LinkFlap(time()?),
            "lose-events" => Fault::LoseEvents(count()?),
            "evq-overflow" => Fault::EvqOverflow,
            "bad-prefix" => Fault::BadPrefix(count()?),
            "remove" => Fault::Remove,
            _ => {
                return Err(wrong(
                    "the kinds are mc-reboot, mcdi-error, mcdi-delay, short-reply, bad-checksum, crc-error, \
                     link-flap, lose-events, evq-overflow, bad-prefix, remove",
                ));
            }
        };
        Ok(Self { fault, after })
    }
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Faults in force.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) waiting: Vec<Scheduled>,
    pub(crate) errors: Vec<(u32, u32)>,
    pub(crate) short: Vec<(u32, usize)>,
    pub(crate) delay: Duration,
    pub(crate) bad_checksum: u64,
    pub(crate) crc_error: u64,
    pub(crate) lose_events: u64,
    pub(crate) overflow: bool,
    pub(crate) bad_prefix: u64,
    pub(crate) link_up_at: Option<Duration>,
}

/// Takes one of a number of faults that are left.
pub(crate) fn take(left: &mut u64) -> bool {
    let is = *left > 0;
    *left = left.saturating_sub(1);
    is
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read() {
        let parse = |text: &str| text.parse::<Scheduled>().map_err(|error| error.to_string());
        let at = |fault, after| Ok(Scheduled { fault, after: Duration::from_millis(after) });
        assert_eq!(parse("mc-reboot@1.5"), at(Fault::McReboot, 1500));
        assert_eq!(parse("mcdi-error=0x2c:1"), at(Fault::McdiError { command: 0x2c, error: 1 }, 0));
        assert_eq!(parse("lose-events"), at(Fault::LoseEvents(1), 0));
        assert_eq!(parse("link-flap=0.2@3"), at(Fault::LinkFlap(Duration::from_millis(200)), 3000));
        for wrong in ["", "melt", "mcdi-error=7", "crc-error=x", "mc-reboot@soon", "mcdi-delay"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

//! The loop: take, check, send, report once a second, until time, count, a signal or the end of the
//! back end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use guest::header::NEEDS_CSUM;
use guest::{Guest, Received};
use signal_hook::consts::{SIGINT, SIGTERM};
use traffic::{Checker, ChecksumState, Mismatch};

use crate::cli::Cli;
use crate::report::{Report, Verdict};
use crate::sender::Sender;

/// A guest at work.
pub(crate) struct Run<'a> {
    cli: &'a Cli,
    guest: Guest,
    checker: Option<Checker>,
    /// The first frame that was not as it was sent.
    mismatch: Option<Mismatch>,
    sender: Option<Sender>,
    report: Report,
    stop: Arc<AtomicBool>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(cli: &'a Cli, guest: Guest) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop)).context("signals")?;
        }
        let report = Report::new(cli.json);
        report.begin(&guest);
        Ok(Self {
            cli,
            guest,
            checker: cli.check.as_ref().map(Checker::new),
            mismatch: None,
            sender: cli.send.as_ref().map(Sender::new),
            report,
            stop,
        })
    }

    /// Works until it is over; whether all was well.
    pub(crate) fn run(mut self) -> anyhow::Result<bool> {
        let start = now();
        let (mut time, mut last, mut packets) = (Duration::ZERO, Duration::ZERO, 0u64);
        let limit = self.cli.seconds.map_or(Duration::MAX, Duration::from_secs);
        let count = self.cli.count.unwrap_or(u64::MAX);
        let mut lost = false;
        while packets < count && time < limit && !lost && !self.stop.load(Ordering::Relaxed) {
            let taken = self.take();
            packets += taken as u64;
            let sent = match &mut self.sender {
                Some(sender) => sender.send(&mut self.guest, time),
                None => 0,
            };
            if taken == 0 && sent == 0 {
                // A guest that sends must not sleep longer than until the next frame is due.
                let pause = if self.sender.is_some() { 1 } else { 100 };
                self.guest.idle(Duration::from_millis(pause))?;
            }
            time = start.elapsed();
            if time - last >= SECOND {
                self.report.second(self.guest.stats(), time - last);
                last = time;
                lost = !self.guest.is_connected() && !self.come_back()?;
            }
        }
        self.guest.reap_tx();
        Ok(self.finish(start.elapsed(), lost))
    }

    fn take(&mut self) -> usize {
        if self.cli.fast {
            return self.guest.poll_rx_fast();
        }
        let Some(checker) = &mut self.checker else { return self.guest.poll_rx(|_| ()) };
        let mismatch = &mut self.mismatch;
        self.guest.poll_rx(|received: Received<'_>| {
            let state = if received.header.flags & NEEDS_CSUM != 0 {
                ChecksumState::PseudoHeader
            } else {
                ChecksumState::Complete
            };
            if let Err(error) = checker.frame(received.bytes, state) {
                log::debug!("{error}");
                mismatch.get_or_insert(error);
            }
        })
    }

    /// Waits for a back end that went away, if that is wanted.
    fn come_back(&mut self) -> anyhow::Result<bool> {
        if !self.cli.reconnect {
            log::error!("the back end closed the connection");
            return Ok(false);
        }
        log::warn!("the back end closed the connection; connecting again");
        while !self.stop.load(Ordering::Relaxed) {
            match self.guest.reconnect() {
                Ok(()) => return Ok(true),
                // Gone again before it was done, or not there yet.
                Err(guest::Error::Connect { .. } | guest::Error::Message(..)) => {}
                Err(error) => return Err(error).context("the back end came back"),
            }
        }
        Ok(true)
    }

    fn finish(&mut self, time: Duration, lost: bool) -> bool {
        let summary = self.checker.as_ref().map(Checker::summary);
        let verdict = Verdict {
            back_end_lost: lost,
            mismatch: self.mismatch.as_ref().map(ToString::to_string),
            bytes_missing: self.cli.lossless && summary.is_some_and(|s| s.lost_bytes > 0),
            violations: self.guest.violations().total(),
        };
        let stats = self.guest.stats();
        self.report.end(stats, time, self.guest.violations(), summary, &verdict);
        verdict.is_good()
    }
}

/// The one look at the clock that starts everything.
#[expect(clippy::disallowed_methods, reason = "this is the rim: the program measures by the clock")]
fn now() -> Instant {
    Instant::now()
}

const SECOND: Duration = Duration::from_secs(1);

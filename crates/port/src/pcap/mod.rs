//! Replay of a capture: its frames, in order, as fast as they are taken or at a given rate.
//!
//! The file is read whole when the port is set up; replaying is copying from memory into buffers.
//! Only whole frames are replayed: what was cut off by the capture's snap length or is no frame at
//! all is counted once, when the file is read. What is sent to the port is counted and forgotten.

mod file;
mod pace;

use std::os::fd::BorrowedFd;

use packet::{Burst, Pool};

use crate::{
    Armed, Capabilities, End, Error, Link, Port, QueuePair, Replay, RxCounters, RxQueue,
    TxCounters, TxQueue, pieces,
};
use file::Capture;
use pace::Pace;

/// A capture as a port.
#[derive(Debug)]
pub struct Pcap {
    name: String,
    rx: Option<PcapRx>,
}

impl Pcap {
    /// Reads the capture.
    ///
    /// # Errors
    ///
    /// [`Error::Capture`] when the file can't be read, is no capture of Ethernet frames, is cut off,
    /// or holds nothing to replay.
    pub fn load(replay: &Replay) -> Result<Self, Error> {
        let name = replay.to_string();
        let wrong = |reason: String| {
            let reason = format!("{}: {reason}", replay.file.display());
            Error::Capture { port: name.clone(), reason }
        };
        let bytes = std::fs::read(&replay.file)
            .map_err(|error| wrong(format!("{error}: give a file that can be read")))?;
        let capture = Capture::read(&bytes).map_err(wrong)?;
        let Capture { cut, short, long, .. } = capture;
        if cut + short + long > 0 {
            log::warn!(
                "{name}: {} frames are replayed; left out: {cut} cut off by the snap length, {short} \
                 too short, {long} too long",
                capture.frames.len(),
            );
        }
        let counters =
            RxCounters { malformed: cut + short, too_long: long, ..RxCounters::default() };
        let pace = replay.pps.map(Pace::new);
        let rx = PcapRx { capture, next: 0, repeat: replay.repeat, pace, counters, end: None };
        Ok(Self { name, rx: Some(rx) })
    }
}

impl Port for Pcap {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { queue_pairs: 1, ..Capabilities::default() }
    }

    fn mac(&self) -> Option<[u8; 6]> {
        None
    }

    fn link(&self) -> Link {
        Link { up: true, speed_mbps: None }
    }

    fn mtu(&self) -> Option<u16> {
        None
    }

    fn open(&mut self, pairs: usize) -> Result<Vec<QueuePair>, Error> {
        crate::hand_out(&self.name, pairs, &mut self.rx, |rx| QueuePair {
            rx: Box::new(rx),
            tx: Box::new(PcapTx::default()),
        })
    }
}

#[derive(Debug)]
struct PcapRx {
    capture: Capture,
    next: usize,
    repeat: bool,
    pace: Option<Pace>,
    counters: RxCounters,
    end: Option<End>,
}

impl RxQueue for PcapRx {
    fn rx_burst(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        if self.end.is_some() || burst.room() == 0 {
            return 0;
        }
        let before = burst.len();
        let mut left = burst.room();
        if let Some(pace) = &mut self.pace {
            #[expect(
                clippy::disallowed_methods,
                reason = "the rim: once per burst, to keep a rate"
            )]
            let now = std::time::Instant::now();
            left = left.min(pace.due(now));
        }
        while left > 0 {
            let Some(bytes) = self.capture.frame(self.next) else {
                if !self.repeat {
                    self.end = Some(End::Drained);
                    break;
                }
                self.next = 0;
                continue;
            };
            let copy = |offset: usize, to: &mut [u8]| {
                to.copy_from_slice(&bytes[offset..][..to.len()]);
            };
            // Without a buffer the frame stays in the capture until there is one; a pool that could
            // never hold it would stop the replay.
            let Some(frame) = pieces::frame(bytes.len(), pool, copy) else {
                if pieces::buffers(bytes.len(), pool) <= pool.total() {
                    break;
                }
                self.counters.no_buffer += 1;
                self.next += 1;
                left -= 1;
                continue;
            };
            burst.push(frame);
            self.next += 1;
            left -= 1;
        }
        let added = &burst.frames()[before..];
        self.counters.count(added);
        if let Some(pace) = &mut self.pace {
            pace.sent(added.len());
        }
        added.len()
    }

    fn arm(&mut self) -> Armed {
        // A replay at a rate has no descriptor that tells when the next frame is due.
        Armed::Unsupported
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> RxCounters {
        self.counters
    }

    fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }
}

/// Where sent frames end.
#[derive(Debug, Default)]
struct PcapTx {
    counters: TxCounters,
}

impl TxQueue for PcapTx {
    fn tx_burst(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        let count = burst.len();
        self.counters.count(burst.frames());
        for frame in burst.drain() {
            pool.recycle(frame);
        }
        count
    }

    fn reap(&mut self, _pool: &mut Pool) {}

    fn counters(&self) -> TxCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::num::NonZeroU32;

    use super::file::tests::{little_pcap, record};
    use super::*;

    fn replay(frames: &[&[u8]], repeat: bool, pps: u32) -> (tempfile::NamedTempFile, Replay) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&little_pcap(frames)).unwrap();
        let path = file.path().to_owned();
        (file, Replay { file: path, repeat, pps: NonZeroU32::new(pps) })
    }

    fn open(replay: &Replay) -> QueuePair {
        let mut port = Pcap::load(replay).unwrap();
        let pair = port.open(1).unwrap().remove(0);
        assert!(matches!(port.open(1), Err(Error::TooManyQueues { have: 0, asked: 1, .. })));
        pair
    }

    #[test]
    fn frames_come_once_and_in_order() {
        let (_file, replay) = replay(&[&[1; 60], &[2; 70], &[3; 3000]], false, 0);
        let (mut pool, mut burst) = (Pool::new(8, 2048), Burst::new(2));
        let mut pair = open(&replay);
        assert_eq!(pair.rx.rx_burst(&mut burst, &mut pool), 2);
        assert_eq!(burst.frames()[1].to_vec(), [2; 70]);
        assert_eq!(pair.rx.end(), None);
        assert_eq!(pair.tx.tx_burst(&mut burst, &mut pool), 2);
        assert_eq!(pair.rx.rx_burst(&mut burst, &mut pool), 1);
        assert_eq!(
            (burst.frames()[0].piece_count(), burst.frames()[0].to_vec()),
            (2, vec![3; 3000])
        );
        assert_eq!(pair.rx.end(), Some(&End::Drained));
        assert_eq!(pair.rx.rx_burst(&mut burst, &mut pool), 0);
        assert_eq!((pair.rx.counters().frames, pair.rx.counters().bytes), (3, 3130));
        assert_eq!(pair.tx.counters().bytes, 130);
    }

    #[test]
    fn a_loop_begins_again() {
        let (_file, replay) = replay(&[&[1; 60], &[2; 60]], true, 0);
        let (mut pool, mut burst) = (Pool::new(8, 2048), Burst::new(5));
        let mut pair = open(&replay);
        assert_eq!(pair.rx.rx_burst(&mut burst, &mut pool), 5);
        assert_eq!(burst.frames().iter().map(|f| f.head()[0]).collect::<Vec<_>>(), [1, 2, 1, 2, 1]);
        assert_eq!(pair.rx.end(), None);
    }

    #[test]
    fn frames_wait_for_buffers() {
        let (_file, replay) = replay(&[&[1; 60], &[2; 300], &[3; 60]], false, 0);
        let (mut pool, mut burst) = (Pool::new(4, 64), Burst::new(8));
        let mut pair = open(&replay);
        // The second frame can never fit four buffers of 64 bytes; the others do.
        assert_eq!(pair.rx.rx_burst(&mut burst, &mut pool), 2);
        assert_eq!(pair.rx.counters().no_buffer, 1);
        let held: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        let mut again = open(&replay);
        let mut empty = Burst::new(8);
        assert_eq!(again.rx.rx_burst(&mut empty, &mut pool), 0);
        assert_eq!((again.rx.end(), held.len()), (None, 2));
    }

    #[test]
    fn a_rate_keeps_frames_back() {
        let (_file, replay) = replay(&[&[1; 60]], true, 1);
        let (mut pool, mut burst) = (Pool::new(8, 2048), Burst::new(8));
        let mut pair = open(&replay);
        // One frame per second: the first is due at once, the second is not.
        assert_eq!(pair.rx.rx_burst(&mut burst, &mut pool), 1);
        assert_eq!(pair.rx.end(), None);
    }

    #[test]
    fn what_was_cut_off_is_counted() {
        let mut bytes = little_pcap(&[&[1; 60]]);
        bytes.extend(record(&[2; 40], 1500));
        bytes.extend(record(&[3; 4], 4));
        bytes.extend(record(&[4; 70_000], 70_000));
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let replay = Replay { file: file.path().to_owned(), repeat: false, pps: None };
        let counters = open(&replay).rx.counters();
        assert_eq!((counters.malformed, counters.too_long), (2, 1));
    }

    #[test]
    fn an_unreadable_file_is_named() {
        let replay = Replay { file: "/none/such.pcap".into(), repeat: false, pps: None };
        let error = Pcap::load(&replay).unwrap_err().to_string();
        assert!(
            error.starts_with("port 'pcap:/none/such.pcap': /none/such.pcap: No such"),
            "{error}"
        );
    }
}

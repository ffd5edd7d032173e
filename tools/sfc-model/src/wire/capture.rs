//! A capture as a network: its frames come in at the pace at which they were captured.

use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};

use super::Wire;

/// Frames of one file, and those sent to another one.
pub(super) struct Capture {
    input: PcapReader<BufReader<File>>,
    next: Option<(Duration, Vec<u8>)>,
    /// The first frame's time in the capture, and here.
    origin: Option<(Duration, Duration)>,
    output: Option<PcapWriter<BufWriter<File>>>,
}

impl Capture {
    pub(super) fn open(input: &Path, output: Option<&Path>) -> io::Result<Self> {
        let input =
            PcapReader::new(BufReader::new(File::open(input)?)).map_err(io::Error::other)?;
        let create = |path| {
            PcapWriter::new(BufWriter::new(File::create_new(path)?)).map_err(io::Error::other)
        };
        let output = output.map(create).transpose()?;
        let mut capture = Self { input, next: None, origin: None, output };
        capture.advance()?;
        Ok(capture)
    }

    fn advance(&mut self) -> io::Result<()> {
        let next = self.input.next_packet().transpose().map_err(io::Error::other)?;
        self.next = next.map(|packet| (packet.timestamp, packet.data.into_owned()));
        Ok(())
    }
}

impl Wire for Capture {
    fn receive(&mut self, now: Duration, frame: &mut [u8]) -> io::Result<Option<usize>> {
        let Some((time, bytes)) = &self.next else { return Ok(None) };
        let (first, start) = *self.origin.get_or_insert((*time, now));
        if time.saturating_sub(first) > now.saturating_sub(start) {
            return Ok(None);
        }
        let len = bytes.len().min(frame.len());
        frame[..len].copy_from_slice(&bytes[..len]);
        self.advance()?;
        Ok(Some(len))
    }

    fn send(&mut self, now: Duration, frame: &[u8]) -> io::Result<()> {
        if let Some(output) = &mut self.output {
            let len = u32::try_from(frame.len()).map_err(io::Error::other)?;
            output.write_packet(&PcapPacket::new(now, len, frame)).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn waits(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_at_their_pace_and_go_to_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let (from, to) = (dir.path().join("in"), dir.path().join("out"));
        let mut file = PcapWriter::new(File::create(&from).expect("a file")).expect("a capture");
        for (ms, byte) in [(5000, 1u8), (5002, 2)] {
            file.write_packet(&PcapPacket::new(Duration::from_millis(ms), 20, &[byte; 20]))
                .expect("a frame");
        }
        drop(file);
        let mut wire = Capture::open(&from, Some(&to)).expect("the capture");
        assert!(Capture::open(&from, Some(&to)).is_err(), "captures are not overwritten");
        let mut frame = [0; 64];
        let at = Duration::from_millis;
        assert_eq!(wire.receive(at(100), &mut frame).ok(), Some(Some(20)));
        assert_eq!(wire.receive(at(101), &mut frame).ok(), Some(None));
        assert_eq!(wire.receive(at(102), &mut frame).ok(), Some(Some(20)));
        assert_eq!(frame[..20], [2; 20]);
        assert_eq!(wire.receive(at(200), &mut frame).ok(), Some(None), "the capture is over");
        wire.send(at(103), &[7; 60]).expect("room in the file");
        drop(wire);
        let mut sent = PcapReader::new(File::open(&to).expect("the file")).expect("a capture");
        assert_eq!(sent.next_packet().expect("a frame").expect("whole").data[..], [7; 60]);
        assert!(sent.next_packet().is_none());
    }
}

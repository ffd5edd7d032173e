//! A card for tests: as much of its controller as it takes to answer commands, and a record of what the
//! driver did. What it answers is set per command; what is not set is "not implemented".

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pci::fake::{Fake, FakeDevice, Host};
use pci::{Iova, Width};

use crate::clock::Clock;
use crate::device::VENDOR;

/// How the controller answers one command.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// With this payload.
    Reply(Vec<u8>),
    /// With this error code.
    Error(u32),
    /// As one that has restarted: an error without a payload.
    Restarted,
    /// With this header and payload, word for word; the sequence number of the request is put in.
    Raw(u32, u32, Vec<u8>),
    /// Not at all.
    Silence,
    /// Not at all, because it restarts.
    RestartsNow,
    /// With the first answer once, with the second from then on.
    Once(Box<Self>, Box<Self>),
}

/// One thing that the driver did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Done {
    /// Sent a command: its number and payload.
    Command(u16, Vec<u8>),
    /// Wrote a register other than the controller's doorbell.
    Write(u64, u64),
}

/// The card: a handle that the test keeps while the driver has the function.
#[derive(Debug, Clone)]
pub(crate) struct Card(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    status: u32,
    address: u64,
    first: Vec<bool>,
    answers: HashMap<u16, Answer>,
    done: Vec<Done>,
    resets: u32,
}

impl Card {
    /// One that has booted once and implements nothing.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            status: 0xb007_0001,
            address: 0,
            first: Vec::new(),
            answers: HashMap::new(),
            done: Vec::new(),
            resets: 0,
        })))
    }

    /// One that answers all that it takes to bring a port up, and does nothing else.
    pub(crate) fn working() -> Self {
        let card = Self::new();
        for silent in [
            0x20, 0x07, 0x8c, 0x98, 0x2a, 0x2c, 0x2e, 0x81, 0x82, 0x83, 0x84, 0x85, 0x99, 0x9f,
            0xa0, 0xa2, 0xe1,
        ] {
            card.reply(silent, &[]);
        }
        let words = |command: u16, len: usize, words: &[(usize, u32)]| {
            let mut payload = vec![0; len];
            for &(at, word) in words {
                payload[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            card.reply(command, &payload);
        };
        words(0x06, 140, &[(0, 1)]);
        words(0x1c, 8, &[]);
        // 14-byte prefix, merged completions, per-protocol hashes; TSO v2, typed event queues; 8 KiB
        // windows; 97 statistics.
        words(
            0xbe,
            78,
            &[(0, 1 << 23 | 1 << 25 | 1 << 13), (20, 1 | 1 << 7), (72, 0), (74, 97 << 16)],
        );
        words(0x59, 8, &[]);
        words(0x08, 32, &[]);
        words(0xec, 8, &[(4, 0xffff)]);
        words(0xb8, 4, &[]);
        words(0x55, 16, &[(0, 0x0053_0f00), (8, 1)]);
        words(0xaa, 10, &[(0, 1), (4, 0x0053_0f00)]);
        words(0x122, 36, &[(4, 1920), (8, 16_383)]);
        words(0xc2, 4, &[]);
        words(0x24, 72, &[(8, 0x80)]);
        words(0x29, 28, &[(8, 10_000), (16, 3)]);
        words(0x80, 8, &[]);
        words(0xe4, 12, &[(8, 1 << 4)]);
        words(0x8a, 12, &[(4, 7)]);
        words(0x9e, 4, &[(0, 5)]);
        words(0x8b, 8, &[(0, 3)]);
        card
    }

    /// The function that the driver gets: a Medford port.
    pub(crate) fn function(&self) -> Fake {
        Fake::new(1 << 20, self.clone()).at_bar(2).with_ids(VENDOR, 0x0a03)
    }

    /// The same as a virtual function.
    pub(crate) fn virtual_function(&self) -> Fake {
        Fake::new(1 << 20, self.clone()).with_ids(VENDOR, 0x1a03)
    }

    pub(crate) fn answer(&self, command: u16, answer: Answer) {
        self.lock().answers.insert(command, answer);
    }

    pub(crate) fn reply(&self, command: u16, payload: &[u8]) {
        self.answer(command, Answer::Reply(payload.to_vec()));
    }

    pub(crate) fn set_status(&self, status: u32) {
        self.lock().status = status;
    }

    /// What the driver did since the last call.
    pub(crate) fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut self.lock().done)
    }

    /// The numbers of the commands since the last call.
    pub(crate) fn take_commands(&self) -> Vec<u16> {
        let number = |done| match done {
            Done::Command(number, _) => Some(number),
            Done::Write(..) => None,
        };
        self.take_done().into_iter().filter_map(number).collect()
    }

    /// Per request so far, whether it was the first of an epoch.
    pub(crate) fn epochs(&self) -> Vec<bool> {
        self.lock().first.clone()
    }

    /// How often the function was reset.
    pub(crate) fn resets(&self) -> u32 {
        self.lock().resets
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    fn request(&mut self, host: &Host) {
        let buffer = Iova::new(self.address);
        let word = |at: u64| {
            let mut bytes = [0; 4];
            host.read(buffer.add(at), &mut bytes);
            u32::from_le_bytes(bytes)
        };
        let (first, second) = (word(0), word(4));
        let command = u16::try_from(second & 0x7fff).unwrap();
        let mut payload = vec![0; usize::try_from(second >> 16 & 0x3ff).unwrap()];
        host.read(buffer.add(8), &mut payload);
        self.first.push(first >> 21 & 1 == 0);
        self.done.push(Done::Command(command, payload));
        let answer = self.answers.get(&command).cloned().unwrap_or(Answer::Error(0x26));
        let answer = match answer {
            Answer::Once(now, later) => {
                self.answers.insert(command, *later);
                *now
            }
            other => other,
        };
        let seq = first & 0xf_0000;
        let (error, payload) = match answer {
            Answer::Reply(payload) => (0, payload),
            Answer::Error(code) => (1 << 22, code.to_le_bytes().to_vec()),
            Answer::Restarted => (1 << 22, Vec::new()),
            Answer::Silence => return,
            Answer::RestartsNow => {
                self.status += 1;
                return;
            }
            Answer::Raw(first, second, payload) => {
                host.write(buffer.add(8), &payload);
                host.write(buffer.add(4), &second.to_le_bytes());
                host.write(buffer, &(first | seq).to_le_bytes());
                return;
            }
            Answer::Once(..) => panic!("one Once inside another"),
        };
        let len = u32::try_from(payload.len()).unwrap();
        host.write(buffer.add(8), &payload);
        host.write(buffer.add(4), &(u32::from(command) | len << 16).to_le_bytes());
        host.write(buffer, &(0x0080_00ff | error | seq).to_le_bytes());
    }
}

impl FakeDevice for Card {
    fn read(&mut self, offset: u64, _width: Width, _host: &Host) -> u64 {
        assert_eq!(offset, 0x10, "the driver reads one register only");
        self.lock().status.into()
    }

    fn write(&mut self, offset: u64, _width: Width, value: u64, host: &Host) {
        let mut state = self.lock();
        match (offset, value) {
            (0x200, _) => state.address = value << 32,
            (0x204, 1) => state.done.push(Done::Write(offset, value)),
            (0x204, _) => {
                state.address |= value;
                state.request(host);
            }
            _ => state.done.push(Done::Write(offset, value)),
        }
    }

    fn reset(&mut self, _host: &Host) {
        let mut state = self.lock();
        state.address = 0;
        state.resets += 1;
    }
}

/// A clock that stands still until somebody waits.
#[derive(Debug, Clone, Default)]
pub(crate) struct TestClock(Arc<Mutex<Duration>>);

impl Clock for TestClock {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

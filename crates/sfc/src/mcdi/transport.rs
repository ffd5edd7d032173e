//! One request at a time, with a limit on every wait (`spec/ef10.md` 3.3 to 3.7).
//!
//! ```text
//!  idle ─▶ write header and payload ─▶ ring ─▶ poll the response bit ─┬─▶ copy the reply ─▶ idle
//!                                                                     ├─▶ 10 s: dead, nothing is sent
//!                                                                     └─▶ boot count moved: restarted
//! ```
//!
//! The transport owns the DMA buffer. A reply is copied out of it once, into memory that the card
//! cannot write, before anything of it is looked at.

use std::time::Duration;

use pci::{Bar, DmaRegion, PciFunction, acquire_from_device, release_to_device};

use super::body::{Reply, Request};
use super::command::Command;
use super::header::{self, BUFFER, MAX_PAYLOAD, Response};
use crate::clock::Clock;
use crate::error::Error;
use crate::mcdi::Code;
use crate::registers::{GONE, MC_DOORBELL_FIRST, MC_DOORBELL_SECOND, STATUS};

/// The channel to the card's management controller.
#[derive(Debug)]
pub struct Mcdi {
    registers: Bar,
    buffer: DmaRegion,
    clock: Box<dyn Clock>,
    seq: u8,
    first: bool,
    boots: u16,
    dead: bool,
    reply: Box<[u8; MAX_PAYLOAD]>,
}

impl Mcdi {
    /// Opens the channel: waits for the controller to run, drops what a driver before us left.
    /// `registers` is window 0.
    ///
    /// # Errors
    ///
    /// When there is no DMA memory, the controller does not come up, or the card is gone.
    pub fn open(
        function: &mut dyn PciFunction,
        registers: Bar,
        clock: Box<dyn Clock>,
    ) -> Result<Self, Error> {
        let buffer = function.dma(BUFFER, ALIGNMENT)?;
        let mut mcdi = Self {
            registers,
            buffer,
            clock,
            seq: 0,
            first: true,
            boots: 0,
            dead: false,
            reply: Box::new([0; MAX_PAYLOAD]),
        };
        mcdi.boots = mcdi.wait_for_boot()?;
        // Not an address: a request left over by a driver before us is cancelled (2.4).
        mcdi.registers.write(MC_DOORBELL_SECOND, 1);
        Ok(mcdi)
    }

    /// Sends a command and waits for its reply.
    ///
    /// While the port of a virtual function is being set up by its physical function, the command is
    /// repeated, for 10 s at most.
    ///
    /// # Errors
    ///
    /// When the controller refuses, does not answer, answers nonsense, or has restarted.
    pub fn call<C: Command>(&mut self, command: &C) -> Result<C::Reply, Error> {
        let request = command.request();
        let deadline = self.clock.now() + TIMEOUT;
        let mut delay = Duration::from_millis(10);
        let len = loop {
            match self.exchange(C::CODE, C::NAME, &request) {
                Err(Error::Refused { code: Code::NO_EVB_PORT, .. })
                    if self.clock.now() < deadline =>
                {
                    self.clock.sleep(delay);
                    delay = (delay * 2).min(Duration::from_millis(100));
                }
                outcome => break outcome?,
            }
        };
        command.reply(Reply(&self.reply[..len])).map_err(|_| Error::Malformed { command: C::NAME })
    }

    /// After a restart of the controller, or a reset of the function: waits for it to run and starts
    /// a new epoch. Everything allocated before is gone.
    ///
    /// # Errors
    ///
    /// When it does not come up.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.boots = self.wait_for_boot()?;
        self.first = true;
        self.dead = false;
        Ok(())
    }

    /// Whether the card is still there and its controller still the one we know. Reads one register.
    ///
    /// # Errors
    ///
    /// [`Error::Removed`] or [`Error::Rebooted`].
    pub fn check(&mut self) -> Result<(), Error> {
        self.check_status("status")
    }

    /// Whether the controller has stopped answering: it takes a reset of the function and
    /// [`Self::restart`] to talk to it again.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// The clock that waits are measured with.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// One request and its response; answers the reply's length.
    fn exchange(
        &mut self,
        code: u16,
        name: &'static str,
        request: &Request,
    ) -> Result<usize, Error> {
        if self.dead {
            return Err(Error::Dead { command: name });
        }
        self.check_status(name)?;
        self.seq = (self.seq + 1) & 15;
        let words = header::request(code, request.bytes().len(), self.seq, self.first);
        self.buffer.write(0, words[0]);
        self.buffer.write(4, words[1]);
        self.buffer.copy_in(header::BYTES, request.words());
        release_to_device();
        let address = self.buffer.iova().get();
        self.registers.write(MC_DOORBELL_FIRST, half(address >> 32));
        self.registers.write(MC_DOORBELL_SECOND, half(address));
        self.wait(name)?;
        acquire_from_device();
        let response = Response::decode([self.buffer.read(0), self.buffer.read(4)]);
        if response.error && response.len == 0 {
            self.first = true;
            return Err(Error::Rebooted { command: name });
        }
        if (response.command, response.seq) != (code, self.seq) {
            return Err(Error::Malformed { command: name });
        }
        self.first = false;
        // The buffer holds the longest reply that a header can tell of: 8 + 1023 bytes.
        let reply = &mut self.reply[..response.len];
        self.buffer.copy_out(response.offset, reply);
        if !response.error {
            return Ok(response.len);
        }
        let code = Reply(reply).u32(0).map_err(|_| Error::Malformed { command: name })?;
        self.refused(name, Code(code))
    }

    /// What a refusal means: an interrupted command may be the first sign of a restart.
    #[cold]
    fn refused(&mut self, name: &'static str, code: Code) -> Result<usize, Error> {
        if matches!(code, Code::EIO | Code::EINTR) {
            let deadline = self.clock.now() + REBOOT_NOTICE;
            while self.clock.now() < deadline {
                self.check_status(name)?;
                self.clock.sleep(Duration::from_millis(10));
            }
        }
        Err(Error::Refused { command: name, code })
    }

    /// Polls the response bit: often at first, then every 10 ms with a look at the status.
    fn wait(&mut self, name: &'static str) -> Result<(), Error> {
        const LONGEST: Duration = Duration::from_millis(10);
        let deadline = self.clock.now() + TIMEOUT;
        let mut delay = Duration::from_micros(10);
        loop {
            if header::is_response(self.buffer.read(0)) {
                return Ok(());
            }
            if self.clock.now() >= deadline {
                self.dead = true;
                return Err(Error::Timeout { command: name, seconds: TIMEOUT.as_secs() });
            }
            self.clock.sleep(delay);
            delay = (delay * 2).min(LONGEST);
            if delay == LONGEST {
                self.check_status(name)?;
            }
        }
    }

    /// Whether the card is still there and its controller still the one we know.
    fn check_status(&mut self, name: &'static str) -> Result<(), Error> {
        match self.registers.read(STATUS) {
            GONE => Err(Error::Removed),
            status if status == BOOTED | u32::from(self.boots) => Ok(()),
            _ => Err(Error::Rebooted { command: name }),
        }
    }

    /// Waits for the controller to run; answers its count of boots.
    fn wait_for_boot(&self) -> Result<u16, Error> {
        let deadline = self.clock.now() + BOOT_TIME;
        loop {
            let status = self.registers.read(STATUS);
            if status == GONE {
                return Err(Error::Removed);
            }
            if status & 0xffff_0000 == BOOTED {
                return Ok(u16::try_from(status & 0xffff).expect("masked to 16 bits"));
            }
            if self.clock.now() >= deadline {
                return Err(Error::NotStarted { status });
            }
            self.clock.sleep(Duration::from_millis(100));
        }
    }
}

/// Half of an address.
#[expect(clippy::cast_possible_truncation, reason = "the doorbell takes 32 bits at a time")]
fn half(address: u64) -> u32 {
    address as u32
}

const ALIGNMENT: usize = 256;
const BOOTED: u32 = 0xb007_0000;
const TIMEOUT: Duration = Duration::from_secs(10);
const BOOT_TIME: Duration = Duration::from_secs(5);
const REBOOT_NOTICE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::{Answer, Card, Done, TestClock};
    use crate::mcdi::command::{EntityReset, GetAsserts, GetPortAssignment, SetLink};

    fn open(card: &Card) -> (Mcdi, TestClock) {
        let clock = TestClock::default();
        let mut function = card.function();
        let bar = function.bar(2).unwrap();
        let mcdi = Mcdi::open(&mut function, bar, Box::new(clock.clone())).unwrap();
        (mcdi, clock)
    }

    #[test]
    fn a_leftover_request_is_cancelled_first() {
        let card = Card::new();
        let (_mcdi, _) = open(&card);
        assert_eq!(card.take_done(), [Done::Write(0x204, 1)]);
    }

    #[test]
    fn requests_and_replies() {
        let card = Card::new();
        card.reply(0xb8, &[1, 0, 0, 0]);
        card.reply(0x2a, &[]);
        let (mut mcdi, _) = open(&card);
        card.take_done();
        assert_eq!(mcdi.call(&GetPortAssignment).unwrap(), Some(1));
        mcdi.call(&SetLink { capabilities: 0x80 }).unwrap();
        let mut link = vec![0; 16];
        link[0] = 0x80;
        assert_eq!(card.take_done(), [Done::Command(0xb8, vec![]), Done::Command(0x2a, link)]);
        // Only the first request of an epoch says so.
        assert_eq!(card.epochs(), [true, false]);
    }

    #[test]
    fn refusals() {
        let card = Card::new();
        card.answer(0x20, Answer::Error(1));
        let (mut mcdi, _) = open(&card);
        let error = mcdi.call(&EntityReset).unwrap_err();
        assert!(error.is_denied(), "{error}");
        assert_eq!(error.to_string(), "ENTITY_RESET: operation not permitted (0x1)");
        assert!(mcdi.call(&SetLink { capabilities: 0 }).unwrap_err().is_unsupported());
    }

    #[test]
    fn a_virtual_function_waits_for_its_port() {
        let card = Card::new();
        let soon = Answer::Once(Answer::Error(0x1002).into(), Answer::Reply(vec![]).into());
        card.answer(0x20, soon);
        let (mut mcdi, clock) = open(&card);
        mcdi.call(&EntityReset).unwrap();
        assert_eq!(clock.now(), Duration::from_millis(10));
        card.answer(0x20, Answer::Error(0x1002));
        let error = mcdi.call(&EntityReset).unwrap_err();
        assert_eq!(error.code(), Some(Code::NO_EVB_PORT));
        assert!((10..11).contains(&(clock.now().as_secs())), "{:?}", clock.now());
    }

    #[test]
    fn no_answer_ends_it_until_a_restart() {
        let card = Card::new();
        card.answer(0x20, Answer::Silence);
        let (mut mcdi, clock) = open(&card);
        let timeout = mcdi.call(&EntityReset);
        assert!(matches!(timeout, Err(Error::Timeout { seconds: 10, .. })), "{timeout:?}");
        assert!(clock.now() < Duration::from_millis(10_100));
        card.take_done();
        assert!(matches!(mcdi.call(&EntityReset), Err(Error::Dead { .. })));
        assert_eq!(card.take_done(), [], "nothing is sent to a dead controller");
        card.reply(0x20, &[]);
        mcdi.restart().unwrap();
        mcdi.call(&EntityReset).unwrap();
    }

    #[test]
    fn restarts_are_seen_three_ways() {
        let card = Card::new();
        card.reply(0x20, &[]);
        let (mut mcdi, clock) = open(&card);
        mcdi.call(&EntityReset).unwrap();
        let restarted =
            |outcome| matches!(outcome, Err(Error::Rebooted { command: "ENTITY_RESET" }));
        // By the count of boots, before anything is sent.
        card.set_status(0xb007_0002);
        assert!(restarted(mcdi.call(&EntityReset)));
        assert!(restarted(mcdi.call(&EntityReset)), "until somebody acts on it");
        mcdi.restart().unwrap();
        mcdi.call(&EntityReset).unwrap();
        // By an error without a payload.
        card.answer(0x20, Answer::Restarted);
        assert!(restarted(mcdi.call(&EntityReset)));
        // By the count of boots, while waiting for an answer that will not come: well before the limit.
        card.answer(0x20, Answer::RestartsNow);
        let before = clock.now();
        assert!(restarted(mcdi.call(&EntityReset)));
        assert!(clock.now() - before < Duration::from_millis(100));
        mcdi.restart().unwrap();
        card.reply(0x20, &[]);
        mcdi.call(&EntityReset).unwrap();
        mcdi.call(&EntityReset).unwrap();
        // Sent: once, once after the first restart, the one answered with an error, the one never
        // answered (a new epoch already), two after the second restart.
        assert_eq!(card.epochs(), [true, true, false, true, true, false]);
    }

    #[test]
    fn an_interrupted_command_may_be_a_restart() {
        let card = Card::new();
        card.answer(0x20, Answer::Error(4));
        let (mut mcdi, clock) = open(&card);
        assert_eq!(mcdi.call(&EntityReset).unwrap_err().code(), Some(Code::EINTR));
        assert_eq!(clock.now(), REBOOT_NOTICE);
    }

    #[test]
    fn a_card_that_is_gone() {
        let card = Card::new();
        let (mut mcdi, _) = open(&card);
        card.set_status(u32::MAX);
        assert!(matches!(mcdi.call(&EntityReset), Err(Error::Removed)));
        assert!(matches!(mcdi.restart(), Err(Error::Removed)));
    }

    #[test]
    fn a_controller_that_never_starts() {
        let card = Card::new();
        card.set_status(0x1111_face);
        let mut function = card.function();
        let bar = function.bar(2).unwrap();
        let outcome = Mcdi::open(&mut function, bar, Box::new(TestClock::default()));
        assert!(matches!(outcome, Err(Error::NotStarted { status: 0x1111_face })), "{outcome:?}");
    }

    #[test]
    fn nonsense() {
        const RESPONSE: u32 = 0x0080_00ff;
        let card = Card::new();
        let (mut mcdi, _) = open(&card);
        let table = [
            ("another command", Answer::Raw(RESPONSE, 0x0000_0021, vec![])),
            ("another sequence number", Answer::Raw(RESPONSE | 0x000f_0000, 0x6, vec![])),
            ("an error of 2 bytes", Answer::Raw(RESPONSE | 1 << 22, 0x0002_0006, vec![0; 2])),
            ("a short reply", Answer::Reply(vec![0; 139])),
            ("an empty reply", Answer::Reply(vec![])),
        ];
        for (name, answer) in table {
            card.answer(0x6, answer);
            let outcome = mcdi.call(&GetAsserts);
            assert!(matches!(outcome, Err(Error::Malformed { .. })), "{name}: {outcome:?}");
        }
    }

    #[test]
    fn the_longest_reply_and_the_old_format() {
        let card = Card::new();
        let (mut mcdi, _) = open(&card);
        let mut long = vec![0; 1023];
        long[0] = 1;
        card.reply(0x6, &long);
        assert!(mcdi.call(&GetAsserts).unwrap().is_clean());
        // Version 1: the payload starts in the second word.
        card.answer(0xb8, Answer::Reply(vec![]));
        card.answer(0x29, Answer::Reply(vec![]));
        card.answer(0x20, Answer::Raw(0x0080_0080 | 0x20, 0, vec![]));
        mcdi.call(&EntityReset).unwrap();
    }
}

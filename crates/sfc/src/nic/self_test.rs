//! What can be tried without a network: commands, events, interrupts, counters, the end of queues.

use std::time::Duration;

use pci::{EventFd, PacketMemory};

use super::{Nic, Settings};
use crate::error::Error;
use crate::event::Event;
use crate::mcdi::command::{DriverEvent, GetVersion};

/// One thing that was tried.
#[derive(Debug)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// What came of it.
    pub outcome: Result<String, String>,
}

impl Nic {
    /// Tries everything that needs no network, with one queue pair. The function has not been started,
    /// and is stopped again afterwards.
    ///
    /// A check that fails does not keep the others from being made, unless they need what it was for.
    pub fn self_test(&mut self, settings: &Settings, memory: PacketMemory) -> Vec<Check> {
        let mut checks = vec![Check { name: "commands", outcome: self.try_commands() }];
        let settings = Settings { pairs: 1, ..settings.clone() };
        let mut pairs = match self.start(&settings, memory) {
            Ok(pairs) => pairs,
            Err(error) => {
                checks.push(Check { name: "queues", outcome: Err(told(&error)) });
                return checks;
            }
        };
        checks.push(Check { name: "queues", outcome: Ok("made".to_owned()) });
        checks.push(Check { name: "events", outcome: self.try_events() });
        checks.push(Check { name: "interrupt", outcome: self.try_interrupt() });
        checks.push(Check { name: "counters", outcome: self.try_counters() });
        let stopped = self.stop(&mut pairs).map(|()| "flushed".to_owned());
        checks.push(Check { name: "end of queues", outcome: stopped.map_err(|e| told(&e)) });
        checks
    }

    fn try_commands(&mut self) -> Result<String, String> {
        const COUNT: u32 = 32;
        let before = self.mcdi.clock().now();
        for _ in 0..COUNT {
            let version = self.mcdi.call(&GetVersion).map_err(|error| told(&error))?;
            if version != self.info.firmware {
                return Err("the firmware's version changes from one answer to the next".to_owned());
            }
        }
        let each = (self.mcdi.clock().now() - before) / COUNT;
        Ok(format!("{} us each", each.as_micros()))
    }

    /// An event of our own comes back through event queue 0.
    fn try_events(&mut self) -> Result<String, String> {
        self.inject().map_err(|error| told(&error))?;
        let arrived = self.wait(|nic| {
            let control = &mut nic.started.as_mut()?.control;
            let event = Event::decode(control.take()?);
            (event == Event::Software(TOKEN)).then_some(())
        });
        arrived.map(|()| "arrived".to_owned()).ok_or_else(|| "no event within 1 s".to_owned())
    }

    /// An event of our own raises the interrupt of event queue 0.
    fn try_interrupt(&mut self) -> Result<String, String> {
        let Some(interrupt) = self.control_interrupt() else {
            return Ok("none to be had: queues are polled".to_owned());
        };
        // What came before does not count.
        drop(interrupt.read());
        if let Some(started) = &self.started {
            started.control.arm();
        }
        self.inject().map_err(|error| told(&error))?;
        let raised = self.wait(|nic| nic.control_interrupt().map(EventFd::read)?.ok());
        raised.map(|_| "arrived".to_owned()).ok_or_else(|| "no interrupt within 1 s".to_owned())
    }

    fn try_counters(&mut self) -> Result<String, String> {
        if self.notes().no_statistics {
            return Ok("none for this function".to_owned());
        }
        for _ in 0..COUNTER_ATTEMPTS {
            if self.statistics().map_err(|error| told(&error))?.is_some() {
                return Ok("written".to_owned());
            }
            self.mcdi.clock().sleep(STEP);
        }
        Err("the card has not written any".to_owned())
    }

    fn inject(&mut self) -> Result<(), Error> {
        self.mcdi.call(&DriverEvent { instance: 0, data: TOKEN })
    }

    /// Waits for something, for a second at most.
    fn wait<T>(&mut self, mut look: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        let deadline = self.mcdi.clock().now() + Duration::from_secs(1);
        loop {
            if let Some(found) = look(self) {
                return Some(found);
            }
            if self.mcdi.clock().now() >= deadline {
                return None;
            }
            self.mcdi.clock().sleep(Duration::from_micros(100));
        }
    }
}

fn told(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

const TOKEN: u64 = 0x5e1f;
const STEP: Duration = Duration::from_millis(100);
/// The card writes its counters every second.
const COUNTER_ATTEMPTS: u32 = 25;

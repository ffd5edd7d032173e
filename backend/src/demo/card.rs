//! The demo's card: a model in software, driven through the same socket as a model elsewhere.
#![expect(clippy::print_stdout, reason = "this module is the demo's output")]

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use port::Port;
use sfc_model::Card;
use sfc_model::config::{Config, Function, Generation};
use sfc_model::device::{Device, Socket};
use sfc_model::wire::Wire;
use traffic::{StreamConfig, Streams};

use super::{Progress, screen};
use crate::failure::Failure;

/// The network at the card's port: the sender. It never has more than `window` packets under way.
pub(super) struct Sender {
    streams: Streams,
    progress: Arc<Progress>,
    window: u64,
}

impl Sender {
    pub(super) fn new(config: StreamConfig, progress: Arc<Progress>, window: u64) -> Self {
        Self { streams: Streams::new(config), progress, window }
    }
}

impl Wire for Sender {
    fn receive(&mut self, _now: Duration, frame: &mut [u8]) -> io::Result<Option<usize>> {
        let progress = &self.progress;
        let ready =
            progress.open.load(Ordering::Acquire) && !progress.closed.load(Ordering::Acquire);
        let under_way = self.streams.frames() - progress.received.load(Ordering::Acquire);
        if !ready || under_way >= self.window {
            return Ok(None);
        }
        let made = self.streams.write_next(frame);
        progress.sent.store(self.streams.frames(), Ordering::Release);
        Ok(made)
    }

    fn send(&mut self, _now: Duration, _frame: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn waits(&self) -> bool {
        true
    }
}

/// A card with the sender at its port, and the port that drives it.
pub(super) fn start(sender: Sender, directory: &Path) -> Result<(Device, Box<dyn Port>), Failure> {
    let socket = directory.join("card.sock");
    let card = Card::new(Config::new(Generation::Medford, Function::Physical));
    let device = Device::start(card, Box::new(sender), &Socket::VfioUser(socket.clone()));
    let device = device.map_err(|error| Failure::set_up(&error))?;
    let options = port::SfcOptions::new(socket.to_string_lossy());
    let port = port::Sfc::open(&options).map_err(|error| Failure::set_up(&error))?;
    Ok((device, Box::new(port)))
}

/// What the card has to say at the end.
pub(super) fn close(device: &Device) -> Result<(), Failure> {
    let report = device.report();
    let count = |name: &str| report[name].as_u64().unwrap_or_default();
    println!(
        "The card received {} packets and obeyed {} commands.",
        screen::number(count("rx_packets")),
        screen::number(count("commands"))
    );
    let broken = report["violations"]["total"].as_u64().unwrap_or(u64::MAX);
    if broken == 0 {
        println!("Its driver broke none of its rules.");
        return Ok(());
    }
    Err(Failure::Running(format!("the driver broke rules of the card: {}", report["violations"])))
}

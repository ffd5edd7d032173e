//! A running backend: a worker thread, a control thread, one that tends the port if it needs that, and
//! what they share.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use packet::Pool;
use port::Port;

use crate::daemon::device::Identity;
use crate::daemon::{Daemon, Endpoint, Stop};
use crate::failure::Failure;
use crate::shared::Shared;
use crate::stats::Stats;
use crate::tending::Tending;
use crate::worker::{Config, Worker};

/// What a backend is made of.
#[derive(Debug)]
pub struct Parts {
    /// Where frames come from and go to.
    pub port: Box<dyn Port>,
    /// Packet memory.
    pub pool: Pool,
    /// The worker's configuration.
    pub config: Config,
    /// What the guest is told about the device.
    pub identity: Identity,
}

/// What ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The port failed, with the reason.
    Port(String),
    /// The endpoint has no more connections to serve.
    Endpoint,
}

/// A backend that serves front ends until it is stopped.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    stop: Stop,
    threads: Vec<JoinHandle<()>>,
    tending: Tending,
}

impl Running {
    /// Starts the threads. `ended` is called from them when the port fails or the endpoint runs dry.
    ///
    /// # Errors
    ///
    /// When the port can't be opened, or when descriptors or threads run out.
    pub fn start(
        parts: Parts,
        endpoint: impl FnOnce() -> Result<Endpoint, Failure>,
        ended: impl Fn(Ended) + Clone + Send + 'static,
    ) -> Result<Self, Failure> {
        let Parts { mut port, pool, config, identity } = parts;
        let mut queues = port.open(1).map_err(|error| Failure::set_up(&error))?;
        let queues =
            queues.pop().expect("a port hands out as many queue pairs as it was asked for");
        let shared = Shared::new().map_err(|error| Failure::running(&error))?;
        let daemon =
            Daemon::new(Arc::clone(&shared), identity).map_err(|error| Failure::running(&error))?;
        let worker = Worker::new(Arc::clone(&shared), config, port.capabilities(), queues, pool)
            .map_err(|error| Failure::running(&error))?;
        // Last, so that no front end finds a socket behind which nobody is.
        let mut endpoint = endpoint()?;
        log::info!("{}: link {}", port.name(), if port.link().up { "up" } else { "down" });

        let stop = daemon.stopper();
        let name = port.name().to_owned();
        let port_ended = ended.clone();
        let worker = spawn("worker", move || {
            if let Err(reason) = worker.run() {
                port_ended(Ended::Port(format!("port '{name}': {reason}")));
            }
        })?;
        let control = spawn("control", move || {
            daemon.run(&mut endpoint);
            drop(endpoint);
            ended(Ended::Endpoint);
        })?;
        let tending = Tending::start(port)?;
        Ok(Self { shared, stop, threads: vec![control, worker], tending })
    }

    /// Counters as of a short while ago.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Ends everything; the last counters.
    pub fn stop(self) -> Stats {
        // The socket first, so that a front end which tries again finds our successor or nobody.
        self.stop.stop();
        self.shared.change(|plane| plane.stop = true);
        for thread in self.threads {
            if thread.join().is_err() {
                log::error!("a thread panicked");
            }
        }
        // After the worker, which has given the port its queues back.
        self.tending.stop();
        self.shared.stats()
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Failure> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|error| Failure::running(&error))
}

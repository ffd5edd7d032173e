//! The vhost-user side: the socket, one connection after the other, and the protocol.
//!
//! ```text
//!  front end ── socket ── relay (shim) ── inlet ── protocol library ── device, rings ──▶ Shared ──▶ worker
//! ```
//!
//! A connection gets a library object of its own, since the library serves one connection and keeps
//! its state; the data plane lives outside of it and outlives it.

pub mod device;
mod endpoint;
mod message;
mod regions;
mod relay;
mod request;
mod shim;
mod vring;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use vhost_user_backend::VhostUserDaemon;
use vm_memory::GuestMemoryMmap;

pub use endpoint::{Endpoint, Error as EndpointError};

use crate::shared::{Connection, Memory, Shared};
use device::{Device, Identity};
use relay::Inlet;
use shim::{Notice, Shim};

/// Why one connection could not be served.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// Descriptors or threads ran out.
    #[error("set-up of a connection")]
    SetUp(#[from] std::io::Error),
    /// The protocol library refused to start.
    #[error("set-up of the vhost-user protocol: {0}")]
    Library(vhost_user_backend::Error),
    /// The library did not make the rings that it was told to make.
    #[error("the protocol library made {made} rings instead of {wanted}")]
    Rings {
        /// Rings made.
        made: usize,
        /// Rings wanted.
        wanted: usize,
    },
    /// The connection broke.
    #[error(transparent)]
    Relay(#[from] relay::Error),
}

/// Serves front ends, one after the other, until told to stop.
#[derive(Debug)]
pub struct Daemon {
    shared: Arc<Shared>,
    identity: Arc<Identity>,
    inlet: Inlet,
    stopping: Arc<Stopping>,
}

/// Ends a daemon from another thread.
#[derive(Debug, Default)]
struct Stopping {
    asked: AtomicBool,
    current: Mutex<Option<UnixStream>>,
}

/// A handle that ends the daemon.
#[derive(Debug, Clone)]
pub struct Stop(Arc<Stopping>);

impl Stop {
    /// Ends the present connection and lets [`Daemon::run`] return.
    pub fn stop(&self) {
        self.0.asked.store(true, Ordering::Release);
        if let Some(stream) = &*self.0.current() {
            // It may be closed already.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Stopping {
    fn asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<UnixStream>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Daemon {
    /// A daemon for the worker behind `shared`.
    ///
    /// # Errors
    ///
    /// When no socket can be made for use inside the process.
    pub fn new(shared: Arc<Shared>, identity: Identity) -> std::io::Result<Self> {
        let inlet = Inlet::new()?;
        Ok(Self { shared, identity: Arc::new(identity), inlet, stopping: Arc::default() })
    }

    /// A handle that ends this daemon.
    pub fn stopper(&self) -> Stop {
        Stop(Arc::clone(&self.stopping))
    }

    /// Serves connections until stopped, or until the endpoint has no more.
    pub fn run(&self, endpoint: &mut Endpoint) {
        while !self.stopping.asked() {
            let Some(stream) = endpoint.next(&|| self.stopping.asked()) else { break };
            log::info!("front end connected");
            match self.serve(stream) {
                Ok(()) => log::info!("front end disconnected"),
                Err(error) => log::error!("connection ended: {}", crate::chain(&error)),
            }
        }
    }

    fn serve(&self, stream: UnixStream) -> Result<(), Error> {
        let (ours, mut listener) = self.inlet.connect()?;
        let device = Device::new(Arc::clone(&self.shared), Arc::clone(&self.identity));
        let wanted = device.rings();
        let memory = Memory::new(GuestMemoryMmap::new());
        let (library, vrings) = vring::collect(&self.shared, || {
            VhostUserDaemon::new("vhost-user".to_owned(), device, memory.clone())
        });
        let mut library = library.map_err(Error::Library)?;
        if vrings.len() != wanted {
            return Err(Error::Rings { made: vrings.len(), wanted });
        }
        let front = stream.try_clone()?;
        *self.stopping.current() = Some(stream);
        // Whoever asked before that line found nothing to shut down.
        if self.stopping.asked() {
            *self.stopping.current() = None;
            return Ok(());
        }
        self.shared.change(|plane| {
            plane.connection = Some(Connection { vrings, memory, features: 0 });
        });
        library.start(&mut listener).map_err(Error::Library)?;

        let shim = Shim::new(self.identity.pairs, self.identity.mtu);
        let result = relay::run(&front, &ours, shim, |notice| self.notice(notice));
        if let Err(error) = library.wait() {
            log::debug!("protocol library: {error}");
        }
        // The rings and the memory of this connection must be out of use before they go.
        self.shared.change(|plane| plane.connection = None);
        self.shared.sync();
        *self.stopping.current() = None;
        Ok(result?)
    }

    fn notice(&self, notice: Notice) {
        match notice {
            Notice::Status(0) => log::info!("guest driver: reset"),
            Notice::Status(status) => log::info!("guest driver: status {status:#04x}"),
            Notice::Mtu(mtu) => log::info!("front end uses an MTU of {mtu}"),
            Notice::Announce(mac) => self.shared.change(|plane| plane.announce.push(mac)),
        }
    }
}

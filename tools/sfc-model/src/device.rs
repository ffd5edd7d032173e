//! A card that runs: a thread that turns its wheels, between its driver's transport and its wire.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

use serde_json::Value;

use crate::card::Card;
use crate::fault::Scheduled;
use crate::transport::{vfio_user, vhost_user_pci};
use crate::wire::Wire;

/// Frames of the wire per turn.
const BURST: usize = 64;
/// Turns without work before the thread sleeps.
const SPINS: u32 = 200;
/// How long it sleeps: well below what a driver notices.
const NAP: Duration = Duration::from_micros(50);
/// Longest frame of a wire: what the MAC takes, and room to notice longer ones.
const FRAME: usize = 16 * 1024;

/// Why a card can't be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket for drivers.
    #[error("the socket {path}: {source}")]
    Socket {
        /// Its path.
        path: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// Something of the operating system.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

/// Where the card's driver comes.
#[derive(Clone, Debug)]
pub enum Socket {
    /// A program, by vfio-user.
    VfioUser(PathBuf),
    /// A User Mode Linux machine, by PCI over virtio.
    VhostUserPci(PathBuf),
}

impl Socket {
    /// Its path.
    pub fn path(&self) -> &Path {
        let (Self::VfioUser(path) | Self::VhostUserPci(path)) = self;
        path
    }
}

/// The card, shared by those who turn its wheels.
pub(crate) struct Shared {
    card: Mutex<Card>,
    waiting: AtomicUsize,
    started: Instant,
    stop: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[expect(clippy::disallowed_methods, reason = "the card's clock is read here and nowhere else")]
fn clock() -> Instant {
    Instant::now()
}

impl Shared {
    /// The card. A panic elsewhere does not make its counters less true.
    pub(crate) fn card(&self) -> MutexGuard<'_, Card> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let card = self.card.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        card
    }

    /// Time since the card was powered on.
    pub(crate) fn now(&self) -> Duration {
        clock().duration_since(self.started)
    }
}

/// A running card. Dropping it stops the card, but not the thread that waits for drivers, which ends
/// with the process.
#[derive(Debug)]
pub struct Device {
    shared: Arc<Shared>,
    datapath: Option<JoinHandle<()>>,
}

impl Device {
    /// Starts a card: drivers come to a socket, frames go to and come from a wire.
    ///
    /// # Errors
    ///
    /// [`Error::Socket`] when something is at the path already, or nothing can be made there;
    /// [`Error::Os`] when the windows or a thread can't be made.
    pub fn start(mut card: Card, wire: Box<dyn Wire>, socket: &Socket) -> Result<Self, Error> {
        let os = |what| move |source| Error::Os { what, source };
        let bound = |source| Error::Socket { path: socket.path().display().to_string(), source };
        let config = card.config().clone();
        let serve: Box<dyn FnOnce(&Shared) + Send> = match socket {
            Socket::VfioUser(path) => {
                let mut listener = vfio_user::Listener::bind(path, &config).map_err(bound)?;
                if let Some(doorbells) =
                    listener.doorbells().map_err(os("memory for the windows"))?
                {
                    card.share(doorbells);
                }
                Box::new(move |shared| listener.serve(shared))
            }
            Socket::VhostUserPci(path) => {
                let listener = vhost_user_pci::Listener::bind(path, &config).map_err(bound)?;
                Box::new(move |shared| listener.serve(shared))
            }
        };
        let shared = Arc::new(Shared {
            card: Mutex::new(card),
            waiting: AtomicUsize::new(0),
            started: clock(),
            stop: AtomicBool::new(false),
        });
        let (serving, turning) = (Arc::clone(&shared), Arc::clone(&shared));
        let thread = |name: &str| thread::Builder::new().name(name.into());
        thread("drivers").spawn(move || serve(&serving)).map_err(os("a thread"))?;
        let datapath =
            thread("datapath").spawn(move || turn(&turning, wire)).map_err(os("a thread"))?;
        Ok(Self { shared, datapath: Some(datapath) })
    }

    /// What happened so far; see [`Card::report`].
    pub fn report(&self) -> Value {
        self.shared.card().report()
    }

    /// Makes something go wrong.
    pub fn inject(&self, fault: Scheduled) {
        self.shared.card().inject(fault);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.datapath.take()
            && thread.join().is_err()
        {
            log::error!("the thread of the card panicked");
        }
    }
}

/// Turns the wheels until it is told to stop.
fn turn(shared: &Shared, mut wire: Box<dyn Wire>) {
    let mut frame = vec![0; FRAME];
    let mut idle = 0;
    let mut complained = false;
    while !shared.stop.load(Ordering::Acquire) {
        match step(shared, wire.as_mut(), &mut frame) {
            Ok(true) => (idle, complained) = (0, false),
            Ok(false) => idle += 1,
            Err(error) => {
                idle = SPINS;
                if !std::mem::replace(&mut complained, true) {
                    log::warn!("the wire: {error}");
                }
            }
        }
        if shared.waiting.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        } else if idle >= SPINS {
            thread::sleep(NAP);
        } else if idle > 0 {
            std::hint::spin_loop();
        }
    }
}

/// One turn; tells whether there was anything to do.
fn step(shared: &Shared, wire: &mut dyn Wire, frame: &mut [u8]) -> io::Result<bool> {
    let mut card = shared.card();
    let now = shared.now();
    let mut busy = card.poll(now);
    let mut outcome = Ok(());
    if card.listens() || !wire.waits() {
        for _ in 0..BURST {
            match wire.receive(now, frame) {
                Ok(Some(len)) => card.receive(&frame[..len]),
                Ok(None) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            busy = true;
        }
    }
    card.end_of_burst();
    let outgoing = card.take_outgoing();
    drop(card);
    busy |= !outgoing.is_empty();
    for frame in &outgoing {
        // A frame that can't be sent does not keep the others.
        let sent = wire.send(now, frame);
        outcome = outcome.and(sent);
    }
    outcome.map(|()| busy)
}

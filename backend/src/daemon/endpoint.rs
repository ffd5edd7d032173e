//! Where front ends come from: a listening socket, a socket that somebody else opened, or a server
//! that we connect to again and again.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

/// Why an endpoint can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process listens there.
    #[error("socket path '{}' is in use: stop the process that listens on it, or choose another path", .0.display())]
    InUse(PathBuf),
    /// Something else is there.
    #[error("'{}' exists and is no socket: remove it, or choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The socket can't be made.
    #[error("socket path '{}': {hint}", path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// How to mend it.
        hint: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The inherited descriptor is not what it should be.
    #[error(
        "descriptor {fd}: {reason}: pass a Unix stream socket, listening or connected, with --fd"
    )]
    Inherited {
        /// Its number.
        fd: i32,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// A source of connections.
#[derive(Debug)]
pub enum Endpoint {
    /// We listen; the path is removed when we go.
    Server {
        /// The socket.
        listener: UnixListener,
        /// Its path and inode, if it is ours to remove.
        path: Option<(PathBuf, u64)>,
    },
    /// We connect, and connect again when the connection is lost.
    Client {
        /// Where the front end listens.
        path: PathBuf,
        /// The first pause between two attempts; it grows to two seconds.
        pause: Duration,
    },
    /// One connection that somebody else made.
    Connected(Option<UnixStream>),
}

impl Endpoint {
    /// Listens on a path. A socket that nobody listens on any more is replaced in one step, so that a
    /// front end finds either the old one or the new one.
    ///
    /// # Errors
    ///
    /// When somebody listens there, when something else is there, or when the directory does not let
    /// us.
    pub fn listen(path: &Path) -> Result<Self, Error> {
        let bind = |hint| move |source| Error::Bind { path: path.to_owned(), hint, source };
        let listener = match fs::symlink_metadata(path) {
            Err(_) => UnixListener::bind(path)
                .map_err(bind("make its directory, and make it writable for this user"))?,
            Ok(found) if !found.file_type().is_socket() => {
                return Err(Error::NoSocket(path.to_owned()));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(Error::InUse(path.to_owned()));
            }
            Ok(_) => {
                let mut fresh = path.as_os_str().to_owned();
                fresh.push(format!(".{}", std::process::id()));
                let hint = "a socket is left over there and can't be replaced: remove it";
                let listener = UnixListener::bind(&fresh).map_err(bind(hint))?;
                fs::rename(&fresh, path).map_err(bind(hint))?;
                listener
            }
        };
        let inode = fs::symlink_metadata(path).map_err(bind("it vanished"))?.ino();
        Ok(Self::Server { listener, path: Some((path.to_owned(), inode)) })
    }

    /// Connects to a front end that listens on a path, whenever there is one.
    pub fn connect(path: &Path, pause: Duration) -> Self {
        Self::Client { path: path.to_owned(), pause }
    }

    /// Uses a socket that was opened before this process started; `number` is for messages.
    ///
    /// # Errors
    ///
    /// When it is no Unix stream socket.
    pub fn inherited(fd: OwnedFd, number: i32) -> Result<Self, Error> {
        use rustix::net::{AddressFamily, SocketType, sockopt};
        let unusable = |reason| Error::Inherited { fd: number, reason };
        let kind = sockopt::socket_type(&fd).map_err(|_| unusable("it is no socket"))?;
        let domain = sockopt::socket_domain(&fd).map_err(|_| unusable("it is no socket"))?;
        if kind != SocketType::STREAM || domain != AddressFamily::UNIX {
            return Err(unusable("it is no Unix stream socket"));
        }
        let listens = sockopt::socket_acceptconn(&fd).map_err(|_| unusable("it is no socket"))?;
        Ok(if listens {
            Self::Server { listener: fd.into(), path: None }
        } else {
            Self::Connected(Some(fd.into()))
        })
    }

    /// The next connection; `None` when there will be no more, or when `stopping` says so.
    pub fn next(&mut self, stopping: &dyn Fn() -> bool) -> Option<UnixStream> {
        match self {
            Self::Server { listener, .. } => accept(listener, stopping),
            Self::Client { path, pause } => connect(path, *pause, stopping),
            Self::Connected(stream) => stream.take(),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Self::Server { path: Some((path, inode)), .. } = self {
            // Another process may have taken the path over; its socket stays.
            let ours = fs::symlink_metadata(&*path).is_ok_and(|found| found.ino() == *inode);
            if ours && let Err(error) = fs::remove_file(&*path) {
                log::warn!("socket path '{}' stays behind: {error}", path.display());
            }
        }
    }
}

fn accept(listener: &UnixListener, stopping: &dyn Fn() -> bool) -> Option<UnixStream> {
    while !stopping() {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        let step = rustix::event::Timespec::try_from(STEP).expect("a step is short");
        match poll(&mut fds, Some(&step)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => match listener.accept() {
                Ok((stream, _)) => return Some(stream),
                Err(error) => {
                    log::warn!("accept: {error}");
                    std::thread::sleep(STEP);
                }
            },
            Err(error) => {
                log::error!("listening socket: {error}");
                return None;
            }
        }
    }
    None
}

fn connect(path: &Path, first: Duration, stopping: &dyn Fn() -> bool) -> Option<UnixStream> {
    let mut pause = first;
    let mut told = false;
    while !stopping() {
        match UnixStream::connect(path) {
            Ok(stream) => return Some(stream),
            Err(error) if !told => {
                told = true;
                log::info!(
                    "no front end listens on '{}' yet ({error}); trying again until one does",
                    path.display()
                );
            }
            Err(_) => {}
        }
        let mut left = pause;
        while !left.is_zero() && !stopping() {
            let step = left.min(STEP);
            std::thread::sleep(step);
            left -= step;
        }
        pause = (pause * 2).min(MAX_PAUSE);
    }
    None
}

/// How often a wait looks whether it should stop.
const STEP: Duration = Duration::from_millis(50);
/// The longest pause between two attempts to connect. A VMM that restarts is back within seconds.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: &dyn Fn() -> bool = &|| false;

    #[test]
    fn a_path_in_use_is_refused_and_one_left_over_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vhost.sock");
        let mut first = Endpoint::listen(&path).unwrap();
        assert!(matches!(Endpoint::listen(&path), Err(Error::InUse(_))));
        // The attempt above left a connection behind that has closed.
        assert!(first.next(NEVER).is_some());
        drop(UnixListener::bind(directory.path().join("left-over")).unwrap());
        let left_over = Endpoint::listen(&directory.path().join("left-over")).unwrap();
        let _client = UnixStream::connect(directory.path().join("left-over")).unwrap();
        drop((first, left_over));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(Endpoint::listen(&path), Err(Error::NoSocket(_))));
        let nowhere = directory.path().join("no/where");
        assert!(matches!(Endpoint::listen(&nowhere), Err(Error::Bind { .. })));
        assert_eq!(fs::read_to_string(path).unwrap(), "mine");
    }

    #[test]
    fn a_socket_taken_over_by_another_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vhost.sock");
        let ours = Endpoint::listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _theirs = UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(path.exists());
    }

    #[test]
    fn a_client_waits_for_its_server() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qemu.sock");
        let mut endpoint = Endpoint::connect(&path, Duration::from_millis(1));
        let waiting = std::thread::spawn(move || endpoint.next(NEVER).is_some());
        std::thread::sleep(Duration::from_millis(10));
        let listener = UnixListener::bind(&path).unwrap();
        listener.accept().unwrap();
        assert!(waiting.join().unwrap());
        assert!(Endpoint::connect(&path, STEP).next(&|| true).is_none());
    }

    #[test]
    fn inherited_sockets_serve_one_or_many() {
        let (a, _b) = UnixStream::pair().unwrap();
        let mut one = Endpoint::inherited(a.into(), 3).unwrap();
        assert!(one.next(NEVER).is_some());
        assert!(one.next(NEVER).is_none());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let mut many = Endpoint::inherited(listener.into(), 3).unwrap();
        let _c = UnixStream::connect(&path).unwrap();
        assert!(many.next(NEVER).is_some());
        drop(many);
        assert!(path.exists(), "a socket that is not ours to remove stays");
        let file = tempfile::tempfile().unwrap();
        assert!(matches!(Endpoint::inherited(file.into(), 3), Err(Error::Inherited { .. })));
    }
}

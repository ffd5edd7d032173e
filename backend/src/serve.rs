//! Serving a VM: from the command line to a running backend, and the end.

use std::sync::mpsc;
use std::time::Duration;

use packet::Pool;
use port::Port;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::{FeatureArgs, PortArgs, Serve};
use crate::daemon::Endpoint;
use crate::daemon::device::Identity;
use crate::failure::Failure;
use crate::offer;
use crate::running::{Ended, Parts, Running};
use crate::worker::Config;

enum Event {
    Signal(i32),
    Ended(Ended),
}

/// Serves until a signal comes, the port fails, or an inherited connection closes.
///
/// # Errors
///
/// [`Failure::SetUp`] when the command line names something that can't be used, [`Failure::Running`]
/// when the port fails later.
pub fn run(options: &Serve) -> Result<(), Failure> {
    if options.print_capabilities {
        #[expect(clippy::print_stdout, reason = "the answer that was asked for")]
        {
            println!("{}", serde_json::json!({ "type": "net" }));
        }
        return Ok(());
    }
    // Before any other thread starts, so that a signal finds its handler.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(|error| Failure::running(&error))?;
    let mut port = open_port(&options.port)?;
    let pool = pool(&mut *port, options.port.buffers)?;
    let identity = identity(&options.features, port.mtu())?;
    let config = Config {
        gro: options.gro.config(),
        normal_batch: options.gro.gro_normal_batch as usize,
        spin: options.polling.spin(),
    };
    let (tell, events) = mpsc::channel();
    let ended = {
        let tell = tell.clone();
        // Nobody listens any more once the program is ending for another reason.
        move |ended| drop(tell.send(Event::Ended(ended)))
    };
    let parts = Parts { port, pool, config, identity };
    let running = Running::start(parts, || endpoint(options), ended)?;
    let signal_handle = signals.handle();
    let signal_thread = std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            drop(tell.send(Event::Signal(signal)));
        }
    });

    let result = match events.recv() {
        Ok(Event::Signal(signal)) => {
            log::info!("signal {signal}: ending");
            Ok(())
        }
        Ok(Event::Ended(Ended::Port(reason))) => Err(Failure::Running(reason)),
        Ok(Event::Ended(Ended::Endpoint)) | Err(mpsc::RecvError) => Ok(()),
    };
    let stats = running.stop();
    signal_handle.close();
    if signal_thread.join().is_err() {
        log::error!("the signal thread panicked");
    }
    log::info!("{stats}");
    result
}

/// What the guest is told, from the command line and the port.
///
/// # Errors
///
/// When a feature's name is not known.
pub fn identity(options: &FeatureArgs, port_mtu: Option<u16>) -> Result<Identity, Failure> {
    let mtu = options.mtu.or(port_mtu);
    let disabled = &options.disable_feature;
    let features = offer::with_identity(offer::features(disabled)?, disabled, options.mac, mtu);
    let max_queue_size = options.max_queue_size;
    Ok(Identity { features, mac: options.mac, mtu, pairs: 1, max_queue_size })
}

fn endpoint(options: &Serve) -> Result<Endpoint, Failure> {
    match (options.fd, &options.socket_path) {
        (Some(number), _) => {
            let fd = crate::inherited::duplicate(number).map_err(|error| {
                Failure::SetUp(format!("--fd {number}: {error}: pass the number of an open socket"))
            })?;
            Endpoint::inherited(fd, number).map_err(|error| Failure::set_up(&error))
        }
        (None, Some(path)) if options.client => {
            Ok(Endpoint::connect(path, Duration::from_millis(options.reconnect_ms)))
        }
        (None, Some(path)) => Endpoint::listen(path).map_err(|error| Failure::set_up(&error)),
        (None, None) => Err(Failure::SetUp("give --socket-path or --fd".to_owned())),
    }
}

/// Packet buffers in the memory that the port wants them in.
pub(crate) fn pool(port: &mut dyn Port, buffers: u32) -> Result<Pool, Failure> {
    let count = buffers as usize;
    let memory =
        port.packet_memory(count * BUFFER_SIZE).map_err(|error| Failure::set_up(&error))?;
    Ok(memory.map_or_else(
        || Pool::new(count, BUFFER_SIZE),
        |memory| Pool::from_memory(memory, BUFFER_SIZE),
    ))
}

fn open_port(options: &PortArgs) -> Result<Box<dyn Port>, Failure> {
    let spec = options.port.as_deref().unwrap_or_default();
    let spec = port::parse(spec).map_err(|error| Failure::set_up(&error))?;
    match spec {
        port::Spec::Memory(rest) => crate::memory::port(&rest),
        spec => port::build(&spec).map_err(|error| Failure::set_up(&error)),
    }
}

/// A frame of the usual MTU fits one buffer; longer ones take several.
pub const BUFFER_SIZE: usize = 2048;

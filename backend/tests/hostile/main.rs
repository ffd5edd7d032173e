//! The backend under attack by front ends and guests. Whatever they say or write: the process lives,
//! the next well-behaved guest is served in full, no descriptor and no buffer is lost, and everything
//! ends in bounded time.

#[path = "../lab/mod.rs"]
mod lab;

mod descriptors;
mod front;
mod memory;
mod messages;
mod rings;
mod silence;

use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use guest::Guest;
use traffic::StreamConfig;
use vhost_user_gro::stats::Stats;

use lab::{Lab, guest_frames};

/// One attack at a time: each counts the descriptors of this process.
static ALONE: Mutex<()> = Mutex::new(());
/// Threads that panicked, by name: in a program that is built to abort, each is an end of the process.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Runs an attack and shows that it did no harm; the backend's last counters.
fn attack(attack: impl FnOnce(&Lab) + Send + 'static) -> Stats {
    alone(move || {
        let lab = Lab::new(one_flow(), &[]);
        attack(&lab);
        serve(&lab);
        lab.stop()
    })
}

/// Runs what makes and stops a backend of its own, and shows that nothing is left behind.
fn alone(scene: impl FnOnce() -> Stats + Send + 'static) -> Stats {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let name = thread::current().name().unwrap_or("a thread without a name").to_owned();
            PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(name);
            usual(info);
        }));
    });
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    PANICS.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let before = open_descriptors();
    let stats = within(LIMIT, scene);
    assert_eq!(stats.buffers.0, stats.buffers.1, "buffers are missing");
    assert_eq!(*PANICS.lock().unwrap_or_else(PoisonError::into_inner), [""; 0], "panicked");
    assert_eq!(open_descriptors(), before, "descriptors were left open");
    stats
}

/// Traffic both ways with a guest that keeps to the rules, each byte checked.
fn serve(lab: &Lab) {
    lab.start_over();
    let mut guest = Guest::connect(lab.config()).expect("a backend that serves");
    lab.receive(&mut guest, &mut lab.checker(), 500);
    let summary = lab.send(&mut guest, &guest_frames(&one_flow(), 200, 20), 200);
    assert_eq!((summary.packets, summary.lost_bytes), (200, 0));
    assert_eq!(guest.violations().total(), 0, "{:?}", guest.violations());
}

/// What `body` answers; a panic when it takes too long, which leaves its thread behind.
fn within<T: Send + 'static>(limit: Duration, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = channel();
    let thread = thread::spawn(move || {
        let result = body();
        drop(tell);
        result
    });
    if told.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
        panic!("it hangs");
    }
    let () = told.recv().unwrap_or(());
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Waits until something is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if so() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("never happened: {what}");
}

fn one_flow() -> StreamConfig {
    StreamConfig { flows: 1, payload: 1448, ..StreamConfig::default() }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count()
}

/// Far longer than any attack takes.
const LIMIT: Duration = Duration::from_secs(120);

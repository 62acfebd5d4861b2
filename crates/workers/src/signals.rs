//! Signals that mean something to the server and reach its whole group (systemd stops a service that way): a worker
//! stays, and leaves when the server says so.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::{Signal, getpid, kill_process};

unsafe extern "C" {
    /// Of the C library: restarts the system calls that it interrupts.
    fn signal(number: c_int, handler: usize) -> usize;
}

const DEFAULT: usize = 0;
/// Signals that would end a worker whose application has no handlers for them.
const SHARED: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// The process that stays. Its forked children, such as those of Python's multiprocessing, can be ended as ever.
static STAYING: AtomicI32 = AtomicI32::new(0);

/// Whether this is the process that stays, and no fork of it.
pub(crate) fn is_staying() -> bool {
    getpid().as_raw_pid() == STAYING.load(Ordering::Relaxed)
}

extern "C" fn stay(number: c_int) {
    if is_staying() {
        return;
    }
    // SAFETY: both may be called in a handler.
    unsafe { signal(number, DEFAULT) };
    if let Some(named) = Signal::from_named_raw(number) {
        // Comes when this handler has returned.
        let _ = kill_process(getpid(), named);
    }
}

/// From now on this process stays, unless the application has plans of its own. A handler, as what is ignored would be
/// ignored in the programs that the application starts, too.
pub(crate) fn stay_on() {
    STAYING.store(getpid().as_raw_pid(), Ordering::Relaxed);
    let handler: extern "C" fn(c_int) = stay;
    for number in SHARED.map(Signal::as_raw) {
        // SAFETY: `stay` does only what may be done in a handler.
        unsafe {
            let before = signal(number, handler as usize);
            if before != DEFAULT && before != handler as usize {
                signal(number, before);
            }
        }
    }
}

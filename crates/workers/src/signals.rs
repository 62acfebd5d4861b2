//! Signals that are meant for the server but reach its whole process group (systemd stops a service that
//! way): a worker ignores them, and exits when the server orders it.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::{Signal, getpid, kill_process};

unsafe extern "C" {
    /// `signal` of the C library: interrupted system calls are restarted.
    fn signal(number: c_int, handler: usize) -> usize;
}

const DEFAULT: usize = 0;
/// Signals that would end a worker whose application has no handlers for them.
const SURVIVED_SIGNALS: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// The process that ignores the signals. Its forked children, such as those of Python's multiprocessing, can
/// be ended normally.
static SURVIVING_PID: AtomicI32 = AtomicI32::new(0);

/// Whether this is the process that ignores the signals, and not a fork of it.
pub(crate) fn ignores_signals() -> bool {
    getpid().as_raw_pid() == SURVIVING_PID.load(Ordering::Relaxed)
}

extern "C" fn stay(number: c_int) {
    if ignores_signals() {
        return;
    }
    // SAFETY: `signal` and `kill` are async-signal-safe.
    unsafe { signal(number, DEFAULT) };
    if let Some(named) = Signal::from_named_raw(number) {
        // The signal is delivered when this handler returns.
        let _ = kill_process(getpid(), named);
    }
}

/// From now on this process survives the signals unless the application installs its own handlers. A handler
/// is used because ignored signals would also be ignored in programs that the application starts.
pub(crate) fn survive_signals() {
    SURVIVING_PID.store(getpid().as_raw_pid(), Ordering::Relaxed);
    let handler: extern "C" fn(c_int) = stay;
    for number in SURVIVED_SIGNALS.map(Signal::as_raw) {
        // SAFETY: `stay` performs only async-signal-safe operations.
        unsafe {
            let before = signal(number, handler as usize);
            if before != DEFAULT && before != handler as usize {
                signal(number, before);
            }
        }
    }
}

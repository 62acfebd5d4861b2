//! Copies of a worker that its application forks. They have the worker's slot in their memory, but it is not theirs: a copy
//! that wants to answer or to claim a request has returned from the application, and ends.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    /// Of the C library: `child` is called in every process that this one forks.
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    /// Of the C library: ends the process and runs nothing before.
    fn _exit(status: c_int) -> !;
}

static COPY: AtomicBool = AtomicBool::new(false);

extern "C" fn forked() {
    COPY.store(true, Ordering::Relaxed);
}

/// This process has taken a worker slot: those that it forks from now on are its copies.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    // SAFETY: `forked` does only what may be done in a process that was just forked.
    WATCHED.call_once(|| _ = unsafe { pthread_atfork(None, None, Some(forked)) });
    COPY.store(false, Ordering::Relaxed);
}

/// Whether this process is a copy.
pub(crate) fn is_one() -> bool {
    COPY.load(Ordering::Relaxed)
}

/// Ends the process if it is a copy, with a line for the log.
pub(crate) fn end_if_one() {
    if is_one() {
        end();
    }
}

#[cold]
fn end() -> ! {
    let text = format!(
        "process {} is a copy of a worker that the application has forked: it came back from the application, answers \
         nobody, and ends\n",
        std::process::id()
    );
    let _ = rustix::io::write(std::io::stderr(), text.as_bytes());
    // SAFETY: it has no conditions. What the worker has begun is not the copy's to clean up.
    unsafe { _exit(0) }
}

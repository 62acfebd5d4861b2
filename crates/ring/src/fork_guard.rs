//! Copies of a worker process that its application forks. They have the worker's slot in their memory but do
//! not own it: a copy that returns from the application and tries to answer or claim a request is ended.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    /// From the C library: calls `child` in every process that this one forks.
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    /// From the C library: ends the process without running exit handlers.
    fn _exit(status: c_int) -> !;
}

static IS_FORKED_COPY: AtomicBool = AtomicBool::new(false);

extern "C" fn forked() {
    IS_FORKED_COPY.store(true, Ordering::Relaxed);
}

/// Records that this process has taken a worker slot: processes forked from now on are copies.
pub(crate) fn watch_forks() {
    static WATCHED: Once = Once::new();
    // SAFETY: `forked` performs only operations that are allowed in a newly forked process.
    WATCHED.call_once(|| _ = unsafe { pthread_atfork(None, None, Some(forked)) });
    IS_FORKED_COPY.store(false, Ordering::Relaxed);
}

/// Whether this process is a copy.
pub(crate) fn is_forked_copy() -> bool {
    IS_FORKED_COPY.load(Ordering::Relaxed)
}

/// Ends the process if it is a copy, after logging a line.
pub(crate) fn exit_if_forked_copy() {
    if is_forked_copy() {
        exit();
    }
}

#[cold]
fn exit() -> ! {
    let text = format!(
        "process {} is a copy of a worker that the application has forked: it came back from the application, answers \
         nobody, and ends\n",
        std::process::id()
    );
    let _ = rustix::io::write(std::io::stderr(), text.as_bytes());
    // SAFETY: `_exit` has no preconditions. The copy must not clean up the worker's work.
    unsafe { _exit(0) }
}

//! The life cycle of a worker process for C, documented in `workers/include/komainu_life.h`.
//!
//! A process has a single life cycle, so there is no handle. The functions must be called from the process's
//! first thread.

use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::slice;

use crate::server_control::{ForkOrder, Role, ServerControl, ServerOrder};

/// Role of the process: prototype.
pub const KOMAINU_PROTOTYPE: c_int = 1;
/// Role of the process: worker.
pub const KOMAINU_WORKER: c_int = 2;
/// Result of [`komainu_order`]: exit.
pub const KOMAINU_LEAVE: c_int = 0;
/// Result of [`komainu_order`]: fork.
pub const KOMAINU_FORK: c_int = 1;
/// Result of [`komainu_order`]: a signal was received; call again.
pub const KOMAINU_SIGNAL: c_int = 2;
/// Failure; the message is in the buffer.
pub const KOMAINU_FAILED: c_int = -1;
/// Exit status of a process that could not load its application and has reported that.
pub const KOMAINU_EXIT_NOT_LOADED: c_int = 3;

thread_local! {
    static SERVER_CONTROL: RefCell<Option<ServerControl>> = const { RefCell::new(None) };
    /// The fork order to be carried out by the next fork.
    static PENDING_FORK: RefCell<Option<ForkOrder>> = const { RefCell::new(None) };
}

/// # Safety
/// `buffer` has `size` bytes, or `size` is 0.
unsafe fn report(text: &str, buffer: *mut c_char, size: usize) {
    if size == 0 {
        return;
    }
    let len = text.len().min(size - 1);
    // SAFETY: `len` and the terminator fit into the caller's `size` bytes.
    unsafe {
        buffer.copy_from_nonoverlapping(text.as_ptr().cast(), len);
        buffer.add(len).write(0);
    }
}

/// # Safety
/// `text` has `len` bytes, or `len` is 0.
unsafe fn bytes<'a>(text: *const c_char, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(text.cast(), len) }
}

fn with_server_control<R>(look: impl FnOnce(&ServerControl) -> R) -> Option<R> {
    SERVER_CONTROL.with_borrow(|life| life.as_ref().map(look))
}

/// Initializes a process that the server started.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_begin(error: *mut c_char, error_size: usize) -> c_int {
    match ServerControl::begin() {
        Ok(life) => {
            let role = life.role();
            SERVER_CONTROL.set(Some(life));
            if role == Role::Prototype { KOMAINU_PROTOTYPE } else { KOMAINU_WORKER }
        }
        Err(failure) => {
            // SAFETY: the caller's buffer.
            unsafe { report(&failure.to_string(), error, error_size) };
            KOMAINU_FAILED
        }
    }
}

/// Reports that the application is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn komainu_loaded() -> c_int {
    match with_server_control(ServerControl::report_loaded) {
        Some(Ok(())) => 0,
        _ => KOMAINU_FAILED,
    }
}

/// Reports that each thread of this worker handles only one request at a time.
#[unsafe(no_mangle)]
pub extern "C" fn komainu_single() {
    with_server_control(ServerControl::report_single);
}

/// Reports that a worker accepts no more requests and is exiting.
#[unsafe(no_mangle)]
pub extern "C" fn komainu_leaving() {
    with_server_control(ServerControl::report_leaving);
}

/// Reports the reason that the application cannot be loaded.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_not_loaded(text: *const c_char, len: usize) {
    // SAFETY: the caller's text.
    with_server_control(|life| life.report_not_loaded(unsafe { bytes(text, len) }));
}

/// Reports the reason that a fork failed.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_not_forked(text: *const c_char, len: usize) {
    // SAFETY: the caller's text.
    with_server_control(|life| life.report_not_forked(unsafe { bytes(text, len) }));
    PENDING_FORK.set(None);
}

/// Waits for the server's next order to a prototype.
#[unsafe(no_mangle)]
pub extern "C" fn komainu_order() -> c_int {
    // The descriptors of the previous order belong to the worker that it created.
    PENDING_FORK.set(None);
    match with_server_control(ServerControl::wait_for_order) {
        Some(Some(ServerOrder::Fork(birth))) => {
            PENDING_FORK.set(Some(birth));
            KOMAINU_FORK
        }
        Some(None) => KOMAINU_SIGNAL,
        Some(Some(ServerOrder::Exit)) | None => KOMAINU_LEAVE,
    }
}

/// Initializes a forked worker.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_born(error: *mut c_char, error_size: usize) -> c_int {
    let Some(birth) = PENDING_FORK.take() else {
        // SAFETY: the caller's buffer.
        unsafe { report("nobody asked for a worker", error, error_size) };
        return KOMAINU_FAILED;
    };
    let born = SERVER_CONTROL.with_borrow_mut(|life| match life {
        Some(life) => life.become_worker(birth).map_err(|error| error.to_string()),
        None => Err("komainu_begin was not called".into()),
    });
    match born {
        Ok(()) => 0,
        Err(text) => {
            // SAFETY: the caller's buffer.
            unsafe { report(&text, error, error_size) };
            KOMAINU_FAILED
        }
    }
}

/// Returns the worker's first worker slot.
#[unsafe(no_mangle)]
pub extern "C" fn komainu_seat() -> c_int {
    with_server_control(|life| life.worker_slots().0 as c_int).unwrap_or(KOMAINU_FAILED)
}

/// Returns the number of worker slots of the worker.
#[unsafe(no_mangle)]
pub extern "C" fn komainu_seats() -> c_int {
    with_server_control(|life| life.worker_slots().1 as c_int).unwrap_or(0)
}

//! The C ABI of the worker's side, linked by the language modules. It is documented in
//! `workers/include/komainu.h`.
//!
//! Every function is `unsafe` for the same reason, abbreviated in its `Safety` section: pointers must be as
//! the header requires (handles from this library, not yet ended, used by one thread at a time; buffers of
//! the given length).

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::AsRawFd;
use std::slice;
use std::sync::OnceLock;
use std::time::Duration;

use crate::channel::{Attachment, ENVIRONMENT};
use crate::error::{StopReason, WorkerSlot};
use crate::fork_guard;
use crate::request::{ClaimedRequest, DAMAGED};
use crate::response_part::FilePart;
use crate::wire::{self, FieldId, WireFields};
use crate::worker::{NextRequest, Worker};

mod nonblocking;

pub use nonblocking::{komainu_try_head, komainu_try_write_later};

/// The version of these functions; increased when the meaning of one changes.
pub const KOMAINU_ABI: u32 = 1;
/// Success.
pub const KOMAINU_OK: c_int = 0;
/// The operation would block; try again later.
pub const KOMAINU_AGAIN: c_int = -1;
/// The server cancelled the request.
pub const KOMAINU_CANCELLED: c_int = -2;
/// The parts of a response are out of order.
pub const KOMAINU_ORDER: c_int = -3;
/// A head, trailers or field too large for the channel.
pub const KOMAINU_TOO_LARGE: c_int = -4;
/// The channel's memory is damaged.
pub const KOMAINU_BROKEN: c_int = -5;
/// The server asks the worker to exit.
pub const KOMAINU_RETIRED: c_int = -6;
/// Flag of [`komainu_write`]: more data follows immediately, so sending can be deferred.
pub const KOMAINU_MORE: u32 = 1;
/// Flag of [`komainu_news`]: reading would not block.
pub const KOMAINU_READABLE: u32 = 1;
/// Flag of [`komainu_news`]: writing can continue.
pub const KOMAINU_WRITABLE: u32 = 2;
/// Flag of [`komainu_news`]: the request was cancelled.
pub const KOMAINU_GONE: u32 = 4;
/// Flag of [`komainu_news`]: the client has closed its sending side.
pub const KOMAINU_CLIENT_CLOSED: u32 = 8;

/// The environment variable with the number of the worker's slot, for `komainu_attach(…, -1, …)`.
const WORKER_SLOT_VARIABLE: &str = "KOMAINU_SEAT";

/// One field of a head.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KomainuField {
    /// Not NUL-terminated. Lower case for a well-known name; may be null in fields that are written with an
    /// id.
    pub name: *const c_char,
    /// Not NUL-terminated.
    pub value: *const c_char,
    /// Length of `name` in bytes.
    pub name_len: u32,
    /// Length of `value` in bytes.
    pub value_len: u32,
    /// The id of the well-known name, or 0.
    pub id: u32,
}

/// An acquired worker slot.
pub struct KomainuWorker(Worker);

/// A claimed request.
pub struct KomainuRequest {
    /// The fields point into its head, which does not move with either value.
    request: ClaimedRequest,
    fields: Vec<KomainuField>,
}

/// # Safety
/// `bytes` has `len` bytes, or `len` is 0.
unsafe fn slice_from<'a>(bytes: *const c_char, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(bytes.cast(), len) }
}

fn stop_code(stop: StopReason) -> c_int {
    match stop {
        StopReason::Cancelled(_) => KOMAINU_CANCELLED,
        StopReason::Order => KOMAINU_ORDER,
        StopReason::TooLarge => KOMAINU_TOO_LARGE,
        StopReason::Broken => KOMAINU_BROKEN,
    }
}

fn result_code(result: Result<(), StopReason>) -> c_int {
    result.map_or_else(stop_code, |()| KOMAINU_OK)
}

fn count_or_code(result: Result<Option<usize>, StopReason>) -> i64 {
    match result {
        Ok(Some(count)) => count as i64,
        Ok(None) => KOMAINU_AGAIN.into(),
        Err(stop) => stop_code(stop).into(),
    }
}

/// The version of the library, to compare with the header's.
#[unsafe(no_mangle)]
pub extern "C" fn komainu_abi() -> u32 {
    KOMAINU_ABI
}

/// Acquires `worker_slot`, or if it is negative the worker slot named by the environment. Returns null if
/// there is none, with the reason in `error`.
///
/// # Safety
/// `error` has `error_size` bytes, or `error_size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_attach(
    abi: u32,
    worker_slot: c_int,
    error: *mut c_char,
    error_size: usize,
) -> *mut KomainuWorker {
    let text = match attach(abi, worker_slot) {
        Ok(worker) => {
            fork_guard::watch_forks();
            return Box::into_raw(Box::new(KomainuWorker(worker)));
        }
        Err(text) => text,
    };
    if error_size > 0 {
        let len = text.len().min(error_size - 1);
        // SAFETY: `len` and the terminator fit into the caller's `error_size` bytes.
        unsafe {
            error.copy_from_nonoverlapping(text.as_ptr().cast(), len);
            error.add(len).write(0);
        }
    }
    std::ptr::null_mut()
}

/// The value of [`ENVIRONMENT`] when first requested: applications may clear their environment while loading.
#[must_use]
pub fn channel_name() -> Option<&'static str> {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    NAME.get_or_init(|| std::env::var(ENVIRONMENT).ok()).as_deref()
}

/// Attaches this process to its slot. `Err` is the text that the worker prints.
fn attach(abi: u32, worker_slot: c_int) -> Result<Worker, String> {
    if abi != KOMAINU_ABI {
        return Err(format!("the module was built for version {abi} of komainu.h, this is {KOMAINU_ABI}"));
    }
    let channel =
        channel_name().ok_or_else(|| format!("{ENVIRONMENT} is not set: no server started this"))?;
    let worker_slot = match usize::try_from(worker_slot) {
        Ok(worker_slot) => worker_slot,
        Err(_) => std::env::var(WORKER_SLOT_VARIABLE)
            .ok()
            .and_then(|worker_slot| worker_slot.parse().ok())
            .ok_or_else(|| format!("{WORKER_SLOT_VARIABLE} does not name a worker slot"))?,
    };
    Attachment::new(channel)
        .and_then(|attachment| attachment.worker(WorkerSlot(worker_slot)))
        .map_err(|error| error.to_string())
}

/// Releases a worker slot that holds no request.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_detach(worker: *mut KomainuWorker) {
    if fork_guard::is_forked_copy() {
        return;
    }
    // SAFETY: from `komainu_attach`, and not used again.
    drop(unsafe { Box::from_raw(worker) });
}

/// Claims a request: waits without limit if `wait_ms` is negative, and not at all if it is 0.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_next(
    worker: *const KomainuWorker,
    wait_ms: i64,
    request: *mut *mut KomainuRequest,
) -> c_int {
    fork_guard::exit_if_forked_copy();
    // SAFETY: a live handle.
    let worker = unsafe { &(*worker).0 };
    loop {
        match worker.next(u64::try_from(wait_ms).ok().map(Duration::from_millis)) {
            NextRequest::TimedOut => return KOMAINU_AGAIN,
            NextRequest::Retired => return KOMAINU_RETIRED,
            NextRequest::ClaimedRequest(claimed) => match fields(&claimed) {
                Some(fields) => {
                    let claimed = Box::into_raw(Box::new(KomainuRequest { request: claimed, fields }));
                    // SAFETY: the caller provides a place for a pointer.
                    unsafe { request.write(claimed) };
                    return KOMAINU_OK;
                }
                None => claimed.abort(DAMAGED),
            },
        }
    }
}

fn fields(request: &ClaimedRequest) -> Option<Vec<KomainuField>> {
    let mut fields = Vec::with_capacity(24);
    for field in WireFields(request.head()) {
        let field = field.ok()?;
        fields.push(KomainuField {
            name: field.name.as_ptr().cast(),
            value: field.value.as_ptr().cast(),
            name_len: field.name.len() as u32,
            value_len: field.value.len() as u32,
            id: field.known.map_or(0, |name| name.id().into()),
        });
    }
    Some(fields)
}

/// Stores the request's fields, which live until it is ended; returns their number.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_fields(
    request: *const KomainuRequest,
    fields: *mut *const KomainuField,
) -> usize {
    // SAFETY: a live handle, and a place for a pointer provided by the caller.
    unsafe {
        let held = &(*request).fields;
        fields.write(held.as_ptr());
        held.len()
    }
}

/// Returns the text of a well-known name, or null.
///
/// # Safety
/// `len` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_name(id: u32, len: *mut usize) -> *const c_char {
    let text = u8::try_from(id).ok().and_then(FieldId::of_id).map(FieldId::text);
    // SAFETY: guaranteed by the caller.
    unsafe { len.write(text.map_or(0, str::len)) };
    text.map_or(std::ptr::null(), |text| text.as_ptr().cast())
}

/// Reads a piece of the body, waiting for it. Returns its length, 0 at the end, or an error code.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_read(request: *mut KomainuRequest, buffer: *mut c_char, size: usize) -> i64 {
    if fork_guard::is_forked_copy() {
        return KOMAINU_CANCELLED.into();
    }
    // SAFETY: a live handle, and a buffer of `size` bytes.
    let (request, buffer) = unsafe { (&mut (*request).request, buffer_from(buffer, size)) };
    count_or_code(request.read(buffer).map(Some))
}

/// Reads a piece of the body if one is available, otherwise returns `KOMAINU_AGAIN`.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_try_read(
    request: *mut KomainuRequest,
    buffer: *mut c_char,
    size: usize,
) -> i64 {
    if fork_guard::is_forked_copy() {
        return KOMAINU_CANCELLED.into();
    }
    // SAFETY: a live handle, and a buffer of `size` bytes.
    let (request, buffer) = unsafe { (&mut (*request).request, buffer_from(buffer, size)) };
    count_or_code(request.try_read(buffer))
}

/// # Safety
/// `buffer` has `size` bytes, or `size` is 0.
unsafe fn buffer_from<'a>(buffer: *mut c_char, size: usize) -> &'a mut [u8] {
    if size == 0 {
        return &mut [];
    }
    // SAFETY: guaranteed by the caller. The bytes may be uninitialized, but they are only written here.
    unsafe { slice::from_raw_parts_mut(buffer.cast(), size) }
}

/// # Safety
/// `fields` has `count` fields, or `count` is 0.
unsafe fn encode(
    mut head: Vec<u8>,
    fields: *const KomainuField,
    count: usize,
) -> Result<Vec<u8>, StopReason> {
    for index in 0..count {
        // SAFETY: within the caller's fields.
        let field = unsafe { *fields.add(index) };
        // SAFETY: a value is as long as its field says.
        let value = unsafe { slice_from(field.value, field.value_len as usize) };
        match u8::try_from(field.id).ok().and_then(FieldId::of_id) {
            Some(known) => wire::put(&mut head, known, value),
            None => {
                // SAFETY: a name is as long as its field says; only a field without an id must have one.
                let name = unsafe { slice_from(field.name, field.name_len as usize) };
                wire::put_header(&mut head, name, value)
            }
        }
        .map_err(|_| StopReason::TooLarge)?;
    }
    Ok(head)
}

/// # Safety
/// As [`encode`].
unsafe fn encode_head(status: u16, fields: *const KomainuField, count: usize) -> Result<Vec<u8>, StopReason> {
    let mut head = Vec::with_capacity(256);
    wire::put_status(&mut head, status);
    // SAFETY: guaranteed by the caller.
    unsafe { encode(head, fields, count) }
}

/// Writes the response's head, which is sent with the body or the end.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_head(
    request: *mut KomainuRequest,
    status: u16,
    fields: *const KomainuField,
    count: usize,
) -> c_int {
    fork_guard::exit_if_forked_copy();
    // SAFETY: a live handle, and `count` fields.
    let (request, head) = unsafe { (&mut (*request).request, encode_head(status, fields, count)) };
    result_code(head.and_then(|head| request.respond(&head)))
}

/// Sends an interim head (1xx).
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_interim(
    request: *mut KomainuRequest,
    status: u16,
    fields: *const KomainuField,
    count: usize,
) -> c_int {
    fork_guard::exit_if_forked_copy();
    // SAFETY: a live handle, and `count` fields.
    let (request, head) = unsafe { (&mut (*request).request, encode_head(status, fields, count)) };
    result_code(head.and_then(|head| request.interim(&head)))
}

/// Writes the trailer fields.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_trailers(
    request: *mut KomainuRequest,
    fields: *const KomainuField,
    count: usize,
) -> c_int {
    fork_guard::exit_if_forked_copy();
    // SAFETY: a live handle, and `count` fields.
    let (request, fields) = unsafe { (&mut (*request).request, encode(Vec::new(), fields, count)) };
    result_code(fields.and_then(|fields| request.trailers(&fields)))
}

/// Writes a piece of the body, waiting if the client cannot keep up, and sends it unless `flags` contains
/// `KOMAINU_MORE`.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_write(
    request: *mut KomainuRequest,
    body: *const c_char,
    len: usize,
    flags: u32,
) -> c_int {
    fork_guard::exit_if_forked_copy();
    // SAFETY: a live handle, and `len` bytes.
    let (request, body) = unsafe { (&mut (*request).request, slice_from(body, len)) };
    result_code(if flags & KOMAINU_MORE != 0 { request.write_later(body) } else { request.write(body) })
}

/// Writes and sends as much of a piece as fits now. Returns the number of bytes, or an error code.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_try_write(
    request: *mut KomainuRequest,
    body: *const c_char,
    len: usize,
) -> i64 {
    fork_guard::exit_if_forked_copy();
    // SAFETY: a live handle, and `len` bytes.
    let (request, body) = unsafe { (&mut (*request).request, slice_from(body, len)) };
    count_or_code(request.try_write(body).map(|taken| (taken > 0 || len == 0).then_some(taken)))
}

/// Sends buffered data.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_flush(request: *mut KomainuRequest) {
    if fork_guard::is_forked_copy() {
        return;
    }
    // SAFETY: a live handle.
    unsafe { (*request).request.flush() }
}

/// Sends part of an open file as the next piece of the body; returns once the server has it.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_file(
    request: *mut KomainuRequest,
    fd: c_int,
    offset: u64,
    len: u64,
) -> c_int {
    fork_guard::exit_if_forked_copy();
    // SAFETY: a live handle.
    result_code(unsafe { (*request).request.file(FilePart { fd, offset, len }) })
}

/// Passes the client's connection to a socket; returns once the server has the descriptor.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_hijack(request: *mut KomainuRequest, fd: c_int) -> c_int {
    fork_guard::exit_if_forked_copy();
    // SAFETY: a live handle.
    result_code(unsafe { (*request).request.hijack(fd) })
}

/// Ends the response and the request. The handle is invalid afterwards in any case.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_end(request: *mut KomainuRequest) -> c_int {
    fork_guard::exit_if_forked_copy();
    // SAFETY: a live handle, not used again.
    result_code(unsafe { Box::from_raw(request) }.request.finish())
}

/// Aborts the request with a reason chosen by the worker. The handle is invalid afterwards.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_abort(request: *mut KomainuRequest, reason: u32) {
    if fork_guard::is_forked_copy() {
        return;
    }
    // SAFETY: a live handle, not used again.
    unsafe { Box::from_raw(request) }.request.abort(reason);
}

/// Returns the server's reason for cancelling the request, or 0.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_cancelled(request: *const KomainuRequest) -> u32 {
    // SAFETY: a live handle.
    unsafe { (*request).request.cancelled() }.unwrap_or(0)
}

/// Returns the operations that are possible without waiting, as bits.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_news(request: *const KomainuRequest) -> u32 {
    // SAFETY: a live handle.
    let news = unsafe { (*request).request.readiness() };
    let bit = |set: bool, bit: u32| if set { bit } else { 0 };
    bit(news.is_readable, KOMAINU_READABLE)
        | bit(news.is_writable, KOMAINU_WRITABLE)
        | bit(news.is_cancelled, KOMAINU_GONE)
        | bit(news.has_client_closed, KOMAINU_CLIENT_CLOSED)
}

/// Writes a line to the server's log: through the request, or through standard error if `request` is null.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_log(
    request: *mut KomainuRequest,
    level: u8,
    text: *const c_char,
    len: usize,
) -> c_int {
    // SAFETY: `len` bytes.
    let text = unsafe { slice_from(text, len) };
    // SAFETY: null or a live handle.
    match unsafe { request.as_mut() } {
        Some(held) => result_code(held.request.log(level, text)),
        None => {
            use std::io::Write;
            let written = std::io::stderr().lock().write_all(&[text, b"\n"].concat());
            if written.is_ok() { KOMAINU_OK } else { KOMAINU_BROKEN }
        }
    }
}

/// Returns the eventfd to watch in an event loop, or -1.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_fd(worker: *const KomainuWorker) -> c_int {
    // SAFETY: a live handle.
    unsafe { &(*worker).0 }.fd().map_or(-1, |fd| fd.as_raw_fd())
}

/// Prepares an event loop for sleeping. Returns 1, or 0 if there is a request to claim. The caller must then
/// check `komainu_news` of its requests once more.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_arm(worker: *const KomainuWorker, wanted: c_int) -> c_int {
    // SAFETY: a live handle.
    unsafe { &(*worker).0 }.arm(wanted != 0).into()
}

/// Ends the preparation after an event loop slept; if requests were wanted, `komainu_next` must follow.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_disarm(worker: *const KomainuWorker) {
    // SAFETY: a live handle.
    unsafe { &(*worker).0 }.disarm();
}

/// Resets the eventfd after it became readable.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_quiet(worker: *const KomainuWorker) {
    // SAFETY: a live handle.
    unsafe { &(*worker).0 }.clear_eventfd();
}

/// Returns the name of a return value, for messages.
#[unsafe(no_mangle)]
pub extern "C" fn komainu_error(code: c_int) -> *const c_char {
    let text: &CStr = match code {
        KOMAINU_OK => c"done",
        KOMAINU_AGAIN => c"nothing now",
        KOMAINU_CANCELLED => c"the request was cancelled",
        KOMAINU_ORDER => c"the response's parts are out of order",
        KOMAINU_TOO_LARGE => c"a part of the response is too large for the channel: `response_head` of the application sets its size",
        KOMAINU_BROKEN => c"the channel's memory is damaged",
        KOMAINU_RETIRED => c"the server asks the worker to leave",
        _ => c"unknown",
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests;

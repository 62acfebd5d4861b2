//! Non-blocking writing, for event loops.

use std::ffi::{c_char, c_int};

use super::{
    KOMAINU_AGAIN, KOMAINU_OK, KomainuField, KomainuRequest, count_or_code, encode, encode_head, slice_from,
    stop_code,
};
use crate::fork_guard;

/// Non-blocking `komainu_head`, `komainu_interim` (status 1xx) or `komainu_trailers` (status 0).
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_try_head(
    request: *mut KomainuRequest,
    status: u16,
    fields: *const KomainuField,
    field_count: usize,
) -> c_int {
    fork_guard::exit_if_forked_copy();
    // SAFETY: a live handle.
    let request = unsafe { &mut (*request).request };
    let tried = match status {
        // SAFETY: `field_count` fields.
        0 => unsafe { encode(Vec::new(), fields, field_count) }
            .and_then(|fields| request.try_trailers(&fields)),
        // SAFETY: `field_count` fields.
        _ => unsafe { encode_head(status, fields, field_count) }.and_then(|head| match status {
            100 | 102..200 => request.try_interim(&head),
            _ => request.try_respond(&head),
        }),
    };
    tried.map_or_else(stop_code, |is_written| if is_written { KOMAINU_OK } else { KOMAINU_AGAIN })
}

/// Like `komainu_try_write`, but sends the piece only if some of it is left.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn komainu_try_write_later(
    request: *mut KomainuRequest,
    body: *const c_char,
    len: usize,
) -> i64 {
    fork_guard::exit_if_forked_copy();
    // SAFETY: a live handle, and `len` bytes.
    let (request, body) = unsafe { (&mut (*request).request, slice_from(body, len)) };
    count_or_code(request.try_write_later(body).map(|taken| (taken > 0 || len == 0).then_some(taken)))
}

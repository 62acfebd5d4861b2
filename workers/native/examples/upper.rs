//! Answers with the body in upper case, in Rust, without a crate: `rustc -O --crate-type cdylib upper.rs -o upper.so`.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null;

#[repr(C)]
struct Request {
    _of_the_worker: [u8; 0],
}

#[repr(C)]
struct Field {
    name: *const c_char,
    value: *const c_char,
    name_len: u32,
    value_len: u32,
    id: u32,
}

// The functions of `komainu.h` that are used here; the worker has them.
unsafe extern "C" {
    fn komainu_read(request: *mut Request, buffer: *mut u8, size: usize) -> i64;
    fn komainu_head(request: *mut Request, status: u16, fields: *const Field, count: usize) -> c_int;
    fn komainu_write(request: *mut Request, body: *const u8, len: usize, flags: u32) -> c_int;
}

type Text = unsafe extern "C" fn(*mut *mut c_void, *mut c_char, usize) -> c_int;
type Begin = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut c_char, usize) -> c_int;

/// `komainu_handler` of `komainu_handler.h`.
#[repr(C)]
pub struct Handler {
    abi: u32,
    size: u32,
    handle: unsafe extern "C" fn(*mut Request, *mut c_void, *mut c_void) -> c_int,
    load: Option<Text>,
    start: Option<Text>,
    begin: Option<Begin>,
    end: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    stop: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// Answers a request. A panic in an `extern "C"` function ends the process, and only this request is lost.
unsafe extern "C" fn handle(request: *mut Request, _process: *mut c_void, _thread: *mut c_void) -> c_int {
    let mut piece = [0; 8192];
    // SAFETY: the worker keeps the request until this returns, and the pieces have the given lengths.
    unsafe {
        let mut code = komainu_head(request, 200, null(), 0);
        while code == 0 {
            let len = komainu_read(request, piece.as_mut_ptr(), piece.len());
            let Ok(len) = usize::try_from(len) else { return len as c_int };
            if len == 0 {
                break;
            }
            piece[..len].make_ascii_uppercase();
            code = komainu_write(request, piece.as_ptr(), len, 0);
        }
        code
    }
}

#[unsafe(no_mangle)]
pub static komainu_entry: Handler = Handler {
    abi: 1,
    size: size_of::<Handler>() as u32,
    handle,
    load: None,
    start: None,
    begin: None,
    end: None,
    stop: None,
};

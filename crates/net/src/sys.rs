//! System calls for which rustix has no safe function.

use std::ffi::c_int;
use std::os::fd::AsFd;

use rustix::ioctl::{Getter, Opcode, ioctl};

/// The number of this request on x86, ARM and RISC-V.
const SIOCOUTQ: Opcode = 0x5411;

/// Bytes in a socket's send queue: those that the peer has not acknowledged. 0 where the system does not say.
#[allow(unsafe_code)]
pub(crate) fn send_queue_bytes(socket: impl AsFd) -> u32 {
    // SAFETY: SIOCOUTQ stores an `int`, for which the getter has room, and changes nothing.
    let queued = unsafe { ioctl(socket, Getter::<SIOCOUTQ, c_int>::new()) };
    queued.ok().and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(0)
}

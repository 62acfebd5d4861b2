//! System calls for which neither rustix nor the standard library has a safe function.

use std::ffi::c_int;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::process::setsid;

/// The number of this request on x86, ARM and RISC-V.
const SIOCOUTQ: Opcode = 0x5411;
/// The first descriptor that is none of the standard streams.
const FIRST_DESCRIPTOR: i32 = 3;

/// Bytes in a socket's send queue: those that the peer has not acknowledged. 0 where the system does not say.
#[allow(unsafe_code)]
pub(crate) fn send_queue_bytes(socket: impl AsFd) -> u32 {
    // SAFETY: SIOCOUTQ stores an `int`, for which the getter has room, and changes nothing.
    let queued = unsafe { ioctl(socket, Getter::<SIOCOUTQ, c_int>::new()) };
    queued.ok().and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(0)
}

/// Has a program lead a process group of its own, so that it gets none of the terminal's signals; and a session, if it `needs_session` or
/// this process has a terminal: then it has no controlling terminal, and cannot join the process groups of other sessions.
///
/// A session costs a fork(2), which the standard library avoids otherwise, and the scheduler shares CPU time out among sessions.
#[allow(unsafe_code)]
pub fn set_apart(command: &mut Command, needs_session: bool) {
    if !needs_session && !has_terminal() {
        command.process_group(0);
        return;
    }
    // SAFETY: between fork and exec the closure makes one system call; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(|| Ok(setsid().map(drop)?)) };
}

/// Whether this process, and so what it starts, has a controlling terminal.
fn has_terminal() -> bool {
    open(c"/dev/tty", OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

/// Keeps descriptors that the starter of this process has left open from the programs that this process starts. To be called while the
/// process has one thread.
///
/// # Errors
/// Where the system does not list them.
#[allow(unsafe_code)]
pub fn keep_descriptors_from_programs() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|number| number.parse().ok());
        let Some(number) = number.filter(|number| *number >= FIRST_DESCRIPTOR) else { continue };
        // SAFETY: the descriptor is borrowed for one call that closes nothing. One that is closed by then is an error of that call.
        match fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC) {
            Ok(()) | Err(Errno::BADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

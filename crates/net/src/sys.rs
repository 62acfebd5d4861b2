//! System calls without a safe function in rustix or the standard library.

use std::ffi::c_int;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc::{self, sock_filter, sock_fprog};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::AttachReusePortCbpf;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::process::{Resource, Rlimit, setrlimit, setsid};

/// The ioctl's number on x86, ARM and RISC-V.
const SIOCOUTQ: Opcode = 0x5411;
/// The first descriptor after the standard streams.
const FIRST_DESCRIPTOR: i32 = 3;

/// Returns the number of bytes in a socket's send queue, which the peer has not acknowledged; 0 if the system
/// does not report it.
#[allow(unsafe_code)]
pub(crate) fn send_queue_bytes(socket: impl AsFd) -> u32 {
    // SAFETY: SIOCOUTQ stores an `int`, for which the getter has room, and changes nothing.
    let queued = unsafe { ioctl(socket, Getter::<SIOCOUTQ, c_int>::new()) };
    queued.ok().and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(0)
}

/// Makes the kernel choose the socket of a packet among the sockets of an address (SO_REUSEPORT): for a packet of an
/// established QUIC connection by the first byte of its connection identifier, which is the index of the
/// socket; for others by the addresses.
///
/// # Errors
/// Fails if the kernel has no socket filters.
pub(crate) fn steer_by_connection_id(socket: &impl AsFd) -> io::Result<()> {
    let load = |at| sock_filter { code: 0x30, jt: 0, jf: 0, k: at };
    let mut program = [
        // A = first byte of the packet; a set high bit means a long header (RFC 9000 section 17).
        load(0),
        sock_filter { code: 0x45, jt: 2, jf: 0, k: 0x80 },
        // A = first byte of the identifier; return A.
        load(1),
        sock_filter { code: 0x16, jt: 0, jf: 0, k: 0 },
        // No socket has this index: the addresses decide.
        sock_filter { code: 0x06, jt: 0, jf: 0, k: u32::MAX },
    ];
    let filter = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    Ok(setsockopt(socket, AttachReusePortCbpf, &filter)?)
}

/// Lets the kernel send datagrams that are larger than a packet, in fragments, and learn the size of packets as
/// for any socket.
///
/// # Errors
/// System errors.
pub(crate) fn allow_fragments(socket: &impl AsFd, is_ipv6: bool) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_WANT)?;
    if is_ipv6 {
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT)?;
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 0)?;
    }
    Ok(())
}

/// Lets the kernel report connections to a listening socket when their first bytes have arrived (TCP_DEFER_ACCEPT), or
/// after a second without any. On failure, it reports them at once.
pub(crate) fn defer_accept(listener: &impl AsFd, defers: bool) {
    let _ = set_option(listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, c_int::from(defers));
}

/// Sets an option of a socket that is an integer.
#[allow(unsafe_code)]
pub(crate) fn set_option(socket: &impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    let value = std::ptr::from_ref(&value).cast();
    // SAFETY: the descriptor is borrowed for the call, which reads an integer of this length and keeps nothing.
    let result = unsafe { libc::setsockopt(socket, level, name, value, size_of::<c_int>() as u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Starts a program in a process group of its own, so that it gets no signals from the terminal. It gets a
/// session of its own if `needs_session` or if this process has a terminal; it then has no controlling
/// terminal and cannot join process groups of other sessions.
///
/// A session requires fork(2), which the standard library otherwise avoids, and the scheduler distributes CPU
/// time between sessions.
#[allow(unsafe_code)]
pub fn set_process_group(command: &mut Command, needs_session: bool) {
    if !needs_session && !has_terminal() {
        command.process_group(0);
        return;
    }
    // SAFETY: between fork and exec the closure makes one system call; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(|| Ok(setsid().map(drop)?)) };
}

/// Starts a program with these resource limits, soft and hard. It needs no privilege, whoever the program's user is; limits of a running
/// process of another user need CAP_SYS_RESOURCE. A limit on address space comes last, since it counts for what is mapped already.
#[allow(unsafe_code)]
pub fn set_limits(command: &mut Command, limits: Vec<(Resource, u64)>) {
    if limits.is_empty() {
        return;
    }
    let set = move || {
        let set_one = |(resource, value): &(Resource, u64)| {
            Ok(setrlimit(*resource, Rlimit { current: Some(*value), maximum: Some(*value) })?)
        };
        limits.iter().try_for_each(set_one)
    };
    // SAFETY: between fork and exec the closure makes system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(set) };
}

/// Whether this process, and so its children, have a controlling terminal.
fn has_terminal() -> bool {
    open(c"/dev/tty", OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

/// Sets close-on-exec on descriptors that this process has inherited, so that its child processes do not.
/// Must be called while the process has only one thread.
///
/// # Errors
/// Fails if `/proc/self/fd` cannot be read.
#[allow(unsafe_code)]
pub fn set_cloexec_on_inherited() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|number| number.parse().ok());
        let Some(number) = number.filter(|number| *number >= FIRST_DESCRIPTOR) else { continue };
        // SAFETY: the descriptor is borrowed for one call, which fails if it is closed and does not close it.
        match fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC) {
            Ok(()) | Err(Errno::BADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

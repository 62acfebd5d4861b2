//! What systemd and a service say to each other: sockets that it has bound, and messages about the service's state
//! (`sd_listen_fds`(3), `sd_notify`(3)).

use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use crate::sockets::GivenSockets;

/// The variables that are for this process alone.
pub const OF_PROCESS: [&str; 4] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID"];
/// The variables that are for the service's main process alone.
pub const OF_SERVICE: [&str; 2] = ["NOTIFY_SOCKET", "WATCHDOG_USEC"];

/// The first of the descriptors.
const FIRST: i32 = 3;
/// More than anybody passes.
const SOCKETS_MAX: i32 = 1024;

/// The value of a variable, if another one says that it is meant for this process, or does not say.
fn own(name: &str, pid: &str) -> Option<String> {
    let value = std::env::var(name).ok()?;
    let own = getpid().as_raw_pid().to_string();
    match std::env::var(pid) {
        Ok(pid) if pid != own => None,
        _ => Some(value),
    }
}

/// The sockets that systemd has bound for this process; they stay its own, with their files.
///
/// # Errors
/// Where a descriptor is missing, or no bound socket.
pub fn sockets() -> io::Result<GivenSockets> {
    let mut given = GivenSockets::default();
    let count = match (std::env::var_os("LISTEN_PID"), own("LISTEN_FDS", "LISTEN_PID")) {
        (Some(_), Some(count)) => count,
        _ => return Ok(given),
    };
    let invalid =
        |text: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("LISTEN_FDS={count}: {text}"));
    let number: i32 = count.parse().map_err(|_| invalid("this is no number"))?;
    if !(0..=SOCKETS_MAX).contains(&number) {
        return Err(invalid("too many descriptors"));
    }
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    for descriptor in FIRST..FIRST + number {
        // A copy that no child inherits, and the original closed: it has no owner that a type could name.
        let copy = pidfd_getfd(&this, descriptor, PidfdGetfdFlags::empty());
        let copy: OwnedFd = copy.map_err(|error| invalid(&format!("descriptor {descriptor}: {error}")))?;
        nix::unistd::close(descriptor)
            .map_err(|error| invalid(&format!("descriptor {descriptor}: {error}")))?;
        given.add_of_systemd(copy).map_err(|error| invalid(&format!("descriptor {descriptor}: {error}")))?;
    }
    Ok(given)
}

/// Notifies systemd about the service. Without systemd it does nothing. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Notifier(Option<std::sync::Arc<(UnixDatagram, SocketAddr)>>);

impl Notifier {
    /// To the socket that `NOTIFY_SOCKET` names.
    pub fn of_environment() -> Notifier {
        let name = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let address = name.and_then(|name| match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            [b'/', ..] => SocketAddr::from_pathname(&name).ok(),
            _ => None,
        });
        let socket = UnixDatagram::unbound().and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        Notifier(socket.ok().zip(address).map(std::sync::Arc::new))
    }

    fn send(&self, text: &str) {
        if let Some((socket, address)) = self.0.as_deref() {
            // A service manager that has ended, or is behind, must not stop the server.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }

    /// The service serves.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// The service reads its configuration again; [`Notifier::ready`] ends that.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let us = now.tv_sec as i128 * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={us}\nSTATUS=reading the configuration again"));
    }

    /// The service stops.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=finishing what runs");
    }

    /// Another process is the service from now on.
    pub fn main_process(&self, pid: u32) {
        self.send(&format!("MAINPID={pid}\nREADY=1\nSTATUS=process {pid} has taken over"));
    }

    /// The service lives.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }
}

/// A text in one line.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// How often systemd wants to hear that the service lives: half of the time after which it would be killed. `None` without a
/// watchdog.
pub fn watchdog() -> Option<Duration> {
    let us: u64 = own("WATCHDOG_USEC", "WATCHDOG_PID")?.parse().ok().filter(|us| *us > 0)?;
    Some(Duration::from_micros(us / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_one_line_for_each_field() {
        let folder = std::env::temp_dir().join(format!("komainu-notify-{}", std::process::id()));
        let receiver = UnixDatagram::bind(&folder).unwrap();
        let address = SocketAddr::from_pathname(&folder).unwrap();
        let notifier = Notifier(Some(std::sync::Arc::new((UnixDatagram::unbound().unwrap(), address))));
        std::fs::remove_file(&folder).unwrap();
        drop(receiver);
        // Nobody listens at the path any more: nothing happens.
        notifier.ready("a");
        let receiver = UnixDatagram::bind(&folder).unwrap();
        notifier.ready("a\nFDSTORE=1");
        let mut bytes = [0; 256];
        let len = receiver.recv(&mut bytes).unwrap();
        std::fs::remove_file(&folder).unwrap();
        assert_eq!(&bytes[..len], b"READY=1\nSTATUS=a FDSTORE=1");
    }
}

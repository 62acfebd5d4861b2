//! Communication with systemd: inherited sockets, and notifications about the service's state
//! (`sd_listen_fds`(3), `sd_notify`(3)).

use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use crate::sockets::InheritedSockets;

/// Environment variables for this process only.
pub const PROCESS_VARIABLES: [&str; 4] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID"];
/// Environment variables for the service's main process only.
pub const SERVICE_VARIABLES: [&str; 2] = ["NOTIFY_SOCKET", "WATCHDOG_USEC"];

/// First inherited descriptor (`SD_LISTEN_FDS_START`).
const FIRST_DESCRIPTOR: i32 = 3;
/// Maximum number of inherited descriptors, far above real use.
const SOCKETS_MAX: i32 = 1024;

/// The value of variable `name`, unless variable `pid` contains the id of another process.
fn own_variable(name: &str, pid: &str) -> Option<String> {
    let value = std::env::var(name).ok()?;
    let own = getpid().as_raw_pid().to_string();
    match std::env::var(pid) {
        Ok(pid) if pid != own => None,
        _ => Some(value),
    }
}

/// Takes the sockets that systemd has bound for this process; systemd keeps the ownership of their files.
///
/// # Errors
/// A descriptor is missing, or is not a bound socket.
pub fn take_sockets() -> io::Result<InheritedSockets> {
    let mut given = InheritedSockets::default();
    let count = match (std::env::var_os("LISTEN_PID"), own_variable("LISTEN_FDS", "LISTEN_PID")) {
        (Some(_), Some(count)) => count,
        _ => return Ok(given),
    };
    let invalid =
        |text: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("LISTEN_FDS={count}: {text}"));
    let number: i32 = count.parse().map_err(|_| invalid("this is not a number"))?;
    if !(0..=SOCKETS_MAX).contains(&number) {
        return Err(invalid("too many descriptors"));
    }
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    for descriptor in FIRST_DESCRIPTOR..FIRST_DESCRIPTOR + number {
        // Duplicates the descriptor with close-on-exec and closes the original, without unsafe code.
        let copy = pidfd_getfd(&this, descriptor, PidfdGetfdFlags::empty());
        let copy: OwnedFd = copy.map_err(|error| invalid(&format!("descriptor {descriptor}: {error}")))?;
        nix::unistd::close(descriptor)
            .map_err(|error| invalid(&format!("descriptor {descriptor}: {error}")))?;
        given
            .add_from_systemd(copy)
            .map_err(|error| invalid(&format!("descriptor {descriptor}: {error}")))?;
    }
    Ok(given)
}

/// Sender of notifications to systemd; does nothing without systemd. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Notifier(Option<std::sync::Arc<(UnixDatagram, SocketAddr)>>);

impl Notifier {
    /// Creates a notifier for the socket that `NOTIFY_SOCKET` names.
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
            // A missing or blocked service manager must not stop the server.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }

    /// Reports that the service is ready.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// Reports that the configuration is being reloaded; [`Notifier::ready`] ends this state.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let us = now.tv_sec as i128 * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={us}\nSTATUS=reading the configuration again"));
    }

    /// Reports that the service is stopping.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=finishing what runs");
    }

    /// Reports that another process has become the service's main process.
    pub fn main_process(&self, pid: u32) {
        self.send(&format!("MAINPID={pid}\nREADY=1\nSTATUS=process {pid} has taken over"));
    }

    /// Resets the watchdog.
    pub fn reset_watchdog(&self) {
        self.send("WATCHDOG=1");
    }
}

/// Replaces control characters by spaces.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Interval for [`Notifier::reset_watchdog`]: half of the watchdog timeout. `None` without a watchdog.
pub fn watchdog_interval() -> Option<Duration> {
    let us: u64 = own_variable("WATCHDOG_USEC", "WATCHDOG_PID")?.parse().ok().filter(|us| *us > 0)?;
    Some(Duration::from_micros(us / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notification_has_one_line_per_field() {
        let folder = std::env::temp_dir().join(format!("komainu-notify-{}", std::process::id()));
        let receiver = UnixDatagram::bind(&folder).unwrap();
        let address = SocketAddr::from_pathname(&folder).unwrap();
        let notifier = Notifier(Some(std::sync::Arc::new((UnixDatagram::unbound().unwrap(), address))));
        std::fs::remove_file(&folder).unwrap();
        drop(receiver);
        // No receiver is bound to the path: the message is dropped.
        notifier.ready("a");
        let receiver = UnixDatagram::bind(&folder).unwrap();
        notifier.ready("a\nFDSTORE=1");
        let mut bytes = [0; 256];
        let len = receiver.recv(&mut bytes).unwrap();
        std::fs::remove_file(&folder).unwrap();
        assert_eq!(&bytes[..len], b"READY=1\nSTATUS=a FDSTORE=1");
    }
}

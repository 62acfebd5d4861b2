//! The life cycle of a process that the server started, or that a prototype forked.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use failure::Failure;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::signals;

/// Maximum length of an error text that is sent, in bytes.
const TEXT_BYTES_MAX: usize = 32 * 1024;
/// Maximum time that a forked worker waits for its intermediate parent to exit.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(10);
const ADOPTION_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Loads the application and forks workers.
    Prototype,
    /// Loads the application and answers requests.
    Worker,
}

/// An order of the server to a prototype.
#[derive(Debug)]
pub enum ServerOrder {
    /// Fork a worker: the child calls [`ServerControl::become_worker`].
    Fork(ForkOrder),
    /// Exit: the server is gone, or no longer needs the prototype.
    Exit,
}

/// The slots and descriptors of a worker to be forked.
#[derive(Debug)]
pub struct ForkOrder {
    worker_slot: usize,
    worker_slots: usize,
    control: OwnedFd,
    output: OwnedFd,
    errors: OwnedFd,
}

/// The connection of a process to its server.
#[derive(Debug)]
pub struct ServerControl {
    role: Role,
    server: Pid,
    control: OwnedFd,
    worker_slot: usize,
    worker_slots: usize,
}

fn parse_variable<T: std::str::FromStr>(name: &str) -> Result<T, Failure> {
    let missing = |_| Failure::new(format_args!("{name} is not set: no server started this"));
    let value = std::env::var(name).map_err(missing)?;
    value.parse().map_err(|_| Failure::new(format_args!("{name} is not what a server would write: {value}")))
}

impl ServerControl {
    /// Reads the environment and announces the process. From now on the process ends with the server.
    ///
    /// # Errors
    /// A message for users, if the process was not started by a server.
    pub fn begin() -> Result<ServerControl, Failure> {
        let role = match parse_variable::<String>("KOMAINU_ROLE")?.as_str() {
            "prototype" => Role::Prototype,
            "worker" => Role::Worker,
            other => {
                return Err(Failure::new(format_args!(
                    "KOMAINU_ROLE is neither prototype nor worker: {other}"
                )));
            }
        };
        let server =
            Pid::from_raw(parse_variable("KOMAINU_SERVER")?).ok_or("KOMAINU_SERVER is not a process id")?;
        let (worker_slot, worker_slots) = match role {
            Role::Prototype => (0, 0),
            Role::Worker => (parse_variable("KOMAINU_SEAT")?, parse_variable("KOMAINU_SEATS")?),
        };
        let control: RawFd = parse_variable("KOMAINU_CONTROL")?;
        // SAFETY: borrowed for this call; a number that is not open is its error.
        fcntl_setfd(unsafe { BorrowedFd::borrow_raw(control) }, FdFlags::CLOEXEC)
            .map_err(|error| Failure::new("KOMAINU_CONTROL is not open").caused_by(error))?;
        set_cloexec();
        signals::survive_signals();
        // SAFETY: open, as the call above showed, and given to this process alone.
        let control = unsafe { OwnedFd::from_raw_fd(control) };
        let life = ServerControl { role, server, control, worker_slot, worker_slots };
        life.exit_with_server()?;
        life.send_report(b'B', b"")
            .map_err(|error| Failure::new("the server does not listen").caused_by(error))?;
        Ok(life)
    }

    /// The role of the process.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The first worker slot and the number of worker slots: one per thread.
    #[must_use]
    pub fn worker_slots(&self) -> (usize, usize) {
        (self.worker_slot, self.worker_slots)
    }

    /// Reports that the application is loaded.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn report_loaded(&self) -> io::Result<()> {
        self.send_report(b'R', b"")
    }

    /// Reports that each thread of this worker handles only one request at a time, although it could hold
    /// more.
    pub fn report_single(&self) {
        // The error is ignored: the server is gone.
        let _ = self.send_report(b'S', b"");
    }

    /// Reports that a worker accepts no more requests and is exiting.
    pub fn report_leaving(&self) {
        // A copy forked by the application must not report for the worker.
        if signals::ignores_signals() {
            let _ = self.send_report(b'L', b"");
        }
    }

    /// Reports the reason that the application cannot be loaded. The process must exit afterwards.
    pub fn report_not_loaded(&self, text: &[u8]) {
        if signals::ignores_signals() {
            // The error is ignored: the server is gone.
            let _ = self.send_report(b'E', &text[..text.len().min(TEXT_BYTES_MAX)]);
        }
    }

    /// Reports the reason that a fork failed.
    pub fn report_not_forked(&self, text: &[u8]) {
        let _ = self.send_report(b'F', &text[..text.len().min(TEXT_BYTES_MAX)]);
    }

    fn send_report(&self, what: u8, text: &[u8]) -> io::Result<()> {
        let message = [IoSlice::new(std::slice::from_ref(&what)), IoSlice::new(text)];
        sendmsg(&self.control, &message, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for an order; `None` if a signal arrived first.
    pub fn wait_for_order(&self) -> Option<ServerOrder> {
        let mut text = [0; 64];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let len = match recvmsg(&self.control, &mut [IoSliceMut::new(&mut text)], &mut ancillary, flags) {
            Ok(received) => received.bytes,
            Err(Errno::INTR) => return None,
            Err(_) => 0,
        };
        let mut descriptors = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let mut words = std::str::from_utf8(&text[..len]).unwrap_or_default().split(' ');
        let mut number = || words.next()?.parse::<usize>().ok();
        // The first word, "fork", is not a number.
        let birth = (number().is_none() && len > 0).then(|| {
            let worker_slot = number()?;
            let worker_slots = number()?;
            let mut next = || descriptors.next();
            Some(ForkOrder { worker_slot, worker_slots, control: next()?, output: next()?, errors: next()? })
        });
        Some(birth.flatten().map_or(ServerOrder::Exit, ServerOrder::Fork))
    }

    /// Turns a forked process into a worker; its intermediate parent, forked by the prototype, has exited or
    /// is exiting.
    ///
    /// # Errors
    /// The reason that the process cannot become a worker.
    pub fn become_worker(&mut self, fork_order: ForkOrder) -> io::Result<()> {
        let ForkOrder { worker_slot, worker_slots, control, output, errors } = fork_order;
        signals::survive_signals();
        rustix::stdio::dup2_stdout(&output)?;
        rustix::stdio::dup2_stderr(&errors)?;
        *self = ServerControl { role: Role::Worker, server: self.server, control, worker_slot, worker_slots };
        self.wait_for_adoption()?;
        self.exit_with_server()?;
        self.send_report(b'B', b"")
    }

    /// Waits until the server has become the parent, because it is the subreaper of its orphaned descendants.
    fn wait_for_adoption(&self) -> io::Result<()> {
        let mut waited = Duration::ZERO;
        while getppid() != Some(self.server) {
            if waited >= ADOPTION_TIMEOUT {
                return Err(io::Error::other("the server does not take this worker in"));
            }
            std::thread::sleep(ADOPTION_POLL_INTERVAL);
            waited += ADOPTION_POLL_INTERVAL;
        }
        Ok(())
    }

    fn exit_with_server(&self) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The server may have exited before the call took effect.
        if getppid() == Some(self.server) { Ok(()) } else { Err(io::Error::other("the server is gone")) }
    }
}

/// Makes the channel's descriptors close-on-exec for programs that the application may start.
fn set_cloexec() {
    let numbers = ring::abi::channel_name().unwrap_or_default();
    for number in numbers.split([';', ',']).filter_map(|number| number.parse::<RawFd>().ok()) {
        if number > 2 {
            // SAFETY: borrowed for this call; a number that is not open is its error, and attaching reports it.
            let _ = fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC);
        }
    }
}

impl AsFd for ServerControl {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

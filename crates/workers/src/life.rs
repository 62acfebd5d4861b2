//! The life of a process that the server started, or that a prototype forked.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::signals;

/// Longest error text that is sent.
const TEXT_BYTES_MAX: usize = 32 * 1024;
/// How long a forked worker may wait for its middle parent to leave.
const ORPHANED_MAX: Duration = Duration::from_secs(10);
const ORPHANED_LOOK: Duration = Duration::from_micros(200);

/// What a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// To load the application and to fork workers.
    Prototype,
    /// To load the application and to answer requests.
    Worker,
}

/// The commands to a prototype.
#[derive(Debug)]
pub enum ServerOrder {
    /// To fork a worker: the child calls [`Life::born`].
    Fork(Birth),
    /// To leave: the server is gone, or has no more use for it.
    Leave,
}

/// What a forked worker is given.
#[derive(Debug)]
pub struct Birth {
    worker_slot: usize,
    worker_slots: usize,
    control: OwnedFd,
    output: OwnedFd,
    errors: OwnedFd,
}

/// A process's tie to its server.
#[derive(Debug)]
pub struct Life {
    role: Role,
    server: Pid,
    control: OwnedFd,
    worker_slot: usize,
    worker_slots: usize,
}

fn variable<T: std::str::FromStr>(name: &str) -> Result<T, String> {
    let value = std::env::var(name).map_err(|_| format!("{name} is not set: no server started this"))?;
    value.parse().map_err(|_| format!("{name} is not what a server would write: {value}"))
}

impl Life {
    /// Takes up what the environment says, and says hello. From here on the process ends with the server.
    ///
    /// # Errors
    /// Why it is no server's process, for people.
    pub fn begin() -> Result<Life, String> {
        let role = match variable::<String>("KOMAINU_ROLE")?.as_str() {
            "prototype" => Role::Prototype,
            "worker" => Role::Worker,
            other => return Err(format!("KOMAINU_ROLE is neither prototype nor worker: {other}")),
        };
        let server = Pid::from_raw(variable("KOMAINU_SERVER")?).ok_or("KOMAINU_SERVER is no process id")?;
        let (worker_slot, worker_slots) = match role {
            Role::Prototype => (0, 0),
            Role::Worker => (variable("KOMAINU_SEAT")?, variable("KOMAINU_SEATS")?),
        };
        let control: RawFd = variable("KOMAINU_CONTROL")?;
        // SAFETY: borrowed for this call; a number that is not open is its error.
        fcntl_setfd(unsafe { BorrowedFd::borrow_raw(control) }, FdFlags::CLOEXEC)
            .map_err(|error| format!("KOMAINU_CONTROL is not open: {error}"))?;
        close_to_programs();
        signals::stay_on();
        // SAFETY: open, as the call above showed, and given to this process alone.
        let control = unsafe { OwnedFd::from_raw_fd(control) };
        let life = Life { role, server, control, worker_slot, worker_slots };
        life.end_with_the_server().map_err(|error| error.to_string())?;
        life.say(b'B', b"").map_err(|error| format!("the server does not listen: {error}"))?;
        Ok(life)
    }

    /// What it is for.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Its first worker slot, and how many it has: one per thread.
    #[must_use]
    pub fn worker_slots(&self) -> (usize, usize) {
        (self.worker_slot, self.worker_slots)
    }

    /// Says that the application is loaded.
    ///
    /// # Errors
    /// The server does not listen.
    pub fn loaded(&self) -> io::Result<()> {
        self.say(b'R', b"")
    }

    /// Says that each thread of this worker has but one request at a time, however many it may hold.
    pub fn single(&self) {
        // A server that is gone needs to know nothing.
        let _ = self.say(b'S', b"");
    }

    /// Says that a worker takes no more requests, and ends.
    pub fn leaving(&self) {
        // A copy that the application has forked does not speak for it.
        if signals::is_staying() {
            let _ = self.say(b'L', b"");
        }
    }

    /// Says why the application cannot be loaded. The process ends next.
    pub fn not_loaded(&self, text: &[u8]) {
        if signals::is_staying() {
            // If nobody listens, nobody wants to know.
            let _ = self.say(b'E', &text[..text.len().min(TEXT_BYTES_MAX)]);
        }
    }

    /// Says why a fork failed.
    pub fn not_forked(&self, text: &[u8]) {
        let _ = self.say(b'F', &text[..text.len().min(TEXT_BYTES_MAX)]);
    }

    fn say(&self, what: u8, text: &[u8]) -> io::Result<()> {
        let message = [IoSlice::new(std::slice::from_ref(&what)), IoSlice::new(text)];
        sendmsg(&self.control, &message, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for an order; `None` where a signal came first.
    pub fn order(&self) -> Option<ServerOrder> {
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
        // The word "fork" is the one that is no number.
        let birth = (number().is_none() && len > 0).then(|| {
            let (worker_slot, worker_slots) = (number()?, number()?);
            let mut next = || descriptors.next();
            Some(Birth { worker_slot, worker_slots, control: next()?, output: next()?, errors: next()? })
        });
        Some(birth.flatten().map_or(ServerOrder::Leave, ServerOrder::Fork))
    }

    /// In a forked process whose parent, forked from the prototype, has left or is leaving: from here on it is a worker.
    ///
    /// # Errors
    /// Why it cannot be one.
    pub fn born(&mut self, birth: Birth) -> io::Result<()> {
        let Birth { worker_slot, worker_slots, control, output, errors } = birth;
        signals::stay_on();
        rustix::stdio::dup2_stdout(&output)?;
        rustix::stdio::dup2_stderr(&errors)?;
        *self = Life { role: Role::Worker, server: self.server, control, worker_slot, worker_slots };
        self.wait_for_adoption()?;
        self.end_with_the_server()?;
        self.say(b'B', b"")
    }

    /// The server takes in whoever of its descendants has lost his parent.
    fn wait_for_adoption(&self) -> io::Result<()> {
        let mut waited = Duration::ZERO;
        while getppid() != Some(self.server) {
            if waited >= ORPHANED_MAX {
                return Err(io::Error::other("the server does not take this worker in"));
            }
            std::thread::sleep(ORPHANED_LOOK);
            waited += ORPHANED_LOOK;
        }
        Ok(())
    }

    fn end_with_the_server(&self) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before that was said.
        match getppid() == Some(self.server) {
            true => Ok(()),
            false => Err(io::Error::other("the server is gone")),
        }
    }
}

/// Closes the channel's descriptors to the programs that the application may start.
fn close_to_programs() {
    let numbers = ring::abi::channel_name().unwrap_or_default();
    for number in numbers.split([';', ',']).filter_map(|number| number.parse::<RawFd>().ok()) {
        if number > 2 {
            // SAFETY: borrowed for this call; a number that is not open is its error, and attaching reports it.
            let _ = fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC);
        }
    }
}

impl AsFd for Life {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

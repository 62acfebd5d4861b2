//! One process: how it is started, what it says, how it ends.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitStatus, pidfd_open, pidfd_send_signal,
    waitid,
};

use crate::generation::Generation;
use crate::launch::spawn;
use crate::launcher::{Launch, Launcher};
use crate::log::Lines;
use crate::options::Options;
use crate::process::Usage;

/// Longest message of a process; an application's error beyond that is cut by its sender.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// The last output of a process that is kept to explain its end.
const LAST_BYTES_MAX: usize = 8 * 1024;

/// What a process says on its control socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// It exists; the kernel vouches for its id.
    Born(Pid),
    /// The application is loaded.
    Ready,
    /// It cannot be loaded: its own words.
    NotLoaded(String),
    /// The prototype could not fork.
    NotForked(String),
    /// It closed the socket: it is gone, or was never there.
    Gone,
}

/// A process's own ends of its control socket and its output.
pub(crate) struct Theirs {
    control: OwnedFd,
    output: OwnedFd,
}

/// A process, as far as it is known.
pub(crate) struct Child {
    pub(crate) pid: Option<Pid>,
    /// There once the id is known.
    pub(crate) pidfd: Option<Arc<OwnedFd>>,
    control: OwnedFd,
    output: OwnedFd,
    /// Nothing more comes from these: the process has closed them, which it may do long before its end.
    control_over: bool,
    output_over: bool,
    /// How it ended, where that was learned otherwise than by asking for it.
    pub(crate) status: Option<WaitStatus>,
    lines: Lines,
    last: Vec<u8>,
    /// The process that has started it, if it was not this one.
    pub(crate) launcher: Option<Arc<dyn Launcher>>,
}

impl Child {
    /// The server's side of a process that is to be.
    pub(crate) fn conceive() -> io::Result<(Child, Theirs)> {
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&control, true)?;
        rustix::net::sockopt::set_socket_passcred(&control, true)?;
        let (output, output_theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&output, true)?;
        let child = Child {
            pid: None,
            pidfd: None,
            control,
            output,
            control_over: false,
            output_over: false,
            status: None,
            lines: Lines::default(),
            last: Vec::new(),
            launcher: None,
        };
        Ok((child, Theirs { control: theirs, output: output_theirs }))
    }

    /// Starts the application's program: as the prototype, or as the worker of some seats.
    pub(crate) fn start(
        options: &Options,
        generation: &Generation,
        seats: Option<std::ops::Range<usize>>,
    ) -> io::Result<Child> {
        let (mut child, theirs) = Child::conceive()?;
        child.launcher = options.launcher.clone();
        let launch = Launch::new(seats, &generation.channel, theirs.control.as_fd(), theirs.output.as_fd());
        match &child.launcher {
            Some(launcher) => {
                let (pid, pidfd) = launcher.start(&options.name, &launch)?;
                (child.pid, child.pidfd) = (Some(pid), Some(Arc::new(pidfd)));
            }
            None => child.adopt(spawn(options, &launch)?)?,
        }
        Ok(child)
    }

    /// The process has an id.
    pub(crate) fn adopt(&mut self, pid: Pid) -> io::Result<()> {
        if self.pid != Some(pid) {
            self.pidfd = Some(Arc::new(pidfd_open(pid, PidfdFlags::empty())?));
            self.pid = Some(pid);
        }
        Ok(())
    }

    /// Asks a prototype to fork a worker that takes these seats, with the ends that another [`Child`] was conceived with.
    pub(crate) fn ask_to_fork(&self, seats: std::ops::Range<usize>, theirs: &Theirs) -> io::Result<()> {
        let order = format!("fork {} {}", seats.start, seats.len());
        let descriptors = [theirs.control.as_fd(), theirs.output.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&self.control, &[IoSlice::new(order.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// What may have something to say; a pipe or socket that is over would say so again and again.
    pub(crate) fn voices(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let control = (!self.control_over).then(|| self.control.as_fd());
        control.into_iter().chain((!self.output_over).then(|| self.output.as_fd()))
    }

    /// The next thing it has said, if it has.
    pub(crate) fn hear(&mut self) -> Option<Word> {
        let mut text = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.control, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::DONTWAIT);
        let len = match received {
            Ok(received) if received.bytes > 0 => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Ok(_) | Err(_) => {
                self.control_over = true;
                return Some(Word::Gone);
            }
        };
        let sender = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid),
            _ => None,
        });
        let rest = String::from_utf8_lossy(&text[1..len]).trim_end().to_owned();
        match (text[0], sender) {
            (b'B', Some(pid)) => Some(Word::Born(pid)),
            (b'R', _) => Some(Word::Ready),
            (b'E', _) => Some(Word::NotLoaded(rest)),
            (b'F', _) => Some(Word::NotForked(rest)),
            // Not of this protocol. What comes after it is heard at the next look.
            _ => None,
        }
    }

    /// Reads its output.
    pub(crate) fn read_output(&mut self, mut each: impl FnMut(&[u8])) {
        let mut bytes = [0; 16 * 1024];
        // Not for ever: others have something to say too.
        for _ in 0..16 {
            match rustix::io::read(&self.output, &mut bytes) {
                Ok(0) => {
                    self.lines.finish(&mut each);
                    self.output_over = true;
                    return;
                }
                Ok(len) => {
                    self.last.extend_from_slice(&bytes[..len]);
                    let excess = self.last.len().saturating_sub(LAST_BYTES_MAX);
                    self.last.drain(..excess);
                    self.lines.feed(&bytes[..len], &mut each);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.output_over = true;
                    return;
                }
            }
        }
    }

    /// The last it has said on its output.
    pub(crate) fn last_output(&self) -> String {
        String::from_utf8_lossy(&self.last).trim().to_owned()
    }

    /// What it costs, as far as that is known.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let pid = self.pid?.as_raw_pid() as u32;
        match &self.launcher {
            Some(launcher) => launcher.usage(pid),
            None => Usage::of(pid),
        }
    }

    /// Sends a signal, if it is known whom to.
    pub(crate) fn signal(&self, signal: Signal) {
        if let (Some(pidfd), Some(launcher)) = (&self.pidfd, &self.launcher) {
            launcher.signal(pidfd.as_fd(), signal);
        } else if let Some(pidfd) = &self.pidfd {
            // Only a process that is gone already cannot be signalled.
            let _ = pidfd_send_signal(pidfd, signal);
        }
    }

    /// How it ended, once it has: true where it left by itself, and words for the log.
    pub(crate) fn end(&self) -> (bool, String) {
        let ended = |code: Option<i32>, signal: Option<i32>| match (code, signal) {
            (Some(0), _) => (true, "left".into()),
            (Some(code), _) => (false, format!("ended with status {code}")),
            (_, Some(signal)) => (false, format!("was killed by signal {signal}")),
            (None, None) => (false, "is gone".into()),
        };
        if let Some(status) = self.status {
            return ended(status.exit_status(), status.terminating_signal());
        }
        if let (Some(pid), Some(launcher)) = (self.pid, &self.launcher) {
            return match launcher.end(pid) {
                Some(Ok(code)) => ended(Some(code), None),
                Some(Err(signal)) => ended(None, Some(signal)),
                None => ended(None, None),
            };
        }
        let status = match &self.pidfd {
            Some(pidfd) => {
                waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
                    .ok()
                    .flatten()
            }
            None => None,
        };
        ended(
            status.as_ref().and_then(WaitIdStatus::exit_status),
            status.as_ref().and_then(WaitIdStatus::terminating_signal),
        )
    }
}

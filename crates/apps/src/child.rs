//! A process: its start, its messages and its end.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown,
    socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitStatus, pidfd_open, pidfd_send_signal,
    waitid,
};

use crate::generation::Generation;
use crate::launch::spawn;
use crate::launcher::{Launch, Launcher};
use crate::log::OutputLines;
use crate::options::Options;
use crate::process::Usage;

/// Longest message of a process; the sender truncates longer error texts.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a process's last output that are kept to explain its end.
const LAST_BYTES_MAX: usize = 8 * 1024;

/// A message from a process on its control socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ControlMessage {
    /// The process exists; its id comes from the kernel (`SCM_CREDENTIALS`).
    Created(Pid),
    /// The application is loaded.
    Ready,
    /// Each thread of the process handles one request at a time.
    OneRequestPerThread,
    /// The process accepts no more requests, and ends.
    Leaving,
    /// The application cannot be loaded; its error text.
    NotLoaded(String),
    /// The prototype could not fork.
    NotForked(String),
    /// The process closed the socket: it has ended, or never started.
    Closed,
}

/// The child's ends of its control socket and its output pipes.
pub(crate) struct ChildEndpoints {
    control: OwnedFd,
    output: OwnedFd,
    errors: OwnedFd,
}

/// Standard output or standard error of a process. Each has a pipe of its own, because one may stop in the
/// middle of a line.
struct ProcessOutput {
    pipe: OwnedFd,
    /// Whether the process has closed the pipe, possibly long before it ends.
    is_closed: bool,
    lines: OutputLines,
}

impl ProcessOutput {
    fn new() -> io::Result<(ProcessOutput, OwnedFd)> {
        let (pipe, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok((ProcessOutput { pipe, is_closed: false, lines: OutputLines::default() }, theirs))
    }

    /// Reads the pipe and logs its lines. `last` holds the last bytes of both streams.
    fn read(&mut self, now: Instant, last: &mut Vec<u8>, each: &mut impl FnMut(&[u8])) {
        let mut bytes = [0; 16 * 1024];
        // Limit the reads per turn: other processes have output too.
        for _ in 0..16 {
            match rustix::io::read(&self.pipe, &mut bytes) {
                Ok(len) if len > 0 => {
                    last.extend_from_slice(&bytes[..len]);
                    let excess = last.len().saturating_sub(LAST_BYTES_MAX);
                    last.drain(..excess);
                    self.lines.feed(&bytes[..len], now, &mut *each);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) => {
                    self.is_closed = true;
                    break;
                }
            }
        }
        if self.is_closed || self.lines.deadline().is_some_and(|due| due <= now) {
            self.lines.finish(each);
        }
    }
}

/// The way in which a process ended.
pub(crate) struct ProcessEnd {
    /// Exited with status 0.
    pub(crate) is_success: bool,
    /// Called `exit` with any status; it was not ended by a signal.
    pub(crate) called_exit: bool,
    /// Description for the log.
    pub(crate) description: String,
}

/// A process of the application.
pub(crate) struct ChildProcess {
    pub(crate) pid: Option<Pid>,
    /// Set once the process id is known.
    pub(crate) pidfd: Option<Arc<OwnedFd>>,
    control: OwnedFd,
    /// Whether the control socket is closed.
    is_control_closed: bool,
    outputs: Box<[ProcessOutput; 2]>,
    /// Exit status, if another `wait` call has already collected it.
    pub(crate) status: Option<WaitStatus>,
    last_output: Vec<u8>,
    /// The launcher that started it, if it was not this process.
    pub(crate) launcher: Option<Arc<dyn Launcher>>,
}

impl ChildProcess {
    /// Creates the server's side of a process that has not started yet.
    pub(crate) fn prepare() -> io::Result<(ChildProcess, ChildEndpoints)> {
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&control, true)?;
        rustix::net::sockopt::set_socket_passcred(&control, true)?;
        let (output, output_theirs) = ProcessOutput::new()?;
        let (errors, errors_theirs) = ProcessOutput::new()?;
        let child = ChildProcess {
            pid: None,
            pidfd: None,
            control,
            is_control_closed: false,
            outputs: Box::new([output, errors]),
            status: None,
            last_output: Vec::new(),
            launcher: None,
        };
        Ok((child, ChildEndpoints { control: theirs, output: output_theirs, errors: errors_theirs }))
    }

    /// Starts the application's program as the prototype, or as the worker of these slots.
    pub(crate) fn start(
        options: &Options,
        generation: &Generation,
        worker_slots: Option<std::ops::Range<usize>>,
    ) -> io::Result<ChildProcess> {
        let (mut child, theirs) = ChildProcess::prepare()?;
        child.launcher = options.launcher.clone();
        let launch = Launch::new(
            worker_slots,
            &generation.channel,
            theirs.control.as_fd(),
            theirs.output.as_fd(),
            theirs.errors.as_fd(),
        );
        match &child.launcher {
            Some(launcher) => {
                let (pid, pidfd) = launcher.start(&launch)?;
                (child.pid, child.pidfd) = (Some(pid), Some(Arc::new(pidfd)));
            }
            None => child.set_pid(spawn(options, &launch)?)?,
        }
        Ok(child)
    }

    /// Sets the process id.
    pub(crate) fn set_pid(&mut self, pid: Pid) -> io::Result<()> {
        if self.pid != Some(pid) {
            self.pidfd = Some(Arc::new(pidfd_open(pid, PidfdFlags::empty())?));
            self.pid = Some(pid);
        }
        Ok(())
    }

    /// Asks a prototype to fork a worker for these slots. `theirs` are the ends of the new worker's
    /// [`ChildProcess`].
    pub(crate) fn ask_to_fork(
        &self,
        worker_slots: std::ops::Range<usize>,
        endpoints: &ChildEndpoints,
    ) -> io::Result<()> {
        let order = format!("fork {} {}", worker_slots.start, worker_slots.len());
        let descriptors = [endpoints.control.as_fd(), endpoints.output.as_fd(), endpoints.errors.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&self.control, &[IoSlice::new(order.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Descriptors to poll. Closed pipes and sockets are left out, because they would stay readable.
    pub(crate) fn poll_descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let control = (!self.is_control_closed).then(|| self.control.as_fd());
        let outputs = self.outputs.iter().filter(|output| !output.is_closed);
        control.into_iter().chain(outputs.map(|output| output.pipe.as_fd()))
    }

    /// Returns the next message, if there is one.
    pub(crate) fn next_message(&mut self) -> Option<ControlMessage> {
        let mut text = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.control, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::DONTWAIT);
        let len = match received {
            Ok(received) if received.bytes > 0 => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Ok(_) | Err(_) => {
                self.is_control_closed = true;
                return Some(ControlMessage::Closed);
            }
        };
        let sender = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid),
            _ => None,
        });
        let rest = String::from_utf8_lossy(&text[1..len]).trim_end().to_owned();
        match (text[0], sender) {
            (b'B', Some(pid)) => Some(ControlMessage::Created(pid)),
            (b'R', _) => Some(ControlMessage::Ready),
            (b'S', _) => Some(ControlMessage::OneRequestPerThread),
            (b'L', _) => Some(ControlMessage::Leaving),
            (b'E', _) => Some(ControlMessage::NotLoaded(rest)),
            (b'F', _) => Some(ControlMessage::NotForked(rest)),
            // Unknown messages are ignored; the next read returns the message after it.
            _ => None,
        }
    }

    /// Reads the output. A line that stays incomplete for too long is logged as it is.
    pub(crate) fn read_output(&mut self, now: Instant, mut on_line: impl FnMut(&[u8])) {
        for output in self.outputs.iter_mut().filter(|output| !output.is_closed) {
            output.read(now, &mut self.last_output, &mut on_line);
        }
    }

    /// The time at which an incomplete line is logged.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.outputs.iter().filter_map(|output| output.lines.deadline()).min()
    }

    /// Asks a prototype to leave, by closing its control socket.
    pub(crate) fn ask_to_leave(&self) {
        // Fails only if the process has ended.
        let _ = shutdown(&self.control, Shutdown::Write);
    }

    /// The last lines of its output.
    pub(crate) fn last_output(&self) -> String {
        String::from_utf8_lossy(&self.last_output).trim().to_owned()
    }

    /// Resource usage of the process, if known.
    pub(crate) fn usage(&self) -> Option<Usage> {
        match &self.launcher {
            Some(launcher) => launcher.usage(self.pidfd.as_ref()?.as_fd()),
            None => Usage::of(self.pid?.as_raw_pid().cast_unsigned()),
        }
    }

    /// Sends a signal, if the process id is known.
    pub(crate) fn signal(&self, signal: Signal) {
        if let (Some(pidfd), Some(launcher)) = (&self.pidfd, &self.launcher) {
            launcher.signal(pidfd.as_fd(), signal);
        } else if let Some(pidfd) = &self.pidfd {
            // Fails only if the process has ended.
            let _ = pidfd_send_signal(pidfd, signal);
        }
    }

    /// Returns how the process ended, once it has.
    pub(crate) fn process_end(&self) -> ProcessEnd {
        let ended = |code: Option<i32>, signal: Option<i32>| {
            let how = match (code, signal) {
                (Some(0), _) => "left".into(),
                (Some(code), _) => format!("ended with status {code}"),
                (_, Some(signal)) => format!("was killed by signal {signal}"),
                (None, None) => "is gone".into(),
            };
            ProcessEnd { is_success: code == Some(0), called_exit: code.is_some(), description: how }
        };
        if let Some(status) = self.status {
            return ended(status.exit_status(), status.terminating_signal());
        }
        if let (Some(pid), Some(launcher)) = (self.pid, &self.launcher) {
            return match launcher.exit_status(pid) {
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

//! Queues between the supervisor and the cores. Sending never blocks.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use rustix::event::{EventfdFlags, eventfd};
use times::Millis;

use crate::generation::Generation;
use crate::load_results::LoadError;
use crate::options::Options;

/// The reason why a worker is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillReason {
    /// The response took too long.
    TimedOut,
    /// The response took too long, and the worker's event loop does not release the request.
    Unreleased,
    /// The worker violated the channel's protocol.
    ProtocolViolation,
}

impl KillReason {
    pub(crate) fn text(self) -> &'static str {
        match self {
            KillReason::TimedOut => "it took too long to answer",
            KillReason::Unreleased => "it took too long to answer, and does not release the request",
            KillReason::ProtocolViolation => "it violated the protocol of the channel",
        }
    }
}

/// Commands to the supervisor.
#[derive(Debug)]
pub(crate) enum SupervisorCommand {
    /// Load the application again, with other options if given; the new generation takes over when it is
    /// ready.
    Reload(Option<Box<Options>>),
    /// End all processes.
    Stop,
    /// Report the processes.
    Snapshot,
    /// Report the result of the current load.
    AwaitLoad(SyncSender<Result<(), LoadError>>),
    /// Requests wait for a worker.
    RequestsWaiting,
    /// The worker in this slot hangs, or violated the protocol of the channel.
    Kill { generation: u64, worker_slot: usize, reason: KillReason },
    /// The number of overdue requests, which the event loop in this slot was asked to cancel, changes by `more`.
    Overdue { generation: u64, worker_slot: usize, change: isize },
    /// The event loop in this slot has an overdue request, and the core that watched it ends: the worker is
    /// killed after this time.
    OverdueUntil { generation: u64, worker_slot: usize, left: Millis },
    /// The channel of this generation was damaged by an unknown worker.
    Damaged { generation: u64 },
    /// The worker in this slot has answered `recycle.requests` requests.
    Recycle { generation: u64, worker_slot: usize },
    /// A core has released the requests of a dead worker.
    Released { generation: u64, place: usize },
    /// A core has handled [`CoreEvent::Serve`] of this generation.
    Switched { generation: u64 },
    /// A core has no more requests in a generation that was replaced.
    Drained { generation: u64 },
}

/// The supervisor's queue.
pub(crate) struct CommandQueue {
    commands: Mutex<Vec<SupervisorCommand>>,
    eventfd: OwnedFd,
}

impl CommandQueue {
    pub(crate) fn new() -> io::Result<CommandQueue> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(CommandQueue { commands: Mutex::default(), eventfd: bell })
    }

    pub(crate) fn send(&self, command: SupervisorCommand) {
        lock(&self.commands).push(command);
        // If the counter is full, the supervisor has been woken already.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) -> Vec<SupervisorCommand> {
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        std::mem::take(&mut lock(&self.commands))
    }

    pub(crate) fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// Events for a core.
#[derive(Clone)]
pub(crate) enum CoreEvent {
    /// A new generation serves; the previous one finishes its requests.
    Serve(Arc<Generation>),
    /// The application cannot be loaded: the error text, and whether clients may see it. No generation serves
    /// until the next [`CoreEvent::Serve`].
    LoadFailed { error_text: Arc<str>, is_shown: bool },
    /// The channel of this generation is damaged: requests that wait in it must move.
    Damaged { generation: u64 },
    /// A worker died: its place and slots, and whether it ended by itself.
    WorkerDied { generation: u64, place: usize, worker_slots: Range<usize>, called_exit: bool },
}

/// A core's queue.
#[derive(Default)]
pub(crate) struct EventQueue {
    state: Mutex<EventList>,
}

#[derive(Default)]
struct EventList {
    events: Vec<CoreEvent>,
    waker: Option<Waker>,
    /// Whether the core reads its events.
    is_open: bool,
}

impl EventQueue {
    /// Marks the queue as read by its core.
    pub(crate) fn open(&self) {
        lock(&self.state).is_open = true;
    }

    /// Sends an event; returns whether the core handles it. Until the core reads its events, only the current
    /// generation is kept for it, because earlier events do not concern it.
    pub(crate) fn send(&self, event: CoreEvent) -> bool {
        let mut state = lock(&self.state);
        if !state.is_open {
            match event {
                CoreEvent::Serve(_) => state.events.clear(),
                CoreEvent::LoadFailed { .. } => {
                    state.events.retain(|other| !matches!(other, CoreEvent::LoadFailed { .. }))
                }
                CoreEvent::WorkerDied { .. } | CoreEvent::Damaged { .. } => return false,
            }
            state.events.push(event);
            return false;
        }
        state.events.push(event);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Takes all events; if there are none, the task is woken by the next one.
    pub(crate) fn take(&self, context: &Context<'_>) -> Vec<CoreEvent> {
        let mut state = lock(&self.state);
        if state.events.is_empty() {
            state.waker = Some(context.waker().clone());
        }
        std::mem::take(&mut state.events)
    }
}

/// Locks a mutex. Poisoning is ignored: no code panics while it holds the lock, so the value is always
/// consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

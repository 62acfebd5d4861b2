//! How the supervisor and the cores speak: nobody waits for an answer.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use rustix::event::{EventfdFlags, eventfd};

use crate::generation::Generation;
use crate::options::Options;
use crate::outcome::Failure;

/// Why a worker is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillReason {
    /// It took too long to answer.
    Late,
    /// The same, and its event loop does not let go of the request.
    Clings,
    /// It broke the rules of the channel.
    Breach,
}

impl KillReason {
    pub(crate) fn text(self) -> &'static str {
        match self {
            KillReason::Late => "it took too long to answer",
            KillReason::Clings => "it took too long to answer, and does not let go",
            KillReason::Breach => "it broke the rules of the channel",
        }
    }
}

/// What the supervisor is told.
#[derive(Debug)]
pub(crate) enum SupervisorCommand {
    /// Load the application anew, with other options if there are some; the new generation takes over when it is ready.
    Reload(Option<Box<Options>>),
    /// End all processes.
    Stop,
    /// Somebody asked for the processes.
    Look,
    /// Tell what becomes of the load that is under way.
    Tell(SyncSender<Result<(), Failure>>),
    /// Requests wait for a worker.
    Need,
    /// The holder of this seat is stuck, or broke the channel's rules.
    Kill { generation: u64, worker_slot: usize, why: KillReason },
    /// The event loop at this seat holds so many requests more (or fewer) that took too long and that it was told of.
    Clings { generation: u64, worker_slot: usize, more: isize },
    /// It holds one, and the core that would see it let go is at its end: it may live for so long.
    ClingsUntil { generation: u64, worker_slot: usize, left_ms: u64 },
    /// The channel of this generation is damaged, and nobody can tell by whom.
    Damaged { generation: u64 },
    /// The holder of this seat has answered its share of requests.
    Recycle { generation: u64, worker_slot: usize },
    /// A core has settled a worker's death.
    Buried { generation: u64, place: usize },
    /// A core has no more requests under way in a generation that was replaced.
    Drained { generation: u64 },
}

/// The supervisor's mailbox.
pub(crate) struct CommandQueue {
    orders: Mutex<Vec<SupervisorCommand>>,
    bell: OwnedFd,
}

impl CommandQueue {
    pub(crate) fn new() -> io::Result<CommandQueue> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(CommandQueue { orders: Mutex::default(), bell })
    }

    pub(crate) fn send(&self, order: SupervisorCommand) {
        lock(&self.orders).push(order);
        // A full counter has rung already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) -> Vec<SupervisorCommand> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut lock(&self.orders))
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// What a core is told.
#[derive(Clone)]
pub(crate) enum CoreEvent {
    /// This generation serves from now on; the one before finishes what it has.
    Serve(Arc<Generation>),
    /// The application does not load: its own words, and whether clients may see them. Nothing serves until the next
    /// [`CoreEvent::Serve`].
    Down { why: Arc<str>, show: bool },
    /// The channel of this generation is damaged: what waits in it is to wait elsewhere.
    Damaged { generation: u64 },
    /// A worker is dead: its place and seats, and whether it has ended by itself.
    Died { generation: u64, place: usize, worker_slots: Range<usize>, by_itself: bool },
}

/// A core's mailbox.
#[derive(Default)]
pub(crate) struct EventQueue {
    state: Mutex<EventList>,
}

#[derive(Default)]
struct EventList {
    notices: Vec<CoreEvent>,
    waker: Option<Waker>,
    /// Whether the core has begun to read.
    is_open: bool,
}

impl EventQueue {
    /// The core reads from now on.
    pub(crate) fn open(&self) {
        lock(&self.state).is_open = true;
    }

    /// Whether the core will heed it. One that has not begun to read may never; should it, what serves then is all that
    /// it has to know, and it has no part in what was before.
    pub(crate) fn send(&self, notice: CoreEvent) -> bool {
        let mut state = lock(&self.state);
        if !state.is_open {
            match notice {
                CoreEvent::Serve(_) => state.notices.clear(),
                CoreEvent::Down { .. } => {
                    state.notices.retain(|other| !matches!(other, CoreEvent::Down { .. }))
                }
                CoreEvent::Died { .. } | CoreEvent::Damaged { .. } => return false,
            }
            state.notices.push(notice);
            return false;
        }
        state.notices.push(notice);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// What has come; if nothing has, the task is woken when something does.
    pub(crate) fn take(&self, context: &Context<'_>) -> Vec<CoreEvent> {
        let mut state = lock(&self.state);
        if state.notices.is_empty() {
            state.waker = Some(context.waker().clone());
        }
        std::mem::take(&mut state.notices)
    }
}

/// Nobody panics while it is held, and what it holds is always whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

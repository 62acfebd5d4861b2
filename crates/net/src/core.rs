//! The single-threaded engine: reactor, executor and timers.
//!
//! Guarantees of the executor: a task runs only on its core's thread; it is polled again after each event
//! that it waits for, and sometimes spuriously, which every future must tolerate; all waits honour the waker
//! of their `Context`. If that is the task's own waker, as with plain `await`, `join!` and `select!`, waits
//! store the task's number and clone no waker; wakers of combinators (`FuturesUnordered`) are stored.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustix::event::epoll;
use times::Moment;

use crate::clock::Clock;
use crate::in_place::pin_in_place;
use crate::memory::{Memory, MemoryBudget};
use crate::offload::{BlockingKind, OffloadPool, OffloadPools};
use crate::remote::{Remote, SlotWaker};
use crate::source::{EXTERNAL_WAKER, GONE, HALF_CLOSED, NO_TASK, READ, Source, SourceWaiters, WRITE};
use crate::turn_hook::{TaskId, TurnHook, TurnHooks};

mod pause;
mod turn;

pub(crate) use pause::SourceTimer;

const REMOTE_TOKEN: u64 = u64::MAX;
/// The token of a [`TurnHook`]'s eventfd, which only wakes the core and need not be read.
const TURN_HOOK_TOKEN: u64 = u64::MAX - 1;

/// A future that a core runs. Its output replaces it: a parked task, or nothing.
pub(crate) type TaskFuture = Pin<Box<dyn Future<Output = Option<Box<dyn IdleTask>>>>>;

/// A task that waits for one source and needs no future meanwhile: an idle connection.
pub(crate) trait IdleTask {
    /// Returns the future that continues the task. Called when bytes have arrived.
    fn resume(self: Box<Self>) -> TaskFuture;
    /// Time since which the task is idle; `None` if it must not be closed.
    fn idle_since(&self) -> Option<Moment>;

    /// Closes the connection of a parked task.
    fn close(self: Box<Self>) {}
    /// Whether memory is charged for the task although it is idle.
    fn holds_memory(&self) -> bool {
        false
    }
}

/// The pollable part of a task.
enum TaskBody {
    /// A future that may park the task.
    MayPark(TaskFuture),
    /// A future that only ends. Not wrapped into the other variant: the wrapper would hold it twice.
    RunsToEnd(Pin<Box<dyn Future<Output = ()>>>),
}

impl TaskBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Box<dyn IdleTask>>> {
        match self {
            TaskBody::MayPark(future) => future.as_mut().poll(cx),
            TaskBody::RunsToEnd(future) => future.as_mut().poll(cx).map(|()| None),
        }
    }
}

enum Task {
    Vacant,
    /// The future is being polled; true if the task was woken during the poll.
    Polled(bool),
    Future(TaskBody),
    Idle(Box<dyn IdleTask>),
}

/// The waiter of a timer.
enum TimerWaiter {
    Task(u32),
    External(Waker),
    /// The token of a source and the bits to set in it.
    Source(u64, u8),
}

struct SourceSlot {
    generation: u32,
    source: Option<Rc<Source>>,
}

struct CoreState {
    clock: Clock,
    pools: OffloadPools,
    remote: Arc<Remote>,
    sources: RefCell<Vec<SourceSlot>>,
    free_sources: RefCell<Vec<u32>>,
    tasks: RefCell<Vec<Task>>,
    free_tasks: RefCell<Vec<u32>>,
    /// Number of tasks with a future; parked tasks do not count.
    running: Cell<usize>,
    /// Wakers by task; `None` while a waker is lent to the poll of its task.
    wakers: RefCell<Vec<Option<Waker>>>,
    ready: RefCell<VecDeque<u32>>,
    /// Tasks that have yielded, and run again in the next turn.
    yielding: RefCell<VecDeque<u32>>,
    /// Tasks that wait for a long turn, and the number of long turns given so far.
    long_turn_queue: RefCell<VecDeque<u32>>,
    long_turns: Cell<u64>,
    /// Waiters by (time, unique number). Dropping a sleep removes its timer.
    timers: RefCell<BTreeMap<(Moment, u64), TimerWaiter>>,
    timers_armed: Cell<u64>,
    current: Cell<u32>,
    /// Data pointer of the current task's own waker, used to recognize it.
    own_waker: Cell<*const ()>,
    /// Wakers of combinators, by source token and whether they wait to write, until the source is ready.
    external_wakers: RefCell<BTreeMap<(u64, bool), Waker>>,
    swept_at: Cell<Moment>,
    panics: Cell<u64>,
    memory: Rc<Memory>,
    is_draining: Cell<bool>,
    turn_hooks: TurnHooks,
}

/// A handle to the engine of this thread. Cheap to clone.
#[derive(Clone)]
pub struct Core(Rc<CoreState>);

impl Core {
    /// Creates an engine with its own epoll instance. Blocking calls run on `pools`.
    ///
    /// # Errors
    /// Fails if the kernel provides no descriptor.
    pub fn new(clock: Clock, pools: OffloadPools) -> io::Result<Core> {
        Core::with_budget(clock, pools, MemoryBudget::default())
    }

    /// Like [`Core::new`], but memory is charged to `budget`.
    ///
    /// # Errors
    /// See [`Core::new`].
    pub(crate) fn with_budget(clock: Clock, pools: OffloadPools, budget: MemoryBudget) -> io::Result<Core> {
        let remote = Arc::new(Remote::new()?);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(remote.epoll(), remote.eventfd(), epoll::EventData::new_u64(REMOTE_TOKEN), flags)?;
        Ok(Core(Rc::new(CoreState {
            swept_at: Cell::new(clock.now()),
            clock,
            pools,
            remote,
            sources: RefCell::default(),
            free_sources: RefCell::default(),
            tasks: RefCell::default(),
            free_tasks: RefCell::default(),
            running: Cell::new(0),
            wakers: RefCell::default(),
            ready: RefCell::default(),
            yielding: RefCell::default(),
            long_turn_queue: RefCell::default(),
            long_turns: Cell::new(0),
            timers: RefCell::default(),
            timers_armed: Cell::new(0),
            current: Cell::new(NO_TASK),
            own_waker: Cell::new(std::ptr::null()),
            external_wakers: RefCell::default(),
            panics: Cell::new(0),
            memory: Rc::new(Memory::new(budget)),
            is_draining: Cell::new(false),
            turn_hooks: TurnHooks::default(),
        })))
    }

    /// Returns the clock, which is updated once each tick.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// See [`Clock::now`].
    #[must_use]
    pub fn now(&self) -> Moment {
        self.0.clock.now()
    }

    /// See [`Clock::now_us`].
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.0.clock.now_us()
    }

    /// Whether the server is stopping, so that responses without an end (tunnels, event streams) must end.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.is_draining.get()
    }

    /// Marks the server as stopping.
    pub(crate) fn drain(&self) {
        self.0.is_draining.set(true);
    }

    /// See [`Clock::unix_s`].
    #[must_use]
    pub fn unix_s(&self) -> u64 {
        self.0.clock.unix_s()
    }

    /// Returns the memory accounting of this core.
    #[must_use]
    pub fn memory(&self) -> &Rc<Memory> {
        &self.0.memory
    }

    /// Returns the handle that wakes this core from another thread.
    pub(crate) fn remote(&self) -> Arc<Remote> {
        self.0.remote.clone()
    }

    /// Whether `remote` belongs to this core.
    pub(crate) fn owns_remote(&self, remote: &Arc<Remote>) -> bool {
        Arc::ptr_eq(&self.0.remote, remote)
    }

    /// Returns the number of tasks that have panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.0.panics.get()
    }

    /// Counts a caught panic of a task.
    pub(crate) fn count_panic(&self) {
        self.0.panics.set(self.0.panics.get() + 1);
    }

    /// Returns the number of tasks with a future; parked tasks do not count.
    pub(crate) fn running(&self) -> usize {
        self.0.running.get()
    }

    /// Runs `future` as a task of this core.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.spawn_boxed(Box::pin(future));
    }

    /// Like [`Core::spawn`], but constructs the future directly in its heap allocation.
    pub(crate) fn spawn_in_place<F: Future<Output = ()> + 'static>(&self, make: impl FnOnce() -> F) {
        self.spawn_boxed(pin_in_place(make));
    }

    pub(crate) fn spawn_boxed(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        let task = self.add_running(future);
        self.0.ready.borrow_mut().push_back(task);
    }

    /// Like [`Core::spawn_in_place`], but polls the future at once, within the poll of the current task. A future that
    /// ends in it leaves its memory to the next one while that is in the processor's cache.
    pub(crate) fn start_in_place<F: Future<Output = ()> + 'static>(&self, make: impl FnOnce() -> F) {
        let task = self.add_running(pin_in_place(make));
        self.poll_task(task);
    }

    /// Runs a task that may park, at once.
    pub(crate) fn start(&self, future: TaskFuture) {
        self.0.running.set(self.0.running.get() + 1);
        let task = self.add_task(Task::Future(TaskBody::MayPark(future)));
        self.poll_task(task);
    }

    fn add_running(&self, future: Pin<Box<dyn Future<Output = ()>>>) -> u32 {
        self.0.running.set(self.0.running.get() + 1);
        self.add_task(Task::Future(TaskBody::RunsToEnd(future)))
    }

    /// Parks `parked` until `source` is ready.
    pub(crate) fn park(&self, source: &Source, parked: Box<dyn IdleTask>) {
        let task = self.add_task(Task::Idle(parked));
        source.reader.set(task);
        if source.ready.get() & READ != 0 {
            self.wake(task);
        }
    }

    fn add_task(&self, task: Task) -> u32 {
        let mut tasks = self.0.tasks.borrow_mut();
        if let Some(index) = self.0.free_tasks.borrow_mut().pop() {
            tasks[index as usize] = task;
            return index;
        }
        let index = u32::try_from(tasks.len()).expect("fewer tasks than descriptors");
        tasks.push(task);
        let waker = SlotWaker { remote: self.0.remote.clone(), task: index };
        self.0.wakers.borrow_mut().push(Some(Waker::from(Arc::new(waker))));
        index
    }

    /// Returns the threads for blocking calls of a kind.
    pub(crate) fn pool(&self, kind: BlockingKind) -> &OffloadPool {
        self.0.pools.of(kind)
    }

    /// Returns a function that wakes the current task from any thread.
    pub(crate) fn remote_waker(&self) -> impl FnOnce() + Send + 'static {
        let remote = self.remote();
        let task = self.0.current.get();
        move || remote.wake(task)
    }

    // ---- sources ----

    /// Registers a socket, edge-triggered, for all events.
    pub(crate) fn register(&self, fd: &impl AsFd) -> io::Result<Rc<Source>> {
        use epoll::EventFlags;
        self.register_for(fd, EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET)
    }

    /// Registers a UDP socket, edge-triggered, for what it receives: each packet that it has sent would be an
    /// event too.
    pub(crate) fn register_receiver(&self, fd: &impl AsFd) -> io::Result<Rc<Source>> {
        self.register_for(fd, epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    /// Reports also the room in a socket of [`Core::register_receiver`], or no longer.
    pub(crate) fn watch_room(&self, fd: &impl AsFd, source: &Source, is_wanted: bool) {
        use epoll::EventFlags;
        let room = if is_wanted { EventFlags::OUT } else { EventFlags::empty() };
        let flags = EventFlags::IN | EventFlags::ET | room;
        // Fails only for a descriptor that is not registered.
        let _ = epoll::modify(self.0.remote.epoll(), fd, epoll::EventData::new_u64(source.token), flags);
    }

    fn register_for(&self, fd: &impl AsFd, flags: epoll::EventFlags) -> io::Result<Rc<Source>> {
        let source = self.add_source();
        if let Err(error) =
            epoll::add(self.0.remote.epoll(), fd, epoll::EventData::new_u64(source.token), flags)
        {
            self.deregister(&source);
            return Err(error.into());
        }
        Ok(source)
    }

    /// Registers a listening socket, level-triggered and exclusive.
    pub(crate) fn watch_listener(&self, fd: &impl AsFd, source: &Source) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        Ok(epoll::add(self.0.remote.epoll(), fd, epoll::EventData::new_u64(source.token), flags)?)
    }

    pub(crate) fn unwatch(&self, fd: &impl AsFd) {
        // Fails only for a descriptor that is not registered.
        let _ = epoll::delete(self.0.remote.epoll(), fd);
    }

    /// Adds a source without a descriptor.
    pub(crate) fn add_source(&self) -> Rc<Source> {
        let mut sources = self.0.sources.borrow_mut();
        let index = self.0.free_sources.borrow_mut().pop().unwrap_or_else(|| {
            sources.push(SourceSlot { generation: 0, source: None });
            u32::try_from(sources.len() - 1).expect("fewer sources than descriptors")
        });
        let slot = &mut sources[index as usize];
        let source = Rc::new(Source::new(u64::from(slot.generation) << 32 | u64::from(index)));
        slot.source = Some(source.clone());
        source
    }

    /// Returns the source with this token, unless it was deregistered.
    pub(crate) fn source(&self, token: u64) -> Option<Rc<Source>> {
        match self.0.sources.borrow().get(token as u32 as usize) {
            Some(SourceSlot { source: Some(source), .. }) if source.token == token => Some(source.clone()),
            _ => None,
        }
    }

    /// Deregisters a source; pending events for it are dropped. The owner closes the descriptor.
    pub(crate) fn deregister(&self, source: &Source) {
        self.free_source(source.token);
    }

    fn free_source(&self, token: u64) {
        let index = token as u32;
        // Events of this tick may still name the slot; their generation is older, so they are ignored.
        if let Some(slot) = self.0.sources.borrow_mut().get_mut(index as usize)
            && slot.source.take_if(|source| source.token == token).is_some()
        {
            self.0.external_wakers.borrow_mut().retain(|(other, _), _| *other != token);
            slot.generation = (slot.generation + 1) & 0x7fff_ffff;
            self.0.free_sources.borrow_mut().push(index);
        }
    }

    /// Sets readiness and runs the tasks that wait for it.
    pub(crate) fn deliver(&self, token: u64, ready: u8) {
        let sources = self.0.sources.borrow();
        let Some(SourceSlot { source: Some(source), .. }) = sources.get(token as u32 as usize) else {
            return;
        };
        if source.token != token {
            return;
        }
        source.ready.set(source.ready.get() | ready);
        let waiters = source.waiters();
        drop(sources);
        self.run_waiters(waiters, ready);
    }

    /// Runs the reader and writer that wait for an event of `ready`; once if these are the same task.
    #[inline]
    fn run_waiters(&self, SourceWaiters { token, reader, writer }: SourceWaiters, ready: u8) {
        let reads = ready & (READ | HALF_CLOSED | GONE) != 0;
        let writes = ready & (WRITE | GONE) != 0;
        if reads {
            self.run_waiter(token, reader, false);
        }
        if writes && (writer == EXTERNAL_WAKER || !(reads && writer == reader)) {
            self.run_waiter(token, writer, true);
        }
    }

    fn run_waiter(&self, token: u64, task: u32, writes: bool) {
        if task != EXTERNAL_WAKER {
            // Most writable sources have no waiting writer.
            if task != NO_TASK {
                self.poll_task(task);
            }
            return;
        }
        let waker = self.0.external_wakers.borrow_mut().remove(&(token, writes));
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Registers the waker of `cx` to be woken when the source is readable.
    pub(crate) fn wait_read(&self, source: &Source, cx: &Context<'_>) {
        source.wait_read(self.register_waiter(source, cx, false));
    }

    /// Registers the waker of `cx` to be woken when the source is writable.
    pub(crate) fn wait_write(&self, source: &Source, cx: &Context<'_>) {
        source.wait_write(self.register_waiter(source, cx, true));
    }

    fn register_waiter(&self, source: &Source, cx: &Context<'_>, writes: bool) -> u32 {
        if self.is_own_waker(cx) {
            return self.current();
        }
        self.0.external_wakers.borrow_mut().insert((source.token, writes), cx.waker().clone());
        EXTERNAL_WAKER
    }

    /// Whether the waker of `cx` is that of the task being polled.
    fn is_own_waker(&self, cx: &Context<'_>) -> bool {
        std::ptr::eq(cx.waker().data(), self.0.own_waker.get())
    }

    // ---- ticks ----

    /// Calls `tick` around each wait, as long as another owner holds it.
    pub fn add_turn_hook(&self, tick: &Rc<dyn TurnHook>) {
        self.0.turn_hooks.add(tick);
    }

    /// Lets an eventfd that a [`TurnHook`] hands to others end the core's wait. The core never reads it.
    ///
    /// # Errors
    /// Fails if the kernel has no memory for the registration.
    pub fn watch_eventfd(&self, eventfd: &impl AsFd) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(self.0.remote.epoll(), eventfd, epoll::EventData::new_u64(TURN_HOOK_TOKEN), flags)?)
    }

    /// Reverts [`Core::watch_eventfd`]. Must be called before the eventfd is closed.
    pub fn unwatch_eventfd(&self, eventfd: &impl AsFd) {
        self.unwatch(eventfd);
    }

    /// Returns the running task, to wake it later. The caller must be polled with the task's own waker.
    #[must_use]
    pub fn current_task(&self) -> TaskId {
        TaskId(self.current())
    }

    /// Schedules a task of this core. If the task has ended, its slot may belong to a new task, which then
    /// gets a spurious wake-up; every task must tolerate these.
    pub fn wake_task(&self, TaskId(task): TaskId) {
        self.wake(task);
    }

    // ---- running ----

    /// Returns the task being polled.
    pub(crate) fn current(&self) -> u32 {
        self.0.current.get()
    }

    fn wake(&self, task: u32) {
        self.0.ready.borrow_mut().push_back(task);
    }

    /// Polls a task once, if it exists.
    fn poll_task(&self, task: u32) {
        let Some(mut future) = self.take_future(task) else { return };
        // The waker is taken and put back, because a clone would cost two atomic operations for each poll.
        let waker = self.0.wakers.borrow_mut()[task as usize].take();
        let waker = waker.expect("a task that is not being polled has its waker");
        let outer = (self.0.current.replace(task), self.0.own_waker.replace(waker.data()));
        let polled = catch_unwind(AssertUnwindSafe(|| future.poll(&mut Context::from_waker(&waker))));
        self.0.current.set(outer.0);
        self.0.own_waker.set(outer.1);
        self.0.wakers.borrow_mut()[task as usize] = Some(waker);
        let next = match polled {
            Ok(Poll::Pending) => Task::Future(future),
            Ok(Poll::Ready(Some(parked))) => Task::Idle(parked),
            Ok(Poll::Ready(None)) => Task::Vacant,
            Err(_) => {
                // The panic hook has logged the panic. Dropping the future closes the connection's sockets.
                self.count_panic();
                let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
                Task::Vacant
            }
        };
        if !matches!(next, Task::Future(_)) {
            self.0.running.set(self.0.running.get() - 1);
        }
        let vacant = matches!(next, Task::Vacant);
        let before = std::mem::replace(&mut self.0.tasks.borrow_mut()[task as usize], next);
        if vacant {
            self.0.free_tasks.borrow_mut().push(task);
        } else if matches!(before, Task::Polled(true)) {
            self.wake(task);
        }
    }

    fn take_future(&self, task: u32) -> Option<TaskBody> {
        let mut tasks = self.0.tasks.borrow_mut();
        let slot = tasks.get_mut(task as usize)?;
        match slot {
            Task::Vacant => return None,
            Task::Polled(again) => {
                *again = true;
                return None;
            }
            Task::Future(_) | Task::Idle(_) => {}
        }
        match std::mem::replace(slot, Task::Polled(false)) {
            Task::Future(future) => Some(future),
            Task::Idle(parked) => {
                drop(tasks);
                self.0.running.set(self.0.running.get() + 1);
                Some(TaskBody::MayPark(parked.resume()))
            }
            Task::Vacant | Task::Polled(_) => None,
        }
    }

    /// Marks `source` as readable although nothing has arrived, and schedules its reader. The task does not
    /// run within this call, so this may be called from any `drop`.
    pub(crate) fn mark_readable(&self, source: &Source) {
        source.ready.set(source.ready.get() | READ);
        match source.reader.get() {
            EXTERNAL_WAKER => self.run_waiter(source.token, EXTERNAL_WAKER, false),
            task => self.wake(task),
        }
    }

    /// Sets readiness of a source without a descriptor and schedules (but does not run) the waiting tasks.
    pub(crate) fn set_ready(&self, source: &Source, bits: u8) {
        let news = bits & !source.ready.get();
        source.ready.set(source.ready.get() | bits);
        let reader = source.reader.get();
        let writer = source.writer.get();
        let reads = news & (READ | HALF_CLOSED | GONE) != 0;
        if reads {
            self.wake(reader);
        }
        if news & (WRITE | GONE) != 0 && !(reads && writer == reader) {
            self.wake(writer);
        }
    }

    /// Closes every parked connection.
    pub(crate) fn close_parked(&self) {
        let tasks = 0..self.0.tasks.borrow().len();
        for task in tasks {
            self.drop_parked(task as u32);
        }
    }

    /// Drops all remaining tasks. The event loop must not run again.
    pub(crate) fn drop_tasks(&self) {
        let tasks = std::mem::take(&mut *self.0.tasks.borrow_mut());
        drop(tasks);
    }

    /// Closes at most `count` connections, those idle longest first. Returns their number.
    pub(crate) fn close_idle(&self, count: usize) -> usize {
        self.close_matching(count, |_| true)
    }

    /// Like [`Core::close_idle`], but only closes connections that hold memory.
    pub(crate) fn close_idle_with_memory(&self, count: usize) -> usize {
        self.close_matching(count, |task| task.holds_memory())
    }

    fn close_matching(&self, count: usize, is_meant: impl Fn(&dyn IdleTask) -> bool) -> usize {
        let mut idle: Vec<(Moment, u32)> = Vec::new();
        for (index, task) in self.0.tasks.borrow().iter().enumerate() {
            if let Task::Idle(parked) = task
                && is_meant(&**parked)
                && let Some(since) = parked.idle_since()
            {
                idle.push((since, index as u32));
            }
        }
        if idle.len() > count {
            idle.select_nth_unstable(count);
            idle.truncate(count);
        }
        for &(_, task) in &idle {
            self.drop_parked(task);
        }
        idle.len()
    }

    fn drop_parked(&self, task: u32) {
        let mut tasks = self.0.tasks.borrow_mut();
        if !matches!(tasks[task as usize], Task::Idle(_)) {
            return;
        }
        let parked = std::mem::replace(&mut tasks[task as usize], Task::Vacant);
        self.0.free_tasks.borrow_mut().push(task);
        drop(tasks);
        if let Task::Idle(parked) = parked {
            parked.close();
        }
    }
}

#[cfg(test)]
mod tests;

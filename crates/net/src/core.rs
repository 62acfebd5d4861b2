//! The engine of one thread: reactor, executor and timers.
//!
//! What the executor promises: a task runs on the thread of its core alone; it is polled again after each event that it
//! waits for, and sometimes without one, which every future must tolerate; all waits honour the waker of their
//! `Context`. Where that is the task's own, as under plain `await`, `join!` and `select!`, they remember the task's
//! number and touch no waker; a combinator that brings wakers of its own (`FuturesUnordered`) has those woken.

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

use crate::clock::Clock;
use crate::in_place::pin_in_place;
use crate::memory::{Memory, MemoryBudget};
use crate::offload::OffloadPool;
use crate::remote::{Remote, SlotWaker};
use crate::source::{FOREIGN, GONE, HALF_CLOSED, NO_TASK, READ, Source, WRITE};
use crate::tick::{TaskId, TurnHook, TurnHooks};

mod pause;
mod turn;

pub(crate) use pause::SourceTimer;

const REMOTE_TOKEN: u64 = u64::MAX;
/// The token of a [`TurnHook`]'s eventfd, which only wakes the core and need not be read.
const TICK_TOKEN: u64 = u64::MAX - 1;

/// A future that a core runs. What it returns replaces it: parked, or nothing.
pub(crate) type TaskFuture = Pin<Box<dyn Future<Output = Option<Box<dyn IdleTask>>>>>;

/// A task that waits for one source and needs no future until then: an idle connection.
pub(crate) trait IdleTask {
    /// Called when bytes have arrived. Returns the future that continues.
    fn resume(self: Box<Self>) -> TaskFuture;
    /// Since when it has been idle, in the clock's milliseconds, if it may be closed to make room.
    fn idle_since_ms(&self) -> Option<u64>;

    /// Closes it while it waits.
    fn close(self: Box<Self>) {}
    /// Whether memory is charged for it although it is idle.
    fn holds_memory(&self) -> bool {
        false
    }
}

/// What is polled of a task.
enum Job {
    /// It may become idle.
    Parks(TaskFuture),
    /// It only ends. Not wrapped into the other kind, whose future would hold this one twice.
    Ends(Pin<Box<dyn Future<Output = ()>>>),
}

impl Job {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Box<dyn IdleTask>>> {
        match self {
            Job::Parks(future) => future.as_mut().poll(cx),
            Job::Ends(future) => future.as_mut().poll(cx).map(|()| None),
        }
    }
}

enum Task {
    Vacant,
    /// Its future is being polled; true if it was woken during the poll.
    Polled(bool),
    Future(Job),
    Idle(Box<dyn IdleTask>),
}

/// Who is woken by a timer.
enum Sleeper {
    Task(u32),
    Foreign(Waker),
    /// A source, by its token, that gets these bits.
    Source(u64, u8),
}

struct SourceSlot {
    generation: u32,
    source: Option<Rc<Source>>,
}

struct CoreState {
    clock: Clock,
    pool: OffloadPool,
    remote: Arc<Remote>,
    sources: RefCell<Vec<SourceSlot>>,
    free_sources: RefCell<Vec<u32>>,
    tasks: RefCell<Vec<Task>>,
    free_tasks: RefCell<Vec<u32>>,
    /// Number of tasks with a future; parked tasks do not count.
    running: Cell<usize>,
    /// By task; `None` while it is lent to the poll of its task.
    wakers: RefCell<Vec<Option<Waker>>>,
    ready: RefCell<VecDeque<u32>>,
    /// Tasks that wait for a turn in which to work long, and how many have had theirs so far.
    long: RefCell<VecDeque<u32>>,
    long_turns: Cell<u64>,
    /// Timers in order of time: (time, unique number) to who sleeps. A sleep that is dropped removes its timer.
    timers: RefCell<BTreeMap<(u64, u64), Sleeper>>,
    timers_armed: Cell<u64>,
    current: Cell<u32>,
    /// The data of the current task's own waker, by which it is known.
    own_waker: Cell<*const ()>,
    /// Wakers that are no task's own and wait for a source, by its token and whether they wait to write. One stays until
    /// the source is ready or gone.
    foreign: RefCell<BTreeMap<(u64, bool), Waker>>,
    swept_ms: Cell<u64>,
    panics: Cell<u64>,
    memory: Rc<Memory>,
    draining: Cell<bool>,
    ticks: TurnHooks,
}

/// A handle to the engine of this thread. Cheap to clone; not to be sent to another thread.
#[derive(Clone)]
pub struct Core(Rc<CoreState>);

impl Core {
    /// An engine with its own epoll. `pool` takes blocking calls.
    ///
    /// # Errors
    /// Where the kernel gives no descriptor.
    pub fn new(clock: Clock, pool: OffloadPool) -> io::Result<Core> {
        Core::within(clock, pool, MemoryBudget::default())
    }

    /// The same, and what it holds counts against a budget.
    ///
    /// # Errors
    /// As [`Core::new`].
    pub(crate) fn within(clock: Clock, pool: OffloadPool, budget: MemoryBudget) -> io::Result<Core> {
        let remote = Arc::new(Remote::new()?);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(remote.epoll(), remote.bell(), epoll::EventData::new_u64(REMOTE_TOKEN), flags)?;
        Ok(Core(Rc::new(CoreState {
            swept_ms: Cell::new(clock.now_ms()),
            clock,
            pool,
            remote,
            sources: RefCell::default(),
            free_sources: RefCell::default(),
            tasks: RefCell::default(),
            free_tasks: RefCell::default(),
            running: Cell::new(0),
            wakers: RefCell::default(),
            ready: RefCell::default(),
            long: RefCell::default(),
            long_turns: Cell::new(0),
            timers: RefCell::default(),
            timers_armed: Cell::new(0),
            current: Cell::new(NO_TASK),
            own_waker: Cell::new(std::ptr::null()),
            foreign: RefCell::default(),
            panics: Cell::new(0),
            memory: Rc::new(Memory::new(budget)),
            draining: Cell::new(false),
            ticks: TurnHooks::default(),
        })))
    }

    /// The clock, which moves once a tick.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// [`Clock::now_ms`].
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.0.clock.now_ms()
    }

    /// [`Clock::now_us`].
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.0.clock.now_us()
    }

    /// Whether the server is stopping: responses without an end (tunnels, event streams) have to end now.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.draining.get()
    }

    /// The server is stopping.
    pub(crate) fn drain(&self) {
        self.0.draining.set(true);
    }

    /// [`Clock::unix_s`].
    #[must_use]
    pub fn unix_s(&self) -> u64 {
        self.0.clock.unix_s()
    }

    /// What the core holds for its peers.
    #[must_use]
    pub fn memory(&self) -> &Rc<Memory> {
        &self.0.memory
    }

    /// The way to wake this core from another thread.
    pub(crate) fn remote(&self) -> Arc<Remote> {
        self.0.remote.clone()
    }

    /// Whether that is the way to this core.
    pub(crate) fn is_home(&self, remote: &Arc<Remote>) -> bool {
        Arc::ptr_eq(&self.0.remote, remote)
    }

    /// How many tasks panicked so far.
    pub(crate) fn panics(&self) -> u64 {
        self.0.panics.get()
    }

    /// Counts a panic of a task that was caught.
    pub(crate) fn count_panic(&self) {
        self.0.panics.set(self.0.panics.get() + 1);
    }

    /// Tasks that hold a future now.
    pub(crate) fn running(&self) -> usize {
        self.0.running.get()
    }

    /// Runs `future` as a task of this core.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.start(Box::pin(future));
    }

    /// The same with a future that is made where it stays.
    pub(crate) fn spawn_in_place<F: Future<Output = ()> + 'static>(&self, make: impl FnOnce() -> F) {
        self.start(pin_in_place(make));
    }

    pub(crate) fn start(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        let task = self.add_task(Task::Future(Job::Ends(future)));
        self.0.running.set(self.0.running.get() + 1);
        self.0.ready.borrow_mut().push_back(task);
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

    /// The threads for calls that may block.
    pub(crate) fn pool(&self) -> &OffloadPool {
        &self.0.pool
    }

    /// Wakes the current task; from any thread.
    pub(crate) fn waker_from_elsewhere(&self) -> impl FnOnce() + Send + 'static {
        let (remote, task) = (self.remote(), self.0.current.get());
        move || remote.wake(task)
    }

    // ---- sources ----

    /// Registers a socket, edge-triggered, for everything at once.
    pub(crate) fn register(&self, fd: &impl AsFd) -> io::Result<Rc<Source>> {
        use epoll::EventFlags;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let source = self.add_source();
        if let Err(error) =
            epoll::add(self.0.remote.epoll(), fd, epoll::EventData::new_u64(source.token), flags)
        {
            self.deregister(&source);
            return Err(error.into());
        }
        Ok(source)
    }

    /// Registers a listener, level-triggered and exclusive; `task` polls it.
    pub(crate) fn watch_listener(&self, fd: &impl AsFd, source: &Source) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        Ok(epoll::add(self.0.remote.epoll(), fd, epoll::EventData::new_u64(source.token), flags)?)
    }

    pub(crate) fn unwatch(&self, fd: &impl AsFd) {
        // Only fails for a descriptor that is not registered.
        let _ = epoll::delete(self.0.remote.epoll(), fd);
    }

    /// A source that no descriptor feeds yet.
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

    /// The source of this token.
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
        // Events of this tick may still name the slot; their generation is an older one, so they are ignored.
        if let Some(slot) = self.0.sources.borrow_mut().get_mut(index as usize)
            && slot.source.take_if(|source| source.token == token).is_some()
        {
            self.0.foreign.borrow_mut().retain(|(other, _), _| *other != token);
            slot.generation = (slot.generation + 1) & 0x7fff_ffff;
            self.0.free_sources.borrow_mut().push(index);
        }
    }

    /// Sets readiness and wakes the task that waits for it.
    pub(crate) fn deliver(&self, token: u64, ready: u8) {
        let sources = self.0.sources.borrow();
        let Some(SourceSlot { source: Some(source), .. }) = sources.get(token as u32 as usize) else {
            return;
        };
        if source.token != token {
            return;
        }
        source.ready.set(source.ready.get() | ready);
        let waiters = (source.reader.get(), source.writer.get());
        drop(sources);
        let reads = ready & (READ | HALF_CLOSED | GONE) != 0;
        self.run_waiters(token, waiters, reads, ready & (WRITE | GONE) != 0);
    }

    /// Runs the task that waits to read, the one that waits to write, or the one that waits for both.
    #[inline]
    fn run_waiters(&self, token: u64, (reader, writer): (u32, u32), reads: bool, writes: bool) {
        if reads {
            self.run_waiter(token, reader, false);
        }
        if writes && (writer == FOREIGN || !(reads && writer == reader)) {
            self.run_waiter(token, writer, true);
        }
    }

    fn run_waiter(&self, token: u64, task: u32, writes: bool) {
        if task != FOREIGN {
            // Most sources that can be written have no task that waits for it.
            if task != NO_TASK {
                self.run(task);
            }
            return;
        }
        let waker = self.0.foreign.borrow_mut().remove(&(token, writes));
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whoever polls with `cx` is run when the source can be read.
    pub(crate) fn wait_read(&self, source: &Source, cx: &Context<'_>) {
        source.wait_read(self.waiter(source, cx, false));
    }

    /// Whoever polls with `cx` is run when the source can be written.
    pub(crate) fn wait_write(&self, source: &Source, cx: &Context<'_>) {
        source.wait_write(self.waiter(source, cx, true));
    }

    fn waiter(&self, source: &Source, cx: &Context<'_>, writes: bool) -> u32 {
        if self.is_own(cx) {
            return self.current();
        }
        self.0.foreign.borrow_mut().insert((source.token, writes), cx.waker().clone());
        FOREIGN
    }

    /// Whether the waker is that of the task being polled.
    fn is_own(&self, cx: &Context<'_>) -> bool {
        std::ptr::eq(cx.waker().data(), self.0.own_waker.get())
    }

    // ---- ticks ----

    /// Looks at `tick` around each wait, as long as somebody else holds it.
    pub fn add_tick(&self, tick: &Rc<dyn TurnHook>) {
        self.0.ticks.add(tick);
    }

    /// Lets an eventfd that a [`TurnHook`] asks others to ring end the core's wait. It need not be read.
    ///
    /// # Errors
    /// Where the kernel has no room for the registration.
    pub fn hear(&self, bell: &impl AsFd) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(self.0.remote.epoll(), bell, epoll::EventData::new_u64(TICK_TOKEN), flags)?)
    }

    /// Ends what [`Core::hear`] began. Call it before the eventfd is closed.
    pub fn ignore(&self, bell: &impl AsFd) {
        self.unwatch(bell);
    }

    /// The task that is running, to be woken later. A future that waits by it must be polled with the task's own waker.
    #[must_use]
    pub fn task(&self) -> TaskId {
        TaskId(self.current())
    }

    /// Runs a task of this core soon. If the task has ended, its slot may belong to a new task; that task gets a spurious
    /// wake-up, which every task must tolerate.
    pub fn wake_task(&self, TaskId(task): TaskId) {
        self.wake(task);
    }

    // ---- running ----

    /// The task being polled.
    pub(crate) fn current(&self) -> u32 {
        self.0.current.get()
    }

    fn wake(&self, task: u32) {
        self.0.ready.borrow_mut().push_back(task);
    }

    /// Polls a task once, if there is one.
    fn run(&self, task: u32) {
        let Some(mut future) = self.take_future(task) else { return };
        // Taken out and put back, because a clone would cost two atomic operations at each poll.
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
                // The panic hook has logged it. Dropping the future closes the connection's sockets.
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

    fn take_future(&self, task: u32) -> Option<Job> {
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
                Some(Job::Parks(parked.resume()))
            }
            Task::Vacant | Task::Polled(_) => None,
        }
    }

    /// Marks `source` as readable although nothing has arrived. The task that waits for it runs soon, not within this
    /// call, so this may be called from any `drop`.
    pub(crate) fn nudge(&self, source: &Source) {
        source.ready.set(source.ready.get() | READ);
        match source.reader.get() {
            FOREIGN => self.run_waiter(source.token, FOREIGN, false),
            task => self.wake(task),
        }
    }

    /// Sets readiness of a source that no descriptor feeds. The tasks that wait for it run soon, not within this call.
    pub(crate) fn raise(&self, source: &Source, bits: u8) {
        let news = bits & !source.ready.get();
        source.ready.set(source.ready.get() | bits);
        let (reader, writer) = (source.reader.get(), source.writer.get());
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

    /// Drops all remaining tasks: the event loop does not run again.
    pub(crate) fn abandon(&self) {
        let tasks = std::mem::take(&mut *self.0.tasks.borrow_mut());
        drop(tasks);
    }

    /// Closes the connections that have been idle longest, at most `count`. Returns how many it closed.
    pub(crate) fn close_idle(&self, count: usize) -> usize {
        self.close_those(count, |_| true)
    }

    /// The same of those that hold memory.
    pub(crate) fn close_idle_with_memory(&self, count: usize) -> usize {
        self.close_those(count, |task| task.holds_memory())
    }

    fn close_those(&self, count: usize, is_meant: impl Fn(&dyn IdleTask) -> bool) -> usize {
        let mut idle: Vec<(u64, u32)> = Vec::new();
        for (index, task) in self.0.tasks.borrow().iter().enumerate() {
            if let Task::Idle(parked) = task
                && is_meant(&**parked)
                && let Some(since_ms) = parked.idle_since_ms()
            {
                idle.push((since_ms, index as u32));
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

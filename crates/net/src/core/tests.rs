//! Tasks, timers, sources and mailboxes, without a network.

use times::{Millis, Moment};

use super::*;
use std::sync::Mutex;

/// Accessors for tests.
impl Core {
    /// Runs the tasks that are ready now, those that yield last, and one with long work.
    pub(crate) fn run_ready(&self) {
        self.run_round();
        self.0.ready.borrow_mut().append(&mut self.0.yielding.borrow_mut());
        self.run_long_task();
    }

    /// Whether a task was woken and has not run since.
    pub(crate) fn has_ready(&self) -> bool {
        let is_empty = |queue: &RefCell<VecDeque<u32>>| queue.borrow().is_empty();
        ![&self.0.ready, &self.0.yielding, &self.0.long_turn_queue].into_iter().all(is_empty)
    }

    /// Returns the number of all tasks, including parked ones.
    pub(crate) fn tasks_alive(&self) -> usize {
        self.0.tasks.borrow().iter().filter(|task| !matches!(task, Task::Vacant)).count()
    }

    pub(crate) fn sources_alive(&self) -> usize {
        self.0.sources.borrow().iter().filter(|slot| slot.source.is_some()).count()
    }

    pub(crate) fn timers_armed(&self) -> usize {
        self.0.timers.borrow().len()
    }
}

fn core() -> Core {
    Core::new(Clock::new(), OffloadPools::new(1)).unwrap()
}

/// Advances the clock and runs expired timers.
fn advance_ms(core: &Core, ms: u64) {
    core.clock().set(core.now() + Millis(ms), core.unix_s());
    core.run_timers();
    core.run_ready();
}

/// A log of events.
#[derive(Clone, Default)]
struct EventLog(Rc<RefCell<Vec<&'static str>>>);

impl EventLog {
    fn write(&self, what: &'static str) {
        self.0.borrow_mut().push(what);
    }

    fn read(&self) -> Vec<&'static str> {
        self.0.take()
    }
}

#[test]
fn sleeps_end_in_deadline_order() {
    let core = core();
    let diary = EventLog::default();
    for (ms, name) in [(300, "late"), (100, "early"), (100, "early too"), (200, "middle")] {
        let handle = core.clone();
        let diary = diary.clone();
        core.spawn(async move {
            handle.sleep(Millis(ms)).await;
            diary.write(name);
        });
    }
    core.run_ready();
    assert_eq!((diary.read().len(), core.timers_armed()), (0, 4));
    advance_ms(&core, 99);
    assert_eq!(diary.read().len(), 0);
    advance_ms(&core, 1);
    assert_eq!(diary.read(), ["early", "early too"]);
    advance_ms(&core, 1_000);
    assert_eq!(diary.read(), ["middle", "late"]);
    assert_eq!((core.timers_armed(), core.tasks_alive()), (0, 0));
}

#[test]
fn dropped_sleeps_leave_no_timers() {
    let core = core();
    let handle = core.clone();
    core.spawn(async move {
        for _ in 0..10_000 {
            let mut sleep = std::pin::pin!(handle.sleep(Millis(60_000)));
            std::future::poll_fn(|context| {
                assert!(sleep.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            assert_eq!(handle.timers_armed(), 1);
        }
    });
    core.run_ready();
    assert_eq!((core.timers_armed(), core.tasks_alive()), (0, 0));
}

#[test]
fn longest_sleep_does_not_overflow() {
    let core = core();
    let handle = core.clone();
    core.spawn(async move { handle.sleep(Millis::MAX).await });
    core.run_ready();
    advance_ms(&core, 1_000_000);
    assert_eq!(core.tasks_alive(), 1);
    core.drop_tasks();
}

#[test]
fn yielding_task_runs_after_other_ready_tasks() {
    let core = core();
    let diary = EventLog::default();
    let handle = core.clone();
    let first = diary.clone();
    core.spawn(async move {
        first.write("a1");
        handle.yield_now().await;
        first.write("a2");
    });
    let second = diary.clone();
    core.spawn(async move { second.write("b") });
    core.run_ready();
    assert_eq!(diary.read(), ["a1", "b"], "and not in the same tick");
    core.run_ready();
    assert_eq!(diary.read(), ["a2"]);
}

#[test]
fn panic_ends_only_its_own_task() {
    let core = core();
    let diary = EventLog::default();
    core.spawn(async { std::panic::resume_unwind(Box::new("as if the task had panicked")) });
    let other = diary.clone();
    core.spawn(async move { other.write("alive") });
    core.run_ready();
    assert_eq!((diary.read(), core.panics()), (vec!["alive"], 1));
    assert_eq!((core.tasks_alive(), core.running()), (0, 0));
}

#[test]
fn mark_readable_wakes_tasks_only_in_the_next_run() {
    let core = core();
    let diary = EventLog::default();
    let source = core.add_source();
    let handle = core.clone();
    let waiting = source.clone();
    let waiter = diary.clone();
    core.spawn(async move {
        std::future::poll_fn(|_| match waiting.ready() & READ {
            0 => {
                waiting.wait_read(handle.current());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
        waiter.write("nudged");
    });
    core.run_ready();
    core.mark_readable(&source);
    assert_eq!(diary.read().len(), 0);
    core.run_ready();
    assert_eq!(diary.read(), ["nudged"]);
    core.deregister(&source);
}

#[test]
fn room_of_a_receiver_is_reported_only_while_it_is_awaited() {
    let core = core();
    let (socket, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    let source = core.register_receiver(&socket).unwrap();
    let fill = |mut socket: &std::os::unix::net::UnixStream| {
        while std::io::Write::write(&mut socket, &[0; 4096]).is_ok() {}
        source.clear(WRITE);
    };
    let mut make_room = || std::io::Read::read(&mut peer, &mut [0; 1 << 20]).unwrap();
    let poll = |core: &Core| {
        let mut has_polled = false;
        core.run_until(|| std::mem::replace(&mut has_polled, true)).unwrap();
        source.ready() & WRITE
    };
    fill(&socket);
    make_room();
    assert_eq!(poll(&core), 0, "nobody waits for room");
    fill(&socket);
    core.watch_room(&socket, &source, true);
    assert_eq!(poll(&core), 0, "there is none");
    make_room();
    assert_eq!(poll(&core), WRITE);
    core.watch_room(&socket, &source, false);
    fill(&socket);
    make_room();
    assert_eq!(poll(&core), 0, "nobody waits any longer");
    core.deregister(&source);
}

#[test]
fn events_of_a_closed_source_are_dropped() {
    let core = core();
    let old = core.add_source();
    core.deregister(&old);
    core.deregister(&old);
    let new = core.add_source();
    assert_eq!(old.token as u32, new.token as u32, "the slot is used again");
    core.deliver(old.token, READ);
    assert_eq!(new.ready() & READ, 0);
    core.deliver(u64::MAX - 1, READ);
    core.deliver(new.token, READ);
    assert_eq!(new.ready() & READ, READ);
    assert_eq!(core.sources_alive(), 1);
}

/// A task that parks again whenever it is woken.
struct RecordingTask(Rc<Source>, Core, EventLog, Option<Moment>);

impl IdleTask for RecordingTask {
    fn resume(self: Box<Self>) -> TaskFuture {
        Box::pin(async move {
            self.2.write("woken");
            self.0.clear(READ);
            self.0.wait_read(self.1.current());
            Some(self as Box<dyn IdleTask>)
        })
    }

    fn idle_since(&self) -> Option<Moment> {
        self.3
    }
}

#[test]
fn a_parked_task_wakes_by_readiness_and_by_its_deadline() {
    let core = core();
    let diary = EventLog::default();
    let source = core.add_source();
    source.set_deadline(core.now() + Millis(5_000));
    core.park(&source, Box::new(RecordingTask(source.clone(), core.clone(), diary.clone(), None)));
    core.run_ready();
    assert_eq!((diary.read().len(), core.running()), (0, 0));
    core.deliver(source.token, READ);
    assert_eq!((diary.read(), core.running(), core.tasks_alive()), (vec!["woken"], 0, 1));
    advance_ms(&core, 4_900);
    assert_eq!(diary.read().len(), 0);
    advance_ms(&core, 200);
    assert_eq!(diary.read(), ["woken"]);
    assert!(source.take_expired());
    core.close_parked();
    assert_eq!(core.tasks_alive(), 0);
}

#[test]
fn readiness_before_parking_is_not_lost() {
    let core = core();
    let diary = EventLog::default();
    let source = core.add_source();
    core.deliver(source.token, READ);
    core.park(&source, Box::new(RecordingTask(source.clone(), core.clone(), diary.clone(), None)));
    core.run_ready();
    assert_eq!(diary.read(), ["woken"]);
    core.drop_tasks();
}

#[test]
fn close_idle_closes_at_most_the_given_number_of_idle_tasks() {
    let core = core();
    let diary = EventLog::default();
    let sources: Vec<Rc<Source>> = [Some(50), Some(10), None, Some(30)]
        .map(|since| since.map(Moment))
        .into_iter()
        .map(|since| {
            let source = core.add_source();
            core.park(&source, Box::new(RecordingTask(source.clone(), core.clone(), diary.clone(), since)));
            source
        })
        .collect();
    assert_eq!(core.close_idle(2), 2);
    for source in &sources {
        core.deliver(source.token, READ);
    }
    assert_eq!(diary.read().len(), 2, "the one that may not be closed, and the youngest");
    assert_eq!(core.close_idle(10), 1);
    assert_eq!(core.close_idle(10), 0);
    assert_eq!(core.tasks_alive(), 1);
    core.drop_tasks();
}

#[test]
fn every_wake_from_another_thread_arrives() {
    let core = core();
    let hits = Arc::new(Mutex::new(0_u32));
    let handle = core.clone();
    let total = hits.clone();
    let seen = Rc::new(Cell::new(0));
    let counted = seen.clone();
    core.spawn(async move {
        let task = handle.current();
        let remote = handle.remote();
        let theirs = total.clone();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let remote = remote.clone();
                let theirs = theirs.clone();
                std::thread::spawn(move || {
                    for _ in 0..5_000 {
                        *theirs.lock().unwrap() += 1;
                        remote.wake(task);
                    }
                })
            })
            .collect();
        // Pending until the last increment has been seen: a lost wake-up would hang here.
        std::future::poll_fn(|_| {
            counted.set(*total.lock().unwrap());
            if counted.get() == 20_000 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        for thread in threads {
            thread.join().unwrap();
        }
    });
    core.run_until(|| seen.get() == 20_000).unwrap();
    assert_eq!(*hits.lock().unwrap(), 20_000);
}

#[test]
fn panic_of_an_offloaded_job_reaches_the_caller() {
    let core = core();
    let handle = core.clone();
    let ended = Rc::new(Cell::new(false));
    let guard = ended.clone();
    struct OnDrop(Rc<Cell<bool>>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    core.spawn(async move {
        let _guard = OnDrop(guard);
        assert_eq!(handle.offload(|| 6 * 7).await, 42);
        let () = handle.offload(|| std::panic::resume_unwind(Box::new("in the job"))).await;
    });
    core.run_until(|| ended.get()).unwrap();
    assert_eq!(core.panics(), 1);
}

/// Polls a future with a waker of its own, like combinators such as `FuturesUnordered`, and only after that
/// was woken.
struct SeparatelyPolled<F> {
    future: Pin<Box<F>>,
    woken: Arc<FlagWaker>,
    done: bool,
}

/// Whether the future was woken, and the waker to notify.
#[derive(Default)]
struct FlagWaker(std::sync::atomic::AtomicBool, Mutex<Option<Waker>>);

impl std::task::Wake for FlagWaker {
    fn wake(self: Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        if let Some(outer) = self.1.lock().unwrap().take() {
            outer.wake();
        }
    }
}

impl<F: Future<Output = ()>> SeparatelyPolled<F> {
    fn new(future: F) -> SeparatelyPolled<F> {
        let woken = Arc::new(FlagWaker::default());
        woken.0.store(true, std::sync::atomic::Ordering::SeqCst);
        SeparatelyPolled { future: Box::pin(future), woken, done: false }
    }

    fn poll(&mut self, cx: &Context<'_>) -> bool {
        *self.woken.1.lock().unwrap() = Some(cx.waker().clone());
        if !self.done && self.woken.0.swap(false, std::sync::atomic::Ordering::SeqCst) {
            let own = Waker::from(self.woken.clone());
            self.done = self.future.as_mut().poll(&mut Context::from_waker(&own)).is_ready();
        }
        self.done
    }
}

#[test]
fn futures_wake_the_waker_they_were_polled_with() {
    use crate::client::LocalNotify;
    let core = Core::for_client(1).unwrap();
    let inner = core.clone();
    let bell = Rc::new(LocalNotify::new(&core));
    core.run_until_end(async move {
        let core = inner.clone();
        let rings = bell.clone();
        inner.spawn(async move {
            core.sleep(Millis(20)).await;
            rings.notify();
        });
        let mut sleep = SeparatelyPolled::new(inner.sleep(Millis(10)));
        let mut offload = SeparatelyPolled::new(async {
            inner.offload(|| std::thread::sleep(std::time::Duration::from_millis(5))).await;
        });
        let mut source = SeparatelyPolled::new(bell.notified());
        let mut yielding = SeparatelyPolled::new(inner.yield_now());
        let mut given_up = Some(SeparatelyPolled::new(inner.sleep(Millis(3_600_000))));
        let mut patience = Box::pin(inner.sleep(Millis(20_000)));
        std::future::poll_fn(|cx| {
            assert!(patience.as_mut().poll(cx).is_pending(), "one of them is never woken");
            if let Some(mut given_up) = given_up.take() {
                assert!(!given_up.poll(cx));
            }
            // Each future is polled, whether or not the others are done.
            let done = [sleep.poll(cx), offload.poll(cx), source.poll(cx), yielding.poll(cx)];
            if done == [true; 4] { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        drop(patience);
        assert_eq!(inner.timers_armed(), 0, "a sleep that is given up leaves nothing");
        assert!(inner.0.external_wakers.borrow().is_empty());
    })
    .unwrap();
}

impl TurnHook for EventLog {
    fn drain(&self) {}

    fn flush(&self) {
        self.write("flush");
    }

    fn prepare_wait(&self) -> bool {
        true
    }

    fn finish_wait(&self) {}
}

#[test]
fn collected_output_leaves_before_long_work() {
    let core = core();
    let diary = EventLog::default();
    let hook: Rc<dyn TurnHook> = Rc::new(diary.clone());
    core.add_turn_hook(&hook);
    let (handle, log) = (core.clone(), diary.clone());
    core.spawn(async move {
        log.write("short");
        handle.wait_for_long_turn().await;
        log.write("long");
    });
    core.run_ready();
    assert_eq!(diary.read(), ["short", "flush", "long"]);
}

#[test]
fn each_turn_runs_one_piece_of_long_work() {
    let core = core();
    let diary = EventLog::default();
    for _ in 0..3 {
        let handle = core.clone();
        let diary = diary.clone();
        core.spawn(async move {
            handle.wait_for_long_turn().await;
            diary.write("long");
            handle.wait_for_long_turn().await;
            diary.write("long again");
        });
    }
    let handle = core.clone();
    let others = diary.clone();
    core.spawn(async move {
        loop {
            others.write("other");
            // Spurious wake-ups must not advance a task's turn.
            (0..3).for_each(|task| handle.wake_task(TaskId(task)));
            handle.yield_now().await;
        }
    });
    for expected in ["long", "long", "long", "long again", "long again", "long again"] {
        core.run_ready();
        assert_eq!(diary.read(), ["other", expected]);
    }
    core.run_ready();
    assert_eq!(diary.read(), ["other"]);
}

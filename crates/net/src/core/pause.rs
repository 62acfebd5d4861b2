//! Waits for events other than sources: a call on another thread, a time, or other tasks.

use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{Core, TimerWaiter};
use times::{Millis, Moment};

use crate::offload::BlockingKind;
use crate::source::Source;

impl Core {
    /// Runs a closure that computes for long, or may block, on another thread and returns its result.
    ///
    /// # Panics
    /// Panics in the calling task if the closure panicked.
    pub async fn offload<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.offload_as(BlockingKind::Work, job).await
    }

    /// Like [`Core::offload`], on the threads for calls of this kind.
    ///
    /// # Panics
    /// See [`Core::offload`].
    pub async fn offload_as<T: Send + 'static>(
        &self,
        kind: BlockingKind,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let slot = Arc::new(Mutex::new(OffloadedCall::Running(None)));
        let theirs = slot.clone();
        self.pool(kind).run(move || {
            let result = catch_unwind(AssertUnwindSafe(job)).ok();
            let mut slot = theirs.lock().unwrap_or_else(PoisonError::into_inner);
            let before = std::mem::replace(&mut *slot, OffloadedCall::Done(result));
            drop(slot);
            if let OffloadedCall::Running(Some(waker)) = before {
                waker.wake();
            }
        });
        poll_fn(|cx| {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *slot {
                OffloadedCall::Done(result) => Poll::Ready(result.take()),
                OffloadedCall::Running(waker) => {
                    *waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
        .expect("an offloaded call does not panic")
    }

    /// Waits for `length` of the core's clock.
    pub async fn sleep(&self, length: Millis) {
        let number = self.0.timers_armed.get();
        self.0.timers_armed.set(number + 1);
        let timer = SleepTimer { core: self, key: (self.now() + length, number) };
        poll_fn(|cx| {
            if self.now() >= timer.key.0 {
                return Poll::Ready(());
            }
            let sleeper = if self.is_own_waker(cx) {
                TimerWaiter::Task(self.current())
            } else {
                TimerWaiter::External(cx.waker().clone())
            };
            self.0.timers.borrow_mut().insert(timer.key, sleeper);
            Poll::Pending
        })
        .await;
    }

    /// Lets all other ready tasks of this core run, and the kernel be asked for events.
    pub async fn yield_now(&self) {
        suspend_once(|cx| {
            if self.is_own_waker(cx) {
                self.0.yielding.borrow_mut().push_back(self.current());
            } else {
                cx.waker().wake_by_ref()
            }
        })
        .await;
    }

    /// Lets the tasks run that are ready now.
    pub(crate) async fn let_others_run(&self) {
        suspend_once(|_| self.wake(self.current())).await;
    }
}

/// Suspends the task until its next poll, which `schedule` arranges.
fn suspend_once(schedule: impl Fn(&Context<'_>)) -> impl Future<Output = ()> {
    let mut is_suspended = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut is_suspended, true) {
            return Poll::Ready(());
        }
        schedule(cx);
        Poll::Pending
    })
}

impl Core {
    /// Sets readiness of a source at a time and wakes the waiting task, unless the timer is dropped before.
    pub(crate) fn set_ready_at(&self, source: &Source, bits: u8, at: Moment) -> SourceTimer {
        let number = self.0.timers_armed.get();
        self.0.timers_armed.set(number + 1);
        self.0.timers.borrow_mut().insert((at, number), TimerWaiter::Source(source.token, bits));
        SourceTimer { core: self.clone(), key: (at, number) }
    }
}

impl Core {
    /// Waits for a turn in which the current task may work for about a millisecond, for example to compute a
    /// signature. Each turn of the core runs one such task, in order of arrival; between two of them, the
    /// kernel is polled and ready tasks run. A request on another connection is therefore delayed by at most
    /// one signature, however many clients begin handshakes at once.
    pub(crate) async fn wait_for_long_turn(&self) {
        let place = self.0.long_turns.get() + self.0.long_turn_queue.borrow().len() as u64;
        self.0.long_turn_queue.borrow_mut().push_back(self.current());
        poll_fn(|_| {
            if self.0.long_turns.get() > place {
                Poll::Ready(())
            } else {
                // A spurious wake-up.
                Poll::Pending
            }
        })
        .await;
    }
}

/// State of a call on another thread.
enum OffloadedCall<T> {
    /// In progress, with the waker of the waiting task.
    Running(Option<Waker>),
    /// Done; `None` if the call panicked.
    Done(Option<T>),
}

/// An armed sleep, removed on drop.
struct SleepTimer<'c> {
    core: &'c Core,
    key: (Moment, u64),
}

/// A timer that makes a source ready, removed on drop.
pub(crate) struct SourceTimer {
    core: Core,
    key: (Moment, u64),
}

impl SourceTimer {
    /// Returns the time of the core's clock.
    pub(crate) fn at(&self) -> Moment {
        self.key.0
    }
}

impl fmt::Debug for SourceTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceTimer").field("at", &self.key.0).finish_non_exhaustive()
    }
}

impl Drop for SourceTimer {
    fn drop(&mut self) {
        self.core.0.timers.borrow_mut().remove(&self.key);
    }
}

impl Drop for SleepTimer<'_> {
    fn drop(&mut self) {
        self.core.0.timers.borrow_mut().remove(&self.key);
    }
}

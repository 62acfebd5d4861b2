//! A few threads for calls that may block: file systems, compression, name resolution.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// The process's pool of blocking threads. Threads are started when there is work and none is idle.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    threads_max: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl Pool {
    /// A pool of at most `threads_max` threads (at least one).
    #[must_use]
    pub fn new(threads_max: usize) -> Pool {
        let shared =
            Shared { state: Mutex::default(), work: Condvar::new(), threads_max: threads_max.max(1) };
        Pool { shared: Arc::new(shared) }
    }

    /// Runs `job` on a thread of the pool, as soon as one is free. A job that panics is dropped; the thread lives.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle > 0 {
            self.shared.work.notify_one();
        } else if state.threads < self.shared.threads_max {
            state.threads += 1;
            let shared = self.shared.clone();
            let started =
                std::thread::Builder::new().name("komainu-blocking".into()).spawn(move || shared.serve());
            if started.is_err() {
                // No thread to be had now: the ones that run will take the job, or the next call tries again.
                state.threads -= 1;
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.lock();
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

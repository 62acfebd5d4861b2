//! Thread pools for blocking calls: file systems, compression, name resolution.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// Kind of blocking call, by what it waits for. Each has threads of its own, so that a disk that does not answer delays only the
/// requests that need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockingKind {
    /// Computation, name resolution, files of the configuration.
    Work,
    /// Files that are served.
    Files,
    /// Temporary files.
    Spill,
    /// Responses that are cached on disk.
    CacheDisk,
}

/// The process's blocking threads: a pool for each kind.
#[derive(Clone)]
pub struct OffloadPools([OffloadPool; 4]);

impl OffloadPools {
    /// Creates pools of at most `threads_max` threads each (at least one).
    #[must_use]
    pub fn new(threads_max: usize) -> OffloadPools {
        OffloadPools(std::array::from_fn(|_| OffloadPool::new(threads_max)))
    }

    pub(crate) fn of(&self, kind: BlockingKind) -> &OffloadPool {
        &self.0[kind as usize]
    }
}

/// A pool of blocking threads. Threads are started when there is work and none is idle.
#[derive(Clone)]
pub struct OffloadPool {
    shared: Arc<PoolState>,
}

struct PoolState {
    queue: Mutex<PoolQueue>,
    job_added: Condvar,
    threads_max: usize,
}

#[derive(Default)]
struct PoolQueue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl OffloadPool {
    /// Creates a pool of at most `threads_max` threads (at least one).
    #[must_use]
    pub fn new(threads_max: usize) -> OffloadPool {
        let shared =
            PoolState { queue: Mutex::default(), job_added: Condvar::new(), threads_max: threads_max.max(1) };
        OffloadPool { shared: Arc::new(shared) }
    }

    /// Runs `job` on a thread of the pool as soon as one is free. A panic drops the job; the thread survives.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        state.jobs.push_back(Box::new(job));
        // A notified thread counts as idle until it wakes, and takes only one job.
        if state.jobs.len() <= state.idle {
            self.shared.job_added.notify_one();
        } else if state.threads < self.shared.threads_max {
            state.threads += 1;
            let shared = self.shared.clone();
            let started =
                std::thread::Builder::new().name("komainu-blocking".into()).spawn(move || shared.run_jobs());
            if started.is_err() {
                state.threads -= 1;
                self.handle_spawn_failure(state);
            }
        }
    }

    /// Handles the failure to start a thread: running threads take the job later. If there are none, the job
    /// runs on the caller's core and blocks it, rather than never.
    fn handle_spawn_failure(&self, mut state: MutexGuard<'_, PoolQueue>) {
        if state.threads == 0
            && let Some(job) = state.jobs.pop_front()
        {
            drop(state);
            run_job(job);
        }
    }
}

impl PoolState {
    fn lock(&self) -> MutexGuard<'_, PoolQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_jobs(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                run_job(job);
                state = self.lock();
            } else {
                state.idle += 1;
                state = self.job_added.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

fn run_job(job: Job) {
    // The waiting task notices the panic because no result arrives.
    let _ = catch_unwind(AssertUnwindSafe(job));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_run_in_parallel_up_to_the_thread_limit() {
        let pool = OffloadPool::new(2);
        let (done, wait_done) = mpsc::channel();
        let first = done.clone();
        pool.run(move || first.send(0).expect("the test waits"));
        wait_done.recv().expect("the pool works");
        // Whether or not the first thread is idle yet: these two jobs can only end together.
        let meet = Arc::new(std::sync::Barrier::new(2));
        for number in [1, 2] {
            let done = done.clone();
            let meet = meet.clone();
            pool.run(move || {
                meet.wait();
                done.send(number).expect("the test waits");
            });
        }
        let both: i32 = wait_done.iter().take(2).sum();
        assert_eq!(both, 3);
    }

    #[test]
    fn blocked_pool_delays_no_other_kind() {
        let pools = OffloadPools::new(1);
        let (release, blocked) = mpsc::channel::<()>();
        let kinds = [BlockingKind::Work, BlockingKind::Files, BlockingKind::Spill, BlockingKind::CacheDisk];
        pools.of(BlockingKind::Spill).run(move || _ = blocked.recv());
        let (done, wait_done) = mpsc::channel();
        for kind in kinds.into_iter().filter(|kind| *kind != BlockingKind::Spill) {
            let done = done.clone();
            pools.of(kind).run(move || done.send(kind).expect("the test waits"));
            assert_eq!(wait_done.recv(), Ok(kind));
        }
        drop(release);
    }

    #[test]
    fn panicking_job_does_not_end_its_thread() {
        let pool = OffloadPool::new(1);
        let (done, wait_done) = mpsc::channel();
        pool.run(|| std::panic::resume_unwind(Box::new("as if the job had panicked")));
        pool.run(move || done.send(()).expect("the test waits"));
        wait_done.recv().expect("the one thread lives");
    }
}

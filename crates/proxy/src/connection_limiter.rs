//! The limit on concurrent requests of each server, over all cores, and the queue of requests that wait for a
//! server.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Requests under way on each server, their limits, and the queue.
#[derive(Debug)]
pub struct ConnectionLimiter {
    /// Maximum concurrent requests of each server; 0 for no limit.
    limits: Vec<u32>,
    active: Vec<ActiveCount>,
    queue: Mutex<VecDeque<Arc<Waiter>>>,
    waiting: AtomicUsize,
    waiting_max: usize,
}

/// Number of requests under way on one server. Aligned to cache lines, because every core writes it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ActiveCount(AtomicU32);

#[derive(Debug)]
struct Waiter {
    state: Mutex<WaiterState>,
}

#[derive(Debug)]
enum WaiterState {
    Waiting(Waker),
    /// The request was assigned to this server.
    Granted(usize),
    /// The request has left the queue.
    Left,
}

/// Why a request was not assigned to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// The queue is full.
    Full,
    /// The request waited for the maximum time.
    TimedOut,
    /// The client closed its connection while its request waited.
    ClientDisconnected,
}

impl ConnectionLimiter {
    /// Creates a limiter for servers with these limits and one queue of at most `waiting_max` requests for
    /// all of them.
    #[must_use]
    pub fn new(limits: Vec<u32>, waiting_max: usize) -> ConnectionLimiter {
        let taken = limits.iter().map(|_| ActiveCount::default()).collect();
        ConnectionLimiter {
            limits,
            active: taken,
            queue: Mutex::default(),
            waiting: AtomicUsize::new(0),
            waiting_max,
        }
    }

    /// Returns the number of requests in the queue.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns the number of requests under way on a server.
    #[must_use]
    pub fn load(&self, server: usize) -> u32 {
        self.active[server].0.load(Ordering::Relaxed)
    }

    /// Whether the server is below its limit and no earlier request waits in the queue.
    #[must_use]
    pub fn has_room(&self, server: usize) -> bool {
        let limit = self.limits[server];
        limit == 0 || (self.load(server) < limit && self.waiting.load(Ordering::SeqCst) == 0)
    }

    /// Counts a request on the server; false if the server is at its limit.
    #[must_use]
    pub fn acquire(&self, server: usize) -> bool {
        let limit = self.limits[server];
        if limit == 0 {
            self.active[server].0.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let room = |taken| (taken < limit).then_some(taken + 1);
        self.active[server].0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).is_ok()
    }

    /// Ends a request on the server and assigns the server to the request that has waited longest. `usable`
    /// selects the servers that may get waiting requests.
    pub fn release(&self, server: usize, usable: impl Fn(usize) -> bool) {
        self.active[server].0.fetch_sub(1, Ordering::SeqCst);
        // Pairs with the check that a waiter makes after joining the queue.
        self.assign_waiting(usable);
    }

    /// Assigns waiting requests to a server that has returned to service.
    pub fn assign_waiting(&self, usable: impl Fn(usize) -> bool) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.assign_servers(&mut self.lock(), usable);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Waiter>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns servers to waiting requests until either runs out.
    fn assign_servers(&self, queue: &mut VecDeque<Arc<Waiter>>, usable: impl Fn(usize) -> bool) {
        while !queue.is_empty() {
            let Some(server) = (0..self.limits.len()).find(|&server| usable(server) && self.acquire(server))
            else {
                return;
            };
            if !self.grant_first(queue, server) {
                self.active[server].0.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Assigns a server to the first request that still waits; false if there is none.
    fn grant_first(&self, queue: &mut VecDeque<Arc<Waiter>>, server: usize) -> bool {
        while let Some(waiter) = queue.pop_front() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            if waiter.grant(server) {
                return true;
            }
        }
        false
    }

    /// Waits in order of arrival until a usable server is below its limit, or until `over` returns the reason
    /// to stop.
    ///
    /// # Errors
    /// [`QueueError`]: the reason.
    pub async fn wait(
        &self,
        usable: impl Fn(usize) -> bool,
        stop: impl Future<Output = QueueError>,
    ) -> Result<usize, QueueError> {
        let mut ticket = QueueEntry { limiter: self, waiter: None, usable: &usable };
        let mut over = pin!(stop);
        poll_fn(|context| {
            match &ticket.waiter {
                None => ticket.waiter = Some(self.enqueue(context.waker(), &usable)?),
                Some(waiter) => waiter.set_waker(context.waker()),
            }
            if let Some(server) = ticket.waiter.as_ref().and_then(|waiter| waiter.granted()) {
                ticket.waiter = None;
                return Poll::Ready(Ok(server));
            }
            over.as_mut().poll(context).map(Err)
        })
        .await
    }

    fn enqueue(&self, waker: &Waker, usable: impl Fn(usize) -> bool) -> Result<Arc<Waiter>, QueueError> {
        let mut queue = self.lock();
        if queue.len() >= self.waiting_max {
            return Err(QueueError::Full);
        }
        let waiter = Arc::new(Waiter { state: Mutex::new(WaiterState::Waiting(waker.clone())) });
        queue.push_back(waiter.clone());
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // A request may have ended before this one joined the queue, and then it has woken no waiter.
        self.assign_servers(&mut queue, usable);
        Ok(waiter)
    }
}

impl Waiter {
    fn lock(&self) -> MutexGuard<'_, WaiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_waker(&self, waker: &Waker) {
        if let WaiterState::Waiting(mine) = &mut *self.lock() {
            mine.clone_from(waker);
        }
    }

    fn granted(&self) -> Option<usize> {
        match *self.lock() {
            WaiterState::Granted(server) => Some(server),
            WaiterState::Waiting(_) | WaiterState::Left => None,
        }
    }

    /// Assigns the server to this waiter and wakes it; false if it has left the queue.
    fn grant(&self, server: usize) -> bool {
        let mut state = self.lock();
        if !matches!(*state, WaiterState::Waiting(_)) {
            return false;
        }
        if let WaiterState::Waiting(waker) = std::mem::replace(&mut *state, WaiterState::Granted(server)) {
            waker.wake();
        }
        true
    }
}

/// A place in the queue. Dropping it leaves the queue and releases a server that was assigned but not used.
struct QueueEntry<'g, U: Fn(usize) -> bool> {
    limiter: &'g ConnectionLimiter,
    waiter: Option<Arc<Waiter>>,
    usable: &'g U,
}

impl<U: Fn(usize) -> bool> Drop for QueueEntry<'_, U> {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        let mut queue = self.limiter.lock();
        if let Some(at) = queue.iter().position(|other| Arc::ptr_eq(other, &waiter)) {
            queue.remove(at);
            self.limiter.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        drop(queue);
        let state = std::mem::replace(&mut *waiter.lock(), WaiterState::Left);
        if let WaiterState::Granted(server) = state {
            self.limiter.release(server, self.usable);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::pin::Pin;
    use std::task::Context;

    fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn connection_slots_go_to_waiting_requests_in_order() {
        let gate = ConnectionLimiter::new(vec![1, 2], 10);
        assert!(gate.acquire(0) && !gate.acquire(0) && gate.acquire(1) && gate.acquire(1));
        let mut first = Box::pin(gate.wait(|_| true, std::future::pending()));
        let mut second = Box::pin(gate.wait(|_| true, std::future::pending()));
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        gate.release(1, |_| true);
        assert!(!gate.has_room(1), "a newcomer does not push in");
        assert_eq!(poll(&mut first), Poll::Ready(Ok(1)));
        assert!(poll(&mut second).is_pending());
        gate.release(0, |_| true);
        assert_eq!(poll(&mut second), Poll::Ready(Ok(0)));
        assert_eq!((gate.load(0), gate.load(1)), (1, 2));
    }

    #[test]
    fn recovered_server_takes_waiting_requests() {
        let gate = ConnectionLimiter::new(vec![1, 2], 10);
        assert!(gate.acquire(0));
        // The other server is below its limit but out of service.
        let mut waits = Box::pin(gate.wait(|server| server == 0, std::future::pending()));
        assert!(poll(&mut waits).is_pending());
        gate.assign_waiting(|_| true);
        assert_eq!(poll(&mut waits), Poll::Ready(Ok(1)));
        assert_eq!((gate.load(0), gate.load(1)), (1, 1));
    }

    #[test]
    fn dropped_waiter_releases_its_granted_slot() {
        let gate = ConnectionLimiter::new(vec![1], 10);
        assert!(gate.acquire(0));
        let mut gone = Box::pin(gate.wait(|_| true, std::future::pending()));
        let mut next = Box::pin(gate.wait(|_| true, std::future::pending()));
        assert!(poll(&mut gone).is_pending() && poll(&mut next).is_pending());
        // Granted a server, but dropped before polling again.
        gate.release(0, |_| true);
        drop(gone);
        assert_eq!(poll(&mut next), Poll::Ready(Ok(0)));
        gate.release(0, |_| true);
        assert_eq!(gate.load(0), 0);
        assert!(gate.has_room(0));
    }

    #[test]
    fn wait_queue_is_bounded_and_times_out() {
        let gate = ConnectionLimiter::new(vec![1], 1);
        assert!(gate.acquire(0));
        let over = Cell::new(false);
        let too_long =
            || poll_fn(|_| if over.get() { Poll::Ready(QueueError::TimedOut) } else { Poll::Pending });
        let mut waits = Box::pin(gate.wait(|_| true, too_long()));
        assert!(poll(&mut waits).is_pending());
        let mut refused = Box::pin(gate.wait(|_| true, too_long()));
        assert_eq!(poll(&mut refused), Poll::Ready(Err(QueueError::Full)));
        over.set(true);
        assert_eq!(poll(&mut waits), Poll::Ready(Err(QueueError::TimedOut)));
        drop(waits);
        gate.release(0, |_| true);
        assert!(gate.has_room(0) && gate.acquire(0));
    }

    #[test]
    fn waiting_requests_get_only_usable_servers() {
        let gate = ConnectionLimiter::new(vec![1, 1], 10);
        assert!(gate.acquire(0) && gate.acquire(1));
        let mut waits = Box::pin(gate.wait(|server| server == 1, std::future::pending()));
        assert!(poll(&mut waits).is_pending());
        gate.release(0, |server| server == 1);
        assert!(poll(&mut waits).is_pending());
        gate.release(1, |server| server == 1);
        assert_eq!(poll(&mut waits), Poll::Ready(Ok(1)));
    }
}

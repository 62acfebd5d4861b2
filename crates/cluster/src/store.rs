//! The handle of the store.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::files::SharedFiles;
use crate::options::StoreOptions;
use crate::peers::{PeerOptions, SetPeer};
use crate::purges::{PurgeReceiver, PurgeReport};
use crate::store_state::{ClusterState, LeaseAnswer, StoreEvent, StoreRequest, StoreStatus, lock};
use crate::store_task;
use crate::tickets::SecretReceiver;

/// The store of a set of servers. Clones share one thread, which ends when all are dropped.
#[derive(Clone)]
pub struct ClusterStore {
    shared: Arc<ClusterState>,
    requests: UnboundedSender<StoreRequest>,
}

impl fmt::Debug for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterStore").field("store", &self.shared.options.describe()).finish_non_exhaustive()
    }
}

impl PartialEq for ClusterStore {
    fn eq(&self, other: &ClusterStore) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// A lease of this server: no other server of the set has it. Ends when it is dropped.
#[derive(Debug)]
pub struct Lease {
    store: ClusterStore,
    name: String,
    token: String,
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.store.shared.fences).remove(&self.name);
        self.store.send(StoreRequest::Release(self.name.clone(), self.token.clone()));
    }
}

/// Outcome of asking for a lease.
#[derive(Debug)]
pub enum LeaseOutcome {
    /// This server has it.
    Held(Lease),
    /// Another server has it.
    Elsewhere,
    /// The store is away.
    Away,
}

impl ClusterStore {
    /// Starts the thread. `report` is called on it.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        options: StoreOptions,
        report: Box<dyn Fn(StoreEvent) + Send + Sync>,
    ) -> io::Result<ClusterStore> {
        let shared = Arc::new(ClusterState::new(Arc::new(options)));
        let (requests, received) = unbounded_channel();
        let theirs = shared.clone();
        std::thread::Builder::new().name("cluster".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    runtime.block_on(store_task::run(theirs, received, &*report));
                    // A name lookup may take long, and its result is not needed.
                    runtime.shutdown_background();
                }
                Err(error) => report(StoreEvent::Away(error.to_string())),
            }
        })?;
        Ok(ClusterStore { shared, requests })
    }

    /// The name of this server in the set.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// How a connection to the store is opened.
    #[must_use]
    pub fn options(&self) -> &StoreOptions {
        &self.shared.options
    }

    /// Begins to exchange these files with the other servers, in place of those before.
    pub fn share_files(&self, files: Arc<dyn SharedFiles>) {
        self.send(StoreRequest::Files(files));
    }

    /// Notes that a file of this server has changed; `lease` is the name of the lease under which it was made.
    pub fn note_written(&self, file: &str, lease: Option<&str>) {
        let fence = lease.and_then(|name| Some((name.to_owned(), *lock(&self.shared.fences).get(name)?)));
        self.send(StoreRequest::Written(file.to_owned(), fence));
    }

    /// Notes that a file of this server was removed.
    pub fn note_removed(&self, file: &str) {
        self.send(StoreRequest::Removed(file.to_owned()));
    }

    /// Sends all changes of this server and receives those of others; returns whether the store was there.
    pub async fn exchange(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.send(StoreRequest::Exchange(reply));
        answer.await.unwrap_or(false)
    }

    /// The same, for threads that may block. Takes at most twice the timeout of the store.
    pub fn exchange_blocking(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.send(StoreRequest::Exchange(reply));
        wait(answer, Instant::now() + 2 * self.shared.options.timeout).and_then(Result::ok).unwrap_or(false)
    }

    /// Asks for a lease.
    pub async fn lease(&self, name: &str) -> LeaseOutcome {
        let (reply, answer) = oneshot::channel();
        self.send(StoreRequest::Lease(name.to_owned(), reply));
        match answer.await {
            Ok(LeaseAnswer::Held(token)) => {
                LeaseOutcome::Held(Lease { store: self.clone(), name: name.to_owned(), token })
            }
            Ok(LeaseAnswer::Elsewhere) => LeaseOutcome::Elsewhere,
            Ok(LeaseAnswer::Away) | Err(_) => LeaseOutcome::Away,
        }
    }

    /// Sends a purge to the other servers. The report is there when they have applied it, or after the time that the
    /// configuration sets.
    pub fn begin_purge(&self, order: Vec<u8>) -> SentPurge {
        let (reply, answer) = oneshot::channel();
        self.send(StoreRequest::Purge(order, reply));
        let time = self.shared.options.purge_timeout + 2 * self.shared.options.timeout;
        SentPurge { answer, until: Instant::now() + time }
    }

    /// Sets what applies the purges of other servers.
    pub fn receive_purges(&self, receiver: Arc<dyn PurgeReceiver>) {
        *lock(&self.shared.receiver) = Some(receiver);
        self.shared.receiver_set.notify_one();
    }

    /// Sets what receives the secret of each period of `period_s` seconds for session tickets.
    pub fn receive_ticket_secrets(&self, period_s: u64, receive: SecretReceiver) {
        *lock(&self.shared.tickets) = Some((period_s, Arc::new(receive)));
        self.send(StoreRequest::Tickets);
    }

    /// How servers of the set speak to each other; `None` if this one does not share responses.
    #[must_use]
    pub fn peer_options(&self) -> Option<&PeerOptions> {
        self.shared.options.peers.as_ref()
    }

    /// Returns the servers that share responses, as last seen, with this one.
    #[must_use]
    pub fn peers(&self) -> Arc<Vec<SetPeer>> {
        lock(&self.shared.peers).clone()
    }

    /// Sets what is called, on the thread, after [`ClusterStore::peers`] has changed.
    pub fn on_peers_change(&self, listener: Box<dyn Fn() + Send>) {
        *lock(&self.shared.peers_listener) = Some(listener);
    }

    /// Returns the state of the store.
    #[must_use]
    pub fn status(&self) -> StoreStatus {
        let shared = &self.shared;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let is_up = shared.is_up.load(Ordering::Relaxed);
        StoreStatus {
            store: shared.options.describe(),
            name: shared.options.name.clone(),
            is_up,
            last_error: lock(&shared.last_error).clone().filter(|_| !is_up),
            servers: lock(&shared.servers).clone(),
            files_received: count(&shared.files_received),
            files_sent: count(&shared.files_sent),
            refused: count(&shared.refused),
            purges_applied: count(&shared.purges_applied),
            purges_unsent: count(&shared.purges_unsent),
            failures: count(&shared.failures),
        }
    }

    fn send(&self, request: StoreRequest) {
        // If the thread has ended, it has reported the reason.
        let _ = self.requests.send(request);
    }
}

/// A purge that was sent to the other servers. The future ends with the report, and has no deadline: see
/// [`SentPurge::time_left`].
#[derive(Debug)]
pub struct SentPurge {
    answer: oneshot::Receiver<PurgeReport>,
    until: Instant,
}

impl SentPurge {
    /// Time after which the store counts as not answering.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Waits for the report. Blocks.
    pub fn wait(self) -> PurgeReport {
        let until = self.until;
        wait(self, until).unwrap_or_else(SentPurge::unanswered)
    }

    /// The report of a purge for which the store has not answered.
    #[must_use]
    pub fn unanswered() -> PurgeReport {
        PurgeReport { error: Some("the store does not answer".to_owned()), ..PurgeReport::default() }
    }
}

impl Future for SentPurge {
    type Output = PurgeReport;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PurgeReport> {
        let polled = Pin::new(&mut self.answer).poll(cx);
        polled.map(|answer| answer.unwrap_or_else(|_| SentPurge::unanswered()))
    }
}

/// Wakes a thread that waits in [`wait`].
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on a thread that may block; `None` at this time.
fn wait<F: Future + Unpin>(mut future: F, until: Instant) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut cx) {
            return Some(output);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        // Also returns without a reason; then the future is asked again.
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_thread_is_woken_by_the_answer_and_by_its_end() {
        let far = Instant::now() + Duration::from_secs(3_600);
        let answered = |act: fn(oneshot::Sender<u8>)| {
            let (reply, answer) = oneshot::channel();
            let (begun, begins) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                begun.send(()).unwrap();
                wait(answer, far)
            });
            begins.recv().unwrap();
            act(reply);
            thread.join().unwrap()
        };
        assert_eq!(answered(|reply| reply.send(7).unwrap()), Some(Ok(7)));
        assert!(matches!(answered(drop), Some(Err(_))));
        let (_reply, answer) = oneshot::channel::<u8>();
        assert_eq!(wait(answer, Instant::now()), None);
    }
}

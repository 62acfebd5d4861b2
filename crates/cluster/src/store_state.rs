//! State that the handles of the store share with its thread, and the requests to the thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::files::SharedFiles;
use crate::options::StoreOptions;
use crate::peers::SetPeer;
use crate::purges::{PurgeReceiver, PurgeReport};
use crate::tickets::SecretReceiver;

/// An event for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreEvent {
    /// The store cannot be used, for this reason.
    Away(String),
    /// The store can be used again.
    Back,
    /// A problem of a single value, or another remark.
    Problem(String),
}

/// State of the store for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreStatus {
    /// Address as configured.
    pub store: String,
    /// Name of this server.
    pub name: String,
    /// Whether the last exchange succeeded.
    pub is_up: bool,
    /// Reason of the last failure.
    pub last_error: Option<String>,
    /// Names of the servers that gave a sign of life lately.
    pub servers: Vec<String>,
    /// Files received from other servers.
    pub files_received: u64,
    /// Files sent.
    pub files_sent: u64,
    /// Values of the store that were not used.
    pub refused: u64,
    /// Purges of other servers that were applied.
    pub purges_applied: u64,
    /// Purges that wait for the store.
    pub purges_unsent: u64,
    /// Times that the store went away.
    pub failures: u64,
}

/// A request to the thread.
pub(crate) enum StoreRequest {
    Files(Arc<dyn SharedFiles>),
    Written(String, Option<(String, u64)>),
    Removed(String),
    /// Answered when all changes of this server are sent and those of others received; `false` if the store is away.
    Exchange(oneshot::Sender<bool>),
    Lease(String, oneshot::Sender<LeaseAnswer>),
    Release(String, String),
    Purge(Vec<u8>, oneshot::Sender<PurgeReport>),
    Tickets,
}

/// Answer of the thread, which has no handle of itself: that would keep it from ending.
#[derive(Debug)]
pub(crate) enum LeaseAnswer {
    /// Granted, with this token.
    Held(String),
    Elsewhere,
    Away,
}

/// State that the handles share with the thread.
pub(crate) struct ClusterState {
    pub(crate) options: Arc<StoreOptions>,
    pub(crate) is_up: AtomicBool,
    pub(crate) last_error: Mutex<Option<String>>,
    pub(crate) servers: Mutex<Vec<String>>,
    /// Servers that can be asked for responses, in the order of their names.
    pub(crate) peers: Mutex<Arc<Vec<SetPeer>>>,
    /// Called after `peers` has changed.
    pub(crate) peers_listener: Mutex<Option<Box<dyn Fn() + Send>>>,
    pub(crate) files_received: AtomicU64,
    pub(crate) files_sent: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) purges_applied: AtomicU64,
    pub(crate) purges_unsent: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// Numbers of the leases that this server holds, by name.
    pub(crate) fences: Mutex<HashMap<String, u64>>,
    pub(crate) receiver: Mutex<Option<Arc<dyn PurgeReceiver>>>,
    pub(crate) receiver_set: Notify,
    pub(crate) tickets: Mutex<Option<(u64, Arc<SecretReceiver>)>>,
}

impl ClusterState {
    pub(crate) fn new(options: Arc<StoreOptions>) -> ClusterState {
        ClusterState {
            options,
            // Until it is known otherwise, so that a failure at the start is reported.
            is_up: AtomicBool::new(true),
            last_error: Mutex::default(),
            servers: Mutex::default(),
            peers: Mutex::default(),
            peers_listener: Mutex::default(),
            files_received: AtomicU64::new(0),
            files_sent: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            purges_applied: AtomicU64::new(0),
            purges_unsent: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            fences: Mutex::default(),
            receiver: Mutex::default(),
            receiver_set: Notify::new(),
            tickets: Mutex::default(),
        }
    }
}

/// Locks a mutex, also if a thread has panicked that held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

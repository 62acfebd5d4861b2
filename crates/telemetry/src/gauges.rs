//! Values that are read from other components at the time of a scrape.

use std::sync::Arc;

use apps::WorkerExit;
use net::Counters;
use proxy::GroupShared;

use crate::rule_counters::RuleCount;

/// A process of an application.
#[derive(Debug)]
pub struct WorkerMetrics {
    /// Name of the application.
    pub app: String,
    /// Number of the worker, from 1; 0 for the prototype.
    pub worker: usize,
    /// State of the worker, as `komainu status` shows it.
    pub state: String,
    /// Proportional set size in bytes.
    pub pss_bytes: u64,
    /// CPU time in milliseconds.
    pub cpu_ms: u64,
    /// Number of requests answered.
    pub requests: u64,
}

/// Current requests of an application.
#[derive(Debug)]
pub struct AppQueue {
    /// Name of the application.
    pub app: String,
    /// Requests that wait for a worker.
    pub waiting: usize,
    /// Requests in workers.
    pub active: usize,
}

/// A rate limit.
#[derive(Debug)]
pub struct LimitMetrics {
    /// The site of the limit.
    pub site: String,
    /// The route of the limit; empty for a limit of a site.
    pub route: String,
    /// The key of the limit.
    pub limit: String,
    /// Whether the limit only counts.
    pub is_dry: bool,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that were delayed.
    pub delayed: u64,
    /// Keys whose counts were dropped because there were too many.
    pub evicted: u64,
    /// Bytes of memory that the counts occupy.
    pub bytes: u64,
}

/// State of a route's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueMetrics {
    /// The site of the queue.
    pub site: String,
    /// The route of the queue.
    pub route: String,
    /// Requests in the handler.
    pub active: u64,
    /// Requests that wait.
    pub waiting: u64,
}

/// State of `komainu kubernetes`: the API server, and what was applied of its objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubernetesStatus {
    /// Why the API server cannot be asked; `None` if it answers.
    pub fault: Option<String>,
    /// Time since which it does not answer, in seconds since 1970.
    pub away_since_unix_s: Option<u64>,
    /// Times that it went away.
    pub failures: u64,
    /// Time of the last change that was put in force, in milliseconds since 1970; `None` before the first.
    pub applied_unix_ms: Option<u64>,
    /// Configurations that were put in force: with a new router.
    pub whole_changes: u64,
    /// Changes of servers of groups alone, without one.
    pub server_changes: u64,
    /// Changes of certificates alone, without one.
    pub certificate_changes: u64,
    /// Changes that could not be put in force.
    pub failed_changes: u64,
    /// Sites that were read because they had changed.
    pub sites_read: u64,
    /// Sites in force.
    pub sites: u64,
    /// Objects that are known.
    pub objects: u64,
    /// Whether this replica writes statuses.
    pub is_leader: bool,
}

/// Values read from other components at the time of a scrape.
#[derive(Debug)]
pub struct Gauges {
    /// Counters of each core.
    pub cores: Vec<Arc<Counters>>,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// CPU seconds of the server process.
    pub cpu_s: f64,
    /// Resident memory of the server process in bytes.
    pub resident_bytes: u64,
    /// Bytes held for connections.
    pub held_bytes: u64,
    /// The memory budget of connections in bytes.
    pub budget_bytes: u64,
    /// Requests refused because the budget was spent.
    pub refused: u64,
    /// Worker processes.
    pub workers: Vec<WorkerMetrics>,
    /// Queues of applications.
    pub app_queues: Vec<AppQueue>,
    /// Ended workers by application and reason.
    pub exits: Vec<(String, [u64; WorkerExit::ALL.len()])>,
    /// Groups of upstream servers.
    pub upstreams: Vec<Arc<GroupShared>>,
    /// Rate limits.
    pub limits: Vec<LimitMetrics>,
    /// Queues of routes.
    pub queues: Vec<QueueMetrics>,
    /// Counts of rules.
    pub rules: Vec<RuleCount>,
    /// State of the store of the set of servers, if there is one.
    pub cluster: Option<cluster::StoreStatus>,
    /// State of `komainu kubernetes`, if this is it.
    pub kubernetes: Option<KubernetesStatus>,
    /// Name and expiry of certificates, in seconds since 1970.
    pub certificates: Vec<(String, i64)>,
}

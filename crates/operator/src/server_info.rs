//! The parts of a running server that its control socket and API use.

use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use telemetry::gauges::KubernetesStatus;

use certificates::managed::RunningCertificates;
use certificates::tls::FileCertificate;
use cluster::StoreStatus;
use engine::generations::Generations;
use failure::Failure;
use hosting::workers::Hosting;
use logging::events::EventRing;
use net::Counters;
use process::link::SupervisorLink;
use proxy::GroupShared;
use serde_json::Value;
use telemetry::gauges::{LimitMetrics, QueueMetrics};
use telemetry::metrics::Metrics;
use telemetry::rule_counters::RuleCount;

use crate::config_text::{ConfigEdit, ConfigText, EditError};
use crate::peer::{self, PeerRefusal};

/// Result of a reload, before applications are loaded.
pub struct ReloadOutcome {
    /// Effect on the running server.
    pub effect: ReloadEffect,
    /// Message for the operator.
    pub message: String,
    /// Problems of the active certificates for which clients will reject them.
    pub warnings: Vec<String>,
}

/// Effect of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadEffect {
    /// The new configuration is active.
    Active,
    /// The new configuration is active, except for parts that the message names.
    PartlyActive,
    /// Nothing has changed, because the new configuration has faults.
    Unchanged,
    /// The server was busy and read nothing: the reload can be retried.
    NotBegun,
}

impl ReloadOutcome {
    /// Whether the new configuration is active and applications are being loaded.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self.effect, ReloadEffect::Active | ReloadEffect::PartlyActive)
    }
}

/// Counters and events of a server.
pub struct CounterSources {
    /// Counts of all cores.
    pub metrics: Metrics,
    /// Counters of the serving cores.
    pub cores: Vec<Arc<Counters>>,
    /// The last lines of the error log.
    pub events: EventRing,
}

/// The parts of a running server that the control socket and API use.
pub struct ServerInfo {
    /// The applications that run.
    pub hosting: Arc<Hosting>,
    /// Stops the server.
    pub stop_handle: net::StopHandle,
    /// The open listening sockets.
    pub listeners: net::Listeners,
    /// Time of the start.
    pub started_at: Instant,
    /// Counters and events.
    pub counters: CounterSources,
    /// The memory budget of connections.
    pub memory: net::MemoryBudget,
    /// Description of the sandbox of the serving threads.
    pub sandbox: String,
    /// Process id of the supervisor and the link to it, if there is one.
    pub supervisor: Option<(u32, SupervisorLink)>,
    /// Certificates obtained by the server itself; unset if it obtains none.
    pub certificates: Arc<OnceLock<RunningCertificates>>,
    /// Executes a cache command (the line after `cache `) and returns the document for the client.
    pub run_cache_command: Box<dyn Fn(&str) -> Value + Send + Sync>,
    /// Returns the state of the store of the set of servers, if there is one.
    pub cluster_status: Box<dyn Fn() -> Option<StoreStatus> + Send + Sync>,
    /// Returns the state of `komainu kubernetes`, if this is it.
    pub kubernetes_status: Box<dyn Fn() -> Option<KubernetesStatus> + Send + Sync>,
    /// Returns the metrics of rate limits.
    pub limit_metrics: Box<dyn Fn() -> Vec<LimitMetrics> + Send + Sync>,
    /// Returns the metrics of the routes' queues.
    pub queue_metrics: Box<dyn Fn() -> Vec<QueueMetrics> + Send + Sync>,
    /// Returns the counts of rules that only some routes have.
    pub rule_counts: Box<dyn Fn() -> Vec<RuleCount> + Send + Sync>,
    /// Returns the groups of upstream servers.
    pub upstreams: Box<dyn Fn() -> Vec<Arc<GroupShared>> + Send + Sync>,
    /// Returns the groups of upstream servers with their names.
    pub groups: Box<dyn Fn() -> Vec<(String, Arc<GroupShared>)> + Send + Sync>,
    /// Reopens the logs; returns the failures.
    pub reopen_logs: Box<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Returns the certificates loaded from files.
    pub file_certificates: Box<dyn Fn() -> Vec<FileCertificate> + Send + Sync>,
    /// The generations of the configuration.
    pub generations: Arc<Generations>,
    /// Returns the text of the active configuration; `None` if it does not come from a file.
    pub active_text: Box<dyn Fn() -> Option<ConfigText> + Send + Sync>,
    /// Returns the directives of the active configuration that only a restart applies.
    pub awaiting_restart: Box<dyn Fn() -> Vec<&'static str> + Send + Sync>,
    /// Changes the configuration and waits for the result.
    pub edit_config: Box<dyn Fn(ConfigEdit) -> Result<Value, EditError> + Send + Sync>,
    /// Reloads the configuration and waits for the result.
    pub reload_config: Box<dyn Fn() -> ReloadOutcome + Send + Sync>,
    /// Starts a new process of the program and waits until it has taken over or failed.
    pub upgrade_server: Box<dyn Fn() -> Result<String, Failure> + Send + Sync>,
}

impl ServerInfo {
    /// Returns why the peer of a Unix socket may not control the server; `None` if it may.
    pub(crate) fn peer_refusal(&self, socket: impl AsFd) -> Option<PeerRefusal> {
        let supervisor = self.supervisor.as_ref().map(|(pid, _)| *pid);
        peer::peer_refusal(socket, supervisor, |uid| self.hosting.is_sandboxed(uid))
    }
}

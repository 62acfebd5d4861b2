//! Variables of logs.

/// What is known of a request once it is over, for logs alone. Durations are in milliseconds with three decimals unless they
/// say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogVariable {
    /// `$time`: when it was over, as RFC 3339 writes it.
    Time,
    /// `$time_local`: the same as the combined format writes it.
    TimeLocal,
    /// `$proxy_addr`: the trusted proxy that sent the request.
    ProxyAddr,
    /// `$target`: the request target as sent, bytes beyond ASCII percent-encoded.
    Target,
    /// `$version`: `HTTP/1.1` and others.
    Version,
    /// `$referer`: the field of that name.
    Referer,
    /// `$user_agent`: the field of that name.
    UserAgent,
    /// `$status`: of the response; 499 where the client left before it.
    Status,
    /// `$body_bytes`: content bytes of the response.
    BodyBytes,
    /// `$request_bytes`: content bytes of the request that were read.
    RequestBytes,
    /// `$duration_ms`: from the whole head of the request to the end of its response.
    DurationMs,
    /// `$request_time`: the same in seconds.
    RequestTime,
    /// `$first_byte_ms`: to the head of the response.
    FirstByteMs,
    /// `$queue_ms`: in the queue for an upstream server, or for a worker of an application.
    QueueMs,
    /// `$connect_ms`: to make connections to upstream servers.
    ConnectMs,
    /// `$upstream_ms`: to the head of the upstream server's response.
    UpstreamMs,
    /// `$attempts`: how often upstream servers were asked.
    Attempts,
    /// `$server_cpu_ms`: CPU time of this server's thread in the request's handler.
    ServerCpuMs,
    /// `$worker`: the number of the worker that has answered.
    Worker,
    /// `$worker_cpu_ms`: CPU time of the worker's thread, if it had no other request meanwhile.
    WorkerCpuMs,
    /// `$worker_memory_kib`: by how much the worker's resident memory has grown, or shrunk (`-`).
    WorkerMemoryKib,
    /// `$branch`: the branch of a `split` that has served it.
    Branch,
    /// `$cache`: what the cache has done.
    Cache,
    /// `$reason`: why this server has answered with an error by itself.
    Reason,
    /// `$fault`: why the request or its response ended early.
    Fault,
}

impl LogVariable {
    /// Whether its value is a number.
    #[must_use]
    pub fn is_number(self) -> bool {
        matches!(
            self,
            LogVariable::Status
                | LogVariable::BodyBytes
                | LogVariable::RequestBytes
                | LogVariable::DurationMs
                | LogVariable::RequestTime
                | LogVariable::FirstByteMs
                | LogVariable::QueueMs
                | LogVariable::ConnectMs
                | LogVariable::UpstreamMs
                | LogVariable::Attempts
                | LogVariable::ServerCpuMs
                | LogVariable::Worker
                | LogVariable::WorkerCpuMs
                | LogVariable::WorkerMemoryKib
        )
    }
}

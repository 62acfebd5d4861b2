//! Variables of logs.

/// A property of a completed request, available in logs only. Durations are in milliseconds with three
/// decimals unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogVariable {
    /// `$time`: end of the request, in RFC 3339 format.
    Time,
    /// `$time_local`: end of the request, in the format of the combined log.
    TimeLocal,
    /// `$proxy_addr`: the trusted proxy that sent the request.
    ProxyAddr,
    /// `$target`: the request target as sent, bytes beyond ASCII percent-encoded.
    Target,
    /// `$version`: `HTTP/1.0`, `HTTP/1.1`, `HTTP/2.0` or `HTTP/3.0`.
    Version,
    /// `$referer`: the `Referer` field.
    Referer,
    /// `$user_agent`: the `User-Agent` field.
    UserAgent,
    /// `$status`: status of the response; 499 if the client closed the connection before it.
    Status,
    /// `$body_bytes`: content bytes of the response.
    BodyBytes,
    /// `$request_bytes`: content bytes of the request that were read.
    RequestBytes,
    /// `$duration_ms`: from the complete request head to the end of the response.
    DurationMs,
    /// `$request_time`: the same duration in seconds.
    RequestTime,
    /// `$first_byte_ms`: from the complete request head to the head of the response.
    FirstByteMs,
    /// `$queue_ms`: time in the queue for an upstream server or an application worker.
    QueueMs,
    /// `$connect_ms`: time to connect to upstream servers.
    ConnectMs,
    /// `$upstream_ms`: time until the head of the upstream server's response.
    UpstreamMs,
    /// `$attempts`: number of attempts to reach an upstream server.
    Attempts,
    /// `$server_cpu_ms`: CPU time of this server's thread in the request's handler.
    ServerCpuMs,
    /// `$worker`: number of the worker that handled the request.
    Worker,
    /// `$worker_cpu_ms`: CPU time of the worker's thread, if it handled no other request at the same time.
    WorkerCpuMs,
    /// `$worker_memory_kib`: change of the worker's resident memory; negative (`-`) if it shrank.
    WorkerMemoryKib,
    /// `$branch`: the branch of a `split` that served the request.
    Branch,
    /// `$cache`: result of the cache lookup.
    Cache,
    /// `$reason`: why this server generated an error response itself.
    Reason,
    /// `$fault`: why the request or its response ended early.
    Fault,
}

impl LogVariable {
    /// Whether the variable's value is a number.
    pub(crate) fn is_number(self) -> bool {
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

//! State of each direction of a WebSocket.

/// State of the input from the client; the variants are in chronological order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClientInput {
    Open,
    /// Input is read and discarded.
    Discarded,
    /// The client sends no more, or nothing more is read from it.
    Ended,
}

/// State of the output to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClientOutput {
    Open,
    /// A close was sent, or cannot be sent any more.
    Closed,
    /// Nothing can be sent to the client any more.
    Broken,
}

/// State of the output to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerInput {
    Open,
    /// The last record is queued.
    Closing,
    /// The worker has received all of the last record.
    Closed,
}

/// State of the input from the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerOutput {
    Open,
    /// The deadline for the worker's end is set.
    Limited,
    /// The worker's response has ended.
    Ended,
}

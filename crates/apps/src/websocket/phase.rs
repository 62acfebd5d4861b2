//! How far each direction of a WebSocket is.

/// What is read from the client, in the order in which it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClientInput {
    Open,
    /// Input is read and discarded.
    Discarded,
    /// The client sends no more, or nothing more is read from it.
    Ended,
}

/// What is sent to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClientOutput {
    Open,
    /// A close was sent, or cannot be sent any more.
    Closed,
    /// Nothing at all can be sent to the client any more.
    Broken,
}

/// What is written to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerInput {
    Open,
    /// The last record is queued.
    Closing,
    /// The worker has got all of the last record.
    Closed,
}

/// What is read from the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerOutput {
    Open,
    /// The deadline for the worker's end is set.
    Limited,
    /// The worker's response has ended.
    Ended,
}

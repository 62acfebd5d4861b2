//! The server engine, shared-nothing with one instance per core: reactor, executor, timers, buffers,
//! listeners and HTTP connections.
//!
//! This crate owns sockets and time. A [`Core`] belongs to one thread: an edge-triggered epoll instance, a
//! small executor, and a clock that is updated once each tick. Cores share only counters, wake-ups and idle
//! connections to other servers ([`IdleLinks`]). A connection owns its protocol state and borrows buffers
//! only while data is transferred. Handlers use an [`Exchange`], which hides the HTTP version and the socket.
//! It never routes: routing and policy belong to the [`Service`].
//!
//! A connection with TLS that speaks HTTP/2 passes through these, in this order:
//!
//! 1. `listener::accept` and `accept_one` make an `IdleClient`; `AwaitingHandshake::park` lets it wait without a
//!    future.
//! 2. Bytes arrive: `AwaitingHandshake::resume`, `tls_setup::continue_handshake` with a `TlsHandshake`, then
//!    `IdleClient::with_tls` and `client_connection::drive`.
//! 3. `activate` allocates buffers; `h1::serve_available` asks `protocol::detect`, which finds HTTP/2, and ends.
//! 4. `multiplexed::serve` feeds bytes to `H2Server`; `StreamRequests::handle` gets its events, and `start_stream`
//!    begins a task for a request.
//! 5. `stream_task` serves it: `StreamLane::open`, `run_handler`, and the [`Service`], `routing::router::SharedRouter`,
//!    whose `Route::serve` runs the steps and the handler.
//!
//! Modules are ordered from low to high; a module uses only those above it.

pub mod fault;
pub mod trusted_path;
mod in_place;
pub mod clock;
pub mod address;
pub mod listen;
mod client_hello;
pub mod proxy_protocol;
pub mod sys;
mod remote;
pub mod offload;
pub mod turn_hook;
mod source;
mod slab;
mod heavy;
pub mod memory;
pub mod core;
#[cfg(test)]
mod sim;
pub mod spill;
mod wait;
pub mod bandwidth;
pub mod stream;
mod progress;
pub mod tls;
mod gate;
mod udp_sender;
mod datagram_socket;
pub mod websocket;
pub mod link;
mod idle;
pub mod io_buffers;
pub mod buffer_pool;
pub mod options;
pub mod page;
pub mod connections;
pub mod counters;
pub mod cost;
pub mod durations;
pub mod notes;
mod body_copy;
pub mod compress;
mod replace;
mod filters;
mod amended_request;
pub mod named_file;
mod request_state;
mod permit;
mod ending;
mod relay;
mod stream_client;
mod datagrams;
mod conn;
mod outbound;
mod inbound;
mod response;
mod overflow;
mod file;
mod mux;
mod h2;
mod h3;
pub mod mux_client;
pub mod client;
#[cfg(any(test, feature = "sim"))]
pub mod toy;
mod detached;
mod lane;
mod grpc;
mod request;
mod routed;
pub mod exchange;
pub mod dictionary;
mod coding_choice;
mod replaced_content;
mod intercept;

pub mod flow;
pub mod tunnel;
pub mod service;
mod protocol;
mod stream_requests;
mod multiplexed;
mod quic;
mod datagram_listener;
mod h1;
mod client_connection;
mod tls_setup;
mod preread;
mod proxy_header;
mod bind;
mod listener;
pub mod server;

pub use address::{
    BindAddress, Client, ConnectAddress, ListenOptions, ListenUrl, Peer, PeerSet, StreamListener,
};
pub use bandwidth::BandwidthLimit;
pub use bind::{Listener, bound_address, remove_socket};
pub use body_copy::BodyCopyCallback;
pub use buffer_pool::{BufferPool, Buffers, HeldBuffers};
pub use compress::{CompressResponses, coded_fields};
pub use connections::{ConnectionProtocol, OpenConnection, OpenConnections};
pub use core::Core;
pub use cost::CpuMeter;
pub use counters::{Counter, Counters};
pub use datagrams::{
    DatagramClient, DatagramEnd, DatagramLink, DatagramRelayOptions, DatagramTap, DropReason, ServeDatagrams,
};
pub use detached::{DetachedRequest, ResponseSink};
pub use dictionary::{
    DeltaStart, DictionaryChoice, DictionarySource, DictionaryStore, DictionaryTransport, DictionaryUse,
    UseAsDictionary,
};
pub use durations::{DurationCounts, DurationHistogram};
pub use exchange::Exchange;
pub use fault::Fault;
pub use filters::{DefaultFields, FieldEdits, HeadTap, UpgradeTap};
pub use flow::BodyPiece;
pub use gate::{ConnectionGate, GatePermit, SharedGate, TooManyConnections};
pub use h3::{Http3Client, Http3Event, Http3Options};
pub use idle::IdleLinks;
pub use in_place::pin_in_place;
pub use inbound::PIECE_WEIGHT_BYTES;
pub use io_buffers::{InputBuffer, OutputBuffer};
pub use link::Link;
pub use listen::{ConfiguredListener, EarlyHints, Listen};
pub use listener::{Listeners, NewListeners};
pub use memory::{Memory, MemoryBudget, MemoryCharge, Pressure};
pub use mux::MuxRequest;
pub use mux_client::{MuxLink, MuxLinkOptions, MuxRequestStream, StreamFailure, StreamStep};
pub use named_file::{FileReference, NamedFile};
pub use notes::{CacheOutcome, FailedAttempt, FailedAttempts, MeasuredCosts, RequestNotes};
pub use options::{Limits, Options, ServingLimits, Timeouts};
pub use overflow::SPILL_BLOCK_BYTES;
pub use page::{ErrorPages, Page};
pub use progress::SendProgress;
pub use proxy_protocol::ProxyProtocol;
pub use relay::{RelayEnd, RelaySide};
pub use replace::{BodyReplacement, REPLACEMENTS_MAX, ReplacementRule, ReplacementTexts};
pub use request::Request;
pub use request_state::VerifiedUser;
pub use routed::{RequestContext, RouteLimits};
pub use server::{Server, StopHandle};
pub use service::{RequestRecord, Service};
pub use source::Source;
pub use spill::{SpillError, SpillFile, SpillQuota, SpillStore};
pub use stream::Stream;
pub use stream_client::{ServeStream, StreamChoice, StreamClient, StreamFuture, StreamOpening, StreamStart};
pub use tls::{
    BlockingTlsStream, CertificateFault, CertificateInfo, CertificateStore, ClientCertificates,
    ClientIdentity, HandshakeFailure, ServerCertificate, TICKET_PERIOD_S, TicketKeys, TlsAcceptor,
    TlsAgreement, TlsClient, TlsClientOptions, TlsHttp, TlsOptions, TlsSession, TlsSite, TlsStream,
    strip_byte_order_marks,
};
pub use tunnel::{TunnelEnd, tunnel};
pub use turn_hook::{TaskId, TurnHook};
pub use wait::Interest;

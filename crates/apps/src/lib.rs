//! Applications: relaying requests to worker slots, and managing the worker processes.
//!
//! This crate owns everything between an HTTP exchange and the [`ring`] channel: encoding of requests for a
//! worker, conversion of its output to a response, the time limits of both, and starting, replacing and
//! stopping processes, and the directives of applications. It never knows how a language is started: a worker is
//! a command that speaks the protocol of `workers/README.md`.
//!
//! # The path of a request
//!
//! ```text
//! Handle::serve     read the beginning of the body, so that slow clients do not occupy a worker
//!   request         encode the head as fields of `ring::wire`
//!   Dispatcher::submit write it to a slot of this core; one doorbell for all at the end of the engine's turn
//!   PendingRequest::news    sleep; the dispatcher wakes the task when its ticket has news or times out
//!   PendingRequest::receive receive the parts of the response that are available
//!   reply           check them, then write them through the exchange
//! ```
//!
//! # Responsibilities
//!
//! An [`App`] has one supervisor thread, which starts the processes of each *generation* (one load of the application's
//! code, with a channel of its own) and notices when they end; and on each core a [`Handle`], which never blocks. They
//! communicate through queues: the supervisor sends new generations and deaths, the cores ask for more workers and ask
//! it to kill stuck ones.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod process;
mod launcher;
mod sandbox;
mod php;
pub mod directives;
pub mod options;
mod log;
mod deflate;
mod upgrade;
mod request;
mod response;
mod generation;
mod load_results;
mod queues;
mod descriptors;
mod dispatcher;
mod upload;
mod file;
mod hijack;
mod chunks;
mod websocket_record;
mod frame;
mod inbound;
mod outbound;
mod websocket;
mod call;
mod handle;
mod launch;
mod child;
mod worker_pool;
mod orphans;
mod supervisor;
mod app;

pub use app::App;
pub use directives::{
    AppKind, AppLimits, AppSettings, AppTimeouts, AppWebSockets, Lifespan, Mounted, PythonInterface, Recycle,
    Workers,
};
pub use handle::{Handle, Mount};
pub use launch::{spawn, spawn_unrelated, switch_off_huge_pages};
pub use launcher::{Launch, Launcher};
pub use load_results::LoadError;
pub use log::{AppLogLevel, Log, LogLine};
pub use options::Options;
pub use orphans::Orphans;
pub use php::PhpApp;
pub use process::{AppSnapshot, CurrentRequest, ProcessInfo, Usage, WorkerExit};
pub use sandbox::AppSandbox;

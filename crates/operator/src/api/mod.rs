//! The control API, `/v1/…`: one table of operations, by which requests are answered and of which `/v1/openapi.json` is made,
//! whichever way they come (the control listener, or the control socket of `komainu ctl`).

mod request;
mod audit;
mod operation;
mod upstreams;
mod applications;
mod server;
mod connections;
mod configuration;
mod generations;
mod openapi;
mod table;
mod line;

pub use audit::AuditLog;
pub use line::line;
pub use operation::Api;
pub(crate) use request::{ApiRequest, ApiResponse, BODY_BYTES_MAX, Caller, ControlRole};
pub(crate) use table::{answer, needed_role};

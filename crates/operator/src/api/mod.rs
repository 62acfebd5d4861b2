//! The control API, `/v1/…`. A single table of operations dispatches requests from both transports (the
//! control listener, and the control socket used by `komainu ctl`) and generates `/v1/openapi.json`.

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
pub use line::answer_line;
pub use operation::Api;
pub(crate) use request::{ApiRequest, ApiResponse, BODY_BYTES_MAX, Caller, CallerRole};
pub(crate) use table::{answer_request, required_role};

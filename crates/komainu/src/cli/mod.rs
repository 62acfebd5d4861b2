//! The command line: arguments, and one module per command.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod values;
pub(crate) mod measure;
pub(crate) mod ab;
pub(crate) mod control_endpoint;
pub(crate) mod ctl_arguments;
pub(crate) mod sign_url_arguments;
pub(crate) mod serve;
pub(crate) mod start;
pub(crate) mod run;
pub(crate) mod kubernetes;
pub(crate) mod check;
pub(crate) mod import;
pub(crate) mod control_client;
pub(crate) mod status_fetch;
pub(crate) mod status;
pub(crate) mod ctl;
pub(crate) mod top;
pub(crate) mod cache;
pub(crate) mod cert;
pub(crate) mod sign_url;
pub(crate) mod diff;
pub(crate) mod arguments;
pub(crate) mod hints;

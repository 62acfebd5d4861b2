//! The configuration: reads TOML text and returns a checked [`Config`], or all errors, each with its line and a caret.
//!
//! This crate owns the tables of server, site and route, which join the directives that other crates declare, the levels
//! among them, and the search for the route of a request. It never opens a file or a socket, and starts nothing: the
//! caller reads the file, and hands the parts of the [`Config`] to the crates that act on them.
//!
//! The modules, from low to high; each imports only from those above it.

mod hint;

mod unknown_keys;

mod snippet;

mod hsts;

mod geo;

mod variable_map;

mod response_headers;
mod trusted_proxies;
mod shared_limits;
mod redirect_loops;
mod control;

mod scripts;

mod replace;

mod error_pages;

mod error_server;

mod condition_fields;

mod referer;

mod conditions;

mod mirror;

mod action;

mod rewrite;

mod site;

mod site_listeners;

mod stream;

mod condition_warnings;

mod guards;

mod side_doors;

mod no_effect;

mod warnings;

mod server;

mod listeners;

mod levels;

mod named_files;

pub mod matcher;

pub use action::{Action, Branch, Redirect, Respond, Split, SplitBy};
pub use conditions::{ConditionSet, Conditions};
pub use control::{Control, ControlClient, ControlToken, TokenRole, parse_control_token};
pub use error_pages::{ErrorPages, StatusPattern};
pub use error_server::ErrorServer;
pub use geo::{CountryPattern, Geo};
pub use levels::RouteSettings;
pub use listeners::listener_key;
pub use mirror::{InjectedFault, Mirror};
pub use named_files::NamedFiles;
pub use referer::{RefererExpression, RefererPattern};
pub use replace::BodyEdit;
pub use response_headers::ResponseHeaders;
pub use server::{Config, Limits, OpenFiles, Timeouts};
pub use settings::checker::InvalidValue;
pub use settings::document::{EnvironmentLookup, TEXT_BYTES_MAX, directive_tree, include_patterns};
pub use settings::format::format;
pub use settings::joined_text::{ConfigLine, add_config_place, join_files, split_files};
pub use settings::report::{Finding, NamedAccount, NamedPath, Report, Severity, TextSpan};
pub use settings::units::{GIB, KIB, MIB, parse_duration, parse_size};
pub use site::{
    EncodedSlashes, HiddenRouteKind, MIRROR_FIELD, PartOf, Route, RouteLimits, RouteTimeouts, Site,
};
pub use stream::{Stream, StreamProtocol, StreamServer, StreamTimeouts};
pub use trusted_proxies::TrustedProxies;
pub use variable_map::{MapKey, VariableMap, check_variable_name};

const INTRODUCTION: &str = "\
# Configuration

The configuration is one TOML file. Every directive has a default, so the file may be empty. Sizes and durations are strings
with a unit: `\"16KiB\"` (B, KiB, MiB, GiB, TiB), `\"1m30s\"` (ms, s, m, h, d). Relative paths are relative to the file's folder.
`komainu check -c FILE` shows the errors of a file and their places; `komainu schema` prints a JSON Schema for editors.

This page is generated from the directives themselves. Its chapters, each with its directives in their order:
";

/// Returns the reference of all directives, the text of `docs/configuration.md`.
#[must_use]
pub fn reference() -> String {
    settings::reference::reference::<Config>(INTRODUCTION)
}

/// Returns the JSON Schema of a configuration file, for editors.
#[must_use]
pub fn schema() -> serde_json::Value {
    settings::schema::schema::<Config>("Komainu configuration")
}

#[cfg(test)]
mod tests;

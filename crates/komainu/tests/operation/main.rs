//! Operation of the real binary: start, signals, reloads, privileges and diagnostics.
#![allow(clippy::print_stderr, clippy::unwrap_used)] // test helpers are test code too

#[path = "../certified/mod.rs"]
mod certified;
#[path = "../hosted/mod.rs"]
mod hosted;
#[path = "../line/mod.rs"]
mod line;
#[path = "../origin/mod.rs"]
mod origin;
#[path = "../rig/mod.rs"]
mod rig;

mod access_log;
mod api;
mod api_config;
mod api_files;
mod as_user;
mod clock;
mod collector;
mod control;
mod control_listener;
mod control_tls;
mod control_tokens;
mod costs;
mod crashes;
mod delivered;
mod escapes;
mod file_rights;
mod full_disk;
mod generations;
mod groups;
mod hostile_server;
mod import;
mod listen_reload;
mod logs;
mod lost_peers;
mod many_sites;
mod metrics;
mod named_files;
mod operation;
mod otlp;
mod overview;
mod planted_links;
mod privileges;
mod prometheus;
mod remedies;
mod run_flags;
mod sandbox;
mod site_listen;
mod slow_disk;
mod starts;
mod systemd;
mod terminals;
mod traces;
mod trust;
mod upgrade;
mod upgrade_orphans;

//! Puma.

use crate::directive::{ForeignDirective, here, not_needed, not_there};
use crate::shared::{CODE, FORKED, MODERN_TLS, RUNNING};

const SETTINGS: &[ForeignDirective] = &[
    here(&["workers", "threads"], "`workers` (a number, or `{ min, max }`), `threads` in `[apps.NAME]`")
        .ambiguous(),
    not_needed(&["preload_app!", "fork_worker", "nakayoshi_fork"], FORKED),
    here(
        &["before_fork", "on_worker_boot", "on_worker_shutdown"],
        "`Komainu.before_fork`, `Komainu.after_fork`, `at_exit` in the application",
    ),
    here(&["worker_timeout"], "`timeouts.request`: a limit for the request, not for the process"),
    here(&["worker_boot_timeout", "worker_shutdown_timeout"], "`timeouts.start`, `timeouts.stop`"),
    here(&["persistent_timeout"], "`idle` in `[timeouts]`"),
    here(&["bind \"unix://…\"", "bind \"ssl://…\""], "`listen`, `tls`"),
    here(&["(phased restart, hot restart)"], "`komainu reload`, `komainu upgrade`"),
    here(&["pumactl stats"], "`komainu status`, `/metrics`"),
    here(&["puma_worker_killer"], "`recycle = { memory = \"500MiB\", requests = 10_000 }`"),
    not_needed(
        &["queue_requests"],
        "requests always wait in the server; `queue` and `timeouts.queue` limit it",
    ),
    not_needed(&["first_data_timeout", "wait_for_less_busy_worker"], "no worker waits for a client"),
    not_needed(&["pidfile", "state_path"], RUNNING),
    here(&["low_level_error_handler"], "the error page, `error_pages`"),
    not_there(&["lowlevel_error_handler"], CODE),
    not_needed(&["rack.hijack"], "applications have it; over HTTP/2 for WebSockets"),
    here(&["lowlevel_error", "Server-Timing"], "`server_timing`")
        .see("`server_timing`", "configuration.md#server_timing"),
    not_there(&["activate_control_app"], "`komainu ctl` and `[control] listen` do it"),
    not_there(&["log_formatter"], "the format of logs is set in `[log]`: see docs/operations.md"),
    not_there(&["ssl_cipher_filter"], MODERN_TLS),
    here(
        &["set_remote_address"],
        "`trusted_proxies` with the addresses of the proxies, and `proxy_protocol` of `listen`",
    ),
];

pub(crate) const TABLES: &[&[ForeignDirective]] = &[SETTINGS];

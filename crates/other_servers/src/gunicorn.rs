//! gunicorn.

use crate::directive::{ForeignDirective, here, not_needed, not_there};
use crate::shared::{CERTIFICATE, MODERN_TLS, RUNNING};

const SETTINGS: &[ForeignDirective] = &[
    here(&["bind"], "`listen`, for all sites").ambiguous(),
    here(&["wsgi_app"], "`wsgi = \"MODULE:NAME\"` in `[apps.NAME]`"),
    here(&["workers"], "`workers` in `[apps.NAME]`; the server's own are `threads`"),
    here(
        &["worker_class"],
        "`wsgi` or `asgi` in `[apps.NAME]`; `threads` and `concurrency` say how many requests a worker has",
    ),
    here(&["worker_connections"], "`concurrency` of ASGI; the server holds connections").ambiguous(),
    here(
        &["timeout"],
        "`request` in `timeouts` of `[apps.NAME]`: the request gets 504, its worker is killed",
    ),
    here(&["graceful_timeout"], "`stop` in `timeouts` of `[apps.NAME]`"),
    here(&["keepalive"], "`idle` in `[timeouts]`").ambiguous(),
    here(&["max_requests"], "`recycle` in `[apps.NAME]`"),
    not_needed(&["max_requests_jitter"], "the numbers vary by up to a tenth by themselves"),
    here(&["preload_app"], "`preload` in `[apps.NAME]`, which is on by default"),
    here(&["chdir"], "`folder` in `[apps.NAME]`"),
    here(&["raw_env"], "`env` in `[apps.NAME]`"),
    here(&["forwarded_allow_ips"], "`trusted_proxies`"),
    here(
        &["secure_scheme_headers", "proxy_allow_ips", "proxy_protocol"],
        "`trusted_proxies` with the addresses of the proxies, and `proxy_protocol` of `listen`",
    )
    .ambiguous(),
    here(&["limit_request_line"], "`request_line` in `[limits]`"),
    here(&["limit_request_fields"], "`headers` in `[limits]`"),
    here(&["limit_request_field_size"], "`head` in `[limits]`, for all fields together"),
    here(&["certfile", "keyfile"], CERTIFICATE),
    here(&["accesslog"], "`access` and `file` in `[log]`"),
    here(&["access_log_format"], "`[log] access` with Komainu's variables"),
    here(&["errorlog"], "`errors` in `[log]`"),
    here(&["loglevel"], "`level` in `[log]`"),
    not_needed(
        &["reload", "reload_engine"],
        "`komainu reload` loads the application again, and `komainu run` when its files change",
    ),
    here(&["on_starting", "when_ready"], "systemd"),
    here(&["post_fork", "worker_exit"], "`@komainu.after_fork`, `atexit`"),
    here(&["(HUP, USR2, TTIN, TTOU)"], "`komainu reload`, `komainu upgrade`, `workers = { min, max }`"),
    not_needed(&["pidfile"], RUNNING),
    not_there(
        &["statsd_host", "statsd_prefix", "dogstatsd_tags"],
        "there is no StatsD: `[control] listen` serves `/metrics`",
    ),
    not_there(
        &["logconfig", "logconfig_dict", "logger_class"],
        "the format of logs is set in `[log]`: see docs/operations.md",
    ),
    not_there(&["ssl_version", "ciphers", "do_handshake_on_connect", "suppress_ragged_eofs"], MODERN_TLS)
        .ambiguous(),
];

pub(crate) const TABLES: &[&[ForeignDirective]] = &[SETTINGS];

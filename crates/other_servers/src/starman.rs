//! Starman, Starlet, hypnotoad and Server::Starter.

use crate::directive::{ForeignDirective, here, not_needed};

const OPTIONS: &[ForeignDirective] = &[
    here(&["--listen", "--port", "--host"], "`listen`"),
    here(&["--workers"], "`workers` of `[apps.NAME]`: a number, or `{ min, max }`"),
    here(
        &["--max-requests", "--min-reqs-per-child"],
        "`recycle = { requests }`; a new worker is ready before an old one leaves",
    ),
    here(&["--preload-app"], "`preload`, on by default"),
    here(
        &["--disable-keepalive", "--keepalive-timeout"],
        "`timeouts.idle`: clients' connections are the server's",
    ),
    not_needed(&["--backlog"], "the kernel's longest queue is used (`somaxconn`)"),
    here(&["--user", "--group"], "`user`, `group`"),
    here(&["--error-log", "--access-log"], "`[log]`"),
    not_needed(&["--pid"], crate::shared::RUNNING),
    here(&["-I lib", "-M"], "`env = { PERL5LIB = \"lib\" }` in `[apps.NAME]`"),
    here(&["-E development", "PLACK_ENV"], "the same variable; `deployment` unless set"),
    here(&["-r", "--Reload"], "`komainu run --watch`"),
    here(
        &["start_server", "kill -HUP"],
        "`komainu reload`: the new workers are ready before the old ones leave",
    ),
    not_needed(&["psgix.harakiri", "psgix.cleanup"], "applications have them"),
    not_needed(&["psgi.nonblocking", "psgi.multithread"], "both are false: one request a worker"),
    not_needed(&["Plack::Middleware::ReverseProxy"], "behind another proxy, write `trusted_proxies`"),
    here(
        &["Plack::Middleware::Static", "Deflater", "AccessLog"],
        "`files` beside `app`, `compress`, `[log]`",
    ),
];

pub(crate) const TABLES: &[&[ForeignDirective]] = &[OPTIONS];

//! HAProxy.

use crate::directive::{ForeignDirective, here, not_needed};
use crate::shared::COMPRESS;

const DIRECTIVES: &[ForeignDirective] = &[
    here(&["frontend"], "`listen` at the top of the file, and a `[[site]]`"),
    here(&["bind"], "`listen`"),
    here(&["backend"], "`[upstreams.NAME]`"),
    here(&["server"], "`to` in `[upstreams.NAME]`").within("backend").ambiguous(),
    here(&["acl"], "a `[[site.route]]` with conditions: `path`, `method`, `header`, `query`"),
    here(
        &["path_beg", "hdr(host)", "method", "hdr()", "unless", "!"],
        "`path` of the route, `hosts` of the site, `method`, `header`, `not`",
    )
    .within("acl")
    .ambiguous(),
    here(&["use_backend"], "`proxy = { upstream = \"NAME\" }` in a `[[site.route]]` with conditions"),
    here(&["default_backend"], "`proxy = { upstream = \"NAME\" }` in a `[[route]]` without `path`"),
    here(&["balance"], "`balance` in `[upstreams.NAME]`").see("several servers", "proxy.md#several-servers"),
    here(
        &["balance roundrobin", "leastconn", "source", "uri", "hdr()", "random(2)"],
        "`\"round-robin\"`, `\"least-requests\"`, `\"hash:client\"`, `\"hash:uri\"`, `\"hash:header:NAME\"`, \
         `\"two-choices\"`",
    )
    .ambiguous(),
    here(&["cookie … insert"], "`balance = \"sticky\"`"),
    here(&["maxconn"], "`connections` in `[limits]`"),
    here(
        &["maxconn", "timeout queue"],
        "`connections` of a server of `[upstreams.NAME]`, `queue` in its `timeouts`",
    )
    .within("backend")
    .ambiguous(),
    here(
        &["option httpchk", "inter", "rise", "fall", "slowstart"],
        "`health = { path, interval, rise, fall }`, `slow_start`",
    )
    .ambiguous(),
    here(&["observe", "on-error"], "`eject`").ambiguous(),
    here(&["option redispatch", "retries", "retry-on"], "`retry` in `proxy = { ... }`").ambiguous(),
    here(&["timeout"], "`[timeouts]`, and `timeouts` in `proxy = { ... }`"),
    here(&["timeout client", "timeout http-request"], "`idle` and `head` in `[timeouts]`"),
    here(
        &["timeout server", "timeout connect", "timeout tunnel"],
        "`head` and `between`, `connect`, `tunnel` in `timeouts` of `proxy`",
    ),
    here(&["stick-table", "http_req_rate", "conn_cur"], "`limit` in a site or route")
        .see("limits", "limits.md"),
    here(
        &["http-request set-header", "http-request del-header", "http-response set-header"],
        "`request_headers`, `response_headers`",
    ),
    here(&["map()", "(files of maps)"], "`[maps.NAME]`").see("maps", "guide.md#maps"),
    here(
        &["http-request redirect", "http-request return", "http-request deny"],
        "`redirect`, `respond`, `deny`",
    ),
    here(
        &["http-request", "http-response"],
        "`redirect`, `respond`, `deny`, `request_headers` or `response_headers` in a `[[site.route]]`",
    ),
    here(&["global"], "the top of the file: `user`, `threads`, `[limits]`, `[log]`"),
    not_needed(&["option forwardfor"], "X-Forwarded-For is sent by itself"),
    here(&["accept-proxy"], "`proxy_protocol` in `listen`"),
    here(&["send-proxy", "send-proxy-v2"], "`proxy_protocol` in `proxy = { ... }`"),
    here(&["compression algo gzip"], COMPRESS),
    here(&["cache"], "`cache`: by RFC 9111, with more than a few MiB").see("the cache", "cache.md"),
    here(
        &["stats", "show", "set server … state drain"],
        "`[control] listen`: a dashboard, metrics and an API; `komainu ctl`",
    )
    .see("operations", "operations.md"),
    here(&["prometheus-exporter"], "`/metrics` of `[control] listen`"),
    here(&["haproxy -c", "haproxy -sf"], "`komainu check`, `komainu reload`"),
    not_needed(&["mode"], "`proxy` is for HTTP, `[[stream]]` for TCP"),
    not_needed(&["option"], "logs are `[log]`, health checks are `health` of a group"),
];

pub(crate) const TABLES: &[&[ForeignDirective]] = &[DIRECTIVES];

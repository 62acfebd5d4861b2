//! Caddy, as its Caddyfile is written.

use crate::directive::{ForeignDirective, here, not_there};
use crate::shared::COMPRESS;

const DIRECTIVES: &[ForeignDirective] = &[
    here(&["(the site's address)"], "`hosts` of a `[[site]]`; `listen` stands once for all, or in the site"),
    here(&["tls you@example.com"], "`[acme] email = \"you@example.com\"`"),
    here(&["tls internal"], "`tls = \"auto\"`, with a name below `localhost`, `internal` and the like"),
    here(&["on_demand_tls"], "`ask = \"URL\"` in `[acme]`"),
    here(&["acme_dns", "(plugins for DNS)"], "`dns` (RFC 2136) or `dns_hook` in `[acme]`"),
    here(&["file_server"], "`files`"),
    here(&["root"], "`files = \"FOLDER\"` in a `[[site.route]]`"),
    here(&["browse"], "`listing` in `files = { ... }`"),
    here(&["try_files"], "`try` and `fallback` in `files = { ... }`"),
    here(&["handle"], "a `[[site.route]]` with `path`"),
    here(&["handle_path"], "a `[[site.route]]` with `path` and `strip_prefix`"),
    here(
        &["path", "method", "header", "header_regexp", "query", "remote_ip", "not"],
        "conditions of a route: `path`, `method`, `header`, `query`, `client`, `not`",
    )
    .within("@matcher")
    .ambiguous(),
    here(&["reverse_proxy"], "`proxy`"),
    here(
        &["lb_policy", "health_uri", "fail_duration", "header_up"],
        "`balance`, `health`, `eject`, `request_headers` in `proxy = { ... }`",
    ),
    here(&["php_fastcgi"], "`php = \"unix:/run/php/php-fpm.sock\"` beside `files`").see("PHP", "php.md"),
    here(&["encode"], COMPRESS),
    here(&["header"], "`response_headers`").ambiguous(),
    here(&["redir"], "`redirect`"),
    here(&["error"], "`respond`").ambiguous(),
    here(&["basic_auth"], "`auth = { basic = \"FILE\" }` in a site or route").see("passwords", "auth.md"),
    here(&["forward_auth"], "`auth = { ask = \"http://HOST:PORT/PATH\" }` in a site or route")
        .see("who may ask", "auth.md"),
    here(&["rate_limit"], "`limit = { rate = \"10/s\" }` in a site or route").see("limits", "limits.md"),
    here(&["handle_errors"], "`error_pages`, and `intercept_errors` for those of upstream servers"),
    here(&["import"], "`include` at the top of the file, or `[snippet.NAME]`")
        .see("snippets", "guide.md#snippets"),
    here(&["log"], "`access = \"json\"` in `[log]`").ambiguous(),
    here(
        &["caddy validate", "caddy reload", "caddy fmt", "caddy trust"],
        "`komainu check`, `komainu reload`, `komainu fmt`, `komainu trust`",
    ),
    here(
        &["(the admin API, `localhost:2019`)"],
        "`[control]`: off unless it is asked for; Unix sockets and tokens",
    )
    .see("the control API", "operations.md#the-control-api"),
    not_there(
        &["templates", "expression"],
        "there are no programs in the configuration: let the application do it",
    )
    .ambiguous(),
];

pub(crate) const TABLES: &[&[ForeignDirective]] = &[DIRECTIVES];

pub(crate) const DIFFERENCES: &[&str] = &[
    "Certificates are obtained by Komainu with an account of its own (`[acme]`); those of Caddy are not read.",
    "Files with a leading dot are not served (`hidden` in `files`).",
    "Names with more labels than a pattern such as `*.example.com`, and, beside a default site, names with a final dot are refused (403).",
];

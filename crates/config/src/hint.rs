//! Hints for directives and syntax of other servers: the equivalent in this configuration.

/// A directive of another server.
struct ForeignDirective {
    /// Name of the directive, in lower case.
    name: &'static str,
    /// Server that has the directive.
    server: &'static str,
    /// Equivalent in this configuration; completes "here this is …".
    equivalent: &'static str,
}

const fn foreign(name: &'static str, server: &'static str, here: &'static str) -> ForeignDirective {
    ForeignDirective { name, server, equivalent: here }
}

const APACHE: &str = "Apache";
const CADDY: &str = "Caddy";
const GUNICORN: &str = "gunicorn";
const HAPROXY: &str = "HAProxy";
const NGINX: &str = "nginx";

/// Sorted by name.
const FOREIGN_DIRECTIVES: &[ForeignDirective] = &[
    foreign("accept_mutex", NGINX, "not needed: each thread has a queue of new connections of its own"),
    foreign("access_log", NGINX, "`access` and `file` in `[log]`"),
    foreign("accesslog", GUNICORN, "`access` and `file` in `[log]`"),
    foreign("acl", HAPROXY, "conditions of a `[[site.route]]`: `path`, `method`, `header`, `query`"),
    foreign("add_header", NGINX, "`response_headers = { add = { ... } }`"),
    foreign("aio", NGINX, "not needed: files that are not in memory are read by other threads"),
    foreign("alias", NGINX, "`files = { root = \"...\", strip_prefix = true }`"),
    foreign(
        "allowoverride",
        APACHE,
        "not there: `.htaccess` files are not read; write their rules as routes",
    ),
    foreign("auth_basic", NGINX, "`auth = { basic = \"FILE\", realm = \"...\" }` in a site or route"),
    foreign("auth_basic_user_file", NGINX, "`auth = { basic = \"FILE\" }` in a site or route"),
    foreign("auth_request", NGINX, "`auth = { ask = \"http://HOST:PORT/PATH\" }` in a site or route"),
    foreign(
        "auth_request_set",
        NGINX,
        "`response_headers` in `auth = { ask = ..., response_headers = [\"Remote-User\"] }`",
    ),
    foreign("autoindex", NGINX, "`listing` in `files = { ... }`"),
    foreign("backend", HAPROXY, "`[upstreams.NAME]`"),
    foreign("backlog", NGINX, "not needed: the kernel's longest queue is used"),
    foreign("balance", HAPROXY, "`balance` in `[upstreams.NAME]`"),
    foreign("basic_auth", CADDY, "`auth = { basic = \"FILE\" }` in a site or route"),
    foreign("bind", HAPROXY, "`listen`"),
    foreign("browse", CADDY, "`listing` in `files = { ... }`"),
    foreign("certfile", GUNICORN, "`tls = { certificate = \"FILE\", key = \"FILE\" }` in a `[[site]]`"),
    foreign("chdir", GUNICORN, "`folder` in `[apps.NAME]`"),
    foreign(
        "client_body_buffer_size",
        NGINX,
        "not needed: short request bodies are read first, longer ones are streamed",
    ),
    foreign("client_body_timeout", NGINX, "`body` in `[timeouts]`"),
    foreign("client_header_timeout", NGINX, "`head` in `[timeouts]`"),
    foreign("client_max_body_size", NGINX, "`body` in `[limits]`"),
    foreign(
        "daemon",
        NGINX,
        "not needed: the server stays in the foreground, where a service manager wants it",
    ),
    foreign("default_backend", HAPROXY, "`proxy = { upstream = \"NAME\" }` in a `[[route]]` without `path`"),
    foreign(
        "default_server",
        NGINX,
        "a `[[site]]` without `hosts`; with `listen` it is the default there alone",
    ),
    foreign("default_type", NGINX, "`types` in `files = { ... }`"),
    foreign("directio", NGINX, "not needed: files are sent from the memory of the system"),
    foreign("directoryindex", APACHE, "`index` in `files = { ... }`"),
    foreign("document_root", "other servers", "`files`"),
    foreign("documentroot", APACHE, "`files`"),
    foreign("encode", CADDY, "`compress = true`, at the top of the file, in a site or in a route"),
    foreign("error_log", NGINX, "`errors` in `[log]`"),
    foreign("error_page", NGINX, "`error_pages`"),
    foreign("errorlog", GUNICORN, "`errors` in `[log]`"),
    foreign("events", NGINX, "not needed: write `threads` and `[limits]` at the top of the file"),
    foreign(
        "expires",
        NGINX,
        "`cache_control` in `files = { ... }`, or `response_headers = { set = { Cache-Control = \"...\" } }`",
    ),
    foreign("fastcgi_index", NGINX, "`index` in `files = { ... }`, beside `php`"),
    foreign("fastcgi_param", NGINX, "`variables` in `php = { ... }` or `proxy = { ... }`"),
    foreign(
        "fastcgi_pass",
        NGINX,
        "`php = \"unix:/run/php/php-fpm.sock\"` beside `files`, or `proxy = \"fastcgi://HOST:PORT\"`",
    ),
    foreign("fastcgi_read_timeout", NGINX, "`head` in `php = { timeouts = { ... } }`"),
    foreign("file_server", CADDY, "`files`"),
    foreign("forwarded_allow_ips", GUNICORN, "`trusted_proxies`"),
    foreign("frontend", HAPROXY, "`listen` at the top of the file, and a `[[site]]`"),
    foreign("geo", NGINX, "`[maps.NAME]` with `networks`; countries are `[geo]`"),
    foreign(
        "geoip2",
        NGINX,
        "`[geo]` with `database`; then `country` is a condition of routes and `$country` a variable",
    ),
    foreign(
        "geoip_country",
        NGINX,
        "`[geo]` with `database`; then `country` is a condition of routes and `$country` a variable",
    ),
    foreign(
        "geoipdbfile",
        APACHE,
        "`[geo]` with `database`; then `country` is a condition of routes and `$country` a variable",
    ),
    foreign("graceful_timeout", GUNICORN, "`stop` in `timeouts` of `[apps.NAME]`"),
    foreign("grpc_pass", NGINX, "`proxy = \"h2c://HOST:PORT\"`, or `https://` for gRPC over TLS"),
    foreign("gzip", NGINX, "`compress = true`, at the top of the file, in a site or in a route"),
    foreign("gzip_comp_level", NGINX, "`level` in `compress = { ... }`"),
    foreign("gzip_min_length", NGINX, "`min` in `compress = { ... }`"),
    foreign("gzip_static", NGINX, "`precompressed` in `files = { ... }`"),
    foreign("gzip_types", NGINX, "`types` in `compress = { ... }`"),
    foreign("handle", CADDY, "a `[[site.route]]` with `path`"),
    foreign("handle_errors", CADDY, "`error_pages`, and `intercept_errors` for those of upstream servers"),
    foreign("handle_path", CADDY, "a `[[site.route]]` with `path` and `strip_prefix`"),
    foreign("http", NGINX, "not needed: what stands in it is written at the top of the file"),
    foreign("http2", NGINX, "not needed: HTTP/2 is spoken wherever TLS is"),
    foreign("if", NGINX, "conditions of a `[[site.route]]`: `path`, `method`, `header`, `query`"),
    foreign("import", CADDY, "`include` at the top of the file"),
    foreign("ip_hash", NGINX, "`balance = \"hash:client\"` in `[upstreams.NAME]`"),
    foreign("keepalive", NGINX, "`keep_alive` in `proxy = { ... }`, which is on by default"),
    foreign("keepalive_timeout", NGINX, "`idle` in `[timeouts]`"),
    foreign("keyfile", GUNICORN, "`tls = { certificate = \"FILE\", key = \"FILE\" }` in a `[[site]]`"),
    foreign("large_client_header_buffers", NGINX, "`head` in `[limits]`"),
    foreign("least_conn", NGINX, "`balance = \"least-requests\"` in `[upstreams.NAME]`"),
    foreign(
        "limit_conn",
        NGINX,
        "`limit = { concurrent = 10 }` in a site or route, or `connections_per_client` in `[limits]`",
    ),
    foreign("limit_except", NGINX, "`method` of a `[[site.route]]`"),
    foreign("limit_rate", NGINX, "`bandwidth = \"1MiB/s\"` in a site or route"),
    foreign(
        "limit_rate_after",
        NGINX,
        "`bandwidth = { rate = \"1MiB/s\", after = \"10MiB\" }` in a site or route",
    ),
    foreign("limit_req", NGINX, "`limit = { rate = \"10/s\", burst = 5 }` in a site or route"),
    foreign("limit_req_status", NGINX, "`status` in `limit = { ... }`"),
    foreign("limit_req_zone", NGINX, "`rate` and `key` in `limit = { ... }` of a site or route"),
    foreign("limit_request_field_size", GUNICORN, "`head` in `[limits]`, for all fields together"),
    foreign("limit_request_fields", GUNICORN, "`headers` in `[limits]`"),
    foreign("limit_request_line", GUNICORN, "`request_line` in `[limits]`"),
    foreign("lingering_close", NGINX, "not needed: it is always done"),
    foreign("location", NGINX, "a `[[site.route]]` with `path`"),
    foreign("log_format", NGINX, "`access` in `[log]`"),
    foreign("loglevel", GUNICORN, "`level` in `[log]`"),
    foreign("map", NGINX, "`[maps.NAME]`"),
    foreign("max_requests", GUNICORN, "`recycle` in `[apps.NAME]`"),
    foreign("maxconn", HAPROXY, "`connections` in `[limits]`"),
    foreign("mode", HAPROXY, "not needed: `proxy` is for HTTP"),
    foreign("option", HAPROXY, "not needed: logs are `[log]`, health checks are `health` of a group"),
    foreign("options", APACHE, "`listing`, `symlinks` and `index` in `files = { ... }`"),
    foreign("php_fastcgi", CADDY, "`php = \"unix:/run/php/php-fpm.sock\"` beside `files`"),
    foreign("pid", NGINX, "not needed: `komainu status` finds the server"),
    foreign(
        "pidfile",
        GUNICORN,
        "not needed: `komainu status` finds the server, a service manager starts it in the foreground",
    ),
    foreign("port", "servers", "`listen = \":PORT\"`"),
    foreign("preload_app", GUNICORN, "`preload` in `[apps.NAME]`, which is on by default"),
    foreign("proxy_buffer_size", NGINX, "not needed: buffers grow with what they hold, within `[limits]`"),
    foreign(
        "proxy_buffering",
        NGINX,
        "not needed: responses are buffered as far as clients are slow (`read_ahead` in `proxy = { ... }`)",
    ),
    foreign("proxy_buffers", NGINX, "not needed: buffers grow with what they hold, within `[limits]`"),
    foreign("proxy_cache", NGINX, "`cache`"),
    foreign("proxy_cache_bypass", NGINX, "`bypass` in a rule of `cache`"),
    foreign("proxy_cache_key", NGINX, "`key` in a rule of `cache`"),
    foreign("proxy_cache_min_uses", NGINX, "`min_uses` in a rule of `cache`"),
    foreign("proxy_cache_path", NGINX, "`[cache]`"),
    foreign("proxy_cache_valid", NGINX, "`default_ttl` in a rule of `cache`"),
    foreign("proxy_connect_timeout", NGINX, "`connect` in `proxy = { timeouts = { ... } }`"),
    foreign("proxy_hide_header", NGINX, "`response_headers = { remove = [\"X-Name\"] }`"),
    foreign(
        "proxy_http_version",
        NGINX,
        "`http` in `proxy = { ... }`; HTTP/1.1 with kept connections is the default",
    ),
    foreign("proxy_ignore_client_abort", NGINX, "`client_abort` in `proxy = { ... }` and in `[apps.NAME]`"),
    foreign("proxy_ignore_headers", NGINX, "`ignore` in a rule of `cache`"),
    foreign("proxy_intercept_errors", NGINX, "`intercept_errors` in a site or route"),
    foreign("proxy_next_upstream", NGINX, "`retry` in `proxy = { ... }`"),
    foreign("proxy_pass", NGINX, "`proxy`"),
    foreign("proxy_pass_header", NGINX, "not needed: header fields of responses pass"),
    foreign("proxy_pass_request_headers", NGINX, "`request_headers` in `proxy = { ... }`"),
    foreign("proxy_read_timeout", NGINX, "`head` in `proxy = { timeouts = { ... } }`"),
    foreign("proxy_redirect", NGINX, "`rewrite` in `proxy = { ... }`, which is on by default"),
    foreign(
        "proxy_request_buffering",
        NGINX,
        "not needed: short bodies are read first, longer ones are streamed",
    ),
    foreign("proxy_send_timeout", NGINX, "`between` in `proxy = { timeouts = { ... } }`"),
    foreign("proxy_set_header", NGINX, "`request_headers` in `proxy = { ... }`"),
    foreign("proxy_ssl_verify", NGINX, "`tls` in `proxy = { ... }`; certificates are verified by default"),
    foreign("proxypass", APACHE, "`proxy`"),
    foreign("proxypassreverse", APACHE, "`rewrite` in `proxy = { ... }`, which is on by default"),
    foreign("rate_limit", CADDY, "`limit = { rate = \"10/s\" }` in a site or route"),
    foreign("ratelimit", "other servers", "`limit = { rate = \"10/s\" }` in a site or route"),
    foreign("raw_env", GUNICORN, "`env` in `[apps.NAME]`"),
    foreign("real_ip_header", NGINX, "`fields` in `trusted_proxies = { ... }`"),
    foreign("redir", CADDY, "`redirect`"),
    foreign("reload", GUNICORN, "`komainu run`: it loads the application again when its files change"),
    foreign("require", APACHE, "`allow`, `deny` or `auth` in a site or route"),
    foreign("reset_timedout_connection", NGINX, "not needed: connections that time out are closed at once"),
    foreign("resolver", NGINX, "`resolve` in `proxy = { ... }`; the servers are those of the system"),
    foreign("return", NGINX, "`redirect` or `respond`"),
    foreign("reverse_proxy", CADDY, "`proxy`"),
    foreign("rewrite", NGINX, "`rewrite` or `redirect` in a `[[site.route]]`"),
    foreign(
        "rewriterule",
        APACHE,
        "`rewrite` or `redirect` in a `[[site.route]]`, or `try` in `files = { ... }`",
    ),
    foreign("root", NGINX, "`files = \"FOLDER\"` in a `[[site.route]]`"),
    foreign("scgi_pass", NGINX, "`proxy = \"scgi://HOST:PORT\"`"),
    foreign("scriptalias", APACHE, "`cgi = \"FOLDER\"` in a `[[route]]` with `path`"),
    foreign("send_proxy", HAPROXY, "`proxy_protocol` in `proxy = { ... }`"),
    foreign("send_timeout", NGINX, "`write` in `[timeouts]`"),
    foreign("sendfile", NGINX, "not needed: files are sent without copying them wherever that is possible"),
    foreign("sendfile_max_chunk", NGINX, "not needed: other connections get their turn during a long file"),
    foreign("server", NGINX, "`[[site]]`; the servers of a group are `to` in `[upstreams.NAME]`"),
    foreign("server_name", NGINX, "`hosts` of a `[[site]]`"),
    foreign("server_names_hash_bucket_size", NGINX, "not needed: tables are as large as they have to be"),
    foreign("server_names_hash_max_size", NGINX, "not needed: tables are as large as they have to be"),
    foreign("server_tokens", NGINX, "not needed: the version is never sent"),
    foreign("servername", APACHE, "`hosts` of a `[[site]]`"),
    foreign("set_real_ip_from", NGINX, "`trusted_proxies`"),
    foreign(
        "ssl_ciphers",
        NGINX,
        "not needed: only strong ones are offered; `min` in `[tls]` says the version",
    ),
    foreign("ssl_prefer_server_ciphers", NGINX, "not needed: only strong ones are offered"),
    foreign("ssl_preread", NGINX, "`names` in `[[stream]]`"),
    foreign("ssl_protocols", NGINX, "`min` in `[tls]`"),
    foreign("ssl_session_cache", NGINX, "not needed: sessions are resumed with tickets"),
    foreign("ssl_session_timeout", NGINX, "not needed: sessions are resumed with tickets"),
    foreign("ssl_stapling", NGINX, "not needed: certificates that name a responder have it"),
    foreign("stats", HAPROXY, "`[control] listen`: a dashboard, metrics and an API"),
    foreign("stub_status", NGINX, "`[control] listen`: a dashboard, metrics and an API"),
    foreign("sub_filter", NGINX, "`replace = { from = \"...\", to = \"...\" }` in a site or route"),
    foreign(
        "sub_filter_last_modified",
        NGINX,
        "not there: the date is that of the text before it was changed",
    ),
    foreign("sub_filter_once", NGINX, "`once` in `replace = { ... }`, which is `false` by default"),
    foreign("sub_filter_types", NGINX, "`types` in `replace = { ... }`"),
    foreign("substitute", APACHE, "`replace = { from = \"...\", to = \"...\" }` in a site or route"),
    foreign("tcp_nodelay", NGINX, "not needed: it is always on"),
    foreign("tcp_nopush", NGINX, "not needed: head and body leave together"),
    foreign(
        "timeout",
        HAPROXY,
        "`[timeouts]`, and `timeouts` in `proxy = { ... }`; of gunicorn, `timeouts` in `[apps.NAME]`",
    ),
    foreign("try_files", NGINX, "`try` in `files = { ... }`"),
    foreign("types_hash_max_size", NGINX, "not needed: tables are as large as they have to be"),
    foreign("underscores_in_headers", NGINX, "`underscores` in `proxy = { ... }`"),
    foreign("upstream", NGINX, "`[upstreams.NAME]`, or `to` in `proxy = { ... }`"),
    foreign(
        "use_backend",
        HAPROXY,
        "`proxy = { upstream = \"NAME\" }` in a `[[site.route]]` with conditions",
    ),
    foreign("uwsgi_param", NGINX, "`variables` in `proxy = { ... }`"),
    foreign(
        "uwsgi_pass",
        NGINX,
        "`proxy = \"uwsgi://HOST:PORT\"`, or `app`: Komainu runs the application itself (`[apps.NAME]`)",
    ),
    foreign("valid_referers", NGINX, "`referer` of a `[[site.route]]`"),
    foreign("virtualhost", APACHE, "`[[site]]`"),
    foreign(
        "worker_class",
        GUNICORN,
        "`wsgi` or `asgi` in `[apps.NAME]`; `threads` and `concurrency` say how many requests a worker has",
    ),
    foreign("worker_connections", NGINX, "`connections` in `[limits]`"),
    foreign("worker_processes", NGINX, "`threads`"),
    foreign("worker_rlimit_nofile", NGINX, "not needed: the limit on open files is raised as far as it goes"),
    foreign("workers", GUNICORN, "`workers` in `[apps.NAME]`; the server's own are `threads`"),
    foreign("wsgi_app", GUNICORN, "`wsgi = \"MODULE:NAME\"` in `[apps.NAME]`"),
];

/// Returns an example of a table, by its name, for a value of another type in its place.
pub(crate) fn table_example(name: &str) -> Option<&'static str> {
    Some(match name {
        "CompressResponses" | "Compress" => {
            "write `compress = true`; codings and levels have a table: `compress = { codings = [\"gzip\"] }`"
        }
        "KeepAlive" => "write `keep_alive = { connections = 32, idle = \"60s\" }`",
        "Retry" => "write `retry = { attempts = 3 }`",
        "ProxyTimeouts" => "write `timeouts = { connect = \"5s\", head = \"60s\" }`",
        "Timeouts" | "RouteTimeouts" => "write `timeouts = { body = \"30s\" }`",
        "AppTimeouts" => "write `timeouts = { request = \"60s\" }`",
        "CachePolicy" => {
            "write `cache = true`, or how long responses are kept: `cache = { rule = [{ ttl = \"1h\" }] }`"
        }
        "CacheStore" => "write `[cache]` and `memory = \"64MiB\"`; a route has `cache = true`",
        "Auth" => "write `auth = { basic = \"FILE\" }`",
        "Log" => "write `[log]`, and `access` and `file` below it",
        "Tls" => {
            "write `[tls]`; a site has `tls = { certificate = \"cert.pem\", key = \"key.pem\" }` or `tls = \"auto\"`"
        }
        "ResponseHeaders" => "write `response_headers = { set = { X-Name = \"value\" } }`",
        _ => return None,
    })
}

/// Returns the table of an application for a text that looks like its file or module.
pub(crate) fn app_hint(name: &str) -> Option<String> {
    let file = name.rsplit('/').next().unwrap_or(name);
    let key = match file.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "ru" => "rack",
        "psgi" | "pl" => "psgi",
        "php" => "php",
        "so" => "handler",
        "py" => "python",
        _ if name.contains(':') => "python",
        _ => return None,
    };
    Some(format!(
        "a file or module stands in a table: write `app = \"NAME\"` here, and `[apps.NAME]` with `{key} = \"{name}\"` below it"
    ))
}

/// Returns the remedy for a directive of another server, found as an unknown key in the table `place`.
pub(crate) fn directive_hint(key: &str, place: &str) -> Option<String> {
    let lower = key.to_ascii_lowercase();
    let index = FOREIGN_DIRECTIVES.binary_search_by(|known| known.name.cmp(&lower)).ok()?;
    let here = FOREIGN_DIRECTIVES[index]
        .equivalent
        .strip_suffix(&format!(" in {place}"))
        .unwrap_or(FOREIGN_DIRECTIVES[index].equivalent);
    Some(match here.split_once(' ') {
        Some(("not", reason)) => format!("{}'s `{key}` is not {reason}", FOREIGN_DIRECTIVES[index].server),
        _ => format!("here this is {here}"),
    })
}

/// Recognizes the format of a file that is not TOML and returns the remedy.
pub(crate) fn syntax_hint(text: &str) -> Option<&'static str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = lines.next()?;
    let word = first.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or("");
    if first.starts_with('{') || first.starts_with('[') && first.ends_with('{') {
        return Some(match (text.contains("\"listeners\""), text.contains("\"apps\"")) {
            (true, _) => {
                "this file looks like a configuration of NGINX Unit; `komainu import unit FILE` translates it. Komainu reads TOML: `listeners` are `listen` at the top of \
                 the file, `routes` are `[[route]]`, `applications` are `[apps.NAME]`"
            }
            (false, true) => {
                "this file looks like Caddy's JSON; `komainu import caddy FILE` translates it. Komainu reads TOML: a server is a `[[site]]`, a route a `[[site.route]]`"
            }
            (false, false) => {
                "this file looks like JSON; Komainu reads TOML: `{ \"a\": { \"b\": 1 } }` is `[a]` and below it `b = 1`"
            }
        });
    }
    if first.starts_with('<') && !first.starts_with("<!") && !first.to_ascii_lowercase().starts_with("<html")
    {
        return Some(
            "this file looks like a configuration of Apache; Komainu reads TOML: a `<VirtualHost>` is a `[[site]]`, a \
             `<Location>` a `[[site.route]]`, `ProxyPass` is `proxy`, `DocumentRoot` is `files`",
        );
    }
    if word == "vcl" && first.ends_with(';') {
        return Some(
            "this file looks like Varnish's VCL; Komainu reads TOML: a backend is `proxy = \"http://...\"` of a route, what is \
             cached is said by `cache` and its rules",
        );
    }
    if first.contains('=') {
        return None;
    }
    if matches!(word, "global" | "defaults" | "frontend" | "backend") && !first.ends_with(['{', ';', ':']) {
        return Some(
            "this file looks like a configuration of HAProxy; Komainu reads TOML: `bind` is `listen`, a frontend is a `[[site]]` \
             with its `[[site.route]]`, a backend is `[upstreams.NAME]`",
        );
    }
    let is_block = first.ends_with('{') || lines.next() == Some("{");
    let is_caddyfile = is_block
        && (first.starts_with([':', '*', '(', '/']) || word.is_empty() || !is_nginx_block(word))
        && !text.lines().any(|line| line.trim_end().ends_with(';'));
    if is_caddyfile {
        return Some(
            "this file looks like a Caddyfile; `komainu import caddy` translates what `caddy adapt` makes of it. Komainu reads TOML: a site's block is a `[[site]]` with `hosts`, `handle` is a \
             `[[site.route]]`, `reverse_proxy` is `proxy`, `file_server` is `files`",
        );
    }
    if first.starts_with(|first: char| first.is_ascii_lowercase())
        && (is_block || first.ends_with([';', '}']))
    {
        return Some(
            "this file looks like a configuration of nginx; `komainu import nginx FILE` translates it. Komainu reads TOML: `[[site]]` is nginx's `server`, \
             `[[site.route]]` its `location`, `threads` its `worker_processes`",
        );
    }
    let is_yaml = first == "---"
        || first.split_once(':').is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with(' '));
    is_yaml.then_some(
        "this file looks like YAML; Komainu reads TOML: `a: 1` is `a = 1`, a mapping `a:` is a table `[a]`, a list of mappings is a \
         `[[a]]` for each",
    )
}

fn is_nginx_block(word: &str) -> bool {
    matches!(
        word,
        "server"
            | "http"
            | "events"
            | "upstream"
            | "location"
            | "map"
            | "geo"
            | "stream"
            | "types"
            | "if"
            | "split_clients"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_directives_are_sorted() {
        assert!(FOREIGN_DIRECTIVES.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn syntax_of_other_servers_is_recognized() {
        let server = |text: &str| {
            let text = syntax_hint(text)?;
            let rest = text.strip_prefix("this file looks like ").expect("each begins so");
            Some(rest.split_once(';').expect("each says why").0)
        };
        assert_eq!(server("server {\n listen 80;\n}\n"), Some("a configuration of nginx"));
        assert_eq!(server("# a\nuser www;\nhttp {\n}\n"), Some("a configuration of nginx"));
        assert_eq!(server("upstream app\n{\n server a;\n}\n"), Some("a configuration of nginx"));
        assert_eq!(server("example.com {\n reverse_proxy :3000\n}\n"), Some("a Caddyfile"));
        assert_eq!(server(":80 {\n file_server\n}\n"), Some("a Caddyfile"));
        assert_eq!(server("{\n \"apps\": { \"http\": {} }\n}\n"), Some("Caddy's JSON"));
        assert_eq!(server("{ \"listeners\": {} }"), Some("a configuration of NGINX Unit"));
        assert_eq!(server("{ \"a\": 1 }"), Some("JSON"));
        assert_eq!(server("global\n daemon\n"), Some("a configuration of HAProxy"));
        assert_eq!(server("frontend web\n bind :80\n"), Some("a configuration of HAProxy"));
        assert_eq!(server("<VirtualHost *:80>\n"), Some("a configuration of Apache"));
        assert_eq!(server("vcl 4.1;\nbackend default {\n}\n"), Some("Varnish's VCL"));
        assert_eq!(server("---\nlisten: 80\n"), Some("YAML"));
        assert_eq!(server("listen: 80\n"), Some("YAML"));
        assert_eq!(server("sites:\n  - a: b\n"), Some("YAML"));
        for toml in
            ["", "listen = \":80\nx = 1", "[log]\nx", "[[site]]\nhosts = [", "a.b = { c = ", "\u{feff}x"]
        {
            assert_eq!(server(toml), None, "{toml}");
        }
    }

    #[test]
    fn hints_are_found_for_directives_of_other_servers() {
        let text = directive_hint("Sendfile", "`[[route]]`").unwrap();
        assert!(text.starts_with("nginx's `Sendfile` is not needed: "), "{text}");
        assert_eq!(directive_hint("error_log", "`[log]`").unwrap(), "here this is `errors`");
        assert_eq!(directive_hint("frobnicate", "`[log]`"), None);
    }
}

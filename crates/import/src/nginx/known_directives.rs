//! Directives of nginx that need no translation or have no equivalent.

use super::tree::NginxDirective;
use crate::findings::ImportLedger;

/// Names of directives, and the reason why they are not translated. A leading \u{1} marks those without an
/// equivalent.
const NOT_TRANSLATED: &[(&[&str], &str)] = &[
    (
        &[
            "events",
            "use",
            "multi_accept",
            "accept_mutex",
            "worker_aio_requests",
            "epoll_events",
            "accept_mutex_delay",
        ],
        "not needed: each thread has its own queue of events",
    ),
    (
        &["pid", "daemon", "master_process", "lock_file", "worker_shutdown_timeout"],
        "not needed: `komainu status` finds the server, a service manager starts it in the foreground",
    ),
    (
        &[
            "worker_cpu_affinity",
            "worker_priority",
            "timer_resolution",
            "pcre_jit",
            "thread_pool",
            "worker_rlimit_core",
            "working_directory",
            "debug_connection",
        ],
        "not needed: there is one thread for each core",
    ),
    (
        &["worker_connections", "worker_rlimit_nofile"],
        "not needed: the limit on connections follows that on open files; `connections` in `[limits]` lowers it",
    ),
    (
        &[
            "sendfile",
            "sendfile_max_chunk",
            "aio",
            "aio_write",
            "directio",
            "directio_alignment",
            "output_buffers",
            "read_ahead",
            "postpone_output",
        ],
        "not needed: files are sent without copying them wherever that is possible, and read without blocking",
    ),
    (
        &[
            "tcp_nopush",
            "tcp_nodelay",
            "reset_timedout_connection",
            "send_lowat",
            "lingering_close",
            "lingering_time",
            "lingering_timeout",
        ],
        "not needed: the server does it by itself",
    ),
    (
        &[
            "server_names_hash_bucket_size",
            "server_names_hash_max_size",
            "types_hash_max_size",
            "types_hash_bucket_size",
            "variables_hash_max_size",
            "variables_hash_bucket_size",
            "map_hash_bucket_size",
            "map_hash_max_size",
            "proxy_headers_hash_max_size",
            "proxy_headers_hash_bucket_size",
            "connection_pool_size",
            "request_pool_size",
        ],
        "not needed: tables have the size that they need",
    ),
    (&["server_tokens"], "not needed: the version is never sent"),
    (
        &["gzip_vary", "gzip_static_vary"],
        "not needed: what may be compressed has `Vary: Accept-Encoding` in any case",
    ),
    (
        &["gzip_buffers", "gzip_disable", "gzip_http_version", "brotli_buffers", "brotli_window"],
        "not needed: clients of HTTP/1.0 get nothing compressed; buffers are as large as they have to be",
    ),
    (
        &[
            "client_body_buffer_size",
            "client_header_buffer_size",
            "client_body_temp_path",
            "client_body_in_file_only",
            "client_body_in_single_buffer",
        ],
        "not needed: buffers grow as needed; `temp_path` is the folder of temporary files",
    ),
    (
        &[
            "proxy_buffers",
            "proxy_buffer_size",
            "proxy_busy_buffers_size",
            "proxy_temp_path",
            "proxy_temp_file_write_size",
            "proxy_max_temp_file_size",
            "grpc_buffer_size",
        ],
        "not needed: `read_ahead` and `spill` in `proxy` are enough for most",
    ),
    (&["proxy_http_version"], "not needed: HTTP/1.1 with kept connections is the default"),
    (
        &[
            "proxy_socket_keepalive",
            "proxy_ssl_server_name",
            "proxy_ssl_session_reuse",
            "proxy_ssl_protocols",
            "proxy_ssl_ciphers",
            "grpc_ssl_server_name",
        ],
        "not needed: it is always so, with TLS 1.2 or newer",
    ),
    (
        &[
            "proxy_cache_lock",
            "proxy_cache_lock_timeout",
            "proxy_cache_lock_age",
            "proxy_cache_revalidate",
            "proxy_cache_convert_head",
            "proxy_cache_max_range_offset",
        ],
        "not needed: requests for the same response wait for one, and stale responses are validated",
    ),
    (
        &[
            "ssl_prefer_server_ciphers",
            "ssl_ciphers",
            "ssl_ecdh_curve",
            "ssl_dhparam",
            "ssl_conf_command",
            "ssl_buffer_size",
            "ssl_early_data",
        ],
        "not needed: only strong ciphers and key exchanges are there, the server's order counts; 0-RTT is off",
    ),
    (
        &["ssl_session_cache", "ssl_session_timeout"],
        "not needed: sessions are resumed by tickets and by IDs by default",
    ),
    (
        &[
            "ssl_stapling",
            "ssl_stapling_verify",
            "ssl_stapling_file",
            "ssl_trusted_certificate",
            "resolver",
            "resolver_timeout",
        ],
        "not needed: OCSP responses are fetched where a certificate names a responder; names are resolved by the system",
    ),
    (
        &[
            "http2",
            "http2_max_concurrent_streams",
            "http2_idle_timeout",
            "http2_recv_timeout",
            "http2_chunk_size",
            "http2_max_field_size",
            "http2_max_header_size",
            "http2_max_requests",
            "http2_recv_buffer_size",
            "http2_body_preread_size",
        ],
        "not needed: HTTP/2 is spoken wherever TLS is, with limits of its own",
    ),
    (
        &["log_not_found", "log_subrequest", "rewrite_log", "uninitialized_variable_warn", "variables_hash"],
        "not needed: it changes no response",
    ),
    (&["upstream_conf", "zone"], "not needed: all threads share what they know of upstream servers"),
    (
        &[
            "chunked_transfer_encoding",
            "msie_padding",
            "msie_refresh",
            "ignore_invalid_headers",
            "max_headers",
        ],
        "not needed: the protocol decides it",
    ),
    (&["mail"], "\u{1}Komainu is no proxy for mail: keep nginx for this part"),
    (
        &["load_module", "env"],
        "\u{1}there are no modules to load; `env` in `[apps.NAME]` sets variables for applications",
    ),
    (&["sub_filter_last_modified"], "\u{1}write `replace` in the site or route: docs/guide.md"),
    (
        &[
            "ssi",
            "ssi_types",
            "addition_types",
            "add_before_body",
            "add_after_body",
            "xslt_stylesheet",
            "image_filter",
        ],
        "\u{1}responses are not edited: let the application do it",
    ),
    (&["mirror", "mirror_request_body"], "\u{1}write `mirror = { to = \"http://…\" }` in the route"),
    (
        &[
            "mp4",
            "flv",
            "dav_methods",
            "dav_access",
            "create_full_put_path",
            "random_index",
            "memcached_pass",
            "perl",
            "perl_set",
            "js_content",
            "js_import",
            "js_set",
            "slice",
            "secure_link",
            "secure_link_md5",
            "secure_link_secret",
            "userid",
        ],
        "\u{1}this module is not there: let an application answer such requests",
    ),
    (
        &[
            "content_by_lua_block",
            "access_by_lua_block",
            "rewrite_by_lua_block",
            "header_filter_by_lua_block",
            "body_filter_by_lua_block",
            "init_by_lua_block",
            "init_worker_by_lua_block",
            "log_by_lua_block",
            "set_by_lua_block",
            "content_by_lua_file",
            "access_by_lua_file",
            "lua_shared_dict",
            "lua_package_path",
            "balancer_by_lua_block",
            "content_by_lua",
            "access_by_lua",
        ],
        "\u{1}there is no Lua: a native handler or an application (`[apps.NAME]`) does it",
    ),
    (&["auth_jwt", "auth_jwt_key_file"], "\u{1}write `auth = { jwt = { … } }`: docs/auth.md"),
    (&["split_clients"], "\u{1}write `split` in the route: docs/releases.md"),
    (
        &["geoip_country", "geoip_city", "geoip2", "map_hash"],
        "\u{1}write `[geo]`, `country` of routes and `$country`: docs/guide.md; there are no variables for cities",
    ),
    (
        &["http3", "quic_retry", "quic_gso", "http3_hq", "http3_stream_buffer_size"],
        "\u{1}HTTP/3 is not there: clients use HTTP/2",
    ),
    (
        &["http2_push", "http2_push_preload"],
        "not needed: browsers have given up on server push; applications may send 103 Early Hints",
    ),
    (
        &["proxy_cookie_path", "proxy_cookie_flags"],
        "\u{1}paths of cookies follow `strip_prefix` and `add_prefix` by themselves; other changes are the application's",
    ),
    (
        &[
            "proxy_bind",
            "proxy_method",
            "proxy_set_body",
            "proxy_pass_request_body",
            "proxy_pass_request_headers",
            "proxy_force_ranges",
            "proxy_limit_rate",
            "proxy_store",
            "proxy_store_access",
            "proxy_headers",
            "proxy_send_lowat",
        ],
        "\u{1}requests are passed on as they are, from the address that the kernel chooses",
    ),
    (
        &[
            "proxy_ssl_crl",
            "proxy_ssl_verify_depth",
            "proxy_ssl_password_file",
            "ssl_password_file",
            "ssl_ocsp",
            "ssl_ocsp_responder",
            "ssl_engine",
        ],
        "\u{1}this cannot be set; keys must not have a passphrase",
    ),
    (&["satisfy_any"], "\u{1}a request has to meet both, addresses and password, as with `satisfy all`"),
    (
        &["if_modified_since", "etag", "open_file_cache_errors", "open_file_cache_min_uses", "max_errors"],
        "\u{1}preconditions are answered as RFC 9110 says, files have a strong `ETag`",
    ),
    (
        &["autoindex_exact_size", "autoindex_localtime", "autoindex_format"],
        "\u{1}listings are one page, and JSON for clients that prefer it",
    ),
    (
        &["absolute_redirect", "port_in_redirect", "server_name_in_redirect"],
        "\u{1}redirects name the path alone",
    ),
    (
        &["charset_types", "source_charset", "override_charset", "charset_map"],
        "\u{1}text is sent as it is, with the `charset` of `files` in its type",
    ),
    (&["limit_conn_dry_run"], "\u{1}`dry_run` of `limit` is for one limit: write it there"),
    (&["limit_conn_log_level"], "not needed: what is refused is in the access log"),
    (&["auth_delay"], "not needed: `failures` in `auth` limits wrong passwords"),
    (&["limit_req_log_level"], "not needed: what is refused is in the access log"),
    (
        &["stub_status", "status", "api"],
        "\u{1}`[control] listen` serves `/metrics` and `/v1/status` at an address of its own",
    ),
];

/// Directives that neither refuse requests nor pass them on: a route may be served without them if they
/// cannot be translated. A final `*` matches all names with this prefix.
const HARMLESS_DIRECTIVES: &[&str] = &[
    "absolute_redirect",
    "access_log",
    "add_*",
    "addition_types",
    "alias",
    "api",
    "auth_request_set",
    "autoindex*",
    "charset*",
    "default_type",
    "disable_symlinks",
    "env",
    "error_log",
    "error_page",
    "etag",
    "expires",
    "fastcgi_cache*",
    "flv",
    "geoip*",
    "gzip*",
    "http2*",
    "http3*",
    "if_modified_since",
    "index",
    "init_*",
    "js_import",
    "js_set",
    "limit_conn_dry_run",
    "limit_rate*",
    "listen",
    "load_module",
    "log_*",
    "lua_*",
    "max_errors",
    "max_ranges",
    "mirror*",
    "more_*",
    "mp4",
    "open_*",
    "override_charset",
    "perl_set",
    "port_in_redirect",
    "proxy_bind",
    "proxy_cache*",
    "proxy_cookie_*",
    "proxy_force_ranges",
    "proxy_headers*",
    "proxy_limit_rate",
    "proxy_next_upstream*",
    "proxy_send_lowat",
    "proxy_store*",
    "quic_*",
    "random_index",
    "recursive_error_pages",
    "root",
    "server_name",
    "server_name_in_redirect",
    "slice",
    "source_charset",
    "ssl_certificate*",
    "ssl_engine",
    "ssl_password_file",
    "status",
    "stub_status",
    "sub_filter*",
    "types",
    "userid*",
];

/// Whether a route may be served without a directive of this name.
pub(crate) fn is_harmless(name: &str) -> bool {
    HARMLESS_DIRECTIVES.iter().any(|known| match known.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => *known == name,
    })
}

/// Reports a directive that needs no translation or has no equivalent. Returns whether it is in the list.
pub(crate) fn mark_known(ledger: &ImportLedger, directive: &NginxDirective) -> bool {
    let Some((_, reason)) = NOT_TRANSLATED.iter().find(|(names, _)| names.contains(&directive.name.as_str()))
    else {
        return false;
    };
    let is_default =
        matches!(directive.name.as_str(), "proxy_pass_request_headers" | "proxy_pass_request_body");
    match reason.strip_prefix('\u{1}') {
        Some(_) if is_default && directive.first_arg() == "on" => ledger.mark_translated(directive.entry),
        Some(reason) => ledger.mark_impossible(directive.entry, reason),
        None => ledger.mark_not_needed(directive.entry, reason),
    }
    true
}

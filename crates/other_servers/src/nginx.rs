//! nginx, and its common modules.

use crate::directive::{ForeignDirective, here, not_needed, not_there};
use crate::shared::{COMPRESS, COUNTRIES, REPLACE, RUNNING};

const BLOCKS: &[ForeignDirective] = &[
    here(&["server"], "`[[site]]`; the servers of a group are `to` in `[upstreams.NAME]`"),
    here(&["server_name"], "`hosts` of a `[[site]]`"),
    here(&["default_server"], "a `[[site]]` without `hosts`; with `listen` it is the default there alone"),
    here(&["(`listen` of one server alone)"], "`listen` of the site")
        .see("sites with addresses of their own", "guide.md#sites-with-addresses-of-their-own"),
    here(&["location"], "a `[[site.route]]` with `path`").see("paths", "guide.md#paths"),
    here(&["location ~"], r"`path = '~ ^/u/(\d+)$'`, with `$1` and names")
        .see("regular expressions", "guide.md#regular-expressions-and-rewrites"),
    here(&["if"], "a `[[site.route]]` with conditions: `path`, `method`, `header`, `query`"),
    here(&["limit_except"], "`method` of a `[[site.route]]`"),
    here(&["internal"], "`internal = true` of a route"),
    here(&["rewrite"], "`rewrite` or `redirect` in a `[[site.route]]`"),
    here(&["rewrite … last"], "`rewrite = \"/new/$1\"` in a route without an action"),
    here(&["rewrite … break"], "`rewrite` beside the action of the route"),
    here(&["return", "rewrite … permanent"], "`redirect` or `respond`"),
    here(&["valid_referers"], "`referer` of a `[[site.route]]`"),
    here(&["map"], "`[maps.NAME]`").see("maps", "guide.md#maps"),
    here(&["geo"], "`[maps.NAME]` with `networks`; countries are `[geo]`").see("maps", "guide.md#maps"),
    here(&["geoip2", "geoip_country"], COUNTRIES).see("countries", "guide.md#countries"),
    not_there(&["geoip_city"], "there are no variables for cities: `[geo]` has countries"),
    here(&["split_clients"], "`split` in the route").see("releases", "releases.md"),
    here(&["mirror", "mirror_request_body"], "`mirror = { to = \"http://…\" }` in the route")
        .see("releases", "releases.md")
        .ambiguous(),
    here(&["ssl_preread"], "`names` in `[[stream]]`").see("streams", "streams.md"),
    here(&["proxy_responses"], "`responses` in `[[stream]]`").see("streams", "streams.md"),
    here(&["include"], "`include`, at the top of the file, and snippets")
        .see("snippets", "guide.md#snippets")
        .ambiguous(),
    not_needed(&["http"], "what stands in it is written at the top of the file"),
    not_there(&["mail"], "Komainu is not a proxy for mail: keep nginx for this part").ambiguous(),
];

const FILES: &[ForeignDirective] = &[
    here(&["root"], "`files = \"FOLDER\"` in a `[[site.route]]`"),
    here(&["alias"], "`files = { root = \"...\", strip_prefix = true }`"),
    here(&["index"], "`index` in `files = { ... }`").ambiguous(),
    here(&["autoindex"], "`listing` in `files = { ... }`"),
    here(&["try_files"], "`try` in `files = { ... }`"),
    here(&["try_files $uri /index.html"], "`fallback = \"/index.html\"` in `files = { ... }`"),
    here(&["try_files $uri @app"], "`files` and `proxy`, or `app`, in one route"),
    here(&["default_type"], "`types` in `files = { ... }`"),
    here(&["types"], "`types = { foo = \"text/x-foo\", \"*\" = \"text/plain\" }` in `files`").ambiguous(),
    here(&["gzip_static"], "`precompressed` in `files = { ... }`"),
    here(
        &["expires"],
        "`cache_control` in `files = { ... }`, or `response_headers = { set = { Cache-Control = \"...\" } }`",
    ),
    here(&["error_page"], "`error_pages`"),
    here(&["X-Accel-Redirect"], "the same field, for a route with `internal = true`")
        .see("files that the application names", "applications.md#files-that-the-application-names"),
    not_needed(
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
        "files are sent without copying them wherever that is possible, and read without blocking",
    ),
    not_needed(
        &["open_file_cache_valid"],
        "files are checked again after a second (`recheck` in `[open_files]`)",
    ),
    not_there(
        &["if_modified_since", "etag", "open_file_cache_errors", "open_file_cache_min_uses"],
        "preconditions are answered as RFC 9110 says, files have a strong `ETag`",
    )
    .ambiguous(),
    not_there(
        &["autoindex_exact_size", "autoindex_localtime", "autoindex_format"],
        "listings are one page, and JSON for clients that prefer it",
    ),
    not_there(
        &["charset_types", "source_charset", "override_charset", "charset_map"],
        "text is sent as it is, with the `charset` of `files` in its type",
    ),
];

const RESPONSES: &[ForeignDirective] = &[
    here(&["add_header"], "`response_headers = { add = { ... } }`"),
    here(&["gzip", "brotli"], COMPRESS),
    here(&["gzip_comp_level"], "`level` in `compress = { ... }`"),
    here(&["gzip_min_length"], "`min` in `compress = { ... }`"),
    here(&["gzip_types"], "`types` in `compress = { ... }`"),
    here(&["sub_filter"], REPLACE).see("texts replaced in bodies", "guide.md#texts-replaced-in-bodies"),
    here(&["sub_filter_once"], "`once` in `replace = { ... }`, which is `false` by default"),
    here(&["sub_filter_types"], "`types` in `replace = { ... }`"),
    not_there(&["sub_filter_last_modified"], "the date is that of the text before it was changed"),
    not_needed(&["gzip_vary"], "what may be compressed has `Vary: Accept-Encoding` in any case"),
    not_needed(
        &["gzip_buffers", "gzip_disable", "gzip_http_version", "brotli_buffers", "brotli_window"],
        "clients of HTTP/1.0 get nothing compressed; buffers are as large as they have to be",
    ),
    not_needed(&["server_tokens"], "the version is never sent"),
    not_there(
        &[
            "ssi",
            "ssi_types",
            "addition_types",
            "add_before_body",
            "add_after_body",
            "xslt_stylesheet",
            "image_filter",
        ],
        "responses are not edited: let the application do it",
    ),
    not_there(
        &["absolute_redirect", "port_in_redirect", "server_name_in_redirect"],
        "redirects name the path alone",
    ),
];

const ACCESS: &[ForeignDirective] = &[
    here(&["auth_basic"], "`auth = { basic = \"FILE\", realm = \"...\" }` in a site or route"),
    here(&["auth_basic_user_file"], "`auth = { basic = \"FILE\" }` in a site or route"),
    here(&["auth_request"], "`auth = { ask = \"http://HOST:PORT/PATH\" }` in a site or route")
        .see("who may ask", "auth.md"),
    here(
        &["auth_request_set"],
        "`response_headers` in `auth = { ask = ..., response_headers = [\"Remote-User\"] }`",
    ),
    here(&["auth_jwt", "auth_jwt_key_file"], "`auth = { jwt = { … } }`").see("tokens", "auth.md"),
    here(
        &["secure_link", "secure_link_md5", "secure_link_secret"],
        "`auth = { signed = { … } }`, with HMAC-SHA256",
    )
    .see("signed URLs", "auth.md#signed-urls"),
    here(&["limit_req"], "`limit = { rate = \"10/s\", burst = 5 }` in a site or route")
        .see("limits", "limits.md"),
    here(&["limit_req_status"], "`status` in `limit = { ... }`"),
    here(&["limit_req_zone"], "`rate` and `key` in `limit = { ... }` of a site or route"),
    here(
        &["limit_conn"],
        "`limit = { concurrent = 10 }` in a site or route, or `connections_per_client` in `[limits]`",
    ),
    here(&["limit_conn_dry_run"], "`dry_run` in `limit = { ... }`, for one limit"),
    here(&["limit_rate"], "`bandwidth = \"1MiB/s\"` in a site or route"),
    here(&["limit_rate_after"], "`bandwidth = { rate = \"1MiB/s\", after = \"10MiB\" }` in a site or route"),
    here(&["client_max_body_size"], "`body` in `[limits]`"),
    here(&["client_body_timeout"], "`body` in `[timeouts]`"),
    here(&["client_header_timeout"], "`head` in `[timeouts]`"),
    here(&["keepalive_timeout"], "`idle` in `[timeouts]`"),
    here(&["large_client_header_buffers"], "`head` in `[limits]`"),
    here(&["send_timeout"], "`write` in `[timeouts]`"),
    here(&["set_real_ip_from"], "`trusted_proxies`"),
    here(&["real_ip_header"], "`fields` in `trusted_proxies = { ... }`"),
    here(&["real_ip_recursive"], "`recursive` in `trusted_proxies = { ... }`"),
    not_needed(&["auth_delay"], "`failures` in `auth` limits wrong passwords"),
    not_needed(&["limit_conn_log_level", "limit_req_log_level"], "what is refused is in the access log"),
    not_there(&["satisfy_any"], "a request has to meet both, addresses and password, as with `satisfy all`"),
];

const TLS: &[ForeignDirective] = &[
    here(
        &["ssl_certificate"],
        "`tls` of the site, or nothing: the server obtains certificates where `listen` has port 443",
    )
    .see("HTTPS", "tasks/https.md"),
    here(&["ssl_protocols"], "`min` in `[tls]`"),
    not_needed(
        &[
            "ssl_ciphers",
            "ssl_prefer_server_ciphers",
            "ssl_ecdh_curve",
            "ssl_dhparam",
            "ssl_conf_command",
            "ssl_buffer_size",
            "ssl_early_data",
        ],
        "only strong ciphers and key exchanges are there, the server's order counts; 0-RTT is off",
    ),
    not_needed(
        &["ssl_session_cache", "ssl_session_timeout"],
        "sessions are resumed by tickets and by IDs by default",
    ),
    not_needed(
        &["ssl_session_tickets"],
        "the keys of tickets change every 12 hours; `tickets = false` in `[tls]` turns them off",
    ),
    not_needed(
        &["ssl_stapling", "ssl_stapling_verify", "ssl_stapling_file", "ssl_trusted_certificate"],
        "OCSP responses are fetched where a certificate names a responder; names are resolved by the system",
    ),
    not_there(
        &[
            "ssl_password_file",
            "ssl_ocsp",
            "ssl_ocsp_responder",
            "ssl_engine",
            "proxy_ssl_crl",
            "proxy_ssl_verify_depth",
            "proxy_ssl_password_file",
        ],
        "this cannot be set; keys must not have a passphrase",
    ),
];

const PROXY: &[ForeignDirective] = &[
    here(&["proxy_pass"], "`proxy`"),
    here(&["proxy_pass http://app/"], "`proxy` with `strip_prefix`, and `add_prefix` for another path"),
    here(&["grpc_pass"], "`proxy = \"h2c://HOST:PORT\"`, or `https://` for gRPC over TLS"),
    here(&["scgi_pass"], "`proxy = \"scgi://HOST:PORT\"`"),
    here(
        &["uwsgi_pass"],
        "`proxy = \"uwsgi://HOST:PORT\"`, or `app`: Komainu runs the application itself (`[apps.NAME]`)",
    ),
    here(
        &["fastcgi_pass"],
        "`php = \"unix:/run/php/php-fpm.sock\"` beside `files`, or `proxy = \"fastcgi://HOST:PORT\"`",
    )
    .see("PHP", "php.md"),
    here(&["fastcgi_param"], "`variables` in `php = { ... }` or `proxy = { ... }`"),
    here(&["uwsgi_param", "scgi_param"], "`variables` in `proxy = { ... }`"),
    here(&["fastcgi_read_timeout"], "`head` in `php = { timeouts = { ... } }`"),
    here(&["upstream"], "`[upstreams.NAME]`, or `to` in `proxy = { ... }`"),
    here(&["keepalive"], "`keep_alive` in `proxy = { ... }`, which is on by default"),
    here(&["least_conn"], "`balance = \"least-requests\"` in `[upstreams.NAME]`"),
    here(&["ip_hash"], "`balance = \"hash:client\"` in `[upstreams.NAME]`"),
    here(&["proxy_connect_timeout"], "`connect` in `proxy = { timeouts = { ... } }`"),
    here(&["proxy_read_timeout"], "`head` in `proxy = { timeouts = { ... } }`"),
    here(&["proxy_send_timeout"], "`between` in `proxy = { timeouts = { ... } }`"),
    here(&["proxy_set_header", "proxy_pass_request_headers"], "`request_headers` in `proxy = { ... }`"),
    here(&["proxy_hide_header"], "`response_headers = { remove = [\"X-Name\"] }`"),
    here(&["proxy_redirect"], "`rewrite` in `proxy = { ... }`, which is on by default"),
    here(&["proxy_intercept_errors"], "`intercept_errors` in a site or route"),
    here(&["proxy_next_upstream"], "`retry` in `proxy = { ... }`"),
    here(
        &[
            "proxy_next_upstream_tries",
            "fastcgi_next_upstream_tries",
            "uwsgi_next_upstream_tries",
            "scgi_next_upstream_tries",
        ],
        "`attempts` in `retry`, which is 3 by default",
    ),
    here(
        &[
            "proxy_next_upstream_timeout",
            "fastcgi_next_upstream_timeout",
            "uwsgi_next_upstream_timeout",
            "scgi_next_upstream_timeout",
        ],
        "`total` in `timeouts`, which counts the response's body too",
    ),
    here(&["proxy_ignore_client_abort"], "`client_abort` in `proxy = { ... }` and in `[apps.NAME]`"),
    here(&["underscores_in_headers"], "`underscores` in `proxy = { ... }`"),
    here(&["proxy_ssl_verify"], "`tls` in `proxy = { ... }`; certificates are verified by default"),
    not_needed(
        &["resolver", "resolver_timeout"],
        "names are resolved by the system, and again in the interval that `resolve` in `proxy` says",
    ),
    here(&["preread_timeout"], "`head` in `[timeouts]`, for the first message of all clients")
        .within("stream"),
    not_there(
        &["proxy_next_upstream", "proxy_next_upstream_tries", "proxy_next_upstream_timeout"],
        "another server is tried where one cannot be connected to, up to three",
    )
    .within("stream")
    .ambiguous(),
    not_needed(&["proxy_pass_header"], "fields of upstream servers are passed on"),
    not_needed(
        &["fastcgi_pass_header", "uwsgi_pass_header", "scgi_pass_header"],
        "fields of the response are passed on",
    ),
    not_needed(
        &["proxy_http_version"],
        "HTTP/1.1 with kept connections is the default; `http` in `proxy = { ... }` sets another version",
    ),
    not_needed(
        &["proxy_buffering"],
        "responses are buffered as far as clients are slow (`read_ahead` in `proxy = { ... }`)",
    ),
    not_needed(
        &["fastcgi_buffering", "uwsgi_buffering", "scgi_buffering"],
        "each part of a response is passed on as it comes",
    ),
    not_needed(&["proxy_request_buffering"], "short bodies are read first, longer ones are streamed"),
    not_needed(
        &["fastcgi_request_buffering", "uwsgi_request_buffering", "scgi_request_buffering"],
        "a request is read whole before the server is asked",
    ),
    not_needed(
        &[
            "proxy_buffers",
            "proxy_buffer_size",
            "proxy_busy_buffers_size",
            "proxy_temp_path",
            "proxy_temp_file_write_size",
            "proxy_max_temp_file_size",
            "grpc_buffer_size",
            "fastcgi_buffers",
            "fastcgi_buffer_size",
            "fastcgi_busy_buffers_size",
            "fastcgi_temp_file_write_size",
            "uwsgi_buffers",
            "uwsgi_buffer_size",
            "uwsgi_busy_buffers_size",
            "uwsgi_temp_file_write_size",
            "scgi_buffers",
            "scgi_buffer_size",
            "scgi_busy_buffers_size",
            "scgi_temp_file_write_size",
        ],
        "`read_ahead` and `spill` in `proxy` are enough for most",
    ),
    not_needed(
        &["fastcgi_max_temp_file_size", "uwsgi_max_temp_file_size", "scgi_max_temp_file_size"],
        "`spill` bounds temporary files",
    ),
    not_needed(
        &["fastcgi_temp_path", "uwsgi_temp_path", "scgi_temp_path"],
        "`temp_path` is the folder of temporary files",
    ),
    not_needed(
        &[
            "proxy_socket_keepalive",
            "proxy_ssl_server_name",
            "proxy_ssl_session_reuse",
            "proxy_ssl_protocols",
            "proxy_ssl_ciphers",
            "grpc_ssl_server_name",
        ],
        "it is always so, with TLS 1.2 or newer",
    ),
    not_needed(
        &[
            "fastcgi_pass_request_headers",
            "fastcgi_pass_request_body",
            "uwsgi_pass_request_headers",
            "uwsgi_pass_request_body",
            "scgi_pass_request_headers",
            "scgi_pass_request_body",
        ],
        "it is always so",
    ),
    not_needed(
        &["fastcgi_socket_keepalive", "uwsgi_socket_keepalive", "scgi_socket_keepalive"],
        "connections that are closed are noticed",
    ),
    not_needed(&["fastcgi_index"], "`index.php` answers for a folder (`index` in `files`)"),
    not_needed(&["fastcgi_split_path_info"], "what follows the script is always PATH_INFO"),
    not_needed(&["fastcgi_keep_conn"], "connections are kept (`keep_alive`)"),
    not_needed(
        &[
            "uwsgi_ssl_certificate",
            "uwsgi_ssl_certificate_key",
            "uwsgi_ssl_ciphers",
            "uwsgi_ssl_crl",
            "uwsgi_ssl_name",
            "uwsgi_ssl_password_file",
            "uwsgi_ssl_protocols",
            "uwsgi_ssl_server_name",
            "uwsgi_ssl_session_reuse",
            "uwsgi_ssl_trusted_certificate",
            "uwsgi_ssl_verify",
            "uwsgi_ssl_verify_depth",
        ],
        "it counts for `suwsgi://` alone",
    ),
    not_needed(&["zone", "upstream_conf"], "all threads share what they know of upstream servers")
        .ambiguous(),
    here(
        &["fastcgi_limit_rate", "uwsgi_limit_rate", "scgi_limit_rate"],
        "`bandwidth` of the route, which limits what clients get",
    ),
    not_there(&["fastcgi_catch_stderr"], "lines on stderr are in the log, and change no answer"),
    not_there(
        &["uwsgi_modifier1", "uwsgi_modifier2"],
        "the modifier is always 0, that of Python: let Komainu run others itself (`[apps.NAME]`)",
    ),
    not_there(
        &["proxy_cookie_path", "proxy_cookie_flags"],
        "paths of cookies follow `strip_prefix` and `add_prefix` by themselves; other changes are the application's",
    ),
    not_there(
        &[
            "proxy_bind",
            "proxy_method",
            "proxy_set_body",
            "proxy_pass_request_body",
            "proxy_force_ranges",
            "proxy_limit_rate",
            "proxy_store",
            "proxy_store_access",
            "proxy_send_lowat",
            "fastcgi_bind",
            "fastcgi_force_ranges",
            "uwsgi_bind",
            "uwsgi_force_ranges",
            "scgi_bind",
            "scgi_force_ranges",
        ],
        "requests are passed on as they are, from the address that the kernel chooses",
    ),
];

const CACHE: &[ForeignDirective] = &[
    here(&["proxy_cache"], "`cache`").see("in the place of nginx", "cache.md#in-the-place-of-nginx"),
    here(&["proxy_cache_path"], "`[cache]`"),
    here(&["proxy_cache_bypass"], "`bypass` in a rule of `cache`"),
    here(&["proxy_cache_key"], "`key` in a rule of `cache`"),
    here(&["proxy_cache_min_uses"], "`min_uses` in a rule of `cache`"),
    here(&["proxy_cache_valid"], "`default_ttl` in a rule of `cache`"),
    here(&["proxy_ignore_headers"], "`ignore` in a rule of `cache`"),
    not_needed(
        &[
            "proxy_cache_lock",
            "proxy_cache_lock_timeout",
            "proxy_cache_lock_age",
            "proxy_cache_revalidate",
            "proxy_cache_convert_head",
            "proxy_cache_max_range_offset",
            "fastcgi_cache_lock",
            "fastcgi_cache_lock_timeout",
            "fastcgi_cache_lock_age",
            "fastcgi_cache_revalidate",
            "fastcgi_cache_max_range_offset",
            "uwsgi_cache_lock",
            "uwsgi_cache_lock_timeout",
            "uwsgi_cache_lock_age",
            "uwsgi_cache_revalidate",
            "uwsgi_cache_max_range_offset",
            "scgi_cache_lock",
            "scgi_cache_lock_timeout",
            "scgi_cache_lock_age",
            "scgi_cache_revalidate",
            "scgi_cache_max_range_offset",
        ],
        "requests for the same response wait for one, and stale responses are validated",
    ),
    not_there(
        &[
            "fastcgi_store",
            "fastcgi_store_access",
            "uwsgi_store",
            "uwsgi_store_access",
            "scgi_store",
            "scgi_store_access",
        ],
        "responses are not written as files: `cache` keeps them",
    ),
];

const SERVER: &[ForeignDirective] = &[
    here(&["worker_processes"], "`threads`"),
    here(&["user"], "`user` and `group`").ambiguous(),
    here(&["access_log"], "`access` and `file` in `[log]`"),
    here(&["log_format"], "`access` in `[log]`"),
    here(&["error_log"], "`errors` in `[log]`"),
    here(
        &["stub_status", "status", "api"],
        "`[control] listen`, which serves a dashboard, `/metrics` and `/v1/status` at an address of its own",
    )
    .see("operations", "operations.md"),
    here(&["nginx -t", "nginx -s reload", "nginx -s quit"], "`komainu check`, `komainu reload`, SIGTERM"),
    not_needed(
        &["worker_connections", "worker_rlimit_nofile"],
        "the limit on connections follows that on open files; `connections` in `[limits]` lowers it",
    ),
    not_needed(&["pid", "daemon", "master_process", "lock_file", "worker_shutdown_timeout"], RUNNING),
    not_needed(
        &["events"],
        "each thread has its own queue of events; `threads` and `[limits]` stand at the top of the file",
    ),
    not_needed(
        &["use", "multi_accept", "accept_mutex", "accept_mutex_delay", "worker_aio_requests", "epoll_events"],
        "each thread has its own queue of events, and one of new connections",
    ),
    not_needed(
        &[
            "worker_cpu_affinity",
            "worker_priority",
            "worker_rlimit_core",
            "timer_resolution",
            "pcre_jit",
            "thread_pool",
            "working_directory",
            "debug_connection",
        ],
        "there is one thread for each core",
    ),
    not_needed(
        &["quic_bpf"],
        "packets of a QUIC connection reach its thread also from another address of the client",
    ),
    not_needed(&["backlog"], "the kernel's longest queue is used"),
    not_needed(
        &[
            "tcp_nopush",
            "tcp_nodelay",
            "reset_timedout_connection",
            "send_lowat",
            "lingering_close",
            "lingering_time",
            "lingering_timeout",
            "fastcgi_send_lowat",
        ],
        "the server does it by itself",
    ),
    here(&["limit_conn"], "`connections_per_client` in `[[stream]]`").within("stream").ambiguous(),
    not_there(
        &[
            "proxy_upload_rate",
            "proxy_download_rate",
            "proxy_half_close",
            "proxy_session_drop",
            "proxy_requests",
        ],
        "a stream has nothing like it",
    )
    .within("stream")
    .see("streams", "streams.md"),
    not_needed(
        &["tcp_nodelay", "proxy_buffer_size", "preread_buffer_size", "proxy_socket_keepalive"],
        "the server does it for each stream by itself",
    )
    .within("stream")
    .ambiguous(),
    not_needed(
        &[
            "server_names_hash_bucket_size",
            "server_names_hash_max_size",
            "types_hash_max_size",
            "types_hash_bucket_size",
            "variables_hash_max_size",
            "variables_hash_bucket_size",
            "map_hash_bucket_size",
            "map_hash_max_size",
            "connection_pool_size",
            "request_pool_size",
            "proxy_headers_hash_max_size",
            "proxy_headers_hash_bucket_size",
        ],
        "tables have the size that they need",
    ),
    not_needed(
        &[
            "client_body_buffer_size",
            "client_header_buffer_size",
            "client_body_temp_path",
            "client_body_in_file_only",
            "client_body_in_single_buffer",
        ],
        "buffers grow as needed; `temp_path` is the folder of temporary files",
    ),
    not_needed(
        &["chunked_transfer_encoding", "msie_padding", "msie_refresh", "ignore_invalid_headers"],
        "the protocol decides it",
    ),
    not_needed(
        &["log_not_found", "log_subrequest", "rewrite_log", "uninitialized_variable_warn"],
        "it changes no response",
    ),
    not_needed(
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
        "HTTP/2 is spoken wherever TLS is, with limits of its own",
    ),
    not_needed(
        &["http2_push", "http2_push_preload"],
        "browsers have given up on server push; applications may send 103 Early Hints",
    ),
    not_needed(
        &[
            "http3",
            "http3_hq",
            "http3_max_concurrent_streams",
            "http3_stream_buffer_size",
            "quic_active_connection_id_limit",
            "quic_gso",
            "quic_host_key",
            "quic_retry",
        ],
        "HTTP/3 is spoken wherever TLS is; `http3 = false` in `[tls]` or `listen` switches it off",
    ),
];

const MODULES: &[ForeignDirective] = &[
    not_there(
        &["load_module", "env"],
        "there are no modules to load; `env` in `[apps.NAME]` sets variables for applications",
    )
    .ambiguous(),
    not_there(
        &[
            "mp4",
            "flv",
            "dav_methods",
            "dav_access",
            "create_full_put_path",
            "random_index",
            "slice",
            "userid",
            "memcached_pass",
            "perl",
            "perl_set",
            "js_content",
            "js_import",
            "js_set",
        ],
        "this module is not there: let an application answer such requests",
    )
    .ambiguous(),
    not_there(
        &[
            "content_by_lua",
            "content_by_lua_block",
            "content_by_lua_file",
            "access_by_lua",
            "access_by_lua_block",
            "access_by_lua_file",
            "rewrite_by_lua_block",
            "header_filter_by_lua_block",
            "body_filter_by_lua_block",
            "log_by_lua_block",
            "set_by_lua_block",
            "init_by_lua_block",
            "init_worker_by_lua_block",
            "balancer_by_lua_block",
            "lua_shared_dict",
            "lua_package_path",
        ],
        "there is no Lua: a native handler or an application (`[apps.NAME]`) does it",
    ),
];

/// Names of variables begin with `$`.
const VARIABLES: &[ForeignDirective] = &[
    here(&["$binary_remote_addr", "$remote_host"], "`$remote_addr`"),
    here(&["$body_bytes_sent", "$bytes_sent"], "`$body_bytes`"),
    here(&["$document_uri", "$request_path"], "`$path`"),
    here(&["$geoip_country_code"], "`$country`"),
    here(&["$msec", "$time_iso8601"], "`$time`"),
    here(&["$query_string"], "`$args`"),
    here(&["$remote_port"], "`$client_port`"),
    here(&["$request"], "`$method $uri $version`"),
    here(&["$request_length"], "`$request_bytes`"),
    here(&["$request_method"], "`$method`"),
    here(&["$request_uri"], "`$uri`"),
    here(&["$server_name"], "`$host`"),
    here(&["$server_protocol"], "`$version`"),
    here(&["$ssl_cipher"], "`$tls_cipher`"),
    here(&["$ssl_protocol"], "`$tls_version`"),
    here(&["$ssl_session_reused"], "`$tls_resumed`: `true` or `false` in place of `r` and `.`"),
    here(&["$upstream_addr"], "`$upstream`"),
    here(&["$upstream_cache_status"], "`$cache`"),
    here(&["$upstream_connect_time"], "`$connect_ms`"),
    here(&["$upstream_response_time"], "`$upstream_ms`"),
    here(&["$request_time"], "the same, in seconds; `$duration_ms` counts milliseconds"),
    here(
        &["$remote_user", "$http_x_name", "$cookie_name", "$status", "$host", "$scheme", "$request_id"],
        "the same",
    ),
    not_there(&["$connection"], "`$client_port` is another one for each connection of a client"),
    not_there(&["$is_args"], "`$query` has its `?`"),
    not_there(&["$proxy_add_x_forwarded_for"], "X-Forwarded-For is sent by itself"),
    not_there(&["$upstream_status"], "`$status` is what the client gets"),
];

pub(crate) const TABLES: &[&[ForeignDirective]] =
    &[BLOCKS, FILES, RESPONSES, ACCESS, TLS, PROXY, CACHE, SERVER, MODULES, VARIABLES];

pub(crate) const DIFFERENCES: &[&str] = &[
    "Where some servers of an address have TLS and others do not, sites with TLS alone redirect to `https` at addresses without it, and sites without TLS are refused at addresses with it; nginx has a default server for both.",
    "Paths with an encoded slash (`%2F`) are matched with it, and answered 400 by most routes (`encoded_slashes`); files and folders with a leading dot are not served \
     (`hidden` in `files`), except `/.well-known/`.",
    "Upstream servers always get X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host, X-Request-Id and Via (`forwarded` in `proxy`, \
     `request_ids`); what clients send in them is replaced unless `trusted_proxies` has them.",
    "A request that neither server answers may be refused with another status.",
    "Paths with a line feed (`%0A`) are 404 where a server has expressions.",
    "Of files: a folder without a page is 404, also without a final slash, or for what answers paths without a file (`fallback`, `proxy`, `app`, a front script); OPTIONS is answered 204, other methods than GET and HEAD 405 and, where `proxy` or `app` stands beside them, by that; \
     If-Modified-Since later than the change is answered 304; ranges that are close to each other are sent as one; listings say Vary: Accept; media types are \
     those of Komainu's list.",
    "Conditions of requests (If-Match, If-None-Match) count for files, not for fixed responses. A target with a fragment is answered \
     400, and an empty Host is a host that no site names. What is answered 400 has no route, so no fields of one. TRACE is for the route. Conditions see the values of fields without tabs around them. The host of a request is that of its target, if it has one, in place of `Host` (RFC 9112, 3.2.2), and keeps a final dot.",
    "Slashes at the start of a path are always merged, and no file has a path with `//`. Paths are passed on without empty segments, but for one at the end, and those of dots. The limit of contents is that of the location that answers, and counts before redirects and fixed responses. Vary \
     has Accept-Encoding wherever compression is on. A field of `request_headers` with an empty value is sent; nginx leaves it out.",
    "Beside `php`, files with the name of a script, in any case, or of a copy of one are never sent. Servers of FastCGI, uwsgi and SCGI get \
     one variable for a field that is sent several times, HTTP_HOST and SERVER_NAME as `Host` has them, REMOTE_USER of users that `auth` knows, and no Expect. The variables of scripts are those of RFC 3875: \
     the path behind a script is in PATH_INFO and PATH_TRANSLATED, and AUTH_TYPE is set; scripts that do not exist are 404 and not passed on.",
    "Text is sent with `charset=utf-8`, unless `charset` in `files` says otherwise.",
    "What `auth` refuses has Cache-Control: no-store, and `charset=\"UTF-8\"` in WWW-Authenticate. What the cache knows has Age, and HEAD \
     and parts (Range) of what it does not know are asked for as they are.",
    "X-Accel-Redirect names files of internal locations alone; other X-Accel fields of upstream servers have no effect and are removed.",
    "Requests without an answer are sent to another upstream server at most 3 times (`retry`); WebSockets are passed on by default \
     (`upgrades`).",
    "Where a directive is absent, the defaults of Komainu count, except for `client_max_body_size` (1 MiB), `gzip` (off) and links in \
     folders (followed): docs/import.md has the list.",
    "The old server keeps running: Komainu cannot take its addresses until it is stopped.",
];

//! Upstream servers of `proxy_pass` and `grpc_pass`, and the cache of their responses.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::proxy;
use super::super::translation::{DirectiveRow, Remark};
use super::row::{each, noted, together, untranslated};

const PASSING: In = In::LOCATION.or(In::LOCATION_IF).or(In::LIMIT_EXCEPT);
/// Directives of streams have some of the names.
const PLACES_AND_STREAMS: In = In::PLACES.or(In::STREAMS);
const UNUSED_ZONE: Remark = Remark::Differs("no location that was translated uses it, so it is left out");

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    together("proxy_pass", PASSING, Args::ONE, Part::Proxy),
    together("grpc_pass", In::LOCATION.or(In::LOCATION_IF), Args::ONE, Part::Proxy),
    together("proxy_set_header", In::PLACES, Args::TWO, Part::Proxy).repeatable(),
    together("grpc_set_header", In::PLACES, Args::TWO, Part::Proxy).repeatable(),
    each("proxy_hide_header", In::PLACES, Args::ONE, Part::ProxySettings, proxy::proxy_hide_header)
        .repeatable(),
    noted("proxy_pass_header", In::PLACES, Args::ONE, Part::ProxySettings).repeatable(),
    each(
        "proxy_cookie_domain",
        In::PLACES,
        Args::ONE_OR_TWO,
        Part::ProxySettings,
        proxy::proxy_cookie_domain,
    )
    .harmless()
    .repeatable(),
    each("proxy_redirect", In::PLACES, Args::ONE_OR_TWO, Part::ProxySettings, proxy::proxy_redirect)
        .repeatable(),
    each("proxy_connect_timeout", In::PLACES, Args::ONE, Part::ProxySettings, proxy::connect_timeout),
    each("grpc_connect_timeout", In::PLACES, Args::ONE, Part::ProxySettings, proxy::connect_timeout),
    each("proxy_read_timeout", In::PLACES, Args::ONE, Part::ProxySettings, proxy::proxy_read_timeout),
    each("grpc_read_timeout", In::PLACES, Args::ONE, Part::ProxySettings, proxy::read_timeout),
    each("proxy_send_timeout", In::PLACES, Args::ONE, Part::ProxySettings, proxy::proxy_send_timeout),
    each("grpc_send_timeout", In::PLACES, Args::ONE, Part::ProxySettings, proxy::proxy_send_timeout),
    noted("proxy_next_upstream_timeout", In::PLACES, Args::ONE, Part::ProxySettings).harmless(),
    together("proxy_ssl_verify", In::PLACES, Args::ONE, Part::UpstreamTls),
    together("grpc_ssl_verify", In::PLACES, Args::ONE, Part::UpstreamTls),
    each(
        "proxy_ssl_trusted_certificate",
        In::PLACES,
        Args::ONE,
        Part::UpstreamTls,
        proxy::proxy_ssl_trusted_certificate,
    ),
    each("proxy_ssl_certificate", In::PLACES, Args::ONE, Part::UpstreamTls, proxy::proxy_ssl_certificate),
    each(
        "proxy_ssl_certificate_key",
        In::PLACES,
        Args::ONE,
        Part::UpstreamTls,
        proxy::proxy_ssl_certificate_key,
    ),
    each("proxy_ssl_name", In::PLACES, Args::ONE, Part::UpstreamTls, proxy::proxy_ssl_name),
    each("proxy_next_upstream", In::PLACES, Args::SOME, Part::ProxyRequests, proxy::proxy_next_upstream)
        .harmless(),
    each(
        "proxy_next_upstream_tries",
        In::PLACES,
        Args::ONE,
        Part::ProxyRequests,
        proxy::proxy_next_upstream_tries,
    )
    .harmless(),
    each("proxy_buffering", In::PLACES, Args::ONE, Part::ProxyRequests, proxy::proxy_buffering),
    each(
        "proxy_request_buffering",
        In::PLACES,
        Args::ONE,
        Part::ProxyRequests,
        proxy::proxy_request_buffering,
    ),
    each("proxy_ignore_client_abort", In::PLACES, Args::ONE, Part::ProxyRequests, proxy::ignore_client_abort),
    each(
        "underscores_in_headers",
        In::CONNECTION,
        Args::ONE,
        Part::ProxyRequests,
        proxy::underscores_in_headers,
    ),
    together("proxy_intercept_errors", In::PLACES, Args::ONE, Part::Proxy),
    together("proxy_cache", In::PLACES, Args::ONE, Part::Cache).harmless(),
    together("proxy_cache_path", In::HTTP, Args::at_least(2), Part::Definitions)
        .harmless()
        .repeatable()
        .unused(UNUSED_ZONE),
    together("proxy_cache_key", In::PLACES, Args::ONE, Part::Cache).harmless(),
    together("proxy_ignore_headers", In::PLACES, Args::SOME, Part::Cache),
    together("proxy_cache_min_uses", In::PLACES, Args::ONE, Part::Cache).harmless(),
    together("proxy_cache_background_update", In::PLACES, Args::ONE, Part::Cache).harmless(),
    together("proxy_cache_valid", In::PLACES, Args::SOME, Part::Cache).harmless().repeatable(),
    together("proxy_cache_use_stale", In::PLACES, Args::SOME, Part::Cache).harmless(),
    together("proxy_cache_methods", In::PLACES, Args::SOME, Part::Cache).harmless(),
    together("proxy_cache_bypass", In::PLACES, Args::SOME, Part::Cache).harmless().repeatable(),
    together("proxy_no_cache", In::PLACES, Args::SOME, Part::Cache).repeatable(),
    untranslated("proxy_cache_lock", In::PLACES, Args::ONE).harmless(),
    untranslated("proxy_cache_lock_timeout", In::PLACES, Args::ONE).harmless(),
    untranslated("proxy_cache_lock_age", In::PLACES, Args::ONE).harmless(),
    untranslated("proxy_cache_revalidate", In::PLACES, Args::ONE).harmless(),
    untranslated("proxy_cache_convert_head", In::PLACES, Args::ONE).harmless(),
    untranslated("proxy_cache_max_range_offset", In::PLACES, Args::ONE).harmless(),
    untranslated("proxy_buffers", In::PLACES, Args::TWO),
    untranslated("proxy_buffer_size", In::PLACES, Args::ONE),
    untranslated("proxy_busy_buffers_size", In::PLACES, Args::ONE),
    untranslated("proxy_temp_path", In::PLACES, Args::between(1, 4)),
    untranslated("proxy_temp_file_write_size", In::PLACES, Args::ONE),
    untranslated("proxy_max_temp_file_size", In::PLACES, Args::ONE),
    untranslated("grpc_buffer_size", In::PLACES, Args::ONE),
    untranslated("proxy_http_version", In::PLACES, Args::ONE),
    untranslated("proxy_socket_keepalive", In::PLACES, Args::ONE),
    untranslated("proxy_ssl_server_name", PLACES_AND_STREAMS, Args::ONE),
    untranslated("proxy_ssl_session_reuse", PLACES_AND_STREAMS, Args::ONE),
    untranslated("proxy_ssl_protocols", PLACES_AND_STREAMS, Args::SOME),
    untranslated("proxy_ssl_ciphers", PLACES_AND_STREAMS, Args::ONE),
    untranslated("grpc_ssl_server_name", In::PLACES, Args::ONE),
    untranslated("proxy_headers_hash_max_size", In::PLACES, Args::ONE).harmless(),
    untranslated("proxy_headers_hash_bucket_size", In::PLACES, Args::ONE).harmless(),
    untranslated("proxy_cookie_path", In::PLACES, Args::ONE_OR_TWO).harmless(),
    untranslated("proxy_cookie_flags", In::PLACES, Args::SOME).harmless(),
    untranslated("proxy_bind", PLACES_AND_STREAMS, Args::ONE_OR_TWO),
    untranslated("proxy_method", In::PLACES, Args::ONE),
    untranslated("proxy_set_body", In::PLACES, Args::ONE),
    untranslated("proxy_pass_request_body", In::PLACES, Args::ONE).neutral("on"),
    untranslated("proxy_pass_request_headers", In::PLACES, Args::ONE).neutral("on"),
    untranslated("proxy_force_ranges", In::PLACES, Args::ONE).harmless(),
    untranslated("proxy_limit_rate", In::PLACES, Args::ONE).harmless(),
    untranslated("proxy_store", In::PLACES, Args::ONE).harmless(),
    untranslated("proxy_store_access", In::PLACES, Args::between(1, 3)).harmless(),
    untranslated("proxy_send_lowat", In::PLACES, Args::ONE).harmless(),
    untranslated("proxy_ssl_crl", PLACES_AND_STREAMS, Args::ONE),
    untranslated("proxy_ssl_verify_depth", PLACES_AND_STREAMS, Args::ONE),
    untranslated("proxy_ssl_password_file", PLACES_AND_STREAMS, Args::ONE),
    untranslated("mirror", In::PLACES, Args::ONE).harmless(),
    untranslated("mirror_request_body", In::PLACES, Args::ONE).harmless(),
    untranslated("memcached_pass", In::LOCATION.or(In::LOCATION_IF), Args::ONE),
];

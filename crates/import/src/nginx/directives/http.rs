//! Connections, buffers and logs of `http`.

use super::super::access;
use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::{DirectiveRow, Remark};
use super::row::{each, not_needed, not_possible, together};

const FILES: &str =
    "not needed: files are sent without copying them wherever that is possible, and read without blocking";
const BY_ITSELF: &str = "not needed: the server does it by itself";
const TABLES: &str = "not needed: tables have the size that they need";
const BUFFERS: &str = "not needed: buffers grow as needed; `temp_path` is the folder of temporary files";
const PROTOCOL: &str = "not needed: the protocol decides it";
const NO_RESPONSE: &str = "not needed: it changes no response";
const HTTP2: &str = "not needed: HTTP/2 is spoken wherever TLS is, with limits of its own";
const HTTP3: &str = "HTTP/3 is not there: clients use HTTP/2";
/// nginx has them in groups of servers since 1.27.3.
const RESOLVING: In = In::PLACES.or(In::STREAMS).or(In::UPSTREAM).or(In::STREAM_UPSTREAM);
const PUSH: &str = "not needed: browsers have given up on server push; applications may send 103 Early Hints";
const RESOLVER: &str = "not needed: OCSP responses are fetched where a certificate names a responder; names are resolved by the system";
const PRECONDITIONS: &str = "preconditions are answered as RFC 9110 says, files have a strong `ETag`";
const REDIRECTS: &str = "redirects name the path alone";

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    each(
        "client_header_timeout",
        In::CONNECTION,
        Args::ONE,
        Part::Connections,
        access::client_header_timeout,
    ),
    each("keepalive_timeout", In::PLACES, Args::ONE_OR_TWO, Part::Connections, access::keepalive_timeout),
    each("keepalive_requests", In::PLACES, Args::ONE, Part::Connections, access::keepalive_requests),
    each(
        "large_client_header_buffers",
        In::CONNECTION,
        Args::TWO,
        Part::Connections,
        access::large_client_header_buffers,
    ),
    together("access_log", In::PLACES_AND_IF.or(In::LIMIT_EXCEPT).or(In::STREAMS), Args::SOME, Part::Site)
        .harmless(),
    together("log_format", In::HTTP.or(In::STREAM), Args::at_least(2), Part::Definitions)
        .harmless()
        .unused(Remark::NotNeeded("the access log that is written does not use it")),
    together("set_real_ip_from", In::PLACES.or(In::STREAMS), Args::ONE, Part::ClientAddresses),
    together("real_ip_header", In::PLACES, Args::ONE, Part::ClientAddresses),
    together("real_ip_recursive", In::PLACES, Args::ONE, Part::ClientAddresses),
    together("merge_slashes", In::CONNECTION, Args::ONE, Part::Places),
    not_needed("sendfile", In::PLACES_AND_IF, Args::ONE, FILES),
    not_needed("sendfile_max_chunk", In::PLACES, Args::ONE, FILES),
    not_needed("aio", In::PLACES, Args::ONE, FILES),
    not_needed("aio_write", In::PLACES, Args::ONE, FILES),
    not_needed("directio", In::PLACES, Args::ONE, FILES),
    not_needed("directio_alignment", In::PLACES, Args::ONE, FILES),
    not_needed("output_buffers", In::PLACES, Args::TWO, FILES),
    not_needed("read_ahead", In::PLACES, Args::ONE, FILES),
    not_needed("postpone_output", In::PLACES, Args::ONE, FILES),
    not_needed("tcp_nopush", In::PLACES, Args::ONE, BY_ITSELF),
    not_needed("tcp_nodelay", In::PLACES, Args::ONE, BY_ITSELF),
    not_needed("reset_timedout_connection", In::PLACES, Args::ONE, BY_ITSELF),
    not_needed("send_lowat", In::PLACES, Args::ONE, BY_ITSELF),
    not_needed("lingering_close", In::PLACES, Args::ONE, BY_ITSELF),
    not_needed("lingering_time", In::PLACES, Args::ONE, BY_ITSELF),
    not_needed("lingering_timeout", In::PLACES, Args::ONE, BY_ITSELF),
    not_needed("server_names_hash_bucket_size", In::HTTP, Args::ONE, TABLES),
    not_needed("server_names_hash_max_size", In::HTTP, Args::ONE, TABLES),
    not_needed("types_hash_max_size", In::PLACES, Args::ONE, TABLES),
    not_needed("types_hash_bucket_size", In::PLACES, Args::ONE, TABLES),
    not_needed("variables_hash_max_size", In::HTTP.or(In::STREAM), Args::ONE, TABLES),
    not_needed("variables_hash_bucket_size", In::HTTP.or(In::STREAM), Args::ONE, TABLES),
    not_needed("map_hash_bucket_size", In::HTTP.or(In::STREAM), Args::ONE, TABLES),
    not_needed("map_hash_max_size", In::HTTP.or(In::STREAM), Args::ONE, TABLES),
    not_needed("connection_pool_size", In::CONNECTION, Args::ONE, TABLES),
    not_needed("request_pool_size", In::CONNECTION, Args::ONE, TABLES),
    not_needed("server_tokens", In::PLACES, Args::ONE, "not needed: the version is never sent"),
    not_needed("client_body_buffer_size", In::PLACES, Args::ONE, BUFFERS),
    not_needed("client_header_buffer_size", In::CONNECTION, Args::ONE, BUFFERS),
    not_needed("client_body_temp_path", In::PLACES, Args::between(1, 4), BUFFERS),
    not_needed("client_body_in_file_only", In::PLACES, Args::ONE, BUFFERS),
    not_needed("client_body_in_single_buffer", In::PLACES, Args::ONE, BUFFERS),
    not_needed("chunked_transfer_encoding", In::PLACES, Args::ONE, PROTOCOL),
    not_needed("msie_padding", In::PLACES, Args::ONE, PROTOCOL),
    not_needed("msie_refresh", In::PLACES, Args::ONE, PROTOCOL),
    not_needed("ignore_invalid_headers", In::CONNECTION, Args::ONE, PROTOCOL),
    not_needed("log_not_found", In::PLACES, Args::ONE, NO_RESPONSE).harmless(),
    not_needed("log_subrequest", In::PLACES, Args::ONE, NO_RESPONSE).harmless(),
    not_needed("rewrite_log", In::PLACES.or(In::SERVER_IF).or(In::LOCATION_IF), Args::ONE, NO_RESPONSE),
    not_needed(
        "uninitialized_variable_warn",
        In::PLACES.or(In::SERVER_IF).or(In::LOCATION_IF),
        Args::ONE,
        NO_RESPONSE,
    ),
    not_needed("http2", In::CONNECTION, Args::ONE, HTTP2).harmless(),
    not_needed("http2_max_concurrent_streams", In::CONNECTION, Args::ONE, HTTP2).harmless(),
    not_needed("http2_idle_timeout", In::CONNECTION, Args::ONE, HTTP2).harmless(),
    not_needed("http2_recv_timeout", In::CONNECTION, Args::ONE, HTTP2).harmless(),
    not_needed("http2_chunk_size", In::PLACES, Args::ONE, HTTP2).harmless(),
    not_needed("http2_max_field_size", In::CONNECTION, Args::ONE, HTTP2).harmless(),
    not_needed("http2_max_header_size", In::CONNECTION, Args::ONE, HTTP2).harmless(),
    not_needed("http2_max_requests", In::CONNECTION, Args::ONE, HTTP2).harmless(),
    not_needed("http2_recv_buffer_size", In::HTTP, Args::ONE, HTTP2).harmless(),
    not_needed("http2_body_preread_size", In::CONNECTION, Args::ONE, HTTP2).harmless(),
    not_needed("http2_push", In::PLACES, Args::ONE, PUSH).harmless(),
    not_needed("http2_push_preload", In::PLACES, Args::ONE, PUSH).harmless(),
    not_possible("http3", In::CONNECTION, Args::ONE, HTTP3).harmless(),
    not_possible("http3_hq", In::CONNECTION, Args::ONE, HTTP3).harmless(),
    not_possible("http3_stream_buffer_size", In::CONNECTION, Args::ONE, HTTP3).harmless(),
    not_possible("quic_retry", In::CONNECTION, Args::ONE, HTTP3).harmless(),
    not_possible("quic_gso", In::CONNECTION, Args::ONE, HTTP3).harmless(),
    not_needed("resolver", RESOLVING, Args::SOME, RESOLVER),
    not_needed("resolver_timeout", RESOLVING, Args::ONE, RESOLVER),
    not_possible("if_modified_since", In::PLACES, Args::ONE, PRECONDITIONS).harmless(),
    not_possible("etag", In::PLACES, Args::ONE, PRECONDITIONS).harmless(),
    not_possible("open_file_cache_errors", In::PLACES, Args::ONE, PRECONDITIONS).harmless(),
    not_possible("open_file_cache_min_uses", In::PLACES, Args::ONE, PRECONDITIONS).harmless(),
    not_possible("absolute_redirect", In::PLACES, Args::ONE, REDIRECTS).harmless(),
    not_possible("port_in_redirect", In::PLACES, Args::ONE, REDIRECTS).harmless(),
    not_possible("server_name_in_redirect", In::PLACES, Args::ONE, REDIRECTS).harmless(),
];

//! Streams.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::DirectiveRow;
use super::super::{proxy, streams, upstream};
use super::row::{block, different, each, noted, together, untranslated};

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    block("stream", In::MAIN),
    block("server", In::STREAM),
    together("upstream", In::STREAM, Args::ONE, Part::StreamUpstream),
    together("listen", In::STREAM_SERVER, Args::SOME, Part::Stream),
    together("proxy_pass", In::STREAM_SERVER, Args::ONE, Part::Stream),
    together("return", In::STREAM_SERVER, Args::ONE, Part::Stream),
    together("ssl_preread", In::STREAMS, Args::ONE, Part::Stream),
    together("proxy_ssl", In::STREAMS, Args::ONE, Part::Stream),
    each("proxy_protocol", In::STREAMS, Args::ONE, Part::StreamSettings, streams::proxy_protocol),
    each("proxy_connect_timeout", In::STREAMS, Args::ONE, Part::StreamSettings, proxy::connect_timeout),
    each("proxy_timeout", In::STREAMS, Args::ONE, Part::StreamSettings, streams::proxy_timeout),
    each("proxy_responses", In::STREAMS, Args::ONE, Part::StreamSettings, streams::proxy_responses),
    together("allow", In::STREAMS, Args::ONE, Part::Stream).repeatable(),
    together("deny", In::STREAMS, Args::ONE, Part::Stream).repeatable(),
    each("limit_conn", In::STREAMS, Args::TWO, Part::StreamSettings, streams::limit_conn).repeatable(),
    untranslated("proxy_upload_rate", In::STREAMS, Args::ONE).harmless(),
    untranslated("proxy_download_rate", In::STREAMS, Args::ONE).harmless(),
    untranslated("proxy_half_close", In::STREAMS, Args::ONE).harmless(),
    untranslated("proxy_session_drop", In::STREAMS, Args::ONE).harmless(),
    untranslated("proxy_requests", In::STREAMS, Args::ONE).harmless(),
    different("preread_timeout", In::STREAMS, Args::ONE, Part::StreamSettings),
    noted("tcp_nodelay", In::STREAMS, Args::ONE, Part::StreamSettings),
    noted("proxy_buffer_size", In::STREAMS, Args::ONE, Part::StreamSettings),
    noted("preread_buffer_size", In::STREAMS, Args::ONE, Part::StreamSettings),
    noted("proxy_socket_keepalive", In::STREAMS, Args::ONE, Part::StreamSettings),
    different("proxy_next_upstream", In::STREAMS, Args::ONE, Part::StreamSettings),
    different("proxy_next_upstream_tries", In::STREAMS, Args::ONE, Part::StreamSettings),
    different("proxy_next_upstream_timeout", In::STREAMS, Args::ONE, Part::StreamSettings),
    together("server", In::STREAM_UPSTREAM, Args::SOME, Part::StreamUpstream).repeatable(),
    each("least_conn", In::STREAM_UPSTREAM, Args::NONE, Part::StreamUpstream, streams::least_conn),
    each("random", In::STREAM_UPSTREAM, Args::between(0, 2), Part::StreamUpstream, upstream::random),
    each("hash", In::STREAM_UPSTREAM, Args::ONE_OR_TWO, Part::StreamUpstream, streams::hash),
];

//! Groups of upstream servers.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::DirectiveRow;
use super::super::upstream;
use super::row::{each, together, untranslated};

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    together("upstream", In::HTTP, Args::ONE, Part::Upstream).repeatable(),
    together("server", In::UPSTREAM, Args::SOME, Part::Upstream).repeatable(),
    each("least_conn", In::UPSTREAM, Args::NONE, Part::Upstream, upstream::least_conn),
    each("ip_hash", In::UPSTREAM, Args::NONE, Part::Upstream, upstream::ip_hash),
    each("random", In::UPSTREAM, Args::between(0, 2), Part::Upstream, upstream::random),
    each("hash", In::UPSTREAM, Args::ONE_OR_TWO, Part::Upstream, upstream::hash),
    each("sticky", In::UPSTREAM, Args::SOME, Part::Upstream, upstream::sticky),
    each("keepalive", In::UPSTREAM, Args::ONE, Part::Upstream, upstream::keepalive),
    each("keepalive_requests", In::UPSTREAM, Args::ONE, Part::Upstream, upstream::keepalive_requests),
    each("keepalive_timeout", In::UPSTREAM, Args::ONE, Part::Upstream, upstream::keepalive_timeout),
    untranslated("zone", In::UPSTREAM.or(In::STREAM_UPSTREAM), Args::ONE_OR_TWO),
    untranslated("upstream_conf", In::LOCATION, Args::NONE),
];

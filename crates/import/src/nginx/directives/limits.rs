//! Limits of rates, connections, sizes and times.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::limits;
use super::super::translation::{DirectiveRow, Remark};
use super::row::{each, together, untranslated};

const UNUSED_ZONE: Remark = Remark::Differs("no location that was translated uses it, so it is left out");

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    each("max_headers", In::CONNECTION, Args::ONE, Part::Limits, limits::max_headers),
    each("client_max_body_size", In::PLACES, Args::ONE, Part::Limits, limits::client_max_body_size),
    each("client_body_timeout", In::PLACES, Args::ONE, Part::Limits, limits::client_body_timeout),
    each("send_timeout", In::PLACES, Args::ONE, Part::Limits, limits::send_timeout),
    each("limit_rate", In::PLACES_AND_IF, Args::ONE, Part::Limits, limits::limit_rate).harmless(),
    each("limit_rate_after", In::PLACES_AND_IF, Args::ONE, Part::Limits, limits::limit_rate_after).harmless(),
    together("limit_req", In::PLACES, Args::between(1, 3), Part::Access).repeatable(),
    together("limit_req_status", In::PLACES, Args::ONE, Part::Access),
    together("limit_req_dry_run", In::PLACES, Args::ONE, Part::Access),
    together("limit_conn", In::PLACES, Args::TWO, Part::Access).repeatable(),
    together("limit_conn_status", In::PLACES, Args::ONE, Part::Access),
    together("limit_req_zone", In::HTTP, Args::between(3, 4), Part::Definitions)
        .harmless()
        .repeatable()
        .unused(UNUSED_ZONE),
    together("limit_conn_zone", In::HTTP.or(In::STREAM), Args::TWO, Part::Definitions)
        .harmless()
        .repeatable(),
    untranslated("limit_conn_dry_run", In::PLACES.or(In::STREAMS), Args::ONE).harmless(),
    untranslated("limit_conn_log_level", In::PLACES.or(In::STREAMS), Args::ONE),
    untranslated("limit_req_log_level", In::PLACES, Args::ONE),
];

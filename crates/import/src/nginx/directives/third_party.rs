//! Modules that are not part of nginx, or of its commercial edition alone.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::DirectiveRow;
use super::row::{together, untranslated};

const ANY_IF: In = In::SERVER_IF.or(In::LOCATION_IF);
const LUA_PHASE: In = In::PLACES_AND_IF;

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    together("more_set_headers", In::PLACES_AND_IF, Args::SOME, Part::Headers).harmless().repeatable(),
    together("more_clear_headers", In::PLACES_AND_IF, Args::SOME, Part::Headers).harmless().repeatable(),
    together("brotli", In::PLACES_AND_IF, Args::ONE, Part::Compression),
    together("brotli_min_length", In::PLACES, Args::ONE, Part::Compression),
    together("brotli_comp_level", In::PLACES, Args::ONE, Part::Compression),
    together("brotli_types", In::PLACES, Args::SOME, Part::Compression),
    together("brotli_static", In::PLACES, Args::ONE, Part::Compression),
    together("zstd", In::PLACES_AND_IF, Args::ONE, Part::Compression),
    together("zstd_min_length", In::PLACES, Args::ONE, Part::Compression),
    together("zstd_comp_level", In::PLACES, Args::ONE, Part::Compression),
    together("zstd_types", In::PLACES, Args::SOME, Part::Compression),
    together("zstd_static", In::PLACES, Args::ONE, Part::Compression),
    untranslated("brotli_buffers", In::PLACES, Args::TWO),
    untranslated("brotli_window", In::PLACES, Args::ONE),
    untranslated("perl", In::LOCATION.or(In::LIMIT_EXCEPT), Args::ONE),
    untranslated("perl_set", In::HTTP, Args::TWO).harmless(),
    untranslated("js_content", In::LOCATION.or(In::LOCATION_IF).or(In::LIMIT_EXCEPT), Args::ONE),
    untranslated("js_import", In::PLACES.or(In::STREAMS), Args::between(1, 3)).harmless(),
    untranslated("js_set", In::PLACES.or(In::STREAMS), Args::TWO_OR_THREE).harmless(),
    untranslated("content_by_lua", In::LOCATION.or(In::LOCATION_IF), Args::ONE),
    untranslated("content_by_lua_block", In::LOCATION.or(In::LOCATION_IF), Args::ANY),
    untranslated("content_by_lua_file", In::LOCATION.or(In::LOCATION_IF), Args::ONE),
    untranslated("access_by_lua", LUA_PHASE, Args::ONE),
    untranslated("access_by_lua_block", LUA_PHASE, Args::ANY),
    untranslated("access_by_lua_file", LUA_PHASE, Args::ONE),
    untranslated("rewrite_by_lua_block", LUA_PHASE, Args::ANY),
    untranslated("header_filter_by_lua_block", LUA_PHASE, Args::ANY),
    untranslated("body_filter_by_lua_block", LUA_PHASE, Args::ANY),
    untranslated("log_by_lua_block", LUA_PHASE, Args::ANY).harmless(),
    untranslated("set_by_lua_block", In::SERVER.or(In::LOCATION).or(ANY_IF), Args::ANY),
    untranslated("init_by_lua_block", In::HTTP, Args::ANY).harmless(),
    untranslated("init_worker_by_lua_block", In::HTTP, Args::ANY).harmless(),
    untranslated("balancer_by_lua_block", In::UPSTREAM, Args::ANY),
    untranslated("lua_shared_dict", In::HTTP, Args::TWO).harmless(),
    untranslated("lua_package_path", In::HTTP, Args::ONE).harmless(),
    untranslated("geoip_country", In::HTTP.or(In::STREAM), Args::ONE_OR_TWO).harmless(),
    untranslated("geoip_city", In::HTTP.or(In::STREAM), Args::ONE_OR_TWO).harmless(),
    untranslated("geoip2", In::HTTP.or(In::STREAM), Args::ONE).harmless(),
    untranslated("stub_status", In::SERVER.or(In::LOCATION), Args::between(0, 1)).harmless(),
    untranslated("status", In::LOCATION, Args::ANY).harmless(),
    untranslated("api", In::LOCATION, Args::ANY).harmless(),
    untranslated("satisfy_any", In::PLACES, Args::ONE),
];

//! Modules that are not part of nginx, or of its commercial edition alone.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::DirectiveRow;
use super::row::{not_needed, not_possible, together};

const CODING_BUFFERS: &str =
    "not needed: clients of HTTP/1.0 get nothing compressed; buffers are as large as they have to be";
const MODULE: &str = "this module is not there: let an application answer such requests";
const LUA: &str = "there is no Lua: a native handler or an application (`[apps.NAME]`) does it";
const GEO: &str =
    "write `[geo]`, `country` of routes and `$country`: docs/guide.md; there are no variables for cities";
const STATUS: &str = "`[control] listen` serves `/metrics` and `/v1/status` at an address of its own";
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
    not_needed("brotli_buffers", In::PLACES, Args::TWO, CODING_BUFFERS),
    not_needed("brotli_window", In::PLACES, Args::ONE, CODING_BUFFERS),
    not_possible("perl", In::LOCATION.or(In::LIMIT_EXCEPT), Args::ONE, MODULE),
    not_possible("perl_set", In::HTTP, Args::TWO, MODULE).harmless(),
    not_possible("js_content", In::LOCATION.or(In::LOCATION_IF).or(In::LIMIT_EXCEPT), Args::ONE, MODULE),
    not_possible("js_import", In::PLACES.or(In::STREAMS), Args::between(1, 3), MODULE).harmless(),
    not_possible("js_set", In::PLACES.or(In::STREAMS), Args::TWO_OR_THREE, MODULE).harmless(),
    not_possible("content_by_lua", In::LOCATION.or(In::LOCATION_IF), Args::ONE, LUA),
    not_possible("content_by_lua_block", In::LOCATION.or(In::LOCATION_IF), Args::ANY, LUA),
    not_possible("content_by_lua_file", In::LOCATION.or(In::LOCATION_IF), Args::ONE, LUA),
    not_possible("access_by_lua", LUA_PHASE, Args::ONE, LUA),
    not_possible("access_by_lua_block", LUA_PHASE, Args::ANY, LUA),
    not_possible("access_by_lua_file", LUA_PHASE, Args::ONE, LUA),
    not_possible("rewrite_by_lua_block", LUA_PHASE, Args::ANY, LUA),
    not_possible("header_filter_by_lua_block", LUA_PHASE, Args::ANY, LUA),
    not_possible("body_filter_by_lua_block", LUA_PHASE, Args::ANY, LUA),
    not_possible("log_by_lua_block", LUA_PHASE, Args::ANY, LUA).harmless(),
    not_possible("set_by_lua_block", In::SERVER.or(In::LOCATION).or(ANY_IF), Args::ANY, LUA),
    not_possible("init_by_lua_block", In::HTTP, Args::ANY, LUA).harmless(),
    not_possible("init_worker_by_lua_block", In::HTTP, Args::ANY, LUA).harmless(),
    not_possible("balancer_by_lua_block", In::UPSTREAM, Args::ANY, LUA),
    not_possible("lua_shared_dict", In::HTTP, Args::TWO, LUA).harmless(),
    not_possible("lua_package_path", In::HTTP, Args::ONE, LUA).harmless(),
    not_possible("geoip_country", In::HTTP.or(In::STREAM), Args::ONE_OR_TWO, GEO).harmless(),
    not_possible("geoip_city", In::HTTP.or(In::STREAM), Args::ONE_OR_TWO, GEO).harmless(),
    not_possible("geoip2", In::HTTP.or(In::STREAM), Args::ONE, GEO).harmless(),
    not_possible("stub_status", In::SERVER.or(In::LOCATION), Args::between(0, 1), STATUS).harmless(),
    not_possible("status", In::LOCATION, Args::ANY, STATUS).harmless(),
    not_possible("api", In::LOCATION, Args::ANY, STATUS).harmless(),
    not_possible(
        "satisfy_any",
        In::PLACES,
        Args::ONE,
        "a request has to meet both, addresses and password, as with `satisfy all`",
    ),
];

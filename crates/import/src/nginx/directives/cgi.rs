//! Servers of FastCGI, uwsgi and SCGI: the modules have the same directives.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::Remark::Differs;
use super::super::translation::{DirectiveRow, Remark};
use super::super::{cgi, proxy};
use super::row::{different, each, noted, together};

const UNUSED: Remark = Differs("no location that was translated uses it, so it is left out");

/// The rows of a protocol.
macro_rules! protocol {
    ($name:ident, $start:literal, $part:ident, [$($own:expr),* $(,)?]) => {
        pub(super) const $name: &[DirectiveRow] = &[
            together(concat!($start, "_pass"), In::LOCATION.or(In::LOCATION_IF), Args::ONE, Part::Cgi)
                .unused(UNUSED),
            together(concat!($start, "_param"), In::PLACES, Args::TWO_OR_THREE, Part::$part)
                .repeatable()
                .unused(UNUSED),
            each(concat!($start, "_connect_timeout"), In::PLACES, Args::ONE, Part::$part, proxy::connect_timeout)
                .unused(UNUSED),
            each(concat!($start, "_read_timeout"), In::PLACES, Args::ONE, Part::$part, proxy::read_timeout)
                .unused(UNUSED),
            each(concat!($start, "_send_timeout"), In::PLACES, Args::ONE, Part::$part, cgi::send_timeout)
                .unused(UNUSED),
            each(concat!($start, "_hide_header"), In::PLACES, Args::ONE, Part::$part, proxy::hide_header)
                .repeatable()
                .unused(UNUSED),
            each(concat!($start, "_next_upstream"), In::PLACES, Args::SOME, Part::$part, cgi::next_upstream)
                .unused(UNUSED),
            each(concat!($start, "_ignore_client_abort"), In::PLACES, Args::ONE, Part::$part, proxy::ignore_client_abort)
                .unused(UNUSED),
            together(concat!($start, "_intercept_errors"), In::PLACES, Args::ONE, Part::Cgi).unused(UNUSED),
            $($own,)*
            setting(Part::$part, concat!($start, "_buffers"), Args::TWO),
            setting(Part::$part, concat!($start, "_buffer_size"), Args::ONE),
            setting(Part::$part, concat!($start, "_busy_buffers_size"), Args::ONE),
            setting(Part::$part, concat!($start, "_temp_file_write_size"), Args::ONE),
            setting(Part::$part, concat!($start, "_max_temp_file_size"), Args::ONE),
            setting(Part::$part, concat!($start, "_buffering"), Args::ONE),
            setting(Part::$part, concat!($start, "_request_buffering"), Args::ONE),
            setting(Part::$part, concat!($start, "_pass_header"), Args::ONE)
            .repeatable(),
            setting(Part::$part, concat!($start, "_pass_request_headers"), Args::ONE),
            setting(Part::$part, concat!($start, "_pass_request_body"), Args::ONE),
            different_setting(Part::$part, concat!($start, "_next_upstream_tries"), Args::ONE),
            setting(Part::$part, concat!($start, "_socket_keepalive"), Args::ONE),
            different_setting(Part::$part, concat!($start, "_limit_rate"), Args::ONE),
            different_setting(Part::$part, concat!($start, "_store"), Args::ONE),
            setting(Part::$part, concat!($start, "_temp_path"), Args::between(1, 4)),
            different_setting(Part::$part, concat!($start, "_next_upstream_timeout"), Args::ONE),
            different_setting(Part::$part, concat!($start, "_bind"), Args::ONE_OR_TWO),
            different_setting(Part::$part, concat!($start, "_force_ranges"), Args::ONE),
            different_setting(Part::$part, concat!($start, "_store_access"), Args::between(1, 3)),
            setting(Part::$part, concat!($start, "_cache_lock"), Args::ONE),
            setting(Part::$part, concat!($start, "_cache_lock_age"), Args::ONE),
            setting(Part::$part, concat!($start, "_cache_lock_timeout"), Args::ONE),
            setting(Part::$part, concat!($start, "_cache_revalidate"), Args::ONE),
            setting(Part::$part, concat!($start, "_cache_max_range_offset"), Args::ONE),
            cache(concat!($start, "_cache"), Args::ONE),
            cache(concat!($start, "_cache_key"), Args::ONE),
            together(concat!($start, "_ignore_headers"), In::PLACES, Args::SOME, Part::Cache).unused(UNUSED),
            cache(concat!($start, "_cache_min_uses"), Args::ONE),
            cache(concat!($start, "_cache_background_update"), Args::ONE),
            cache(concat!($start, "_cache_valid"), Args::SOME).repeatable(),
            cache(concat!($start, "_cache_use_stale"), Args::SOME),
            cache(concat!($start, "_cache_methods"), Args::SOME),
            cache(concat!($start, "_cache_bypass"), Args::SOME).repeatable(),
            together(concat!($start, "_no_cache"), In::PLACES, Args::SOME, Part::Cache)
                .repeatable()
                .unused(UNUSED),
            DirectiveRow {
                contexts: In::HTTP,
                ..cache(concat!($start, "_cache_path"), Args::at_least(2)).repeatable()
            },
        ];
    };
}

protocol!(
    FASTCGI,
    "fastcgi",
    FastCgi,
    [
        setting(Part::FastCgi, "fastcgi_index", Args::ONE),
        setting(Part::FastCgi, "fastcgi_split_path_info", Args::ONE),
        setting(Part::FastCgi, "fastcgi_send_lowat", Args::ONE),
        setting(Part::FastCgi, "fastcgi_keep_conn", Args::ONE),
        different_setting(Part::FastCgi, "fastcgi_catch_stderr", Args::ONE).repeatable(),
    ]
);

protocol!(
    UWSGI,
    "uwsgi",
    Uwsgi,
    [
        different_setting(Part::Uwsgi, "uwsgi_modifier1", Args::ONE),
        different_setting(Part::Uwsgi, "uwsgi_modifier2", Args::ONE),
        setting(Part::Uwsgi, "uwsgi_ssl_certificate", Args::ONE),
        setting(Part::Uwsgi, "uwsgi_ssl_certificate_key", Args::ONE),
        setting(Part::Uwsgi, "uwsgi_ssl_ciphers", Args::ONE),
        setting(Part::Uwsgi, "uwsgi_ssl_crl", Args::ONE),
        setting(Part::Uwsgi, "uwsgi_ssl_name", Args::ONE),
        setting(Part::Uwsgi, "uwsgi_ssl_password_file", Args::ONE),
        setting(Part::Uwsgi, "uwsgi_ssl_protocols", Args::SOME),
        setting(Part::Uwsgi, "uwsgi_ssl_server_name", Args::ONE),
        setting(Part::Uwsgi, "uwsgi_ssl_session_reuse", Args::ONE),
        setting(Part::Uwsgi, "uwsgi_ssl_trusted_certificate", Args::ONE),
        setting(Part::Uwsgi, "uwsgi_ssl_verify", Args::ONE),
        setting(Part::Uwsgi, "uwsgi_ssl_verify_depth", Args::ONE),
    ]
);

protocol!(SCGI, "scgi", Scgi, []);

const fn setting(part: Part, name: &'static str, arguments: Args) -> DirectiveRow {
    noted(name, In::PLACES, arguments, part).unused(UNUSED)
}

const fn different_setting(part: Part, name: &'static str, arguments: Args) -> DirectiveRow {
    different(name, In::PLACES, arguments, part).unused(UNUSED)
}

/// Without the cache, a route answers as it would with it.
const fn cache(name: &'static str, arguments: Args) -> DirectiveRow {
    together(name, In::PLACES, arguments, Part::Cache).harmless().unused(UNUSED)
}

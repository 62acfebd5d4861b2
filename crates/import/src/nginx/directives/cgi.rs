//! Servers of FastCGI, uwsgi and SCGI: the modules have the same directives.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::Remark::{Differs, NotNeeded};
use super::super::translation::{DirectiveRow, Remark};
use super::super::{cgi, proxy};
use super::row::{each, noted, together};

const BUFFERS: &str = "not needed: `read_ahead` and `spill` are enough for most";
const AS_THEY_ARE: &str = "requests are passed on as they are, from the address that the kernel chooses";
const STORED: &str = "responses are not written as files: `cache` keeps them";
const CACHE_LOCK: &str =
    "not needed: requests for the same response wait for one, and stale responses are validated";
const MODIFIER: &str =
    "the modifier is always 0, that of Python: let Komainu run others itself (`[apps.NAME]`)";
const ALWAYS_SO: &str = "not needed: it is always so";
const OF_TLS: &str = "not needed: it counts for `suwsgi://` alone";
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
            setting(Part::$part, concat!($start, "_buffers"), Args::TWO, NotNeeded(BUFFERS)),
            setting(Part::$part, concat!($start, "_buffer_size"), Args::ONE, NotNeeded(BUFFERS)),
            setting(Part::$part, concat!($start, "_busy_buffers_size"), Args::ONE, NotNeeded(BUFFERS)),
            setting(Part::$part, concat!($start, "_temp_file_write_size"), Args::ONE, NotNeeded(BUFFERS)),
            setting(
                Part::$part,
                concat!($start, "_max_temp_file_size"),
                Args::ONE,
                NotNeeded("not needed: `spill` bounds temporary files"),
            ),
            setting(
                Part::$part,
                concat!($start, "_buffering"),
                Args::ONE,
                NotNeeded("not needed: each part of a response is passed on as it comes"),
            ),
            setting(
                Part::$part,
                concat!($start, "_request_buffering"),
                Args::ONE,
                NotNeeded("not needed: a request is read whole before the server is asked"),
            ),
            setting(
                Part::$part,
                concat!($start, "_pass_header"),
                Args::ONE,
                NotNeeded("not needed: fields of the response are passed on"),
            )
            .repeatable(),
            setting(Part::$part, concat!($start, "_pass_request_headers"), Args::ONE, NotNeeded(ALWAYS_SO)),
            setting(Part::$part, concat!($start, "_pass_request_body"), Args::ONE, NotNeeded(ALWAYS_SO)),
            setting(
                Part::$part,
                concat!($start, "_next_upstream_tries"),
                Args::ONE,
                Differs("`attempts` in `retry` is 3"),
            ),
            setting(
                Part::$part,
                concat!($start, "_socket_keepalive"),
                Args::ONE,
                NotNeeded("not needed: connections that are closed are noticed"),
            ),
            setting(
                Part::$part,
                concat!($start, "_limit_rate"),
                Args::ONE,
                Differs("`bandwidth` of the route limits what clients get"),
            ),
            setting(
                Part::$part,
                concat!($start, "_store"),
                Args::ONE,
                Differs(STORED),
            ),
            setting(
                Part::$part,
                concat!($start, "_temp_path"),
                Args::between(1, 4),
                NotNeeded("not needed: `temp_path` is the folder of temporary files"),
            ),
            setting(
                Part::$part,
                concat!($start, "_next_upstream_timeout"),
                Args::ONE,
                Differs("`total` in `timeouts` counts the response's body too: set it by hand"),
            ),
            setting(Part::$part, concat!($start, "_bind"), Args::ONE_OR_TWO, Differs(AS_THEY_ARE)),
            setting(Part::$part, concat!($start, "_force_ranges"), Args::ONE, Differs(AS_THEY_ARE)),
            setting(Part::$part, concat!($start, "_store_access"), Args::between(1, 3), Differs(STORED)),
            setting(Part::$part, concat!($start, "_cache_lock"), Args::ONE, NotNeeded(CACHE_LOCK)),
            setting(Part::$part, concat!($start, "_cache_lock_age"), Args::ONE, NotNeeded(CACHE_LOCK)),
            setting(Part::$part, concat!($start, "_cache_lock_timeout"), Args::ONE, NotNeeded(CACHE_LOCK)),
            setting(Part::$part, concat!($start, "_cache_revalidate"), Args::ONE, NotNeeded(CACHE_LOCK)),
            setting(Part::$part, concat!($start, "_cache_max_range_offset"), Args::ONE, NotNeeded(CACHE_LOCK)),
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
        setting(
            Part::FastCgi,
            "fastcgi_index",
            Args::ONE,
            NotNeeded("not needed: `index.php` answers for a folder (`index` in `files`)"),
        ),
        setting(
            Part::FastCgi,
            "fastcgi_split_path_info",
            Args::ONE,
            NotNeeded("not needed: what follows the script is always PATH_INFO"),
        ),
        setting(
            Part::FastCgi,
            "fastcgi_send_lowat",
            Args::ONE,
            NotNeeded("not needed: the server does it by itself"),
        ),
        setting(
            Part::FastCgi,
            "fastcgi_keep_conn",
            Args::ONE,
            NotNeeded("not needed: connections are kept (`keep_alive`)")
        ),
        setting(
            Part::FastCgi,
            "fastcgi_catch_stderr",
            Args::ONE,
            Differs("lines on stderr are in the log, and change no answer"),
        )
        .repeatable(),
    ]
);

protocol!(
    UWSGI,
    "uwsgi",
    Uwsgi,
    [
        setting(Part::Uwsgi, "uwsgi_modifier1", Args::ONE, Differs(MODIFIER)),
        setting(Part::Uwsgi, "uwsgi_modifier2", Args::ONE, Differs(MODIFIER)),
        setting(Part::Uwsgi, "uwsgi_ssl_certificate", Args::ONE, NotNeeded(OF_TLS)),
        setting(Part::Uwsgi, "uwsgi_ssl_certificate_key", Args::ONE, NotNeeded(OF_TLS)),
        setting(Part::Uwsgi, "uwsgi_ssl_ciphers", Args::ONE, NotNeeded(OF_TLS)),
        setting(Part::Uwsgi, "uwsgi_ssl_crl", Args::ONE, NotNeeded(OF_TLS)),
        setting(Part::Uwsgi, "uwsgi_ssl_name", Args::ONE, NotNeeded(OF_TLS)),
        setting(Part::Uwsgi, "uwsgi_ssl_password_file", Args::ONE, NotNeeded(OF_TLS)),
        setting(Part::Uwsgi, "uwsgi_ssl_protocols", Args::SOME, NotNeeded(OF_TLS)),
        setting(Part::Uwsgi, "uwsgi_ssl_server_name", Args::ONE, NotNeeded(OF_TLS)),
        setting(Part::Uwsgi, "uwsgi_ssl_session_reuse", Args::ONE, NotNeeded(OF_TLS)),
        setting(Part::Uwsgi, "uwsgi_ssl_trusted_certificate", Args::ONE, NotNeeded(OF_TLS)),
        setting(Part::Uwsgi, "uwsgi_ssl_verify", Args::ONE, NotNeeded(OF_TLS)),
        setting(Part::Uwsgi, "uwsgi_ssl_verify_depth", Args::ONE, NotNeeded(OF_TLS)),
    ]
);

protocol!(SCGI, "scgi", Scgi, []);

const fn setting(part: Part, name: &'static str, arguments: Args, remark: Remark) -> DirectiveRow {
    noted(name, In::PLACES, arguments, part, remark).unused(UNUSED)
}

/// Without the cache, a route answers as it would with it.
const fn cache(name: &'static str, arguments: Args) -> DirectiveRow {
    together(name, In::PLACES, arguments, Part::Cache).harmless().unused(UNUSED)
}

//! Files: folders, pages, media types.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::DirectiveRow;
use super::super::translation::Remark::NotNeeded;
use super::super::{files, process};
use super::row::{each, not_possible, noted, together};

const LISTINGS: &str = "listings are one page, and JSON for clients that prefer it";
const CHARSETS: &str = "text is sent as it is, with the `charset` of `files` in its type";
const MODULE: &str = "this module is not there: let an application answer such requests";

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    together("root", In::PLACES_AND_IF, Args::ONE, Part::Files).harmless(),
    together("alias", In::LOCATION, Args::ONE, Part::Files).harmless(),
    together("index", In::PLACES, Args::SOME, Part::Files).harmless().repeatable(),
    together("try_files", In::SERVER.or(In::LOCATION), Args::at_least(2), Part::Files),
    each("autoindex", In::PLACES, Args::ONE, Part::FileSettings, files::autoindex).harmless(),
    each("disable_symlinks", In::PLACES, Args::ONE_OR_TWO, Part::FileSettings, files::disable_symlinks)
        .harmless(),
    each("max_ranges", In::PLACES, Args::ONE, Part::FileSettings, files::max_ranges).harmless(),
    each("charset", In::PLACES_AND_IF, Args::ONE, Part::FileSettings, files::charset).harmless(),
    together("types", In::PLACES, Args::NONE, Part::Files).harmless().repeatable(),
    together("default_type", In::PLACES, Args::ONE, Part::Files).harmless(),
    each("open_file_cache", In::PLACES, Args::ONE_OR_TWO, Part::Everywhere, process::open_file_cache)
        .harmless(),
    noted(
        "open_file_cache_valid",
        In::PLACES,
        Args::ONE,
        Part::Everywhere,
        NotNeeded("not needed: files are checked again after a second (`recheck` in `[open_files]`)"),
    )
    .harmless(),
    together("error_page", In::PLACES_AND_IF, Args::at_least(2), Part::Site).harmless().repeatable(),
    together("recursive_error_pages", In::PLACES, Args::ONE, Part::Site).harmless(),
    not_possible("autoindex_exact_size", In::PLACES, Args::ONE, LISTINGS).harmless(),
    not_possible("autoindex_localtime", In::PLACES, Args::ONE, LISTINGS).harmless(),
    not_possible("autoindex_format", In::PLACES, Args::ONE, LISTINGS).harmless(),
    not_possible("charset_types", In::PLACES, Args::SOME, CHARSETS).harmless(),
    not_possible("source_charset", In::PLACES_AND_IF, Args::ONE, CHARSETS).harmless(),
    not_possible("override_charset", In::PLACES_AND_IF, Args::ONE, CHARSETS).harmless(),
    not_possible("charset_map", In::HTTP, Args::TWO, CHARSETS).harmless(),
    not_possible("mp4", In::LOCATION, Args::NONE, MODULE).harmless(),
    not_possible("flv", In::LOCATION, Args::NONE, MODULE).harmless(),
    not_possible("dav_methods", In::PLACES, Args::SOME, MODULE),
    not_possible("dav_access", In::PLACES, Args::between(1, 3), MODULE),
    not_possible("create_full_put_path", In::PLACES, Args::ONE, MODULE),
    not_possible("random_index", In::LOCATION, Args::ONE, MODULE).harmless(),
    not_possible("slice", In::PLACES, Args::ONE, MODULE).harmless(),
];

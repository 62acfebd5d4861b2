//! Files: folders, pages, media types.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::DirectiveRow;
use super::super::{files, process};
use super::row::{each, noted, together, untranslated};

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
    noted("open_file_cache_valid", In::PLACES, Args::ONE, Part::Everywhere).harmless(),
    together("error_page", In::PLACES_AND_IF, Args::at_least(2), Part::Site).harmless().repeatable(),
    together("recursive_error_pages", In::PLACES, Args::ONE, Part::Site).harmless(),
    untranslated("autoindex_exact_size", In::PLACES, Args::ONE).harmless(),
    untranslated("autoindex_localtime", In::PLACES, Args::ONE).harmless(),
    untranslated("autoindex_format", In::PLACES, Args::ONE).harmless(),
    untranslated("charset_types", In::PLACES, Args::SOME).harmless(),
    untranslated("source_charset", In::PLACES_AND_IF, Args::ONE).harmless(),
    untranslated("override_charset", In::PLACES_AND_IF, Args::ONE).harmless(),
    untranslated("charset_map", In::HTTP, Args::TWO).harmless(),
    untranslated("mp4", In::LOCATION, Args::NONE).harmless(),
    untranslated("flv", In::LOCATION, Args::NONE).harmless(),
    untranslated("dav_methods", In::PLACES, Args::SOME),
    untranslated("dav_access", In::PLACES, Args::between(1, 3)),
    untranslated("create_full_put_path", In::PLACES, Args::ONE),
    untranslated("random_index", In::LOCATION, Args::ONE).harmless(),
    untranslated("slice", In::PLACES, Args::ONE).harmless(),
];

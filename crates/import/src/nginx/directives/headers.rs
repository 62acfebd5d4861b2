//! Response fields, contents and compression.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::DirectiveRow;
use super::row::{together, untranslated};

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    together("expires", In::PLACES_AND_IF, Args::ONE_OR_TWO, Part::Headers).harmless(),
    together("add_header", In::PLACES_AND_IF, Args::TWO_OR_THREE, Part::Headers).harmless().repeatable(),
    together("sub_filter", In::PLACES, Args::TWO, Part::Replacements).harmless().repeatable(),
    together("sub_filter_once", In::PLACES, Args::ONE, Part::Replacements).harmless(),
    together("sub_filter_types", In::PLACES, Args::SOME, Part::Replacements).harmless(),
    untranslated("sub_filter_last_modified", In::PLACES, Args::ONE).harmless(),
    together("gzip", In::PLACES_AND_IF, Args::ONE, Part::Compression).harmless(),
    together("gzip_min_length", In::PLACES, Args::ONE, Part::Compression).harmless(),
    together("gzip_comp_level", In::PLACES, Args::ONE, Part::Compression).harmless(),
    together("gzip_types", In::PLACES, Args::SOME, Part::Compression).harmless(),
    together("gzip_proxied", In::PLACES, Args::SOME, Part::Compression).harmless(),
    together("gzip_static", In::PLACES, Args::ONE, Part::Compression).harmless(),
    untranslated("gzip_vary", In::PLACES, Args::ONE).harmless(),
    untranslated("gzip_buffers", In::PLACES, Args::TWO).harmless(),
    untranslated("gzip_disable", In::PLACES, Args::SOME).harmless(),
    untranslated("gzip_http_version", In::PLACES, Args::ONE).harmless(),
    untranslated("ssi", In::PLACES_AND_IF, Args::ONE),
    untranslated("ssi_types", In::PLACES, Args::SOME),
    untranslated("addition_types", In::PLACES, Args::SOME).harmless(),
    untranslated("add_before_body", In::PLACES, Args::ONE).harmless(),
    untranslated("add_after_body", In::PLACES, Args::ONE).harmless(),
    untranslated("xslt_stylesheet", In::LOCATION, Args::SOME),
    untranslated("image_filter", In::LOCATION, Args::between(1, 3)),
    untranslated("userid", In::PLACES, Args::ONE).harmless(),
];

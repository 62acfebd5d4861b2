//! Response fields, contents and compression.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::DirectiveRow;
use super::row::{not_needed, not_possible, together};

const VARY: &str = "not needed: what may be compressed has `Vary: Accept-Encoding` in any case";
const CODING_BUFFERS: &str =
    "not needed: clients of HTTP/1.0 get nothing compressed; buffers are as large as they have to be";
const EDITED: &str = "responses are not edited: let the application do it";
const MODULE: &str = "this module is not there: let an application answer such requests";

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    together("expires", In::PLACES_AND_IF, Args::ONE_OR_TWO, Part::Headers).harmless(),
    together("add_header", In::PLACES_AND_IF, Args::TWO_OR_THREE, Part::Headers).harmless().repeatable(),
    together("sub_filter", In::PLACES, Args::TWO, Part::Replacements).harmless().repeatable(),
    together("sub_filter_once", In::PLACES, Args::ONE, Part::Replacements).harmless(),
    together("sub_filter_types", In::PLACES, Args::SOME, Part::Replacements).harmless(),
    not_possible(
        "sub_filter_last_modified",
        In::PLACES,
        Args::ONE,
        "write `replace` in the site or route: docs/guide.md",
    )
    .harmless(),
    together("gzip", In::PLACES_AND_IF, Args::ONE, Part::Compression).harmless(),
    together("gzip_min_length", In::PLACES, Args::ONE, Part::Compression).harmless(),
    together("gzip_comp_level", In::PLACES, Args::ONE, Part::Compression).harmless(),
    together("gzip_types", In::PLACES, Args::SOME, Part::Compression).harmless(),
    together("gzip_proxied", In::PLACES, Args::SOME, Part::Compression).harmless(),
    together("gzip_static", In::PLACES, Args::ONE, Part::Compression).harmless(),
    not_needed("gzip_vary", In::PLACES, Args::ONE, VARY).harmless(),
    not_needed("gzip_buffers", In::PLACES, Args::TWO, CODING_BUFFERS).harmless(),
    not_needed("gzip_disable", In::PLACES, Args::SOME, CODING_BUFFERS).harmless(),
    not_needed("gzip_http_version", In::PLACES, Args::ONE, CODING_BUFFERS).harmless(),
    not_possible("ssi", In::PLACES_AND_IF, Args::ONE, EDITED),
    not_possible("ssi_types", In::PLACES, Args::SOME, EDITED),
    not_possible("addition_types", In::PLACES, Args::SOME, EDITED).harmless(),
    not_possible("add_before_body", In::PLACES, Args::ONE, EDITED).harmless(),
    not_possible("add_after_body", In::PLACES, Args::ONE, EDITED).harmless(),
    not_possible("xslt_stylesheet", In::LOCATION, Args::SOME, EDITED),
    not_possible("image_filter", In::LOCATION, Args::between(1, 3), EDITED),
    not_possible("userid", In::PLACES, Args::ONE, MODULE).harmless(),
];

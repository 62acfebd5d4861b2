//! Servers, locations, and the directives that choose between them.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::{DirectiveRow, Remark};
use super::row::{block, together, untranslated};

const ANY_IF: In = In::SERVER_IF.or(In::LOCATION_IF);
const EXECUTED: In = In::SERVER.or(In::LOCATION).or(ANY_IF);

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    block("server", In::HTTP),
    together("location", In::SERVER.or(In::LOCATION), Args::ONE_OR_TWO, Part::Places),
    together("listen", In::SERVER, Args::SOME, Part::Places).harmless().repeatable(),
    together("server_name", In::SERVER, Args::SOME, Part::Places).harmless().repeatable(),
    together("internal", In::LOCATION, Args::NONE, Part::Places),
    together("limit_except", In::LOCATION, Args::SOME, Part::Places),
    together("rewrite", EXECUTED, Args::TWO_OR_THREE, Part::RewritePhase).repeatable(),
    together("if", In::SERVER.or(In::LOCATION), Args::SOME, Part::RewritePhase).repeatable(),
    together("return", EXECUTED, Args::ONE_OR_TWO, Part::RewritePhase),
    together("set", EXECUTED, Args::TWO, Part::RewritePhase).repeatable(),
    together("break", EXECUTED, Args::NONE, Part::RewritePhase),
    together("valid_referers", In::SERVER.or(In::LOCATION), Args::SOME, Part::RewritePhase)
        .repeatable()
        .unused(Remark::Differs("no `if ($invalid_referer)` that was translated uses it, so it is left out")),
    together("map", In::HTTP.or(In::STREAM), Args::TWO, Part::Definitions).repeatable(),
    together("geo", In::HTTP.or(In::STREAM), Args::ONE_OR_TWO, Part::Definitions).repeatable(),
    untranslated("split_clients", In::HTTP.or(In::STREAM), Args::TWO),
];

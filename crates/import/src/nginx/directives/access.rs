//! Restrictions of access.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::DirectiveRow;
use super::row::{together, untranslated};

const GUARDED: In = In::PLACES.or(In::LIMIT_EXCEPT);

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    together("allow", GUARDED, Args::ONE, Part::Access).repeatable(),
    together("deny", GUARDED, Args::ONE, Part::Access).repeatable(),
    together("auth_basic", GUARDED, Args::ONE, Part::Access),
    together("auth_basic_user_file", GUARDED, Args::ONE, Part::Access),
    together("auth_request", In::PLACES, Args::ONE, Part::Access),
    together("auth_request_set", In::PLACES, Args::TWO, Part::Access).harmless().repeatable(),
    together("satisfy", In::PLACES, Args::ONE, Part::Access),
    untranslated("auth_jwt", GUARDED, Args::ONE_OR_TWO),
    untranslated("auth_jwt_key_file", GUARDED, Args::ONE),
    untranslated("auth_delay", In::PLACES, Args::ONE),
    untranslated("secure_link", In::PLACES, Args::ONE),
    untranslated("secure_link_md5", In::PLACES, Args::ONE),
    untranslated("secure_link_secret", In::PLACES, Args::ONE),
];

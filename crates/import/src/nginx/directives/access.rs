//! Restrictions of access.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::translation::DirectiveRow;
use super::row::{not_needed, not_possible, together};

const GUARDED: In = In::PLACES.or(In::LIMIT_EXCEPT);
const JWT: &str = "write `auth = { jwt = { … } }`: docs/auth.md";
const MODULE: &str = "this module is not there: let an application answer such requests";

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    together("allow", GUARDED, Args::ONE, Part::Access).repeatable(),
    together("deny", GUARDED, Args::ONE, Part::Access).repeatable(),
    together("auth_basic", GUARDED, Args::ONE, Part::Access),
    together("auth_basic_user_file", GUARDED, Args::ONE, Part::Access),
    together("auth_request", In::PLACES, Args::ONE, Part::Access),
    together("auth_request_set", In::PLACES, Args::TWO, Part::Access).harmless().repeatable(),
    together("satisfy", In::PLACES, Args::ONE, Part::Access),
    not_possible("auth_jwt", GUARDED, Args::ONE_OR_TWO, JWT),
    not_possible("auth_jwt_key_file", GUARDED, Args::ONE, JWT),
    not_needed(
        "auth_delay",
        In::PLACES,
        Args::ONE,
        "not needed: `failures` in `auth` limits wrong passwords",
    ),
    not_possible("secure_link", In::PLACES, Args::ONE, MODULE),
    not_possible("secure_link_md5", In::PLACES, Args::ONE, MODULE),
    not_possible("secure_link_secret", In::PLACES, Args::ONE, MODULE),
];

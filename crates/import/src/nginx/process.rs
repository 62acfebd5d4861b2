//! Translation of settings of the process, and of those that Komainu has once for all sites.

use super::translation::AppliedDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::Outcome;

/// Maximum of `threads`.
const THREADS_MAX: u64 = 1024;
/// Maximum of `entries` in `[open_files]`.
const OPEN_FILES_MAX: u64 = 1_000_000;

pub(super) fn user(one: &AppliedDirective<'_>, top: &mut TomlSection) -> Outcome {
    top.set_text("user", one.first_arg());
    if !one.directive.arg_at(1).is_empty() {
        top.set_text("group", one.directive.arg_at(1));
    }
    Outcome::TRANSLATED
}

pub(super) fn worker_processes(one: &AppliedDirective<'_>, top: &mut TomlSection) -> Outcome {
    let Ok(count) = one.first_arg().parse::<u64>() else {
        return Outcome::not_needed("not needed: one thread for each core is the default");
    };
    top.set("threads", TomlItem::Number(count.min(THREADS_MAX)));
    Outcome::TRANSLATED
}

/// The first one decides about the oldest version.
pub(super) fn ssl_protocols(one: &AppliedDirective<'_>, tables: &mut TomlSection) -> Outcome {
    if one.at == 0 && one.directive.args == ["TLSv1.3"] {
        tables.set_in("tls", "min", TomlItem::text("1.3"));
    }
    if one.directive.args.iter().all(|arg| matches!(arg.as_str(), "TLSv1.2" | "TLSv1.3")) {
        Outcome::TRANSLATED
    } else {
        Outcome::differs("TLS 1.2 is the oldest supported version")
    }
}

pub(super) fn ssl_session_ticket_key(one: &AppliedDirective<'_>, tables: &mut TomlSection) -> Outcome {
    tables.push_in("tls", "ticket_keys", one.path());
    Outcome::TRANSLATED
}

pub(super) fn open_file_cache(one: &AppliedDirective<'_>, tables: &mut TomlSection) -> Outcome {
    let count = one.directive.args.iter().find_map(|arg| arg.strip_prefix("max=")?.parse::<u64>().ok());
    if let Some(count) = count {
        tables.set_in("open_files", "entries", TomlItem::Number(count.min(OPEN_FILES_MAX)));
    }
    Outcome::differs("open files are kept by default; the limit is for each route")
}

//! Translation of Unit's applications.

use crate::data::DatumAt;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::ImportLedger;

/// Returns the `[apps.NAME]` tables of an application; empty for unsupported types, several if its scripts
/// are in several directories.
pub(super) fn sections(name: &str, one: &DatumAt, ledger: &ImportLedger) -> Vec<(String, TomlSection)> {
    let kind = one.get("type").and_then(DatumAt::text).unwrap_or("");
    if kind.split([' ', '.']).next() != Some("php") {
        return section(one, ledger).map(|section| (name.to_owned(), section)).into_iter().collect();
    }
    let mut common = TomlSection::default();
    if let Some(kind) = one.get("type") {
        match kind.text().is_some_and(|kind| kind.contains(' ')) {
            true => {
                kind.differs(ledger, "PHP is the one of the package `komainu-php` (Debian's `libphp-embed`)")
            }
            false => kind.translated(ledger),
        }
    }
    for key in ["working_directory", "path"] {
        if let Some(found) = one.get(key) {
            found.differs(ledger, "a script runs in its own folder");
        }
    }
    processes(one, ledger, &mut common);
    surroundings(one, ledger, &mut common);
    let found = super::php::sections(name, one, ledger, &common);
    one.impossible(ledger, "`[apps.NAME]` has nothing like it");
    found
}

fn section(one: &DatumAt, ledger: &ImportLedger) -> Option<TomlSection> {
    let mut section = TomlSection::default();
    let kind = one.get("type").and_then(DatumAt::text).unwrap_or("");
    let language = kind.split([' ', '.']).next().unwrap_or("");
    let text = |key: &str| one.get(key).and_then(DatumAt::text).map(str::to_owned);
    let mark =
        |keys: &[&str]| keys.iter().filter_map(|key| one.get(key)).for_each(|found| found.translated(ledger));
    match language {
        "python" => python(one, ledger, &mut section),
        "perl" => section.set_text("psgi", text("script")?),
        "ruby" => section.set_text("rack", text("script")?),
        _ => {
            one.impossible(
                ledger,
                "Komainu runs Python, Ruby, Perl, PHP and native handlers: let this application listen by itself, and name it in `proxy`",
            );
            return None;
        }
    }
    mark(&["script", "module", "callable", "protocol", "factory"]);
    if let Some(kind) = one.get("type") {
        match kind.text().is_some_and(|kind| kind.contains(' ')) {
            true => kind.differs(
                ledger,
                "the interpreter is the one that is found: `interpreter` names another version",
            ),
            false => kind.translated(ledger),
        }
    }
    if let Some(folder) = text("working_directory").or(text("path")) {
        section.set_text("folder", folder);
    }
    for key in ["working_directory", "path"] {
        if let Some(found) = one.get(key) {
            match found.texts().len() {
                1 => found.translated(ledger),
                _ => {
                    found.differs(ledger, "the first folder is `folder`: set PYTHONPATH in `env` for others")
                }
            }
        }
    }
    processes(one, ledger, &mut section);
    if let Some(threads) = one.get("threads") {
        match language {
            "perl" => threads.impossible(ledger, "workers of Perl have one thread: more `workers` do it"),
            _ => {
                threads.translated(ledger);
                section.set("threads", TomlItem::Number(threads.number().unwrap_or(1).clamp(1, 256)));
            }
        }
    }
    surroundings(one, ledger, &mut section);
    one.impossible(ledger, "`[apps.NAME]` has nothing like it");
    Some(section)
}

/// Translates the process environment of an application.
fn surroundings(one: &DatumAt, ledger: &ImportLedger, section: &mut TomlSection) {
    if let Some(environment) = one.get("environment") {
        let pairs = environment
            .entries()
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), TomlItem::text(value.text()?))));
        section.set("env", TomlItem::Table(pairs.collect()));
        environment.translated(ledger);
    }
    for key in ["user", "group"] {
        if let Some(found) = one.get(key) {
            section.set_text(key, found.text().unwrap_or(""));
            found.translated(ledger);
        }
    }
    for key in ["stdout", "stderr"] {
        if let Some(found) = one.get(key) {
            found.differs(ledger, "output of applications is in the error log");
        }
    }
    if let Some(found) = one.get("isolation") {
        found.impossible(
            ledger,
            "there are no namespaces: `sandbox` and `limits` in `[apps.NAME]` confine an application",
        );
        section.comment("CHECK: Unit isolated this application: see `sandbox` and `limits`.");
    }
}

fn callable(one: &DatumAt) -> Option<String> {
    let module = one.get("module")?.text()?;
    let name = one.get("callable").and_then(DatumAt::text).unwrap_or("application");
    let is_factory = one.get("factory").and_then(DatumAt::flag).unwrap_or(false);
    Some(format!("{module}:{name}{}", if is_factory { "()" } else { "" }))
}

fn python(one: &DatumAt, ledger: &ImportLedger, section: &mut TomlSection) {
    let key = match one.get("protocol").and_then(DatumAt::text) {
        Some("wsgi") => "wsgi",
        Some("asgi") => "asgi",
        _ => "python",
    };
    if let Some(targets) = one.get("targets") {
        let mut all: Vec<(String, String)> = targets
            .entries()
            .iter()
            .filter_map(|(name, target)| Some((name.clone(), callable(target)?)))
            .collect();
        targets.differs(
            ledger,
            "the first target is the application's own callable; the same folder is used for all",
        );
        if let Some((_, first)) = all.first() {
            section.set_text(key, first.clone());
        }
        let all = all.drain(..).map(|(name, target)| (name, TomlItem::Text(target))).collect();
        section.set("targets", TomlItem::Table(all));
    } else if let Some(callable) = callable(one) {
        section.set_text(key, callable);
    }
    if let Some(home) = one.get("home") {
        home.translated(ledger);
        section.set_text("virtualenv", home.text().unwrap_or(""));
    }
}

fn processes(one: &DatumAt, ledger: &ImportLedger, section: &mut TomlSection) {
    match one.get("processes") {
        Some(found) if found.number().is_some() => {
            section.set("workers", TomlItem::Number(found.number().unwrap_or(1).clamp(1, 1024)));
            found.translated(ledger);
        }
        Some(found) => {
            let count =
                |key: &str| found.get(key).and_then(DatumAt::number).map(|count| count.clamp(1, 1024));
            let max = count("max").unwrap_or(1);
            let min = count("spare").unwrap_or(1).min(max);
            section.set_in("workers", "min", TomlItem::Number(min));
            section.set_in("workers", "max", TomlItem::Number(max));
            if let Some(idle) = found.get("idle_timeout").and_then(DatumAt::number) {
                section.set_in("timeouts", "idle", TomlItem::Text(format!("{}s", idle.clamp(1, 3600))));
            }
            found.differs(ledger, "`min` workers always run, where Unit keeps so many idle ones");
        }
        None => section.set("workers", TomlItem::Number(1)),
    }
    if let Some(timeout) = one.at(&["limits", "timeout"]) {
        timeout.translated(ledger);
        section.set_in(
            "timeouts",
            "request",
            TomlItem::Text(format!("{}s", timeout.number().unwrap_or(60).clamp(1, 86_400))),
        );
    }
    if let Some(requests) = one.at(&["limits", "requests"]) {
        requests.translated(ledger);
        section.set_in("recycle", "requests", TomlItem::Number(requests.number().unwrap_or(1).max(1)));
    }
}

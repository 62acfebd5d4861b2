//! Translation of Unit's applications.

use crate::data::DataNode;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::ImportLedger;

/// Returns the `[apps.NAME]` tables of an application; empty for unsupported types, several if its scripts
/// are in several directories.
pub(super) fn app_sections(name: &str, node: &DataNode, ledger: &ImportLedger) -> Vec<(String, TomlSection)> {
    let kind = node.get("type").and_then(DataNode::text).unwrap_or("");
    if kind.split([' ', '.']).next() != Some("php") {
        return app_section(node, ledger).map(|section| (name.to_owned(), section)).into_iter().collect();
    }
    let mut common = TomlSection::default();
    if let Some(kind) = node.get("type") {
        if kind.text().is_some_and(|kind| kind.contains(' ')) {
            kind.mark_different(
                ledger,
                "PHP is the one of the package `komainu-php` (Debian's `libphp-embed`)",
            )
        } else {
            kind.mark_translated(ledger)
        }
    }
    for key in ["working_directory", "path"] {
        if let Some(found) = node.get(key) {
            found.mark_different(ledger, "a script runs in its own folder");
        }
    }
    translate_processes(node, ledger, &mut common);
    translate_environment(node, ledger, &mut common);
    let found = super::php::php_sections(name, node, ledger, &common);
    node.mark_impossible(ledger, "`[apps.NAME]` has nothing like it");
    found
}

fn app_section(node: &DataNode, ledger: &ImportLedger) -> Option<TomlSection> {
    let mut section = TomlSection::default();
    let kind = node.get("type").and_then(DataNode::text).unwrap_or("");
    let language = kind.split([' ', '.']).next().unwrap_or("");
    let text = |key: &str| node.get(key).and_then(DataNode::text).map(str::to_owned);
    let mark = |keys: &[&str]| {
        keys.iter().filter_map(|key| node.get(key)).for_each(|found| found.mark_translated(ledger))
    };
    match language {
        "python" => translate_python(node, ledger, &mut section),
        "perl" => section.set_text("psgi", text("script")?),
        "ruby" => section.set_text("rack", text("script")?),
        _ => {
            node.mark_impossible(
                ledger,
                "Komainu runs Python, Ruby, Perl, PHP and native handlers: let this application listen by itself, and name it in `proxy`",
            );
            return None;
        }
    }
    mark(&["script", "module", "callable", "protocol", "factory"]);
    if let Some(kind) = node.get("type") {
        if kind.text().is_some_and(|kind| kind.contains(' ')) {
            kind.mark_different(
                ledger,
                "the interpreter is the one that is found: `interpreter` names another version",
            )
        } else {
            kind.mark_translated(ledger)
        }
    }
    if let Some(folder) = text("working_directory").or(text("path")) {
        section.set_text("folder", folder);
    }
    for key in ["working_directory", "path"] {
        if let Some(found) = node.get(key) {
            match found.texts().len() {
                1 => found.mark_translated(ledger),
                _ => found.mark_different(
                    ledger,
                    "the first folder is `folder`: set PYTHONPATH in `env` for others",
                ),
            }
        }
    }
    translate_processes(node, ledger, &mut section);
    if let Some(threads) = node.get("threads") {
        match language {
            "perl" => {
                threads.mark_impossible(ledger, "workers of Perl have one thread: more `workers` do it")
            }
            _ => {
                threads.mark_translated(ledger);
                section.set("threads", TomlItem::Number(threads.number().unwrap_or(1).clamp(1, 256)));
            }
        }
    }
    translate_environment(node, ledger, &mut section);
    node.mark_impossible(ledger, "`[apps.NAME]` has nothing like it");
    Some(section)
}

/// Translates the process environment of an application.
fn translate_environment(node: &DataNode, ledger: &ImportLedger, section: &mut TomlSection) {
    if let Some(environment) = node.get("environment") {
        let pairs = environment
            .entries()
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), TomlItem::text(value.text()?))));
        section.set("env", TomlItem::Table(pairs.collect()));
        environment.mark_translated(ledger);
    }
    for key in ["user", "group"] {
        if let Some(found) = node.get(key) {
            section.set_text(key, found.text().unwrap_or(""));
            found.mark_translated(ledger);
        }
    }
    for key in ["stdout", "stderr"] {
        if let Some(found) = node.get(key) {
            found.mark_different(ledger, "output of applications is in the error log");
        }
    }
    if let Some(found) = node.get("isolation") {
        found.mark_impossible(
            ledger,
            "there are no namespaces: `sandbox` and `limits` in `[apps.NAME]` confine an application",
        );
        section.comment("CHECK: Unit isolated this application: see `sandbox` and `limits`.");
    }
}

fn translate_callable(node: &DataNode) -> Option<String> {
    let module = node.get("module")?.text()?;
    let name = node.get("callable").and_then(DataNode::text).unwrap_or("application");
    let is_factory = node.get("factory").and_then(DataNode::flag).unwrap_or(false);
    Some(format!("{module}:{name}{}", if is_factory { "()" } else { "" }))
}

fn translate_python(node: &DataNode, ledger: &ImportLedger, section: &mut TomlSection) {
    let key = match node.get("protocol").and_then(DataNode::text) {
        Some("wsgi") => "wsgi",
        Some("asgi") => "asgi",
        _ => "python",
    };
    if let Some(targets) = node.get("targets") {
        let mut all: Vec<(String, String)> = targets
            .entries()
            .iter()
            .filter_map(|(name, target)| Some((name.clone(), translate_callable(target)?)))
            .collect();
        targets.mark_different(
            ledger,
            "the first target is the application's own callable; the same folder is used for all",
        );
        if let Some((_, first)) = all.first() {
            section.set_text(key, first.clone());
        }
        let all = all.drain(..).map(|(name, target)| (name, TomlItem::Text(target))).collect();
        section.set("targets", TomlItem::Table(all));
    } else if let Some(callable) = translate_callable(node) {
        section.set_text(key, callable);
    }
    if let Some(home) = node.get("home") {
        home.mark_translated(ledger);
        section.set_text("virtualenv", home.text().unwrap_or(""));
    }
}

fn translate_processes(node: &DataNode, ledger: &ImportLedger, section: &mut TomlSection) {
    match node.get("processes") {
        Some(found) if found.number().is_some() => {
            section.set("workers", TomlItem::Number(found.number().unwrap_or(1).clamp(1, 1024)));
            found.mark_translated(ledger);
        }
        Some(found) => {
            let count =
                |key: &str| found.get(key).and_then(DataNode::number).map(|count| count.clamp(1, 1024));
            let max = count("max").unwrap_or(1);
            let min = count("spare").unwrap_or(1).min(max);
            section.set_in("workers", "min", TomlItem::Number(min));
            section.set_in("workers", "max", TomlItem::Number(max));
            if let Some(idle) = found.get("idle_timeout").and_then(DataNode::number) {
                section.set_in("timeouts", "idle", TomlItem::Text(format!("{}s", idle.clamp(1, 3600))));
            }
            found.mark_different(ledger, "`min` workers always run, where Unit keeps so many idle ones");
        }
        None => section.set("workers", TomlItem::Number(1)),
    }
    if let Some(timeout) = node.at(&["limits", "timeout"]) {
        timeout.mark_translated(ledger);
        section.set_in(
            "timeouts",
            "request",
            TomlItem::Text(format!("{}s", timeout.number().unwrap_or(60).clamp(1, 86_400))),
        );
    }
    if let Some(requests) = node.at(&["limits", "requests"]) {
        requests.mark_translated(ledger);
        section.set_in("recycle", "requests", TomlItem::Number(requests.number().unwrap_or(1).max(1)));
    }
}

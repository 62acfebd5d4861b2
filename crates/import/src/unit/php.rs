//! Translation of PHP applications: one for each directory of scripts.

use crate::data::DataNode;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::ImportLedger;

/// Scripts of an application or of one of its targets.
struct UnitScripts<'a> {
    /// Name of the target; `None` for the application itself.
    target: Option<&'a str>,
    root: &'a str,
    script: Option<&'a str>,
}

fn collect_scripts<'a>(node: &'a DataNode) -> Vec<UnitScripts<'a>> {
    let of = |target: Option<&'a str>, value: &'a DataNode| {
        let text = |key: &str| value.get(key).and_then(DataNode::text);
        let root = text("root").unwrap_or(".").trim_end_matches('/');
        UnitScripts { target, root: if root.is_empty() { "/" } else { root }, script: text("script") }
    };
    match node.get("targets") {
        Some(targets) => targets.entries().iter().map(|(name, target)| of(Some(name), target)).collect(),
        None => vec![of(None, node)],
    }
}

/// Returns the directories of scripts, each once, with the first script that handles all of its paths.
fn script_folders<'a>(all: &[UnitScripts<'a>]) -> Vec<(&'a str, Option<&'a str>)> {
    let mut found: Vec<(&'a str, Option<&'a str>)> = Vec::new();
    for one in all {
        match found.iter_mut().find(|(root, _)| *root == one.root) {
            Some((_, script)) => *script = script.or(one.script),
            None => found.push((one.root, one.script)),
        }
    }
    found
}

/// Returns the script that answers all requests of a PHP application or of one of its targets, if there is one, as a
/// path below the root.
pub(super) fn script_of(node: &DataNode, target: Option<&str>) -> Option<String> {
    let all = collect_scripts(node);
    let script = all.iter().find(|scripts| scripts.target == target)?.script?;
    Some(format!("/{}", script.trim_start_matches('/')))
}

/// Returns Komainu's name of a PHP application or of one of its targets.
pub(super) fn app_name(name: &str, node: &DataNode, target: Option<&str>) -> String {
    let all = collect_scripts(node);
    let root = all.iter().find(|scripts| scripts.target == target).map(|scripts| scripts.root);
    let at = script_folders(&all).iter().position(|(known, _)| Some(*known) == root).unwrap_or(0);
    match at {
        0 => name.to_owned(),
        at => format!("{name}-{}", at + 1),
    }
}

/// Returns the `[apps.NAME]` tables of a PHP application; `common` are the directives of each.
pub(super) fn php_sections(
    name: &str,
    node: &DataNode,
    ledger: &ImportLedger,
    common: &TomlSection,
) -> Vec<(String, TomlSection)> {
    let all = collect_scripts(node);
    let mut settings = TomlSection::default();
    for (key, directive) in [("user", "ini"), ("admin", "admin_ini")] {
        let Some(found) = node.at(&["options", key]) else { continue };
        let pairs = found
            .entries()
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), TomlItem::text(value.text()?))));
        settings.set(directive, TomlItem::Table(pairs.collect()));
        found.mark_translated(ledger);
    }
    let file = node.at(&["options", "file"]);
    if let Some(file) = file {
        file.mark_translated(ledger);
    }
    for value in node
        .get("targets")
        .map_or_else(|| vec![node], |targets| targets.entries().iter().map(|(_, one)| one).collect())
    {
        for key in ["root", "script"] {
            value.get(key).into_iter().for_each(|found| found.mark_translated(ledger));
        }
        if let Some(script) = value.get("script") {
            script.mark_different(
                ledger,
                "behind `share`, other scripts and files below the root answer under their own paths too",
            );
        }
        if let Some(index) = value.get("index") {
            match index.text() {
                Some("index.php") => index.mark_translated(ledger),
                _ => index.mark_impossible(
                    ledger,
                    "`index.php` answers for folders: name another one in `index` of `files`, beside `app`",
                ),
            }
        }
    }
    if let Some(threads) = node.get("threads") {
        threads.mark_impossible(ledger, "workers of PHP have one thread: more `workers` do it");
    }
    let several = script_folders(&all).len() > 1;
    if let Some(targets) = node.get("targets").filter(|_| several) {
        targets.mark_different(
            ledger,
            "each folder of scripts is an application of its own, with workers of its own",
        );
    }
    let section = |(at, (root, script)): (usize, &(&str, Option<&str>))| {
        let mut section = common.clone();
        let mut php = settings.clone();
        php.entries.insert(0, ("root".to_owned(), TomlItem::text(*root)));
        match script.map(|script| format!("/{}", script.trim_start_matches('/'))).as_deref() {
            Some("/index.php") => {}
            Some(front) => php.entries.insert(1, ("front".to_owned(), TomlItem::text(front))),
            None => php.entries.insert(1, ("front".to_owned(), TomlItem::Flag(false))),
        }
        let item = match php.entries.as_slice() {
            [(key, root)] if key == "root" => root.clone(),
            _ => TomlItem::Table(php.entries),
        };
        section.entries.insert(0, ("php".to_owned(), item));
        if let Some(file) = file.and_then(DataNode::text) {
            section.set_in("env", "PHPRC", TomlItem::text(file));
        }
        let name = if at == 0 { name.to_owned() } else { format!("{name}-{}", at + 1) };
        (name, section)
    };
    script_folders(&all).iter().enumerate().map(section).collect()
}

//! System resources that a configuration names: files, users, programs, sockets and environment variables.
//!
//! A server that runs as root, or has a supervisor, opens files with root's rights. Users other than root who
//! may change its configuration must not be able to choose which files these are.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use apps::AppSettings;
use config::{Config, Report};
use failure::Failure;
use serde_json::Value;

use crate::check::reading::{base_folder, environment};

/// A configuration and the resources that it names.
struct NamedResourceSet {
    /// `None` if the text is invalid.
    config: Option<Config>,
    report: Report,
    /// Names of the environment variables used.
    variables: BTreeSet<String>,
    /// Values that name a Unix socket, enable following of symbolic links, or determine to which server the
    /// content of a file is sent.
    uses: BTreeSet<String>,
}

impl NamedResourceSet {
    fn read(path: &Path, text: &str) -> NamedResourceSet {
        let variables = RefCell::new(BTreeSet::new());
        let lookup = |name: &str| {
            variables.borrow_mut().insert(name.to_owned());
            environment(name)
        };
        let parsed = Config::parse_with(text, &path.display().to_string(), base_folder(path), &lookup);
        let (config, report) = match parsed {
            Ok((config, report)) => (Some(config), report),
            Err(report) => (None, report),
        };
        let mut uses = BTreeSet::new();
        if let Some(tree) = config::directive_tree(text, &lookup) {
            add_uses(&tree, &mut uses);
        }
        NamedResourceSet { config, report, variables: variables.take(), uses }
    }

    /// Returns paths and accounts with their directives.
    fn by_directive(&self) -> BTreeSet<(&str, String)> {
        let paths = self.report.named_paths().iter();
        let paths = paths.map(|named| (named.directive.as_str(), named.path.display().to_string()));
        let accounts = self.report.named_accounts().iter();
        paths.chain(accounts.map(|named| (account_kind(named.is_group), named.name.clone()))).collect()
    }

    /// Returns the applications, disregarding their numbers of workers.
    fn programs(&self) -> Vec<(String, AppSettings)> {
        let mut apps = self.config.as_ref().map_or_else(Vec::new, |config| config.apps.clone());
        apps.iter_mut().for_each(|(_, app)| app.workers = AppSettings::default().workers);
        apps
    }
}

fn account_kind(is_group: bool) -> &'static str {
    if is_group { "group" } else { "user" }
}

/// Directives of files whose content is sent to the server configured next to them.
const SENT_FILE_DIRECTIVES: [&str; 2] = ["password_file", "headers_file"];

fn add_uses(tree: &Value, uses: &mut BTreeSet<String>) {
    match tree {
        Value::String(text) if text.contains("unix:") => _ = uses.insert(format!("{text:?}")),
        Value::Array(items) => items.iter().for_each(|item| add_uses(item, uses)),
        Value::Object(entries) => {
            if let Some(sent) = SENT_FILE_DIRECTIVES.into_iter().find(|sent| entries.contains_key(*sent)) {
                uses.insert(format!("`{sent}` beside these values: {tree}"));
            }
            if let Some(followed) = entries.get("symlinks").filter(|followed| *followed != "off") {
                uses.insert(format!("`symlinks` = {followed}"));
            }
            entries.values().for_each(|value| add_uses(value, uses));
        }
        _ => {}
    }
}

/// Checks that `after` names only resources that `before` names in the same directive.
///
/// # Errors
/// The first additional resource, and who may add it.
pub(crate) fn check_names_subset(path: &Path, before: &str, after: &str) -> Result<(), Failure> {
    let before = NamedResourceSet::read(path, before);
    let after = NamedResourceSet::read(path, after);
    let refused = |what: String| {
        Err(Failure::new(format!(
            "{what} is not in the configuration's files, and this server acts with root's rights: only root may name further files, \
             users, programs, Unix sockets and variables, by a Unix socket or in the file"
        )))
    };
    let known = before.by_directive();
    if let Some((directive, name)) = after.by_directive().difference(&known).next() {
        return refused(format!("`{directive}` = {name:?}"));
    }
    if let Some(name) = after.variables.difference(&before.variables).next() {
        return refused(format!("the variable `${{{name}}}`"));
    }
    if let Some(name) = after.uses.difference(&before.uses).next() {
        return refused(name.clone());
    }
    let known = before.programs();
    let programs = after.programs();
    if let Some((name, _)) = programs.iter().find(|app| !known.contains(app)) {
        return refused(format!("what `[apps.{name}]` says"));
    }
    let sandboxes = [&before, &after].map(|one| one.config.as_ref().map(|config| config.sandbox));
    match sandboxes {
        [known, Some(sandbox)] if known != Some(sandbox) => refused("this value of `sandbox`".to_owned()),
        _ => Ok(()),
    }
}

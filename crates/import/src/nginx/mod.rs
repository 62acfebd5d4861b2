//! Importer of nginx's configuration.

mod lexer;

mod tree;

mod scope;

mod client_addresses;

mod directive;

mod translation;

mod odd_addresses;

mod driver;

mod guards;

mod maps;

mod upstream;

mod cache;

mod location_place;

mod encoded_slashes;

mod headers;

mod access;

mod limits;

mod rewrite;

mod conditions;

mod rewritten_search;

mod proxy;

mod cgi;

mod php;

mod index_scripts;

mod script_paths;

mod folders;

mod files;

mod rewrite_phase;

mod repeated_fields;

mod route;

mod returns;

mod location;

mod server;

mod host_conflicts;

mod log;

mod listen;

mod address_kinds;

mod unnamed_hosts;

mod sites;

mod render;

mod streams;

mod process;

mod directives;

mod nginx_scratch;

mod addresses;

mod probe_paths;

mod probe_fields;

mod probe_hosts;

mod probes;

mod decided_properties;

mod explanations;

use std::path::Path;

use other_servers::NGINX;

use crate::draft::{ConfigDraft, TomlItem, TomlSection};
use crate::findings::{EntryIndex, ImportError, ImportLedger, ImportResult};
pub use explanations::{ExplainingRemarks, LocatedRequest};
pub use nginx_scratch::NginxScratch;

use directive::{Contexts, Part};
use directives::DIRECTIVES;
use scope::Scope;
use translation::Translation;
use tree::{NginxDirective, TreeReader, visit};

/// Translates nginx's configuration and the files that it includes. Relative names are resolved against
/// `prefix`, by default the directory of the file.
///
/// # Errors
/// A file cannot be read or is not a configuration of nginx.
pub fn import(path: &Path, prefix: Option<&Path>) -> Result<ImportResult, ImportError> {
    // Directives without a translation are known only at the end: the second pass adds comments for them.
    let (_, ledger) = translate(path, prefix, &[])?;
    let (toml, ledger) = translate(path, prefix, &ledger.entries_without_verdict())?;
    Ok(ImportResult { toml, remarks: ledger.into_remarks(), general_differences: NGINX.differences })
}

/// Returns the translation and the outcome of each directive. Directives in `unread` are reported as not
/// translated.
fn translate(
    path: &Path,
    prefix: Option<&Path>,
    unread: &[EntryIndex],
) -> Result<(String, ImportLedger), ImportError> {
    let ledger = ImportLedger::default();
    let folder = prefix.or(path.parent()).unwrap_or(Path::new("")).to_owned();
    let main = {
        let include_folder = path.parent().unwrap_or(Path::new(""));
        TreeReader::new(&ledger, path, include_folder).read(path)?
    };
    let toml = {
        unread.iter().for_each(|entry| ledger.mark_untranslated(*entry));
        let http = main.iter().find(|one| one.name == "http");
        // Without `http`, the file is one that `http` includes.
        let context = if http.is_some() { Contexts::MAIN } else { Contexts::MAIN.or(Contexts::HTTP) };
        driver::enter_untranslated(&DIRECTIVES, &ledger, &main, context);
        let levels = match http {
            Some(http) => vec![main.as_slice(), http.block_directives()],
            None => vec![main.as_slice()],
        };
        let work = Translation::new((&ledger, &DIRECTIVES), Scope::of(levels), folder);
        let mut draft = work.build_draft(&main);
        work.report_unused_definitions(&main);
        work.add_manual_comments(&main, &mut draft.top);
        if let Some(http) = http {
            work.add_manual_comments(http.block_directives(), &mut draft.top);
        }
        draft.hoist_shared();
        draft.move_fields_to_snippets();
        hoist_logs(&mut draft);
        draft.tables.extend(work.tables.into_inner());
        if draft.sites.is_empty() && draft.streams.is_empty() {
            draft.top.comment("There was no `server` in this file.");
        }
        draft.to_toml()
    };
    Ok((toml, ledger))
}

/// Moves logs that all sites share to the `[log]` of the server.
fn hoist_logs(draft: &mut ConfigDraft) {
    if let Some(TomlItem::List(mut logs)) = draft.top.remove("logs")
        && !logs.is_empty()
    {
        if let TomlItem::Table(first) = logs.remove(0) {
            let log = draft.table("log");
            log.entries.splice(0..0, first);
            if log.get("file") == Some(&TomlItem::text(log::DEFAULT_LOG)) {
                log.comment("The default of nginx.");
            }
        }
        if !logs.is_empty() {
            draft.top.set("logs", TomlItem::List(logs));
        }
    }
    let is_empty = |section: &TomlItem| matches!(section, TomlItem::List(logs) if logs.is_empty());
    for site in &mut draft.sites {
        if site.section.get("logs").is_some_and(is_empty) {
            site.section.remove("logs");
        }
    }
    draft.tables.retain(|(path, log)| path != "log" || !log.entries.is_empty());
}

impl<'d> Translation<'d> {
    fn build_draft(&self, main: &'d [NginxDirective]) -> ConfigDraft {
        let mut draft = ConfigDraft::default();
        let mut all = Vec::new();
        let is_http = |one: &&NginxDirective| !matches!(one.name.as_str(), "stream" | "mail");
        for one in main.iter().filter(is_http) {
            visit(std::slice::from_ref(one), &mut |one| all.push(one));
        }
        self.apply_to_block(Part::Process, main, &mut draft.top);
        self.apply(Part::Connections, &self.http, &mut draft.top);
        if let Some(count) = self.header_fields_max() {
            draft.top.set_in("limits", "headers", TomlItem::Number(count));
        }
        let servers: Vec<_> = self.http.innermost().iter().filter(|one| one.name == "server").collect();
        self.write_sites(servers, &mut draft);
        for server in self.http.innermost().iter().filter(|one| one.name == "server") {
            // Settings of the first server that has some, if `http` has none.
            let scope = Scope::of(vec![server.block_directives()]);
            self.translate_server_connection_settings(&scope, &mut draft.top);
        }
        for block in main.iter().filter(|one| one.name == "stream") {
            draft.streams.extend(self.translate_streams(block));
        }
        self.translate_real_ip(&all, &mut draft.top);
        self.translate_settings_of_all(&all, &mut draft);
        self.translate_error_log(&all, draft.table("log"));
        self.report_location_logs(&all);
        self.report_unused_upstreams(&self.http);
        draft
    }

    /// Translates settings that Komainu has once for all sites.
    fn translate_settings_of_all(&self, all: &[&'d NginxDirective], draft: &mut ConfigDraft) {
        let mut tables = TomlSection::default();
        self.apply_to_all(Part::Everywhere, all, &mut tables);
        for (name, table) in tables.entries {
            if let TomlItem::Table(entries) = table {
                entries.into_iter().for_each(|(key, item)| draft.table(&name).set(&key, item));
            }
        }
    }

    /// Reports the remaining zones, formats and variables, depending on whether they are used.
    fn report_unused_definitions(&self, main: &'d [NginxDirective]) {
        let mut texts = String::new();
        visit(main, &mut |one| {
            texts.push_str(&one.args.join(" "));
            texts.push(' ');
        });
        visit(main, &mut |one| {
            if self.ledger.is_marked(one.entry) {
                return;
            }
            let used = |name: &str| {
                !name.is_empty()
                    && texts
                        .match_indices(name)
                        .filter(|(at, _)| texts[at + name.len()..].starts_with([' ', ';', '/', '"', ')']))
                        .count()
                        > 1
            };
            match one.name.as_str() {
                "map" if one.first_arg() == "$http_upgrade" => {
                    self.not_needed(one, "not needed: WebSockets are passed on (`upgrades` in `proxy`)");
                }
                "map" | "geo" if !used(one.args.last().map_or("", String::as_str)) => {
                    self.not_needed(one, "nothing uses its variable");
                }
                "map" | "geo" => self.ledger.mark_different(
                    one.entry,
                    "nothing that was translated names its variable, so it is left out; `[maps.NAME]` is what it would be",
                ),
                name => {
                    let row = DIRECTIVES.iter().find(|row| row.name == name);
                    if let Some(remark) = row.and_then(|row| row.unused) {
                        self.ledger.enter(one.entry, &remark.to_outcome());
                    }
                }
            }
        });
    }
}

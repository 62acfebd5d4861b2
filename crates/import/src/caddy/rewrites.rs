//! Handlers that change the path: `rewrite`, and the matcher `file` with a rewrite to the file that it finds.

use super::changed_path::ChangedPath;
use super::reader::{CaddyReader, CaddySettings};
use crate::data::DataNode;
use crate::draft::TomlItem;

impl CaddyReader<'_> {
    /// Translates the handler `rewrite`. Without a translation, what follows is closed: it would answer for
    /// other paths.
    pub(super) fn translate_rewrite(&self, handler: &DataNode, settings: &mut CaddySettings) {
        const KEYS: [&str; 3] = ["handler", "uri", "strip_path_prefix"];
        if let Some(uri) = handler.get("uri") {
            let text = uri.text().unwrap_or("");
            let is_first = settings.strip_prefix.is_none()
                && settings.try_files.is_empty()
                && settings.scripts.is_none()
                && settings.section.get("rewrite").is_none();
            let to = settings.translate_template(text).filter(|to| {
                ["/", "$path", "$uri"].iter().any(|start| to.starts_with(start)) && !to.contains("$http_")
            });
            match to {
                Some(to) if is_first => {
                    settings.path = settings.path.rewritten(&to);
                    settings.has_new_query |= to.contains('?');
                    settings.section.set_text("rewrite", to);
                    uri.mark_translated(self.ledger);
                }
                Some(_) => {
                    let reason = "a path is changed more than once: what follows is closed (403) until one `rewrite` of the route does all";
                    self.lose_path(uri, reason, settings);
                }
                None => {
                    let reason = "the new path is not text with variables of Komainu: what follows is closed (403) until `rewrite` of the route has it";
                    self.lose_path(uri, reason, settings);
                }
            }
        }
        if let Some(prefix) = handler.get("strip_path_prefix") {
            let text = prefix.text().unwrap_or("");
            let text = if text.starts_with('/') { text.to_owned() } else { format!("/{text}") };
            if settings.strip_prefix.is_some() || !settings.try_files.is_empty() || text.contains('{') {
                let reason = "this prefix is not removed: what follows is closed (403) until `strip_prefix` or `rewrite` of the route does it";
                self.lose_path(prefix, reason, settings);
            } else {
                let around = settings.section.get("path").and_then(TomlItem::as_text);
                let is_whole = around.and_then(|around| around.strip_suffix("/*")) == Some(text.as_str());
                settings.path = settings.path.without_prefix(&text, around);
                settings.strip_prefix = Some(text);
                if is_whole {
                    prefix.mark_translated(self.ledger);
                } else {
                    let reason = "whole segments are removed alone: paths that begin with the same letters, of which Caddy removes these too, are refused (403)";
                    prefix.mark_different(self.ledger, reason);
                }
            }
        }
        for (key, value) in handler.entries().iter().filter(|(key, _)| !KEYS.contains(&key.as_str())) {
            let reason = format!(
                "`{key}` of a rewrite has no translation: what follows is closed (403) until `rewrite` of the route does it"
            );
            self.lose_path(value, &reason, settings);
        }
    }

    fn lose_path(&self, value: &DataNode, reason: &str, settings: &mut CaddySettings) {
        value.mark_impossible(self.ledger, reason);
        settings.path = ChangedPath::Unknown;
        settings.unknown_path = Some(self.ledger.check_comment(value.line, reason));
    }

    /// Translates the matcher `file` of a route that rewrites to the file that was found. Without a
    /// translation, what follows is closed: it would send other files.
    pub(super) fn translate_try_files(&self, file: &DataNode, settings: &mut CaddySettings) {
        let tries = file.get("try_files").map_or_else(Vec::new, DataNode::texts);
        settings.needs_file |= tries.last().is_some_and(|path| path == "=404");
        // Caddy ignores the slash at the end of a path unless the text that is tried has one.
        settings.tries_folders |= tries.iter().any(|path| path.ends_with('/'));
        let mut plain: Vec<String> = tries
            .iter()
            .map(|path| path.replace("{http.request.uri.path}", "$path"))
            .map(|path| {
                path.strip_suffix('/').filter(|rest| !rest.is_empty()).map(str::to_owned).unwrap_or(path)
            })
            .map(|path| if path.starts_with(['/', '$', '=']) { path } else { format!("/{path}") })
            .collect();
        let ends_with_404 = plain.last().is_some_and(|path| path == "=404");
        if ends_with_404 {
            plain.pop();
        } else if plain.last().is_some_and(|path| path.contains('$'))
            && !plain.iter().any(|path| path == "$path")
        {
            // Without such a file, Caddy serves the path itself.
            plain.push("$path".to_owned());
        }
        let is_default = |(key, value): &(String, DataNode)| match key.as_str() {
            "try_files" => true,
            "root" => value.text().is_some_and(|root| settings.root.as_deref().is_none_or(|own| own == root)),
            "try_policy" => value.text() == Some("first_exist"),
            _ => false,
        };
        let is_known = |path: &String| !path.contains(['{', '=', '?', '*']) && !path.ends_with(".php");
        let is_first = settings.try_files.is_empty() && settings.scripts.is_none();
        let ends_well = match (ends_with_404, plain.as_slice()) {
            (_, []) => false,
            (true, all) => all.iter().all(|path| path.contains('$')),
            (false, [first @ .., _]) => first.iter().all(|path| path.contains('$')),
        };
        let can_rewrite = settings.strip_prefix.is_none() && settings.section.get("rewrite").is_none();
        match plain.as_slice() {
            [only]
                if !ends_with_404
                    && !only.contains('$')
                    && is_known(only)
                    && is_first
                    && can_rewrite
                    && file.entries().iter().all(is_default) =>
            {
                settings.section.set_text("rewrite", only.clone());
                settings.path = settings.path.rewritten(only);
                file.mark_different(
                    self.ledger,
                    "every request gets this file; if it is missing, the answer is 404, and no other file is sent",
                );
            }
            [_, _, ..] | [_]
                if ends_well
                    && is_first
                    && plain.iter().all(is_known)
                    && plain.iter().any(|path| path.contains('$'))
                    && file.entries().iter().all(is_default) =>
            {
                settings.path = settings.path.tried(&plain);
                settings.try_files = plain;
                file.mark_different(
                    self.ledger,
                    "folders are found without the slash at the end too: these are redirected to it, or 404",
                );
            }
            _ => {
                let reason = "`try` in `files` takes paths with `$path`, and `fallback` one more: what follows is closed (403)";
                file.mark_impossible(self.ledger, reason);
                settings.path = ChangedPath::Unknown;
                settings.unknown_path = Some(self.ledger.check_comment(file.line, reason));
            }
        }
        if let (None, Some(root)) = (&settings.root, file.get("root").and_then(DataNode::text)) {
            settings.root = Some(root.to_owned());
        }
    }
}

//! Translation of `php_fastcgi` as adapted to JSON, and of other FastCGI servers.

use super::reader::{CaddyReader, CaddySettings};
use super::scripts::{CaddyScripts, translate_duration};
use crate::data::DataNode;
use crate::draft::{TomlItem, TomlSection};

impl CaddyReader<'_> {
    /// Returns the `php` of a route: its servers and the scripts of the site.
    pub(super) fn build_php(
        &self,
        handler: &DataNode,
        scripts: &CaddyScripts,
        settings: &CaddySettings,
    ) -> Option<TomlItem> {
        let mut php = TomlSection::default();
        let to = self.translate_fastcgi_servers(handler, true);
        if to.is_empty() {
            return None;
        }
        php.set("to", TomlItem::text_or_list(to));
        match scripts.front_script.as_deref() {
            Some("/index.php") => {}
            Some(front) => php.set_in("scripts", "front", TomlItem::text(front)),
            None => php.set_in("scripts", "front", TomlItem::Flag(false)),
        }
        let transport = handler.get("transport");
        if let Some(root) = transport.and_then(|one| one.get("root")) {
            let text = root.text().unwrap_or("");
            if settings.root.as_deref() != Some(text) && !text.contains('{') {
                php.set_in("scripts", "root", TomlItem::text(text));
            }
            root.mark_translated(self.ledger);
        }
        self.translate_fastcgi_settings(handler, &mut php);
        Some(match php.entries.as_slice() {
            [(key, to)] if key == "to" => to.clone(),
            _ => TomlItem::Table(php.entries),
        })
    }

    /// Writes `files` and `php` of a route.
    pub(super) fn write_files_with_scripts(&self, settings: &CaddySettings, section: &mut TomlSection) {
        let (Some(php), Some(scripts)) = (&settings.php, &settings.scripts) else { return };
        if section.get("files").is_none() {
            let root = settings.root.clone().unwrap_or_else(|| ".".to_owned());
            section.set_in("files", "root", TomlItem::Text(root));
            section.set_in("files", "symlinks", TomlItem::text("on"));
            if let Some(prefix) = &settings.strip_prefix {
                section.set_in("files", "strip_prefix", TomlItem::text(prefix.clone()));
            }
        }
        if scripts.index_script != "index.php" {
            section.set_in(
                "files",
                "index",
                TomlItem::List(vec![TomlItem::text(scripts.index_script.clone())]),
            );
        }
        section.set("php", php.clone());
    }

    /// Writes the `proxy` of a handler with FastCGI servers that do not run scripts stored among static
    /// files.
    pub(super) fn write_fastcgi_proxy(
        &self,
        handler: &DataNode,
        settings: &CaddySettings,
        section: &mut TomlSection,
    ) {
        let to = self.translate_fastcgi_servers(handler, false);
        if to.is_empty() {
            handler.mark_impossible(self.ledger, "its servers are not known from the configuration");
            section.set("respond", TomlItem::Number(501));
            return;
        }
        let mut proxy = TomlSection::default();
        proxy.set("to", TomlItem::text_or_list(to));
        let root = handler.at(&["transport", "root"]).and_then(DataNode::text).map(str::to_owned);
        if let Some(root) = root.or_else(|| settings.root.clone()).filter(|root| !root.contains('{')) {
            let path = format!("{}$path", root.trim_end_matches('/'));
            proxy.set_in("variables", "SCRIPT_FILENAME", TomlItem::Text(path));
            proxy.set_in("variables", "SCRIPT_NAME", TomlItem::text("$path"));
            proxy.set_in("variables", "DOCUMENT_ROOT", TomlItem::Text(root));
        }
        for key in ["root", "split_path"] {
            if let Some(one) = handler.at(&["transport", key]) {
                one.mark_different(self.ledger, "the whole path names the script (`SCRIPT_FILENAME`): write `files` and `php` where the scripts are on this machine");
            }
        }
        self.translate_fastcgi_settings(handler, &mut proxy);
        section.set("proxy", TomlItem::Table(proxy.entries));
    }

    fn translate_fastcgi_servers(&self, handler: &DataNode, is_php: bool) -> Vec<String> {
        let mut to = Vec::new();
        for dial in
            handler.get("upstreams").map_or(&[][..], DataNode::items).iter().filter_map(|one| one.get("dial"))
        {
            let text = dial.text().unwrap_or("");
            let text = text.strip_prefix("tcp/").unwrap_or(text);
            match text.strip_prefix("unix/") {
                _ if text.contains('{') => {
                    dial.mark_impossible(
                        self.ledger,
                        "the server depends on the request: write a route for each",
                    );
                    continue;
                }
                Some(path) if is_php => to.push(format!("unix:{path}")),
                Some(path) => to.push(format!("fastcgi+unix:{path}")),
                None if text.starts_with(':') => to.push(format!("fastcgi://127.0.0.1{text}")),
                None => to.push(format!("fastcgi://{text}")),
            }
            dial.mark_translated(self.ledger);
        }
        to
    }

    fn translate_fastcgi_settings(&self, handler: &DataNode, section: &mut TomlSection) {
        let Some(transport) = handler.get("transport") else { return };
        for (name, value) in transport.get("env").map_or(&[][..], DataNode::entries) {
            match value.text().filter(|text| !text.contains("{http.")) {
                Some(text) => {
                    section.set_in("variables", name, TomlItem::Text(text.replace('$', "$$")));
                    value.mark_translated(self.ledger);
                }
                None => value.mark_impossible(
                    self.ledger,
                    "write the variable in `variables`, with `$` in place of a placeholder",
                ),
            }
        }
        if let Some(found) = transport.get("dial_timeout") {
            translate_duration(found)
                .into_iter()
                .for_each(|item| section.set_in("timeouts", "connect", item));
            found.mark_translated(self.ledger);
        }
        if let Some(found) = transport.get("read_timeout") {
            for key in ["head", "between"] {
                translate_duration(found).into_iter().for_each(|item| section.set_in("timeouts", key, item));
            }
            found.mark_translated(self.ledger);
        }
        transport.get("write_timeout").into_iter().for_each(|one| {
            one.mark_different(self.ledger, "`between` in `timeouts` counts for both directions");
        });
        transport.mark_not_needed(self.ledger, "");
    }
}

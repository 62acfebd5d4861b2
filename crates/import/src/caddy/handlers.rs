//! Translation of Caddy's handlers: responses, and settings for the handlers that follow.

use super::reader::{CaddyReader, CaddySettings};
use super::templates::translate_template;
use crate::data::DataNode;
use crate::draft::{CONDITIONS, TomlItem, TomlSection};

impl CaddyReader<'_> {
    pub(super) fn translate_fields(&self, fields: Option<&DataNode>, key: &str, section: &mut TomlSection) {
        let Some(fields) = fields else { return };
        let mut unknown = Vec::new();
        for (name, place) in [("set", "set"), ("add", "add")] {
            let mut all = Vec::new();
            for (field, values) in fields.get(name).map_or(&[][..], DataNode::entries) {
                match translate_template(&values.texts().join(", ")) {
                    Some(value) => {
                        all.push((field.clone(), TomlItem::Text(value)));
                        values.mark_translated(self.ledger);
                    }
                    None => {
                        values.mark_impossible(self.ledger, "there is no such variable here");
                        // Clients must not be able to send the field that the server would set.
                        unknown.extend((key == "request_headers").then(|| TomlItem::text(field.clone())));
                    }
                }
            }
            if !all.is_empty() {
                section.merge_in(key, place, TomlItem::Table(all));
            }
        }
        if let Some(removed) = fields.get("delete") {
            unknown.extend(removed.texts().into_iter().map(TomlItem::Text));
            removed.mark_translated(self.ledger);
        }
        if !unknown.is_empty() {
            section.merge_in(key, "remove", TomlItem::List(unknown));
        }
        if let Some(deferred) = fields.get("deferred") {
            deferred.mark_not_needed(self.ledger, "not needed: fields are set when the response is sent");
        }
    }

    /// Translates the handler `headers`.
    pub(super) fn translate_headers(&self, handler: &DataNode, settings: &mut CaddySettings) {
        self.translate_fields(handler.get("response"), "response_headers", &mut settings.section);
        self.translate_fields(handler.get("request"), "request_headers", &mut settings.request);
        handler.mark_impossible(self.ledger, "fields are set and removed, and nothing else");
        let checks = handler.manual_comments(self.ledger);
        checks.into_iter().for_each(|check| settings.section.comment(check));
    }

    pub(super) fn translate_encode(&self, handler: &DataNode, section: &mut TomlSection) {
        let mut codings: Vec<TomlItem> = Vec::new();
        let prefer = handler.get("prefer").map_or_else(Vec::new, DataNode::texts);
        let given =
            handler.get("encodings").map_or(&[][..], DataNode::entries).iter().map(|(name, _)| name.clone());
        for name in prefer.into_iter().chain(given) {
            let item = TomlItem::Text(name);
            if !codings.contains(&item) {
                codings.push(item);
            }
        }
        let min = handler.get("minimum_length").and_then(DataNode::number).unwrap_or(512);
        section.set_in("compress", "codings", TomlItem::List(codings));
        section.set_in("compress", "min", TomlItem::Text(format!("{min}B")));
        handler.mark_translated(self.ledger);
        if let Some(matcher) = handler.get("match") {
            matcher.mark_different(self.ledger, "the types are the default of `types` in `compress`");
        }
    }

    pub(super) fn translate_respond(
        &self,
        handler: &DataNode,
        settings: &CaddySettings,
        section: &mut TomlSection,
    ) {
        if let Some(abort) = handler.get("abort").filter(|abort| abort.flag() == Some(true)) {
            abort.mark_different(
                self.ledger,
                "connections are not closed without an answer: the answer is 403",
            );
            section.set("respond", TomlItem::Number(403));
            return;
        }
        let status = handler.get("status_code");
        let code = status.and_then(DataNode::number);
        if let Some(status) = status.filter(|_| code.is_none_or(|code| !(200..600).contains(&code))) {
            let reason = "a status is a number from 200 to 599: the route is closed (403)";
            status.mark_impossible(self.ledger, reason);
            section.close(self.ledger.check_comment(status.line, reason));
            return;
        }
        status.into_iter().for_each(|one| one.mark_translated(self.ledger));
        let location = handler.at(&["headers", "Location"]);
        if let Some(location) = location {
            const STARTS: [&str; 6] = ["/", "http://", "https://", "$scheme://", "$path", "$uri"];
            let to = location.texts().first().and_then(|to| settings.translate_template(to));
            let is_target = to.as_ref().is_some_and(|to| STARTS.iter().any(|start| to.starts_with(start)));
            match (to, code.unwrap_or(302)) {
                (Some(to), code @ (301 | 302 | 303 | 307 | 308)) if is_target => {
                    section.set(
                        "redirect",
                        TomlItem::Table(vec![
                            ("to".to_owned(), TomlItem::Text(to)),
                            ("status".to_owned(), TomlItem::Number(code)),
                        ]),
                    );
                    location.mark_translated(self.ledger);
                    return;
                }
                (to, _) => {
                    let reason = match to {
                        None => "the target has a variable that is not here",
                        Some(_) if !is_target => "a redirect begins with a scheme or with `/`",
                        Some(_) => "a redirect has the status 301, 302, 303, 307 or 308",
                    };
                    location.mark_impossible(self.ledger, reason);
                    section.set("respond", TomlItem::Number(501));
                    return;
                }
            }
        }
        let is_error = handler.get("handler").and_then(DataNode::text) == Some("error");
        let code = code.unwrap_or(if is_error { 500 } else { 200 });
        section.set_in("respond", "status", TomlItem::Number(code));
        if let Some(body) = handler.get("body") {
            match body.text().filter(|body| !body.contains("{http.")) {
                Some(text) => {
                    section.set_in("respond", "body", TomlItem::text(text));
                    body.mark_translated(self.ledger);
                }
                None => {
                    let reason = "the body is a text without variables";
                    body.mark_impossible(self.ledger, reason);
                    if code < 400 {
                        section.set("respond", TomlItem::Number(501));
                    }
                }
            }
        }
    }

    /// Returns a route for the paths of folders, which Caddy does not find if it tries paths of files alone.
    pub(super) fn missing_folders_route(
        &self,
        settings: &CaddySettings,
        section: &TomlSection,
    ) -> Option<TomlSection> {
        if !settings.needs_file || settings.tries_folders {
            return None;
        }
        let mut route = section.clone();
        route.comments.clear();
        route.comment("The path of a folder is none of the files that are tried.");
        route.entries.retain(|(key, _)| CONDITIONS.contains(&key.as_str()));
        let prefix = settings.strip_prefix.clone();
        let paths = TomlItem::text_or_list(["*/".to_owned()].into_iter().chain(prefix));
        match route.get("path") {
            None => route.entries.insert(0, ("path".to_owned(), paths)),
            Some(_) => route.require("path", paths),
        }
        route.set("respond", TomlItem::Number(404));
        Some(route)
    }

    pub(super) fn translate_files(
        &self,
        handler: &DataNode,
        settings: &CaddySettings,
        section: &mut TomlSection,
    ) {
        const KEYS: [&str; 11] = [
            "handler",
            "root",
            "hide",
            "index_names",
            "browse",
            "canonical_uris",
            "precompressed",
            "precompressed_order",
            "pass_thru",
            "status_code",
            "etag_file_extensions",
        ];
        let is_unknown = |(key, value): &&(String, DataNode)| {
            !KEYS.contains(&key.as_str()) || key == "status_code" && value.number() != Some(200)
        };
        if let Some((key, value)) = handler.entries().iter().find(is_unknown) {
            let reason = format!("`files` has nothing like `{key}`: the route is closed (403)");
            value.mark_all_impossible(self.ledger, &reason);
            section.close(self.ledger.check_comment(value.line, &reason));
            return;
        }
        handler.get("status_code").into_iter().for_each(|one| one.mark_translated(self.ledger));
        let root = handler.get("root").and_then(DataNode::text).map(str::to_owned).or(settings.root.clone());
        let root = root.unwrap_or_else(|| ".".to_owned());
        if root.contains('{') {
            handler.mark_all_impossible(
                self.ledger,
                "the folder depends on the request: write a route for each",
            );
            section.set("respond", TomlItem::Number(501));
            return;
        }
        section.set_in("files", "root", TomlItem::Text(root));
        section.set_in("files", "symlinks", TomlItem::text("on"));
        handler.get("root").into_iter().for_each(|one| one.mark_translated(self.ledger));
        if let Some(names) = handler.get("index_names") {
            section.set_in(
                "files",
                "index",
                TomlItem::List(names.texts().into_iter().map(TomlItem::Text).collect()),
            );
            names.mark_translated(self.ledger);
        }
        if let Some(browse) = handler.get("browse") {
            section.set_in("files", "listing", TomlItem::Flag(true));
            browse.mark_translated(self.ledger);
        }
        if let Some(order) = handler.get("precompressed_order").or(handler.get("precompressed")) {
            section.set_in("files", "precompressed", TomlItem::Flag(true));
            order.mark_translated(self.ledger);
            handler.get("precompressed").into_iter().for_each(|one| one.mark_translated(self.ledger));
        }
        if let Some(prefix) = &settings.strip_prefix {
            section.set_in("files", "strip_prefix", TomlItem::text(prefix.clone()));
        }
        if let Some((last, tries)) = settings.try_files.split_last() {
            if last.contains('$') {
                section.set_in(
                    "files",
                    "try",
                    TomlItem::List(settings.try_files.iter().cloned().map(TomlItem::Text).collect()),
                )
            } else {
                if tries != ["$path"] && !tries.is_empty() {
                    section.set_in(
                        "files",
                        "try",
                        TomlItem::List(tries.iter().cloned().map(TomlItem::Text).collect()),
                    );
                }
                section.set_in("files", "fallback", TomlItem::text(last.clone()));
                if settings.tries_folders {
                    // Caddy finds a folder before it, and sends its index page or 404.
                    section.set_in("files", "fallback_folders", TomlItem::Flag(false));
                }
            }
        }
    }
}

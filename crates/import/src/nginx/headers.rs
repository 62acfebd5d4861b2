//! Translation of response header fields and compression.

use super::location_place::{LocationPlace, ServerLocations};
use super::scope::{
    CONNECTION_FIELD_REMARK, Scope, TemplateDestination, TextPart, is_connection_field, parse_milliseconds,
    split_template, translate_size,
};
use super::translation::Translation;
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};

/// Maximum size of a replaced text in bytes, and maximum ratio of the replacement's size to it.
const REPLACED_TEXT_BYTES_MAX: usize = 1024;
const REPLACEMENT_RATIO_MAX: usize = 64;
/// Value of `expires max` in seconds.
const EXPIRES_MAX: u64 = 315_360_000;

/// Translation of `expires`.
#[derive(Debug, PartialEq)]
enum ExpiresTranslation {
    Off,
    Value(String),
    /// Values by media type, through a `map` of `$sent_http_content_type`.
    Types(Vec<(String, TomlItem)>),
    Unknown(&'static str),
}

fn translate_expires_word(word: &str) -> ExpiresTranslation {
    match word {
        "off" => ExpiresTranslation::Off,
        "epoch" => ExpiresTranslation::Value("no-cache".to_owned()),
        "max" => ExpiresTranslation::Value(format!("max-age={EXPIRES_MAX}")),
        word if word.starts_with('-') => ExpiresTranslation::Value("no-cache".to_owned()),
        word if word.starts_with('@') => {
            ExpiresTranslation::Unknown("a time of day cannot be set: write `max-age`")
        }
        word => match parse_milliseconds(word.trim_start_matches('+')) {
            Some(ms) => ExpiresTranslation::Value(format!("max-age={}", ms / 1000)),
            None => ExpiresTranslation::Unknown("this is not a duration"),
        },
    }
}

/// The remark on the `Cache-Control` of files.
const REDIRECTS_REMARK: &str = "where files are served, redirects to the `/` behind a folder have none";

impl Translation<'_> {
    /// Writes `response_headers`, and `cache_control` of `files`.
    pub(crate) fn write_headers(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        let has_files = section.get("files").is_some();
        // The location's own fields do not apply to the fallback that responds if there is no file.
        let is_own = scope.innermost_last("expires").or_else(|| scope.innermost_last("add_header")).is_some();
        let runs_scripts = scope.innermost_last("fastcgi_pass").is_some();
        let serves_files = has_files && !runs_scripts && (is_own || section.get("proxy").is_none());
        let is_error = match section.get("respond") {
            Some(TomlItem::Number(status)) => *status >= 400,
            _ => false,
        };
        // nginx sends these fields only with responses that are not errors.
        let expires = if is_error { ExpiresTranslation::Off } else { self.translate_expires(scope) };
        let mut controls: Vec<String> = Vec::new();
        let mut set: Vec<(String, TomlItem)> = Vec::new();
        let mut add: Vec<(String, TomlItem)> = Vec::new();
        let replaces = matches!(expires, ExpiresTranslation::Value(_));
        match expires {
            ExpiresTranslation::Value(value) => controls.push(value),
            ExpiresTranslation::Types(types) if has_files => set_files_cache_control(section, TomlItem::Table(types)),
            ExpiresTranslation::Types(_) if section.get("proxy").is_none() => {}
            ExpiresTranslation::Types(_) => section.comment(
                "CHECK: `expires` by media type counts for files alone: let the application send Cache-Control.",
            ),
            ExpiresTranslation::Off | ExpiresTranslation::Unknown(_) => {}
        }
        for one in self.take_all(scope, "add_header") {
            let name = one.first_arg();
            let lower = one.first_arg().to_ascii_lowercase();
            if one.arg_at(1).is_empty() {
                self.not_needed(one, "not needed: an empty field is not sent");
                continue;
            }
            if lower == "x-cache-status" || one.arg_at(1).contains("$upstream_cache_status") {
                self.ledger.mark_different(one.entry, "`Cache-Status` is sent instead, by itself");
                continue;
            }
            if is_connection_field(name) {
                self.not_needed(one, CONNECTION_FIELD_REMARK);
                continue;
            }
            let Some(value) = self.translate_template(one, one.arg_at(1), scope, TemplateDestination::Header)
            else {
                continue;
            };
            self.report_always(one);
            match lower.as_str() {
                "cache-control" => {
                    if serves_files {
                        self.ledger.mark_different(one.entry, REDIRECTS_REMARK);
                    }
                    controls.push(value);
                }
                "content-type" if section.get("respond").is_some() => {
                    if let Some(TomlItem::Number(status)) = section.get("respond").cloned() {
                        section.set_in("respond", "status", TomlItem::Number(status));
                    }
                    section.set_in("respond", "type", TomlItem::Text(value));
                }
                _ => match add.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
                    Some(_) if lower == "set-cookie" => {
                        self.ledger.mark_impossible(
                            one.entry,
                            "a field can be added once: let the application send this cookie",
                        );
                    }
                    Some((_, TomlItem::Text(before))) => *before = format!("{before}, {value}"),
                    _ => add.push((name.to_owned(), TomlItem::Text(value))),
                },
            }
        }
        for one in
            [self.take_all(scope, "more_set_headers"), self.take_all(scope, "more_clear_headers")].concat()
        {
            self.translate_headers_more(one, scope, section, &mut set);
        }
        match (controls.is_empty(), serves_files) {
            (true, _) => {}
            (false, true) => set_files_cache_control(section, TomlItem::text(controls.join(", "))),
            (false, false) => {
                let field = ("Cache-Control".to_owned(), TomlItem::text(controls.join(", ")));
                if replaces { set.push(field) } else { add.push(field) }
            }
        }
        for (key, fields) in [("set", set), ("add", add)] {
            if !fields.is_empty() {
                section.set_in("response_headers", key, TomlItem::Table(fields));
            }
        }
    }

    /// Writes the header fields of the location that responds in place of a file, after those of the files. `handler` is the
    /// key of the route that stands for it, `proxy` or `php`, and `name` is the location in nginx's syntax.
    pub(crate) fn write_fallback_headers(
        &self,
        (handler, name): (&str, &str),
        (files, fallback): (&Scope<'_>, &Scope<'_>),
        section: &mut TomlSection,
    ) {
        let mut theirs = TomlSection::default();
        theirs.set("proxy", TomlItem::Flag(true));
        self.write_headers(fallback, &mut theirs);
        section.comments.append(&mut theirs.comments);
        let ours = response_fields(section);
        let theirs = response_fields(&theirs);
        for (_, field, _) in ours.iter().filter(|field| !theirs.contains(field)) {
            let named = |one: &&&NginxDirective| one.first_arg().eq_ignore_ascii_case(field);
            if let Some(one) = files.effective_all("add_header").iter().find(named) {
                self.ledger
                    .mark_different(one.entry, format!("responses of {name} in place of a file have it too"));
            }
        }
        let more: Vec<_> = theirs.into_iter().filter(|field| !ours.contains(field)).collect();
        if more.is_empty() {
            return;
        }
        let Some(servers) = section.remove(handler) else {
            section.comment(format!("CHECK: the response fields of {name} are left out."));
            return;
        };
        let mut inner = TomlSection::default();
        match servers {
            TomlItem::Table(entries) => inner.entries = entries,
            to => inner.set("to", to),
        }
        let mut changes = TomlSection::default();
        if let Some(TomlItem::Table(entries)) = inner.remove("response_headers") {
            changes.entries = entries;
        }
        for (key, field, value) in more {
            changes.set_in(&key, &field, value);
        }
        inner.set("response_headers", TomlItem::Table(changes.entries));
        section.set(handler, TomlItem::Table(inner.entries));
    }

    /// Writes `cache_control` rules for pages that another location serves: nginx restarts the selection with
    /// their paths.
    pub(crate) fn write_page_cache_control(
        &self,
        place: &LocationPlace<'_>,
        locations: &ServerLocations<'_>,
        section: &mut TomlSection,
    ) {
        let Some(TomlItem::Table(files)) = section.get("files") else { return };
        let entry = |key: &str| files.iter().find(|(name, _)| name == key).map(|(_, item)| item.clone());
        let ours = match entry("cache_control") {
            Some(TomlItem::Table(_)) => return,
            ours => ours,
        };
        let has_root = place.paths.matches("/");
        let page = match (entry("fallback"), entry("index")) {
            (Some(TomlItem::Text(page)), _) => page,
            _ if !has_root => return,
            (_, Some(TomlItem::List(names))) => match names.first() {
                Some(TomlItem::Text(name)) if !name.ends_with(".php") => format!("/{name}"),
                _ => return,
            },
            _ => "/index.html".to_owned(),
        };
        let prefix = entry("strip_prefix");
        let prefix = prefix.as_ref().and_then(TomlItem::as_text).unwrap_or_default();
        let asked = format!("{prefix}{page}");
        let Some(other) = locations.find_location(&asked).filter(|other| other.entry != place.entry) else {
            return;
        };
        let mut theirs = TomlSection::default();
        theirs.set("files", TomlItem::Table(Vec::new()));
        self.write_headers(&other.scope, &mut theirs);
        let theirs = match theirs.get("files") {
            Some(TomlItem::Table(entries)) => entries.first().map(|(_, item)| item.clone()),
            _ => None,
        };
        match (theirs, ours) {
            (theirs, ours) if theirs == ours => {}
            (Some(theirs @ TomlItem::Text(_)), ours) => {
                let rest = ours.map(|ours| ("/*".to_owned(), ours));
                set_files_cache_control(
                    section,
                    TomlItem::Table(std::iter::once((page, theirs)).chain(rest).collect()),
                );
            }
            _ => section
                .comment(format!("CHECK: `Cache-Control` of {page} is that of another location in nginx.")),
        }
    }

    /// Translates `sub_filter` to `replace`.
    pub(crate) fn translate_sub_filter(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        let all = scope.effective_all("sub_filter");
        let once = self.take(scope, "sub_filter_once").is_none_or(|one| one.first_arg() != "off");
        let types = self.take(scope, "sub_filter_types");
        let mut rules = Vec::new();
        for one in all {
            let from = one.first_arg();
            if from.contains('$') || from.is_empty() || from.len() > REPLACED_TEXT_BYTES_MAX {
                self.ledger.mark_impossible(
                    one.entry,
                    "`from` of `replace` is a text of up to 1 KiB, without variables",
                );
                continue;
            }
            let Some(to) = self.translate_template(one, one.arg_at(1), scope, TemplateDestination::Header)
            else {
                continue;
            };
            if !once && to.len() > from.len() * REPLACEMENT_RATIO_MAX {
                self.ledger.mark_impossible(
                    one.entry,
                    "`to` of `replace` may be 64 times as long as `from`, unless `once` is `true`",
                );
                continue;
            }
            self.ledger.mark_different(one.entry, "upper and lower case differ in the text that is replaced");
            let mut rule =
                vec![("from".to_owned(), TomlItem::text(from)), ("to".to_owned(), TomlItem::Text(to))];
            if let Some(types) = types {
                let names: Vec<TomlItem> = if types.args.iter().any(|name| name == "*") {
                    self.ledger.mark_different(types.entry, "types of texts are named, not all");
                    ["text/*", "application/*"].map(TomlItem::text).into()
                } else {
                    let named = types.args.iter().filter(|name| *name != "text/html").map(TomlItem::text);
                    std::iter::once(TomlItem::text("text/html")).chain(named).collect()
                };
                rule.push(("types".to_owned(), TomlItem::List(names)));
            }
            if once {
                rule.push(("once".to_owned(), TomlItem::Flag(true)));
            }
            rules.push(TomlItem::Table(rule));
        }
        match rules.len() {
            0 => {}
            1 => section.set("replace", rules.remove(0)),
            _ => section.set("replace", TomlItem::List(rules)),
        }
    }

    fn report_always(&self, directive: &NginxDirective) {
        if directive.arg_at(2) != "always" {
            self.ledger.mark_different(
                directive.entry,
                "responses with an error status have it too, as with `always`",
            );
        }
    }

    /// Translates `more_set_headers` and `more_clear_headers`.
    fn translate_headers_more(
        &self,
        directive: &NginxDirective,
        scope: &Scope<'_>,
        section: &mut TomlSection,
        set: &mut Vec<(String, TomlItem)>,
    ) {
        for arg in &directive.args {
            match arg.split_once(':') {
                _ if arg.starts_with('-') => {
                    self.ledger.mark_impossible(
                        directive.entry,
                        "`-s` and `-t` limit it to some responses: fields are for all",
                    );
                }
                _ if is_connection_field(arg.split(':').next().unwrap_or(arg).trim()) => {
                    self.not_needed(directive, CONNECTION_FIELD_REMARK);
                }
                Some((name, value)) if directive.name == "more_set_headers" => {
                    if let Some(value) =
                        self.translate_template(directive, value.trim(), scope, TemplateDestination::Header)
                    {
                        set.push((name.trim().to_owned(), TomlItem::Text(value)));
                    }
                }
                _ => {
                    let name = arg.split(':').next().unwrap_or(arg).trim();
                    section.merge_in(
                        "response_headers",
                        "remove",
                        TomlItem::List(vec![TomlItem::text(name)]),
                    );
                }
            }
        }
    }

    fn translate_expires(&self, scope: &Scope<'_>) -> ExpiresTranslation {
        let Some(one) = self.take(scope, "expires") else { return ExpiresTranslation::Off };
        let word = match one.first_arg() {
            "modified" => {
                self.ledger.mark_impossible(
                    one.entry,
                    "a time since the last change cannot be set: write `max-age`",
                );
                return ExpiresTranslation::Off;
            }
            word => word,
        };
        let found = match word.strip_prefix('$') {
            Some(variable) => self.translate_expires_map(variable),
            None => translate_expires_word(word),
        };
        match &found {
            ExpiresTranslation::Unknown(reason) => self.ledger.mark_impossible(one.entry, reason),
            ExpiresTranslation::Off => {}
            _ => self.ledger.mark_different(
                one.entry,
                format!("as `Cache-Control` alone, without `Expires`; {REDIRECTS_REMARK}"),
            ),
        }
        found
    }

    /// Translates a `map $sent_http_content_type $variable { ... }` to rules by media type.
    fn translate_expires_map(&self, variable: &str) -> ExpiresTranslation {
        let is_it = |map: &&&NginxDirective| map.arg_at(1).strip_prefix('$') == Some(variable);
        let maps = self.http.effective_all("map");
        let Some(map) = maps.iter().find(is_it) else {
            return ExpiresTranslation::Unknown("the variable has no `map`");
        };
        if !matches!(split_template(map.first_arg()).as_slice(), [TextPart::Variable(name)] if name == "sent_http_content_type")
        {
            return ExpiresTranslation::Unknown(
                "only a `map` of `$sent_http_content_type` can be translated",
            );
        }
        let mut rules = Vec::new();
        let mut rest = None;
        let mut is_exact = true;
        for line in map.block_directives() {
            let value = match translate_expires_word(line.first_arg()) {
                ExpiresTranslation::Value(value) => value,
                _ => {
                    is_exact &= line.name == "default";
                    continue;
                }
            };
            match line.name.as_str() {
                "default" => rest = Some(value),
                "volatile" | "hostnames" | "include" => {}
                name => {
                    let (types, exact) = matched_media_types(name);
                    is_exact &= exact && !types.is_empty();
                    let all = types.iter().flat_map(|name| with_own_name(name));
                    rules.extend(all.map(|name| (name.to_owned(), TomlItem::text(value.clone()))));
                }
            }
        }
        if let Some(value) = rest {
            rules.push(("*".to_owned(), TomlItem::Text(value)));
        }
        let mut seen: Vec<String> = Vec::new();
        rules.retain(|(name, _)| {
            !seen.contains(name) && {
                seen.push(name.clone());
                true
            }
        });
        self.count_taken(map);
        if !is_exact {
            self.ledger.mark_different(
                map.entry,
                "media types count as a whole: what an expression matched within a type is left out",
            )
        }
        ExpiresTranslation::Types(rules)
    }

    /// Writes `compress`, and `precompressed` if files are served.
    pub(crate) fn write_compression(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        let mut codings = Vec::new();
        let mut compress = TomlSection::default();
        for (coding, on) in [("br", "brotli"), ("zstd", "zstd"), ("gzip", "gzip")] {
            let Some(one) = self.take(scope, on) else { continue };
            if one.first_arg() != "on" {
                continue;
            }
            codings.push(TomlItem::text(coding));
            self.translate_gzip(on, scope, &mut compress);
        }
        self.write_precompressed(scope, section);
        if codings.is_empty() {
            return;
        }
        if compress.get("types").is_none() {
            compress.set("types", TomlItem::List(vec![TomlItem::text("text/html")]));
        }
        if compress.get("min").is_none() {
            compress.set_text("min", "20B");
        }
        compress.entries.insert(0, ("codings".to_owned(), TomlItem::List(codings)));
        section.set("compress", TomlItem::Table(compress.entries));
    }

    fn translate_gzip(&self, on: &str, scope: &Scope<'_>, compress: &mut TomlSection) {
        if let Some(one) = self.take(scope, &format!("{on}_min_length")) {
            match translate_size(one.first_arg()) {
                Some(size) => compress.set_text("min", size),
                None => self.ledger.mark_impossible(one.entry, "this is not a size"),
            }
        }
        if let Some(one) = scope.effective(&format!("{on}_comp_level")) {
            let level = one.first_arg().parse::<u32>().unwrap_or(1);
            compress.set_text(
                "level",
                match level {
                    0..=3 => "fast",
                    4..=7 => "balanced",
                    _ => "small",
                },
            );
            self.ledger
                .mark_different(one.entry, "there are three levels: \"fast\", \"balanced\" and \"small\"");
        }
        if let Some(one) = self.take(scope, &format!("{on}_types")) {
            let mut types = vec![TomlItem::text("text/html")];
            for name in one.args.iter().flat_map(|name| with_own_name(name)) {
                let item = TomlItem::text(if name == "*" { "*/*" } else { name });
                if !types.contains(&item) {
                    types.push(item);
                }
            }
            if types.contains(&TomlItem::text("*/*")) {
                self.ledger.mark_different(
                    one.entry,
                    "media types that are usually compressed: `types` cannot name every type",
                );
                types = ["text/*", "application/*", "image/svg+xml", "font/*"].map(TomlItem::text).into();
            }
            compress.set("types", TomlItem::List(types));
        }
        if let Some(one) = self.take(scope, &format!("{on}_proxied"))
            && one.first_arg() != "any"
        {
            let reason = "requests that come through a proxy get compressed responses too";
            self.ledger.mark_different(one.entry, reason);
        }
    }

    fn write_precompressed(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        let found: Vec<&NginxDirective> =
            [("br", "brotli_static"), ("zst", "zstd_static"), ("gz", "gzip_static")]
                .iter()
                .filter_map(|(_, name)| self.take(scope, name))
                .collect();
        let mut endings = Vec::new();
        for one in found {
            let ending = if one.name.starts_with("br") {
                "br"
            } else if one.name.starts_with('z') {
                "zst"
            } else {
                "gz"
            };
            match one.first_arg() {
                "off" => {}
                "always" => {
                    self.ledger
                        .mark_different(one.entry, "only clients that accept them get compressed files");
                    endings.push(TomlItem::text(ending));
                }
                _ => endings.push(TomlItem::text(ending)),
            }
        }
        if !endings.is_empty() && section.get("files").is_some() {
            section.set_in("files", "precompressed", TomlItem::List(endings));
        }
    }
}

fn set_files_cache_control(section: &mut TomlSection, value: TomlItem) {
    section.set_in("files", "cache_control", value);
}

/// Returns the fields that a route sets or adds: `set` or `add`, the name, the value.
fn response_fields(section: &TomlSection) -> Vec<(String, String, TomlItem)> {
    let Some(TomlItem::Table(changes)) = section.get("response_headers") else { return Vec::new() };
    let mut found = Vec::new();
    for (key, fields) in changes {
        if let (true, TomlItem::Table(fields)) = (key != "remove", fields) {
            found.extend(fields.iter().map(|(name, value)| (key.clone(), name.clone(), value.clone())));
        }
    }
    found
}

/// Media types with several names; the first one is sent by Komainu.
const MEDIA_TYPES: [&[&str]; 7] = [
    &["text/javascript", "application/javascript", "application/x-javascript"],
    &["text/xml", "application/xml"],
    &["font/ttf", "application/x-font-ttf", "application/x-font-truetype", "font/truetype"],
    &["font/otf", "application/x-font-opentype", "font/opentype"],
    &["font/woff", "application/font-woff", "application/x-font-woff"],
    &["font/woff2", "application/font-woff2"],
    &["image/x-icon", "image/vnd.microsoft.icon"],
];

/// Returns a media type, followed by the name that Komainu sends if it differs.
fn with_own_name(name: &str) -> impl Iterator<Item = &str> {
    let ours = MEDIA_TYPES.iter().find(|names| names.contains(&name)).map(|names| names[0]);
    std::iter::once(name).chain(ours.filter(|ours| *ours != name))
}

/// Returns the media types that an entry of a map of media types matches, and whether they are complete.
fn matched_media_types(name: &str) -> (Vec<String>, bool) {
    let Some(regex) = name.strip_prefix("~*").or_else(|| name.strip_prefix('~')) else {
        return (vec![name.to_owned()], true);
    };
    let plain: String = regex.replace('\\', "");
    let body = plain.trim_start_matches('^').trim_end_matches('$');
    match body.strip_suffix('/').or_else(|| body.strip_suffix("/.*")) {
        Some(kind) if kind.chars().all(char::is_alphanumeric) => (vec![format!("{kind}/*")], true),
        _ if body.contains('/') && !body.contains(['(', '[', '*', '|', '.', '?']) => {
            (vec![body.to_owned()], false)
        }
        _ => (Vec::new(), false),
    }
}

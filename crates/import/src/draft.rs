//! The generated configuration: sites, routes and tables with comments, and its text.

use std::collections::HashMap;
use std::fmt::Write;

/// A TOML value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TomlItem {
    Text(String),
    Number(u64),
    Flag(bool),
    List(Vec<TomlItem>),
    Table(Vec<(String, TomlItem)>),
}

impl TomlItem {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// The text, if the item is a text.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A list of texts.
    pub(crate) fn text_list(texts: &[&str]) -> Self {
        Self::List(texts.iter().map(|text| Self::text(*text)).collect())
    }

    /// A single text as [`TomlItem::Text`], any other number as a list.
    pub(crate) fn text_or_list(texts: impl IntoIterator<Item = String>) -> Self {
        let mut items: Vec<TomlItem> = texts.into_iter().map(TomlItem::Text).collect();
        match items.len() {
            1 => items.remove(0),
            _ => Self::List(items),
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Text(text) => quote(text, out),
            Self::Number(number) => {
                let _ = write!(out, "{number}");
            }
            Self::Flag(flag) => {
                let _ = write!(out, "{flag}");
            }
            Self::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { ", " });
                    item.write(out);
                }
                out.push(']');
            }
            Self::Table(entries) if entries.is_empty() => out.push_str("{}"),
            Self::Table(entries) => {
                out.push_str("{ ");
                for (at, (key, item)) in entries.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { ", " });
                    write_key(key, out);
                    out.push_str(" = ");
                    item.write(out);
                }
                out.push_str(" }");
            }
        }
    }

    pub(crate) fn to_toml(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }
}

fn quote(text: &str, out: &mut String) {
    if text.contains('\\') && !text.contains('\'') && !text.contains(char::is_control) {
        // Literal strings keep regular expressions readable.
        out.extend(["'", text, "'"]);
        return;
    }
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn write_key(key: &str, out: &mut String) {
    let is_bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if is_bare { out.push_str(key) } else { quote(key, out) }
}

/// Pattern of the paths with a line feed.
pub(crate) const LINE_FEED_PATTERN: &str = r"~ \n";

/// Keys and values of one table, with the comments above it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TomlSection {
    pub(crate) comments: Vec<String>,
    pub(crate) entries: Vec<(String, TomlItem)>,
}

/// Comment above a route that refuses more requests than the original server did.
const CLOSED_COMMENT: &str = "This route refuses all requests of its paths: write the condition here, or remove the route if they may pass.";
/// Minimum number of routes, and minimum length of the shared value, for moving it to a snippet.
const SHARED_ROUTES_MIN: usize = 3;
const SHARED_LENGTH_MIN: usize = 60;
/// Maximum line length: longer lines are broken where possible.
const LINE_CHARS_MAX: usize = 110;

impl TomlSection {
    pub(crate) fn get(&self, key: &str) -> Option<&TomlItem> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, item)| item)
    }

    pub(crate) fn set(&mut self, key: &str, item: TomlItem) {
        match self.entries.iter_mut().find(|(name, _)| name == key) {
            Some((_, place)) => *place = item,
            None => self.entries.push((key.to_owned(), item)),
        }
    }

    pub(crate) fn set_text(&mut self, key: &str, text: impl Into<String>) {
        self.set(key, TomlItem::text(text));
    }

    /// Whether it is the route that refuses paths with a line feed.
    fn refuses_line_feeds(&self) -> bool {
        matches!(self.get("path"), Some(TomlItem::Text(path)) if path == LINE_FEED_PATTERN)
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<TomlItem> {
        let at = self.entries.iter().position(|(name, _)| name == key)?;
        Some(self.entries.remove(at).1)
    }

    /// Sets a key of the inline table `table`, which is created if necessary.
    pub(crate) fn set_in(&mut self, table: &str, key: &str, item: TomlItem) {
        if !matches!(self.get(table), Some(TomlItem::Table(_))) {
            self.set(table, TomlItem::Table(Vec::new()));
        }
        let Some((_, TomlItem::Table(entries))) = self.entries.iter_mut().find(|(name, _)| name == table)
        else {
            return;
        };
        match entries.iter_mut().find(|(name, _)| name == key) {
            Some((_, place)) => *place = item,
            None => entries.push((key.to_owned(), item)),
        }
    }

    /// Adds an item to the list `key` of the inline table `table`; both are created if necessary.
    pub(crate) fn push_in(&mut self, table: &str, key: &str, item: TomlItem) {
        let known = match self.get(table) {
            Some(TomlItem::Table(entries)) => entries.iter().find(|(name, _)| name == key),
            _ => None,
        };
        let mut items = match known {
            Some((_, TomlItem::List(items))) => items.clone(),
            _ => Vec::new(),
        };
        items.push(item);
        self.set_in(table, key, TomlItem::List(items));
    }

    /// Like [`TomlSection::set_in`], but keeps what the key has already: a table gets the entries of `item`, which replace
    /// those of the same name, and a list its items.
    pub(crate) fn merge_in(&mut self, table: &str, key: &str, item: TomlItem) {
        let known = match self.get(table) {
            Some(TomlItem::Table(entries)) => entries.iter().find(|(name, _)| name == key),
            _ => None,
        };
        let item = match (known.map(|(_, known)| known.clone()), item) {
            (Some(TomlItem::Table(mut all)), TomlItem::Table(more)) => {
                all.retain(|(name, _)| !more.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)));
                all.extend(more);
                TomlItem::Table(all)
            }
            (Some(TomlItem::List(mut all)), TomlItem::List(more)) => {
                let new: Vec<_> = more.into_iter().filter(|one| !all.contains(one)).collect();
                all.extend(new);
                TomlItem::List(all)
            }
            (_, item) => item,
        };
        self.set_in(table, key, item);
    }

    /// Removes the keys of the inline table `table` for which `keeps` returns false.
    pub(crate) fn retain_in(&mut self, table: &str, keeps: impl Fn(&str) -> bool) {
        if let Some((_, TomlItem::Table(entries))) = self.entries.iter_mut().find(|(name, _)| name == table) {
            entries.retain(|(key, _)| keeps(key));
        }
    }

    /// Adds conditions to `not`: the route does not match requests that meet all of them.
    pub(crate) fn exclude(&mut self, conditions: TomlItem) {
        let all = match self.remove("not") {
            None => conditions,
            Some(TomlItem::List(mut items)) => {
                items.push(conditions);
                TomlItem::List(items)
            }
            Some(one) => TomlItem::List(vec![one, conditions]),
        };
        self.set("not", all);
    }

    /// Adds a condition even if the route already has another one of this kind, by excluding requests that do
    /// not meet it.
    pub(crate) fn require(&mut self, directive: &str, item: TomlItem) {
        let condition = TomlItem::Table(vec![(directive.to_owned(), item)]);
        self.exclude(TomlItem::Table(vec![("not".to_owned(), condition)]));
    }

    /// Adds a comment unless the section has it already.
    pub(crate) fn comment(&mut self, text: impl Into<String>) {
        let text = text.into().replace(['\n', '\r'], " ");
        if !self.comments.contains(&text) {
            self.comments.push(text);
        }
    }

    /// Makes a route answer 403 because one of its conditions cannot be translated: requests that the
    /// original server refused must not be allowed.
    pub(crate) fn close(&mut self, check: String) {
        self.comment(check);
        self.comment(CLOSED_COMMENT);
        self.entries.retain(|(key, _)| CONDITIONS.contains(&key.as_str()));
        self.set("respond", TomlItem::Number(403));
    }

    /// Whether the route was closed by [`close`](Self::close).
    pub(crate) fn is_closed(&self) -> bool {
        self.comments.iter().any(|comment| comment == CLOSED_COMMENT)
    }

    fn write(&self, header: &str, path: &str, out: &mut String) {
        for comment in &self.comments {
            write_comment(comment, out);
        }
        if !header.is_empty() {
            let _ = writeln!(out, "{header}");
        }
        let mut long = Vec::new();
        let is_empty = |item: &TomlItem| matches!(item, TomlItem::Table(entries) if entries.is_empty());
        for (key, item) in self.entries.iter().filter(|(_, item)| !is_empty(item)) {
            let mut line = String::new();
            write_key(key, &mut line);
            let name = line.clone();
            line.push_str(" = ");
            item.write(&mut line);
            match item {
                TomlItem::Table(entries) if line.chars().count() > LINE_CHARS_MAX => {
                    long.push((name, entries))
                }
                TomlItem::List(items) if line.chars().count() > LINE_CHARS_MAX => {
                    write_list(&name, items, out)
                }
                _ => {
                    let _ = writeln!(out, "{line}");
                }
            }
        }
        for (name, entries) in long {
            let path = if path.is_empty() { name } else { format!("{path}.{name}") };
            out.push('\n');
            let section = TomlSection { comments: Vec::new(), entries: entries.clone() };
            section.write(&format!("[{path}]"), &path, out);
        }
    }
}

fn write_list(name: &str, items: &[TomlItem], out: &mut String) {
    let _ = writeln!(out, "{name} = [");
    for item in items {
        let _ = writeln!(out, "    {},", item.to_toml());
    }
    out.push_str("]\n");
}

/// Writes a comment in lines of at most `COLUMNS` characters. Control characters, which TOML forbids in
/// comments and which the quoted source may contain, are replaced.
fn write_comment(text: &str, out: &mut String) {
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > LINE_CHARS_MAX && line.len() > 1 {
            let _ = writeln!(out, "{line}");
            line = String::from("#");
        }
        line.push(' ');
        line.extend(word.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }));
    }
    let _ = writeln!(out, "{line}");
}

/// A site with its routes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SiteDraft {
    pub(crate) section: TomlSection,
    pub(crate) routes: Vec<TomlSection>,
}

/// Directives that have the same meaning in a route and in its site.
const SITE_DIRECTIVES: [&str; 9] =
    ["response_headers", "compress", "cache", "limits", "timeouts", "limit", "auth", "allow", "deny"];
/// Directives that have the same meaning in a site and at the top level.
const TOP_DIRECTIVES: [&str; 5] = ["response_headers", "compress", "limits", "error_pages", "logs"];

/// Whether a route only rewrites the path and leaves the response to another route.
pub(crate) fn only_rewrites(route: &TomlSection) -> bool {
    const ACTIONS: [&str; 7] = ["files", "proxy", "php", "app", "redirect", "respond", "cgi"];
    route.get("rewrite").is_some() && ACTIONS.iter().all(|action| route.get(action).is_none())
}

/// Directives that are conditions of routes.
pub(crate) const CONDITIONS: [&str; 10] =
    ["path", "host", "method", "query", "header", "repeated", "referer", "client", "country", "not"];

/// The items of a list, or the single item.
fn list_items(item: Option<&TomlItem>) -> &[TomlItem] {
    match item {
        None => &[],
        Some(TomlItem::List(items)) => items,
        Some(one) => std::slice::from_ref(one),
    }
}

/// Whether `one` matches every request that `other` matches. May return false negatives.
pub(crate) fn route_covers(one: &TomlSection, other: &TomlSection) -> bool {
    let has_path = |path: &TomlItem| {
        list_items(one.get("path")).iter().any(|own| {
            let text = |item: &TomlItem| item.as_text().unwrap_or_default().to_owned();
            let start = text(own).strip_suffix('*').map(str::to_owned);
            let start = start.filter(|start| start.starts_with('/') && !start.contains('*'));
            own == path || start.is_some_and(|start| text(path).starts_with(&start))
        })
    };
    let paths = list_items(other.get("path"));
    let has_paths = one.get("path").is_none() || !paths.is_empty() && paths.iter().all(has_path);
    has_paths
        && CONDITIONS.iter().all(|condition| match *condition {
            "path" => true,
            "not" => {
                list_items(one.get("not")).iter().all(|item| list_items(other.get("not")).contains(item))
            }
            name => one.get(name).is_none() || one.get(name) == other.get(name),
        })
}

/// Routes among which those that cover another one are found by its path: a site may have thousands.
#[derive(Default)]
struct EarlierRoutes {
    /// Routes for every path.
    everywhere: Vec<usize>,
    by_path: HashMap<String, Vec<usize>>,
}

impl EarlierRoutes {
    /// Adds the route at this place.
    fn add(&mut self, at: usize, route: &TomlSection) {
        let paths = list_items(route.get("path"));
        if paths.is_empty() {
            self.everywhere.push(at);
        }
        for path in paths.iter().filter_map(|path| path.as_text()) {
            self.by_path.entry(path.to_owned()).or_default().push(at);
        }
    }

    /// Whether one of these routes, which are among `routes`, covers a route: see [`route_covers`].
    fn cover(&self, routes: &[TomlSection], route: &TomlSection) -> bool {
        let is_by = |at: &usize| route_covers(&routes[*at], route);
        if self.everywhere.iter().any(is_by) {
            return true;
        }
        let paths = list_items(route.get("path"));
        let Some(path) = paths.first().and_then(|path| path.as_text()) else { return false };
        let starts = path.char_indices().map(|(end, _)| format!("{}*", &path[..end]));
        let all = starts.chain([path.to_owned(), format!("{path}*")]);
        all.filter_map(|one| self.by_path.get(&one)).flatten().any(is_by)
    }
}

impl SiteDraft {
    /// Removes routes that are never reached because an earlier route matches all of their requests. Those
    /// behind a closed route are kept, as comments.
    fn remove_unreachable_routes(&mut self) {
        let mut before = EarlierRoutes::default();
        let mut routes = Vec::new();
        for route in std::mem::take(&mut self.routes) {
            if !before.cover(&routes, &route) {
                if !only_rewrites(&route) && !route.is_closed() {
                    before.add(routes.len(), &route);
                }
                routes.push(route);
            }
        }
        self.routes = routes;
    }

    /// Refuses all requests of a site whose access check cannot be translated.
    pub(crate) fn close(&mut self, check: String) {
        if let Some(first) =
            self.routes.first_mut().filter(|route| route.is_closed() && route.entries.len() == 1)
        {
            first.comments.insert(0, check);
            return;
        }
        let mut route = TomlSection::default();
        route.close(check);
        self.routes.insert(0, route);
    }

    /// Moves directives that all routes of the site share to the site.
    pub(crate) fn hoist_shared(&mut self) {
        self.remove_unreachable_routes();
        if self.section.get("error_pages").is_none() {
            // `intercept_errors` has no effect without `error_pages`.
            self.routes.iter_mut().for_each(|route| drop(route.remove("intercept_errors")));
        }
        for key in SITE_DIRECTIVES {
            // These directives have no effect on redirects, rewrites and refusals, so such routes may inherit
            // them.
            let is_without = |route: &TomlSection| {
                // Its paths are refused with and without them.
                if route.refuses_line_feeds() {
                    return true;
                }
                matches!(key, "compress" | "cache" | "limits" | "timeouts")
                    && (route.get("redirect").is_some() || only_rewrites(route) || route.is_closed())
                    && route.get(key).is_none()
            };
            let mut values =
                self.routes.iter().filter(|route| !is_without(route)).map(|route| route.get(key));
            let Some(first) = values.next().flatten().cloned() else { continue };
            let is_shared = values.all(|value| value == Some(&first));
            if is_shared && self.section.get(key).is_none() {
                self.routes.iter_mut().for_each(|route| {
                    route.remove(key);
                });
                self.section.set(key, first);
            }
        }
    }
}

/// A complete configuration.
#[derive(Debug, Default)]
pub(crate) struct ConfigDraft {
    pub(crate) top: TomlSection,
    /// Tables and their paths, such as `upstreams.app`.
    pub(crate) tables: Vec<(String, TomlSection)>,
    pub(crate) sites: Vec<SiteDraft>,
    pub(crate) streams: Vec<TomlSection>,
}

impl ConfigDraft {
    /// Returns the table at this path, which is created if necessary.
    pub(crate) fn table(&mut self, path: &str) -> &mut TomlSection {
        let at = match self.tables.iter().position(|(name, _)| name == path) {
            Some(at) => at,
            None => {
                self.tables.push((path.to_owned(), TomlSection::default()));
                self.tables.len() - 1
            }
        };
        &mut self.tables[at].1
    }

    /// Moves directives that all sites share to the top level.
    pub(crate) fn hoist_shared(&mut self) {
        self.sites.iter_mut().for_each(SiteDraft::hoist_shared);
        for key in TOP_DIRECTIVES {
            let Some(first) = self.sites.first().and_then(|site| site.section.get(key)).cloned() else {
                continue;
            };
            if self.sites.iter().all(|site| site.section.get(key) == Some(&first)) {
                self.sites.iter_mut().for_each(|site| {
                    site.section.remove(key);
                });
                match first {
                    // The top level may have entries that sites cannot have.
                    TomlItem::Table(entries) => {
                        entries.into_iter().for_each(|(name, item)| self.top.set_in(key, &name, item));
                    }
                    first => self.top.set(key, first),
                }
            }
        }
    }

    /// Moves header fields that several routes set to a snippet.
    pub(crate) fn move_fields_to_snippets(&mut self) {
        const FIELDS: &str = "response_headers";
        let mut counts: HashMap<String, usize> = HashMap::new();
        let routes = self.sites.iter().flat_map(|site| &site.routes);
        for fields in routes.filter_map(|route| route.get(FIELDS)) {
            *counts.entry(fields.to_toml()).or_default() += 1;
        }
        counts.retain(|shown, count| *count >= SHARED_ROUTES_MIN && shown.len() >= SHARED_LENGTH_MIN);
        let mut shared: Vec<(String, TomlItem)> = Vec::new();
        let mut names: HashMap<String, String> = HashMap::new();
        for route in self.sites.iter_mut().flat_map(|site| &mut site.routes) {
            let Some(fields) =
                route.get(FIELDS).cloned().filter(|fields| counts.contains_key(&fields.to_toml()))
            else {
                continue;
            };
            let name = names.entry(fields.to_toml()).or_insert_with(|| {
                let name = if shared.is_empty() {
                    "fields".to_owned()
                } else {
                    format!("fields-{}", shared.len() + 1)
                };
                shared.push((name.clone(), fields));
                name
            });
            route.remove(FIELDS);
            route.set_text("use", name.clone());
        }
        for (name, fields) in shared {
            self.table(&table_path("snippet", &name)).set(FIELDS, fields);
        }
    }

    /// Returns the text of the configuration file.
    pub(crate) fn to_toml(&self) -> String {
        let mut out = String::new();
        self.top.write("", "", &mut out);
        for (path, section) in &self.tables {
            out.push('\n');
            section.write(&format!("[{path}]"), path, &mut out);
        }
        for site in &self.sites {
            out.push('\n');
            site.section.write("[[site]]", "site", &mut out);
            let mut closed = EarlierRoutes::default();
            for (at, route) in site.routes.iter().enumerate() {
                out.push('\n');
                let is_behind = closed.cover(&site.routes, route);
                if route.is_closed() {
                    closed.add(at, route);
                }
                if is_behind {
                    // The route is never reached; it is kept as a comment because it is to replace the closed
                    // route.
                    let mut text = String::new();
                    route.write("[[site.route]]", "site.route", &mut text);
                    out.push_str("# Not reached, because the route above is closed:\n");
                    for line in text.lines() {
                        let _ = writeln!(out, "# {}", line.trim_start_matches("# "));
                    }
                } else {
                    route.write("[[site.route]]", "site.route", &mut out);
                }
            }
        }
        for stream in &self.streams {
            out.push('\n');
            stream.write("[[stream]]", "stream", &mut out);
        }
        out
    }
}

/// The path of a table, with its last key quoted if necessary.
pub(crate) fn table_path(first: &str, name: &str) -> String {
    let mut out = format!("{first}.");
    write_key(name, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced_in_comments() {
        let mut out = String::new();
        write_comment("a\u{7f}b \u{1b}[2J\rc", &mut out);
        assert_eq!(out, "# a\u{fffd}b \u{fffd}[2J c\n");
    }
}

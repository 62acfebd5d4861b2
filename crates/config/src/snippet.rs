//! Directives that sites and routes share: each `[snippet.NAME]` is joined to the tables that name it in `use`, before they are read.

use serde_json::json;
use settings::checker::{Checker, SnippetSpans, shorten};
use settings::node::{Entry, Node, NodeData};
use settings::report::TextSpan;
use settings::shape::{OneOrMore, Shape, ShapeKind, TableReference, Text};
use settings::spelling::nearest_name;

/// Keys and values that all uses of snippets together may add to a configuration.
const ADDED_ENTRIES_MAX: usize = 200_000;
/// Uses that an error in a snippet names.
const USES_SHOWN_MAX: usize = 3;

/// `use` of a site or route.
pub(crate) const USE: OneOrMore<Text<String>> =
    OneOrMore(Text { what: "the name of a `[snippet.NAME]`", parse: |text| Ok(text.to_owned()) });

/// The snippets, by name.
pub(crate) struct Snippets;

impl Shape for Snippets {
    type Out = Vec<String>;

    fn kind(&self) -> ShapeKind {
        let schema = json!({ "type": "object", "additionalProperties": { "type": "object" } });
        ShapeKind::new("a table from names to tables with directives of sites or routes", schema)
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Vec<String>> {
        let NodeData::Table(entries) = &node.data else {
            check.report_type_mismatch(node, &self.kind().text);
            return None;
        };
        for Entry { key, key_span: key_at, value } in entries {
            if !matches!(value.data, NodeData::Table(_)) {
                check
                    .report_type_mismatch(value, "a table")
                    .help(format!("write `[snippet.{}]`", shorten(key)));
            }
            if let Some(entry) = value.entry("use") {
                let title = format!("`use` in `[snippet.{}]`", shorten(key));
                let finding = check.error(&entry.key_span, title, "a snippet cannot use another one");
                finding.help("name both in the `use` of the site or route");
            }
            let is_used = check.snippets.iter().any(|known| known.name == *key && !known.uses.is_empty());
            if !is_used {
                let title = format!("nobody uses `[snippet.{}]`", shorten(key));
                let finding = check.warning(key_at, title, "its directives are not read");
                finding.help(format!("write `use = \"{}\"` in a site or a route", shorten(key)));
            }
        }
        Some(entries.iter().map(|entry| entry.key.clone()).collect())
    }
}

/// The directives of a site or a route.
pub(crate) type LevelTable = fn() -> TableReference;

/// Joins to each site and route the snippets that it names.
pub(crate) fn apply_snippets(document: &mut Node, check: &mut Checker, [site, route]: [LevelTable; 2]) {
    let snippets = match document.entry("snippet").map(|entry| &entry.value.data) {
        Some(NodeData::Table(entries)) => entries.clone(),
        _ => Vec::new(),
    };
    check.snippets = snippets
        .iter()
        .map(|entry| {
            let mut places = Vec::new();
            collect_spans(&entry.value, &mut places);
            SnippetSpans { name: entry.key.clone(), spans: places, uses: Vec::new() }
        })
        .collect();
    let mut left = ADDED_ENTRIES_MAX;
    let NodeData::Table(entries) = &mut document.data else { return };
    for entry in entries.iter_mut().filter(|entry| matches!(entry.key.as_str(), "site" | "route")) {
        let NodeData::List(tables) = &mut entry.value.data else { continue };
        let level = if entry.key == "site" { site } else { route };
        for table in tables {
            apply_to_table(table, level, &snippets, &mut left, check);
            if entry.key != "site" {
                continue;
            }
            let NodeData::Table(own) = &mut table.data else { continue };
            for routes in own.iter_mut().filter(|own| own.key == "route") {
                let NodeData::List(routes) = &mut routes.value.data else { continue };
                for own in routes {
                    apply_to_table(own, route, &snippets, &mut left, check);
                }
            }
        }
    }
}

/// Collects the places of a table's keys and values.
fn collect_spans(node: &Node, places: &mut Vec<TextSpan>) {
    places.push(node.span.clone());
    match &node.data {
        NodeData::Table(entries) => {
            for entry in entries {
                places.push(entry.key_span.clone());
                collect_spans(&entry.value, places);
            }
        }
        NodeData::List(items) => items.iter().for_each(|item| collect_spans(item, places)),
        _ => {}
    }
}

/// Joins to one table the snippets that it names.
fn apply_to_table(
    table: &mut Node,
    level: LevelTable,
    snippets: &[Entry],
    left: &mut usize,
    check: &mut Checker,
) {
    let Some(entry) = table.entry("use") else { return };
    let items = match table.items("use") {
        [] => std::slice::from_ref(&entry.value),
        items => items,
    };
    let named: Vec<(String, TextSpan)> = items
        .iter()
        .filter_map(|item| match &item.data {
            NodeData::Text(name) => Some((name.clone(), item.span.clone())),
            _ => None,
        })
        .collect();
    let mut joined: Vec<Entry> = Vec::new();
    for (index, (name, at)) in named.iter().enumerate() {
        if let Some((_, first)) = named[..index].iter().find(|(other, _)| other == name) {
            let title = format!("`use` names `{}` twice", shorten(name));
            check.error(at, title, "named again here").related(first.clone(), "first named here");
            continue;
        }
        let Some(position) = snippets.iter().position(|snippet| snippet.key == *name) else {
            let label = match nearest_name(name, snippets.iter().map(|snippet| snippet.key.as_str())) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "no such snippet".to_owned(),
            };
            let finding = check.error(at, format!("there is no `[snippet.{}]`", shorten(name)), label);
            finding
                .help(format!("add the table `[snippet.{}]`, or remove the name from `use`", shorten(name)));
            continue;
        };
        check.snippets[position].uses.push(at.clone());
        match left.checked_sub(check.snippets[position].spans.len()) {
            Some(rest) => *left = rest,
            None => {
                let title = format!("the uses of snippets add more than {ADDED_ENTRIES_MAX} keys and values");
                check.error(at, title, "one too many");
                return;
            }
        }
        let NodeData::Table(shared) = &snippets[position].value.data else { continue };
        let shared = shared.iter().filter(|entry| entry.key != "use").cloned().collect();
        merge_entries(
            &mut joined,
            shared,
            &mut Place::new(level),
            &mut Duplicates::Report { used_at: at, check },
        );
    }
    if let NodeData::Table(own) = &mut table.data {
        merge_entries(own, joined, &mut Place::new(level), &mut Duplicates::PreferOwn);
    }
}

/// A table within a site or route.
struct Place {
    level: LevelTable,
    keys: Vec<String>,
}

impl Place {
    fn new(level: LevelTable) -> Place {
        Place { level, keys: Vec::new() }
    }

    /// Returns the name of a directive in this table.
    fn directive(&self, key: &str) -> String {
        self.keys.iter().map(String::as_str).chain([key]).collect::<Vec<_>>().join(".")
    }

    /// Returns the table for which a single value of the directive `key` is short: `proxy = "URL"` is `proxy.to = "URL"`.
    fn expand(&self, key: &str, value: &Node) -> Option<Node> {
        // Where `true` and `false` are values, a variable of the environment may be one.
        if matches!(&value.data, NodeData::Text(text) if text.parse::<bool>().is_ok()) {
            return None;
        }
        let mut table = (self.level)();
        for key in &self.keys {
            let directive = table.directives.iter().find(|directive| directive.name == key)?;
            table = directive.kind.chapters.first()?();
        }
        let directive = table.directives.iter().find(|directive| directive.name == key)?;
        let key = directive.kind.short_form?.key_of(&value.data)?.to_owned();
        let entry = Entry { key, key_span: value.span.clone(), value: value.clone() };
        Some(Node { span: value.span.clone(), data: NodeData::Table(vec![entry]) })
    }
}

/// Handling of a directive that is set in both tables.
enum Duplicates<'d, 'c> {
    /// The value of the site or route takes precedence.
    PreferOwn,
    /// Two snippets that are used together set the directive: an error is reported.
    Report { used_at: &'d TextSpan, check: &'d mut Checker<'c> },
}

/// Merges directives into a table: tables are joined key by key, also where one of them is written in short; lists of
/// tables are concatenated.
fn merge_entries(
    own: &mut Vec<Entry>,
    more: Vec<Entry>,
    place: &mut Place,
    doubles: &mut Duplicates<'_, '_>,
) {
    for mut entry in more {
        let Some(known) = own.iter_mut().find(|known| known.key == entry.key) else {
            own.push(entry);
            continue;
        };
        // Exclusions are alternatives: joined key by key, all conditions of both would have to be met.
        if entry.key == "not" {
            let mut all = into_items(known.value.clone());
            all.extend(into_items(entry.value));
            known.value.data = NodeData::List(all);
            continue;
        }
        match (&known.value.data, &entry.value.data) {
            (NodeData::Table(_), NodeData::Table(_)) => {}
            (NodeData::Table(_), _) => {
                entry.value = place.expand(&entry.key, &entry.value).unwrap_or(entry.value);
            }
            (_, NodeData::Table(_)) => {
                known.value = place.expand(&entry.key, &known.value).unwrap_or(known.value.clone());
            }
            _ => {}
        }
        match (&mut known.value.data, entry.value.data) {
            (NodeData::Table(known), NodeData::Table(more)) => {
                place.keys.push(entry.key);
                merge_entries(known, more, place, doubles);
                place.keys.pop();
            }
            (NodeData::List(known), NodeData::List(more)) if is_table_list(known) && is_table_list(&more) => {
                known.extend(more);
            }
            _ => doubles.report(&place.directive(&entry.key), &entry.key_span, &known.key_span),
        }
    }
}

/// Returns the items of a list, or a single value in its place.
fn into_items(node: Node) -> Vec<Node> {
    match node.data {
        NodeData::List(items) => items,
        _ => vec![node],
    }
}

impl Duplicates<'_, '_> {
    fn report(&mut self, directive: &str, second: &TextSpan, first: &TextSpan) {
        let Duplicates::Report { used_at, check } = self else { return };
        let title = format!("`{}` is given in two snippets that are used together", shorten(directive));
        let finding = check.error(used_at, title, "used here");
        finding.related(first.clone(), "given here").related(second.clone(), "and given here");
        finding.help("leave it out of one of them, or name only one in `use`");
    }
}

fn is_table_list(items: &[Node]) -> bool {
    !items.is_empty() && items.iter().all(|item| matches!(item.data, NodeData::Table(_)))
}

/// Removes repeated findings, and adds to each finding within a snippet the places where the snippet is used.
pub(crate) fn relate_findings_to_uses(check: &mut Checker) {
    let snippets = std::mem::take(&mut check.snippets);
    if snippets.iter().all(|snippet| snippet.uses.is_empty()) {
        return;
    }
    check.report.remove_repeated();
    for finding in check.report.findings_mut() {
        let is_inside = |place: &TextSpan| place.start <= finding.span.start && finding.span.end <= place.end;
        let Some(snippet) = snippets.iter().find(|snippet| snippet.spans.iter().any(is_inside)) else {
            continue;
        };
        for at in snippet.uses.iter().take(USES_SHOWN_MAX) {
            finding.related(at.clone(), "used here");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use std::path::Path;
    use std::time::Duration;

    fn read(text: &str) -> Result<Config, String> {
        let read = Config::parse(text, "komainu.toml", Path::new("/base"));
        read.map(|(config, _)| config).map_err(|report| report.render(false))
    }

    fn faults(text: &str) -> String {
        read(text).map(|_| ()).unwrap_err()
    }

    const SHARED: &str = "[snippet.slow]\ntimeouts = { body = \"5s\", write = \"9s\" }\nlimit = \"5/m\"\n\
        [snippet.headers.response_headers.set]\nX-A = \"1\"\n";

    #[test]
    fn a_route_has_the_directives_of_its_snippets() {
        let config = read(&format!(
            "{SHARED}[[route]]\nuse = [\"slow\", \"headers\"]\nrespond = \"ok\"\ntimeouts.write = \"7s\"\n\
             response_headers = {{ set = {{ X-B = \"2\" }} }}\n\
             [[route]]\nuse = \"slow\"\npath = \"/b\"\nlimit = \"9/m\"\nrespond = \"ok\"\n"
        ));
        let config = config.unwrap();
        let [first, second] = &config.sites[0].routes[..] else { panic!("two routes") };
        assert_eq!(first.timeouts.body, Some(Duration::from_secs(5)));
        // The route's own value takes precedence.
        assert_eq!(first.timeouts.write, Some(Duration::from_secs(7)));
        assert_eq!(first.limit[0].rate().count, 5);
        assert_eq!(first.response_headers.set.len(), 2);
        assert_eq!((second.limit.len(), second.limit[0].rate().count), (1, 9));
        assert_eq!(second.timeouts.write, Some(Duration::from_secs(9)));
    }

    #[test]
    fn tables_of_snippets_are_joined_to_values_in_short() {
        let shared = "[snippet.slow.proxy]\nqueue = 3\n";
        let config = read(&format!(
            "{shared}[[route]]\nuse = \"slow\"\npath = \"/a\"\nproxy = \"http://a.test\"\n\
             [snippet.short]\nproxy = \"http://b.test\"\n\
             [[route]]\nuse = [\"slow\", \"short\"]\npath = \"/b\"\n\
             [[route]]\nuse = \"short\"\nproxy = {{ queue = 2, to = \"http://c.test\" }}\n"
        ));
        let config = config.unwrap();
        let proxied = |at: usize| {
            let route = &config.sites[0].routes[at];
            let proxy =
                std::iter::once(&route.action).chain(&route.otherwise).find_map(|action| match action {
                    crate::Action::Proxy(proxy) => Some(proxy),
                    _ => None,
                });
            let proxy = proxy.unwrap();
            (proxy.queue_max, proxy.to.len())
        };
        assert_eq!(proxied(0), (3, 1));
        assert_eq!(proxied(1), (3, 1));
        assert_eq!(proxied(2), (2, 1));
    }

    #[test]
    fn a_site_has_the_directives_and_routes_of_its_snippets() {
        let config = read(
            "[snippet.probe]\ndeny = \"10.0.0.0/8\"\n[[snippet.probe.route]]\npath = \"/health\"\nrespond = \"fine\"\n\
             [[site]]\nhosts = \"a.test\"\nuse = \"probe\"\n[[site.route]]\npath = \"/\"\nrespond = \"a\"\n\
             [[site]]\nhosts = \"b.test\"\nuse = \"probe\"\n",
        );
        let config = config.unwrap();
        assert_eq!(config.sites.iter().map(|site| site.routes.len()).collect::<Vec<_>>(), [2, 1]);
        assert!(config.sites.iter().all(|site| site.deny.len() == 1));
    }

    #[test]
    fn snippet_errors_name_the_snippet_and_its_uses() {
        let text = faults(
            "[snippet.a]\nlimit = \"often\"\n[[route]]\nuse = \"a\"\npath = \"/1\"\nrespond = \"ok\"\n\
             [[route]]\nuse = \"a\"\nrespond = \"ok\"\n",
        );
        assert_eq!(text.matches("error:").count(), 1, "{text}");
        assert!(text.contains("limit = \"often\"") && text.contains("this is not a rate"), "{text}");
        assert_eq!(text.matches("used here").count(), 2, "{text}");
        let text = faults("[snippet.a]\nlimits = 5\nunknown = 1\n[[route]]\nuse = \"a\"\nrespond = \"ok\"\n");
        assert_eq!((text.matches("error:").count(), text.matches("used here").count()), (2, 2), "{text}");
    }

    #[test]
    fn invalid_snippet_names_are_reported() {
        let text = faults("[snippet.slow]\nlimit = \"1/s\"\n[[route]]\nuse = \"slwo\"\nrespond = \"ok\"\n");
        assert!(
            text.contains("there is no `[snippet.slwo]`") && text.contains("did you mean `slow`?"),
            "{text}"
        );
        let text =
            faults("[snippet.a]\nlimit = \"1/s\"\n[[route]]\nuse = [\"a\", \"a\"]\nrespond = \"ok\"\n");
        assert!(text.contains("names `a` twice"), "{text}");
        let text = faults("[snippet.a]\nuse = \"b\"\n[[route]]\nuse = \"a\"\nrespond = \"ok\"\n");
        assert!(text.contains("a snippet cannot use another one"), "{text}");
        let text = faults("[snippet]\na = 5\n[[route]]\nuse = \"a\"\nrespond = \"ok\"\n");
        assert!(text.contains("write `[snippet.a]`"), "{text}");
    }

    #[test]
    fn directive_given_in_two_snippets_is_an_error() {
        let text = faults(
            "[snippet.a]\ntimeouts.body = \"1s\"\n[snippet.b]\ntimeouts = { body = \"2s\", write = \"3s\" }\n\
             [[route]]\nuse = [\"a\", \"b\"]\nrespond = \"ok\"\n",
        );
        assert!(text.contains("`timeouts.body` is given in two snippets"), "{text}");
        assert!(text.contains("given here") && text.contains("and given here"), "{text}");
    }

    #[test]
    fn unused_snippet_is_warned_about() {
        let (_, report) = Config::parse("[snippet.a]\nx = 1\n", "k", Path::new("/")).unwrap();
        assert!(report.render(false).contains("nobody uses `[snippet.a]`"), "{}", report.render(false));
    }

    #[test]
    fn expansion_of_snippets_is_limited() {
        let keys: String = (0..1000).map(|at| format!("x{at} = 1\n")).collect();
        let routes = "[[route]]\nuse = \"a\"\nrespond = \"ok\"\n".repeat(300);
        let text = faults(&format!("[snippet.a.response_headers.set]\n{keys}{routes}"));
        assert!(text.contains("add more than"), "{text}");
    }
}

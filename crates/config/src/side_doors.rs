//! Warnings of guards beside which the same content is served: another method, an index page, an earlier route, another
//! path to the same files, another site.

use settings::checker::{Checker, shorten};
use settings::node::{Entry, Node, NodeData, as_text, for_each_text, is_enabled};
use shapes::pattern::PathPattern;

use crate::guards::{
    bypasses_guard, find_guard, find_handler, first_unconditional, matches_path, next_unguarded, only_method,
};
use crate::redirect_loops::has_conditions;

/// Maximum number of routes of a site that are compared with each other, so that long configurations are checked quickly.
const COMPARED_ROUTES_MAX: usize = 300;

/// Looks through the routes of a site, unless they are very many. `php_apps` are the applications that run scripts of PHP.
pub(crate) fn warn_of_side_doors(routes: &[Node], php_apps: &[&str], check: &mut Checker) {
    if routes.len() > COMPARED_ROUTES_MAX {
        return;
    }
    for (index, route) in routes.iter().enumerate() {
        let later = &routes[index + 1..];
        let Some(guard) = find_guard(route) else {
            warn_of_undecided_conditions(route, later, check);
            continue;
        };
        if has_conditions(route) {
            warn_of_unguarded_reading(route, guard, later, check);
            continue;
        }
        for path in route.one_or_more("path") {
            let Some(name) = as_text(path).filter(|name| name.starts_with(['/', '*']) && name.len() > 1)
            else {
                continue;
            };
            warn_of_unguarded_index(route, (path, name), guard, (routes, php_apps), check);
            if let Some(start) = name.strip_suffix('*') {
                let start = start.trim_end_matches('*');
                warn_of_earlier_suffixes(route, path, start, guard, &routes[..index], check);
                warn_of_same_files(route, path, start, guard, routes, check);
            }
        }
    }
}

/// Warns if changes of files are guarded, which are only read, and reading goes to another route.
fn warn_of_unguarded_reading(route: &Node, guard: &str, later: &[Node], check: &mut Checker) {
    let Some(method) = only_method(route) else { return };
    let reads = |item: &Node| {
        as_text(item).is_none_or(|name| matches!(name, "GET" | "HEAD") || name.starts_with('!'))
    };
    let is_for_files = find_handler(route).is_some_and(|handler| handler.key == "files");
    if !is_for_files || route.one_or_more("method").iter().any(reads) {
        return;
    }
    let Some(next) = next_unguarded(route, later) else { return };
    let title = format!("`{guard}` does not apply to `GET` and `HEAD`");
    let finding =
        check.warning(&method.key_span, title, "files are only read, and other methods are answered 405");
    finding.related(next.span.clone(), "this route sends the files").help("remove `method`");
}

/// Warns if a guarded path is that of an index page, and its folder goes to another route, which sends the page.
fn warn_of_unguarded_index(
    route: &Node,
    (path, name): (&Node, &str),
    guard: &str,
    (routes, php_apps): (&[Node], &[&str]),
    check: &mut Checker,
) {
    let Ok(pattern) = PathPattern::parse(name) else { return };
    let start = name.split('*').next().unwrap_or_default();
    let folder = start.rfind('/').map_or("/", |end| &start[..=end]);
    let Some(next) = first_unconditional(routes, |other| matches_path(other, folder)) else { return };
    if std::ptr::eq(next, route) || !bypasses_guard(route, next) {
        return;
    }
    let is_page = |page: &&str| pattern.matches(format!("{folder}{page}").as_bytes());
    let Some(page) = index_pages(next, php_apps).into_iter().find(is_page) else { return };
    let title = format!("the path `{}` does not match the folder `{}`", shorten(name), shorten(folder));
    let label = format!("`{guard}` does not apply to its index, `{page}`");
    let finding = check.warning(&path.span, title, label);
    finding.related(next.span.clone(), "this route answers the folder with it");
    finding.help(format!("add the folder: `path = [\"{}\", \"{}\"]`", shorten(name), shorten(folder)));
}

/// Returns the names of index pages that a route with `files` sends, or with `php` or an application of PHP runs, for folders.
fn index_pages<'n>(route: &'n Node, php_apps: &[&str]) -> Vec<&'n str> {
    let app = route.entry("app").map(|app| app.value.entry("name").map_or(&app.value, |name| &name.value));
    let is_php_app = app.and_then(as_text).is_some_and(|name| php_apps.contains(&name));
    let runs_scripts = is_php_app || route.entry("php").is_some();
    match route.entry("files") {
        Some(files) if files.value.entry("index").is_some() => {
            files.value.one_or_more("index").iter().filter_map(as_text).collect()
        }
        _ if runs_scripts => vec!["index.php", "index.html"],
        Some(_) => vec!["index.html"],
        None => Vec::new(),
    }
}

/// Returns the names of applications that run scripts of PHP.
pub(crate) fn php_apps(node: &Node) -> Vec<&str> {
    let Some(NodeData::Table(apps)) = node.entry("apps").map(|apps| &apps.value.data) else {
        return Vec::new();
    };
    apps.iter().filter(|app| app.value.entry("php").is_some()).map(|app| app.key.as_str()).collect()
}

/// Warns if everything below `start` is guarded, and an earlier route answers the paths with some ending, such as
/// `*.txt`.
fn warn_of_earlier_suffixes(
    route: &Node,
    path: &Node,
    start: &str,
    guard: &str,
    before: &[Node],
    check: &mut Checker,
) {
    let is_ending = |item: &Node| {
        let ending =
            as_text(item).filter(|text| text.starts_with('*')).map(|text| text.trim_start_matches('*'));
        ending.is_some_and(|ending| !ending.is_empty() && !ending.contains('*'))
    };
    for other in before.iter().filter(|other| !has_conditions(other) && bypasses_guard(route, other)) {
        let Some(ending) = other.one_or_more("path").iter().find(|item| is_ending(item)) else { continue };
        let shown = shorten(as_text(ending).unwrap_or_default());
        let title = format!("`{guard}` does not apply to `{shown}` below `{}`", shorten(start));
        let finding = check.warning(&path.span, title, "the first route that matches answers");
        finding.related(ending.span.clone(), "this one matches first");
        finding.help("put this route before the other");
    }
}

/// Warns if everything below `start` is guarded, and another route sends the same files: below another prefix, from a
/// folder around them, or as its `fallback` or `try`.
fn warn_of_same_files(
    route: &Node,
    path: &Node,
    start: &str,
    guard: &str,
    routes: &[Node],
    check: &mut Checker,
) {
    let sender = match find_handler(route) {
        Some(_) => Some(route),
        None => routes.iter().find(|other| !std::ptr::eq(*other, route) && matches_path(other, start)),
    };
    let Some(places) = sender.and_then(|sender| Some(served_places(sender, sender.entry("files")?, start)))
    else {
        return;
    };
    for other in routes.iter().filter(|other| !std::ptr::eq(*other, route) && find_guard(other).is_none()) {
        let Some(files) = other.entry("files") else { continue };
        for root in roots(files) {
            let reached =
                places.iter().filter_map(|place| place.strip_prefix(root.as_str())?.strip_prefix('/'));
            let prefix = removed_prefix(other, files);
            let is_around = !prefix.is_empty() && start.starts_with(prefix);
            let reached = reached.filter(|_| !is_around).map(|below| format!("{prefix}/{below}"));
            let is_open = |reached: &String| {
                let answers = first_unconditional(routes, |one| matches_path(one, reached));
                reached != start
                    && !reached.starts_with(start)
                    && answers.is_some_and(|one| std::ptr::eq(one, other))
            };
            if let Some(reached) = reached.into_iter().find(is_open) {
                let title =
                    format!("the files of `{}` are also those of `{}`", shorten(start), shorten(&reached));
                let finding =
                    check.warning(&path.span, title, format!("`{guard}` does not apply to that path"));
                finding.related(files.value.span.clone(), "this route sends them");
                let (start, reached) = (shorten(start), shorten(&reached));
                finding.help(format!("add the path: `path = [\"{start}*\", \"{reached}*\"]`"));
            }
            let named = |text: &&str| {
                let file = format!("{root}{}", text.split('$').next().unwrap_or_default());
                places.iter().any(|place| format!("{file}/").starts_with(place.as_str()))
            };
            let keys = ["fallback", "try"].into_iter();
            let texts = keys.flat_map(|key| files.value.one_or_more(key)).filter_map(as_text);
            if let Some(text) = texts.into_iter().find(named) {
                let title = format!("`{}` is among the files of `{}`", shorten(text), shorten(start));
                let label = format!("`{guard}` does not apply to paths that lead to it");
                let finding = check.warning(&path.span, title, label);
                finding.related(files.value.span.clone(), "this route sends it");
                finding.help("name a file outside of the guarded folder");
            }
        }
    }
}

/// Returns the folders of a route's files, without a slash at the end.
fn roots(files: &Entry) -> Vec<String> {
    let mut found = Vec::new();
    for_each_text(&files.value, "root", &mut |key, text, _| {
        if key == "root" {
            found.push(text.trim_end_matches('/').to_owned());
        }
    });
    found
}

/// Returns the prefix that a route removes from paths, without a slash at the end.
fn removed_prefix<'n>(route: &'n Node, files: &'n Entry) -> &'n str {
    let Some(prefix) = files.value.entry("strip_prefix") else { return "" };
    let of_path =
        || route.one_or_more("path").iter().filter_map(as_text).find_map(|path| path.strip_suffix("/*"));
    let text = as_text(&prefix.value);
    text.or_else(|| of_path().filter(|_| is_enabled(&prefix.value))).unwrap_or_default().trim_end_matches('/')
}

/// Returns where the files of paths below `start` are.
fn served_places(route: &Node, files: &Entry, start: &str) -> Vec<String> {
    let Some(below) = start.strip_prefix(removed_prefix(route, files)) else { return Vec::new() };
    roots(files).into_iter().map(|root| format!("{root}{below}")).collect()
}

/// Warns of a condition after which the next route does the same for all other requests.
fn warn_of_undecided_conditions(route: &Node, later: &[Node], check: &mut Checker) {
    const CONDITIONS: [&str; 6] = ["client", "header", "country", "query", "repeated", "referer"];
    let Some(condition) = CONDITIONS.iter().find_map(|key| route.entry(key)) else { return };
    let Some(next) = next_unguarded(route, later).filter(|_| find_handler(route).is_some()) else { return };
    let settings = |node: &Node| {
        let NodeData::Table(entries) = &node.data else { return NodeData::Table(Vec::new()) };
        let is_kept = |entry: &&Entry| entry.key != "path" && !CONDITIONS.contains(&entry.key.as_str());
        NodeData::Table(entries.iter().filter(is_kept).cloned().collect())
    };
    if is_same_data(&settings(route), &settings(next)) {
        let title = format!("`{}` decides nothing", condition.key);
        let finding = check.warning(&condition.key_span, title, "all other requests get the same answer");
        finding.related(next.span.clone(), "by this route");
        finding.help("refuse the others: a route with the same `path` and `respond = 403` behind this one");
    }
}

/// Whether two values are equal, wherever they are written.
fn is_same_data(one: &NodeData, other: &NodeData) -> bool {
    match (one, other) {
        (NodeData::List(one), NodeData::List(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| is_same_data(&a.data, &b.data))
        }
        (NodeData::Table(one), NodeData::Table(other)) => {
            let has_same = |entry: &Entry| {
                other.iter().any(|b| b.key == entry.key && is_same_data(&b.value.data, &entry.value.data))
            };
            one.len() == other.len() && one.iter().all(has_same)
        }
        (NodeData::Text(one), NodeData::Text(other)) => one == other,
        (NodeData::Integer(one), NodeData::Integer(other)) => one == other,
        (NodeData::Flag(one), NodeData::Flag(other)) => one == other,
        _ => false,
    }
}

/// Warns of sites that are guarded as a whole, if the site for all other hosts answers the same without a guard.
pub(crate) fn warn_of_unguarded_sites(node: &Node, check: &mut Checker) {
    let guard = |site: &Node| {
        ["allow", "auth"]
            .into_iter()
            .find(|key| site.entry(key).is_some_and(|entry| is_enabled(&entry.value)))
    };
    let sites = node.items("site");
    let default = sites.iter().find(|site| site.entry("hosts").is_none());
    let (routes, is_guarded) = match default {
        Some(site) => (site.items("route"), guard(site).is_some()),
        None => (node.items("route"), false),
    };
    if is_guarded {
        return;
    }
    for site in sites.iter().filter(|site| site.entry("hosts").is_some() && site.entry("listen").is_none()) {
        let Some(key) = guard(site) else { continue };
        let same = site.items("route").iter().find_map(|route| {
            find_handler(route)?;
            routes.iter().find(|other| !has_conditions(other) && bypasses_guard(route, other))
        });
        if let (Some(same), Some(entry)) = (same, site.entry(key)) {
            let title = format!("`{key}` of this site does not apply to other hosts");
            let finding = check.warning(&entry.key_span, title, "clients may ask for any host");
            finding.related(same.span.clone(), "this route answers the same to them");
            finding.help("guard that route too, or let the site without `hosts` refuse: `respond = 404`");
        }
    }
}

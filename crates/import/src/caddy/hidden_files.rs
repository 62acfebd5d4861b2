//! Translation of `hide` of a file server: routes that answer 404 before the route of the files.

use super::changed_path::ChangedPath;
use super::reader::{CaddyReader, CaddySettings};
use crate::conditions::close_route;
use crate::data::DataNode;
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::{escape_literal, path_matches};
use crate::findings::Untranslatable;

/// Comment above the routes.
const COMMENT: &str = "Files that `hide` of Caddy's file server names.";
/// Default index names of Caddy's file server.
const DEFAULT_INDEX_NAMES: [&str; 2] = ["index.html", "index.txt"];

/// An entry of `hide`, as an expression.
enum HiddenFile {
    /// Name of a file or directory at any depth.
    Name(String),
    /// Path of a file or directory, from the start of the request path.
    Path(String),
}

/// Treatment of requests for hidden files.
pub(super) enum HiddenFilesOutcome {
    /// The file server hides no files.
    Nothing,
    /// A route that precedes the route of the files.
    Route(TomlSection),
    /// Hidden files cannot be expressed, so the route of the files is closed.
    Closed(TomlSection),
}

impl CaddyReader<'_> {
    /// Returns the route for hidden files; `section` has the conditions of the route of the files.
    pub(super) fn hidden_files_route(
        &self,
        handler: &DataNode,
        settings: &CaddySettings,
        section: &TomlSection,
    ) -> HiddenFilesOutcome {
        let Some(hide) = handler.get("hide") else { return HiddenFilesOutcome::Nothing };
        let root = handler.get("root").and_then(DataNode::text).or(settings.root.as_deref()).unwrap_or(".");
        let strip = settings.strip_prefix.as_deref().unwrap_or("").trim_end_matches('/');
        let names =
            handler.get("index_names").map_or(DEFAULT_INDEX_NAMES.map(str::to_owned).into(), DataNode::texts);
        let found = parse_hidden_files(&hide.texts(), root, strip).and_then(|mut files| {
            if settings.php.is_some() {
                // Caddy runs scripts although they are hidden; Komainu never sends their source.
                files.retain(|file| !matches!(file, HiddenFile::Name(name) if name.ends_with("\\.php")));
            }
            check_reachable_files(&files, &names, &settings.try_files)?;
            check_changed_path(&files, settings)?;
            hidden_path_patterns(&files, section.get("path"))
        });
        let mut route = section.clone();
        route.comments.clear();
        route.entries.retain(|(key, _)| !matches!(key.as_str(), "path" | "rewrite"));
        match found {
            Ok(paths) if paths.is_empty() => {
                hide.mark_not_needed(self.ledger, "not needed: none of these files is below the root");
                HiddenFilesOutcome::Nothing
            }
            Ok(paths) => {
                match handler.get("browse") {
                    Some(_) => {
                        hide.mark_different(self.ledger, "listings (`listing`) have the names of these files")
                    }
                    None => hide.mark_translated(self.ledger),
                }
                route.comment(COMMENT);
                route.entries.insert(0, ("path".to_owned(), TomlItem::text_or_list(paths)));
                route.set("respond", TomlItem::Number(404));
                HiddenFilesOutcome::Route(route)
            }
            Err(reason) => {
                let what = "the route of the files is closed (403) until a route with `respond = 404` for what is hidden stands before it";
                hide.mark_impossible(self.ledger, &format!("{reason}: {what}"));
                if let Some(path) = section.get("path") {
                    route.entries.insert(0, ("path".to_owned(), path.clone()));
                }
                close_route(
                    &mut route,
                    self.ledger.check_comment(hide.line, &format!("`hide`: {reason}: {what}")),
                );
                HiddenFilesOutcome::Closed(route)
            }
        }
    }
}

/// Parses the entries of `hide`. An entry with a slash is a path in the file system, any other a name.
fn parse_hidden_files(words: &[String], root: &str, strip: &str) -> Result<Vec<HiddenFile>, Untranslatable> {
    let mut found = Vec::new();
    let relative = |path: &str| path.trim_start_matches("./").trim_end_matches('/').to_owned();
    let root = relative(root);
    for word in words {
        if word.contains(['{', '\\']) {
            return Err(format!("`{word}` depends on the request").into());
        }
        let path = relative(word);
        let is_path = word.contains('/');
        if is_path && (path == root || root.starts_with(&format!("{path}/"))) {
            return Err(format!("`{word}` hides the root").into());
        }
        let is_same_kind = path.starts_with('/') == root.starts_with('/');
        let below = path.strip_prefix(root.as_str()).filter(|rest| rest.starts_with('/') && is_same_kind);
        match below {
            Some(rest) if is_path => {
                found.push(HiddenFile::Path(format!("{}{}", escape_literal(strip), glob_to_regex(rest)?)));
            }
            _ if is_path && path.starts_with('/') && root.starts_with('/') && !path.contains(['*', '?']) => {}
            // The location below the root depends on Caddy's working directory, so hide the name at any
            // depth.
            _ => found.push(HiddenFile::Name(glob_to_regex(path.rsplit('/').next().unwrap_or(&path))?)),
        }
    }
    Ok(found)
}

/// Converts a glob to an expression.
fn glob_to_regex(text: &str) -> Result<String, Untranslatable> {
    if text.contains(['[', ']']) {
        return Err(format!("`{text}` has a set of characters").into());
    }
    Ok(escape_literal(text).replace("\\*", "[^/]*").replace("\\?", "[^/]"))
}

/// Whether `name` does not match any hidden name.
fn is_not_hidden(files: &[HiddenFile], name: &str) -> bool {
    files.iter().all(|file| match file {
        HiddenFile::Name(name_of) => !path_matches(&format!("~ ^{name_of}$"), name),
        HiddenFile::Path(_) => true,
    })
}

/// Checks that the client's path shows which file is requested.
fn check_changed_path(files: &[HiddenFile], settings: &CaddySettings) -> Result<(), Untranslatable> {
    let has_paths = files.iter().any(|file| matches!(file, HiddenFile::Path(_)));
    let tries_other = |tried: &String| tried.contains('$') && !tried.starts_with("$path");
    let is_unclear = match &settings.path {
        ChangedPath::Same | ChangedPath::Stripped { .. } | ChangedPath::Tried(_) => false,
        ChangedPath::Prefixed(_) => has_paths,
        ChangedPath::Fixed(path) => {
            !is_not_hidden(files, path.rsplit('/').next().unwrap_or(path)) || has_paths
        }
        ChangedPath::Unknown => settings.section.get("rewrite").is_some(),
    };
    if is_unclear || has_paths && settings.try_files.iter().any(tries_other) {
        return Err("the path is changed before files are found".into());
    }
    Ok(())
}

/// Checks that no file which requests reach indirectly is hidden: an index page, or a file of `try_files`.
fn check_reachable_files(
    files: &[HiddenFile],
    index: &[String],
    tries: &[String],
) -> Result<(), Untranslatable> {
    if let Some(name) = index.iter().find(|name| !is_not_hidden(files, name)) {
        return Err(format!("`{name}` is hidden, and answers for folders").into());
    }
    let is_literal = |file: &HiddenFile| matches!(file, HiddenFile::Name(name) if !name.contains('['));
    for tried in tries.iter().filter(|tried| *tried != "$path") {
        let behind = tried.strip_prefix("$path").filter(|rest| !rest.starts_with('/'));
        let may_be_hidden = |file: &&HiddenFile| match file {
            HiddenFile::Name(name) if is_literal(file) => {
                behind.is_some_and(|end| name.ends_with(&escape_literal(end)))
            }
            _ => behind.is_some(),
        };
        let last = tried.rsplit('/').next().unwrap_or(tried);
        let is_hidden = !last.contains('$') && !is_not_hidden(files, last);
        if is_hidden || files.iter().any(|file| may_be_hidden(&file)) {
            return Err(format!("`try_files` may name a hidden file (`{tried}`)").into());
        }
    }
    Ok(())
}

/// Returns the paths of hidden files among those of the route of the files.
fn hidden_path_patterns(
    files: &[HiddenFile],
    around: Option<&TomlItem>,
) -> Result<Vec<String>, Untranslatable> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    let mut own = Vec::new();
    for file in files {
        match file {
            HiddenFile::Name(name) => names.push(name.as_str()),
            HiddenFile::Path(path) => own.push(path.as_str()),
        }
    }
    let at = |path: &&str| format!("~ ^{path}(?:/|$)");
    let any = match names.as_slice() {
        [one] => (*one).to_owned(),
        several => format!("(?:{})", several.join("|")),
    };
    let everywhere = format!("~ /{any}(?:/|$)");
    let around = match around {
        None => {
            let names = (!names.is_empty()).then_some(everywhere);
            return Ok(names.into_iter().chain(own.iter().map(at)).collect());
        }
        Some(TomlItem::List(items)) => items.clone(),
        Some(one) => vec![one.clone()],
    };
    let mut found = Vec::new();
    for pattern in &around {
        let TomlItem::Text(pattern) = pattern else { continue };
        let prefix = pattern.strip_suffix('*').unwrap_or(pattern);
        let end = pattern.strip_prefix('*').filter(|end| !end.is_empty() && !end.contains(['*', '/']));
        if let (Some(end), true) = (end, own.is_empty()) {
            found.extend(hidden_paths_ending(end, &names, &any)?);
            continue;
        }
        if pattern.starts_with('~') && own.is_empty() && names.iter().all(|name| !name.contains('[')) {
            found.push(everywhere.clone());
            continue;
        }
        if !prefix.starts_with('/') || prefix.contains('*') {
            return Err(format!("the paths `{pattern}` and those that are hidden cannot be joined").into());
        }
        if prefix == pattern {
            let is_own = |path: &&str| path_matches(&at(path), pattern);
            if !names.is_empty() && path_matches(&everywhere, pattern) || own.iter().any(is_own) {
                found.push(pattern.clone());
            }
            continue;
        }
        found.extend(hidden_paths_below(prefix, &names, &any)?);
        for path in &own {
            let start = escape_literal(prefix);
            let above = path.split_once('[').map_or(format!("{path}/"), |(head, _)| head.to_owned());
            match (path.starts_with(&start), start.starts_with(&above)) {
                (true, _) => found.push(at(path)),
                (false, true) => {
                    return Err(format!("the paths `{pattern}` are within a hidden folder").into());
                }
                (false, false) => {}
            }
        }
    }
    Ok(found)
}

/// Returns the paths that begin with `prefix` and have a hidden name.
fn hidden_paths_below(prefix: &str, names: &[&str], any: &str) -> Result<Option<String>, Untranslatable> {
    if names.is_empty() {
        return Ok(None);
    }
    let start = escape_literal(prefix);
    let within = path_matches(&format!("~ /{any}/"), prefix);
    if within {
        return Err(format!("the paths `{prefix}*` are within a hidden folder").into());
    }
    if prefix.ends_with('/') {
        return Ok(Some(format!("~ ^{start}(?:.*/)?{any}(?:/|$)")));
    }
    // The last name of the prefix may continue as a hidden one.
    let last = escape_literal(prefix.rsplit('/').next().unwrap_or(""));
    let may_continue = |name: &&str| {
        let head = name.split('[').next().unwrap_or(name);
        head.starts_with(&last) || last.starts_with(head)
    };
    if names.iter().any(may_continue) {
        Err(format!("the paths `{prefix}*` and those that are hidden cannot be joined").into())
    } else {
        Ok(Some(format!("~ ^{start}.*/{any}(?:/|$)")))
    }
}

/// Returns the paths that end with a text and have a hidden name.
fn hidden_paths_ending(end: &str, names: &[&str], any: &str) -> Result<Vec<String>, Untranslatable> {
    let text = end;
    let end = escape_literal(end);
    let mut found = Vec::new();
    if !names.is_empty() {
        found.push(format!("~ /{any}/.*{end}$"));
    }
    for name in names {
        let tail = name.rsplit(['*', ']']).next().unwrap_or(name);
        match (tail.ends_with(&end), end.ends_with(tail) && tail.len() < name.len()) {
            (true, _) => found.push(format!("~ /{name}$")),
            (false, true) => {
                return Err(format!("the paths `*{text}` and those that are hidden cannot be joined").into());
            }
            (false, false) => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden_path_texts(words: &[&str], around: Option<&str>) -> String {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let item = around.map(TomlItem::text);
        let found = parse_hidden_files(&words, "/srv/www", "")
            .and_then(|files| hidden_path_patterns(&files, item.as_ref()));
        match found {
            Ok(paths) => paths.join(" "),
            Err(reason) => format!("! {reason}"),
        }
    }

    #[test]
    fn hidden_files_are_translated_to_paths() {
        for (words, around, expected) in [
            (&["./Caddyfile"][..], None, "~ /Caddyfile(?:/|$)"),
            (&["*.zip", "secret"], None, r"~ /(?:[^/]*\.zip|secret)(?:/|$)"),
            (&["*.zip"], Some("/files/*"), r"~ ^/files/(?:.*/)?[^/]*\.zip(?:/|$)"),
            (&["/srv/www/a/b", "/etc/x"], None, "~ ^/a/b(?:/|$)"),
            (&["/srv/www/a/b"], Some("/c/*"), ""),
            (&["/srv/www/a"], Some("/a/b/*"), "! the paths `/a/b/*` are within a hidden folder"),
            (&["secret"], Some("/static*"), "~ ^/static.*/secret(?:/|$)"),
            (
                &["*.zip"],
                Some("/static*"),
                "! the paths `/static*` and those that are hidden cannot be joined",
            ),
            (&["./Caddyfile"], Some("*.css"), r"~ /Caddyfile/.*\.css$"),
            (&["b*.css"], Some("*.css"), r"~ /b[^/]*\.css/.*\.css$ ~ /b[^/]*\.css$"),
            (&["secret*"], Some("*.css"), r"! the paths `*.css` and those that are hidden cannot be joined"),
            (&["secret"], Some("~ ^/[a-z]+$"), "~ /secret(?:/|$)"),
            (&["/srv/www"], None, "! `/srv/www` hides the root"),
            (&["*.zip"], Some("/a.zip"), "/a.zip"),
            (&["*.zip"], Some("/a.txt"), ""),
            (&["a[bc]"], None, "! `a[bc]` has a set of characters"),
        ] {
            assert_eq!(hidden_path_texts(words, around), expected, "{words:?} {around:?}");
        }
        let pattern = hidden_path_texts(&["*.zip"], Some("/files/*"));
        for (path, expected) in [
            ("/files/a.zip", true),
            ("/files/b/a.zip", true),
            ("/files/a.zip/b", true),
            ("/files/a.zipper", false),
            ("/a.zip", false),
        ] {
            assert_eq!(path_matches(&pattern, path), expected, "{path}");
        }
    }

    #[test]
    fn hidden_files_must_not_be_index_or_candidates() {
        let files = parse_hidden_files(&["*.html".to_owned()], "/srv/www", "").unwrap();
        let agree = |index: &str, tried: &str| {
            check_reachable_files(&files, &[index.to_owned()], &[tried.to_owned()])
        };
        assert!(agree("index.htm", "$path").is_ok());
        assert!(agree("index.html", "$path").is_err());
        assert!(agree("index.htm", "$path.html").is_err());
    }
}

//! Routes that rewrite the path, and the names of their regular expressions' captures.

use crate::action::Action;
use crate::variable_map::check_free_name;
use http::{Template, TemplatePart, Variable};
use settings::checker::{Checker, DefinedVariables, InvalidValue, shorten};
use settings::directive_table::{DirectiveTable, table};
use settings::node::{Entry, Node, NodeData};
use settings::shape::{Maybe, Shape, ShapeKind};
use shapes::pattern::PathPattern;
use shapes::template::{TemplateShape, parse_template};
use std::marker::PhantomData;

/// `rewrite` of a route.
pub(crate) const REWRITE: Maybe<TemplateShape> =
    Maybe(TemplateShape { what: "a path such as \"/new/$rest\"", parse: parse_target });

/// Directives that a route may have that does nothing but rewrite.
const CONDITION_DIRECTIVES: [&str; 12] = [
    "path", "host", "method", "query", "header", "repeated", "referer", "client", "country", "not", "use",
    "rewrite",
];

/// A path of this site, and perhaps a query.
fn parse_target(text: &str, defined_variables: &DefinedVariables) -> Result<Template, InvalidValue> {
    const VARIABLES: &[&str] =
        &["path", "rest", "query", "args", "uri", "host", "scheme", "method", "remote_addr", "country"];
    // As nginx and Apache have it: `^/a/(.*)$ /b/$1 last`, `/b [L]`.
    let is_flag =
        |word: &str| matches!(word, "last" | "break" | "redirect" | "permanent") || word.starts_with('[');
    if let Some((pattern, to)) =
        text.split_once(' ').filter(|(pattern, to)| pattern.starts_with('^') || is_flag(to))
    {
        let to = shorten(to.split(' ').next().unwrap_or_default());
        let remedy = if pattern.starts_with('/') {
            format!("write `rewrite = \"{}\"`: there are no flags here", shorten(pattern))
        } else {
            format!(
                "write `path = '~ {}'` and `rewrite = \"{to}\"`: there are no flags here",
                shorten(pattern)
            )
        };
        return Err(InvalidValue::new("this is more than the new path", remedy));
    }
    if let Some((at, wrong)) = text.char_indices().find(|(_, c)| !c.is_ascii_graphic() || *c == '#') {
        let fault = InvalidValue::new(format!("a path must not contain {wrong:?}"), "percent-encode it");
        return Err(fault.within(at..at + wrong.len_utf8()));
    }
    let template = parse_template(text, VARIABLES, defined_variables)?;
    let variable =
        matches!(template.parts().first(), Some(TemplatePart::Variable(Variable::Path | Variable::Uri)));
    if variable || template.literal_prefix().starts_with('/') {
        return Ok(template);
    }
    let remedy = if text.contains("://") {
        "for a URL, write `redirect`; for another server, `proxy`".to_owned()
    } else {
        format!("write \"/{text}\"")
    };
    Err(InvalidValue::new("this is not a path", remedy))
}

/// Shape of a route: templates in it may use the captures of its path.
pub(crate) struct RouteShape<R>(PhantomData<R>);

/// A table of routes.
pub(crate) fn route_table<R: DirectiveTable>() -> RouteShape<R> {
    RouteShape(PhantomData)
}

impl<R: DirectiveTable> Shape for RouteShape<R> {
    type Out = R;

    fn kind(&self) -> ShapeKind {
        table::<R>().kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<R> {
        let own = capture_names(node);
        let outside = std::mem::replace(&mut check.defined_variables.captures, own);
        let route = table::<R>().read(node, check);
        check.defined_variables.captures = outside;
        route
    }
}

/// Returns the names of the captures of a route's paths. Faults are reported when the paths are read.
fn capture_names(route: &Node) -> Vec<String> {
    let Some(entry) = route.entry("path") else { return Vec::new() };
    let mut names: Vec<String> = Vec::new();
    for item in items(entry) {
        let NodeData::Text(text) = &item.data else { continue };
        let Ok(pattern) = PathPattern::parse(text) else { continue };
        names.extend(pattern.groups());
    }
    names
}

fn items(entry: &Entry) -> &[Node] {
    match &entry.value.data {
        NodeData::List(items) => items,
        _ => std::slice::from_ref(&entry.value),
    }
}

/// Checks the captures and rewrites of a route; `prefix` is the part before `$rest`. Returns whether the
/// route has no action, so that the search begins again.
pub(crate) fn check_rewrite(
    paths: &[PathPattern],
    prefix: Option<&str>,
    rewrite: Option<&Template>,
    node: &Node,
    check: &mut Checker,
) -> bool {
    for name in paths.iter().flat_map(PathPattern::groups) {
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        let fault = match check_free_name(&name, &check.defined_variables) {
            _ if check.defined_variables.maps.contains(&name) => {
                InvalidValue::new(format!("`[maps.{name}]` has this name"), "take another one")
            }
            Err(fault) if !is_number => fault,
            _ => continue,
        };
        let Some(entry) = node.entry("path") else { continue };
        let title = format!("a group of `path` cannot have the name `{name}`");
        check.error(&entry.value.span, title, fault.message).help(fault.remedy);
    }
    let Some(entry) = node.entry("rewrite") else { return false };
    if rewrite.is_some_and(|to| to.uses(&Variable::Rest)) && prefix.is_none() {
        let title = "`$rest` without a single path that ends with `/*` and has no other `*`".to_owned();
        let finding = check.error(&entry.value.span, title, "there is no prefix to remove");
        finding.help("give the route a `path` such as \"/old/*\"");
    }
    let NodeData::Table(entries) = &node.data else { return false };
    if entries.iter().any(|entry| Action::ACTION_NAMES.contains(&entry.key.as_str())) {
        return false;
    }
    if let Some(other) = entries.iter().find(|entry| !CONDITION_DIRECTIVES.contains(&entry.key.as_str())) {
        let title = format!("`{}` in a route that only rewrites", other.key);
        let finding = check.error(&other.key_span, title, "another route answers");
        finding.help("write it in the route that answers, or give this route an action");
    }
    // One that could not be read is reported already.
    let Some(to) = rewrite else { return true };
    // The text before the first variable is below the prefix already.
    let is_below = |path: &PathPattern| {
        path.prefix().is_some_and(|prefix| to.literal_prefix().starts_with(&format!("{prefix}/")))
    };
    let covers = |path: &PathPattern| {
        to.as_literal().is_some_and(|to| path.matches(target_path(to).as_bytes())) || is_below(path)
    };
    // Exclusions by `not` are not evaluated.
    if node.entry("not").is_none() && (paths.is_empty() || paths.iter().any(covers)) {
        let title = "this route matches again what it rewrites".to_owned();
        let finding = check.warning(&entry.value.span, title, "after 10 rounds the answer is 500");
        finding.help("give the route an action, or a `path` that does not match the new one");
    }
    true
}

fn target_path(target: &str) -> &str {
    target.split('?').next().unwrap_or_default()
}

//! Conditions of routes, shared by the importers of several servers.

use crate::draft::{CONDITIONS, LINE_FEED_PATTERN, TomlItem, TomlSection};
use crate::expressions::{escape_literal, path_expression};
use crate::findings::Untranslatable;
use shapes::pattern::ValuePattern;

/// Pattern of a header field or parameter that is present and not empty.
const NOT_EMPTY: &str = "~ .";
/// Pattern of a value that is neither empty nor `0`, both of which are false in nginx.
const TRUE_VALUE: &str = "~ ^([^0]|0.)";

/// Conditions of a route, all of which have to be met by a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RouteCondition {
    /// Conditions as directives of the route, each at most once.
    directives: Vec<(String, TomlItem)>,
    /// Capture groups of the path expression: names in the original configuration and in Komainu's.
    pub(crate) groups: Vec<(String, String)>,
    /// Difference from the original condition, if there is one.
    pub(crate) difference: Option<&'static str>,
}

impl RouteCondition {
    pub(crate) fn new(directive: &str, item: TomlItem) -> Self {
        Self { directives: vec![(directive.to_owned(), item)], groups: Vec::new(), difference: None }
    }

    /// Creates a condition on a header field (`header`) or a parameter (`query`).
    pub(crate) fn on_value(directive: &str, name: &str, pattern: impl Into<String>) -> Self {
        Self::new(directive, TomlItem::Table(vec![(name.to_owned(), TomlItem::text(pattern))]))
    }

    pub(crate) fn with_groups(self, groups: Vec<(String, String)>) -> Self {
        Self { groups, ..self }
    }

    pub(crate) fn with_difference(self, differs: Option<&'static str>) -> Self {
        Self { difference: differs, ..self }
    }

    /// Returns the condition that none of these conditions is met.
    pub(crate) fn none_of(conditions: &[Self]) -> Self {
        let mut section = TomlSection::default();
        for one in conditions {
            match one.directives.as_slice() {
                [(not, TomlItem::Table(asks))] if not == "not" => add_conditions(&mut section, asks),
                asks => section.exclude(TomlItem::Table(asks.to_vec())),
            }
        }
        let differs = conditions.iter().find_map(|one| one.difference);
        Self { directives: section.entries, groups: Vec::new(), difference: differs }
    }

    /// Adds the condition that none of `others` is met.
    pub(crate) fn excluding(mut self, others: &[Self]) -> Self {
        let mut section = TomlSection { comments: Vec::new(), entries: self.directives };
        add_conditions(&mut section, &Self::none_of(others).directives);
        self.directives = section.entries;
        self
    }

    /// Adds the conditions to those of a route. If the condition has capture groups, its path becomes the
    /// route's `path`, and the route's own is required by `not`, so that the groups remain available.
    pub(crate) fn write(&self, section: &mut TomlSection) {
        let own = if self.groups.is_empty() { None } else { section.remove("path") };
        add_conditions(section, &self.directives);
        own.into_iter().for_each(|path| section.require("path", path));
    }

    /// Adds the names of header fields that the condition looks at, or only of those that it must not have.
    pub(crate) fn add_fields(&self, only_excluded: bool, names: &mut Vec<String>) {
        fn add(entries: &[(String, TomlItem)], counts: bool, names: &mut Vec<String>) {
            let mut insert = |name: &str| {
                if counts && !names.iter().any(|known| known == name) {
                    names.push(name.to_owned());
                }
            };
            for (directive, item) in entries {
                match (directive.as_str(), item) {
                    ("header", TomlItem::Table(fields)) => fields.iter().for_each(|(name, _)| insert(name)),
                    ("referer", _) => insert("Referer"),
                    _ => {}
                }
            }
            let not = entries.iter().filter(|(directive, _)| directive == "not");
            for (_, item) in not {
                let tables = match item {
                    TomlItem::List(items) => items.as_slice(),
                    one => std::slice::from_ref(one),
                };
                for table in tables {
                    if let TomlItem::Table(inner) = table {
                        add(inner, true, names);
                    }
                }
            }
        }
        add(&self.directives, !only_excluded, names);
    }

    /// Whether every request meets the condition.
    pub(crate) fn is_empty(&self) -> bool {
        self.directives.is_empty()
    }

    /// Whether the condition depends on the path, including excluded paths.
    pub(crate) fn depends_on_path(&self) -> bool {
        fn is_path_condition(item: &TomlItem) -> bool {
            match item {
                TomlItem::Table(entries) => {
                    entries.iter().any(|(key, item)| key == "path" || is_path_condition(item))
                }
                TomlItem::List(items) => items.iter().any(is_path_condition),
                _ => false,
            }
        }
        is_path_condition(&TomlItem::Table(self.directives.clone()))
    }

    /// The patterns of which the path has to match one; `None` if any path matches.
    pub(crate) fn paths(&self) -> Option<&TomlItem> {
        self.directives.iter().find(|(known, _)| known == "path").map(|(_, item)| item)
    }

    /// Whether both conditions are equal, regardless of their groups.
    pub(crate) fn has_same_directives(&self, other: &Self) -> bool {
        self.directives == other.directives
    }
}

/// Adds conditions to those that a route has.
pub(crate) fn add_conditions(section: &mut TomlSection, asks: &[(String, TomlItem)]) {
    for (directive, item) in asks {
        match (section.get(directive), item) {
            (_, TomlItem::Table(_)) if directive == "not" => section.exclude(item.clone()),
            (_, TomlItem::List(items)) if directive == "not" => {
                items.iter().for_each(|one| section.exclude(one.clone()));
            }
            (None, _) => section.set(directive, item.clone()),
            (Some(TomlItem::Table(known)), TomlItem::Table(names))
                if !names.iter().any(|(name, _)| known.iter().any(|(other, _)| other == name)) =>
            {
                names.iter().for_each(|(name, item)| section.set_in(directive, name, item.clone()));
            }
            (Some(known), _) if known == item => {}
            _ => section.require(directive, item.clone()),
        }
    }
    // Conditions come first in a route.
    section.entries.sort_by_key(|(directive, _)| match directive.as_str() {
        "path" => 0,
        "not" => 2,
        other if CONDITIONS.contains(&other) => 1,
        "rewrite" => 3,
        _ => 4,
    });
}

/// Returns the condition for exactly these methods. In routes GET implies HEAD, which is excluded unless it
/// is listed.
pub(crate) fn method_condition(methods: Vec<String>) -> RouteCondition {
    let has = |name: &str| methods.iter().any(|one| one == name);
    let is_without_head = has("GET") && !has("HEAD");
    let of = |names: Vec<String>| RouteCondition::new("method", TomlItem::text_or_list(names));
    if is_without_head { of(methods).excluding(&[of(vec!["HEAD".to_owned()])]) } else { of(methods) }
}

/// Returns a pattern that matches exactly `text`, regardless of case if `ignores_case` is set.
pub(crate) fn exact_value(text: &str, ignores_case: bool) -> String {
    let has_case = text.contains(|c: char| c.is_ascii_alphabetic());
    match (ignores_case && has_case, text.contains('*') || text.starts_with(['~', '!'])) {
        (true, _) => format!("~* ^{}$", escape_literal(text)),
        (false, true) => format!("~ ^{}$", escape_literal(text)),
        (false, false) => text.to_owned(),
    }
}

/// Returns one pattern that matches any of several texts, in which `*` stands for any run of characters.
///
/// # Errors
/// One of the texts is not a valid expression, or the combination is too large.
pub(crate) fn any_value(texts: &[String]) -> Result<String, Untranslatable> {
    let alternative = |text: &String| match text.strip_prefix('~') {
        Some(regex) => format!("(?:{})", regex.trim_start()),
        None => format!("^{}$", escape_literal(text).replace("\\*", ".*")),
    };
    let all: Vec<String> = texts.iter().map(alternative).collect();
    path_expression(&all.join("|"), false).map(|found| found.pattern)
}

/// Returns the conditions for the value of a header field or parameter, one of which has to be met. As in
/// nginx, an absent value is empty. `operator` is `=`, `~`, `~*`, or empty for a value that is neither empty
/// nor `0`.
///
/// # Errors
/// The reason why the expression cannot be a pattern.
pub(crate) fn compare_value(
    directive: &str,
    name: &str,
    operator: &str,
    value: &str,
) -> Result<Vec<RouteCondition>, Untranslatable> {
    let of = |pattern: &str| RouteCondition::on_value(directive, name, pattern);
    let is_empty = || RouteCondition::none_of(&[of(NOT_EMPTY)]);
    let pattern = match operator {
        "" => return Ok(vec![of(TRUE_VALUE)]),
        "=" if value.is_empty() => return Ok(vec![is_empty()]),
        "=" => exact_value(value, false),
        _ => path_expression(value, operator == "~*")?.pattern,
    };
    let matches_empty = ValuePattern::parse(&pattern).is_ok_and(|pattern| pattern.matches_bytes(b""));
    Ok(if matches_empty { vec![of(&pattern), is_empty()] } else { vec![of(&pattern)] })
}

/// Returns the condition for a cookie with this value, in which `*` stands for any run of characters.
pub(crate) fn exact_cookie_condition(name: &str, value: &str) -> RouteCondition {
    let value = escape_literal(value).replace("\\*", "[^;]*");
    RouteCondition::on_value("header", "Cookie", format!("~ (^|; *){}={value}(;|$)", escape_literal(name)))
}

/// Returns the condition for a cookie whose value, followed by the rest of the `Cookie` field, matches
/// `rest`. Like nginx, the pattern finds the name regardless of case, after a comma and before blanks.
pub(crate) fn cookie_regex_condition(name: &str, rest: &str) -> RouteCondition {
    RouteCondition::on_value(
        "header",
        "Cookie",
        format!("~ (^|[;,] *)(?i:{}) *= *{rest}", escape_literal(name)),
    )
}

/// Returns the conditions for a cookie, compared as in nginx, where an absent cookie is empty. The `Cookie`
/// field holds all cookies, so the pattern searches for the value within it. `operator` is `=`, `~`, `~*`, or
/// empty for a value that is neither empty nor `0`.
///
/// # Errors
/// The expression cannot be converted to a pattern of the whole field.
pub(crate) fn compare_cookie(
    name: &str,
    operator: &str,
    value: &str,
) -> Result<Vec<RouteCondition>, Untranslatable> {
    let of = |rest: &str| cookie_regex_condition(name, rest);
    let is_any = matches!(value, "." | ".+" | "^." | "^.+" | "^.+$" | "(.+)" | "^(.+)$");
    Ok(match operator {
        "" => vec![of("([^0;]|0[^;])")],
        "=" if value.is_empty() => vec![RouteCondition::none_of(&[of("[^;]")])],
        "=" => vec![of(&format!("{}(;|$)", escape_literal(value)))],
        "~" | "~*" if is_any => vec![of("[^;]")],
        "~" | "~*" if value == "^$" => vec![RouteCondition::none_of(&[of("[^;]")])],
        _ => return Err("a route compares a cookie with no expression".into()),
    })
}

/// A route that refuses paths with a line feed: `$` in expressions of other servers matches before one at the end, so that a
/// route behind the guarded one could answer.
pub(crate) fn refuse_line_feeds() -> TomlSection {
    let mut section = TomlSection::default();
    section.comment("Expressions of nginx treat a line feed in another way.");
    section.set_text("path", LINE_FEED_PATTERN);
    section.set("respond", TomlItem::Number(404));
    section
}

/// Makes a route answer 403 because its condition cannot be translated: requests that the original server
/// refused must not be allowed.
pub(crate) fn close_route(section: &mut TomlSection, check: String) {
    section.close(check);
}

/// Whether a route was closed by [`close_route`].
pub(crate) fn is_closed(section: &TomlSection) -> bool {
    section.is_closed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_toml_lines(conditions: &[RouteCondition]) -> Vec<String> {
        let text = |one: &RouteCondition| {
            let mut section = TomlSection::default();
            one.write(&mut section);
            section
                .entries
                .iter()
                .map(|(key, item)| format!("{key} = {}", item.to_toml()))
                .collect::<Vec<_>>()
                .join("; ")
        };
        conditions.iter().map(text).collect()
    }

    fn values(operator: &str, value: &str) -> Vec<RouteCondition> {
        compare_value("header", "X", operator, value).unwrap()
    }

    #[test]
    fn value_conditions_and_negations_are_translated() {
        for (operator, value, meets, fails) in [
            ("=", "a", "header = { X = \"a\" }", "not = { header = { X = \"a\" } }"),
            ("=", "a*", r"header = { X = '~ ^a\*$' }", r"not = { header = { X = '~ ^a\*$' } }"),
            ("=", "", "not = { header = { X = \"~ .\" } }", "header = { X = \"~ .\" }"),
            (
                "~*",
                "wget|curl",
                "header = { X = \"~* wget|curl\" }",
                "not = { header = { X = \"~* wget|curl\" } }",
            ),
            ("", "", "header = { X = \"~ ^([^0]|0.)\" }", "not = { header = { X = \"~ ^([^0]|0.)\" } }"),
        ] {
            let found = values(operator, value);
            assert_eq!(to_toml_lines(&found), [meets]);
            assert_eq!(to_toml_lines(&[RouteCondition::none_of(&found)]), [fails]);
        }
        let found = values("~", "^$|bot");
        assert_eq!(
            to_toml_lines(&found),
            ["header = { X = \"~ ^$|bot\" }", "not = { header = { X = \"~ .\" } }"]
        );
        let neither = RouteCondition::none_of(&found);
        assert_eq!(
            to_toml_lines(&[neither]),
            ["header = { X = \"~ .\" }; not = { header = { X = \"~ ^$|bot\" } }"]
        );
        assert!(compare_value("header", "X", "~", "(?=a)").is_err());
    }

    #[test]
    fn cookie_conditions_match_within_the_cookie_field() {
        for (operator, value, meets) in [
            ("=", "", "not = { header = { Cookie = \"~ (^|[;,] *)(?i:a) *= *[^;]\" } }"),
            ("=", "b*", r"header = { Cookie = '~ (^|[;,] *)(?i:a) *= *b\*(;|$)' }"),
            ("", "", "header = { Cookie = \"~ (^|[;,] *)(?i:a) *= *([^0;]|0[^;])\" }"),
            ("~", "^.+$", "header = { Cookie = \"~ (^|[;,] *)(?i:a) *= *[^;]\" }"),
        ] {
            assert_eq!(to_toml_lines(&compare_cookie("a", operator, value).unwrap()), [meets]);
        }
        assert!(compare_cookie("a", "~", "^[0-9]$").is_err());
    }

    #[test]
    fn conditions_of_one_route_are_combined() {
        let method = RouteCondition::new("method", TomlItem::text("GET"));
        let client = RouteCondition::new("client", TomlItem::text("192.0.2.0/24"));
        let both = method.clone().excluding(&[client.clone(), values("=", "a").remove(0)]);
        assert_eq!(
            to_toml_lines(&[both]),
            ["method = \"GET\"; not = [{ client = \"192.0.2.0/24\" }, { header = { X = \"a\" } }]"]
        );
        let mut section = TomlSection::default();
        section.set_text("method", "POST");
        client.write(&mut section);
        values("=", "a").remove(0).write(&mut section);
        RouteCondition::on_value("header", "Y", "b").write(&mut section);
        assert!(matches!(section.get("header"), Some(TomlItem::Table(names)) if names.len() == 2));
        method.write(&mut section);
        values("=", "c").remove(0).write(&mut section);
        let not = section.get("not").map(TomlItem::to_toml);
        let expected = "[{ not = { method = \"GET\" } }, { not = { header = { X = \"c\" } } }]";
        assert_eq!(not.as_deref(), Some(expected));
    }
}

//! Texts with variables, and the checks of them.

use http::template::{TemplateError, TemplateFault};
use http::{Template, Variable};
use other_servers::Ours;
use serde_json::json;
use settings::checker::{Checker, DefinedVariables, InvalidValue, shorten};
use settings::node::{Node, NodeData};
use settings::shape::{Shape, ShapeKind};
use settings::spelling::nearest_name;

/// Remedy for a directive that needs `[geo]` when it is missing.
pub const GEO_REMEDY: &str = "say where countries come from: `[geo]` and `database = \"/usr/share/GeoIP/GeoLite2-Country.mmdb\"` below it";

/// Shape of a text with variables, some of which the configuration may define.
pub struct TemplateShape {
    /// Description of the value, such as "a header value".
    pub what: &'static str,
    /// Parses the text; the second argument names the variables that the configuration defines.
    pub parse: fn(&str, &DefinedVariables) -> Result<Template, InvalidValue>,
}

impl Shape for TemplateShape {
    type Out = Template;

    fn kind(&self) -> ShapeKind {
        ShapeKind::new(self.what, json!({ "type": "string" }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Template> {
        let NodeData::Text(text) = &node.data else {
            check.report_type_mismatch(node, self.what);
            return None;
        };
        (self.parse)(text, &check.defined_variables)
            .map_err(|fault| check.report_fault(&node.span, text, fault))
            .ok()
    }
}

/// Parses a text in which `$name` or `${name}` is a variable and `$$` a dollar sign. `names` are the
/// permitted variables of [`http::Variable::names`]; `defined_variables` are those that the configuration defines.
pub fn parse_template(
    text: &str,
    names: &[&str],
    defined_variables: &DefinedVariables,
) -> Result<Template, InvalidValue> {
    let is_allowed = |variable: &Variable| is_allowed(variable, names, defined_variables);
    Template::parse_with(text, is_allowed, |name| defined_variables.names().any(|known| known == name))
        .map_err(|TemplateError { at, fault }| explain_fault(fault, names, defined_variables).within(at))
}

/// The same for the content of a response, which may have several lines.
pub fn parse_content_template(
    text: &str,
    names: &[&str],
    defined_variables: &DefinedVariables,
) -> Result<Template, InvalidValue> {
    let is_allowed = |variable: &Variable| is_allowed(variable, names, defined_variables);
    Template::parse_content(text, is_allowed, |name| defined_variables.names().any(|known| known == name))
        .map_err(|TemplateError { at, fault }| explain_fault(fault, names, defined_variables).within(at))
}

fn is_allowed(variable: &Variable, names: &[&str], defined_variables: &DefinedVariables) -> bool {
    names.contains(&variable.canonical_name())
        && (defined_variables.has_geo || *variable != Variable::Country)
}

fn explain_fault(
    fault: TemplateFault<'_>,
    names: &[&str],
    defined_variables: &DefinedVariables,
) -> InvalidValue {
    match fault {
        TemplateFault::Unclosed => {
            InvalidValue::new("the `}` is missing", "a variable is `$name` or `${name}`")
        }
        TemplateFault::MissingName => {
            InvalidValue::new("a variable's name is missing", "write `$$` for a dollar sign")
        }
        TemplateFault::Control => InvalidValue::new("a control character", "remove it"),
        TemplateFault::Unknown("country") if names.contains(&"country") && !defined_variables.has_geo => {
            InvalidValue::new("`$country` needs `[geo]`", GEO_REMEDY)
        }
        TemplateFault::Unknown(name) => {
            if let Some(remedy) = variable_hint(name, names) {
                return InvalidValue::new(format!("there is no `${}` here", shorten(name)), remedy);
            }
            let all = || defined_variables.names().chain(names.iter().copied());
            let message = match nearest_name(name, all()) {
                Some(near) if !is_number(name) => format!("did you mean `${near}`?"),
                _ => format!("there is no `${}` here", shorten(name)),
            };
            if is_number(name) && defined_variables.captures.is_empty() {
                let remedy = "a route whose `path` is a regular expression with a group has it: `path = \"~ ^/user/([0-9]+)$\"`";
                return InvalidValue::new(message, remedy);
            }
            if name == "uri" && names.contains(&"path") {
                return InvalidValue::new(message, "nginx's `$uri`, the path alone, is `$path` here");
            }
            let mut listed: Vec<&str> = Vec::new();
            all().for_each(|name| {
                if !listed.contains(&name) {
                    listed.push(name);
                }
            });
            let list: Vec<String> = listed.iter().map(|name| format!("`${name}`")).collect();
            let remedy = format!("variables here: {}; `$$` is a dollar sign", list.join(", "));
            InvalidValue::new(message, remedy)
        }
    }
}

fn is_number(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the equivalent of an nginx variable, if its parts are among `names`.
fn variable_hint(name: &str, names: &[&str]) -> Option<String> {
    let (_, directive) = other_servers::find(&[&other_servers::NGINX], &format!("${name}")).next()?;
    match directive.ours {
        Ours::Here(here) => {
            let here = here.trim_matches('`');
            let has_all =
                here.split(' ').all(|one| one.strip_prefix('$').is_some_and(|one| names.contains(&one)));
            has_all.then(|| format!("nginx's `${name}` is `{here}` here"))
        }
        Ours::NotNeeded(reason) | Ours::NotThere(reason) => {
            Some(format!("there is nothing like nginx's `${name}`: {reason}"))
        }
    }
}

/// Returns the target of nginx's `rewrite` as a target of ours. nginx appends the query of the request to that of the target, unless the
/// target ends with `?`, which is left out. A target without a query keeps that of the request in both; here, `?` at the end empties it.
pub fn nginx_target(target: &str) -> String {
    match target.strip_suffix('?') {
        Some(text) if text.contains('?') => text.to_owned(),
        None if target.contains('?') => format!("{target}&$args"),
        _ => target.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_targets_are_those_of_nginx() {
        for (target, ours) in
            [("/x", "/x"), ("/x?", "/x?"), ("/x?a=1", "/x?a=1&$args"), ("/x?a=1?", "/x?a=1"), ("/x??", "/x?")]
        {
            assert_eq!(nginx_target(target), ours);
        }
    }

    #[test]
    fn faults_point_at_the_variable() {
        let captures = vec!["1".into(), "id".into()];
        let own = DefinedVariables { maps: vec!["backend".into()], captures, ..DefinedVariables::default() };
        let fault = |text: &str| parse_template(text, &["path", "host"], &own).unwrap_err();
        assert_eq!(fault("x/$pth/y").span, Some(2..6));
        assert!(fault("x/$pth/y").message.contains("`$path`"));
        assert_eq!(fault("$query").span, Some(0..6));
        assert_eq!(fault("a$").span, Some(1..2));
        assert_eq!(fault("a${b").span, Some(1..4));
        assert!(fault("$backnd").message.contains("`$backend`"));
        assert!(fault("$2").message.contains("there is no `$2`"));
        assert!(parse_template("$backend/$id/$1", &[], &own).is_ok());
        let none = parse_template("/$1", &["path"], &DefinedVariables::default()).unwrap_err();
        assert!(none.remedy.contains("regular expression"));
    }
}

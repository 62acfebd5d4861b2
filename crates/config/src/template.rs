//! Texts with variables, and the checks of them.

use crate::check::{Checker, InvalidValue, OwnNames, shortened};
use crate::geo::GEO_REMEDY;
use crate::hint;
use crate::near::nearest;
use crate::node::{Data, Node};
use crate::shape::{Shape, ShapeKind};
use http::template::{TemplateError, TemplateFault};
use http::{Template, Variable};
use serde_json::json;

/// Shape of a text with variables, some of which the configuration may define.
pub(crate) struct TemplateShape {
    /// Description of the value, such as "a header value".
    pub(crate) what: &'static str,
    pub(crate) parse: fn(&str, &OwnNames) -> Result<Template, InvalidValue>,
}

impl Shape for TemplateShape {
    type Out = Template;

    fn kind(&self) -> ShapeKind {
        ShapeKind::new(self.what, json!({ "type": "string" }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Template> {
        let Data::Text(text) = &node.data else {
            check.mismatch(node, self.what);
            return None;
        };
        (self.parse)(text, &check.own_names).map_err(|fault| check.fault(&node.at, text, fault)).ok()
    }
}

/// Parses a text in which `$name` or `${name}` is a variable and `$$` a dollar sign. `names` are the
/// permitted variables of [`http::Variable::names`]; `own` are those that the configuration defines.
pub(crate) fn template(text: &str, names: &[&str], own: &OwnNames) -> Result<Template, InvalidValue> {
    let is_allowed = |variable: &Variable| is_allowed(variable, names, own);
    Template::parse_with(text, is_allowed, |name| own.all().any(|known| known == name))
        .map_err(|TemplateError { at, fault }| explained(fault, names, own).within(at))
}

/// The same for the content of a response, which may have several lines.
pub(crate) fn content_template(text: &str, names: &[&str], own: &OwnNames) -> Result<Template, InvalidValue> {
    let is_allowed = |variable: &Variable| is_allowed(variable, names, own);
    Template::parse_content(text, is_allowed, |name| own.all().any(|known| known == name))
        .map_err(|TemplateError { at, fault }| explained(fault, names, own).within(at))
}

fn is_allowed(variable: &Variable, names: &[&str], own: &OwnNames) -> bool {
    names.contains(&variable.kind()) && (own.has_geo || *variable != Variable::Country)
}

fn explained(fault: TemplateFault<'_>, names: &[&str], own: &OwnNames) -> InvalidValue {
    match fault {
        TemplateFault::Unclosed => {
            InvalidValue::new("the `}` is missing", "a variable is `$name` or `${name}`")
        }
        TemplateFault::Nameless => {
            InvalidValue::new("a variable's name is missing", "write `$$` for a dollar sign")
        }
        TemplateFault::Control => InvalidValue::new("a control character", "remove it"),
        TemplateFault::Unknown("country") if names.contains(&"country") && !own.has_geo => {
            InvalidValue::new("`$country` needs `[geo]`", GEO_REMEDY)
        }
        TemplateFault::Unknown(name) => {
            if let Some(remedy) = hint::for_variable(name, names) {
                return InvalidValue::new(format!("there is no `${}` here", shortened(name)), remedy);
            }
            let all = || own.all().chain(names.iter().copied());
            let message = match nearest(name, all()) {
                Some(near) if !is_number(name) => format!("did you mean `${near}`?"),
                _ => format!("there is no `${}` here", shortened(name)),
            };
            if is_number(name) && own.captures.is_empty() {
                let remedy = "a route whose `path` is a regular expression with a group has it: `path = \"~ ^/user/([0-9]+)$\"`";
                return InvalidValue::new(message, remedy);
            }
            if name == "uri" && names.contains(&"path") {
                return InvalidValue::new(message, "nginx's `$uri`, the path alone, is `$path` here");
            }
            let list: Vec<String> = all().map(|name| format!("`${name}`")).collect();
            let remedy = format!("variables here: {}; `$$` is a dollar sign", list.join(", "));
            InvalidValue::new(message, remedy)
        }
    }
}

fn is_number(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_point_at_the_variable() {
        let captures = vec!["1".into(), "id".into()];
        let own = OwnNames { maps: vec!["backend".into()], captures, ..OwnNames::default() };
        let fault = |text: &str| template(text, &["path", "host"], &own).unwrap_err();
        assert_eq!(fault("x/$pth/y").at, Some(2..6));
        assert!(fault("x/$pth/y").message.contains("`$path`"));
        assert_eq!(fault("$query").at, Some(0..6));
        assert_eq!(fault("a$").at, Some(1..2));
        assert_eq!(fault("a${b").at, Some(1..4));
        assert!(fault("$backnd").message.contains("`$backend`"));
        assert!(fault("$2").message.contains("there is no `$2`"));
        assert!(template("$backend/$id/$1", &[], &own).is_ok());
        let none = template("/$1", &["path"], &OwnNames::default()).unwrap_err();
        assert!(none.remedy.contains("regular expression"));
    }
}

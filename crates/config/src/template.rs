//! Texts with variables, and what is wrong with them.

use crate::check::{InvalidValue, shortened};
use crate::near::nearest;
use http::Template;
use http::template::{TemplateError, TemplateFault};

/// Parses a text in which `$name` or `${name}` is a variable and `$$` a dollar sign. `names` are the variables that it
/// may name, of those of [`http::Variable::names`].
pub(crate) fn template(text: &str, names: &[&str]) -> Result<Template, InvalidValue> {
    Template::parse(text, |variable| names.contains(&variable.kind()))
        .map_err(|TemplateError { at, fault }| explained(fault, names).within(at))
}

fn explained(fault: TemplateFault<'_>, names: &[&str]) -> InvalidValue {
    match fault {
        TemplateFault::Unclosed => {
            InvalidValue::new("the `}` is missing", "a variable is `$name` or `${name}`")
        }
        TemplateFault::Nameless => {
            InvalidValue::new("a variable's name is missing", "write `$$` for a dollar sign")
        }
        TemplateFault::Control => InvalidValue::new("a control character", "remove it"),
        TemplateFault::Unknown(name) => {
            let message = match nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean `${near}`?"),
                None => format!("there is no `${}` here", shortened(name)),
            };
            let list: Vec<String> = names.iter().map(|name| format!("`${name}`")).collect();
            let remedy = format!("variables here: {}; `$$` is a dollar sign", list.join(", "));
            InvalidValue::new(message, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_point_at_the_variable() {
        let fault = |text: &str| template(text, &["path", "host"]).unwrap_err();
        assert_eq!(fault("x/$pth/y").at, Some(2..6));
        assert!(fault("x/$pth/y").message.contains("`$path`"));
        assert_eq!(fault("$query").at, Some(0..6));
        assert_eq!(fault("a$").at, Some(1..2));
        assert_eq!(fault("a${b").at, Some(1..4));
    }
}

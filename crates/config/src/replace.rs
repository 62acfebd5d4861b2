//! Texts that are put in place of others in the bodies of responses.

use http::{Template, template::TemplatePart};
use settings::checker::{Checker, DefinedVariables, InvalidValue, shorten};
use settings::directive_table::table;
use settings::directives;
use settings::node::Node;
use settings::shape::{Flag, Maybe, OneOrMore, Shape, Text, Toggle};
use shapes::header;
use shapes::media::TYPE;
use shapes::template::{TemplateShape, parse_content_template};

/// Rules of one site or route.
const REPLACEMENTS_MAX: usize = 32;
/// Bytes of a text that is replaced.
const FROM_BYTES_MAX: usize = 1024;
/// Maximum ratio of the length of a replacement to the text that it replaces, if all occurrences are
/// replaced.
const GROWTH_MAX: usize = 64;
/// Bytes of a text that is put in once.
const TO_BYTES_MAX: usize = 16 * 1024;

directives! {
    /// A text that replaces another in the bodies of responses, as they are sent; nginx calls it
    /// `sub_filter`.
    ///
    /// ```toml
    /// [[route]]
    /// proxy   = "http://127.0.0.1:3000"
    /// replace = [
    ///     { from = "http://old.example", to = "$scheme://$host", types = ["text/html", "text/css"] },
    ///     { from = "</head>", to = "<script src=\"/extra.js\"></script></head>", once = true },
    /// ]
    /// ```
    ///
    /// If several texts begin at one place, the first rule applies; replacements are not searched again. The
    /// route's requests have `Accept-Encoding: identity` for upstream servers, applications and files;
    /// `compress` compresses the edited response. Not edited: coded bodies, and responses with `no-transform`
    /// or a digest of their bytes. An edited response has no length, no `Last-Modified` and no ranges, and its
    /// `ETag` is weak: a client that asks for a part gets the whole, and upstream servers get no `Range` unless
    /// the name is one of compressed content (`film.mp4`). The cache stores the original bodies.
    BodyEdit in "`replace` of a site or route", check replacement_agrees {
        /// The text that is replaced, byte by byte: up to 1 KiB.
        "from" from: String = required(""), Text { what: "a text", parse: from_text };
        /// The text in its place. Variables as in header fields; in HTML, XML, JSON and scripts their values are escaped. It may be 64 times as long
        /// as `from`, and up to 16 KiB with `once`; one that variables make longer is not put in.
        "to" to: Template = "", TemplateShape { what: "a text, which may have variables", parse: to_text };
        /// Media types of the responses: `"text/html"` or `"text/*"`.
        "types" types: Vec<String> = ["text/html"], OneOrMore(TYPE);
        /// Whether only the first one in a response is replaced.
        "once" once: bool = false, Flag;
    }
}

/// `replace` of a site or a route; if absent, the level above applies.
pub(crate) fn rules() -> impl Shape<Out = Option<Vec<BodyEdit>>> {
    Maybe(Toggle { on: None, off: Vec::new, shape: OneOrMore(table::<BodyEdit>()) })
}

fn from_text(text: &str) -> Result<String, InvalidValue> {
    match text.len() {
        0 => Err(InvalidValue::new("an empty text", "it would be everywhere: write what is replaced")),
        1..=FROM_BYTES_MAX => Ok(text.to_owned()),
        len => Err(InvalidValue::new(
            format!("{len} bytes long"),
            format!("a text has at most {FROM_BYTES_MAX} bytes"),
        )),
    }
}

fn to_text(text: &str, defined_variables: &DefinedVariables) -> Result<Template, InvalidValue> {
    parse_content_template(text, header::VARIABLES, defined_variables)
}

fn replacement_agrees(rule: &mut BodyEdit, node: &Node, check: &mut Checker) {
    let text_len = |part: &TemplatePart| match part {
        TemplatePart::Text(text) => text.len(),
        TemplatePart::Variable(_) => 0,
    };
    let len: usize = rule.to.parts().iter().map(text_len).sum();
    let max = if rule.once { TO_BYTES_MAX } else { rule.from.len() * GROWTH_MAX };
    let Some(entry) = node.entry("to").filter(|_| !rule.from.is_empty() && len > max) else { return };
    let title =
        format!("`to` of {len} bytes in place of {} in `{}`", rule.from.len(), check.directive_path_text());
    let finding = check.error(&entry.value.span, title, format!("at most {max} bytes here"));
    finding.help(if rule.once {
        "write less text, such as a script that the page loads"
    } else {
        "a page of such texts would become very long: write `once = true`, a longer `from`, or less text"
    });
}

/// Checks the combined rules of the site or route at `node`.
pub(crate) fn check_replacements(rules: Option<&[BodyEdit]>, node: &Node, check: &mut Checker) {
    let items = node.one_or_more("replace");
    if let Some(extra) = items.get(REPLACEMENTS_MAX) {
        let title = format!("more than {REPLACEMENTS_MAX} texts in `replace`");
        check
            .error(&extra.span, title, "one too many")
            .help("a page of many changes is better made where it is made");
    }
    let rules = rules.unwrap_or_default();
    if rules.len() != items.len() {
        return;
    }
    for (index, rule) in rules.iter().enumerate() {
        let same = |earlier: &BodyEdit| {
            earlier.from == rule.from && rule.types.iter().any(|media| earlier.types.contains(media))
        };
        let Some(first) = rules[..index].iter().position(same) else { continue };
        let title = format!("`replace` has `{}` twice", shorten(&rule.from));
        let finding = check.error(&items[index].span, title, "the first rule counts");
        finding.related(items[first].span.clone(), "first given here");
    }
}

#[cfg(test)]
mod tests {
    use crate::server::Config;
    use std::path::Path;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, "komainu.toml", Path::new("/etc"))
            .map(|(config, _)| config)
            .map_err(|report| report.to_string())
    }

    #[test]
    fn replace_rules_of_a_route_override_those_of_its_site() {
        let text = "[[site]]\nreplace = { from = \"a\", to = \"b\" }\n\
                    [[site.route]]\npath = \"/own\"\nreplace = [{ from = \"c\", types = [\"text/*\", \"Text/CSS\"], once = true }]\nrespond = 200\n\
                    [[site.route]]\npath = \"/none\"\nreplace = false\nrespond = 200\n[[site.route]]\nrespond = 200\n";
        let config = parse(text).unwrap();
        let of = |route: usize| config.settings(Some(0), Some(route)).replace;
        assert_eq!(
            (of(0)[0].types.as_slice(), of(0)[0].once),
            (&["text/".into(), "text/css".into()][..], true)
        );
        assert_eq!((of(1).len(), of(2).len()), (0, 1));
        assert_eq!((of(2)[0].from.as_str(), of(2)[0].types.as_slice()), ("a", &["text/html".to_owned()][..]));
    }

    #[test]
    fn invalid_replace_rules_have_a_remedy() {
        let with = |rules: &str| parse(&format!("[[route]]\nreplace = {rules}\nrespond = 200\n")).map(|_| ());
        let many = |count: usize| {
            let rules: Vec<String> = (0..count).map(|at| format!("{{ from = \"text{at}\" }}")).collect();
            format!("[{}]", rules.join(", "))
        };
        with(&many(32)).unwrap();
        with(&format!("{{ from = \"ab\", to = \"{}\" }}", "x".repeat(128))).unwrap();
        with(&format!("{{ from = \"ab\", to = \"{}\", once = true }}", "x".repeat(16 * 1024))).unwrap();
        with("[{ from = \"a\" }, { from = \"a\", types = \"text/css\" }]").unwrap();
        with("{ from = \"a\", to = \"line\\nline $host\" }").unwrap();
        for (rules, part) in [
            (many(33), "more than 32 texts"),
            ("{ from = \"\" }".to_owned(), "an empty text"),
            ("{ to = \"x\" }".to_owned(), "`route.replace.from` is missing"),
            (format!("{{ from = \"{}\" }}", "x".repeat(1025)), "at most 1024 bytes"),
            (format!("{{ from = \"ab\", to = \"{}\" }}", "x".repeat(129)), "write `once = true`"),
            (
                format!("{{ from = \"ab\", to = \"{}\", once = true }}", "x".repeat(16 * 1024 + 1)),
                "write less text",
            ),
            ("[{ from = \"a\" }, { from = \"b\" }, { from = \"a\" }]".to_owned(), "`replace` has `a` twice"),
            ("{ from = \"a\", to = \"$nothing\" }".to_owned(), "there is no `$nothing`"),
            ("true".to_owned(), "invalid value"),
        ] {
            let said = with(&rules).unwrap_err();
            assert!(said.contains(part), "{rules}: {said}");
        }
    }
}

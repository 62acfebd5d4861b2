//! Maps from the value of a text with variables to another text, which templates name as a variable.

use http::{Template, Variable};
use ipnet::IpNet;
use serde_json::json;
use settings::checker::{Checker, DefinedVariables, InvalidValue, shorten};
use settings::directive_table::table;
use settings::directives;
use settings::node::{Entry, Node, NodeData, as_text};
use settings::shape::{Map, Shape, ShapeKind};
use shapes::expression::Expression;
use shapes::header;
use shapes::network::network;
use shapes::pattern::ValuePattern;
use shapes::template::{TemplateShape, parse_template};
use std::hash::{Hash, Hasher};

/// Maps of a configuration.
const MAPS_MAX: usize = 100;
/// Values of one map.
const VALUES_MAX: usize = 10_000;
/// Values of one map that are patterns or regular expressions: they are tried one after the other.
const PATTERNS_MAX: usize = 200;

/// Condition on the value of the text.
#[derive(Debug, Clone)]
pub struct MapKey {
    text: String,
    matcher: MapKeyMatcher,
}

#[derive(Debug, Clone)]
enum MapKeyMatcher {
    Exact,
    Pattern(ValuePattern),
    Regex(Expression),
}

impl PartialEq for MapKey {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for MapKey {}

impl Hash for MapKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl MapKey {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        let form = match Expression::parse(text) {
            Some(expression) => MapKeyMatcher::Regex(expression?),
            None if text.contains('*') => MapKeyMatcher::Pattern(ValuePattern::parse(text)?),
            None => MapKeyMatcher::Exact,
        };
        Ok(Self { text: text.to_owned(), matcher: form })
    }

    /// Returns the text that the key matches, if it is not a pattern.
    pub fn exact(&self) -> Option<&str> {
        matches!(self.matcher, MapKeyMatcher::Exact).then_some(&*self.text)
    }

    /// Whether it matches a value.
    pub fn matches(&self, value: &[u8]) -> bool {
        match &self.matcher {
            MapKeyMatcher::Exact => value == self.text.as_bytes(),
            MapKeyMatcher::Pattern(pattern) => pattern.matches(value.iter().copied()),
            MapKeyMatcher::Regex(expression) => expression.is_match(value),
        }
    }
}

directives! {
    /// A variable whose value depends on that of others: `$NAME` in header fields, redirects, rewrites and the access log.
    ///
    /// ```toml
    /// [maps.backend_pool]
    /// of      = "$host"
    /// values  = { "shop.example.com" = "shop", "*.example.com" = "web", "~ ^www\\d+\\." = "old" }
    /// default = "none"
    ///
    /// [maps.area]
    /// of       = "$remote_addr"
    /// networks = { "10.0.0.0/8" = "office", "10.9.0.0/16" = "laboratory", "2001:db8::/32" = "office" }
    /// default  = "world"
    /// ```
    VariableMap in "`[maps.NAME]`", check map_agrees {
        /// The text that is looked up: variables as in header fields, but no maps.
        "of" of: Template = required(""), TemplateShape { what: "a text with variables such as \"$host\"", parse: source };
        /// Texts, and the value that the variable has for each. A text without a pattern comes first; else the first pattern that
        /// matches, in the order of the file: `*` is any run of characters, and `~ REGEX` a regular expression (`~* REGEX` ignores
        /// case). Values may have variables as header fields do, but no maps.
        "values" values: Vec<(MapKey, Template)> = {},
            Map { what: "texts, patterns and regular expressions", key: MapKey::parse, value: RESULT };
        /// Values by network, if the text is an IP address, such as `$remote_addr`: the smallest network that
        /// contains it applies. They come after texts without a pattern; nginx calls such a map `geo`.
        "networks" networks: Vec<(IpNet, Template)> = {}, Map { what: "networks", key: network, value: RESULT };
        /// The value for all other texts.
        "default" default: Template = "", RESULT;
    }
}

const RESULT: TemplateShape = TemplateShape { what: "a text, which may have variables", parse: source };

fn source(text: &str, defined_variables: &DefinedVariables) -> Result<Template, InvalidValue> {
    let own = DefinedVariables { has_geo: defined_variables.has_geo, ..DefinedVariables::default() };
    parse_template(&header::parse_value(text)?, header::VARIABLES, &own)
}

fn map_agrees(map: &mut VariableMap, node: &Node, check: &mut Checker) {
    if let Some(entry) = node.entry("networks").filter(|_| map.networks.len() > VALUES_MAX) {
        check.error(&entry.key_span, format!("more than {VALUES_MAX} networks in a map"), "too many");
    }
    if let Some(entry) = node.entry("of").filter(|entry| {
        // An unknown variable is reported as an error.
        map.of.as_literal().is_some() && as_text(&entry.value).is_some_and(|text| !text.contains('$'))
    }) {
        let title = "a map of a text without a variable".to_owned();
        let finding = check.warning(&entry.value.span, title, "it is the same for every request");
        let known = map.of.as_literal().filter(|text| header::VARIABLES.contains(text));
        finding.help(format!("write a variable: `of = \"${}\"`", known.unwrap_or("host")));
    }
    let Some(entry) = node.entry("values") else { return };
    let NodeData::Table(entries) = &entry.value.data else { return };
    if let Some(extra) = entries.get(VALUES_MAX) {
        check.error(&extra.key_span, format!("more than {VALUES_MAX} values in a map"), "one too many");
    }
    let mut patterns = map.values.iter().zip(entries).filter(|((key, _), _)| key.exact().is_none());
    if let Some((_, extra)) = patterns.nth(PATTERNS_MAX) {
        let title = format!("more than {PATTERNS_MAX} patterns in a map");
        let finding = check.error(&extra.key_span, title, "one too many");
        finding
            .help("patterns are tried one after the other for each request: write texts without a pattern");
    }
}

/// All maps, by name.
pub(crate) struct Maps;

impl Shape for Maps {
    type Out = Vec<(String, VariableMap)>;

    fn kind(&self) -> ShapeKind {
        let inner = table::<VariableMap>().kind();
        let schema = json!({ "type": "object", "additionalProperties": inner.schema });
        let text = "a table from names of variables to tables, see `[maps.NAME]`".to_owned();
        ShapeKind { chapters: inner.chapters, ..ShapeKind::new(text, schema) }
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Self::Out> {
        let NodeData::Table(entries) = &node.data else {
            check.report_type_mismatch(node, &self.kind().text);
            return None;
        };
        if let Some(extra) = entries.get(MAPS_MAX) {
            check.error(&extra.key_span, format!("more than {MAPS_MAX} maps"), "one too many");
        }
        let mut maps = Vec::new();
        for Entry { key, key_span: key_at, value } in entries {
            if let Err(fault) = check_free_name(key, &check.defined_variables) {
                let title = format!("`{}` cannot be the name of a map", shorten(key));
                check.error(key_at, title, fault.message).help(fault.remedy);
            }
            maps.extend(table::<VariableMap>().read(value, check).map(|map| (key.clone(), map)));
        }
        Some(maps)
    }
}

/// A name that a configuration may give to a variable: to a map, or to a group of a regular expression.
///
/// # Errors
/// What is wrong with it: its length, its characters, or that it is the name of a variable which is there already.
pub fn check_variable_name(name: &str) -> Result<(), InvalidValue> {
    const REMEDY: &str = "write up to 64 letters, digits and `_`, a letter first";
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if !(1..=64).contains(&name.len())
        || !name.bytes().all(is_plain)
        || !name.starts_with(|c: char| c.is_ascii_alphabetic())
    {
        return Err(InvalidValue::new("this is not a name of a variable", REMEDY));
    }
    match Variable::named(name) {
        Some(_) => Err(InvalidValue::new(format!("`${name}` is a variable already"), "take another name")),
        None => Ok(()),
    }
}

/// The same for a file: the name of a variable that it does not have is free.
pub(crate) fn check_free_name(name: &str, defined_variables: &DefinedVariables) -> Result<(), InvalidValue> {
    match Variable::named(name) {
        Some(Variable::Country) if !defined_variables.has_geo => Ok(()),
        _ => check_variable_name(name),
    }
}

/// Records the names of all maps, which templates may use anywhere, and whether countries are available.
pub(crate) fn declare_maps(document: &Node, check: &mut Checker) {
    check.defined_variables.has_geo = document.entry("geo").is_some();
    if let Some(NodeData::Table(entries)) = document.entry("maps").map(|entry| &entry.value.data) {
        check.defined_variables.maps = entries.iter().map(|entry| entry.key.clone()).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn read(text: &str) -> (Option<Vec<(String, VariableMap)>>, String) {
        let mut check = Checker::new(text, "test", Path::new(""));
        let document = Node::parse_document(text).unwrap();
        let maps = Maps.read(&document.entry("maps").unwrap().value, &mut check);
        (maps, check.report.to_string())
    }

    #[test]
    fn map_keys_are_texts_patterns_or_expressions() {
        let (maps, said) = read(
            "[maps.a]\nof = \"$host\"\ndefault = \"d\"\n[maps.a.values]\n\"x\" = \"1\"\n\"*.y\" = \"$path\"\n\"~* ^z\" = \"3\"\n",
        );
        let (name, map) = &maps.unwrap()[0];
        assert_eq!((name.as_str(), said.as_str()), ("a", ""));
        let first = |value: &str| map.values.iter().position(|(key, _)| key.matches(value.as_bytes()));
        assert_eq!([first("x"), first("a.y"), first("ZZ"), first("q")], [Some(0), Some(1), Some(2), None]);
        assert_eq!(map.values[0].0.exact(), Some("x"));
        assert_eq!(map.values[1].0.exact(), None);
    }

    #[test]
    fn map_errors_are_reported() {
        for (text, part) in [
            ("[maps.host]\nof = \"$path\"", "variable already"),
            ("[maps.http_x]\nof = \"$path\"", "variable already"),
            ("[maps.1a]\nof = \"$path\"", "not a name"),
            ("[maps.a]\nof = \"$b\"\n[maps.b]\nof = \"$path\"", "there is no `$b`"),
            ("[maps.a]\n", "`of` is missing"),
            ("[maps.a]\nof = \"$host\"\nvalues = { \"~ (\" = \"x\" }", "unclosed group"),
            ("[maps.a]\nof = \"$host\"\nvalues = { x = \"a\\nb\" }", "must not contain"),
        ] {
            let (_, said) = read(text);
            assert!(said.contains(part), "{text}: {said}");
        }
        let values = |key: &dyn Fn(usize) -> String, count: usize| {
            let values: String = (0..count).map(|at| format!("\"{}\" = \"1\"\n", key(at))).collect();
            read(&format!("[maps.a]\nof = \"$host\"\n[maps.a.values]\n{values}")).1
        };
        assert!(values(&|at| format!("{at}*"), PATTERNS_MAX + 1).contains("more than 200 patterns"));
        assert_eq!(values(&|at| format!("{at}*"), PATTERNS_MAX), "");
        assert!(values(&|at| format!("{at}"), VALUES_MAX + 1).contains("more than 10000 values"));
    }
}

//! The words of a KomainuPolicy: which directives of the configuration it has, and in which form.
//!
//! The list is closed. A directive that names a file, a program, a server or a store, or that decides about the machine, is not in
//! it, or has another form here: a reference to a Secret or a Service. A new directive of a table is in neither list, and a test
//! asks for the decision. Everything else follows from the tables of the directives: names, documentation and ranges.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

/// Bytes of a text.
const TEXT_BYTES_MAX: usize = 4_096;
/// Bytes of an error page.
const PAGE_BYTES_MAX: usize = 65_536;
/// Items of a list, and keys of a table whose keys the user chooses.
const ITEMS_MAX: usize = 64;

/// Where a directive of a policy stands in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirectivePlace {
    /// In sites, for policies of Gateways, and in routes, for those of routes.
    SiteAndRoute,
    /// In sites. Policies of routes have none.
    Site,
    /// In routes. Those of a Gateway's policy are the defaults of its routes.
    Route,
    /// In `proxy` of routes, with the same defaults.
    Proxy,
}

/// A directive at the top of a policy.
pub(crate) struct PolicyDirective {
    pub(crate) name: &'static str,
    /// The table of the configuration that has it.
    table: &'static str,
    pub(crate) place: DirectivePlace,
    /// Whether it admits or refuses clients: requests must not be served without it.
    pub(crate) guards: bool,
    /// Whether `off` may name it.
    pub(crate) may_be_off: bool,
}

const fn directive(name: &'static str, table: &'static str, place: DirectivePlace) -> PolicyDirective {
    PolicyDirective { name, table, place, guards: false, may_be_off: false }
}

impl PolicyDirective {
    const fn guarding(self) -> PolicyDirective {
        PolicyDirective { guards: true, ..self }
    }

    const fn or_off(self) -> PolicyDirective {
        PolicyDirective { may_be_off: true, ..self }
    }
}

/// The directives, in the order of the definition.
pub(crate) const DIRECTIVES: [PolicyDirective; 18] = [
    directive("allow", "Route", DirectivePlace::SiteAndRoute).guarding(),
    directive("deny", "Route", DirectivePlace::SiteAndRoute).guarding(),
    directive("auth", "Route", DirectivePlace::SiteAndRoute).guarding().or_off(),
    directive("limit", "Route", DirectivePlace::SiteAndRoute).guarding(),
    directive("crawlers", "Site", DirectivePlace::Site).or_off(),
    directive("queue", "Route", DirectivePlace::Route),
    directive("cache", "Route", DirectivePlace::SiteAndRoute).or_off(),
    directive("compress", "Route", DirectivePlace::SiteAndRoute).or_off(),
    directive("cors", "Route", DirectivePlace::SiteAndRoute).or_off(),
    directive("request_headers", "Proxy", DirectivePlace::Proxy),
    directive("response_headers", "Route", DirectivePlace::SiteAndRoute),
    directive("retry", "Proxy", DirectivePlace::Proxy).or_off(),
    directive("mirror", "Route", DirectivePlace::Route),
    directive("error_pages", "Site", DirectivePlace::Site),
    directive("intercept_errors", "Route", DirectivePlace::SiteAndRoute),
    directive("limits", "Route", DirectivePlace::SiteAndRoute),
    directive("header_limit", "Route", DirectivePlace::SiteAndRoute),
    directive("bandwidth", "Route", DirectivePlace::SiteAndRoute).or_off(),
];

/// A table below the top: the directives that policies have, and the others, with the reason.
pub(crate) struct PolicyTable {
    pub(crate) name: &'static str,
    pub(crate) taken: &'static [&'static str],
    pub(crate) refused: &'static [(&'static str, &'static str)],
}

const NO_ADDRESS: &str = "policies name Services, not servers";
const NO_FILE: &str = "policies name no files";

/// The tables.
pub(crate) const TABLES: [PolicyTable; 15] = [
    PolicyTable {
        name: "Auth",
        taken: &[
            "basic",
            "realm",
            "failures",
            "ask",
            "jwt",
            "signed",
            "response_headers",
            "timeout",
            "host",
            "sign_in",
            "remember",
            "remember_by",
        ],
        refused: &[
            ("tls", NO_FILE),
            ("upstream", NO_ADDRESS),
            ("remove_from", "fields are removed from requests to the policy's own target"),
        ],
    },
    PolicyTable {
        name: "JwtAuth",
        taken: &[
            "jwks",
            "jwks_file",
            "issuer",
            "audience",
            "algorithms",
            "leeway",
            "claims",
            "headers",
            "cookie",
            "query",
            "refresh",
        ],
        refused: &[],
    },
    PolicyTable {
        name: "SignedAuth",
        taken: &["secret_file", "client"],
        refused: &[("secret", "a policy is no place for a secret: name a Secret in `secret_file`")],
    },
    PolicyTable {
        name: "RateLimit",
        taken: &[
            "rate",
            "concurrent",
            "burst",
            "key",
            "ipv4_prefix",
            "ipv6_prefix",
            "delay",
            "delayed",
            "status",
            "headers",
            "dry_run",
            "misses_only",
            "except",
        ],
        refused: &[
            ("keys", "the server decides how much memory a limit takes"),
            ("name", "names of limits are common to all namespaces"),
            ("shared", "it needs a store of the server"),
        ],
    },
    PolicyTable {
        name: "Crawlers",
        taken: &[
            "deny",
            "robots",
            "disallow",
            "trap",
            "trap_time",
            "pages",
            "ipv4_prefix",
            "ipv6_prefix",
            "except",
        ],
        refused: &[],
    },
    PolicyTable { name: "RequestQueue", taken: &["active", "waiting", "age"], refused: &[] },
    PolicyTable {
        name: "CachePolicy",
        taken: &["rule", "grace", "heuristic", "set_cookie"],
        refused: &[("purge", "it names networks and tokens that may purge")],
    },
    PolicyTable {
        name: "CacheRule",
        taken: &[
            "path",
            "header",
            "query",
            "cookie",
            "type",
            "status",
            "bypass",
            "store",
            "ttl",
            "default_ttl",
            "grace",
            "stale_while_revalidate",
            "stale_if_error",
            "keep",
            "ignore",
            "strip_cookies",
            "set_cookie",
            "with_cookies",
            "with_authorization",
            "min_uses",
            "key",
        ],
        refused: &[],
    },
    PolicyTable {
        name: "CacheKey",
        taken: &["query", "ignore_query", "sort_query", "header", "cookie", "language", "device"],
        refused: &[],
    },
    PolicyTable {
        name: "CompressResponses",
        taken: &["codings", "level", "min", "types", "secrets"],
        refused: &[],
    },
    PolicyTable {
        name: "Cors",
        taken: &["origins", "methods", "headers", "expose", "credentials", "max_age"],
        refused: &[(
            "any_origin_credentials",
            "every site could read the responses of those who are signed in",
        )],
    },
    PolicyTable {
        name: "Retry",
        taken: &["attempts", "statuses", "non_idempotent", "same_server", "backoff", "body", "budget"],
        refused: &[],
    },
    PolicyTable {
        name: "Mirror",
        taken: &["to", "share", "when", "body_max", "in_flight", "timeout"],
        refused: &[],
    },
    PolicyTable {
        name: "Conditions",
        taken: &["client", "cookie", "header", "query"],
        refused: &[("country", "it needs a database of the server")],
    },
    PolicyTable { name: "BandwidthLimit", taken: &["rate", "after"], refused: &[] },
];

/// Tables all of whose directives policies have.
pub(crate) const WHOLE_TABLES: [&str; 3] = ["ResponseHeaders", "ProxyHeaders", "RouteLimits"];

/// Rules of tables that the API server checks (CEL), with their messages. The configuration checks the same when a policy is read.
pub(crate) const RULES: [(&str, &str, &str); 5] = [
    (
        "Auth",
        "[has(self.basic), has(self.ask), has(self.jwt), has(self.signed)].filter(given, given).size() == 1",
        "auth needs one of basic, ask, jwt and signed",
    ),
    ("JwtAuth", "has(self.jwks) != has(self.jwks_file)", "jwt needs one of jwks and jwks_file"),
    ("SignedAuth", "has(self.secret_file)", "signed needs a Secret: secret_file"),
    ("RateLimit", "has(self.rate) != has(self.concurrent)", "a limit has either rate or concurrent"),
    ("Crawlers", "!has(self.trap_time) || has(self.trap)", "trap_time is for a trap"),
];

/// Returns rules for the API server.
pub(crate) fn rules_schema<'a>(rules: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value {
    let rule = |(rule, message): (&str, &str)| json!({ "rule": rule, "message": message });
    rules.into_iter().map(rule).collect()
}

/// Content of a Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecretContent {
    /// Users and passwords, as `htpasswd` writes them.
    Users,
    /// A set of JSON Web Keys.
    TokenKeys,
    /// Secrets of signed URLs, one a line.
    UrlSecrets,
}

impl SecretContent {
    /// The key of the Secret that has it, unless the reference names another.
    pub(crate) fn default_key(self) -> &'static str {
        match self {
            SecretContent::Users => "users",
            SecretContent::TokenKeys => "jwks.json",
            SecretContent::UrlSecrets => "secret",
        }
    }
}

/// The form of a value in a policy.
#[derive(Debug, Clone)]
pub(crate) enum WordForm {
    /// A table of directives: its name, and its words.
    Table(&'static str, Vec<PolicyWord>),
    /// A table whose keys the user chooses.
    Map(Box<WordForm>),
    /// A list. An empty one may stand for `false`.
    List { item: Box<WordForm>, is_empty_off: bool },
    /// A number or a text.
    NumberOrText,
    /// A text, a number or a flag, with the schema of the configuration.
    Scalar(Value),
    /// In place of a file: a key of a Secret.
    Secret(SecretContent),
    /// In place of a URL: a port of a Service, and a path.
    ServiceUrl,
    /// In place of a server: a port of a Service.
    Service,
    /// In place of files of error pages: their texts.
    Pages,
}

/// A directive with its form.
#[derive(Debug, Clone)]
pub(crate) struct PolicyWord {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) is_required: bool,
    pub(crate) form: WordForm,
}

/// The words at the top of a policy, in the order of [`DIRECTIVES`].
pub(crate) static WORDS: LazyLock<Vec<PolicyWord>> = LazyLock::new(|| {
    let schema = config::schema();
    let reader = FormReader { tables: &schema["$defs"] };
    DIRECTIVES.iter().map(|directive| reader.word(directive.table, directive.name)).collect()
});

struct FormReader<'a> {
    tables: &'a Value,
}

impl FormReader<'_> {
    fn word(&self, table: &str, name: &str) -> PolicyWord {
        let table_schema = &self.tables[table];
        let property = &table_schema["properties"][name];
        let text = property["description"].as_str().unwrap_or_default();
        let mut description = text.split("\n\nTakes ").next().unwrap_or_default().to_owned();
        if let Some(default) = property.get("default") {
            description += &format!(" Default: {default}.");
        }
        let required = table_schema["required"].as_array();
        let is_required = required.is_some_and(|names| names.iter().any(|one| one == name));
        PolicyWord { name: name.to_owned(), description, is_required, form: self.form(table, name, property) }
    }

    fn form(&self, table: &str, name: &str, property: &Value) -> WordForm {
        match (table, name) {
            ("Auth", "basic") => WordForm::Secret(SecretContent::Users),
            ("JwtAuth", "jwks_file") => WordForm::Secret(SecretContent::TokenKeys),
            ("SignedAuth", "secret_file") => WordForm::Secret(SecretContent::UrlSecrets),
            ("Auth", "ask") | ("JwtAuth", "jwks") => WordForm::ServiceUrl,
            ("Mirror", "to") => WordForm::Service,
            // A server, or a list of them, is its short form.
            ("Route", "mirror") => self.table_form("Mirror"),
            ("Site", "error_pages") => WordForm::Pages,
            _ => self.form_of_schema(property),
        }
    }

    /// Definitions of Kubernetes have one type for each value: the longest of the forms that the configuration takes.
    fn form_of_schema(&self, schema: &Value) -> WordForm {
        let mut forms = Vec::new();
        flatten(schema, &mut forms);
        let has_flag = forms.iter().any(is_flag);
        let is_table = |form: &Value| form.get("$ref").is_some();
        let is_list = |form: &&Value| form["type"] == "array";
        if let Some(list) = forms.iter().find(is_list)
            && (!forms.iter().any(is_table) || has_table(&list["items"]))
        {
            return WordForm::List {
                item: Box::new(self.form_of_schema(&list["items"])),
                is_empty_off: has_flag,
            };
        }
        if let Some(name) = forms.iter().find_map(|form| form.get("$ref").and_then(Value::as_str)) {
            return self.table_form(name.rsplit('/').next().unwrap_or_default());
        }
        if let Some(map) = forms.iter().find(|form| form["type"] == "object") {
            return WordForm::Map(Box::new(self.form_of_schema(&map["additionalProperties"])));
        }
        let is_text = |form: &Value| {
            form["type"] == "string" || form["const"].is_string() || form["enum"][0].is_string()
        };
        let is_number = |form: &Value| form["type"] == "integer";
        if forms.iter().any(is_number) && forms.iter().any(is_text) {
            return WordForm::NumberOrText;
        }
        let texts: Vec<&Value> = forms.iter().filter(|form| is_text(form)).collect();
        match texts.as_slice() {
            [] => WordForm::Scalar(forms.first().map_or_else(|| json!({ "type": "boolean" }), plain_schema)),
            [one] => WordForm::Scalar(text_schema(one)),
            // A text and a word such as "unlimited".
            several => {
                let validations: Vec<Value> = several.iter().map(|form| validation(form)).collect();
                WordForm::Scalar(
                    json!({ "type": "string", "maxLength": TEXT_BYTES_MAX, "anyOf": validations }),
                )
            }
        }
    }

    fn table_form(&self, name: &str) -> WordForm {
        if let Some(table) = TABLES.iter().find(|table| table.name == name) {
            let words = table.taken.iter().map(|key| self.word(name, key)).collect();
            return WordForm::Table(table.name, words);
        }
        let whole = WHOLE_TABLES.iter().find(|whole| **whole == name);
        let whole = whole.unwrap_or_else(|| panic!("the table {name} is not decided for policies"));
        let properties = self.tables[name]["properties"].as_object();
        let words = properties.into_iter().flatten().map(|(key, _)| self.word(name, key)).collect();
        WordForm::Table(whole, words)
    }
}

/// Collects the alternatives of a schema.
fn flatten(schema: &Value, into: &mut Vec<Value>) {
    match schema["anyOf"].as_array() {
        Some(alternatives) => alternatives.iter().for_each(|one| flatten(one, into)),
        None => into.push(schema.clone()),
    }
}

fn has_table(schema: &Value) -> bool {
    let mut forms = Vec::new();
    flatten(schema, &mut forms);
    forms.iter().any(|form| form.get("$ref").is_some())
}

/// Whether it is `true` or `false` beside other forms.
fn is_flag(form: &Value) -> bool {
    form["const"].is_boolean() || form["enum"][0].is_boolean()
}

/// The checks of a text's schema, without its type.
fn validation(form: &Value) -> Value {
    match &form["const"] {
        Value::String(word) => json!({ "enum": [word] }),
        _ => {
            let kept = ["pattern", "enum", "minLength"];
            kept.iter().filter_map(|key| Some(((*key).to_owned(), form.get(*key)?.clone()))).collect()
        }
    }
}

/// A schema without its documentation and its default: the API server would write defaults into objects, where they would stay when
/// a later version has another.
fn plain_schema(form: &Value) -> Value {
    let mut schema = form.clone();
    if let Value::Object(entries) = &mut schema {
        entries.retain(|key, _| !matches!(key.as_str(), "default" | "description"));
    }
    schema
}

fn text_schema(form: &Value) -> Value {
    let mut schema = Map::from_iter([("type".to_owned(), json!("string"))]);
    if let Value::Object(checks) = validation(form) {
        schema.extend(checks);
    }
    if !schema.contains_key("enum") {
        schema.insert("maxLength".to_owned(), json!(TEXT_BYTES_MAX));
    }
    Value::Object(schema)
}

/// A reference of a policy, which has to be resolved.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PolicyReference {
    /// The directive at the top.
    pub(crate) directive: &'static str,
    /// Place below the directive: a JSON pointer.
    pub(crate) pointer: String,
    /// `None` for the policy's own namespace.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) target: ReferenceTarget,
}

/// Kind of the object of a reference.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ReferenceTarget {
    /// A key of a Secret.
    Secret { key: String, content: SecretContent },
    /// A port of a Service; with a path for URLs.
    Service { port: u16, path: Option<String> },
}

/// Reads a value of a policy, and returns it as a value of the configuration. In place of references it has values that are valid
/// and lead nowhere.
///
/// # Errors
/// The fault, with its place.
pub(crate) fn read_value(
    form: &WordForm,
    value: &Value,
    place: &ValuePlace<'_>,
    references: &mut Vec<PolicyReference>,
) -> Result<Value, String> {
    match (form, value) {
        (WordForm::Table(name, words), Value::Object(entries)) => {
            let mut table = Map::new();
            for (key, value) in entries.iter().filter(|(_, value)| !value.is_null()) {
                let Some(word) = words.iter().find(|word| word.name == *key) else {
                    return Err(place.below(key).unknown(name, key, words));
                };
                table.insert(
                    key.clone(),
                    read_value(&word.form, value, &place.below(&word.name), references)?,
                );
            }
            Ok(Value::Object(table))
        }
        (WordForm::Map(form), Value::Object(entries)) if entries.len() <= ITEMS_MAX => {
            let read = |(key, value): (&String, &Value)| {
                Ok((key.clone(), read_value(form, value, &place.below(key), references)?))
            };
            entries.iter().map(read).collect::<Result<Map<_, _>, String>>().map(Value::Object)
        }
        (WordForm::List { is_empty_off: true, .. }, Value::Array(items)) if items.is_empty() => {
            Ok(json!(false))
        }
        (WordForm::List { item, .. }, Value::Array(items)) if items.len() <= ITEMS_MAX => {
            let read = |item_value: &Value| read_value(item, item_value, place, references);
            items.iter().map(read).collect::<Result<Vec<_>, String>>().map(Value::Array)
        }
        (WordForm::NumberOrText, Value::Number(_)) => Ok(value.clone()),
        (WordForm::Scalar(schema), Value::Bool(_)) if schema["type"] == "boolean" => Ok(value.clone()),
        (WordForm::Scalar(schema), Value::Number(_)) if schema["type"] == "integer" => Ok(value.clone()),
        (WordForm::NumberOrText, Value::String(text)) if text.len() <= TEXT_BYTES_MAX => Ok(value.clone()),
        (WordForm::Scalar(schema), Value::String(text))
            if schema["type"] != "integer" && schema["type"] != "boolean" && text.len() <= TEXT_BYTES_MAX =>
        {
            Ok(value.clone())
        }
        (WordForm::Pages, Value::Object(pages)) if pages.len() <= ITEMS_MAX => {
            let page = |(status, text): (&String, &Value)| match text.as_str() {
                Some(text) if text.len() <= PAGE_BYTES_MAX => {
                    Ok((status.clone(), json!(format!("/{status}.{}", page_extension(text)))))
                }
                _ => Err(format!(
                    "{}: a page is a text of at most {PAGE_BYTES_MAX} bytes",
                    place.below(status).text()
                )),
            };
            pages.iter().map(page).collect::<Result<Map<_, _>, String>>().map(Value::Object)
        }
        (WordForm::Secret(content), Value::Object(entries)) => {
            let key = optional_text(entries, "key", place)?.unwrap_or(content.default_key());
            references.push(
                place
                    .reference(entries, ReferenceTarget::Secret { key: key.to_owned(), content: *content })?,
            );
            Ok(json!("/"))
        }
        (WordForm::Service, Value::Object(entries)) => {
            let target = ReferenceTarget::Service { port: port(entries, place)?, path: None };
            references.push(place.reference(entries, target)?);
            Ok(json!("http://192.0.2.1"))
        }
        (WordForm::ServiceUrl, Value::Object(entries)) => {
            let path = optional_text(entries, "path", place)?.unwrap_or("/");
            if !path.starts_with('/') || path.len() > TEXT_BYTES_MAX {
                return Err(format!("{}: a path begins with a slash", place.below("path").text()));
            }
            let target =
                ReferenceTarget::Service { port: port(entries, place)?, path: Some(path.to_owned()) };
            references.push(place.reference(entries, target)?);
            Ok(json!(format!("http://192.0.2.1{path}")))
        }
        _ => Err(format!("{}: {} is needed", place.text(), wanted(form))),
    }
}

/// Returns the extension of a page's file, by which its media type is chosen.
pub(crate) fn page_extension(text: &str) -> &'static str {
    match text.trim_start().chars().next() {
        Some('<') => "html",
        Some('{' | '[') => "json",
        _ => "txt",
    }
}

fn wanted(form: &WordForm) -> String {
    match form {
        WordForm::Table(..) => "a table".to_owned(),
        WordForm::Map(_) | WordForm::Pages => format!("a table of at most {ITEMS_MAX} keys"),
        WordForm::List { .. } => format!("a list of at most {ITEMS_MAX} items"),
        WordForm::NumberOrText => "a number or a text".to_owned(),
        WordForm::Scalar(schema) => match schema["type"].as_str() {
            Some("integer") => "a number".to_owned(),
            Some("boolean") => "true or false".to_owned(),
            _ => format!("a text of at most {TEXT_BYTES_MAX} bytes"),
        },
        WordForm::Secret(_) => "the name of a Secret, as in `{name: users}`,".to_owned(),
        WordForm::Service | WordForm::ServiceUrl => {
            "the name and port of a Service, as in `{name: auth, port: 80}`,".to_owned()
        }
    }
}

/// Place of a value: the directive at the top, and the keys below it.
pub(crate) struct ValuePlace<'a> {
    directive: &'static str,
    above: Option<&'a ValuePlace<'a>>,
    key: &'a str,
}

impl<'a> ValuePlace<'a> {
    pub(crate) fn top(directive: &'static str) -> ValuePlace<'a> {
        ValuePlace { directive, above: None, key: directive }
    }

    fn below(&'a self, key: &'a str) -> ValuePlace<'a> {
        ValuePlace { directive: self.directive, above: Some(self), key }
    }

    fn text(&self) -> String {
        let key: String = self.key.chars().take(100).collect();
        match self.above {
            Some(above) => format!("{}.{key}", above.text()),
            None => key,
        }
    }

    fn pointer(&self) -> String {
        match self.above {
            Some(above) => format!("{}/{}", above.pointer(), self.key),
            None => String::new(),
        }
    }

    fn unknown(&self, table: &str, key: &str, words: &[PolicyWord]) -> String {
        let table = TABLES.iter().find(|known| known.name == table);
        let reason = table.and_then(|table| table.refused.iter().find(|(name, _)| *name == key));
        match reason {
            Some((_, reason)) => format!("{} is not for policies: {reason}", self.text()),
            None => {
                let names: Vec<&str> = words.iter().map(|word| word.name.as_str()).collect();
                format!("{} is not known: there are {}", self.text(), names.join(", "))
            }
        }
    }

    fn reference(
        &self,
        entries: &Map<String, Value>,
        target: ReferenceTarget,
    ) -> Result<PolicyReference, String> {
        let name = optional_text(entries, "name", self)?;
        Ok(PolicyReference {
            directive: self.directive,
            pointer: self.pointer(),
            namespace: optional_text(entries, "namespace", self)?.map(str::to_owned),
            name: name.ok_or_else(|| format!("{}: the name is missing", self.text()))?.to_owned(),
            target,
        })
    }
}

fn optional_text<'v>(
    entries: &'v Map<String, Value>,
    key: &str,
    place: &ValuePlace<'_>,
) -> Result<Option<&'v str>, String> {
    match entries.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if (1..=TEXT_BYTES_MAX).contains(&text.len()) => Ok(Some(text)),
        Some(_) => Err(format!("{}: a text is needed", place.below(key).text())),
    }
}

fn port(entries: &Map<String, Value>, place: &ValuePlace<'_>) -> Result<u16, String> {
    let number = entries.get("port").and_then(Value::as_u64).and_then(|number| u16::try_from(number).ok());
    number
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("{}: a port from 1 to 65535 is needed", place.below("port").text()))
}

/// Returns the schema of a form, as definitions of Kubernetes have it.
pub(crate) fn form_schema(form: &WordForm) -> Value {
    match form {
        WordForm::Table(name, words) => {
            let mut schema = table_schema(words);
            let mut rules = RULES.iter().filter(|(table, ..)| table == name).peekable();
            if rules.peek().is_some() {
                schema["x-kubernetes-validations"] =
                    rules_schema(rules.map(|(_, rule, message)| (*rule, *message)));
            }
            schema
        }
        WordForm::Map(inner) => {
            json!({ "type": "object", "maxProperties": ITEMS_MAX, "additionalProperties": form_schema(inner) })
        }
        WordForm::List { item, .. } => {
            json!({ "type": "array", "maxItems": ITEMS_MAX, "items": form_schema(item) })
        }
        WordForm::NumberOrText => {
            json!({ "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] })
        }
        WordForm::Scalar(schema) => scalar_schema(schema),
        WordForm::Pages => json!({
            "type": "object",
            "maxProperties": ITEMS_MAX,
            "additionalProperties": { "type": "string", "maxLength": PAGE_BYTES_MAX },
        }),
        WordForm::Secret(content) => {
            let key = format!("Key of the Secret. Default: {:?}.", content.default_key());
            reference_schema(
                "Secret of the type komainu.dev/policy.",
                &[("key", json!({ "type": "string", "minLength": 1, "maxLength": 253, "description": key }))],
            )
        }
        WordForm::Service => reference_schema("Service.", &[("port", port_schema())]),
        WordForm::ServiceUrl => {
            let path = json!({ "type": "string", "pattern": "^/", "maxLength": TEXT_BYTES_MAX, "description": "Path, with its query. Default: \"/\"." });
            reference_schema("Service.", &[("port", port_schema()), ("path", path)])
        }
    }
}

fn scalar_schema(schema: &Value) -> Value {
    match schema["type"].as_str() {
        Some(_) => schema.clone(),
        // Words and flags are listed without a type.
        None => {
            let kind = match &schema["enum"][0] {
                Value::Bool(_) => "boolean",
                Value::Number(_) => "integer",
                _ => "string",
            };
            let mut table = Map::from_iter([("type".to_owned(), json!(kind))]);
            if kind != "boolean"
                && let Some(listed) = schema.get("enum")
            {
                table.insert("enum".to_owned(), listed.clone());
            }
            Value::Object(table)
        }
    }
}

/// Returns the schema of a table of words.
pub(crate) fn table_schema(words: &[PolicyWord]) -> Value {
    let property = |word: &PolicyWord| {
        let mut schema = form_schema(&word.form);
        schema["description"] = json!(word.description);
        (word.name.clone(), schema)
    };
    let mut schema =
        json!({ "type": "object", "properties": words.iter().map(property).collect::<Map<_, _>>() });
    let required: Vec<&str> =
        words.iter().filter(|word| word.is_required).map(|word| word.name.as_str()).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn port_schema() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": 65_535, "description": "Port of the Service." })
}

fn reference_schema(what: &str, more: &[(&str, Value)]) -> Value {
    let name = json!({ "type": "string", "minLength": 1, "maxLength": 253, "description": format!("Name of a {what}") });
    let namespace = json!({
        "type": "string", "minLength": 1, "maxLength": 63,
        "description": "Namespace, if it is not the policy's: a ReferenceGrant there has to allow it.",
    });
    let mut properties = Map::from_iter([("name".to_owned(), name), ("namespace".to_owned(), namespace)]);
    properties.extend(more.iter().map(|(key, schema)| ((*key).to_owned(), schema.clone())));
    let required: Vec<&str> =
        if properties.contains_key("port") { vec!["name", "port"] } else { vec!["name"] };
    json!({ "type": "object", "properties": properties, "required": required })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every directive of every table that policies have is decided.
    #[test]
    fn every_directive_of_the_tables_is_decided() {
        let schema = config::schema();
        for table in &TABLES {
            let keys = schema["$defs"][table.name]["properties"].as_object().unwrap();
            let keys: BTreeSet<&str> = keys.keys().map(String::as_str).collect();
            let refused = table.refused.iter().map(|(key, _)| *key);
            let decided: BTreeSet<&str> = table.taken.iter().copied().chain(refused).collect();
            assert_eq!(keys, decided, "the table {}", table.name);
        }
    }

    /// No word names a file, whatever its table.
    #[test]
    fn no_word_takes_a_path_or_a_server() {
        fn visit(words: &[PolicyWord], place: &str) {
            for word in words {
                let here = format!("{place}.{}", word.name);
                let ends = ["_file", "file", "root", "certificate", "url"];
                let is_reference = matches!(
                    word.form,
                    WordForm::Secret(_) | WordForm::Service | WordForm::ServiceUrl | WordForm::Pages
                );
                assert!(is_reference || !ends.iter().any(|end| word.name.ends_with(end)), "{here}");
                match &word.form {
                    WordForm::Table(_, words) => visit(words, &here),
                    WordForm::List { item, .. } => {
                        if let WordForm::Table(_, words) = &**item {
                            visit(words, &here);
                        }
                    }
                    _ => {}
                }
            }
        }
        visit(&WORDS, "spec");
    }
}

//! Tables and their directives. One directive is one item of `directives!`: name, documentation, type, default, range
//! and parser. The record's field, its default, the errors, the schema and the reference are generated from it.

use crate::checker::{Checker, shorten};
use crate::hint;
use crate::node::{Entry, Node, NodeData};
use crate::shape::{DirectiveReference, Shape, ShapeKind, TableReference, join_alternatives};
use crate::spelling::nearest_name;
use serde_json::json;
use std::marker::PhantomData;
use std::path::Path;

/// A directive of the table that becomes a `T`.
pub(crate) struct Directive<T: 'static> {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) default: &'static str,
    pub(crate) absent: &'static str,
    pub(crate) kind: fn() -> ShapeKind,
    pub(crate) read: fn(&mut T, &Node, &mut Checker),
}

/// A table of the configuration.
pub(crate) trait DirectiveTable: Default + 'static {
    /// Key in the schema's `$defs`.
    const NAME: &'static str;
    /// Notation in the file, such as `[limits]`.
    const PLACE: &'static str;
    /// Documentation of the table.
    const ABOUT: &'static str;
    /// Directives of the table.
    const DIRECTIVES: &'static [Directive<Self>];

    /// Checks that concern several directives.
    fn check(&mut self, _node: &Node, _check: &mut Checker) {}
}

/// The description of a record.
fn table_chapter<R: DirectiveTable>() -> TableReference {
    let article = |directive: &Directive<R>| DirectiveReference {
        name: directive.name,
        doc: directive.doc,
        default: directive.default,
        absent: directive.absent,
        kind: (directive.kind)(),
    };
    TableReference {
        name: R::NAME,
        place: R::PLACE,
        about: R::ABOUT,
        directives: R::DIRECTIVES.iter().map(article).collect(),
    }
}

/// The descriptions of a record and of all records in it, at any depth, in breadth-first order.
pub(crate) fn all_chapters<R: DirectiveTable>() -> Vec<TableReference> {
    let mut all = vec![table_chapter::<R>()];
    let mut next = 0;
    while next < all.len() {
        let inner = all[next].directives.iter().flat_map(|article| &article.kind.chapters);
        for chapter in inner.map(|chapter| chapter()).collect::<Vec<_>>() {
            if all.iter().all(|known| known.name != chapter.name) {
                all.push(chapter);
            }
        }
        next += 1;
    }
    all
}

/// A table read as a record.
pub(crate) struct TableShape<R>(PhantomData<R>);

/// A table read as a record.
pub(crate) fn table<R: DirectiveTable>() -> TableShape<R> {
    TableShape(PhantomData)
}

impl<R: DirectiveTable> Shape for TableShape<R> {
    type Out = R;

    fn kind(&self) -> ShapeKind {
        let schema = json!({ "$ref": format!("#/$defs/{}", R::NAME) });
        ShapeKind { text: format!("a table, see {}", R::PLACE), schema, chapters: vec![table_chapter::<R>] }
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<R> {
        let NodeData::Table(entries) = &node.data else {
            let example = hint::table_example(R::NAME);
            let finding = check.report_type_mismatch(node, &self.kind().text);
            if let Some(example) = example {
                finding.help(example);
            }
            return None;
        };
        let mut record = R::default();
        for entry in entries {
            match R::DIRECTIVES.iter().find(|directive| directive.name == entry.key) {
                Some(found) => {
                    check.within_directive(found.name, |check| (found.read)(&mut record, &entry.value, check))
                }
                None => report_unknown_key::<R>(entry, check),
            }
        }
        for directive in R::DIRECTIVES.iter().filter(|directive| directive.default == "required") {
            if node.entry(directive.name).is_none() {
                let title = check.within_directive(directive.name, |check| {
                    format!("`{}` is missing", check.directive_path_text())
                });
                let finding = check.error(&node.span, title, format!("no `{}` here", directive.name));
                finding.help(format!("it takes {}", (directive.kind)().text));
            }
        }
        record.check(node, check);
        Some(record)
    }
}

/// A record, or as a short form the value of one of its directives.
pub(crate) struct ShortForm<R> {
    /// Directive whose value a string or list is.
    text_key: &'static str,
    /// Directive whose value a number is.
    number_key: Option<&'static str>,
    record: PhantomData<R>,
}

/// A record, or as a short form the value of its directive `key`.
pub(crate) fn brief<R: DirectiveTable>(key: &'static str) -> ShortForm<R> {
    ShortForm { text_key: key, number_key: None, record: PhantomData }
}

impl<R> ShortForm<R> {
    /// A number is the value of the directive `key`.
    pub(crate) fn number(self, key: &'static str) -> Self {
        Self { number_key: Some(key), ..self }
    }
}

impl<R: DirectiveTable> Shape for ShortForm<R> {
    type Out = R;

    fn kind(&self) -> ShapeKind {
        let mut kind = table::<R>().kind();
        let mut schemas = vec![kind.schema];
        let keys =
            std::iter::once(self.text_key).chain(self.number_key.filter(|number| *number != self.text_key));
        for directive in keys.filter_map(|key| R::DIRECTIVES.iter().find(|directive| directive.name == key)) {
            schemas.push((directive.kind)().schema);
            kind.text.push_str(&format!(", or just its `{}`", directive.name));
        }
        ShapeKind { schema: json!({ "anyOf": schemas }), ..kind }
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<R> {
        let key = match (&node.data, self.number_key) {
            (NodeData::Table(_), _) => return table().read(node, check),
            (NodeData::Integer(_), Some(number)) => number,
            (NodeData::Text(_) | NodeData::List(_), _) => self.text_key,
            _ => {
                check.report_type_mismatch(node, &self.kind().text);
                return None;
            }
        };
        let entry = Entry { key: key.to_owned(), key_span: node.span.clone(), value: node.clone() };
        table().read(&Node { span: node.span.clone(), data: NodeData::Table(vec![entry]) }, check)
    }
}

/// The description of a shape whose result type is known; `table()` finds its record by that type.
pub(crate) fn kind<T, S: Shape<Out = T>>(shape: &S) -> ShapeKind {
    shape.kind()
}

/// The value of a default, which is written as TOML.
pub(crate) fn parse_default<S: Shape>(shape: &S, toml: &str) -> S::Out {
    let text = format!("default = {toml}");
    let mut check = Checker::new(&text, "default", Path::new(""));
    let document = Node::parse_document(&text).expect("a default is valid TOML");
    let entry = document.entry("default").expect("the key was just written");
    shape.read(&entry.value, &mut check).expect("a default is a value of its directive")
}

/// Keys that people write for TLS to clients, and the tables in which they write them.
const TLS_KEYS: [&str; 6] = ["tls", "ssl", "https", "ssl_certificate", "ssl_certificate_key", "certificate"];
const TLS_TABLES: [&str; 3] = ["Config", "Listener", "Site"];
/// Actions of routes, and the tables in which people write them without a route.
const ACTION_KEYS: [&str; 5] = ["files", "proxy", "app", "redirect", "respond"];
const ROUTES_TABLES: [(&str, &str); 2] = [("Config", "[[route]]"), ("Site", "[[site.route]]")];

/// Top-level keys that people write at the end of the file, where they belong to the last table.
const TOP_KEYS: [&str; 6] = ["listen", "threads", "user", "group", "include", "trusted_proxies"];

/// Keys that people give another name, by the table.
const COMMON_MISNOMERS: [(&str, &str, &str); 32] = [
    ("RateLimit", "nodelay", "remove it: without `delay` the whole `burst` passes at once"),
    ("RateLimit", "zone", "remove it: each limit has a table of its own, of `keys` entries"),
    (
        "CollectedMetrics",
        "listen",
        "metrics are served by `[control] listen = \"127.0.0.1:9180\"`, at `GET /metrics`",
    ),
    ("Mounted", "threads", "it belongs to the application: `threads` in `[apps.NAME]`"),
    ("Mounted", "workers", "it belongs to the application: `workers` in `[apps.NAME]`"),
    ("Timeouts", "keepalive", "here this is `idle`"),
    ("Timeouts", "keep_alive", "here this is `idle`"),
    ("Timeouts", "keepalive_timeout", "here this is `idle`"),
    (
        "Timeouts",
        "graceful_timeout",
        "here this is `drain`; applications have `timeouts = { stop = \"30s\" }` in `[apps.NAME]`",
    ),
    ("ControlToken", "token", "it stands in a file: write it there, and `token_file = \"FILE\"` here"),
    (
        "Log",
        "filter",
        "`only` says which requests are logged, `mask_query` and `mask_headers` what is hidden",
    ),
    ("Log", "format", "here this is `access`: `\"json\"`, `\"combined\"` or a text with variables"),
    ("Log", "output", "here this is `file`"),
    ("Log", "path", "here this is `file`"),
    ("Route", "client_max_body_size", "write `limits = { body = \"20MiB\" }`"),
    ("Site", "client_max_body_size", "write `limits = { body = \"20MiB\" }`"),
    ("Route", "basicauth", "write `auth = { basic = \"FILE\" }`"),
    ("Site", "basicauth", "write `auth = { basic = \"FILE\" }`"),
    (
        "Respond",
        "headers",
        "fields stand beside it: `response_headers = { set = { X-Name = \"value\" } }` in the route",
    ),
    (
        "Respond",
        "file",
        "a file is sent by `files = { root = \"FOLDER\", try = \"/NAME\" }` in place of `respond`",
    ),
    ("Respond", "content_type", "here this is `type`"),
    ("Proxy", "servers", "here this is `to`"),
    ("Health", "uri", "here this is `path`"),
    ("SiteTls", "cert", "here this is `certificate`"),
    ("Config", "log_level", "here this is `level` in `[log]`"),
    (
        "Config",
        "auto_https",
        "sites with `hosts` obtain certificates by themselves where an address speaks TLS (port 443); `redirect_https` sends clients there",
    ),
    ("Config", "admin", "here this is `[control]`, with its `listen`"),
    ("Config", "storage", "certificates are kept in `state` of `[acme]`"),
    ("Respond", "text", "here this is `body`: `respond = { body = \"...\" }`"),
    ("Respond", "content", "here this is `body`: `respond = { body = \"...\" }`"),
    ("Redirect", "url", "here this is `to`: `redirect = { to = \"...\" }`"),
    ("KeepAlive", "timeout", "here this is `idle`: `keep_alive = { idle = \"60s\" }`"),
];

/// Returns the correct notation of a key found in the wrong table or under another name.
fn misplaced_remedy<R: DirectiveTable>(entry: &Entry) -> Option<String> {
    if let Some((_, _, here)) =
        COMMON_MISNOMERS.iter().find(|(table, key, _)| *table == R::NAME && *key == entry.key)
    {
        return Some((*here).to_owned());
    }
    if R::NAME == "ResponseHeaders" && matches!(entry.value.data, NodeData::Text(_)) {
        return Some(format!(
            "fields stand in `set`: `response_headers = {{ set = {{ {} = \"...\" }} }}`",
            entry.key
        ));
    }
    (R::NAME != "Config" && TOP_KEYS.contains(&entry.key.as_str())).then(|| {
        format!(
            "`{}` belongs at the top of the file: move it above the first `[`; what stands below a header is a part of its table",
            entry.key
        )
    })
}

fn report_unknown_key<R: DirectiveTable>(entry: &Entry, check: &mut Checker) {
    check.unknown_keys.insert(entry.key_span.start);
    if TLS_KEYS.contains(&entry.key.as_str()) && TLS_TABLES.contains(&R::NAME) {
        let title = format!("unknown key `{}` in {}", entry.key, R::PLACE);
        let finding = check.error(&entry.key_span, title, "no such key here");
        finding.help(
            "write `tls = { certificate = \"cert.pem\", key = \"key.pem\" }` or `tls = \"auto\"` in a `[[site]]`; an \
             address speaks TLS at port 443, or by `{ address = \":8443\", tls = true }` in `listen`",
        );
        return;
    }
    let names = || R::DIRECTIVES.iter().map(|directive| directive.name);
    let misplaced = misplaced_remedy::<R>(entry);
    let foreign = hint::directive_hint(&entry.key, R::PLACE);
    let near = nearest_name(&entry.key, names()).filter(|_| misplaced.is_none() && foreign.is_none());
    let label = match near {
        Some(name) => format!("did you mean `{name}`?"),
        None => "no such key here".to_owned(),
    };
    let title = format!("unknown key `{}` in {}", shorten(&entry.key), R::PLACE);
    let homes: Vec<String> = check
        .tables_of_keys
        .iter()
        .filter(|(key, _)| *key == entry.key)
        .map(|(_, place)| (*place).to_owned())
        .collect();
    let finding = check.error(&entry.key_span, title, label);
    if let Some(text) = misplaced {
        finding.help(text);
        return;
    }
    // `headers` is a limit elsewhere; here, header fields are meant.
    let of_fields: Vec<String> = match entry.key.as_str() {
        "header" | "headers" => {
            names().filter(|name| name.ends_with("_headers")).map(|name| format!("`{name}`")).collect()
        }
        _ => Vec::new(),
    };
    if !of_fields.is_empty() {
        finding.help(format!("here this is {}", join_alternatives(of_fields.into_iter())));
        return;
    }
    if let Some((_, header)) = ROUTES_TABLES.iter().find(|(table, _)| *table == R::NAME)
        && ACTION_KEYS.contains(&entry.key.as_str())
    {
        finding.help(format!("a route does this: write `{header}` on the line above"));
        return;
    }
    let home = (!homes.is_empty())
        .then(|| format!("`{}` belongs in {}", entry.key, join_alternatives(homes.into_iter())));
    if near.is_none() && foreign.is_none() && home.is_none() {
        finding.help(format!("the keys here are {}", names().collect::<Vec<_>>().join(", ")));
    }
    for text in [foreign, home].into_iter().flatten() {
        finding.help(text);
    }
}

/// Declares a record and its directives:
///
/// ```text
/// directives! {
///     /// What the table is for.
///     Limits in "`[limits]`", check limits_agree {
///         /// What the directive does.
///         "head" head_bytes_max: u64 = "16KiB", Size { min: KIB, max: MIB };
///         /// One that may be absent.
///         "connections" connections: Option<u32> = absent("as many as can be"), Maybe(Count { min: 1, max: 9 });
///     }
///     held { /// A field without a directive. line: u32; }
///     also { /// A directive that has no field of its own. "files" = brief("root") => |route, files| ...; }
/// }
/// ```
///
/// The default is TOML; or `absent("what that means")`; or `required("")`.
macro_rules! directives {
    (
        $(#[doc = $about:literal])*
        $record:ident in $place:literal $(, check $check:path)? {
            $(
                $(#[doc = $doc:literal])*
                $key:literal $field:ident: $type:ty = $default:tt $(($absent:literal))?, $shape:expr;
            )*
        }
        $( held { $( $(#[doc = $held_doc:literal])* $held:ident: $held_type:ty; )* } )?
        $( also { $( $(#[doc = $also_doc:literal])* $also_key:literal = $also_shape:expr => $put:expr; )* } )?
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $record {
            $( $(#[doc = $doc])* pub $field: $type, )*
            $($( $(#[doc = $held_doc])* pub $held: $held_type, )*)?
        }

        impl Default for $record {
            fn default() -> Self {
                // Made once, because a file with many routes needs it many times.
                static DEFAULT: std::sync::LazyLock<$record> = std::sync::LazyLock::new(|| $record {
                    $( $field: directives!(@preset $default, $shape), )*
                    $($( $held: Default::default(), )*)?
                });
                DEFAULT.clone()
            }
        }

        impl $crate::directive_table::DirectiveTable for $record {
            const NAME: &'static str = stringify!($record);
            const PLACE: &'static str = $place;
            const ABOUT: &'static str = concat!($($about, "\n"),*);
            const DIRECTIVES: &'static [$crate::directive_table::Directive<Self>] = &[
                $( $crate::directive_table::Directive {
                    name: $key,
                    doc: concat!($($doc, "\n"),*),
                    default: stringify!($default),
                    absent: concat!($($absent)?),
                    kind: || $crate::directive_table::kind::<$type, _>(&$shape),
                    read: |record, node, check| {
                        if let Some(value) = $crate::shape::Shape::read(&$shape, node, check) {
                            record.$field = value;
                        }
                    },
                }, )*
                $($( $crate::directive_table::Directive {
                    name: $also_key,
                    doc: concat!($($also_doc, "\n"),*),
                    default: "absent",
                    absent: "",
                    kind: || $crate::shape::Shape::kind(&$also_shape),
                    read: |record, node, check| {
                        if let Some(value) = $crate::shape::Shape::read(&$also_shape, node, check) {
                            let put: fn(&mut Self, _) = $put;
                            put(record, value);
                        }
                    },
                }, )*)?
            ];
            $( fn check(&mut self, node: &$crate::node::Node, check: &mut $crate::checker::Checker) {
                $check(self, node, check);
            } )?
        }
    };
    (@preset absent, $shape:expr) => { Default::default() };
    (@preset required, $shape:expr) => { Default::default() };
    (@preset $default:tt, $shape:expr) => { $crate::directive_table::parse_default(&$shape, stringify!($default)) };
}
pub(crate) use directives;

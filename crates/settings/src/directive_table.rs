//! Tables and their directives. One directive is one item of `directives!`: name, documentation, type, default, range
//! and parser. The record's field, its default, the errors, the schema and the reference are generated from it.

use crate::checker::{Checker, UnknownKey};
use crate::node::{Entry, Node, NodeData};
use crate::shape::{DirectiveReference, Shape, ShapeKind, ShortKeys, TableReference};
use serde_json::json;
use std::marker::PhantomData;
use std::path::Path;

/// A directive of the table that becomes a `T`.
pub struct Directive<T: 'static> {
    /// Key of the directive in the file.
    pub name: &'static str,
    /// Documentation comment of the directive, one line of the comment a line, each with its leading space.
    pub doc: &'static str,
    /// The default as TOML, or `absent`, or `required`.
    pub default: &'static str,
    /// Meaning of an absent directive; empty if the declaration gives none.
    pub absent: &'static str,
    /// Returns the description of the accepted values.
    pub kind: fn() -> ShapeKind,
    /// Reads a value into the table. An invalid value is reported, and leaves the table unchanged.
    pub read: fn(&mut T, &Node, &mut Checker),
}

/// A table of the configuration.
pub trait DirectiveTable: Default + 'static {
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
#[must_use]
pub fn all_chapters<R: DirectiveTable>() -> Vec<TableReference> {
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
pub struct TableShape<R>(PhantomData<R>);

/// A table read as a record.
#[must_use]
pub fn table<R: DirectiveTable>() -> TableShape<R> {
    TableShape(PhantomData)
}

impl<R: DirectiveTable> Shape for TableShape<R> {
    type Out = R;

    fn kind(&self) -> ShapeKind {
        let schema = json!({ "$ref": format!("#/$defs/{}", R::NAME) });
        ShapeKind {
            chapters: vec![table_chapter::<R>],
            ..ShapeKind::new(format!("a table, see {}", R::PLACE), schema)
        }
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<R> {
        let NodeData::Table(entries) = &node.data else {
            let example = (check.advice.table_example)(R::NAME);
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
                None => {
                    check.unknown_keys.insert(entry.key_span.start);
                    let names = R::DIRECTIVES.iter().map(|directive| directive.name).collect();
                    let unknown = UnknownKey { table: R::NAME, place: R::PLACE, names };
                    (check.advice.report_unknown_key)(&unknown, entry, check);
                }
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
pub struct ShortForm<R> {
    keys: ShortKeys,
    record: PhantomData<R>,
}

/// A record, or as a short form the value of its directive `key`.
#[must_use]
pub fn brief<R: DirectiveTable>(key: &'static str) -> ShortForm<R> {
    ShortForm { keys: ShortKeys { text: key, number: None }, record: PhantomData }
}

impl<R> ShortForm<R> {
    /// A number is the value of the directive `key`.
    #[must_use]
    pub fn number(self, key: &'static str) -> Self {
        Self { keys: ShortKeys { number: Some(key), ..self.keys }, ..self }
    }
}

impl<R: DirectiveTable> Shape for ShortForm<R> {
    type Out = R;

    fn kind(&self) -> ShapeKind {
        let mut kind = table::<R>().kind();
        let mut schemas = vec![kind.schema];
        let ShortKeys { text, number } = self.keys;
        let keys = std::iter::once(text).chain(number.filter(|number| *number != text));
        for directive in keys.filter_map(|key| R::DIRECTIVES.iter().find(|directive| directive.name == key)) {
            schemas.push((directive.kind)().schema);
            kind.text.push_str(&format!(", or just its `{}`", directive.name));
        }
        ShapeKind { schema: json!({ "anyOf": schemas }), short_form: Some(self.keys), ..kind }
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<R> {
        if matches!(node.data, NodeData::Table(_)) {
            return table().read(node, check);
        }
        let Some(key) = self.keys.key_of(&node.data) else {
            check.report_type_mismatch(node, &self.kind().text);
            return None;
        };
        let entry = Entry { key: key.to_owned(), key_span: node.span.clone(), value: node.clone() };
        table().read(&Node { span: node.span.clone(), data: NodeData::Table(vec![entry]) }, check)
    }
}

/// The description of a shape whose result type is known; `table()` finds its record by that type.
pub fn kind<T, S: Shape<Out = T>>(shape: &S) -> ShapeKind {
    shape.kind()
}

/// The value of a default, which is written as TOML.
///
/// # Panics
/// Panics if `toml` is not valid TOML, or not a valid value of `shape`.
pub fn parse_default<S: Shape>(shape: &S, toml: &str) -> S::Out {
    let text = format!("default = {toml}");
    let mut check = Checker::new(&text, "default", Path::new(""));
    let document = Node::parse_document(&text).expect("a default is valid TOML");
    let entry = document.entry("default").expect("the key was just written");
    shape.read(&entry.value, &mut check).expect("a default is a value of its directive")
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
///     { /// Further directives, in the order of the reference. ... }
/// }
/// ```
///
/// The default is TOML; or `absent("what that means")`; or `required("")`. `named "Name"` after the type gives the table
/// another name in the schema and in advice than that of the type; `derives (Eq Hash)` after that derives further traits.
#[macro_export]
macro_rules! directives {
    (
        $(#[doc = $about:literal])*
        $record:ident $(named $name:literal)? $(derives ($($derive:ident)+))? in $place:literal $(, check $check:path)?
        $(
            {
                $(
                    $(#[doc = $doc:literal])*
                    $key:literal $field:ident: $type:ty = $default:tt $(($absent:literal))?, $shape:expr;
                )*
            }
            $( held { $( $(#[doc = $held_doc:literal])* $held:ident: $held_type:ty; )* } )?
            $( also {
                $(
                    $(#[doc = $also_doc:literal])*
                    $also_key:literal $(absent($also_absent:literal))? = $also_shape:expr => $put:expr;
                )*
            } )?
        )+
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq $($(, $derive)+)?)]
        pub struct $record {
            $(
                $( $(#[doc = $doc])* pub $field: $type, )*
                $($( $(#[doc = $held_doc])* pub $held: $held_type, )*)?
            )+
        }

        impl Default for $record {
            fn default() -> Self {
                // Made once, because a file with many routes needs it many times.
                static DEFAULT: std::sync::LazyLock<$record> = std::sync::LazyLock::new(|| $record {
                    $(
                        $( $field: $crate::directives!(@preset $default, $shape), )*
                        $($( $held: Default::default(), )*)?
                    )+
                });
                DEFAULT.clone()
            }
        }

        impl $crate::directive_table::DirectiveTable for $record {
            const NAME: &'static str = $crate::directives!(@name $record $($name)?);
            const PLACE: &'static str = $place;
            const ABOUT: &'static str = concat!($($about, "\n"),*);
            const DIRECTIVES: &'static [$crate::directive_table::Directive<Self>] = &[$(
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
                    absent: concat!($($also_absent)?),
                    kind: || $crate::shape::Shape::kind(&$also_shape),
                    read: |record, node, check| {
                        if let Some(value) = $crate::shape::Shape::read(&$also_shape, node, check) {
                            let put: fn(&mut Self, _) = $put;
                            put(record, value);
                        }
                    },
                }, )*)?
            )+];
            $( fn check(&mut self, node: &$crate::node::Node, check: &mut $crate::checker::Checker) {
                $check(self, node, check);
            } )?
        }
    };
    (@name $record:ident $name:literal) => { $name };
    (@name $record:ident) => { stringify!($record) };
    (@preset absent, $shape:expr) => { Default::default() };
    (@preset required, $shape:expr) => { Default::default() };
    (@preset $default:tt, $shape:expr) => { $crate::directive_table::parse_default(&$shape, stringify!($default)) };
}

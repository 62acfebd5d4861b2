//! Responses as dictionaries for the compression of later ones (RFC 9842).

use settings::checker::InvalidValue;
use settings::directive_table::table;
use settings::directives;
use settings::shape::{Count, Flag, Maybe, OneOrMore, Shape, Size, Text, Toggle};
use settings::units::{GIB, MIB};
use shapes::pattern::PathPattern;

/// Characters of a pattern or an identifier.
const TEXT_MAX: usize = 1024;

const PATHS: OneOrMore<Text<PathPattern>> =
    OneOrMore(Text { what: "a path such as \"/a\", \"/a/*\" or \"*.php\"", parse: PathPattern::parse });
const PATTERN: Maybe<Text<String>> =
    Maybe(Text { what: "a URL pattern such as \"/assets/app.*.js\"", parse: parse_url_pattern });
const DESTINATIONS: OneOrMore<Text<String>> =
    OneOrMore(Text { what: "a destination such as \"script\" or \"document\"", parse: parse_destination });
const ID: Maybe<Text<String>> = Maybe(Text { what: "a text of visible ASCII characters", parse: parse_id });

/// `use_as_dictionary` of a route.
pub(crate) fn rules() -> impl Shape<Out = Vec<UseAsDictionary>> {
    Toggle {
        on: Some(|| vec![UseAsDictionary::default()]),
        off: Vec::new,
        shape: OneOrMore(table::<UseAsDictionary>()),
    }
}

directives! {
    /// Compression dictionaries (RFC 9842): responses of a route that clients keep, and the requests for
    /// which they are used. Later responses are sent as the difference from the dictionary. `true` is `{}`:
    /// each response is the dictionary for the next version at its own path.
    ///
    /// ```toml
    /// [[route]]
    /// path = "/assets/*"
    /// files = { root = "public", cache_control = "max-age=604800" }
    /// compress = true
    ///
    /// [[route.use_as_dictionary]]
    /// path = "/assets/app.*.js"
    /// match = "/assets/app.*.js"
    /// ```
    ///
    /// Available for `files`, and for `proxy` and `app` with `cache`; over HTTPS only. Responses need
    /// `Cache-Control: max-age`, which says how long a client may use them as dictionaries. Responses that
    /// are `private` or have `Set-Cookie` are not used. The first rule whose `path` matches applies. Clients
    /// with a dictionary get responses compressed with it in all routes of the site that have `compress` or
    /// `use_as_dictionary`.
    UseAsDictionary in "`[[route.use_as_dictionary]]`" {
        /// Paths of the responses, as in `path` of a route.
        "path" path: Vec<PathPattern> = absent("every path of the route"), PATHS;
        /// Requests for which clients use the dictionary: a URL pattern of the same origin, in which `*`
        /// matches any run of characters. Regular expressions are not allowed in it.
        "match" pattern: Option<String> = absent("the path of the response"), PATTERN;
        /// Destinations of these requests, as the fetch standard names them: `"script"`, `"style"`, `"document"`.
        "match_dest" destinations: Vec<String> = absent("all"), DESTINATIONS;
        /// A name for the dictionary, which clients send back in `Dictionary-ID`.
        "id" id: Option<String> = absent("none"), ID;
    }
}

directives! {
    /// Memory for dictionaries, shared by all routes with `use_as_dictionary`. It counts against
    /// `limits.memory`, of which it takes at most an eighth. A change discards the dictionaries: clients then
    /// get other codings until they have new ones.
    DictionaryStore in "`[dictionaries]`" {
        /// Bytes of dictionaries and of responses compressed with them. The least recently used are removed
        /// first.
        "memory" memory_bytes_max: u64 = "64MiB", Size { min: MIB, max: 64 * GIB };
        /// Versions of one URL that are kept.
        "versions" versions_max: u32 = 4, Count { min: 1, max: 1000 };
        /// Whether it is done without TLS too. For tests alone: proxies on the way may not know the codings.
        "without_tls" without_tls: bool = false, Flag;
    }
}

fn parse_url_pattern(text: &str) -> Result<String, InvalidValue> {
    check_visible(text)?;
    if !text.starts_with('/') {
        return Err(InvalidValue::new(
            "a pattern begins with a slash",
            "it is for the origin of the response",
        ));
    }
    let is_escaped = |at: usize| text[..at].bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1;
    if let Some((at, _)) = text.match_indices('(').find(|(at, _)| !is_escaped(*at)) {
        return Err(InvalidValue::new(
            "a pattern has no regular expression",
            "`*` stands for any run of characters",
        )
        .within(at..at + 1));
    }
    Ok(text.to_owned())
}

fn parse_destination(text: &str) -> Result<String, InvalidValue> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_lowercase()) {
        Err(InvalidValue::new("a destination is a word such as `script`", ""))
    } else {
        Ok(text.to_owned())
    }
}

fn parse_id(text: &str) -> Result<String, InvalidValue> {
    check_visible(text)?;
    Ok(text.to_owned())
}

fn check_visible(text: &str) -> Result<(), InvalidValue> {
    if text.is_empty() || text.len() > TEXT_MAX {
        return Err(InvalidValue::new("it has 1 to 1024 characters", ""));
    }
    if text.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
        Ok(())
    } else {
        Err(InvalidValue::new("it has visible ASCII characters only", "percent-encode others"))
    }
}

//! Compression dictionary transport (RFC 9842): selects responses that clients store as dictionaries and
//! responses that are compressed with one.
//!
//! Decisions depend only on the request and the response's fields; handlers provide and store the content.

use std::sync::Arc;

use coding::{
    Delta, DeltaJob, Dictionaries, DictionaryCoding, DictionaryHash, DictionaryUrl, Effort, HashedContent,
};
use http::coding::weighted_elements;
use http::dictionary::{FetchContext, available_hash, pattern_of, use_as_dictionary};
use http::{Coding, Fields, Method, Name, Status, media, scan};
use settings::checker::InvalidValue;
use settings::directive_table::table;
use settings::directives;
use settings::shape::{Count, Flag, Maybe, OneOrMore, Shape, Size, Text, Toggle};
use settings::units::{GIB, MIB};
use shapes::pattern::PathPattern;

use crate::compress::has_fixed_bytes;
pub use crate::compress::weaken_tag;
use crate::request::Request;

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
pub fn rules() -> impl Shape<Out = Vec<UseAsDictionary>> {
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
    /// `use_as_dictionary`, and the same `auth`, `allow` and `deny` as the route of the dictionary.
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

/// Dictionary settings of a route.
#[derive(Clone, Debug)]
pub struct DictionaryTransport {
    /// The known dictionaries, shared by all routes.
    pub dictionaries: Arc<Dictionaries>,
    /// Rules; the first one that applies is used.
    pub rules: Arc<[UseAsDictionary]>,
    /// Compression effort.
    pub effort: Effort,
    /// Media types that are compressed with a dictionary, in the syntax of [`media::matches_any`].
    pub media: Vec<String>,
    /// Whether dictionaries are used without TLS too, for tests.
    pub allows_cleartext: bool,
}

/// A response that clients store as a dictionary.
#[derive(Clone, Debug)]
pub struct DictionaryUse {
    /// The value of `Use-As-Dictionary`.
    pub value: Vec<u8>,
    /// Lifetime of the dictionary, in seconds.
    pub lifetime_s: u64,
}

/// Origin and path of a response.
#[derive(Clone, Debug)]
pub struct DictionarySource {
    origin: Vec<u8>,
    path: Vec<u8>,
}

/// A dictionary that the client has, and the coding to use with it.
#[derive(Clone, Debug)]
pub struct DictionaryChoice {
    /// The dictionary.
    pub dictionary: HashedContent,
    /// The coding.
    pub coding: DictionaryCoding,
}

/// Result of [`DictionaryTransport::start`].
#[derive(Debug)]
pub enum DeltaStart {
    /// The compressed content, from an earlier request.
    Ready(Arc<[u8]>),
    /// A job that compresses the content, which may block, and its effort.
    Compress(DeltaJob, Effort),
}

impl DictionaryTransport {
    /// Returns how clients may use the response as a dictionary; `None` if they must not. Responses that are
    /// private, set a cookie or have no `max-age` are never dictionaries.
    #[must_use]
    pub fn use_of(&self, request: &Request<'_>, status: Status, fields: &Fields) -> Option<DictionaryUse> {
        let rule = self.rule(request).filter(|_| status == Status::OK)?;
        let lifetime_s = lifetime_s(fields)?;
        let own = || request.encoded_path().ok().map(|path| pattern_of(&path));
        let pattern = rule.pattern.as_ref().map_or_else(own, |text| Some(text.clone().into_bytes()))?;
        let value = use_as_dictionary(&pattern, &rule.destinations, rule.id.as_deref())?;
        Some(DictionaryUse { value, lifetime_s })
    }

    /// Returns origin and path of the request if a rule applies, for [`DictionaryTransport::remember_from`].
    #[must_use]
    pub fn source(&self, request: &Request<'_>) -> Option<DictionarySource> {
        self.rule(request).map(|_| {
            let (origin, path) = origin_and_path(request);
            DictionarySource { origin, path }
        })
    }

    fn rule(&self, request: &Request<'_>) -> Option<&UseAsDictionary> {
        let reads = matches!(request.method(), Method::Get | Method::Head);
        if self.rules.is_empty() || !self.is_secure(request) || !reads {
            return None;
        }
        let path = request.normal_path().ok()?;
        self.rules.iter().find(|rule| rule.path.is_empty() || rule.path.iter().any(|one| one.matches(&path)))
    }

    /// Remembers the content of a response stored at `now_s` (seconds since 1970), if clients may store it as
    /// a dictionary.
    pub fn remember_from(
        &self,
        source: &DictionarySource,
        fields: &Fields,
        content: &HashedContent,
        now_s: u64,
    ) {
        if let Some(lifetime_s) = lifetime_s(fields) {
            let place = DictionaryUrl { origin: &source.origin, path: &source.path };
            self.dictionaries.remember(place, content, now_s + lifetime_s);
        }
    }

    /// Extends the lifetime of a known dictionary by its hash. Returns false if the content is not known.
    #[must_use]
    pub fn touch(&self, request: &Request<'_>, hash: &DictionaryHash, until_s: u64) -> bool {
        let (origin, path) = origin_and_path(request);
        self.dictionaries.touch(DictionaryUrl { origin: &origin, path: &path }, hash, until_s)
    }

    /// Remembers a dictionary until `until_s` (seconds since 1970).
    pub fn remember(&self, request: &Request<'_>, content: &HashedContent, until_s: u64) {
        let (origin, path) = origin_and_path(request);
        self.dictionaries.remember(DictionaryUrl { origin: &origin, path: &path }, content, until_s);
    }

    /// Whether clients with a dictionary get the response compressed with it, so that `Vary` must list
    /// `Available-Dictionary`.
    #[must_use]
    pub fn may_compress(&self, request: &Request<'_>, status: Status, fields: &Fields) -> bool {
        self.is_secure(request) && status == Status::OK && self.is_media(fields) && !has_fixed_bytes(fields)
    }

    /// Returns the dictionary to compress the response with, at `now_s` (seconds since 1970): the client has
    /// it and prefers a coding with it, and the origin that caused the request may read the response.
    #[must_use]
    pub fn choose(&self, request: &Request<'_>, fields: &Fields, now_s: u64) -> Option<DictionaryChoice> {
        // Most requests have no such field.
        let hash = available_hash(request.field(Name::AvailableDictionary)?)?;
        let reads = matches!(request.method(), Method::Get | Method::Head);
        if !reads || request.field(Name::Range).is_some() || !context(request).may_read(fields) {
            return None;
        }
        if fields.first(b"set-cookie").is_some() || !is_public(fields) {
            return None;
        }
        let coding = preferred(request)?;
        let dictionary = self.dictionaries.find(&origin_and_path(request).0, &hash, now_s)?;
        Some(DictionaryChoice { dictionary, coding })
    }

    /// Returns the compressed form of the content with that hash and length. `None` if it would not be
    /// smaller or if too many are being made; the response is then sent in another coding.
    #[must_use]
    pub fn start(
        &self,
        choice: &DictionaryChoice,
        content: &DictionaryHash,
        length: u64,
    ) -> Option<DeltaStart> {
        match self.dictionaries.delta(&choice.dictionary, content, length, choice.coding) {
            Delta::Ready(made) => Some(DeltaStart::Ready(made)),
            Delta::None => None,
            Delta::Job(job) => Some(DeltaStart::Compress(job, self.effort)),
        }
    }

    fn is_secure(&self, request: &Request<'_>) -> bool {
        self.allows_cleartext || request.client().is_secure
    }

    fn is_media(&self, fields: &Fields) -> bool {
        let media_type = fields.first(b"content-type").map(media::without_parameters).unwrap_or_default();
        media::matches_any(&media_type, &self.media) && !media::is_compressed(&media_type)
    }
}

/// Updates the fields for content compressed with a dictionary.
pub fn set_dictionary_coded_fields(fields: &mut Fields, coding: DictionaryCoding) {
    fields.remove(b"content-encoding");
    fields.push(Name::ContentEncoding, coding.text().as_bytes());
    fields.remove(b"Accept-Ranges");
    weaken_tag(fields);
}

/// Adds the client's codings and dictionary to `Vary`.
pub fn add_dictionary_vary(fields: &mut Fields) {
    for name in ["Accept-Encoding", "Available-Dictionary"] {
        let varies = |(field, value): (&[u8], &[u8])| {
            field.eq_ignore_ascii_case(b"vary")
                && scan::list(value).any(|one| one == b"*" || one.eq_ignore_ascii_case(name.as_bytes()))
        };
        if !fields.iter().any(varies) {
            fields.push(Name::Vary, name.as_bytes());
        }
    }
}

/// Returns the origin and the path of a request.
fn origin_and_path(request: &Request<'_>) -> (Vec<u8>, Vec<u8>) {
    let scheme: &[u8] = if request.client().is_secure { b"https://" } else { b"http://" };
    let origin = [scheme, &request.authority().to_ascii_lowercase()].concat();
    (origin, request.encoded_path().map(|path| path.into_owned()).unwrap_or_default())
}

fn values_of<'r>(request: &Request<'r>, name: &'static [u8]) -> impl Iterator<Item = &'r [u8]> {
    let fields: Vec<_> = request.fields().collect();
    fields.into_iter().filter(|(_, other, _)| other.eq_ignore_ascii_case(name)).map(|(.., value)| value)
}

fn context<'r>(request: &Request<'r>) -> FetchContext<'r> {
    FetchContext {
        site: values_of(request, b"sec-fetch-site").next(),
        mode: values_of(request, b"sec-fetch-mode").next(),
        origin: request.field(Name::Origin),
    }
}

/// Returns the dictionary coding that the client rates at least as high as all other codings.
fn preferred(request: &Request<'_>) -> Option<DictionaryCoding> {
    let mut weights = [0; DictionaryCoding::ALL.len()];
    let mut other = 0;
    for (name, weight) in values_of(request, b"accept-encoding").flat_map(weighted_elements) {
        match DictionaryCoding::ALL
            .iter()
            .position(|coding| name.eq_ignore_ascii_case(coding.text().as_bytes()))
        {
            Some(at) => weights[at] = weight,
            None if Coding::of(name).is_some() => other = other.max(weight),
            None => {}
        }
    }
    let best = *weights.iter().max().expect("there are two");
    let at = weights.iter().position(|weight| *weight == best)?;
    (best > 0 && best >= other).then(|| DictionaryCoding::ALL[at])
}

/// Whether the response may be shared between clients.
fn is_public(fields: &Fields) -> bool {
    let private = [&b"private"[..], b"no-store", b"no-transform"];
    let personal = [&b"cookie"[..], b"authorization"];
    !is_listed(fields, b"cache-control", &private) && !is_listed(fields, b"vary", &personal)
}

/// Whether one of `words` is an element of the field's list.
fn is_listed(fields: &Fields, name: &[u8], words: &[&[u8]]) -> bool {
    let values = fields.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
    let mut items = values.flat_map(|(_, value)| scan::list(value));
    items.any(|one| words.iter().any(|word| one.eq_ignore_ascii_case(word)))
}

fn directives(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    let values = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"cache-control"));
    values.flat_map(|(_, value)| scan::list(value))
}

/// Returns the time for which clients may use the response, in seconds: `max-age` plus
/// `stale-while-revalidate`.
fn lifetime_s(fields: &Fields) -> Option<u64> {
    if !is_public(fields) || fields.first(b"set-cookie").is_some() {
        return None;
    }
    let seconds = |name: &[u8]| {
        let value = directives(fields).find_map(|one| {
            let (directive, value) = one.split_at_checked(name.len())?;
            directive.eq_ignore_ascii_case(name).then_some(value)?.strip_prefix(b"=")
        })?;
        std::str::from_utf8(value).ok()?.parse::<u32>().ok().map(u64::from)
    };
    let fresh_s = seconds(b"max-age")?;
    (fresh_s > 0).then(|| fresh_s + seconds(b"stale-while-revalidate").unwrap_or(0))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        lines.iter().for_each(|(name, value)| fields.try_push(name.as_bytes(), value.as_bytes()).unwrap());
        fields
    }

    #[test]
    fn dictionary_lifetime_requires_a_fresh_public_response() {
        let lifetime = |lines: &[(&str, &str)]| lifetime_s(&fields(lines));
        assert_eq!(lifetime(&[("Cache-Control", "public, Max-Age=60")]), Some(60));
        let stale = [("Cache-Control", "max-age=60"), ("Cache-Control", "stale-while-revalidate=5")];
        assert_eq!(lifetime(&stale), Some(65));
        for lines in [
            &[][..],
            &[("Cache-Control", "max-age=0")],
            &[("Cache-Control", "max-agex=1, max-age=a")],
            &[("Cache-Control", "private, max-age=60")],
            &[("Cache-Control", "max-age=60"), ("Vary", "Accept, Cookie")],
            &[("Cache-Control", "max-age=60"), ("Set-Cookie", "a=b")],
            &[("Cache-Control", "max-age=60"), ("Cache-Control", "no-transform")],
        ] {
            assert_eq!(lifetime(lines), None, "{lines:?}");
        }
    }

    #[test]
    fn dictionary_coding_updates_vary_etag_and_content_encoding() {
        let mut made = fields(&[("ETag", "\"a\""), ("Accept-Ranges", "bytes"), ("Vary", "accept-encoding")]);
        add_dictionary_vary(&mut made);
        add_dictionary_vary(&mut made);
        set_dictionary_coded_fields(&mut made, DictionaryCoding::Brotli);
        let text = String::from_utf8(made.as_bytes().to_vec()).unwrap();
        assert_eq!(
            text,
            "Vary: accept-encoding\r\nVary: Available-Dictionary\r\nContent-Encoding: dcb\r\nETag: W/\"a\"\r\n"
        );
    }
}

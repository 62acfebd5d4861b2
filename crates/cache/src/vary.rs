//! `Vary` (RFC 9111 section 4.1): selects requests that a stored response answers. Values are normalized, so
//! that equivalent requests get the same response.

use http::{Fields, HeadRef, Name, scan};

use crate::cache_control::joined;

/// Maximum field names in `Vary` of a stored response.
const NAMES_MAX: usize = 8;
/// Maximum total bytes of the values of one variant.
const VALUES_BYTES_MAX: usize = 2048;
/// Known content codings, in the order in which they are forwarded.
const CODINGS: [&[u8]; 3] = [b"br", b"gzip", b"zstd"];

/// Request fields that this server writes with different values for each client or request; a response that
/// varies by one is not reusable.
const WRITTEN_FOR_EACH: [&[u8]; 7] =
    [b"forwarded", b"x-forwarded-for", b"x-real-ip", b"x-request-id", b"traceparent", b"tracestate", b"via"];
/// Request fields that this server writes from the URL, which is in the key.
const WRITTEN_FROM_URL: [&[u8]; 5] =
    [b"host", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto", b"x-forwarded-ssl"];

/// Field name in lower case, and the normalized value in the request; `None` if the request has no such
/// field.
type Selector = (Vec<u8>, Option<Vec<u8>>);

/// Parts of a route's key beside the URL. Each is a name by which [`RequestVariant`] finds its value in a
/// request: a field name, or a pseudo-name that begins with a space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyFields {
    names: Vec<Vec<u8>>,
    /// Fields that the route writes into requests, with values that depend on the request.
    written: Vec<Vec<u8>>,
}

const COOKIE: &[u8] = b" cookie ";
const LANGUAGE: &[u8] = b" language ";
const DEVICE: &[u8] = b" device";
const ANY_CODING: &[u8] = b" any coding";

impl KeyFields {
    /// Adds a field. `name` is in lower case.
    pub fn add_field(&mut self, name: &str) {
        self.names.push(name.as_bytes().to_vec());
    }

    /// Adds a cookie.
    pub fn add_cookie(&mut self, name: &str) {
        self.names.push([COOKIE, name.as_bytes()].concat());
    }

    /// Declares that requests which fill the cache have no cookies, so that `Vary: Cookie` is ignored.
    pub fn add_no_cookies(&mut self) {
        self.names.push(COOKIE.to_vec());
    }

    /// Adds the request's preferred language among these, in lower case; the first one is the default.
    pub fn add_language(&mut self, languages: &[String]) {
        self.names.push([LANGUAGE, languages.join(",").as_bytes()].concat());
    }

    /// Declares that requests which fill the cache have no `Accept-Encoding`, so that `Vary: Accept-Encoding`
    /// is ignored.
    pub fn add_any_coding(&mut self) {
        self.names.push(ANY_CODING.to_vec());
    }

    /// Adds the kind of device.
    pub fn add_device(&mut self) {
        self.names.push(DEVICE.to_vec());
    }

    /// Adds a field that the route writes into requests, with values that depend on the request. `name` is in
    /// lower case.
    pub fn add_written(&mut self, name: &str) {
        self.written.push(name.as_bytes().to_vec());
    }

    /// Whether a field in `Vary` is written with a value that is not in the key.
    fn is_written(&self, name: &[u8]) -> bool {
        WRITTEN_FOR_EACH.contains(&name) || self.is_written_by_route(name)
    }

    /// Whether the route writes this field.
    fn is_written_by_route(&self, name: &[u8]) -> bool {
        self.written.iter().any(|one| one == name)
    }

    /// Whether the key consists of the URL alone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the language selected for a request, if the key has languages.
    #[must_use]
    pub fn language(&self, request: HeadRef<'_>) -> Option<Vec<u8>> {
        self.names.iter().find(|name| name.starts_with(LANGUAGE)).and_then(|name| normal(name, request))
    }

    /// Writes a request's values, which must be equal for requests that share a fill.
    pub fn write(&self, out: &mut Vec<u8>, request: HeadRef<'_>) {
        for name in &self.names {
            out.push(b'\n');
            match normal(name, request) {
                Some(value) => out.extend_from_slice(&[b"=", &value[..]].concat()),
                None => out.push(b'-'),
            }
        }
    }

    /// Whether a field in `Vary` is represented in the key in another form.
    fn covers(&self, name: &[u8]) -> bool {
        if WRITTEN_FROM_URL.contains(&name) && !self.is_written_by_route(name) {
            return true;
        }
        let kind = match name {
            b"cookie" => COOKIE,
            b"accept-language" => LANGUAGE,
            b"user-agent" => DEVICE,
            b"accept-encoding" => ANY_CODING,
            _ => return false,
        };
        self.names.iter().any(|one| one.starts_with(kind))
    }
}

/// Request field values by which a response was selected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestVariant(Vec<Selector>);

/// Reason for not storing a response because of its `Vary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VaryFault {
    /// The response varies by properties that requests do not show (`*`).
    Any,
    /// The response varies by too many fields or too long values.
    TooMuch,
}

impl RequestVariant {
    /// Returns the variant of a response to this request.
    ///
    /// # Errors
    /// The response answers no other request, or varies by too much.
    pub fn of(fields: &Fields, request: HeadRef<'_>) -> Result<RequestVariant, VaryFault> {
        RequestVariant::with_key(fields, request, &KeyFields::default(), false)
    }

    /// Like [`RequestVariant::of`], with further parts of the key. With `ignores_vary` the response's `Vary`
    /// is ignored, except for `Accept-Encoding`.
    ///
    /// # Errors
    /// The response answers no other request, or varies by too much.
    pub fn with_key(
        fields: &Fields,
        request: HeadRef<'_>,
        key: &KeyFields,
        ignores_vary: bool,
    ) -> Result<RequestVariant, VaryFault> {
        let value = joined(fields, b"vary");
        let mut names: Vec<Vec<u8>> = scan::list(&value).map(<[u8]>::to_ascii_lowercase).collect();
        let counts = |name: &[u8]| !key.covers(name) && (!ignores_vary || name == b"accept-encoding");
        names.retain(|name| counts(name));
        // An invalid field name is treated like `*` (RFC 9110 section 12.5.5).
        let is_any = |name: &Vec<u8>| name == b"*" || !scan::is_token(name) || key.is_written(name);
        if names.iter().any(is_any) {
            return Err(VaryFault::Any);
        }
        names.sort_unstable();
        names.dedup();
        if names.len() > NAMES_MAX {
            return Err(VaryFault::TooMuch);
        }
        names.extend(key.names.iter().cloned());
        names.sort_unstable();
        names.dedup();
        let selectors: Vec<Selector> = names
            .into_iter()
            .map(|name| {
                let value = normal(&name, request);
                (name, value)
            })
            .collect();
        let variant = RequestVariant(selectors);
        if variant.weight_bytes() > VALUES_BYTES_MAX {
            return Err(VaryFault::TooMuch);
        }
        Ok(variant)
    }

    /// Returns the names in lower case and the normalized values.
    pub(crate) fn selectors(&self) -> &[(Vec<u8>, Option<Vec<u8>>)] {
        &self.0
    }

    /// Restores the variant of a stored response.
    pub(crate) fn of_selectors(selectors: Vec<(Vec<u8>, Option<Vec<u8>>)>) -> RequestVariant {
        RequestVariant(selectors)
    }

    /// Whether a response selected by this variant answers the request.
    #[must_use]
    pub fn answers(&self, request: HeadRef<'_>) -> bool {
        self.0.iter().all(|(name, value)| normal(name, request) == *value)
    }

    /// Returns each field with the required value, for people.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let shown = |(name, value): &Selector| match value {
            Some(value) => format!("{}: {}", lossy(name), lossy(value)),
            None => format!("{} is absent", lossy(name)),
        };
        self.0.iter().map(shown).collect()
    }

    /// Whether the variant includes all parts of the current key.
    #[must_use]
    pub fn covers_key(&self, key: &KeyFields) -> bool {
        key.names.iter().all(|name| self.0.iter().any(|(other, _)| other == name))
    }

    /// Returns the bytes of the names and values.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, Vec::len)).sum()
    }
}

/// Returns the normalized value of a request field; `None` if it is absent. `name` is in lower case.
fn normal(name: &[u8], request: HeadRef<'_>) -> Option<Vec<u8>> {
    if name.starts_with(b" ") {
        return derived(name, request);
    }
    let mut values = request.values_named(name).peekable();
    values.peek()?;
    let elements = values.flat_map(scan::list);
    Some(match name {
        b"accept-encoding" => codings(elements),
        b"accept-language" => languages(elements),
        _ => elements.collect::<Vec<_>>().join(&b","[..]),
    })
}

/// Returns the value for a pseudo-name of [`KeyFields`].
fn derived(name: &[u8], request: HeadRef<'_>) -> Option<Vec<u8>> {
    if name == COOKIE || name == ANY_CODING {
        return None;
    }
    if let Some(cookie) = name.strip_prefix(COOKIE) {
        // Includes all cookies of that name, because some origins use the first and some the last.
        let values: Vec<&[u8]> =
            cookies(request).filter(|(name, _)| *name == cookie).map(|(_, value)| value).collect();
        return (!values.is_empty()).then(|| values.join(&b";"[..]));
    }
    if let Some(languages) = name.strip_prefix(LANGUAGE) {
        return Some(preferred_language(languages, request));
    }
    Some(device(request).to_vec())
}

/// Returns the names and values of a request's cookies.
pub fn cookies<'r>(request: HeadRef<'r>) -> impl Iterator<Item = (&'r [u8], &'r [u8])> {
    let fields = request.values(Name::Cookie);
    let pairs = fields.flat_map(|value| value.split(|&byte| byte == b';')).map(scan::trim);
    pairs.filter(|pair| !pair.is_empty()).map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
        (scan::trim(&pair[..at]), pair.get(at + 1..).unwrap_or_default())
    })
}

/// Returns the one of `languages`, separated by commas, that the request prefers, by default the first (RFC
/// 4647 section 3.4).
fn preferred_language(languages: &[u8], request: HeadRef<'_>) -> Vec<u8> {
    let ours = || languages.split(|&byte| byte == b',');
    let elements = request.values(Name::AcceptLanguage).flat_map(scan::list);
    let mut wanted: Vec<(Vec<u8>, u32)> = elements.map(weighted).filter(|(_, weight)| *weight > 0).collect();
    wanted.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
    for (name, _) in &wanted {
        let mut range = &name[..];
        loop {
            if let Some(found) = ours().find(|one| *one == range) {
                return found.to_vec();
            }
            let Some(at) = range.iter().rposition(|&byte| byte == b'-') else { break };
            range = &range[..at];
        }
    }
    ours().next().unwrap_or_default().to_vec()
}

/// Returns the kind of device: `mobile`, `tablet`, `desktop`, or `unclear` for contradictory requests,
/// because origins differ in the field that they use.
fn device(request: HeadRef<'_>) -> &'static [u8] {
    let mut agents = request.values(Name::UserAgent);
    let agent = agents.next().unwrap_or_default();
    let has = |word: &[u8]| agent.windows(word.len()).any(|part| part == word);
    let is_android = has(b"Android");
    let kind: &[u8] = match () {
        () if has(b"iPad") || has(b"Tablet") || is_android && !has(b"Mobi") => b"tablet",
        () if has(b"Mobi") || has(b"iPhone") => b"mobile",
        () => b"desktop",
    };
    let contradicts =
        request.values_named(b"sec-ch-ua-mobile").any(|hint| hint != b"?0") && kind == b"desktop";
    if contradicts || agents.next().is_some() { b"unclear" } else { kind }
}

/// Returns the normalized `Accept-Encoding` of a request: the known codings that it accepts, in a fixed
/// order; empty if none.
#[must_use]
pub fn accepted_codings(request: HeadRef<'_>) -> Vec<u8> {
    normal(b"accept-encoding", request).unwrap_or_default()
}

/// Returns the name in lower case and the weight in thousandths of an element with parameters.
fn weighted(element: &[u8]) -> (Vec<u8>, u32) {
    let mut parts = element.split(|&byte| byte == b';').map(scan::trim);
    let name = parts.next().unwrap_or_default().to_ascii_lowercase();
    let quality = parts.find_map(|part| match part.split_at_checked(2) {
        Some((b"q=" | b"Q=", value)) => Some(thousandths(value)),
        _ => None,
    });
    (name, quality.unwrap_or(1000))
}

/// Parses a weight (RFC 9110 section 12.4.2) in thousandths; 0 if invalid.
fn thousandths(value: &[u8]) -> u32 {
    let digit = |at: usize| match value.get(at) {
        None => Some(0),
        Some(digit @ b'0'..=b'9') => Some(u32::from(digit - b'0')),
        Some(_) => None,
    };
    if value.len() > 5 || !matches!(value.get(1), None | Some(b'.')) {
        return 0;
    }
    let (Some(ones), Some(a), Some(b), Some(c)) = (digit(0), digit(2), digit(3), digit(4)) else { return 0 };
    (ones * 1000 + a * 100 + b * 10 + c).min(1000)
}

fn codings<'a>(elements: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let elements: Vec<(Vec<u8>, u32)> = elements.map(weighted).collect();
    let weight = |wanted: &[u8]| {
        let found = elements.iter().find(|(name, _)| name == wanted);
        found.or_else(|| elements.iter().find(|(name, _)| name == b"*")).map_or(0, |(_, weight)| *weight)
    };
    let accepted: Vec<&[u8]> = CODINGS.into_iter().filter(|coding| weight(coding) > 0).collect();
    accepted.join(&b", "[..])
}

/// Normalizes languages: sorted by weight, then alphabetically.
fn languages<'a>(elements: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut elements: Vec<(Vec<u8>, u32)> =
        elements.map(weighted).filter(|(_, weight)| *weight > 0).collect();
    elements.sort_by(|(name, weight), (other, others)| others.cmp(weight).then_with(|| name.cmp(other)));
    let mut text = Vec::new();
    let mut before = u32::MAX;
    for (name, weight) in elements {
        if !text.is_empty() {
            // Only the order of the weights matters, not their values.
            text.extend_from_slice(if weight == before { b"," } else { b">" });
        }
        text.extend_from_slice(&name);
        before = weight;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::RequestHead;

    fn request(lines: &str) -> (RequestHead, Vec<u8>) {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n").into_bytes();
        let mut head = RequestHead::default();
        assert!(head.parse(&bytes, &http::Limits::default()).unwrap());
        (head, bytes)
    }

    fn variant(vary: &str, lines: &str) -> Result<RequestVariant, VaryFault> {
        let mut fields = Fields::new();
        fields.try_push(b"Vary", vary.as_bytes()).unwrap();
        let (head, bytes) = request(lines);
        RequestVariant::of(&fields, HeadRef::new(&head, &bytes))
    }

    fn answers(vary: &str, one: &str, other: &str) -> bool {
        let (head, bytes) = request(other);
        variant(vary, one).unwrap().answers(HeadRef::new(&head, &bytes))
    }

    #[test]
    fn equivalent_requests_match_the_same_variant() {
        for (vary, one, other, same) in [
            ("Foo", "Foo: 1\r\n", "Foo: 1\r\n", true),
            ("Foo", "Foo: 1\r\n", "Foo: 2\r\n", false),
            ("Foo", "Foo: 1\r\n", "", false),
            ("Foo", "", "Foo: 1\r\n", false),
            ("Foo", "", "Foo:\r\n", false),
            ("Foo", "", "", true),
            ("Foo", "Foo: 1\r\nFoo: 2\r\n", "Foo: 1,  2\r\n", true),
            ("foo, BAR", "Foo: 1\r\nBar: 2\r\n", "Bar: 2\r\nFoo: 1\r\n", true),
            ("foo, BAR", "Foo: 1\r\nBar: 2\r\n", "Bar: 3\r\nFoo: 1\r\n", false),
            ("Other", "Foo: 1\r\n", "Foo: 2\r\n", true),
            (
                "Accept-Encoding",
                "Accept-Encoding: gzip, br\r\n",
                "Accept-Encoding: br;q=0.5,gzip;q=1\r\n",
                true,
            ),
            ("Accept-Encoding", "Accept-Encoding: gzip, x\r\n", "Accept-Encoding: gzip\r\n", true),
            ("Accept-Encoding", "Accept-Encoding: gzip;q=0\r\n", "Accept-Encoding: gzip\r\n", false),
            ("Accept-Encoding", "Accept-Encoding: *\r\n", "Accept-Encoding: gzip, br, zstd\r\n", true),
            ("Accept-Language", "Accept-Language: en, de\r\n", "Accept-Language: DE,en\r\n", true),
            (
                "Accept-Language",
                "Accept-Language: en, de;q=0.5\r\n",
                "Accept-Language: de;q=0.3, en\r\n",
                true,
            ),
            ("Accept-Language", "Accept-Language: en, de;q=0.5\r\n", "Accept-Language: de, en\r\n", false),
        ] {
            assert_eq!(answers(vary, one, other), same, "{vary}: {one:?} {other:?}");
        }
    }

    #[test]
    fn vary_on_fields_written_by_the_server_prevents_storing() {
        for name in [
            "X-Forwarded-For",
            "forwarded",
            "Accept, X-Real-IP",
            "X-Request-Id",
            "traceparent",
            "\"Accept\"",
            "Accept;q=1",
        ] {
            assert_eq!(variant(name, "X-Forwarded-For: 1\r\n"), Err(VaryFault::Any), "{name}");
        }
        // The URL in the key already contains these.
        assert!(answers("X-Forwarded-Proto, Host", "X-Forwarded-Proto: https\r\n", ""));
        let mut key = KeyFields::default();
        key.add_written("x-ip");
        key.add_written("x-forwarded-proto");
        for (vary, outcome) in [("X-Ip", true), ("X-Forwarded-Proto", true), ("X-Other", false)] {
            let mut fields = Fields::new();
            fields.try_push(b"Vary", vary.as_bytes()).unwrap();
            let (head, bytes) = request("");
            let made = RequestVariant::with_key(&fields, HeadRef::new(&head, &bytes), &key, false);
            assert_eq!(made == Err(VaryFault::Any), outcome, "{vary}");
            assert!(
                RequestVariant::with_key(&fields, HeadRef::new(&head, &bytes), &key, true).is_ok(),
                "`ignore` has the last word"
            );
        }
    }

    #[test]
    fn vary_star_and_oversized_vary_are_refused() {
        for any in ["*", "*, *", ", *", "Foo, *"] {
            assert_eq!(variant(any, ""), Err(VaryFault::Any), "{any}");
        }
        assert_eq!(variant("a,b,c,d,e,f,g,h,i", ""), Err(VaryFault::TooMuch));
        assert_eq!(variant("a", &format!("A: {}\r\n", "x".repeat(2048))), Err(VaryFault::TooMuch));
    }

    #[test]
    fn cache_key_may_include_fields_cookies_language_and_device() {
        let mut key = KeyFields::default();
        key.add_field("x-country");
        key.add_cookie("theme");
        key.add_language(&["en".into(), "de".into(), "pt-br".into()]);
        key.add_device();
        let with = |vary: &str, lines: &str| {
            let mut fields = Fields::new();
            fields.try_push(b"Vary", vary.as_bytes()).unwrap();
            let (head, bytes) = request(lines);
            RequestVariant::with_key(&fields, HeadRef::new(&head, &bytes), &key, false).unwrap()
        };
        let one = "X-Country: at\r\nCookie: a=1; theme=dark; b=2\r\nAccept-Language: de-AT, en;q=0.5\r\nUser-Agent: iPhone Mobile\r\n";
        let variant = with("Cookie, User-Agent, Accept-Language", one);
        for (lines, same) in [
            (one, true),
            (
                "X-Country: at\r\nCookie: theme=dark\r\nAccept-Language: de\r\nUser-Agent: a Mobile\r\nSec-CH-UA-Mobile: ?1\r\n",
                true,
            ),
            (
                "X-Country: de\r\nCookie: theme=dark\r\nAccept-Language: de\r\nUser-Agent: a Mobile\r\nSec-CH-UA-Mobile: ?1\r\n",
                false,
            ),
            (
                "X-Country: at\r\nCookie: theme=light\r\nAccept-Language: de\r\nUser-Agent: a Mobile\r\nSec-CH-UA-Mobile: ?1\r\n",
                false,
            ),
            (
                "X-Country: at\r\nCookie: theme=dark; theme=x\r\nAccept-Language: de\r\nUser-Agent: a Mobile\r\nSec-CH-UA-Mobile: ?1\r\n",
                false,
            ),
            (
                "X-Country: at\r\nAccept-Language: de\r\nUser-Agent: a Mobile\r\nSec-CH-UA-Mobile: ?1\r\n",
                false,
            ),
            (
                "X-Country: at\r\nCookie: theme=dark\r\nAccept-Language: fr\r\nUser-Agent: a Mobile\r\nSec-CH-UA-Mobile: ?1\r\n",
                false,
            ),
            ("X-Country: at\r\nCookie: theme=dark\r\nAccept-Language: de\r\nUser-Agent: iPad\r\n", false),
            // Contradictory: origins may use either field.
            (
                "X-Country: at\r\nCookie: theme=dark\r\nAccept-Language: de\r\nUser-Agent: desktop\r\nSec-CH-UA-Mobile: ?1\r\n",
                false,
            ),
            (
                "X-Country: at\r\nCookie: theme=dark\r\nAccept-Language: de\r\nUser-Agent: a\r\nUser-Agent: iPhone\r\n",
                false,
            ),
            (
                "X-Country: at\r\nCookie: theme=dark\r\nAccept-Language: de\r\nUser-Agent: iPhone\r\nUser-Agent: a\r\n",
                false,
            ),
        ] {
            let (head, bytes) = request(lines);
            assert_eq!(variant.answers(HeadRef::new(&head, &bytes)), same, "{lines}");
        }
        assert!(variant.covers_key(&key) && !RequestVariant::default().covers_key(&key));
        assert!(RequestVariant::default().covers_key(&KeyFields::default()));
        for (accepted, language) in [
            ("", "en"),
            ("Accept-Language: fr, *\r\n", "en"),
            ("Accept-Language: en;q=0.1, pt-BR\r\n", "pt-br"),
            ("Accept-Language: pt\r\n", "en"),
            ("Accept-Language: de;q=0, en;q=0.1\r\n", "en"),
            ("Accept-Language: x-de, de-CH-1996\r\n", "de"),
        ] {
            let (head, bytes) = request(accepted);
            assert_eq!(key.language(HeadRef::new(&head, &bytes)).unwrap(), language.as_bytes(), "{accepted}");
        }
    }

    #[test]
    fn ignored_vary_still_respects_accept_encoding() {
        let mut fields = Fields::new();
        fields.try_push(b"Vary", b"User-Agent, *, Accept-Encoding").unwrap();
        let (head, bytes) = request("Accept-Encoding: gzip\r\nUser-Agent: a\r\n");
        let variant =
            RequestVariant::with_key(&fields, HeadRef::new(&head, &bytes), &KeyFields::default(), true)
                .unwrap();
        for (lines, same) in
            [("Accept-Encoding: gzip\r\nUser-Agent: b\r\n", true), ("User-Agent: a\r\n", false)]
        {
            let (head, bytes) = request(lines);
            assert_eq!(variant.answers(HeadRef::new(&head, &bytes)), same);
        }
    }
}

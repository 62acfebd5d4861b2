//! Proofs that a request carries itself: JSON Web Tokens and signatures of URLs.

use crate::auth_server::{AuthServer, parse_auth_server, parse_identity_field};
use proxy::options::Origin;
use settings::checker::{Checker, InvalidValue};
use settings::directives;
use settings::node::Node;
use settings::shape::{Flag, List, Map, Maybe, OneOrMore, PathShape, Text, Time, Word};
use shapes::header;
use shapes::names::token;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

const NON_EMPTY_TEXTS: OneOrMore<Text<String>> =
    OneOrMore(Text { what: "a text", parse: parse_non_empty_text });
const CLAIMS: Map<String, OneOrMore<Text<String>>> =
    Map { what: "claims", key: parse_non_empty_text, value: NON_EMPTY_TEXTS };
const HEADERS: Map<String, Text<String>> = Map {
    what: "header names",
    key: parse_identity_field,
    value: Text { what: "a claim such as \"sub\"", parse: parse_non_empty_text },
};
const ALGORITHMS: List<Word<&str>> = List(Word(&[
    ("RS256", "RS256"),
    ("RS384", "RS384"),
    ("RS512", "RS512"),
    ("PS256", "PS256"),
    ("PS384", "PS384"),
    ("PS512", "PS512"),
    ("ES256", "ES256"),
    ("ES384", "ES384"),
    ("EdDSA", "EdDSA"),
    ("HS256", "HS256"),
    ("HS384", "HS384"),
    ("HS512", "HS512"),
]));

directives! {
    /// JSON Web Tokens (RFC 7519), as OpenID Connect's and OAuth's servers issue them: requests need `Authorization: Bearer TOKEN` with a
    /// valid signature, issuer, audience and time; others get 401, and valid tokens without the `claims` 403.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/api/*"
    /// proxy = "http://127.0.0.1:3000"
    /// auth  = { jwt = { jwks = "https://issuer.example/.well-known/jwks.json", issuer = "https://issuer.example", audience = "shop", headers = { X-User = "sub" } } }
    /// ```
    JwtAuth in "`jwt` of `auth`", check jwt_agrees {
        /// The URL of the issuer's keys. They are kept for `refresh`, and asked for again, at most every 10 seconds, when a token names a
        /// key that is not among them. Until they are there, requests get 503.
        "jwks" jwks: Option<AuthServer> = absent("those of `jwks_file`"),
            Maybe(Text { what: "a URL such as \"https://issuer.example/jwks.json\"", parse: parse_auth_server });
        /// A file with the keys, as JWKS (RFC 7517). It alone may have secrets (`"kty": "oct"`, at least 32 bytes).
        "jwks_file" jwks_file: Option<PathBuf> = absent("those of `jwks`"), Maybe(PathShape("a file"));
        /// Accepted issuers of tokens (`iss`).
        "issuer" issuers: Vec<String> = absent("any issuer"), NON_EMPTY_TEXTS;
        /// The audience that tokens have to name (`aud`): one of these.
        "audience" audiences: Vec<String> = absent("any audience, with a warning"), NON_EMPTY_TEXTS;
        /// Algorithms of signatures. `HS256` and the like need a `jwks_file` with secrets; `none` does not exist.
        "algorithms" algorithms: Vec<&'static str> = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"], ALGORITHMS;
        /// Maximum difference between the clocks of the issuer and this server.
        "leeway" leeway: Duration = "30s", Time { min: Duration::ZERO, max: Duration::from_secs(600) };
        /// Claims that a token must have, each with one of these values; if the claim is a list, it must
        /// contain one of them. Dots lead into objects.
        "claims" claims: Vec<(String, Vec<String>)> = {}, CLAIMS;
        /// Request fields that upstream servers and applications get, from claims; lists with commas. Fields
        /// of these names, in any spelling, are always removed from the client's request.
        "headers" headers: Vec<(String, String)> = {}, HEADERS;
        /// Cookie with the token, used if there is no `Authorization`.
        "cookie" cookie: Option<String> = absent("none"), Maybe(Text { what: "the name of a cookie", parse: parameter });
        /// Query parameter with the token, used if there is neither `Authorization` nor the cookie. URLs
        /// appear in logs and histories.
        "query" query: Option<String> = absent("none"), Maybe(Text { what: "the name of a parameter", parse: parameter });
        /// Time after which the keys are fetched again.
        "refresh" refresh: Duration = "1h", Time { min: Duration::from_secs(10), max: Duration::from_secs(604_800) };
    }
}

directives! {
    /// Signed URLs: a signed URL gives access to its path until it expires. Requests without a valid
    /// signature get 403; expired ones get 410. `komainu sign-url` makes one; see [Signed
    /// URLs](auth.md#signed-urls) for other languages.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/downloads/*"
    /// files = "/srv/downloads"
    /// auth  = { signed = { secret_file = "/etc/komainu/urls.secret" } }
    /// ```
    SignedAuth in "`signed` of `auth`", check signed_agrees {
        /// The secret, of at least 16 characters without spaces.
        "secret" secret: Option<String> = absent("those of `secret_file`"),
            Maybe(Text { what: "a secret of at least 16 characters", parse: token });
        /// The file that holds it: one secret on a line. All of them verify, so that an old one may stay for a while; the first one signs.
        "secret_file" secret_file: Option<PathBuf> = absent("`secret`"), Maybe(PathShape("a file"));
        /// Whether a URL is for one client, whose address is signed too.
        "client" client: bool = false, Flag;
    }
}

fn jwt_agrees(jwt: &mut JwtAuth, node: &Node, check: &mut Checker) {
    match (node.entry("jwks"), node.entry("jwks_file")) {
        (Some(_), Some(file)) => {
            let title = format!("both `jwks` and `jwks_file` in `{}`", check.directive_path_text());
            check.error(&file.key_span, title, "one of them is enough").help("remove one of them");
        }
        (None, None) => {
            let title = format!("`{}` has no keys", check.directive_path_text());
            check
                .error(&node.span, title, "neither `jwks` nor `jwks_file`")
                .help("give the URL of the issuer's keys: `jwks`");
        }
        _ => {}
    }
    if let Some(entry) =
        node.entry("jwks").filter(|_| jwt.algorithms.iter().any(|name| name.starts_with("HS")))
    {
        let title =
            format!("algorithms with a secret, and keys from a URL, in `{}`", check.directive_path_text());
        let finding = check.error(&entry.value.span, title, "what is published is not a secret");
        finding.help("remove `HS256`, `HS384` and `HS512`, or give the secret in `jwks_file`");
    }
    if let Some(entry) = node.entry("algorithms").filter(|_| jwt.algorithms.is_empty()) {
        let title = format!("no algorithms in `{}`", check.directive_path_text());
        let finding = check.error(&entry.value.span, title, "no token would be valid");
        finding.help("remove `algorithms`, or name those of the issuer: `[\"RS256\"]`");
    }
    if let (Some(entry), Some(origin @ Origin::Tcp { host, .. })) =
        (node.entry("jwks"), jwt.jwks.as_ref().map(|server| server.origin.one()))
        && !origin.is_tls()
        && host != "localhost"
        && !host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    {
        let title = "the keys of tokens are asked for without TLS".to_owned();
        let finding = check.warning(&entry.value.span, title, "who is in between can send keys of their own");
        finding.help("write `https://`, with `tls = { ca = \"…\" }` for an authority of your own; or give a file: `jwks_file`");
    }
    if node.entry("audience").is_none() && (jwt.jwks.is_some() || jwt.jwks_file.is_some()) {
        let title = format!("`{}` without `audience`", check.directive_path_text());
        let finding =
            check.warning(&node.span, title, "tokens that the issuer has made for others are let in");
        finding.help("name the audience of your tokens: `audience = \"shop\"`");
    }
}

fn signed_agrees(_: &mut SignedAuth, node: &Node, check: &mut Checker) {
    match (node.entry("secret"), node.entry("secret_file")) {
        (Some(_), Some(file)) => {
            let title = format!("both `secret` and `secret_file` in `{}`", check.directive_path_text());
            check.error(&file.key_span, title, "one of them is enough").help("remove one of them");
        }
        (None, None) => {
            let title = format!("`{}` has no secret", check.directive_path_text());
            let finding = check.error(&node.span, title, "neither `secret` nor `secret_file`");
            finding.help("`openssl rand -hex 32` makes one: give it in `secret_file`");
        }
        _ => {}
    }
}

fn parse_non_empty_text(text: &str) -> Result<String, InvalidValue> {
    match text {
        "" => Err(InvalidValue::new("an empty text", "")),
        _ => Ok(text.to_owned()),
    }
}

fn parameter(text: &str) -> Result<String, InvalidValue> {
    if text.chars().all(header::is_token_char) && !text.is_empty() {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not a name", "write a name such as \"token\""))
    }
}

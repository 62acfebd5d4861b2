//! Authentication of clients.

use crate::auth_server::{AuthServer, SignInPart, parse_auth_server, parse_identity_field, sign_in};
use crate::auth_token::{JwtAuth, SignedAuth};
use proxy::directives::{ProxyTls, upstream_host};
use proxy::options::Host;
use proxy::upstream_group::GroupName;
use settings::checker::{Checker, InvalidValue};
use settings::directive_table::table;
use settings::directives;
use settings::node::Node;
use settings::shape::{
    List, Maybe, PathShape, Shape, Text, Time, Toggle, Unlimited, Word, join_alternatives,
};
use shapes::header;
use shapes::rate::{RATE, Rate};
use std::path::PathBuf;
use std::time::Duration;

/// `auth` of a site or a route; if absent, the level above applies.
pub fn policy() -> impl Shape<Out = Option<Option<Auth>>> {
    Maybe(Toggle { on: None, off: || None, shape: Maybe(table::<Auth>()) })
}

const IDENTITY_FIELDS: List<Text<String>> =
    List(Text { what: "a header name such as \"Remote-User\"", parse: parse_identity_field });
const FIELD_SCOPE: Word<FieldScope> = Word(&[("site", FieldScope::Site), ("route", FieldScope::Route)]);
const REQUEST_FIELDS: List<Text<String>> =
    List(Text { what: "a header name such as \"Cookie\"", parse: header::parse_name });

directives! {
    /// Authentication of clients: by user and password (`basic`), by another server (`ask`), by token (`jwt`)
    /// or by signed URL (`signed`). `false` exempts a route of a site that has `auth`. See [Who may
    /// ask](auth.md).
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/admin/*"
    /// proxy = "http://127.0.0.1:3000"
    /// auth  = { basic = "/etc/komainu/admin.htpasswd" }
    ///
    /// [[route]]
    /// proxy = "http://127.0.0.1:3000"
    /// auth  = { ask = "http://127.0.0.1:9091/api/authz/forward-auth", response_headers = ["Remote-User", "Remote-Groups"] }
    /// ```
    ///
    /// Passwords and cookies are readable by everyone on the network path unless the site has `tls`.
    Auth in "`auth` of a site or route", check auth_agrees {
        /// Users and passwords: requests without them get 401, and browsers ask for them (Basic authentication, RFC 7617). A file with
        /// a line `NAME:HASH` for each user; `#` begins a comment. `htpasswd -B -c FILE NAME` writes such a file. Passwords are
        /// hashed with bcrypt (cost 4 to 15) or Argon2; others are refused, because a stolen file would reveal them. A changed
        /// file counts within a few seconds. The request is passed on with its `Authorization`.
        "basic" basic: Option<PathBuf> = absent("not by a file"), Maybe(PathShape("a file of users and passwords"));
        /// Text that browsers show when they ask for a password.
        "realm" realm: String = "restricted", Text { what: "a text", parse: realm };
        /// Rate of wrong passwords allowed per client address; beyond it, requests get 429. Remembered
        /// passwords are not counted.
        "failures" failures: Option<Rate> = "10/m", Unlimited(RATE);
        /// The URL of a server that is asked for each request, as by nginx's `auth_request`, Traefik's `forwardAuth` and Caddy's
        /// `forward_auth`: GET without a body, with the fields of the request, `X-Forwarded-Method`, `-Proto`, `-Host`, `-Uri`
        /// and `-For`, `X-Original-Method` and `X-Original-URL`. A status 2xx lets the request in; any other answer goes to the
        /// client. If the server cannot be asked, the answer is 502, 503 or 504.
        "ask" ask: Option<AuthServer> = absent("no server"),
            Maybe(Text { what: "a URL such as \"http://127.0.0.1:9091/api/verify\"", parse: parse_auth_server });
        /// JSON Web Tokens.
        "jwt" jwt: Option<JwtAuth> = absent("no tokens"), Maybe(table());
        /// Signed URLs.
        "signed" signed: Option<SignedAuth> = absent("no signed URLs"), Maybe(table());
        /// Group whose servers are asked in place of the one that the URL of `ask`, or of `jwks`, names: `[upstreams.NAME]`.
        "upstream" upstream: Option<String> = absent("the server of the URL"), Maybe(GroupName);
        /// Fields of the server's answer that upstream servers and applications get in the request. Fields of
        /// these names, in any spelling, are always removed from the client's request: see `remove_from`.
        "response_headers" response_headers: Vec<String> = [], IDENTITY_FIELDS;
        /// Requests from which fields of `response_headers`, and of `headers` of `jwt`, are removed as clients send them: `"site"` for
        /// all requests to the site, whose routes may lead to the same application; `"route"` for those of the route alone, where
        /// routes belong to different owners.
        "remove_from" remove_from: FieldScope = "site", FIELD_SCOPE;
        /// Maximum time for the whole exchange with the server.
        "timeout" timeout: Duration = "10s", Time { min: Duration::from_millis(10), max: Duration::from_secs(300) };
        /// The `Host` that the server is asked with: `"pass"`, that of the request; `"upstream"`, its own name; or a text.
        "host" host: Host = "pass", Text { what: "\"pass\", \"upstream\" or a host", parse: upstream_host };
        /// TLS to a server with an `https` URL.
        "tls" tls: ProxyTls = {}, table();
        /// Sign-in page: a path or a URL. If the server answers 401 to a GET request of a browser for a page,
        /// the browser is redirected there (302). `$url` is the requested URL, percent-encoded; `$location`
        /// is the `Location` of the answer. If the answer has no `Location`, 401 stays.
        "sign_in" sign_in: Vec<SignInPart> = absent("401 goes to the client"),
            Text { what: "a path or URL such as \"/oauth2/start?rd=$url\"", parse: sign_in };
        /// Time for which a correct password, or a positive answer of the server, is remembered. This avoids
        /// the cost of a check for each request. Passwords are remembered as a keyed hash. `"0s"` remembers
        /// none.
        "remember" remember: Option<Duration> = absent("`1m` for passwords, and no answers"),
            Maybe(Time { min: Duration::ZERO, max: Duration::from_secs(3600) });
        /// Request fields that are part of the key under which an answer of the server is remembered, besides
        /// the client's address, the method and the whole URL. They must include all fields that the answer
        /// depends on.
        "remember_by" remember_by: Vec<String> = ["Cookie", "Authorization"], REQUEST_FIELDS;
    }
}

/// Requests from which the fields are removed that say who a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldScope {
    /// Requests for all routes of the site.
    Site,
    /// Requests for the route.
    Route,
}

/// Method by which a request is authenticated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AuthKind<'a> {
    /// User and password, from this file.
    Basic(&'a PathBuf),
    /// This server decides.
    Server(&'a AuthServer),
    /// JSON Web Token.
    Jwt(&'a JwtAuth),
    /// Signed URL.
    Signed(&'a SignedAuth),
}

/// Directives that select the method, each with the directives that belong to it alone.
const KIND_DIRECTIVES: [(&str, &[&str]); 4] = [
    ("basic", &["realm", "failures", "remember"]),
    (
        "ask",
        &[
            "upstream",
            "response_headers",
            "remove_from",
            "timeout",
            "host",
            "tls",
            "sign_in",
            "remember",
            "remember_by",
        ],
    ),
    ("jwt", &["upstream", "remove_from", "timeout", "tls"]),
    ("signed", &[]),
];

impl Auth {
    /// Returns the authentication method. A checked configuration has exactly one.
    pub fn kind(&self) -> Option<AuthKind<'_>> {
        let basic = self.basic.as_ref().map(AuthKind::Basic);
        let ask = self.ask.as_ref().map(AuthKind::Server);
        let jwt = self.jwt.as_ref().map(AuthKind::Jwt);
        basic.or(ask).or(jwt).or(self.signed.as_ref().map(AuthKind::Signed))
    }

    /// Names of fields that only the server sets in requests, in lower case.
    pub fn identity_fields(&self) -> impl Iterator<Item = &str> {
        let claimed = self.jwt.iter().flat_map(|jwt| &jwt.headers).map(|(name, _)| name);
        self.response_headers.iter().chain(claimed).map(String::as_str)
    }
}

fn auth_agrees(_: &mut Auth, node: &Node, check: &mut Checker) {
    let given: Vec<_> =
        KIND_DIRECTIVES.iter().filter_map(|(kind, own)| Some((node.entry(kind)?, *own))).collect();
    match given.as_slice() {
        [] => {
            let title = format!("`{}` does not say who may ask", check.directive_path_text());
            let words = join_alternatives(KIND_DIRECTIVES.iter().map(|(kind, _)| format!("`{kind}`")));
            check
                .error(&node.span, title, format!("neither {}", words.replace(" or ", " nor ")))
                .help(format!("give {words}"));
        }
        [(entry, own)] => {
            let mut seen = Vec::new();
            for (kind, others) in KIND_DIRECTIVES.iter().filter(|(kind, _)| *kind != entry.key) {
                for key in others.iter().filter(|key| !own.contains(key)) {
                    if let Some(found) = node.entry(key).filter(|_| !seen.contains(key)) {
                        seen.push(*key);
                        let title = format!("`{key}` has no effect beside `{}`", entry.key);
                        let finding =
                            check.error(&found.key_span, title, format!("this belongs to `{kind}`"));
                        finding.help("remove it");
                    }
                }
            }
        }
        [(first, _), (second, _), ..] => {
            let title =
                format!("both `{}` and `{}` in `{}`", first.key, second.key, check.directive_path_text());
            let finding = check.error(&second.key_span, title, "one of them decides");
            finding.help("remove one of them");
        }
    }
}

fn realm(text: &str) -> Result<String, InvalidValue> {
    let is_plain = |byte: u8| (byte == b' ' || byte.is_ascii_graphic()) && !matches!(byte, b'"' | b'\\');
    if text.len() <= 128 && text.bytes().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new(
            "this cannot be shown by every browser",
            "write at most 128 characters of ASCII, without quotes and backslashes",
        ))
    }
}

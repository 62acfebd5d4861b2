//! Rules that change the header fields of responses.

use http::Template;
use settings::checker::Checker;
use settings::directives;
use settings::node::Node;
use shapes::header::{RULE_FIELDS, RULE_NAMES};

directives! {
    /// Changes to the header fields of responses. The rules of the server apply first, then those of the site, then
    /// those of the route; in each, `remove`, then `set`, then `add`.
    ///
    /// ```toml
    /// [[site]]
    /// response_headers = { set = { X-Frame-Options = "DENY" }, remove = ["Server"] }
    /// ```
    ResponseHeaders in "`response_headers`", check headers_agree {
        /// Fields to set; they replace those of the same name. A value may contain `$path` (percent-encoded), `$query`
        /// (with its `?`; empty if there is none), `$args` (the query without `?`), `$uri` (`$path$query`), `$host` (in
        /// lower case, without port), `$scheme`, `$method`, `$remote_addr` (or `$client_ip`), `$client_port`,
        /// `$remote_user` (the user that `auth` has verified), `$country` (with `[geo]`), `$request_id`, `$trace_id`,
        /// `$span_id`; of the client's TLS connection with this server, and empty without TLS: `$tls_version`,
        /// `$tls_cipher` (the cipher suite), `$tls_resumed` (`true` if the session was resumed, otherwise `false`),
        /// `$tls_server_name`, `$tls_client_verify`, `$tls_client_subject`, `$tls_client_issuer`, `$tls_client_san`,
        /// `$tls_client_serial`, `$tls_client_fingerprint`, `$tls_client_certificate`; `$http_NAME` (a field of the request, `_` for `-`;
        /// `$http_host` is the host with its port) and `$cookie_NAME`; the groups of a regular expression in the route's
        /// path (`$1`, `$id`) and the maps of `[maps.NAME]`; `$$` is a dollar sign. A variable means the same in every
        /// directive. A field whose variables are all empty is not sent.
        "set" set: Vec<(String, Template)> = {}, RULE_FIELDS;
        /// Fields to add to those of the same name. Values as in `set`.
        "add" add: Vec<(String, Template)> = {}, RULE_FIELDS;
        /// Names of fields to remove.
        "remove" remove: Vec<String> = [], RULE_NAMES;
    }
}

impl ResponseHeaders {
    /// True when it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }
}

fn headers_agree(rules: &mut ResponseHeaders, node: &Node, check: &mut Checker) {
    for (name, _) in &rules.set {
        let Some(entry) = node.entry("remove").filter(|_| rules.remove.contains(name)) else { continue };
        let title = format!("`{name}` is both set and removed in `{}`", check.directive_path_text());
        check.warning(&entry.value.span, title, "has no effect").help("`set` alone replaces the field");
    }
}

//! Purging by HTTP: the clients that may purge.

use settings::checker::Checker;
use settings::directives;
use settings::node::Node;
use settings::shape::{List, Maybe, PathShape, Text};
use shapes::names::token;
use shapes::network::{SOURCE, TrustedSource};
use std::path::PathBuf;

directives! {
    /// Purging by HTTP, for the routes with this directive: `PURGE` of a URL removes its responses by `http`
    /// and `https`, in all variants. If `from` is given, requests must come from one of its addresses. If a
    /// token is given, they must carry it.
    ///
    /// ```toml
    /// [[route]]
    /// proxy = "http://127.0.0.1:3000"
    /// cache = { purge = { token_file = "/etc/komainu/purge.token", from = ["127.0.0.1", "10.0.0.0/8"] } }
    /// ```
    ///
    /// `curl -X PURGE -H "Authorization: Bearer $TOKEN" https://example.com/news` purges a URL. With
    /// `Surrogate-Key: a b`, every response of that host with one of these tags is purged instead. With
    /// `Soft-Purge: 1`, responses become stale instead of being removed. See [Purging](cache.md#purging).
    CachePurge in "`purge` of `cache`", check purge_agrees {
        /// The token that requests carry as `Authorization: Bearer TOKEN`: a secret, of at least 16 characters without spaces.
        "token" token: Option<String> = absent("none, or that of `token_file`"),
            Maybe(Text { what: "a token of at least 16 characters", parse: token });
        /// The file that holds the token.
        "token_file" token_file: Option<PathBuf> = absent("none, or `token`"), Maybe(PathShape("a file"));
        /// Networks and addresses of clients that may purge, and `"unix"`. The address of a proxy that is not
        /// in `trusted_proxies` would stand for all its clients: requests with forwarding fields from such a
        /// proxy are refused unless there is a token.
        "from" from: Vec<TrustedSource> = [], List(SOURCE);
    }
}

fn purge_agrees(purge: &mut CachePurge, node: &Node, check: &mut Checker) {
    match (node.entry("token"), node.entry("token_file"), node.entry("from")) {
        (Some(_), Some(file), _) => {
            let title = "both `token` and `token_file`".to_owned();
            check.error(&file.key_span, title, "one of them is enough").help("remove one of them");
        }
        (None, None, None) => {
            let title = format!("`{}` lets everyone purge", check.directive_path_text());
            let finding = check.error(&node.span, title, "neither a token nor addresses");
            finding.help("give `token_file`, `token` or `from`");
        }
        (None, None, Some(from)) if purge.from.is_empty() => {
            let title = format!("`{}` lets nobody purge", check.directive_path_text());
            check.error(&from.key_span, title, "an empty list").help("remove `purge`, or name addresses");
        }
        (None, None, Some(from)) if purge.from.iter().any(TrustedSource::includes_every_address) => {
            let title = format!("`{}` lets everyone purge", check.directive_path_text());
            let finding = check.error(&from.value.span, title, "this is every address");
            finding.help("name the addresses that purge, or give `token_file` or `token` too");
        }
        _ => {}
    }
}

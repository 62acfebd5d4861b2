//! Translation of `server` blocks: addresses, names, certificates and error pages.

use std::path::Path;

use super::scope::Scope;
use super::translation::Translation;
use super::tree::{NginxDirective, unique};
use crate::draft::{SiteDraft, TomlItem, TomlSection};
use crate::expressions::{escape_literal, path_expression, path_matches, widen_expression};
use crate::findings::EntryIndex;
use crate::paths::hosts_from_regex;
use crate::regex_tokens::{RegexToken, regex_tokens};

/// The remark on names that cannot be written as `hosts`.
const DEFAULT_SITE_REMARK: &str = "`hosts` has no such names: its routes stand in the default site, with a condition for Host, and have the certificate, error pages and logs of that site";

/// An address that a server listens on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ListenAddress {
    pub(crate) text: String,
    pub(crate) tls: bool,
    pub(crate) proxy_protocol: bool,
    pub(crate) is_default: bool,
    /// The `listen` that names it; the server's block for the address of a server without `listen`.
    pub(crate) entry: EntryIndex,
    pub(crate) reach: AddressReach,
}

/// Connections to an address that nginx gives to a server. They are fewer than all where other servers listen on a more
/// specific address with the same port: Komainu has one socket for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressReach {
    All,
    /// All but those to loopback addresses.
    ExceptLoopback,
    /// Some, which Komainu cannot tell from others: the site is closed.
    Some,
}

/// A `server` block.
pub(crate) struct NginxServer<'d> {
    pub(crate) block: &'d NginxDirective,
    pub(crate) scope: Scope<'d>,
    pub(crate) addresses: Vec<ListenAddress>,
    /// Hosts that the server names; empty if it names no valid host.
    pub(crate) hosts: Vec<String>,
    /// Regular expressions that match few hosts, with those hosts, which are among `hosts`.
    pub(crate) hosts_by_expression: Vec<(String, Vec<String>)>,
    /// Patterns of its other names, for the field `Host`.
    pub(crate) expressions: Vec<HostExpression>,
    /// Whether the server is for requests without `Host`: it has the name `""`, or none.
    pub(crate) has_empty_name: bool,
}

/// A server name that cannot be written as a host: a regular expression, or a name that ends with `*`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HostExpression {
    /// Precedence: the longest names with a `*` come first, then regular expressions in the order of the
    /// source.
    pub(crate) rank: usize,
    /// Pattern for `Host`.
    pub(crate) pattern: String,
    /// Whether the pattern matches more than the name, so that its requests are refused.
    pub(crate) matches_too_much: bool,
}

impl HostExpression {
    /// Whether the pattern may match a host, or some hosts of a wildcard name.
    pub(crate) fn may_match(&self, host: &str) -> bool {
        host.starts_with('*') || path_matches(&self.pattern, host)
    }
}

/// Converts an expression for a server name to a pattern for `Host`, which may have a trailing dot and a
/// port. Matches begin within the host.
pub(super) fn convert_host_regex(regex: &str) -> HostExpression {
    let end =
        |token: &RegexToken<'_>| if token.text == "$" { r"\.?(?::\d*)?$" } else { token.text }.to_owned();
    let mut out: String = regex_tokens(regex).iter().map(end).collect();
    if !regex.starts_with('^') || regex.contains('|') {
        out = format!(r"^(?:[^:\[]*|\[[^\]]*)(?:{out})");
    }
    let found = path_expression(&out, true);
    let is_wider = found.is_err();
    let pattern = found.map_or_else(|_| widen_expression(&out, true), |found| found.pattern);
    HostExpression { rank: usize::MAX, pattern, matches_too_much: is_wider }
}

impl<'d> NginxServer<'d> {
    pub(crate) fn has_tls_address(&self) -> bool {
        self.addresses.iter().any(|address| address.tls)
    }

    pub(crate) fn has_plain_address(&self) -> bool {
        self.addresses.iter().any(|address| !address.tls)
    }

    /// The address with this text, if the server listens on it.
    pub(crate) fn address(&self, text: &str) -> Option<&ListenAddress> {
        self.addresses.iter().find(|address| address.text == text)
    }

    /// Whether the server rejects TLS handshakes.
    pub(crate) fn rejects_handshakes(&self) -> bool {
        self.scope.effective("ssl_reject_handshake").is_some_and(|one| one.first_arg() == "on")
    }

    /// Whether the server asks the clients of its addresses with TLS for certificates.
    pub(crate) fn asks_for_certificates(&self) -> bool {
        self.scope.effective("ssl_verify_client").is_some_and(|one| one.first_arg() != "off")
    }

    /// Returns the `return`, possibly in an `if` written by certbot, that redirects every request to the same
    /// host with `https`.
    pub(crate) fn same_site_https_redirect(&self) -> Option<&'d NginxDirective> {
        self.find_redirect(|target| {
            let rest = target.strip_prefix("https://").unwrap_or_default();
            let host = rest.strip_suffix("$request_uri").or_else(|| rest.strip_suffix("$uri$is_args$args"));
            host.is_some_and(|host| {
                matches!(host, "$host" | "$server_name" | "$http_host")
                    || self.hosts.iter().all(|own| own == host) && !self.hosts.is_empty()
            })
        })
    }

    /// Returns the directive that redirects every request to any `https` URL, if the server does nothing
    /// else.
    pub(crate) fn any_https_redirect(&self) -> Option<&'d NginxDirective> {
        self.find_redirect(|_| true)
    }

    fn find_redirect(&self, is_meant: impl Fn(&str) -> bool) -> Option<&'d NginxDirective> {
        let own = self.scope.innermost();
        let root = own.iter().find(|one| one.name == "location" && one.first_arg() == "/");
        let returns = |block: &'d [NginxDirective]| block.iter().find(|one| one.name == "return");
        let conditions = own.iter().filter(|one| one.name == "if" && one.first_arg().starts_with("($host"));
        let from_if: Vec<&NginxDirective> =
            conditions.filter_map(|one| returns(one.block_directives())).collect();
        let only = |one: &&NginxDirective| {
            let target = match one.args.as_slice() {
                [code, target] if matches!(code.as_str(), "301" | "302" | "307" | "308") => target.as_str(),
                [target] => target.as_str(),
                _ => return false,
            };
            target.starts_with("https://") && is_meant(target)
        };
        // Servers with other locations are excluded, also those for challenges of certbot: certificates that
        // certbot renews are used as files.
        let has_others = own.iter().any(|one| one.name == "location" && one.first_arg() != "/");
        if has_others || self.has_tls_address() {
            return None;
        }
        let found = returns(own).or_else(|| root.and_then(|root| returns(root.block_directives())));
        match from_if.first() {
            Some(first) if from_if.iter().all(only) => Some(first),
            _ => found.filter(only),
        }
    }
}

impl<'d> Translation<'d> {
    /// Reads the addresses and names of a server.
    pub(crate) fn read_server(&self, block: &'d NginxDirective) -> NginxServer<'d> {
        let scope = self.http.with_block(block.block_directives());
        let listens = self.take_in_block(block.block_directives(), "listen");
        let (quic, listens): (Vec<_>, Vec<_>) =
            listens.partition(|one| one.args.iter().skip(1).any(|arg| arg == "quic"));
        let mut addresses: Vec<ListenAddress> =
            listens.into_iter().filter_map(|one| self.parse_listen(one)).collect();
        for one in quic {
            let Some(address) = self.parse_listen(one) else { continue };
            if addresses.iter().any(|other| other.text == address.text && other.tls) {
                self.ledger.mark_not_needed(one.entry, "HTTP/3 is spoken wherever TLS is");
            } else {
                self.ledger.mark_different(one.entry, "the address answers over TCP too");
                addresses.push(address);
            }
        }
        let old_ssl = self.take(&scope, "ssl").is_some_and(|one| one.first_arg() == "on");
        if addresses.is_empty() {
            addresses.push(ListenAddress {
                text: "0.0.0.0:80".to_owned(),
                tls: false,
                proxy_protocol: false,
                is_default: false,
                entry: block.entry,
                reach: AddressReach::All,
            });
        }
        addresses.iter_mut().for_each(|address| address.tls |= old_ssl);
        let mut hosts = Vec::new();
        let mut expressions = Vec::new();
        let mut named_by_expression = Vec::new();
        let mut has_empty_name = scope.innermost_last("server_name").is_none();
        for one in self.take_in_block(block.block_directives(), "server_name") {
            has_empty_name |= one.args.iter().any(String::is_empty);
            for name in &one.args {
                let found = self.translate_server_name(one, name, &mut expressions);
                if let Some(regex) = name.strip_prefix('~').filter(|_| !found.is_empty()) {
                    named_by_expression.push((regex.to_owned(), found.clone()));
                }
                hosts.extend(found);
            }
        }
        NginxServer {
            block,
            scope,
            addresses,
            hosts: unique(hosts),
            hosts_by_expression: named_by_expression,
            expressions,
            has_empty_name,
        }
    }

    fn translate_server_name(
        &self,
        directive: &NginxDirective,
        name: &str,
        expressions: &mut Vec<HostExpression>,
    ) -> Vec<String> {
        let is_host = |name: &str| {
            name.split('.').all(|label| {
                (1..=63).contains(&label.len())
                    && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            }) && name.len() <= 253
        };
        let given = name;
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            // Placeholder names that no client requests.
            "" | "_" | "__" | "--" | "!@#" => Vec::new(),
            _ if name.starts_with('~') => match hosts_from_regex(&given[1..]) {
                Some((hosts, false)) if hosts.iter().all(|host| is_host(host)) => hosts,
                _ => {
                    expressions.push(self.translate_host_expression(directive, &given[1..]));
                    Vec::new()
                }
            },
            _ if name.strip_suffix(".*").is_some_and(&is_host) => {
                self.ledger.mark_different(directive.entry, DEFAULT_SITE_REMARK);
                let start = name.trim_end_matches('*');
                let pattern = format!("~* ^{}[^:]", escape_literal(start));
                expressions.push(HostExpression {
                    rank: usize::MAX - 1 - start.len(),
                    pattern,
                    matches_too_much: false,
                });
                Vec::new()
            }
            _ if name.starts_with('.') && is_host(&name[1..]) => {
                vec![name[1..].to_owned(), format!("*{name}")]
            }
            _ if is_host(name.strip_prefix("*.").unwrap_or(&name)) => vec![name],
            _ if name.starts_with('[') => vec![name],
            "$hostname" => {
                self.ledger.mark_impossible(directive.entry, "write the machine's name in `hosts`");
                Vec::new()
            }
            _ => {
                self.ledger
                    .mark_impossible(directive.entry, "a `*` can only be the first label: write each host");
                Vec::new()
            }
        }
    }

    /// Converts an expression of `server_name` to a pattern for `Host`, and reports it.
    pub(crate) fn translate_host_expression(
        &self,
        directive: &NginxDirective,
        regex: &str,
    ) -> HostExpression {
        let found = convert_host_regex(regex);
        if found.matches_too_much {
            self.ledger.mark_impossible(
                directive.entry,
                "hosts that the expression may mean are refused (403) in the default site",
            )
        } else {
            self.ledger.mark_different(directive.entry, DEFAULT_SITE_REMARK)
        }
        found
    }

    fn parse_listen(&self, directive: &NginxDirective) -> Option<ListenAddress> {
        let (text, parameters) = match directive.args.split_first() {
            Some((text, parameters)) => (text.as_str(), parameters),
            None => return None,
        };
        let has = |name: &str| parameters.iter().any(|word| word == name);
        let with_port = |host: &str| format!("{host}:80");
        let text = match text {
            _ if text.starts_with("unix:") => text.to_owned(),
            port if port.bytes().all(|b| b.is_ascii_digit()) => format!("0.0.0.0:{port}"),
            text if text.starts_with('[') && !text.contains("]:") => with_port(text),
            text if text.starts_with("*:") => format!("0.0.0.0{}", &text[1..]),
            text if text.starts_with("[::]:") && has("ipv6only=off") => text[4..].to_owned(),
            text if text.contains(':') => text.to_owned(),
            "*" => "0.0.0.0:80".to_owned(),
            text => with_port(text),
        };
        let is_number = text.starts_with("unix:")
            || text.starts_with(':')
            || text.starts_with("localhost:")
            || text.parse::<std::net::SocketAddr>().is_ok();
        if !is_number {
            self.ledger.mark_impossible(directive.entry, "an address is a number: \"IP:PORT\" or \":PORT\"");
            return None;
        }
        if parameters.iter().any(|word| {
            word.starts_with("setfib") || word.starts_with("so_keepalive") || word.starts_with("fastopen")
        }) {
            self.ledger.mark_different(directive.entry, "the socket's own settings are left as they are");
        }
        Some(ListenAddress {
            text,
            tls: has("ssl") || has("quic"),
            proxy_protocol: has("proxy_protocol"),
            is_default: has("default_server") || has("default"),
            entry: directive.entry,
            reach: AddressReach::All,
        })
    }

    /// Writes the certificates of a site.
    pub(crate) fn write_tls(&self, server: &NginxServer<'d>, site: &mut SiteDraft) {
        let scope = &server.scope;
        let certificates = scope.effective_all("ssl_certificate");
        let keys = scope.effective_all("ssl_certificate_key");
        if !server.has_tls_address() || certificates.is_empty() {
            for one in scope
                .innermost()
                .iter()
                .filter(|one| one.name.starts_with("ssl_") && !self.ledger.is_marked(one.entry))
            {
                self.not_needed(one, "the server speaks no TLS");
            }
            if server.has_tls_address() && scope.effective("ssl_reject_handshake").is_none() {
                site.section.comment("CHECK: a certificate: `tls = \"auto\"`, or the names of its files.");
            }
            if self.take(scope, "ssl_reject_handshake").is_some() {
                site.section.set("tls", TomlItem::Flag(false));
            }
            return;
        }
        if self.take(scope, "ssl_reject_handshake").is_some() && server.rejects_handshakes() {
            certificates
                .iter()
                .chain(&keys)
                .for_each(|one| self.not_needed(one, "no handshake of its server succeeds"));
            site.section.set("tls", TomlItem::Flag(false));
            return;
        }
        let names = |all: &[&NginxDirective]| {
            TomlItem::text_or_list(all.iter().map(|one| self.resolve_path(one.first_arg())))
        };
        let mut tls = TomlSection::default();
        for one in certificates.iter().chain(&keys) {
            self.count_taken(one);
            match one.first_arg() {
                name if name.contains('$') || name.starts_with("data:") || name.starts_with("engine:") => {
                    self.ledger.mark_impossible(one.entry, "certificates and keys are files: for one that depends on the name give a folder of them");
                }
                name if name.contains("/letsencrypt/live/") => {
                    self.not_needed(one, "`tls = \"auto\"` would obtain and renew it without certbot");
                }
                _ => {}
            }
        }
        tls.set("certificate", names(&certificates));
        tls.set("key", names(&keys));
        self.write_client_certificates(scope, &mut tls);
        site.section.set("tls", TomlItem::Table(tls.entries));
    }

    fn write_client_certificates(&self, scope: &Scope<'d>, tls: &mut TomlSection) {
        let verify = self.take(scope, "ssl_verify_client");
        let authority = self.take(scope, "ssl_client_certificate");
        let crl = self.take(scope, "ssl_crl");
        self.take(scope, "ssl_verify_depth");
        let (Some(verify), Some(authority)) = (verify, authority) else {
            if let Some(verify) = verify.filter(|one| one.first_arg() != "off") {
                let reason = "`ssl_client_certificate` is missing: the site is closed (403)";
                self.ledger.mark_impossible(verify.entry, reason);
            }
            return;
        };
        let required = match verify.first_arg() {
            "on" => true,
            "optional" => false,
            "optional_no_ca" => {
                self.ledger.mark_impossible(verify.entry, "certificates are verified, or not asked for");
                return;
            }
            _ => return,
        };
        tls.set_in("client", "ca", TomlItem::text(self.resolve_path(authority.first_arg())));
        tls.set_in("client", "required", TomlItem::Flag(required));
        if required {
            self.ledger.mark_different(
                verify.entry,
                "clients without a certificate are refused in the handshake, not with 400",
            );
        }
        if let Some(crl) = crl {
            tls.set_in("client", "crl", TomlItem::text(self.resolve_path(crl.first_arg())));
        }
    }

    /// Translates `error_page` with a file; other kinds have no equivalent.
    pub(crate) fn translate_error_pages(&self, scope: &Scope<'d>, section: &mut TomlSection) {
        for one in scope.effective_all("error_page") {
            let Some((target, codes)) = one.args.split_last() else { continue };
            let is_plain = target.starts_with('/') && !target.contains('$');
            let keeps_status = !codes.iter().any(|code| code.starts_with('='));
            if target.starts_with('@') && codes.last().is_some_and(|last| last == "=") {
                // Translated with the `return` that produces its status.
                continue;
            }
            if !is_plain || !keeps_status {
                self.ledger.mark_impossible(one.entry, "an error page is a file, and keeps the status: answer with a route, or `fallback` of `files`");
                continue;
            }
            let path = target.split('?').next().unwrap_or_default().to_ascii_lowercase();
            if path.contains(".ph")
                || [".inc", ".pl", ".cgi", ".py", ".rb"].iter().any(|ending| path.ends_with(ending))
            {
                self.ledger.mark_different(
                    one.entry,
                    "an error page is a file, never a script: paths without a file are for the front script of `php`, which answers 404 by itself",
                );
                continue;
            }
            let Some(folder) = self.error_page_folder(scope, target) else {
                self.ledger.mark_impossible(
                    one.entry,
                    "the folder of its file depends on the request: write `error_pages`",
                );
                continue;
            };
            // On another machine than that of nginx, nothing is known of its files.
            let file = format!("{folder}{target}");
            if Path::new(&folder).is_dir() && !Path::new(&file).is_file() {
                self.ledger.mark_different(
                    one.entry,
                    format!("there is no file {file}, so it is left out: the page is that of Komainu, and the status stays"),
                );
                continue;
            }
            for code in codes {
                section.set_in("error_pages", code, TomlItem::Text(format!("{folder}{target}")));
            }
            self.ledger.mark_different(one.entry, "a page is one file, which has to be there (`check` refuses it otherwise), and is not passed through locations; errors of upstream servers keep theirs, unless `intercept_errors` is on");
        }
        // Error pages of locations.
        let mut below: Vec<&NginxDirective> =
            scope.innermost().iter().filter(|one| one.name == "location").collect();
        while let Some(location) = below.pop() {
            for one in location.block_directives() {
                match one.name.as_str() {
                    "error_page" if one.args.last().is_some_and(|last| last.starts_with('@')) => {}
                    "error_page" => self
                        .ledger
                        .mark_impossible(one.entry, "`error_pages` is for a site or the whole server"),
                    "location" => below.push(one),
                    _ => {}
                }
            }
        }
    }

    /// Returns the directory of an error page: that of the location that matches its path.
    fn error_page_folder(&self, scope: &Scope<'d>, page: &str) -> Option<String> {
        let has = |one: &&NginxDirective| {
            one.name == "location"
                && match one.args.as_slice() {
                    [operator, path] if operator == "=" => path == page,
                    [operator, path] => operator == "^~" && page.starts_with(path.as_str()),
                    [path] => path != "/" && page.starts_with(path.as_str()),
                    _ => false,
                }
        };
        let own = scope
            .innermost()
            .iter()
            .find(has)
            .and_then(|one| one.block_directives().iter().find(|inner| inner.name == "root"));
        let root = own.or_else(|| scope.effective("root"))?;
        (!root.first_arg().contains('$')).then(|| self.resolve_path(root.first_arg()))
    }
}

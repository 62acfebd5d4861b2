//! Translation of access control: `allow`, `auth_basic` and `auth_request`.

use super::scope::{Scope, field_name, replace_constants};
use super::translation::Translation;
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};

/// The remark on `allow` and `deny` behind one for `all`.
pub(super) const NO_EFFECT_REMARK: &str = "it has no effect: an `all` stands before it";

impl Translation<'_> {
    /// Writes the access checks of a route. As in nginx, they do not apply to `return`.
    pub(crate) fn translate_access(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        self.translate_addresses(scope, section);
        self.translate_password(scope, section);
        self.translate_rate_limits(scope, section);
        self.translate_guards(scope, section);
        if let Some(one) = self.take(scope, "satisfy")
            && one.first_arg() == "any"
        {
            let has_addresses = section.get("allow").or(section.get("deny")).is_some();
            let reason = "a request has to meet both, addresses and password: write a route with `client` for the addresses that need no password before this one";
            if has_addresses && section.get("auth").is_some() {
                self.ledger.mark_impossible(one.entry, reason);
                self.ledger.manual_comment(one.entry).into_iter().for_each(|check| section.comment(check));
            } else {
                self.ledger.mark_different(one.entry, reason);
            }
        }
    }

    /// Translates `auth_request`, and reports access checks without an equivalent.
    fn translate_guards(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        const GUARDS: [&str; 5] =
            ["auth_request", "auth_jwt", "access_by_lua_block", "access_by_lua_file", "secure_link"];
        let is_on = |one: &NginxDirective| one.first_arg() != "off";
        let Some(guard) = GUARDS.iter().find_map(|name| scope.effective(name).filter(|one| is_on(one)))
        else {
            self.take(scope, "auth_request");
            return;
        };
        let asked = (guard.name == "auth_request").then(|| self.auth_request_url(guard, scope)).flatten();
        match asked {
            Some(url) if section.get("auth").is_none() => {
                self.ledger.mark_different(
                    guard.entry,
                    "refused requests get the response of the server that is asked; see docs/auth.md",
                );
                section.set_in("auth", "ask", TomlItem::Text(url));
                let mut fields = Vec::new();
                for one in scope.effective_all("auth_request_set") {
                    let field =
                        one.arg_at(1).strip_prefix("$upstream_http_").filter(|name| !name.contains('$'));
                    match field {
                        Some("set_cookie") => self
                            .not_needed(one, "not needed: cookies of the answer are added to the response"),
                        Some(field) => {
                            fields.push(TomlItem::Text(field_name(field)));
                            self.ledger.mark_different(one.entry, "the field is copied into the request under its own name (`response_headers`)");
                        }
                        None => self.ledger.mark_impossible(
                            one.entry,
                            "only fields of the answer can be copied (`response_headers` of `auth`)",
                        ),
                    }
                }
                if !fields.is_empty() {
                    section.set_in("auth", "response_headers", TomlItem::List(fields));
                }
            }
            _ => {
                if !self.ledger.is_impossible(guard.entry) {
                    self.ledger.mark_impossible(
                        guard.entry,
                        "no other directive decides instead, so the route is closed (403)",
                    );
                }
                refuse_all(section);
            }
        }
    }

    /// Returns the URL of the `auth_request` subrequest: that of `proxy_pass` in its location.
    fn auth_request_url(&self, guard: &NginxDirective, scope: &Scope<'_>) -> Option<String> {
        let path = guard.first_arg();
        let is_it = |one: &&NginxDirective| {
            one.name == "location" && one.args.last().is_some_and(|last| last == path)
        };
        let (at, location) = scope
            .levels
            .iter()
            .enumerate()
            .rev()
            .find_map(|(at, level)| Some((at, level.iter().find(is_it)?)))?;
        let takes_first = |one: &NginxDirective| {
            one.name == "location" && (one.first_arg().starts_with('~') || one.first_arg() == "=")
        };
        if location.first_arg() != "=" && scope.levels[at].iter().any(takes_first) {
            return None;
        }
        let levels = scope.levels[..=at].iter().copied();
        let mut outer = levels.flatten().filter(|one| one.name != "client_max_body_size");
        let mut own = location.block_directives().iter();
        if let Some(other) =
            own.find(|one| may_decide_ask(one)).or_else(|| outer.find(|one| may_decide_ask(one)))
        {
            self.ledger.mark_impossible(
                guard.entry,
                format!("the location `{path}` has `{}` or inherits it, which may refuse too: the route is closed (403)", other.name),
            );
            return None;
        }
        let pass = location.block_directives().iter().find(|one| one.name == "proxy_pass")?;
        let url = pass.first_arg().replace("http://unix:", "unix:");
        if url.contains('$') {
            return None;
        }
        let has_path =
            url.split_once("://").map_or(url.matches(':').count() > 1, |(_, rest)| rest.contains('/'));
        let name = url.split_once("://")?.1.split(['/', ':']).next()?;
        match (self.is_upstream(name), has_path) {
            // `auth` does not support upstream groups.
            (true, _) => None,
            (_, true) => Some(url),
            (_, false) => Some(format!("{url}{path}")),
        }
    }

    fn translate_addresses(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        let rules = self.take_all_of(scope, &["allow", "deny"]);
        let mut allowed = Vec::new();
        let mut denied = Vec::new();
        let mut closed = false;
        let mut open = false;
        for one in &rules {
            let network = match one.first_arg() {
                "unix:" => "unix",
                network => network,
            };
            if closed || open {
                self.not_needed(one, NO_EFFECT_REMARK);
                continue;
            }
            match (one.name.as_str(), network) {
                ("deny", "all") => closed = true,
                ("allow", "all") => open = true,
                ("deny", network) => {
                    if !allowed.is_empty() {
                        self.ledger.mark_different(
                            one.entry,
                            "`deny` counts before `allow` here: an address that an earlier `allow` names is refused if this one has it too",
                        );
                    }
                    denied.push(TomlItem::text(network));
                }
                (_, network) => allowed.push(TomlItem::text(network)),
            }
        }
        if closed && allowed.is_empty() {
            refuse_all(section);
            return;
        }
        let has_networks = closed || !denied.is_empty();
        let unknown = self.client_addresses.unknown_reason().filter(|_| has_networks);
        if let (Some(reason), Some(first)) = (unknown, rules.first()) {
            rules.iter().for_each(|one| self.ledger.mark_impossible(one.entry, reason));
            refuse_all(section);
            section.close(self.ledger.manual_comment(first.entry).unwrap_or_default());
            return;
        }
        if closed {
            section.set("allow", TomlItem::List(allowed));
        }
        if !denied.is_empty() {
            section.set("deny", TomlItem::List(denied));
        }
    }

    fn translate_password(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        let file = scope.effective("auth_basic_user_file");
        let Some(realm) = self.take(scope, "auth_basic").filter(|realm| realm.first_arg() != "off") else {
            file.into_iter().for_each(|file| self.not_needed(file, "no password is asked for"));
            return;
        };
        let Some(file) = file else {
            self.ledger
                .mark_impossible(realm.entry, "`auth_basic_user_file` is missing: the route is closed");
            refuse_all(section);
            return;
        };
        let name = replace_constants(file.first_arg(), scope, 0);
        if name.contains('$') {
            let reason = "the file depends on the request: the route is closed (403) until `auth` names one";
            self.ledger.mark_impossible(file.entry, reason);
            refuse_all(section);
            section.close(self.ledger.manual_comment(file.entry).unwrap_or_default());
            return;
        }
        let mut auth = vec![("basic".to_owned(), TomlItem::text(self.resolve_path(&name)))];
        if realm.first_arg().contains('$') {
            self.ledger.mark_different(realm.entry, "the realm is a text without variables")
        } else {
            auth.push(("realm".to_owned(), TomlItem::text(realm.first_arg())))
        }
        self.ledger.mark_different(
            file.entry,
            "passwords must be hashed with bcrypt or Argon2: make those of `htpasswd -m` and `crypt` again with `htpasswd -B`",
        );
        section.set("auth", TomlItem::Table(auth));
    }
}

/// Replaces the actions of a route by a 403 response.
pub(crate) fn refuse_all(section: &mut TomlSection) {
    for action in [
        "files",
        "proxy",
        "php",
        "app",
        "redirect",
        "respond",
        "rewrite",
        "cache",
        "variables",
        "encoded_slashes",
        "internal",
    ] {
        section.remove(action);
    }
    section.set("respond", TomlItem::Number(403));
}

/// Whether a directive that applies to the location which `auth_request` asks may change the answer: all but those
/// known not to.
fn may_decide_ask(one: &NginxDirective) -> bool {
    const HARMLESS: &[&str] = &[
        // Of the whole process.
        "daemon",
        "debug_points",
        "env",
        "events",
        "http",
        "load_module",
        "lock_file",
        "mail",
        "master_process",
        "pcre_jit",
        "pid",
        "stream",
        "thread_pool",
        "timer_resolution",
        "user",
        "working_directory",
        // Of the location and around it.
        "internal",
        "proxy_pass",
        "proxy_pass_request_body",
        "proxy_connect_timeout",
        "proxy_read_timeout",
        "proxy_send_timeout",
        "proxy_buffering",
        "proxy_buffers",
        "proxy_buffer_size",
        "proxy_busy_buffers_size",
        "proxy_http_version",
        "proxy_request_buffering",
        "proxy_socket_keepalive",
        "proxy_headers_hash_max_size",
        "proxy_headers_hash_bucket_size",
        "proxy_temp_path",
        "proxy_hide_header",
        "proxy_pass_header",
        "proxy_ignore_headers",
        "proxy_redirect",
        "access_log",
        "error_log",
        "log_not_found",
        "log_format",
        "log_subrequest",
        "listen",
        "server_name",
        "server",
        "upstream",
        "map",
        "geo",
        "location",
        "root",
        "alias",
        "index",
        "include",
        "types",
        "default_type",
        "add_header",
        "expires",
        "tcp_nopush",
        "tcp_nodelay",
        "server_tokens",
        "server_names_hash_bucket_size",
        "types_hash_max_size",
        "http2",
        "charset",
        "limit_req_zone",
        "limit_conn_zone",
        "auth_request_set",
        "resolver",
        "resolver_timeout",
        "limit_req_status",
        "limit_conn_status",
    ];
    const HARMLESS_STARTS: &[&str] = &[
        "ssl_",
        "gzip",
        "log_",
        "worker_",
        "open_file_cache",
        "server_names_hash",
        "types_hash",
        "variables_hash",
        "map_hash",
        "client_header_",
        "client_body_",
        "keepalive_",
        "send_timeout",
        "reset_timedout",
        "large_client",
        "fastcgi_",
        "uwsgi_",
        "scgi_",
        "brotli",
        "sendfile",
        "aio",
        "directio",
        "output_buffers",
        "postpone_output",
    ];
    const HARMLESS_FIELDS: [&str; 4] =
        ["content-length", "x-original-uri", "x-original-url", "x-original-method"];
    match one.name.as_str() {
        "auth_request" => one.first_arg() != "off",
        "proxy_set_header" => {
            let field = one.first_arg().to_ascii_lowercase();
            let value = match field.as_str() {
                "content-length" => "",
                "x-original-uri" => "$request_uri",
                "x-original-method" => "$request_method",
                _ => "$scheme://$http_host$request_uri",
            };
            !HARMLESS_FIELDS.contains(&field.as_str()) || one.arg_at(1) != value
        }
        // Errors of the server that is asked keep their status.
        "error_page" => one.args.iter().any(|arg| arg.starts_with('=')),
        "fastcgi_pass" | "uwsgi_pass" | "scgi_pass" => true,
        "proxy_pass_request_body" => one.first_arg() != "off",
        name => !HARMLESS.contains(&name) && !HARMLESS_STARTS.iter().any(|start| name.starts_with(start)),
    }
}

//! Translation of `fastcgi_pass`, `uwsgi_pass` and `scgi_pass`: the servers and the variables that they
//! receive.

use super::directive::Part;
use super::scope::{Scope, TemplateDestination, parse_milliseconds, replace_constants};
use super::translation::{AppliedDirective, Translation, make_unavailable};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::Outcome;

/// Variables that Komainu sends by default.
const DEFAULT_VARIABLES: [&str; 26] = [
    "QUERY_STRING",
    "REQUEST_METHOD",
    "CONTENT_TYPE",
    "CONTENT_LENGTH",
    "SCRIPT_NAME",
    "REQUEST_URI",
    "DOCUMENT_URI",
    "DOCUMENT_ROOT",
    "SERVER_PROTOCOL",
    "REQUEST_SCHEME",
    "HTTPS",
    "GATEWAY_INTERFACE",
    "SERVER_SOFTWARE",
    "REMOTE_ADDR",
    "REMOTE_PORT",
    "REMOTE_USER",
    "SERVER_ADDR",
    "SERVER_PORT",
    "SERVER_NAME",
    "REDIRECT_STATUS",
    "PATH_INFO",
    "PATH_TRANSLATED",
    "SCRIPT_FILENAME",
    "HTTP_PROXY",
    "HTTP_HOST",
    "UWSGI_SCHEME",
];

/// Returns the address of a server without the scheme.
fn strip_scheme(address: &str) -> String {
    let address = ["uwsgi://", "fastcgi://", "scgi://", "http://"]
        .iter()
        .find_map(|scheme| address.strip_prefix(scheme))
        .unwrap_or(address);
    match address.strip_prefix("unix:") {
        Some(path) => format!("unix:/{}", path.trim_end_matches(':').trim_start_matches('/')),
        None => address.to_owned(),
    }
}

/// Value of one variable, compared with the one that Komainu sends by default.
enum CgiValue {
    /// Equal to Komainu's.
    Default,
    /// A different value.
    Value(String),
    /// The upstream server uses another directory for the scripts.
    OtherRoot(String),
}

impl<'d> Translation<'d> {
    /// Writes `to` or `upstream` of `php` or `proxy`. Returns false if the server depends on the request.
    fn write_cgi_server(
        &self,
        pass: &NginxDirective,
        (protocol, is_php): (&'static str, bool),
        scope: &Scope<'d>,
        proxy: &mut TomlSection,
    ) -> bool {
        let address = strip_scheme(&replace_constants(pass.first_arg(), scope, 0));
        if address.contains('$') {
            self.ledger.mark_impossible(
                pass.entry,
                "the server depends on the request: write a route with its own for each",
            );
            return false;
        }
        if pass.first_arg().starts_with("suwsgi://") {
            self.ledger.mark_impossible(pass.entry, "uwsgi through TLS is not supported");
            return false;
        }
        self.count_taken(pass);
        match (self.use_group(&address, protocol, None), is_php) {
            (Some(group), _) => proxy.set_text("upstream", group),
            (None, true) if address.starts_with("unix:") => proxy.set_text("to", address),
            (None, true) => proxy.set_text("to", format!("fastcgi://{address}")),
            (None, false) => proxy.set_text("to", super::upstream::server_url(&address, protocol)),
        }
        true
    }

    /// Writes the `proxy` of a location with a FastCGI, uwsgi or SCGI server that does not run scripts stored
    /// among static files.
    pub(crate) fn write_cgi_proxy(
        &self,
        pass: &NginxDirective,
        scope: &Scope<'d>,
        section: &mut TomlSection,
    ) {
        let protocol = match pass.name.as_str() {
            "fastcgi_pass" => "fastcgi",
            "uwsgi_pass" => "uwsgi",
            _ => "scgi",
        };
        let mut proxy = TomlSection::default();
        if !self.write_cgi_server(pass, (protocol, false), scope, &mut proxy) {
            make_unavailable(section);
            return;
        }
        self.translate_cgi_settings(protocol, scope, None, &mut proxy);
        self.complete_script_variables(protocol, scope, &mut proxy);
        self.translate_intercept_errors(scope, &format!("{protocol}_intercept_errors"), section);
        self.translate_cache(protocol, scope, section);
        section.set("proxy", shorten_proxy(proxy));
    }

    /// Completes the variables of a FastCGI location that sets SCRIPT_FILENAME: DOCUMENT_ROOT, SCRIPT_NAME,
    /// an empty PATH_INFO and REDIRECT_STATUS.
    fn complete_script_variables(&self, protocol: &str, scope: &Scope<'d>, proxy: &mut TomlSection) {
        let Some(TomlItem::Table(variables)) = proxy.get("variables") else { return };
        let has = |name: &str| variables.iter().any(|(known, _)| known == name);
        let script = variables.iter().find_map(|(name, value)| match value {
            TomlItem::Text(text) if name == "SCRIPT_FILENAME" => Some(text.clone()),
            _ => None,
        });
        let Some(script) = script.filter(|_| protocol == "fastcgi") else { return };
        let is_path = script.ends_with("$path") && !has("SCRIPT_NAME");
        let names_path =
            scope.effective_all("fastcgi_param").iter().any(|one| one.first_arg() == "PATH_INFO");
        let root = scope.folder().map_or("html", |one| one.first_arg());
        let has_root = has("DOCUMENT_ROOT");
        let has_info = has("PATH_INFO") || names_path;
        if !has_root && !root.contains('$') {
            // nginx removes a final slash of `root` alone.
            let is_alias = scope.folder().is_some_and(|one| one.name == "alias");
            let slash = if is_alias && root.ends_with('/') { "/" } else { "" };
            let root = format!("{}{slash}", self.resolve_path(root));
            proxy.set_in("variables", "DOCUMENT_ROOT", TomlItem::Text(root));
        }
        if is_path {
            proxy.set_in("variables", "SCRIPT_NAME", TomlItem::text("$path"));
        }
        if !has_info {
            proxy.set_in("variables", "PATH_INFO", TomlItem::text(""));
        }
        proxy.set_in("variables", "REDIRECT_STATUS", TomlItem::text("200"));
    }

    /// Returns the `php` of a route: `front` is the script for all other paths, `root` the directory of the
    /// scripts in nginx's configuration.
    pub(crate) fn build_php_servers(
        &self,
        pass: &NginxDirective,
        scope: &Scope<'d>,
        front: Option<&str>,
        root: Option<&str>,
    ) -> Option<TomlItem> {
        let mut php = TomlSection::default();
        if !self.write_cgi_server(pass, ("fastcgi", true), scope, &mut php) {
            return None;
        }
        match front {
            Some("/index.php") => {}
            Some(front) => php.set_in("scripts", "front", TomlItem::text(front)),
            None => php.set_in("scripts", "front", TomlItem::Flag(false)),
        }
        self.translate_cgi_settings("fastcgi", scope, Some(root), &mut php);
        Some(shorten_proxy(php))
    }

    /// Translates the settings that these protocols share. `scripts` is set for `php`: the root of its
    /// scripts, if known.
    fn translate_cgi_settings(
        &self,
        protocol: &str,
        scope: &Scope<'d>,
        scripts: Option<Option<&str>>,
        proxy: &mut TomlSection,
    ) {
        let named = |name: &str| format!("{protocol}_{name}");
        self.report_charset(scope);
        for one in self.take_all(scope, &named("param")) {
            self.translate_cgi_variable(one, scope, scripts, proxy);
        }
        let part = match protocol {
            "fastcgi" => Part::FastCgi,
            "uwsgi" => Part::Uwsgi,
            _ => Part::Scgi,
        };
        self.apply(part, scope, proxy);
    }

    fn translate_cgi_variable(
        &self,
        directive: &NginxDirective,
        scope: &Scope<'d>,
        scripts: Option<Option<&str>>,
        proxy: &mut TomlSection,
    ) {
        let name = directive.first_arg();
        match variable_value(directive, scope, scripts) {
            CgiValue::Default => self.not_needed(directive, "not needed: the server gets it by itself"),
            CgiValue::OtherRoot(root) => {
                proxy.set_in("scripts", "root", TomlItem::Text(root));
            }
            CgiValue::Value(value) if value.contains(['\n', '\r']) => {
                self.ledger.mark_impossible(
                    directive.entry,
                    "a variable has one line: set it in PHP-FPM's pool (`php_value`), or in `ini` of PHP inside",
                );
            }
            CgiValue::Value(value) => {
                let script = "fastcgi_script_name";
                let of_path = value.replace(&format!("${{{script}}}"), "${uri}");
                if of_path != value {
                    self.ledger.mark_different(
                        directive.entry,
                        "the path is percent-encoded; `cgi` in the route runs programs without a server",
                    );
                }
                let value = of_path;
                if let Some(value) =
                    self.translate_template(directive, &value, scope, TemplateDestination::Header)
                {
                    proxy.set_in("variables", name, TomlItem::Text(value));
                }
            }
        }
    }

    /// Reports that `charset` applies only to files.
    pub(crate) fn report_charset(&self, scope: &Scope<'_>) {
        if let Some(one) = scope.effective("charset").filter(|one| one.first_arg() != "off") {
            self.ledger.mark_different(
                one.entry,
                "it is in the Content-Type of files, not of upstream servers' responses",
            );
        }
    }

    /// Translates `proxy_intercept_errors` and its variants: error pages replace errors of upstream servers.
    pub(crate) fn translate_intercept_errors(
        &self,
        scope: &Scope<'_>,
        name: &str,
        section: &mut TomlSection,
    ) {
        if self.take(scope, name).is_some_and(|one| one.first_arg() == "on") {
            section.set("intercept_errors", TomlItem::Flag(true));
        }
    }
}

pub(super) fn send_timeout(one: &AppliedDirective<'_>, _: &mut TomlSection) -> Outcome {
    let name = one.directive.name.replace("send", "read");
    let read = one.scope.effective(&name).and_then(|one| parse_milliseconds(one.first_arg()));
    if parse_milliseconds(one.first_arg()) == read {
        return Outcome::TRANSLATED;
    }
    Outcome::differs(format!("`between` counts for both directions, and is that of `{name}` (or 60 s)"))
}

pub(super) fn next_upstream(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    if one.first_arg() == "off" {
        proxy.set("retry", TomlItem::Flag(false));
        return Outcome::TRANSLATED;
    }
    Outcome::differs("at most 20 of 100 requests are sent again (`retry`)")
}

fn variable_value(directive: &NginxDirective, scope: &Scope<'_>, scripts: Option<Option<&str>>) -> CgiValue {
    let name = directive.first_arg();
    let given = directive.arg_at(1);
    let value = replace_constants(given, scope, 0);
    let plain = value.replace(['{', '}'], "");
    if name == "HTTP_PROXY" {
        return CgiValue::Default;
    }
    let own_root = scope.folder().map(|one| one.first_arg().trim_end_matches('/').to_owned());
    if name == "SCRIPT_FILENAME"
        && let Some(root) = scripts
    {
        let before = plain
            .strip_suffix("$fastcgi_script_name")
            .or_else(|| plain.strip_suffix("$1"))
            .map(|text| text.trim_end_matches('/'));
        return match before {
            Some("$document_root" | "$realpath_root" | "$request_filename") => CgiValue::Default,
            Some(before) if Some(before) == root || Some(before) == own_root.as_deref() => CgiValue::Default,
            Some(before) if before.starts_with('/') && !before.contains('$') => {
                CgiValue::OtherRoot(before.to_owned())
            }
            // The script or the file of the location itself.
            _ if plain == "$request_filename" || plain.ends_with(".php") => CgiValue::Default,
            _ => CgiValue::Value(value),
        };
    }
    let is_usual = match name {
        "SCRIPT_NAME" => plain == "$fastcgi_script_name" || scripts.is_some() && plain.ends_with(".php"),
        "PATH_INFO" => {
            matches!(plain.as_str(), "$fastcgi_path_info" | "$path_info" | "$document_uri" | "$uri")
        }
        "PATH_TRANSLATED" => {
            plain.starts_with("$document_root") || own_root.is_some_and(|root| plain.starts_with(&root))
        }
        "DOCUMENT_ROOT" => scripts.is_some() || plain.starts_with('$'),
        "HTTPS" => plain.starts_with('$') || (plain == "on" && uses_tls(scope)),
        "UWSGI_SCHEME" => plain == "$scheme",
        "SERVER_NAME" => given == "$server_name" || given == "$host" || given == "$http_host",
        "HTTP_HOST" => plain == "$http_host" || plain == "$host",
        "REMOTE_USER" => plain == "$remote_user",
        _ => {
            plain.starts_with('$')
                || matches!(name, "GATEWAY_INTERFACE" | "REDIRECT_STATUS" | "SERVER_SOFTWARE")
        }
    };
    if DEFAULT_VARIABLES.contains(&name) && is_usual { CgiValue::Default } else { CgiValue::Value(value) }
}

fn uses_tls(scope: &Scope<'_>) -> bool {
    scope.effective_all("listen").iter().any(|one| one.args.iter().any(|arg| arg == "ssl"))
}

/// Reduces a table that has only `to` to its value.
fn shorten_proxy(proxy: TomlSection) -> TomlItem {
    match proxy.entries.as_slice() {
        [(key, to)] if key == "to" => to.clone(),
        _ => TomlItem::Table(proxy.entries),
    }
}

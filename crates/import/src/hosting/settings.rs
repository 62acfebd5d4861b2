//! Translation of settings of application servers.

use other_servers::APPLICATION_SERVERS;

use super::literal::{LiteralSetting, PER_CORE_PLACEHOLDER};
use crate::draft::{ConfigDraft, SiteDraft, TomlItem, TomlSection, table_path};
use crate::findings::{EntryIndex, ImportLedger, advice_outcome};
use crate::kind::ImportKind;

/// Settings that are not translated, by the name for which `other_servers` has the reason.
const UNTRANSLATED: &[(&str, &[&str])] = &[
    (
        "pidfile",
        &[
            "pidfile",
            "pid",
            "state_path",
            "daemon",
            "daemonize",
            "D",
            "tag",
            "proc_name",
            "name",
            "default_proc_name",
        ],
    ),
    ("max_requests_jitter", &["max_requests_jitter"]),
    ("fork_worker", &["fork_worker", "nakayoshi_fork"]),
    ("reload", &["reload", "reload_engine", "plugin"]),
    ("first_data_timeout", &["first_data_timeout", "wait_for_less_busy_worker"]),
    ("statsd_host", &["statsd_host", "statsd_prefix", "dogstatsd_tags"]),
    ("logconfig", &["logconfig", "logconfig_dict", "logger_class", "log_formatter"]),
    ("activate_control_app", &["activate_control_app"]),
    ("access_log_format", &["access_log_format", "access_logformat"]),
    (
        "ssl_version",
        &[
            "ssl_version",
            "ciphers",
            "ssl_cipher",
            "ssl_cipher_filter",
            "do_handshake_on_connect",
            "suppress_ragged_eofs",
        ],
    ),
    (
        "secure_scheme_headers",
        &["set_remote_address", "secure_scheme_headers", "proxy_protocol", "proxy_allow_ips"],
    ),
    ("-M", &["include", "M"]),
    ("lowlevel_error_handler", &["lowlevel_error_handler", "before_fork", "on_worker_boot"]),
];

/// Settings that need no translation.
const NOT_NEEDED: [&str; 20] = [
    "worker_tmp_dir",
    "tmp_upload_dir",
    "sendfile",
    "no_sendfile",
    "reuse_port",
    "backlog",
    "queue_requests",
    "low_latency",
    "worker_connections",
    "quiet",
    "q",
    "prune_bundler",
    "umask",
    "capture_output",
    "check_config",
    "spew",
    "passenger_version",
    "engine",
    "log_requests",
    "friendly_error_pages_auto",
];

/// Settings that restrict access to an application: it is closed if their value is code.
const GUARD_SETTINGS: [&str; 12] = [
    "certfile",
    "keyfile",
    "ca_certs",
    "cert_reqs",
    "ssl_context",
    "ssl_cert",
    "ssl_key",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_ca",
    "ssl_verify_mode",
    "pre_request",
];
/// Settings that may restrict access to an application, and are not interpreted.
const UNREAD_GUARD_SETTINGS: [&str; 2] = ["nginx_config_template", "ssl_context"];

/// Settings of an application collected from all sources.
pub(super) struct AppSettings<'a> {
    pub(super) ledger: &'a ImportLedger,
    kind: ImportKind,
    app: TomlSection,
    pub(super) top: TomlSection,
    pub(super) site: TomlSection,
    pub(super) listen: Vec<String>,
    /// Addresses of `listen` that use TLS; empty with a certificate for all addresses.
    pub(super) tls_addresses: Vec<String>,
    pub(super) certificate: Option<String>,
    pub(super) key: Option<String>,
    /// Whether all addresses use TLS.
    pub(super) is_tls: bool,
    /// Authorities of client certificates.
    pub(super) authorities: Option<String>,
    /// Verification mode of client certificates, in the notation of the application server.
    pub(super) client_verification: Option<(EntryIndex, String)>,
    /// TLS port in addition to the plain one.
    pub(super) tls_port: Option<String>,
    /// Untranslated settings that restricted access to the application.
    pub(super) untranslated_guards: Vec<EntryIndex>,
    /// Addresses whose value is code.
    pub(super) code_addresses: Vec<EntryIndex>,
    pub(super) host: Option<String>,
    pub(super) port: Option<String>,
    files: Option<String>,
    application: Option<String>,
    is_asgi: bool,
}

impl<'a> AppSettings<'a> {
    pub(super) fn new(ledger: &'a ImportLedger, kind: ImportKind) -> Self {
        Self {
            ledger,
            kind,
            app: TomlSection::default(),
            top: TomlSection::default(),
            site: TomlSection::default(),
            listen: Vec::new(),
            tls_addresses: Vec::new(),
            certificate: None,
            key: None,
            is_tls: false,
            authorities: None,
            client_verification: None,
            tls_port: None,
            untranslated_guards: Vec::new(),
            code_addresses: Vec::new(),
            host: None,
            port: None,
            files: None,
            application: None,
            is_asgi: false,
        }
    }

    /// The name of the server's program.
    pub(super) fn program_name(&self) -> &'static str {
        ImportKind::ALL.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(name, _)| name)
    }

    /// Translates a setting.
    pub(super) fn translate_setting(&mut self, setting: LiteralSetting) {
        if setting.is_code {
            match setting.name.as_str() {
                "bind" | "port" | "listen" => self.code_addresses.push(setting.entry),
                "ssl_bind" => {
                    self.code_addresses.push(setting.entry);
                    self.untranslated_guards.push(setting.entry);
                }
                name if GUARD_SETTINGS.contains(&name) => self.untranslated_guards.push(setting.entry),
                _ => {}
            }
            return;
        }
        if UNREAD_GUARD_SETTINGS.contains(&setting.name.as_str()) {
            self.ledger.mark_impossible(
                setting.entry,
                "what it guards is not known: the application is closed (403)",
            );
            self.untranslated_guards.push(setting.entry);
            return;
        }
        if setting.name == "config" {
            self.ledger
                .mark_not_needed(setting.entry, "its file is not read: `komainu import` reads it by itself");
            return;
        }
        if NOT_NEEDED.contains(&setting.name.as_str()) {
            self.ledger.mark_not_needed(setting.entry, "not needed here");
            return;
        }
        if let Some((advised, _)) =
            UNTRANSLATED.iter().find(|(_, names)| names.contains(&setting.name.as_str()))
            && let Some((_, directive)) = other_servers::find(&APPLICATION_SERVERS, advised).next()
        {
            self.ledger.enter(setting.entry, &advice_outcome(directive));
            return;
        }
        let first = setting.values.first().cloned().unwrap_or_default();
        if setting.values.is_empty() && !setting.name.starts_with("preload_app") {
            self.ledger.mark_not_needed(setting.entry, "its default");
            return;
        }
        let found = self
            .translate_process(&setting, &first)
            .or_else(|| self.translate_certificates(&setting, &first));
        match found.or_else(|| self.translate_environment(&setting, &first)) {
            Some(Ok(())) => self.ledger.mark_translated(setting.entry),
            Some(Err(note)) => self.ledger.mark_different(setting.entry, note),
            None => self
                .ledger
                .mark_impossible(setting.entry, "there is nothing like it here: see docs/applications.md"),
        }
    }

    /// Translates settings of workers and their timeouts. `Err` describes a difference.
    fn translate_process(
        &mut self,
        setting: &LiteralSetting,
        first: &str,
    ) -> Option<Result<(), &'static str>> {
        let seconds = |text: &str, min: u64, max: u64| {
            let count = text.trim_end_matches('s').parse::<f64>().unwrap_or(60.0) as u64;
            TomlItem::Text(format!("{}s", count.clamp(min, max)))
        };
        let number = |text: &str, max: u64| TomlItem::Number(text.parse::<u64>().unwrap_or(1).clamp(1, max));
        let is_count = matches!(setting.name.as_str(), "workers" | "max_pool_size" | "min_instances");
        if is_count && first != PER_CORE_PLACEHOLDER && first.parse::<u64>().is_err() {
            return Some(Err("this is not a number: write `workers`"));
        }
        match setting.name.as_str() {
            "workers" | "max_pool_size" | "min_instances" if first == PER_CORE_PLACEHOLDER => {
                return Some(Err(
                    "one worker for each core, and at least 2, is the default: write `workers` for more",
                ));
            }
            "workers" if first == "0" => {
                self.app.set("workers", TomlItem::Number(1));
                return Some(Err("there is always a process of its own for the application: one"));
            }
            "workers" => self.app.set("workers", number(first, 1024)),
            "max_pool_size" | "min_instances" => {
                let key = if setting.name == "min_instances" { "min" } else { "max" };
                self.app.set_in("workers", key, number(first, 1024));
                if key == "max"
                    && !matches!(self.app.get("workers"), Some(TomlItem::Table(entries)) if entries.len() > 1)
                {
                    self.app.set_in("workers", "min", TomlItem::Number(1));
                }
            }
            "threads" | "thread_count" => {
                let most = setting
                    .values
                    .iter()
                    .flat_map(|value| value.split(':'))
                    .filter_map(|value| value.parse::<u64>().ok())
                    .max();
                self.app.set("threads", TomlItem::Number(most.unwrap_or(1).clamp(1, 256)));
                if setting.values.len() > 1 || first.contains(':') {
                    return Some(Err("the number of threads does not change: it is the highest"));
                }
            }
            "worker_class" => match first {
                "sync" | "gthread" => {}
                class if class.contains("uvicorn") || class.contains("asgi") => self.is_asgi = true,
                _ => {
                    return Some(Err(
                        "there are no green threads: `threads`, or ASGI, for requests at the same time",
                    ));
                }
            },
            "timeout" | "worker_timeout" | "max_request_time" => self.app.set_in(
                "timeouts",
                "request",
                match first {
                    "0" => TomlItem::text("1d"),
                    _ => seconds(first, 1, 86_400),
                },
            ),
            "graceful_timeout" | "worker_shutdown_timeout" | "force_shutdown_after" => {
                self.app.set_in("timeouts", "stop", seconds(first, 1, 86_400));
            }
            "worker_boot_timeout" | "start_timeout" => {
                self.app.set_in("timeouts", "start", seconds(first, 1, 86_400))
            }
            "max_requests" if first == "0" => {}
            "max_requests" => self.app.set_in("recycle", "requests", number(first, u64::from(u32::MAX))),
            "memory_limit" => self.app.set_in("recycle", "memory", TomlItem::Text(format!("{first}MiB"))),
            "pool_idle_time" | "max_pool_idle_time" => {
                self.app.set_in("timeouts", "idle", seconds(first, 1, 3600))
            }
            "max_request_queue_size" => self.app.set("queue", number(first, 65_536)),
            "keepalive" | "persistent_timeout" | "keepalive_timeout" => {
                self.top.set_in("timeouts", "idle", seconds(first, 1, 86_400));
            }
            "disable_keepalive" => {
                self.top.set_in("limits", "requests_per_connection", TomlItem::Number(1));
            }
            "preload_app" | "preload_app!" | "preload" | "preload!" => {
                self.app.set("preload", TomlItem::Flag(first != "false"));
            }
            "spawn_method" => self.app.set("preload", TomlItem::Flag(first == "smart")),
            _ => return None,
        }
        Some(Ok(()))
    }

    /// Translates certificates and the requirements for client certificates.
    fn translate_certificates(
        &mut self,
        setting: &LiteralSetting,
        first: &str,
    ) -> Option<Result<(), &'static str>> {
        match setting.name.as_str() {
            "ssl_bind" => {
                let (pairs, address): (Vec<_>, Vec<_>) =
                    setting.values.iter().cloned().partition(|value| value.contains('='));
                let address = address.join(":");
                return Some(
                    self.add_address(&format!("ssl://{address}?{}", pairs.join("&")), setting.entry),
                );
            }
            "ca_certs" | "ssl_ca" | "ssl_ca_file" => self.authorities = Some(first.to_owned()),
            "cert_reqs" | "ssl_verify_mode" => {
                self.client_verification = Some((setting.entry, first.to_owned()))
            }
            "enable_ssl" | "ssl" => self.is_tls = first == "true",
            "ssl_port" => self.tls_port = Some(first.to_owned()),
            "certfile" | "ssl_cert" | "ssl_certificate" => self.certificate = Some(first.to_owned()),
            "keyfile" | "ssl_key" | "ssl_certificate_key" => self.key = Some(first.to_owned()),
            _ => return None,
        }
        Some(Ok(()))
    }

    /// Translates addresses, the application and its environment.
    fn translate_environment(
        &mut self,
        setting: &LiteralSetting,
        first: &str,
    ) -> Option<Result<(), &'static str>> {
        match setting.name.as_str() {
            "bind" | "listen" => {
                return Some(
                    setting
                        .values
                        .iter()
                        .map(|value| self.add_address(value, setting.entry))
                        .fold(Ok(()), Result::and),
                );
            }
            "socket_file" => self.listen.push(format!("unix:{first}")),
            "host" | "address" => self.host = Some(first.to_owned()),
            "port" => {
                self.port = Some(first.to_owned());
                if let Some(host) = setting.values.get(1) {
                    self.host = Some(host.clone());
                }
            }
            "wsgi_app" | "application" | "rackup" | "startup_file" => {
                if self.application.is_some() {
                    return Some(Err("an application is there already: this one is left out"));
                }
                self.application = Some(first.to_owned());
            }
            "app_type" => match first {
                "rack" | "wsgi" => {}
                _ => {
                    return Some(Err(
                        "Komainu runs Python, Ruby and Perl: let other applications listen, and name them in `proxy`",
                    ));
                }
            },
            "chdir" | "directory" | "app_root" => self.app.set_text("folder", first),
            "user" | "group" => self.app.set_text(&setting.name, first),
            "environment" => self.set_env("RACK_ENV", first),
            "env" if self.kind == ImportKind::Starman => self.set_env("PLACK_ENV", first),
            "raw_env" | "env" | "envvars" => {
                for pair in &setting.values {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    self.set_env(name, value);
                }
            }
            "pythonpath" => self.set_env("PYTHONPATH", &first.replace(',', ":")),
            "python" | "ruby" => self.app.set_text("interpreter", first),
            "static_files_dir" => self.files = Some(first.to_owned()),
            "friendly_error_pages" => self.app.set("show_errors", TomlItem::Flag(first == "true")),
            "accesslog" | "access_log" | "log_file" => {
                self.top.set_in("log", "access", TomlItem::text("combined"));
                if first != "-" {
                    self.top.set_in("log", "file", TomlItem::text(first));
                }
            }
            "errorlog" | "error_log" | "stdout_redirect" if first != "-" => {
                self.top.set_in("log", "errors", TomlItem::text(first));
                if setting.values.len() > 1 {
                    return Some(Err("what is written to stdout and to stderr is in one log"));
                }
            }
            "errorlog" | "error_log" => {}
            "loglevel" | "log_level" => {
                let level = match first {
                    "debug" => "debug",
                    "warning" | "warn" => "warn",
                    "error" | "critical" => "error",
                    _ => "info",
                };
                self.top.set_in("log", "level", TomlItem::text(level));
            }
            "forwarded_allow_ips" => match first {
                "*" => {
                    return Some(Err(
                        "proxies have to be named: write `trusted_proxies` with their networks",
                    ));
                }
                _ => {
                    let all = setting
                        .values
                        .iter()
                        .flat_map(|value| value.split(','))
                        .map(|one| TomlItem::text(one.trim()));
                    self.top.set("trusted_proxies", TomlItem::List(all.collect()));
                }
            },
            "limit_request_line" if first == "0" => return Some(Err("there is always a limit: 8 KiB")),
            "limit_request_line" => {
                let bytes = first.parse::<u64>().unwrap_or(8190).clamp(1024, 1 << 20);
                self.top.set_in("limits", "request_line", TomlItem::Text(format!("{bytes}B")));
            }
            "limit_request_fields" => {
                let count = first.parse::<u64>().unwrap_or(100).clamp(1, 1000);
                self.top.set_in("limits", "headers", TomlItem::Number(count));
            }
            "limit_request_field_size" => {
                return Some(Err("the limit is for all fields together (`head` in `[limits]`)"));
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    fn set_env(&mut self, name: &str, value: &str) {
        self.app.set_in("env", name, TomlItem::text(value));
    }

    /// Returns the configuration.
    pub(super) fn into_draft(mut self) -> ConfigDraft {
        let (key, default, port) = match self.kind {
            ImportKind::Gunicorn if self.is_asgi => ("asgi", "app:app", "127.0.0.1:8000"),
            ImportKind::Gunicorn => ("wsgi", "app:app", "127.0.0.1:8000"),
            ImportKind::Starman => ("psgi", "app.psgi", ":5000"),
            ImportKind::Passenger => ("rack", "config.ru", ":3000"),
            _ => ("rack", "config.ru", ":9292"),
        };
        let named =
            self.application.clone().filter(|name| self.kind != ImportKind::Puma || name.ends_with(".ru"));
        let key = match &named {
            Some(name) if name.ends_with(".psgi") => "psgi",
            Some(name) if name.ends_with(".py") && self.kind == ImportKind::Passenger => "python",
            _ => key,
        };
        // Names in Ruby and Perl configurations are relative to the directory of the application.
        let folder = match self.app.get("folder") {
            Some(TomlItem::Text(folder)) if matches!(key, "rack" | "psgi") => Some(folder.clone()),
            _ => None,
        };
        let within = |name: String| match &folder {
            Some(folder) if !name.starts_with('/') => format!("{}/{name}", folder.trim_end_matches('/')),
            _ => name,
        };
        let value = match named.as_deref() {
            Some(name) if matches!(key, "wsgi" | "asgi") && !name.contains(':') => {
                format!("{name}:application")
            }
            Some(name) => within(name.to_owned()),
            None => within(default.to_owned()),
        };
        if named.is_none() {
            self.app
                .comment(format!("CHECK: which application it is was not named: {default} is the default."));
        }
        self.app.entries.insert(0, (key.to_owned(), TomlItem::Text(value)));
        if self.app.get("workers").is_none() && matches!(self.kind, ImportKind::Gunicorn | ImportKind::Puma) {
            self.app.comment("There was no number of workers: one for each core, and at least 2.");
        }
        self.write_addresses(port);
        let ledger = self.ledger;
        let closed = std::mem::take(&mut self.untranslated_guards);
        let mut draft = app_draft("app", self.app, self.top, self.site, self.files);
        for check in closed.into_iter().filter_map(|entry| ledger.manual_comment(entry)) {
            draft.sites.iter_mut().for_each(|site| site.close(check.clone()));
        }
        draft
    }
}

/// Returns a configuration with one application and its route.
fn app_draft(
    name: &str,
    app: TomlSection,
    top: TomlSection,
    site: TomlSection,
    files: Option<String>,
) -> ConfigDraft {
    let mut draft = ConfigDraft { top, ..ConfigDraft::default() };
    draft.tables.push((table_path("apps", name), app));
    let mut route = TomlSection::default();
    if let Some(root) = files {
        route.set_text("files", root);
    }
    route.set("app", TomlItem::text(name));
    draft.sites.push(SiteDraft { section: site, routes: vec![route] });
    draft
}

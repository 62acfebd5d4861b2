//! Translation of settings of application servers.

use other_servers::APPLICATION_SERVERS;

use super::literal::{LiteralSetting, PER_CORE_PLACEHOLDER};
use super::options::{is_address, is_harmless, is_of_gunicorn};
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
    ("secure_scheme_headers", &["secure_scheme_headers"]),
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

/// Settings that count workers.
const WORKER_COUNTS: [&str; 3] = ["workers", "max_pool_size", "min_instances"];
/// Plugins of Puma that refuse no requests and choose no addresses.
const HARMLESS_PLUGINS: [&str; 6] = ["tmp_restart", "systemd", "solid_queue", "heroku", "statsd", "yabeda"];

/// Source of a setting. A setting of a later one replaces those of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SettingSource {
    /// The configuration file.
    File,
    /// Arguments in a variable of the environment.
    Environment,
    /// The command line.
    Command,
}

/// A requirement for certificates of clients at addresses that use TLS.
#[derive(Debug, Clone)]
pub(super) struct ClientVerification {
    pub(super) entry: EntryIndex,
    /// The mode, in the notation of the application server.
    pub(super) mode: String,
    /// The authorities, if they are those of an address alone.
    pub(super) authorities: Option<String>,
}

/// Settings of an application collected from all sources.
pub(super) struct AppSettings<'a> {
    pub(super) ledger: &'a ImportLedger,
    pub(super) kind: ImportKind,
    /// Source of the settings that are added.
    pub(super) source: SettingSource,
    /// Settings that have not been translated.
    pub(super) pending: Vec<(SettingSource, LiteralSetting)>,
    pub(super) app: TomlSection,
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
    /// Requirements for certificates of clients.
    pub(super) client_verifications: Vec<ClientVerification>,
    /// The setting that has connections begin with a header of the PROXY protocol.
    pub(super) proxy_protocol: Option<EntryIndex>,
    /// Networks that may send such a header.
    pub(super) proxy_networks: Vec<String>,
    /// TLS port in addition to the plain one.
    pub(super) tls_port: Option<String>,
    /// Untranslated settings that restricted access to the application.
    pub(super) untranslated_guards: Vec<EntryIndex>,
    /// Addresses whose value is code.
    pub(super) code_addresses: Vec<EntryIndex>,
    pub(super) host: Option<String>,
    pub(super) port: Option<String>,
    /// Path of a Unix socket that replaces the host and the port.
    pub(super) socket: Option<String>,
    files: Option<String>,
    application: Option<String>,
    is_asgi: bool,
    /// Folder in which the command runs.
    pub(super) working_folder: Option<std::path::PathBuf>,
    /// Entries of files of Python.
    pub(super) python_entries: Vec<EntryIndex>,
}

impl<'a> AppSettings<'a> {
    pub(super) fn new(ledger: &'a ImportLedger, kind: ImportKind) -> Self {
        Self {
            ledger,
            kind,
            source: SettingSource::File,
            pending: Vec::new(),
            app: TomlSection::default(),
            top: TomlSection::default(),
            site: TomlSection::default(),
            listen: Vec::new(),
            tls_addresses: Vec::new(),
            certificate: None,
            key: None,
            is_tls: false,
            authorities: None,
            client_verifications: Vec::new(),
            proxy_protocol: None,
            proxy_networks: ["127.0.0.1", "::1"].map(str::to_owned).into(),
            tls_port: None,
            untranslated_guards: Vec::new(),
            code_addresses: Vec::new(),
            host: None,
            port: None,
            socket: None,
            files: None,
            application: None,
            is_asgi: false,
            working_folder: None,
            python_entries: Vec::new(),
        }
    }

    /// The name of the server's program.
    pub(super) fn program_name(&self) -> &'static str {
        ImportKind::ALL.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(name, _)| name)
    }

    /// Adds a setting of the current source.
    pub(super) fn add_setting(&mut self, setting: LiteralSetting) {
        self.pending.push((self.source, setting));
    }

    /// Translates the settings that were added, without those that another one replaces.
    pub(super) fn translate_settings(&mut self) {
        let all = std::mem::take(&mut self.pending);
        for (at, (source, setting)) in all.iter().enumerate() {
            let key = self.replaced_name(&setting.name);
            let is_listed = self.kind == ImportKind::Puma && key == "bind";
            let replaces = |(index, (other_source, other)): (usize, &(SettingSource, LiteralSetting))| {
                let is_later = other_source > source
                    || other_source == source && *source == SettingSource::File && index > at && !is_listed;
                is_later && !other.is_conditional && self.replaced_name(&other.name) == key
            };
            let has_own_name = !matches!(key, "plugin" | "chdir" | "envvars" | super::literal::ANY_SETTING);
            if has_own_name && self.kind != ImportKind::Passenger && all.iter().enumerate().any(replaces) {
                self.ledger.mark_not_needed(setting.entry, "not needed: another setting replaces it");
                continue;
            }
            let may_replace = |(index, (other_source, other)): (usize, &(SettingSource, LiteralSetting))| {
                index > at && other_source >= source && other.is_conditional && other.name == setting.name
            };
            if self.kind == ImportKind::Gunicorn
                && key == "bind"
                && setting.code.is_none()
                && all.iter().enumerate().any(may_replace)
            {
                let reason =
                    "another line sets it under a condition: write the address that counts on this machine";
                self.ledger.mark_impossible(setting.entry, reason);
                continue;
            }
            self.translate_setting(setting.clone());
        }
    }

    /// Returns the name that settings have in common of which one replaces the other.
    fn replaced_name<'n>(&self, name: &'n str) -> &'n str {
        match (self.kind, name) {
            (ImportKind::Gunicorn, "wsgi_app") => "application",
            (ImportKind::Gunicorn, "env") => "raw_env",
            (ImportKind::Puma, "port" | "ssl_bind") => "bind",
            _ => name,
        }
    }

    /// Closes the application, because a setting that may guard it is not translated.
    pub(super) fn close_for(&mut self, entry: EntryIndex, reason: &str) {
        self.ledger.mark_impossible(entry, format!("{reason}: the application is closed (403)"));
        self.untranslated_guards.push(entry);
    }

    /// Handles a setting whose value is code, which the report has already.
    fn omit_code(&mut self, setting: &LiteralSetting, code: &str) {
        let name = setting.name.as_str();
        // An address may ask for certificates of clients.
        let may_verify = self.kind == ImportKind::Puma
            && !["unix://", "tcp://"].iter().any(|scheme| code.contains(scheme))
            || ["ssl://", "verify"].iter().any(|part| code.contains(part));
        match name {
            "port" | "host" | "address" => self.code_addresses.push(setting.entry),
            _ if is_address(name) => {
                self.code_addresses.push(setting.entry);
                if may_verify {
                    self.close_for(setting.entry, "the address may ask for certificates of clients");
                }
            }
            "ssl_bind" => {
                self.code_addresses.push(setting.entry);
                self.close_for(setting.entry, "the address may ask for certificates of clients");
            }
            _ if is_harmless(self.kind, name) => {}
            _ if self.kind == ImportKind::Gunicorn
                && name != super::literal::ANY_SETTING
                && !is_of_gunicorn(name) => {}
            _ => self.close_for(setting.entry, "it may refuse requests"),
        }
    }

    /// Translates a setting.
    fn translate_setting(&mut self, setting: LiteralSetting) {
        if let Some(code) = &setting.code {
            self.omit_code(&setting, code);
            return;
        }
        let name = setting.name.as_str();
        let first = setting.values.first().cloned().unwrap_or_default();
        if first == PER_CORE_PLACEHOLDER && !WORKER_COUNTS.contains(&name) {
            self.ledger.mark_impossible(setting.entry, "it is code, not a value: write what it gives");
            self.omit_code(&setting, "");
            return;
        }
        if name == "config" {
            self.close_for(setting.entry, "its file was not read: `komainu import` reads it by itself");
            return;
        }
        if let Some(result) = self.translate_guard(&setting, &first) {
            match result {
                Ok(()) => self.ledger.mark_translated(setting.entry),
                Err(reason) => self.close_for(setting.entry, reason),
            }
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
        let is_call = self.kind == ImportKind::Puma && !is_harmless(self.kind, &setting.name);
        if setting.values.is_empty() && !is_call && !setting.name.starts_with("preload_app") {
            self.ledger.mark_not_needed(setting.entry, "its default");
            return;
        }
        let found = self
            .translate_process(&setting, &first)
            .or_else(|| self.translate_certificates(&setting, &first));
        match found.or_else(|| self.translate_environment(&setting, &first)) {
            Some(Ok(())) => self.ledger.mark_translated(setting.entry),
            Some(Err(note)) => self.ledger.mark_different(setting.entry, note),
            None if is_harmless(self.kind, &setting.name) => self
                .ledger
                .mark_impossible(setting.entry, "there is nothing like it here: see docs/applications.md"),
            None if self.kind == ImportKind::Gunicorn
                && self.source_of_file(setting.entry)
                && !is_of_gunicorn(&setting.name) =>
            {
                self.ledger.mark_not_needed(setting.entry, "not needed: gunicorn has no such setting");
            }
            None => self.close_for(setting.entry, "it may refuse requests, and has no translation"),
        }
    }

    /// Translates settings that refuse requests; `Err` is the reason why they are lost.
    fn translate_guard(&mut self, setting: &LiteralSetting, first: &str) -> Option<Result<(), &'static str>> {
        let networks = |text: &str| -> Vec<String> {
            text.split(',').map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect()
        };
        match (self.kind, setting.name.as_str()) {
            (ImportKind::Gunicorn, "proxy_protocol") => {
                if !matches!(first, "" | "false" | "off") {
                    self.proxy_protocol = Some(setting.entry);
                }
            }
            (ImportKind::Gunicorn, "proxy_allow_ips") => {
                self.proxy_networks = setting.values.iter().flat_map(|value| networks(value)).collect();
            }
            (ImportKind::Gunicorn, "protocol") if matches!(first, "" | "http") => {}
            (ImportKind::Gunicorn, "protocol") => return Some(Err("the server speaks HTTP alone")),
            (ImportKind::Gunicorn, "uwsgi_allow_ips" | "paste" | "pre_request") if first.is_empty() => {}
            (ImportKind::Puma, "set_remote_address") if matches!(first, "" | "socket") => {}
            (ImportKind::Puma, "set_remote_address") => {
                return Some(Err(
                    "the application may ask for the client's address: write `trusted_proxies`, or `proxy_protocol` of `listen`",
                ));
            }
            (ImportKind::Puma, "supported_http_methods") if first == "any" => {}
            (ImportKind::Puma, "plugin") if !HARMLESS_PLUGINS.contains(&first) => {
                return Some(Err("what a plugin does is not known"));
            }
            (ImportKind::Passenger, "server_names") => {
                let names = setting.values.iter().flat_map(|value| networks(value));
                self.site.set("hosts", TomlItem::List(names.map(TomlItem::Text).collect()));
            }
            (ImportKind::Passenger, "app_type") if !matches!(first, "rack" | "wsgi") => {
                return Some(Err(
                    "Komainu runs Python, Ruby and Perl: let other applications listen, and name them in `proxy`",
                ));
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    /// Whether an entry stands in a file of Python, whose other names are variables.
    fn source_of_file(&self, entry: EntryIndex) -> bool {
        self.python_entries.contains(&entry)
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
        let is_count = WORKER_COUNTS.contains(&setting.name.as_str());
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
            "cert_reqs" | "ssl_verify_mode" => self.client_verifications.push(ClientVerification {
                entry: setting.entry,
                mode: first.to_owned(),
                authorities: None,
            }),
            "enable_ssl" | "ssl" => self.is_tls = !matches!(first, "false" | "0" | ""),
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
            "socket_file" | "socket" => self.socket = Some(first.to_owned()),
            "host" | "address" => self.host = Some(first.to_owned()),
            "port" if self.kind == ImportKind::Puma => {
                let host = setting.values.get(1).map_or("", String::as_str);
                return Some(self.add_address(&format!("tcp://{host}:{first}"), setting.entry));
            }
            "port" => {
                self.port = Some(first.to_owned());
            }
            "wsgi_app" | "application" | "rackup" | "startup_file" => {
                if self.application.is_some() {
                    return Some(Err("an application is there already: this one is left out"));
                }
                self.application = Some(first.to_owned());
            }
            "app_type" => {}
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
            "forwarded_allow_ips" => {
                let texts = setting.values.iter().flat_map(|value| value.split(',')).map(str::trim);
                let (networks, others): (Vec<&str>, Vec<&str>) =
                    texts.filter(|text| !text.is_empty()).partition(|text| is_network(text));
                if !networks.is_empty() {
                    let networks = networks.into_iter().map(TomlItem::text);
                    self.top.set("trusted_proxies", TomlItem::List(networks.collect()));
                }
                return Some(Err(if others.is_empty() {
                    "REMOTE_ADDR is the address that these proxies name too"
                } else {
                    "proxies have to be named: write `trusted_proxies` with their networks"
                }));
            }
            "http_content_length_limit" => {
                let bytes = first.parse::<u64>().unwrap_or(0);
                self.top.set_in("limits", "body", TomlItem::Text(format!("{bytes}B")));
            }
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

    pub(super) fn set_env(&mut self, name: &str, value: &str) {
        self.app.set_in("env", name, TomlItem::text(value));
    }

    /// Returns the configuration.
    pub(super) fn into_draft(mut self) -> ConfigDraft {
        self.translate_settings();
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

/// Whether a text is an address or a network.
pub(super) fn is_network(text: &str) -> bool {
    let (address, bits) = text.split_once('/').unwrap_or((text, "0"));
    bits.parse::<u8>().is_ok_and(|bits| bits <= 128) && address.parse::<std::net::IpAddr>().is_ok()
}

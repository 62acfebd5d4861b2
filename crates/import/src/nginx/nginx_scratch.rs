//! Scratch copy of nginx's configuration, see [`crate::scratch`].

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use super::render::{DirectiveReplacement, NginxWriter};
use super::scope::{Scope, replace_constants};
use super::tree::{NginxDirective, TreeReader};
use crate::findings::{EntryIndex, ImportError, ImportLedger, ImportRemark, ImportResult};
use crate::scratch::{
    ScratchFile, ScratchListener, ScratchOptions, SourcePosition, StubProtocol, StubServer, VerifyRequest,
};

/// Directives that are omitted from the copy, because they refer to its environment or depend on time. The
/// reason is empty if the omission does not affect the comparison.
const DROPPED_DIRECTIVES: &[(&[&str], &str)] = &[
    (
        &[
            "daemon",
            "master_process",
            "pid",
            "lock_file",
            "user",
            "worker_processes",
            "worker_priority",
            "worker_cpu_affinity",
            "worker_rlimit_nofile",
            "worker_rlimit_core",
            "working_directory",
            "worker_shutdown_timeout",
            "timer_resolution",
            "thread_pool",
            "env",
            "load_module",
            "pcre_jit",
            "quic_bpf",
            "quic_host_key",
            "debug_points",
            "events",
            "google_perftools_profiles",
            "error_log",
            "access_log",
            "log_format",
            "open_log_file_cache",
            "client_body_temp_path",
            "proxy_temp_path",
            "fastcgi_temp_path",
            "uwsgi_temp_path",
            "scgi_temp_path",
            "resolver",
            "resolver_timeout",
            "aio",
            "proxy_ssl_trusted_certificate",
            "proxy_ssl_certificate",
            "proxy_ssl_certificate_key",
            "proxy_ssl_crl",
            "proxy_ssl_verify",
            "proxy_ssl_name",
            "proxy_ssl_ciphers",
            "proxy_ssl_protocols",
            "proxy_ssl_verify_depth",
            "proxy_ssl_session_reuse",
            "proxy_ssl_server_name",
            "proxy_bind",
            "fastcgi_bind",
            "grpc_ssl_verify",
            "http2",
            "http3",
            "grpc_ssl_trusted_certificate",
            "server_names_hash_bucket_size",
            "server_names_hash_max_size",
        ],
        "",
    ),
    (&["stream", "mail", "rtmp"], "what is not HTTP"),
    (
        &[
            "limit_req",
            "limit_req_zone",
            "limit_conn",
            "limit_conn_zone",
            "limit_rate",
            "limit_rate_after",
            "limit_req_status",
            "limit_req_log_level",
            "limit_req_dry_run",
            "limit_conn_status",
            "limit_conn_log_level",
        ],
        "limits of rates, connections and bandwidth: they depend on time",
    ),
    (
        &["dav_methods", "create_full_put_path", "proxy_store", "fastcgi_store", "dav_ext_methods"],
        "what writes files",
    ),
    (&["proxy_protocol_timeout"], "the PROXY protocol"),
    (
        &["ssl_verify_client", "ssl_client_certificate", "ssl_crl", "ssl_ocsp", "ssl_verify_depth"],
        "certificates of clients",
    ),
];

/// A scratch copy of nginx's configuration.
pub struct NginxScratch {
    pub(super) main: Vec<NginxDirective>,
    remarks: Vec<ImportRemark>,
    replacements: HashMap<EntryIndex, DirectiveReplacement>,
    old_address: String,
    new_address: String,
    folder: String,
    has_http: bool,
    /// Directive of each line of the last text generated for nginx.
    line_entries: Vec<EntryIndex>,
    /// Directive of each line of the last text generated for the translation.
    copy_line_entries: Vec<EntryIndex>,
    /// Whether the translation of the copy differs from that of the original: nginx refuses directives, which the copy
    /// omits, or addresses share a socket, for which the copy has ports of their own.
    is_translated_otherwise: bool,
    /// Listeners of both servers.
    pub listeners: Vec<ScratchListener>,
    /// Stubs that replace upstream servers.
    pub stubs: Vec<StubServer>,
    /// Files of the scratch directory.
    pub files: Vec<ScratchFile>,
    /// The requests to compare.
    pub requests: Vec<VerifyRequest>,
    /// Number of requests that were omitted because there are too many.
    pub omitted_requests: usize,
    /// Descriptions of what is not compared, with reasons.
    pub not_compared: BTreeSet<String>,
}

/// Changes for a scratch copy that is being planned.
pub(super) struct ScratchBuilder<'o, 'p> {
    pub(super) options: &'o mut ScratchOptions<'p>,
    pub(super) replacements: HashMap<EntryIndex, DirectiveReplacement>,
    pub(super) listeners: Vec<ScratchListener>,
    pub(super) stubs: Vec<StubServer>,
    pub(super) files: Vec<ScratchFile>,
    pub(super) not_compared: BTreeSet<String>,
    /// Directories of the original configuration; the index is the name of the scratch directory.
    pub(super) folders: Vec<String>,
    pub(super) upstream_groups: Vec<String>,
    /// The upstream group whose servers are being read.
    pub(super) current_group: Option<String>,
}

impl NginxScratch {
    /// Reads nginx's configuration and plans its scratch copy.
    ///
    /// # Errors
    /// The configuration cannot be read, or there is no free port.
    pub fn read(
        path: &Path,
        prefix: Option<&Path>,
        mut options: ScratchOptions<'_>,
    ) -> Result<Self, ImportError> {
        let ledger = ImportLedger::default();
        let folder = path.parent().unwrap_or(Path::new(""));
        let main = TreeReader::new(&ledger, path, folder).read(path)?;
        let has_http = main.iter().any(|one| one.name == "http");
        let mut plan = ScratchBuilder {
            options: &mut options,
            replacements: HashMap::new(),
            listeners: Vec::new(),
            stubs: Vec::new(),
            files: Vec::new(),
            not_compared: BTreeSet::new(),
            folders: Vec::new(),
            upstream_groups: Vec::new(),
            current_group: None,
        };
        super::tree::visit(&main, &mut |one| {
            if one.name == "upstream" {
                plan.upstream_groups.push(one.first_arg().to_owned());
            }
        });
        plan.trust_loopback(&main);
        let prefix = prefix.unwrap_or(folder);
        plan.plan_block(&main, &Scope::of(vec![&main]), prefix)?;
        let http = match main.iter().find(|one| one.name == "http") {
            Some(http) => Scope::of(vec![&main, http.block_directives()]),
            None => Scope::of(vec![&main]),
        };
        let (requests, left_out) = plan.build_requests(&http);
        plan.create_error_pages(&main);
        plan.create_credentials();
        let ScratchBuilder { replacements: replaced, listeners, stubs, files, not_compared, .. } = plan;
        Ok(Self {
            remarks: ledger.into_remarks(),
            main,
            replacements: replaced,
            old_address: options.old_address.clone(),
            new_address: options.new_address.clone(),
            folder: options.folder.display().to_string(),
            has_http,
            line_entries: Vec::new(),
            copy_line_entries: Vec::new(),
            is_translated_otherwise: share_sockets(&listeners),
            listeners,
            stubs,
            files,
            requests,
            omitted_requests: left_out,
            not_compared,
        })
    }

    /// Returns the configuration for nginx: it runs in the foreground and writes a line to its access log for
    /// each request, which [`LocatedRequest::parse`](super::LocatedRequest::parse) reads.
    pub fn nginx_config(&mut self) -> String {
        let mut writer = NginxWriter {
            replacements: &self.replacements,
            address: &self.old_address,
            records_location: true,
            text: String::new(),
            line_entries: Vec::new(),
        };
        let folder = &self.folder;
        let none = EntryIndex::MAX;
        for line in [
            "daemon off;".to_owned(),
            "master_process off;".to_owned(),
            "worker_processes 1;".to_owned(),
            format!("pid {folder}/nginx.pid;"),
            format!("error_log {folder}/error.log;"),
            "events { worker_connections 1024; }".to_owned(),
        ] {
            writer.write_line(none, 0, &line);
        }
        let mut inner = vec![
            "log_format komainu \"$http_x_verify\t$komainu_place\t$komainu_if\t$uri\";".to_owned(),
            format!("access_log {folder}/trace.log komainu;"),
            "server_names_hash_bucket_size 512;".to_owned(),
            "server_names_hash_max_size 4096;".to_owned(),
        ];
        inner.extend(self.replace_default_root());
        inner.extend(self.script_stub_groups());
        if !self.main.iter().any(|one| {
            one.name == "http" && one.block_directives().iter().any(|one| one.name == "ssl_certificate")
        }) {
            inner.push(format!("ssl_certificate {folder}/certificate.pem;"));
            inner.push(format!("ssl_certificate_key {folder}/key.pem;"));
        }
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            inner.push(format!("{kind}_temp_path {folder}/temp-{kind};"));
        }
        if self.has_http {
            for one in &self.main {
                if one.name == "http" {
                    writer.write_line(one.entry, 0, "http {");
                    inner.iter().for_each(|line| writer.write_line(none, 1, line));
                    writer.write_block(one.block_directives(), 1, one.entry);
                    writer.write_line(one.entry, 0, "}");
                } else {
                    writer.write_block(std::slice::from_ref(one), 0, none);
                }
            }
        } else {
            // A fragment that is meant to be included in an `http` block.
            writer.write_line(none, 0, "http {");
            inner.push("include /etc/nginx/mime.types;".to_owned());
            inner.iter().for_each(|line| writer.write_line(none, 1, line));
            writer.write_block(&self.main, 1, none);
            writer.write_line(none, 0, "}");
        }
        self.line_entries = writer.line_entries;
        writer.text
    }

    /// Returns the configuration from which Komainu's is translated.
    pub fn translation_source(&mut self) -> String {
        let mut writer = NginxWriter {
            replacements: &self.replacements,
            address: &self.new_address,
            records_location: false,
            text: String::new(),
            line_entries: Vec::new(),
        };
        // nginx's default log would be outside of the scratch directory.
        let (first, rest): (&[NginxDirective], &str) =
            match self.main.iter().position(|one| one.name == "http") {
                Some(at) => (&self.main[..at], "http {"),
                None => (&[], ""),
            };
        writer.write_block(first, 0, EntryIndex::MAX);
        if !rest.is_empty() {
            writer.write_line(EntryIndex::MAX, 0, rest);
        }
        writer.write_line(EntryIndex::MAX, 1, "access_log off;");
        for line in self.replace_default_root().into_iter().chain(self.script_stub_groups()) {
            writer.write_line(EntryIndex::MAX, 1, &line);
        }
        match self.main.iter().position(|one| one.name == "http") {
            Some(at) => {
                writer.write_block(self.main[at].block_directives(), 1, EntryIndex::MAX);
                writer.write_line(EntryIndex::MAX, 0, "}");
                writer.write_block(&self.main[at + 1..], 0, EntryIndex::MAX);
            }
            None => writer.write_block(&self.main, 0, EntryIndex::MAX),
        }
        self.copy_line_entries = writer.line_entries;
        writer.text
    }

    /// Adds the remarks of `copy`, the translation of [`NginxScratch::translation_source`], if it differs from that of the
    /// original.
    pub fn add_remarks_of_copy(&self, imported: &mut ImportResult, copy: &ImportResult) {
        if !self.is_translated_otherwise {
            return;
        }
        // Lines of included files are not those of the text.
        let file = copy.remarks.first().map(|first| &first.file);
        for remark in copy.remarks.iter().filter(|remark| Some(&remark.file) == file) {
            let entry = self.copy_line_entries.get(remark.line.wrapping_sub(1));
            let Some(known) = entry.and_then(|entry| imported.remarks.get_mut(*entry)) else { continue };
            known.verdict = known.verdict.max(remark.verdict);
            let new = remark.reasons.iter().filter(|reason| !known.reasons.contains(reason));
            let new: Vec<String> = new.cloned().collect();
            known.reasons.extend(new);
        }
    }

    /// Replaces nginx's default root, a directory of its installation, by a scratch directory.
    fn replace_default_root(&self) -> Option<String> {
        let http = self
            .main
            .iter()
            .find(|one| one.name == "http")
            .map_or(&self.main[..], NginxDirective::block_directives);
        (!http.iter().any(|one| one.name == "root")).then(|| format!("root {}/roots/html;", self.folder))
    }

    /// Returns the upstream groups of stubs that replace servers of scripts.
    fn script_stub_groups(&self) -> Vec<String> {
        let group = |stub: &StubServer| {
            let name = stub.script_group()?;
            Some(format!("upstream {name} {{ server 127.0.0.1:{}; }}", stub.port))
        };
        self.stubs.iter().filter_map(group).collect()
    }

    /// Omits the directive at a line of the last text generated for nginx, which nginx has refused. Returns
    /// whether there was one.
    pub fn drop_line(&mut self, line: usize, reason: &str) -> bool {
        let entry = self.line_entries.get(line.wrapping_sub(1)).copied().unwrap_or(EntryIndex::MAX);
        let Some(remark) = self.remarks.get(entry) else { return false };
        let is_include = remark.directive.starts_with("include ");
        if is_include || self.replacements.get(&entry) == Some(&DirectiveReplacement::Dropped) {
            return false;
        }
        let what = format!("{}:{}: `{}`: {reason}", remark.file, remark.line, remark.directive);
        self.not_compared.insert(what);
        self.replacements.insert(entry, DirectiveReplacement::Dropped);
        self.is_translated_otherwise = true;
        true
    }

    /// Omits all directives of this name, which the installed nginx lacks. Returns whether there was one.
    pub fn drop_name(&mut self, name: &str) -> bool {
        let mut found = Vec::new();
        super::tree::visit(&self.main, &mut |one| {
            if one.name == name && self.replacements.get(&one.entry) != Some(&DirectiveReplacement::Dropped) {
                found.push(one.entry);
            }
        });
        self.not_compared.insert(format!("`{name}`: this nginx does not have the directive"));
        let any = !found.is_empty();
        self.is_translated_otherwise |= any;
        found
            .into_iter()
            .for_each(|entry| drop(self.replacements.insert(entry, DirectiveReplacement::Dropped)));
        any
    }

    /// Returns the position of a directive in the source.
    pub(super) fn source_place(&self, entry: EntryIndex) -> Option<SourcePosition> {
        let remark = self.remarks.get(entry)?;
        Some(SourcePosition {
            file: remark.file.clone(),
            line: remark.line,
            directive: remark.directive.clone(),
        })
    }
}

/// Whether one of the addresses is for all hosts, and includes another one with the same port.
fn share_sockets(listeners: &[ScratchListener]) -> bool {
    let port = |listener: &ScratchListener| listener.name.rsplit_once(':').map(|(_, port)| port.to_owned());
    listeners
        .iter()
        .filter(|wide| wide.name.starts_with("*:"))
        .any(|wide| listeners.iter().any(|other| other.name != wide.name && port(other) == port(wide)))
}

impl ScratchBuilder<'_, '_> {
    /// Replaces one of the trusted proxies by loopback addresses, from which requests come.
    fn trust_loopback(&mut self, main: &[NginxDirective]) {
        let mut all: Vec<&NginxDirective> = Vec::new();
        super::tree::visit(main, &mut |one| {
            if one.name == "set_real_ip_from" {
                all.push(one);
            }
        });
        let Some(first) = all.first().map(|one| one.first_arg()) else { return };
        if all.iter().any(|one| one.first_arg().starts_with("127.")) {
            return;
        }
        for one in all.iter().filter(|one| one.first_arg() == first) {
            self.replace(one, &["127.0.0.0/8"]);
        }
    }

    fn plan_block(
        &mut self,
        block: &[NginxDirective],
        scope: &Scope<'_>,
        prefix: &Path,
    ) -> Result<(), ImportError> {
        let mut ports: Vec<u16> = Vec::new();
        for one in block {
            if one.name == "listen" {
                self.replace_listen(one, &mut ports)?;
                continue;
            }
            self.plan_directive(one, scope, prefix)?;
            if one.name == "upstream" {
                self.current_group = Some(one.first_arg().to_owned());
            }
            if let Some(inner) = &one.block
                && !matches!(
                    one.name.as_str(),
                    "map" | "geo" | "types" | "split_clients" | "events" | "stream" | "mail"
                )
            {
                self.plan_block(inner, &scope.with_block(inner), prefix)?;
            }
            if one.name == "upstream" {
                self.current_group = None;
            }
            if one.name == "server"
                && one.block.is_some()
                && !one.block_directives().iter().any(|inner| inner.name == "listen")
            {
                let port = self.scratch_port("0.0.0.0:80", false)?;
                self.replacements.insert(one.entry, DirectiveReplacement::Listen(port, Vec::new()));
            }
        }
        Ok(())
    }

    fn replace(&mut self, directive: &NginxDirective, args: &[&str]) {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        self.replacements.insert(directive.entry, DirectiveReplacement::Arguments(args));
    }

    fn plan_directive(
        &mut self,
        directive: &NginxDirective,
        scope: &Scope<'_>,
        prefix: &Path,
    ) -> Result<(), ImportError> {
        let folder = self.options.folder.display().to_string();
        // Without certificates of clients, nothing but a refusal can be compared.
        let is_refusal = self.options.only_paths
            && matches!(directive.name.as_str(), "ssl_client_certificate" | "ssl_verify_client");
        if let Some((_, reason)) = DROPPED_DIRECTIVES
            .iter()
            .find(|(names, _)| names.contains(&directive.name.as_str()) && !is_refusal)
        {
            if !reason.is_empty() {
                self.not_compared.insert(format!("{reason} (`{}`)", directive.name));
            }
            self.replacements.insert(directive.entry, DirectiveReplacement::Dropped);
            return Ok(());
        }
        match directive.name.as_str() {
            "ssl_client_certificate" => self.replace(directive, &[&format!("{folder}/certificate.pem")]),
            "ssl_certificate" | "ssl_certificate_key" => {
                let file = if directive.name.ends_with("key") { "key.pem" } else { "certificate.pem" };
                self.replace(directive, &[&format!("{folder}/{file}")]);
            }
            "ssl_reject_handshake" | "ssl_verify_client" => {}
            name if name.starts_with("ssl_") => {
                self.replacements.insert(directive.entry, DirectiveReplacement::Dropped);
            }
            "root" | "alias" => {
                let path = self.scratch_path(
                    &replace_constants(directive.first_arg(), scope, 0),
                    directive.name == "alias",
                );
                self.replace(directive, &[&path]);
            }
            "auth_basic_user_file" => self.replace(directive, &[&format!("{folder}/users")]),
            "proxy_cache_path" | "fastcgi_cache_path" | "uwsgi_cache_path" | "scgi_cache_path" => {
                let mut args = directive.args.clone();
                if let Some(first) = args.first_mut() {
                    *first = format!("{folder}/cache-{}", directive.entry);
                }
                self.replacements.insert(directive.entry, DirectiveReplacement::Arguments(args));
            }
            // Contains only TLS settings, which the copy replaces.
            "include" if directive.first_arg().ends_with("options-ssl-nginx.conf") => {
                self.replacements.insert(directive.entry, DirectiveReplacement::Dropped);
            }
            "include" => {
                let copy = self.copy_included(directive.first_arg(), prefix)?;
                self.replace(directive, &[&copy]);
            }
            "set" if directive.arg_at(1).contains("://") => {
                let value = self.replace_url(directive.arg_at(1), StubProtocol::Http, scope)?;
                self.replace(directive, &[directive.first_arg(), &value]);
            }
            "server" if directive.block.is_none() => self.replace_upstream_server(directive, scope)?,
            "proxy_pass" => {
                let url = self.replace_url(directive.first_arg(), StubProtocol::Http, scope)?;
                self.replace(directive, &[&url]);
            }
            "fastcgi_pass" => {
                let address = self.stub_address(directive.first_arg(), StubProtocol::FastCgi)?;
                self.replace(directive, &[&address]);
            }
            "grpc_pass" | "uwsgi_pass" | "scgi_pass" | "memcached_pass" => {
                let bare = directive.first_arg().rsplit("://").next().unwrap_or("").to_owned();
                let address = self.stub_address(&bare, StubProtocol::Unknown)?;
                self.replace(directive, &[&address]);
                self.not_compared
                    .insert(format!("what `{}` answers: no stub speaks its protocol", directive.name));
            }
            _ => {}
        }
        Ok(())
    }

    /// Copies a file of nginx's distribution, and the files that it includes. Returns the name of the copy.
    ///
    /// # Errors
    /// The file is missing: without it another configuration would be compared.
    fn copy_included(&mut self, name: &str, prefix: &Path) -> Result<String, ImportError> {
        let stock = Path::new("/etc/nginx");
        let last = Path::new(name).file_name().unwrap_or_default();
        let found =
            [prefix.join(name), stock.join(name), stock.join(last)].into_iter().find(|path| path.is_file());
        let Some(path) = found else {
            return Err(format!(
                "`include {name}`: there is no such file, and nothing can be compared without it"
            )
            .into());
        };
        let copy = format!("includes/{}/{}", self.files.len(), last.to_string_lossy());
        let text = super::tree::read_text(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut lines = Vec::new();
        for line in text.lines() {
            let inner = line.trim().strip_prefix("include ").and_then(|rest| rest.trim().strip_suffix(';'));
            lines.push(match inner {
                Some(inner) => format!("include {};", self.copy_included(inner.trim(), prefix)?),
                None => line.to_owned(),
            });
        }
        let content = format!("{}\n", lines.join("\n")).into_bytes();
        self.files.push(ScratchFile { path: copy.clone(), content });
        Ok(format!("{}/{copy}", self.options.folder.display()))
    }

    /// Returns the directory in the scratch directory that replaces one of the original configuration; the
    /// part with variables is kept.
    pub(super) fn scratch_path(&mut self, old: &str, is_alias: bool) -> String {
        let (fixed, rest) = match old.find('$') {
            None => (old, ""),
            Some(at) => old.split_at(old[..at].rfind('/').map_or(0, |slash| slash)),
        };
        let name = fixed.rsplit('/').next().unwrap_or("");
        // An `alias` to a file: the directory is its parent.
        let (fixed, file) = if is_alias && name.contains('.') && rest.is_empty() {
            fixed.rsplit_once('/').map_or(("", fixed), |(folder, file)| (folder, file))
        } else {
            (fixed, "")
        };
        let key = fixed.trim_end_matches('/').to_owned();
        let at = match self.folders.iter().position(|known| *known == key) {
            Some(at) => at,
            None => {
                self.folders.push(key);
                self.folders.len() - 1
            }
        };
        let slash = if fixed.ends_with('/') || !file.is_empty() { "/" } else { "" };
        format!("{}/roots/{at}{slash}{file}{rest}", self.options.folder.display())
    }
}

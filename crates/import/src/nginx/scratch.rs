//! Scratch copy of nginx's configuration, see [`crate::scratch`].

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use super::render::{NginxWriter, Replacement};
use super::scope::{Scope, constants};
use super::tree::{NginxDirective, TreeReader};
use crate::findings::{EntryNumber, ImportError, ImportLedger, Imported, Remark};
use crate::scratch::{
    ScratchFile, ScratchListener, ScratchOptions, SourcePlace, StubProtocol, StubServer, VerifyRequest,
};

/// Directives that are omitted from the copy, because they refer to its environment or depend on time. The
/// reason is empty if the omission does not affect the comparison.
const DROPPED: &[(&[&str], &str)] = &[
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
    remarks: Vec<Remark>,
    replaced: HashMap<EntryNumber, Replacement>,
    old_address: String,
    new_address: String,
    folder: String,
    has_http: bool,
    /// Directive of each line of the last text generated for nginx.
    lines: Vec<EntryNumber>,
    /// Directive of each line of the last text generated for the translation.
    new_lines: Vec<EntryNumber>,
    /// Whether nginx refuses directives of the original, which the copy omits.
    is_refused: bool,
    /// Listeners of both servers.
    pub listeners: Vec<ScratchListener>,
    /// Stubs that replace upstream servers.
    pub stubs: Vec<StubServer>,
    /// Files of the scratch directory.
    pub files: Vec<ScratchFile>,
    /// The requests to compare.
    pub requests: Vec<VerifyRequest>,
    /// Number of requests that were omitted because there are too many.
    pub left_out: usize,
    /// Descriptions of what is not compared, with reasons.
    pub not_compared: BTreeSet<String>,
}

/// Changes for a scratch copy that is being planned.
pub(super) struct ScratchPlan<'o, 'p> {
    pub(super) options: &'o mut ScratchOptions<'p>,
    pub(super) replaced: HashMap<EntryNumber, Replacement>,
    pub(super) listeners: Vec<ScratchListener>,
    pub(super) stubs: Vec<StubServer>,
    pub(super) files: Vec<ScratchFile>,
    pub(super) not_compared: BTreeSet<String>,
    /// Directories of the original configuration; the index is the name of the scratch directory.
    pub(super) folders: Vec<String>,
    pub(super) groups: Vec<String>,
    /// The upstream group whose servers are being read.
    pub(super) group: Option<String>,
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
        let mut plan = ScratchPlan {
            options: &mut options,
            replaced: HashMap::new(),
            listeners: Vec::new(),
            stubs: Vec::new(),
            files: Vec::new(),
            not_compared: BTreeSet::new(),
            folders: Vec::new(),
            groups: Vec::new(),
            group: None,
        };
        super::tree::visit(&main, &mut |one| {
            if one.name == "upstream" {
                plan.groups.push(one.first().to_owned());
            }
        });
        let fault = |message: String| ImportError::new("", 0, message);
        let prefix = prefix.unwrap_or(folder);
        plan.block(&main, &Scope::of(vec![&main]), prefix).map_err(fault)?;
        let http = match main.iter().find(|one| one.name == "http") {
            Some(http) => Scope::of(vec![&main, http.inner()]),
            None => Scope::of(vec![&main]),
        };
        let (requests, left_out) = plan.requests(&http);
        plan.error_pages(&main);
        plan.credentials();
        let ScratchPlan { replaced, listeners, stubs, files, not_compared, .. } = plan;
        Ok(Self {
            remarks: ledger.into_remarks(),
            main,
            replaced,
            old_address: options.old_address.clone(),
            new_address: options.new_address.clone(),
            folder: options.folder.display().to_string(),
            has_http,
            lines: Vec::new(),
            new_lines: Vec::new(),
            is_refused: false,
            listeners,
            stubs,
            files,
            requests,
            left_out,
            not_compared,
        })
    }

    /// Returns the configuration for nginx: it runs in the foreground and writes a line to its access log for
    /// each request, which [`LocatedRequest::parse`](super::LocatedRequest::parse) reads.
    pub fn old_text(&mut self) -> String {
        let mut writer = NginxWriter {
            replaced: &self.replaced,
            address: &self.old_address,
            traced: true,
            text: String::new(),
            lines: Vec::new(),
        };
        let folder = &self.folder;
        let none = EntryNumber::MAX;
        for line in [
            "daemon off;".to_owned(),
            "master_process off;".to_owned(),
            "worker_processes 1;".to_owned(),
            format!("pid {folder}/nginx.pid;"),
            format!("error_log {folder}/error.log;"),
            "events { worker_connections 256; }".to_owned(),
        ] {
            writer.line(none, 0, &line);
        }
        let mut inner = vec![
            "log_format komainu \"$http_x_verify\t$komainu_place\t$komainu_if\t$uri\";".to_owned(),
            format!("access_log {folder}/trace.log komainu;"),
            "server_names_hash_bucket_size 512;".to_owned(),
            "server_names_hash_max_size 4096;".to_owned(),
        ];
        inner.extend(self.default_root());
        if !self
            .main
            .iter()
            .any(|one| one.name == "http" && one.inner().iter().any(|one| one.name == "ssl_certificate"))
        {
            inner.push(format!("ssl_certificate {folder}/certificate.pem;"));
            inner.push(format!("ssl_certificate_key {folder}/key.pem;"));
        }
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            inner.push(format!("{kind}_temp_path {folder}/temp-{kind};"));
        }
        match self.has_http {
            true => {
                for one in &self.main {
                    if one.name == "http" {
                        writer.line(one.entry, 0, "http {");
                        inner.iter().for_each(|line| writer.line(none, 1, line));
                        writer.block(one.inner(), 1, one.entry);
                        writer.line(one.entry, 0, "}");
                    } else {
                        writer.block(std::slice::from_ref(one), 0, none);
                    }
                }
            }
            false => {
                // A fragment that is meant to be included in an `http` block.
                writer.line(none, 0, "http {");
                inner.push("include /etc/nginx/mime.types;".to_owned());
                inner.iter().for_each(|line| writer.line(none, 1, line));
                writer.block(&self.main, 1, none);
                writer.line(none, 0, "}");
            }
        }
        self.lines = writer.lines;
        writer.text
    }

    /// Returns the configuration from which Komainu's is translated.
    pub fn new_text(&mut self) -> String {
        let mut writer = NginxWriter {
            replaced: &self.replaced,
            address: &self.new_address,
            traced: false,
            text: String::new(),
            lines: Vec::new(),
        };
        // nginx's default log would be outside of the scratch directory.
        let (first, rest): (&[NginxDirective], &str) =
            match self.main.iter().position(|one| one.name == "http") {
                Some(at) => (&self.main[..at], "http {"),
                None => (&[], ""),
            };
        writer.block(first, 0, EntryNumber::MAX);
        if !rest.is_empty() {
            writer.line(EntryNumber::MAX, 0, rest);
        }
        writer.line(EntryNumber::MAX, 1, "access_log off;");
        if let Some(root) = self.default_root() {
            writer.line(EntryNumber::MAX, 1, &root);
        }
        match self.main.iter().position(|one| one.name == "http") {
            Some(at) => {
                writer.block(self.main[at].inner(), 1, EntryNumber::MAX);
                writer.line(EntryNumber::MAX, 0, "}");
                writer.block(&self.main[at + 1..], 0, EntryNumber::MAX);
            }
            None => writer.block(&self.main, 0, EntryNumber::MAX),
        }
        self.new_lines = writer.lines;
        writer.text
    }

    /// Adds the remarks of `copy`, the translation of [`NginxScratch::new_text`], if nginx refuses the
    /// original: the directives that the copy omits change the translation of the others.
    pub fn add_remarks_of_copy(&self, imported: &mut Imported, copy: &Imported) {
        if !self.is_refused {
            return;
        }
        // Lines of included files are not those of the text.
        let file = copy.remarks.first().map(|first| &first.file);
        for remark in copy.remarks.iter().filter(|remark| Some(&remark.file) == file) {
            let entry = self.new_lines.get(remark.line.wrapping_sub(1));
            let Some(known) = entry.and_then(|entry| imported.remarks.get_mut(*entry)) else { continue };
            known.verdict = known.verdict.max(remark.verdict);
            let new = remark.reasons.iter().filter(|reason| !known.reasons.contains(reason));
            let new: Vec<String> = new.cloned().collect();
            known.reasons.extend(new);
        }
    }

    /// Replaces nginx's default root, a directory of its installation, by a scratch directory.
    fn default_root(&self) -> Option<String> {
        let http =
            self.main.iter().find(|one| one.name == "http").map_or(&self.main[..], NginxDirective::inner);
        (!http.iter().any(|one| one.name == "root")).then(|| format!("root {}/roots/html;", self.folder))
    }

    /// Omits the directive at a line of the last text generated for nginx, which nginx has refused. Returns
    /// whether there was one.
    pub fn drop_line(&mut self, line: usize, reason: &str) -> bool {
        let entry = self.lines.get(line.wrapping_sub(1)).copied().unwrap_or(EntryNumber::MAX);
        let Some(remark) = self.remarks.get(entry) else { return false };
        let is_include = remark.directive.starts_with("include ");
        if is_include || self.replaced.get(&entry) == Some(&Replacement::Dropped) {
            return false;
        }
        let what = format!("{}:{}: `{}`: {reason}", remark.file, remark.line, remark.directive);
        self.not_compared.insert(what);
        self.replaced.insert(entry, Replacement::Dropped);
        self.is_refused = true;
        true
    }

    /// Omits all directives of this name, which the installed nginx lacks. Returns whether there was one.
    pub fn drop_name(&mut self, name: &str) -> bool {
        let mut found = Vec::new();
        super::tree::visit(&self.main, &mut |one| {
            if one.name == name && self.replaced.get(&one.entry) != Some(&Replacement::Dropped) {
                found.push(one.entry);
            }
        });
        self.not_compared.insert(format!("`{name}`: this nginx does not have the directive"));
        let any = !found.is_empty();
        found.into_iter().for_each(|entry| drop(self.replaced.insert(entry, Replacement::Dropped)));
        any
    }

    /// Returns the position of a directive in the source.
    pub(super) fn source(&self, entry: EntryNumber) -> Option<SourcePlace> {
        let remark = self.remarks.get(entry)?;
        Some(SourcePlace {
            file: remark.file.clone(),
            line: remark.line,
            directive: remark.directive.clone(),
        })
    }
}

impl ScratchPlan<'_, '_> {
    fn block(&mut self, block: &[NginxDirective], scope: &Scope<'_>, prefix: &Path) -> Result<(), String> {
        let mut ports: Vec<u16> = Vec::new();
        for one in block {
            if one.name == "listen" {
                self.listen(one, &mut ports)?;
                continue;
            }
            self.directive(one, scope, prefix)?;
            if one.name == "upstream" {
                self.group = Some(one.first().to_owned());
            }
            if let Some(inner) = &one.block
                && !matches!(
                    one.name.as_str(),
                    "map" | "geo" | "types" | "split_clients" | "events" | "stream" | "mail"
                )
            {
                self.block(inner, &scope.with(inner), prefix)?;
            }
            if one.name == "upstream" {
                self.group = None;
            }
            if one.name == "server"
                && one.block.is_some()
                && !one.inner().iter().any(|inner| inner.name == "listen")
            {
                let port = self.listener("0.0.0.0:80", false)?;
                self.replaced.insert(one.entry, Replacement::Listen(port, Vec::new()));
            }
        }
        Ok(())
    }

    fn replace(&mut self, one: &NginxDirective, args: &[&str]) {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        self.replaced.insert(one.entry, Replacement::Arguments(args));
    }

    fn directive(&mut self, one: &NginxDirective, scope: &Scope<'_>, prefix: &Path) -> Result<(), String> {
        if let Some((_, reason)) = DROPPED.iter().find(|(names, _)| names.contains(&one.name.as_str())) {
            if !reason.is_empty() {
                self.not_compared.insert(format!("{reason} (`{}`)", one.name));
            }
            self.replaced.insert(one.entry, Replacement::Dropped);
            return Ok(());
        }
        let folder = self.options.folder.display().to_string();
        match one.name.as_str() {
            "ssl_certificate" | "ssl_certificate_key" => {
                let file = if one.name.ends_with("key") { "key.pem" } else { "certificate.pem" };
                self.replace(one, &[&format!("{folder}/{file}")]);
            }
            name if name.starts_with("ssl_") && name != "ssl_reject_handshake" => {
                self.replaced.insert(one.entry, Replacement::Dropped);
            }
            "root" | "alias" => {
                let path = self.scratch_path(&constants(one.first(), scope, 0), one.name == "alias");
                self.replace(one, &[&path]);
            }
            "auth_basic_user_file" => self.replace(one, &[&format!("{folder}/users")]),
            "proxy_cache_path" | "fastcgi_cache_path" | "uwsgi_cache_path" | "scgi_cache_path" => {
                let mut args = one.args.clone();
                if let Some(first) = args.first_mut() {
                    *first = format!("{folder}/cache-{}", one.entry);
                }
                self.replaced.insert(one.entry, Replacement::Arguments(args));
            }
            // Contains only TLS settings, which the copy replaces.
            "include" if one.first().ends_with("options-ssl-nginx.conf") => {
                self.replaced.insert(one.entry, Replacement::Dropped);
            }
            "include" => {
                let copy = self.included(one.first(), prefix)?;
                self.replace(one, &[&copy]);
            }
            "set" if one.arg(1).contains("://") => {
                let value = self.url(one.arg(1), StubProtocol::Http, scope)?;
                self.replace(one, &[one.first(), &value]);
            }
            "server" if one.block.is_none() => self.upstream_server(one, scope)?,
            "proxy_pass" => {
                let url = self.url(one.first(), StubProtocol::Http, scope)?;
                self.replace(one, &[&url]);
            }
            "fastcgi_pass" => {
                let address = self.address(one.first(), StubProtocol::FastCgi)?;
                self.replace(one, &[&address]);
            }
            "grpc_pass" | "uwsgi_pass" | "scgi_pass" | "memcached_pass" => {
                let bare = one.first().rsplit("://").next().unwrap_or("").to_owned();
                let address = self.address(&bare, StubProtocol::Unknown)?;
                self.replace(one, &[&address]);
                self.not_compared.insert(format!("what `{}` answers: no stub speaks its protocol", one.name));
            }
            _ => {}
        }
        Ok(())
    }

    /// Copies a file of nginx's distribution, and the files that it includes. Returns the name of the copy.
    ///
    /// # Errors
    /// The file is missing: without it another configuration would be compared.
    fn included(&mut self, name: &str, prefix: &Path) -> Result<String, String> {
        let stock = Path::new("/etc/nginx");
        let last = Path::new(name).file_name().unwrap_or_default();
        let found =
            [prefix.join(name), stock.join(name), stock.join(last)].into_iter().find(|path| path.is_file());
        let Some(path) = found else {
            return Err(format!(
                "`include {name}`: there is no such file, and nothing can be compared without it"
            ));
        };
        let copy = format!("includes/{}/{}", self.files.len(), last.to_string_lossy());
        let text = super::tree::read_text(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut lines = Vec::new();
        for line in text.lines() {
            let inner = line.trim().strip_prefix("include ").and_then(|rest| rest.trim().strip_suffix(';'));
            lines.push(match inner {
                Some(inner) => format!("include {};", self.included(inner.trim(), prefix)?),
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
        let (fixed, file) = match is_alias && name.contains('.') && rest.is_empty() {
            true => fixed.rsplit_once('/').map_or(("", fixed), |(folder, file)| (folder, file)),
            false => (fixed, ""),
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

//! Addresses of a scratch copy: listeners, stubs that replace upstream servers, and files for error pages.

use std::collections::BTreeSet;

use super::nginx_scratch::ScratchBuilder;
use super::render::DirectiveReplacement;
use super::scope::{Scope, replace_constants};
use super::tree::NginxDirective;
use crate::findings::ImportError;
use crate::scratch::{GROUP_STUB_PREFIX, ScratchFile, ScratchListener, StubProtocol, StubServer};

impl ScratchBuilder<'_, '_> {
    pub(super) fn replace_upstream_server(
        &mut self,
        directive: &NginxDirective,
        scope: &Scope<'_>,
    ) -> Result<(), ImportError> {
        let group = self.current_group.clone().unwrap_or_default();
        let mut protocol = StubProtocol::Http;
        for level in &scope.levels {
            super::tree::visit(level, &mut |pass| {
                if pass.first_arg().rsplit("://").next() == Some(group.as_str()) {
                    match pass.name.as_str() {
                        "fastcgi_pass" => protocol = StubProtocol::FastCgi,
                        "grpc_pass" | "uwsgi_pass" | "scgi_pass" | "memcached_pass" => {
                            protocol = StubProtocol::Unknown
                        }
                        _ => {}
                    }
                }
            });
        }
        self.not_compared.insert("Which server of a group gets a request".to_owned());
        let port = (self.options.port)()?;
        self.stubs.push(StubServer { name: format!("{GROUP_STUB_PREFIX}{group}"), protocol, port });
        let address = format!("127.0.0.1:{port}");
        let kept = directive.args.iter().skip(1).filter(|arg| {
            ["weight=", "max_fails=", "fail_timeout=", "max_conns=", "backup", "down"]
                .iter()
                .any(|word| arg.starts_with(word))
        });
        let args = [address].into_iter().chain(kept.cloned()).collect();
        self.replacements.insert(directive.entry, DirectiveReplacement::Arguments(args));
        Ok(())
    }

    /// Returns the stub for an address of the original configuration; groups keep their names.
    pub(super) fn stub_address(&mut self, old: &str, protocol: StubProtocol) -> Result<String, ImportError> {
        if self.upstream_groups.iter().any(|name| name == old) {
            Ok(old.to_owned())
        } else {
            self.find_stub_address(old, protocol)
        }
    }

    fn find_stub_address(&mut self, old: &str, protocol: StubProtocol) -> Result<String, ImportError> {
        let known = self.stubs.iter().find(|stub| stub.name == old && stub.protocol == protocol);
        let port = match known {
            Some(stub) => stub.port,
            None => {
                let port = (self.options.port)()?;
                self.stubs.push(StubServer { name: old.to_owned(), protocol, port });
                port
            }
        };
        let group = self.stubs.iter().filter(|stub| stub.port == port).find_map(StubServer::script_group);
        Ok(group.unwrap_or_else(|| format!("127.0.0.1:{port}")))
    }

    /// Replaces the address in a URL by that of a stub. Addresses that depend on the request share one stub.
    pub(super) fn replace_url(
        &mut self,
        old: &str,
        protocol: StubProtocol,
        scope: &Scope<'_>,
    ) -> Result<String, ImportError> {
        // Variables are kept: beside them, the path means something else.
        let has_fixed_address = old
            .split_once("://")
            .is_some_and(|(_, rest)| !rest.split('/').next().unwrap_or(rest).contains('$'));
        let resolved = if has_fixed_address { old.to_owned() } else { replace_constants(old, scope, 0) };
        if old.contains('$')
            && !resolved.contains('$')
            && self.replace_constant_address(old, protocol, scope)?
        {
            return Ok(old.to_owned());
        }
        let Some((scheme, rest)) = resolved.split_once("://") else {
            self.not_compared
                .insert(format!("which upstream server `{old}` is: one stub is in the place of all"));
            return Ok(format!("http://{}", self.find_stub_address(old, protocol)?));
        };
        let (authority, path) = match rest.strip_prefix("unix:") {
            Some(socket) => {
                let (socket, path) = socket.split_once(':').unwrap_or((socket, ""));
                (format!("unix:{socket}"), path.to_owned())
            }
            None => {
                let end = rest.find('/').unwrap_or(rest.len());
                (rest[..end].to_owned(), rest[end..].to_owned())
            }
        };
        // In `http://group$request_uri` the name ends where the variable begins.
        let (authority, path) = match authority.find('$') {
            Some(at) if at > 0 && !authority[..at].ends_with(':') => {
                (authority[..at].to_owned(), format!("{}{path}", &authority[at..]))
            }
            _ => (authority, path),
        };
        if authority.contains('$') {
            self.not_compared
                .insert(format!("which upstream server `{old}` is: one stub is in the place of all"));
        }
        let is_tls = scheme == "https";
        let address = match is_tls {
            true if self.upstream_groups.contains(&authority) => {
                self.not_compared
                    .insert(format!("TLS to the group `{authority}`: its stubs speak plain HTTP"));
                return Ok(format!("http://{authority}{path}"));
            }
            true => self.find_stub_address(&authority, StubProtocol::Https)?,
            false => self.stub_address(&authority, protocol)?,
        };
        let scheme = if is_tls { "https" } else { "http" };
        Ok(format!("{scheme}://{address}{path}"))
    }

    /// Replaces the constant that begins a URL or its address in the `set` that defines it: beside variables, the path of a
    /// URL means something else, so that the URL has to keep them. Returns false if there is no such constant.
    fn replace_constant_address(
        &mut self,
        old: &str,
        protocol: StubProtocol,
        scope: &Scope<'_>,
    ) -> Result<bool, ImportError> {
        let (scheme, rest) = old.split_once("://").unwrap_or(("", old));
        let Some(name) = rest.strip_prefix('$') else { return Ok(false) };
        let name = name.trim_start_matches('{');
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        if !name[end..].trim_start_matches('}').is_empty()
            && !name[end..].trim_start_matches('}').starts_with('/')
        {
            return Ok(false);
        }
        let name = format!("${}", &name[..end]);
        let is_it = |one: &&NginxDirective| one.name == "set" && one.first_arg() == name;
        let all: Vec<&NginxDirective> =
            scope.levels.iter().flat_map(|level| level.iter()).filter(is_it).collect();
        let is_plain = |one: &&NginxDirective| {
            !one.arg_at(1).contains('$') && one.arg_at(1).contains("://") == scheme.is_empty()
        };
        if all.is_empty() || !all.iter().all(is_plain) || scheme == "https" {
            return Ok(false);
        }
        // A value with a scheme is replaced with its `set`.
        for one in all.into_iter().filter(|_| !scheme.is_empty()) {
            let address = self.stub_address(one.arg_at(1), protocol)?;
            self.replacements.insert(one.entry, DirectiveReplacement::Arguments(vec![name.clone(), address]));
        }
        Ok(true)
    }

    pub(super) fn replace_listen(
        &mut self,
        directive: &NginxDirective,
        ports: &mut Vec<u16>,
    ) -> Result<(), ImportError> {
        let has = |name: &str| directive.args.iter().skip(1).any(|arg| arg == name);
        if has("quic") {
            self.replacements.insert(directive.entry, DirectiveReplacement::Dropped);
            return Ok(());
        }
        if has("proxy_protocol") {
            self.not_compared.insert("the PROXY protocol (`listen … proxy_protocol`)".to_owned());
        }
        let port = self.scratch_port(directive.first_arg(), has("ssl"))?;
        if ports.contains(&port) {
            self.replacements.insert(directive.entry, DirectiveReplacement::Dropped);
            return Ok(());
        }
        ports.push(port);
        let kept = ["ssl", "default_server", "default"].into_iter().filter(|name| has(name));
        self.replacements
            .insert(directive.entry, DirectiveReplacement::Listen(port, kept.map(str::to_owned).collect()));
        Ok(())
    }

    /// Returns the scratch port of an address. Wildcard addresses of IPv4 and IPv6 share one port.
    pub(super) fn scratch_port(&mut self, old: &str, tls: bool) -> Result<u16, ImportError> {
        let name = complete_address(old);
        if let Some(known) = self.listeners.iter_mut().find(|known| known.name == name) {
            known.tls |= tls;
            return Ok(known.port);
        }
        let port = (self.options.port)()?;
        self.listeners.push(ScratchListener { name, port, tls });
        Ok(port)
    }

    /// Creates files for error pages in every directory, because the directory depends on the location of the
    /// page.
    pub(super) fn create_error_pages(&mut self, main: &[NginxDirective]) {
        let mut targets = BTreeSet::new();
        super::tree::visit(main, &mut |one| {
            if let Some(target) =
                one.args.last().filter(|target| one.name == "error_page" && target.starts_with('/'))
            {
                targets.insert(target.split('?').next().unwrap_or(target).to_owned());
            }
        });
        let mut folders: Vec<String> = (0..self.folders.len()).map(|at| at.to_string()).collect();
        folders.push("html".to_owned());
        for folder in folders {
            for target in
                targets.iter().filter(|target| !target.contains(['$', '*']) && !target.ends_with('/'))
            {
                let path = format!("roots/{folder}{target}");
                if !self
                    .files
                    .iter()
                    .any(|file| file.path == path || file.path.starts_with(&format!("{path}/")))
                {
                    let content = format!("the error page {target}\n").into_bytes();
                    self.files.push(ScratchFile { path, content });
                }
            }
            let name = format!("roots/{folder}/.folder");
            self.files.push(ScratchFile { path: name, content: Vec::new() });
        }
    }

    pub(super) fn create_credentials(&mut self) {
        let content = format!("verify:{}\n", self.options.password).into_bytes();
        self.files.push(ScratchFile { path: "users".to_owned(), content });
    }
}

/// Returns an address with its port; the host is `*` for wildcard addresses.
pub(super) fn complete_address(old: &str) -> String {
    let (host, port) = match old {
        _ if old.starts_with("unix:") => return old.to_owned(),
        port if port.bytes().all(|b| b.is_ascii_digit()) => ("*", port),
        text => match text.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (host, port),
            _ => (text, "80"),
        },
    };
    match host {
        "*" | "0.0.0.0" | "[::]" | "" => format!("*:{port}"),
        host => format!("{host}:{port}"),
    }
}

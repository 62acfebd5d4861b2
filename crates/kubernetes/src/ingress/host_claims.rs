//! Hosts, and the Ingresses that have them.
//!
//! A host belongs to the namespace of the oldest Ingress that names it: certificates, client certificates, aliases and expressions of
//! that namespace count.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Map;
use shapes::host::HostPattern;

use crate::backends::{Backend, BackendGroups, BackendSource};
use crate::ingress::excess::IngressExcess;
use crate::ingress::paths::{IngressPath, PathClaim};
use crate::ingress::services::{NamedPort, ServerOptions, resolve_service};
use crate::ingress::site_set::{IngressHost, JudgedIngress, host_of};
use crate::listeners::certificate_paths;
use crate::objects::{IngressBackend, ObjectKey, Objects, TLS_SECRET};
use crate::options::TranslateOptions;

/// Returns the Service of a backend, and its port.
pub(super) fn named_port(backend: &IngressBackend) -> Option<(&str, NamedPort)> {
    let service = backend.service.as_ref().filter(|service| !service.name.is_empty())?;
    let port = match (service.port.number, &service.port.name) {
        (Some(number), _) => NamedPort::Number(number),
        (None, Some(name)) => NamedPort::Name(name.clone()),
        (None, None) => NamedPort::First,
    };
    Some((&service.name, port))
}

pub(super) struct IngressJudge<'a, 's> {
    pub(super) ingresses: Vec<JudgedIngress>,
    pub(super) excess: IngressExcess,
    pub(super) hosts: BTreeMap<String, IngressHost>,
    /// Aliases, with the host that has each.
    pub(super) aliases: BTreeMap<String, String>,
    /// Hosts whose paths are expressions, for Ingresses of a namespace.
    pub(super) expression_hosts: BTreeSet<(String, String)>,
    /// Exact paths of hosts.
    pub(super) exact_paths: BTreeSet<(String, String)>,
    /// Rules that are not served: number of the Ingress and of the rule.
    pub(super) refused_rules: BTreeSet<(usize, usize)>,
    pub(super) objects: &'a Objects,
    pub(super) options: &'a TranslateOptions,
    pub(super) source: &'a BackendSource<'s>,
    pub(super) groups: &'a mut BackendGroups,
    pub(super) files: &'a mut BTreeMap<String, Vec<u8>>,
}

/// A canary of a path: the number of its Ingress, and its backend.
pub(super) type Canaries = BTreeMap<(String, String, PathClaim), (usize, IngressBackend)>;

impl IngressJudge<'_, '_> {
    /// Gives each host to the oldest Ingress that names it.
    pub(super) fn claim_hosts(&mut self) {
        for at in 0..self.ingresses.len() {
            let ingress = self.ingresses[at].ingress.clone();
            if self.ingresses[at].settings.canary.is_some() {
                continue;
            }
            let namespace = self.ingresses[at].key.namespace.clone();
            let mut first = None;
            for (number, rule) in ingress.spec.rules.iter().enumerate() {
                let host = host_of(rule.host.as_ref());
                if !self.claim_host(at, &namespace, &host) {
                    self.refused_rules.insert((at, number));
                } else if first.is_none() {
                    first = Some(host);
                }
            }
            if ingress.spec.rules.is_empty() && ingress.spec.default_backend.is_some() {
                self.claim_host(at, &namespace, "");
            }
            let Some(host) = first.filter(|host| !host.is_empty()) else { continue };
            for alias in self.ingresses[at].settings.aliases.clone() {
                if self.hosts[&host].namespace != namespace {
                    let note = format!(
                        "server-alias {alias}: the host {host} belongs to an Ingress of the namespace {}",
                        self.hosts[&host].namespace
                    );
                    self.ingresses[at].faults.warn("HostTaken", &note);
                } else if self.hosts.contains_key(&alias) || self.aliases.contains_key(&alias) {
                    let note = format!("server-alias {alias}: an older Ingress has this host");
                    self.ingresses[at].faults.warn("HostTaken", &note);
                } else {
                    self.aliases.insert(alias, host.clone());
                }
            }
        }
        for (alias, host) in &self.aliases {
            if let Some(host) = self.hosts.get_mut(host) {
                host.aliases.push(alias.clone());
            }
        }
    }

    fn claim_host(&mut self, at: usize, namespace: &str, host: &str) -> bool {
        if !host.is_empty() && HostPattern::parse(host).is_err() {
            self.ingresses[at]
                .faults
                .warn("InvalidHost", &format!("{host:?} is not a host: its rule is not served"));
            return false;
        }
        if let Some(main) = self.aliases.get(host).cloned() {
            if self.hosts[&main].namespace != namespace {
                let note = format!(
                    "the host {host} is an alias of {main}, which an older Ingress of another namespace has: its rule is not served"
                );
                self.ingresses[at].faults.warn("HostTaken", &note);
                return false;
            }
            self.aliases.remove(host);
        }
        self.hosts.entry(host.to_owned()).or_insert_with(|| IngressHost {
            owner: at,
            namespace: namespace.to_owned(),
            ..IngressHost::default()
        });
        true
    }

    /// Returns the hosts of an Ingress that belong to its namespace; others are noted with what cannot be done for them.
    pub(super) fn own_hosts(&mut self, at: usize, what: &str, closes: bool) -> Vec<String> {
        let JudgedIngress { key, ingress, faults, .. } = &mut self.ingresses[at];
        let mut own = Vec::new();
        let names: BTreeSet<String> = ingress
            .spec
            .rules
            .iter()
            .enumerate()
            .filter(|(number, _)| !self.refused_rules.contains(&(at, *number)))
            .map(|(_, rule)| host_of(rule.host.as_ref()))
            .collect();
        for host in names {
            let Some(state) = self.hosts.get(&host) else { continue };
            if state.namespace == key.namespace {
                own.push(host);
                continue;
            }
            let note = format!(
                "{what}: the host {host:?} belongs to an older Ingress of the namespace {}",
                state.namespace
            );
            if closes {
                faults.close("HostTaken", &note);
            } else {
                faults.warn("HostTaken", &note);
            }
        }
        own
    }

    pub(super) fn resolve_certificates(&mut self) {
        for at in 0..self.ingresses.len() {
            if self.ingresses[at].settings.canary.is_some() {
                continue;
            }
            let (ingress, key) = (self.ingresses[at].ingress.clone(), self.ingresses[at].key.clone());
            for tls in &ingress.spec.tls {
                let mut hosts: Vec<String> = tls.hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
                if hosts.is_empty() {
                    hosts = ingress.spec.rules.iter().map(|rule| host_of(rule.host.as_ref())).collect();
                }
                let named = tls.secret_name.as_ref().filter(|name| !name.is_empty());
                let secret = named.map(|name| ObjectKey::new(&key.namespace, name));
                let secret = secret.or_else(|| self.options.ingress.default_certificate.clone());
                let Some(secret) = secret else {
                    let note = "`tls` without `secretName`, and there is no --default-certificate: its hosts have no TLS";
                    self.ingresses[at].faults.warn("CertificateNotFound", note);
                    continue;
                };
                let is_there = self.add_certificate(&secret);
                if let Err(note) = &is_there {
                    self.ingresses[at].faults.warn("CertificateNotFound", note);
                }
                for host in hosts {
                    let namespace = self.hosts.get(&host).map(|state| state.namespace.clone());
                    match namespace {
                        // Of a host without paths, as in ingress-nginx.
                        None => {}
                        Some(owner) if owner != key.namespace => {
                            let note = format!(
                                "tls: the host {host:?} belongs to an older Ingress of the namespace {owner}"
                            );
                            self.ingresses[at].faults.warn("HostTaken", &note);
                        }
                        Some(_) => {
                            let state = self.hosts.get_mut(&host).expect("it was found");
                            match is_there {
                                Ok(_) => _ = state.certificate.get_or_insert_with(|| secret.clone()),
                                Err(_) => state.lacks_certificate = true,
                            }
                        }
                    }
                }
            }
        }
        if let Some(secret) = self.options.ingress.default_certificate.clone()
            && self.add_certificate(&secret).is_ok()
            && let Some(every) = self.hosts.get_mut("")
        {
            every.certificate.get_or_insert(secret);
        }
    }

    /// Adds a certificate to the files.
    fn add_certificate(&mut self, key: &ObjectKey) -> Result<(), String> {
        let (chain_path, key_path) = certificate_paths(key);
        if self.files.contains_key(&chain_path) {
            return Ok(());
        }
        let secret = self.objects.secrets.get(key).filter(|secret| secret.r#type == TLS_SECRET);
        let secret =
            secret.ok_or_else(|| format!("there is no Secret {key} of the type kubernetes.io/tls"))?;
        let (chain, private) = secret.certificate()?;
        self.files.insert(chain_path, chain);
        self.files.insert(key_path, private);
        Ok(())
    }

    /// Client certificates, other names, and connections that are passed through.
    pub(super) fn resolve_host_settings(&mut self) {
        for at in 0..self.ingresses.len() {
            if let Some(client) = self.ingresses[at].settings.client_authority.clone() {
                for host in self.own_hosts(at, "auth-tls-secret", true) {
                    let state = self.hosts.get_mut(&host).expect("it is one of them");
                    let faults = &mut self.ingresses[at].faults;
                    if state.certificate.is_none() {
                        let note =
                            format!("auth-tls-secret: the host {host:?} has no certificate: add it to `tls`");
                        faults.close("CertificateNotFound", &note);
                    }
                    match &state.client {
                        None => state.client = Some(client.clone()),
                        Some(known) if *known == client => {}
                        Some(_) => {
                            let note = format!(
                                "auth-tls-secret: an older Ingress asks clients of the host {host:?} for other certificates"
                            );
                            faults.close("HostTaken", &note);
                        }
                    }
                }
            }
            if self.ingresses[at].settings.redirects_www {
                for host in self.own_hosts(at, "from-to-www-redirect", false) {
                    self.add_www(at, &host);
                }
            }
            if self.ingresses[at].settings.is_passed_through {
                for host in self.own_hosts(at, "ssl-passthrough", true) {
                    self.pass_through(at, &host);
                }
            }
        }
    }

    fn add_www(&mut self, at: usize, host: &str) {
        let faults = &mut self.ingresses[at].faults;
        if host.is_empty() || host.starts_with('*') {
            faults.warn("InvalidAnnotation", "from-to-www-redirect needs a host without `*`");
            return;
        }
        let other = match host.strip_prefix("www.") {
            Some(bare) => bare.to_owned(),
            None => format!("www.{host}"),
        };
        let is_taken = self.hosts.contains_key(&other)
            || self.aliases.contains_key(&other)
            || self.hosts.values().any(|state| state.www.as_ref() == Some(&other));
        if is_taken {
            faults.warn("HostTaken", &format!("from-to-www-redirect: another Ingress has the host {other}"));
        } else if let Some(state) = self.hosts.get_mut(host) {
            state.www = Some(other);
        }
    }

    fn pass_through(&mut self, at: usize, host: &str) {
        let (key, ingress) = (self.ingresses[at].key.clone(), self.ingresses[at].ingress.clone());
        let rule = ingress.spec.rules.iter().find(|rule| host_of(rule.host.as_ref()) == host);
        let path = rule.and_then(|rule| rule.http.as_ref()).and_then(|http| http.paths.first());
        let faults = &mut self.ingresses[at].faults;
        let (Some(path), false) = (path, host.is_empty()) else {
            faults.close("InvalidAnnotation", "ssl-passthrough needs a host and a path");
            return;
        };
        let none = Map::new();
        let options = ServerOptions {
            scheme: Some("http"),
            table: &none,
            uses_service_address: false,
            owner: &key.name,
        };
        let servers = match named_port(&path.backend) {
            Some((name, port)) => {
                let service = ObjectKey::new(&key.namespace, name);
                resolve_service(self.source, self.groups, &service, &port, options)
            }
            None => Err("the backend is not a Service".to_owned()),
        };
        match servers {
            Ok(Backend::Group(name)) => {
                let group = self.groups.group(&name);
                let addresses = group.map(|group| self.source.group_addresses(group)).unwrap_or_default();
                self.hosts.get_mut(host).expect("it is one of them").passed_to = Some(addresses);
            }
            // Without endpoints connections are closed.
            Ok(_) => self.hosts.get_mut(host).expect("it is one of them").passed_to = Some(Vec::new()),
            Err(note) => faults.close("ServiceNotFound", &format!("ssl-passthrough: {note}")),
        }
    }

    /// Finds the hosts whose paths are expressions. `use-regex` or `rewrite-target` of one Ingress makes expressions of all paths of
    /// a host, in all Ingresses of the namespace.
    pub(super) fn find_expressions(&mut self) {
        for (at, judged) in self.ingresses.iter().enumerate() {
            let settings = &judged.settings;
            if settings.canary.is_some() {
                continue;
            }
            for (number, rule) in judged.ingress.spec.rules.iter().enumerate() {
                if self.refused_rules.contains(&(at, number)) {
                    continue;
                }
                let host = host_of(rule.host.as_ref());
                let paths: Vec<IngressPath> =
                    rule.http.iter().flat_map(|http| &http.paths).map(IngressPath::of).collect();
                let is_rewritten =
                    |path: &IngressPath| settings.rewrite.as_ref().is_some_and(|to| *to != path.text);
                if settings.uses_expressions || paths.iter().any(is_rewritten) {
                    self.expression_hosts.insert((host.clone(), judged.key.namespace.clone()));
                }
                for path in
                    paths.iter().filter(|path| path.kind == crate::ingress::paths::IngressPathKind::Exact)
                {
                    self.exact_paths.insert((host.clone(), path.text.clone()));
                }
            }
        }
    }

    /// Finds the canaries, by namespace, host and path. The oldest of a path counts.
    pub(super) fn find_canaries(&mut self) -> Canaries {
        let mut canaries = Canaries::new();
        for at in 0..self.ingresses.len() {
            let judged = &mut self.ingresses[at];
            if judged.settings.canary.is_none() {
                continue;
            }
            for rule in &judged.ingress.spec.rules {
                let host = host_of(rule.host.as_ref());
                for path in rule.http.iter().flat_map(|http| &http.paths) {
                    let place = (judged.key.namespace.clone(), host.clone(), IngressPath::of(path).claim());
                    match canaries.entry(place) {
                        std::collections::btree_map::Entry::Vacant(entry) => {
                            _ = entry.insert((at, path.backend.clone()));
                        }
                        std::collections::btree_map::Entry::Occupied(_) => {
                            let text = path.path.as_deref().unwrap_or("/");
                            let note =
                                format!("an older canary has the path {host}{text}: one canary counts");
                            judged.faults.warn("PathTaken", &note);
                        }
                    }
                }
            }
        }
        canaries
    }
}

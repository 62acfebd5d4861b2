//! The specification of a KomainuPolicy, read once: its targets, and its directives as the configuration has them.
//!
//! Fields are read one by one, because the definition in the cluster may be older or newer than this program: a policy that
//! cannot be read as a whole may still guard its targets.

use std::collections::BTreeMap;
use std::path::Path;

use config::{Config, Severity};
use serde_json::{Map, Value, json};
use settings::node::Node;

use crate::policy_words::{
    DIRECTIVES, DirectivePlace, PolicyDirective, PolicyReference, ValuePlace, WORDS, read_value,
};

/// The group of the kinds that policies have as targets.
const TARGET_GROUP: &str = "gateway.networking.k8s.io";
/// Targets of one policy.
const TARGETS_MAX: usize = 16;

/// A kind of objects that policies have as targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TargetKind {
    /// A Gateway, or one of its listeners.
    Gateway,
    /// An HTTPRoute, or one of its rules.
    HttpRoute,
}

impl TargetKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            TargetKind::Gateway => "Gateway",
            TargetKind::HttpRoute => "HTTPRoute",
        }
    }
}

/// A target of a policy, in its own namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PolicyTarget {
    pub(crate) kind: TargetKind,
    pub(crate) name: String,
    /// Name of a listener or of a rule; `None` for the whole object.
    pub(crate) section: Option<String>,
}

/// The specification of a policy.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct PolicySpec {
    pub(crate) targets: Vec<PolicyTarget>,
    /// Values of the directives, by their names.
    pub(crate) directives: BTreeMap<&'static str, Value>,
    /// References in them.
    pub(crate) references: Vec<PolicyReference>,
    /// Why the policy is not used.
    pub(crate) fault: Option<String>,
    /// Whether it admits or refuses clients, also if its values have faults.
    pub(crate) guards: bool,
}

impl PolicySpec {
    /// Reads a specification.
    pub(crate) fn read(spec: &Value) -> PolicySpec {
        let mut read = PolicySpec::default();
        if let Err(fault) = read.read_targets(&spec["targetRefs"]) {
            read.fault = Some(fault);
        }
        let given = |directive: &PolicyDirective| spec.get(directive.name).filter(|value| !value.is_null());
        read.guards = DIRECTIVES.iter().any(|directive| directive.guards && given(directive).is_some());
        let values = read.read_values(spec).and_then(|()| read.check());
        if let Err(fault) = values {
            read.fault.get_or_insert(fault);
        }
        read
    }

    fn read_targets(&mut self, targets: &Value) -> Result<(), String> {
        let Some(targets) = targets.as_array().filter(|targets| !targets.is_empty()) else {
            return Err("targetRefs: the policy has no target".to_owned());
        };
        let mut fault = None;
        for (index, target) in targets.iter().take(TARGETS_MAX).enumerate() {
            let text = |key: &str| target.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
            let kind = match (text("group"), text("kind")) {
                (Some(TARGET_GROUP), Some("Gateway")) => TargetKind::Gateway,
                (Some(TARGET_GROUP), Some("HTTPRoute")) => TargetKind::HttpRoute,
                (group, kind) => {
                    let (group, kind) = (group.unwrap_or_default(), kind.unwrap_or_default());
                    fault.get_or_insert(format!(
                        "targetRefs[{index}]: the kind {kind:?} of the group {group:?} is not supported: Gateway and HTTPRoute of gateway.networking.k8s.io are"
                    ));
                    continue;
                }
            };
            let Some(name) = text("name") else {
                fault.get_or_insert(format!("targetRefs[{index}]: the name is missing"));
                continue;
            };
            let section = text("sectionName").map(str::to_owned);
            let target = PolicyTarget { kind, name: name.to_owned(), section };
            if !self.targets.contains(&target) {
                self.targets.push(target);
            }
        }
        if targets.len() > TARGETS_MAX {
            fault.get_or_insert(format!("targetRefs: {} targets, at most {TARGETS_MAX}", targets.len()));
        }
        fault.map_or(Ok(()), Err)
    }

    fn read_values(&mut self, spec: &Value) -> Result<(), String> {
        let Some(entries) = spec.as_object() else { return Err("spec is not a table".to_owned()) };
        for (key, value) in entries.iter().filter(|(_, value)| !value.is_null()) {
            if matches!(key.as_str(), "targetRefs" | "off") {
                continue;
            }
            let known = DIRECTIVES.iter().zip(WORDS.iter()).find(|(directive, _)| directive.name == key);
            let Some((directive, word)) = known else {
                let names: Vec<&str> = DIRECTIVES.iter().map(|directive| directive.name).collect();
                let shown: String = key.chars().take(100).collect();
                return Err(format!(
                    "{shown} is not a directive of policies: there are {}",
                    names.join(", ")
                ));
            };
            self.check_place(directive)?;
            let place = ValuePlace::top(directive.name);
            let value = read_value(&word.form, value, &place, &mut self.references)?;
            self.directives.insert(directive.name, value);
        }
        self.read_off(&spec["off"])?;
        match self.directives.is_empty() {
            true => Err("the policy has no directive".to_owned()),
            false => Ok(()),
        }
    }

    fn check_place(&self, directive: &PolicyDirective) -> Result<(), String> {
        let is_of_routes = |target: &&PolicyTarget| target.kind == TargetKind::HttpRoute;
        match self.targets.iter().find(is_of_routes) {
            Some(target) if directive.place == DirectivePlace::Site => Err(format!(
                "{} is for hosts as a whole: attach it to a Gateway instead of the HTTPRoute {}",
                directive.name, target.name
            )),
            _ => Ok(()),
        }
    }

    fn read_off(&mut self, off: &Value) -> Result<(), String> {
        let names = match off {
            Value::Null => return Ok(()),
            Value::Array(names) => names,
            _ => return Err("off: a list of directives is needed".to_owned()),
        };
        for name in names {
            let directive =
                DIRECTIVES.iter().find(|directive| directive.may_be_off && directive.name == name);
            let Some(directive) = directive else {
                let names = DIRECTIVES.iter().filter(|directive| directive.may_be_off);
                let names: Vec<&str> = names.map(|directive| directive.name).collect();
                return Err(format!("off: only these can be switched off: {}", names.join(", ")));
            };
            self.check_place(directive)?;
            if self
                .directives
                .insert(directive.name, json!(false))
                .is_some_and(|before| before != json!(false))
            {
                return Err(format!("off: {} is in the policy too", directive.name));
            }
        }
        Ok(())
    }

    /// Has the configuration check the values, in a site and in a route of their own.
    fn check(&self) -> Result<(), String> {
        let mut site = Node::from(json!({ "hosts": ["policy.test"] }));
        let mut route = Node::from(Value::Object(Map::new()));
        let mut proxy = Node::from(json!({ "to": "http://192.0.2.1" }));
        for (line, directive) in DIRECTIVES.iter().enumerate() {
            let Some(value) = self.directives.get(directive.name) else { continue };
            let node = Node::from(value.clone()).at(line + 1);
            match directive.place {
                DirectivePlace::Site => site.set_entry(directive.name, node),
                DirectivePlace::SiteAndRoute | DirectivePlace::Route => route.set_entry(directive.name, node),
                DirectivePlace::Proxy => proxy.set_entry(directive.name, node),
            }
        }
        route.set_entry("proxy", proxy);
        site.set_entry("route", Node::list(vec![route]));
        let mut top = Node::from(Value::Object(Map::new()));
        top.set_entry("site", Node::list(vec![site]));
        let report = match Config::from_node(top, DIRECTIVES.len() + 1, "policy", Path::new("/")) {
            Ok(_) => return Ok(()),
            Err(report) => report,
        };
        let mut errors = report.findings().iter().filter(|finding| finding.severity == Severity::Error);
        let Some(finding) = errors.next() else { return Err("the policy is not valid".to_owned()) };
        let mut text = finding.one_line();
        for prefix in ["site.route.proxy.", "site.route.", "site."] {
            text = text.replace(prefix, "");
        }
        Err(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut spec: Value) -> PolicySpec {
        if spec.get("targetRefs").is_none() {
            spec["targetRefs"] = json!([target("Gateway", "web")]);
        }
        PolicySpec::read(&spec)
    }

    fn target(kind: &str, name: &str) -> Value {
        json!({ "group": "gateway.networking.k8s.io", "kind": kind, "name": name })
    }

    /// Each directive with values that a policy may set.
    #[test]
    fn directives_become_those_of_the_configuration() {
        let spec = read(json!({
            "allow": ["192.0.2.0/24"],
            "deny": ["192.0.2.7"],
            "auth": { "basic": { "name": "users" }, "failures": "unlimited" },
            "limit": [{ "rate": "10/s" }, { "concurrent": 5, "key": ["client", "path"] }],
            "crawlers": { "deny": ["ai-training"], "pages": "120/m" },
            "queue": { "active": 5 },
            "cache": { "rule": [
                { "ttl": "1m", "status": ["2xx", 404] },
                { "path": ["/a/*"], "key": { "query": [] }, "strip_cookies": ["*"] },
            ] },
            "compress": { "level": "fast" },
            "cors": { "origins": ["https://a.example.com"] },
            "request_headers": { "set": { "X-Id": "$request_id" } },
            "response_headers": { "remove": ["Server"] },
            "retry": { "attempts": 2, "statuses": [503] },
            "mirror": { "to": { "name": "copy", "port": 80 }, "share": "10%", "when": { "header": { "X-Test": "*" } } },
            "error_pages": { "404": "<h1>Nothing</h1>", "5xx": "{}" },
            "intercept_errors": true,
            "limits": { "body": "1MiB" },
            "header_limit": 50,
            "bandwidth": { "rate": "1MiB/s" },
        }));
        assert_eq!(spec.fault, None);
        assert!(spec.guards);
        assert_eq!(spec.directives.len(), DIRECTIVES.len());
        assert_eq!(spec.directives["cache"]["rule"][1]["key"]["query"], json!(false));
        assert_eq!(spec.directives["error_pages"], json!({ "404": "/404.html", "5xx": "/5xx.json" }));
        let places: Vec<&str> = spec.references.iter().map(|reference| reference.pointer.as_str()).collect();
        assert_eq!(places, ["/basic", "/to"]);
    }

    #[test]
    fn faults_say_what_is_wrong_and_where() {
        for (values, wanted) in [
            (json!({}), "the policy has no directive"),
            (json!({ "files": "/" }), "files is not a directive of policies: there are allow"),
            (json!({ "auth": {} }), "`auth` does not say who may ask"),
            (json!({ "auth": { "basic": "/etc/passwd" } }), "auth.basic: the name of a Secret"),
            (
                json!({ "auth": { "ask": "http://169.254.169.254/" } }),
                "auth.ask: the name and port of a Service",
            ),
            (
                json!({ "auth": { "ask": { "name": "a", "port": 80, "path": "@evil.test/" } } }),
                "auth.ask.path: a path begins with a slash",
            ),
            (
                json!({ "auth": { "ask": { "name": "a", "port": 80 }, "tls": { "ca": "/x" } } }),
                "auth.tls is not for policies: policies name no files",
            ),
            (
                json!({ "auth": { "signed": { "secret": "0123456789abcdef" } } }),
                "auth.signed.secret is not for policies",
            ),
            (json!({ "cache": { "purge": { "from": ["0.0.0.0/0"] } } }), "cache.purge is not for policies"),
            (json!({ "limit": [{ "rate": "10/s", "keys": 10_000_000 }] }), "limit.keys is not for policies"),
            (json!({ "limit": [{ "rate": "fast" }] }), "invalid value for `limit.rate`"),
            (json!({ "limit": "10/s" }), "limit: a list of at most 64 items is needed"),
            (json!({ "mirror": { "to": "http://192.0.2.1" } }), "mirror.to: the name and port of a Service"),
            (
                json!({ "mirror": { "to": { "name": "a", "port": 80 }, "when": { "country": ["DE"] } } }),
                "mirror.when.country is not for policies",
            ),
            (json!({ "error_pages": { "404": 5 } }), "error_pages.404: a page is a text"),
            (json!({ "error_pages": { "200": "x" } }), "this is not the status of an error"),
            (json!({ "off": ["limit"] }), "off: only these can be switched off: auth"),
            (
                json!({ "off": ["auth"], "auth": { "basic": { "name": "users" } } }),
                "off: auth is in the policy too",
            ),
            (json!({ "response_headers": { "set": { "X": "$country" } } }), "country"),
            (json!({ "cache": {}, "targetRefs": [] }), "targetRefs: the policy has no target"),
            (
                json!({ "cache": {}, "targetRefs": [{ "group": "", "kind": "Service", "name": "a" }] }),
                "targetRefs[0]: the kind \"Service\"",
            ),
            (
                json!({ "crawlers": { "trap": "/x" }, "targetRefs": [target("HTTPRoute", "shop")] }),
                "crawlers is for hosts as a whole",
            ),
        ] {
            let fault = read(values.clone()).fault.unwrap_or_default();
            assert!(fault.contains(wanted), "{values}: {fault}");
        }
    }

    #[test]
    fn policy_with_faults_guards_its_targets_all_the_same() {
        let spec = read(json!({ "auth": 5, "targetRefs": [target("Gateway", "web"), { "kind": "X" }] }));
        assert!(spec.guards && spec.fault.is_some());
        assert_eq!(spec.targets.len(), 1);
        assert!(!read(json!({ "off": ["auth"] })).guards);
        assert!(!read(json!({ "cache": 5 })).guards);
    }

    #[test]
    fn every_value_of_any_type_is_a_fault_or_valid() {
        let values = [
            json!(null),
            json!(true),
            json!(-1),
            json!(1e300),
            json!("x"),
            json!([]),
            json!({}),
            json!([[]]),
            json!({ "a": { "b": [1] } }),
        ];
        for directive in &DIRECTIVES {
            for value in &values {
                read(json!({ directive.name: value }));
                read(
                    json!({ directive.name: { "key": value, "rule": value, "to": value, "jwt": value, "set": value } }),
                );
            }
        }
    }
}

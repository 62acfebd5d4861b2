//! Detects the server to which a configuration file belongs.

use std::path::Path;

use other_servers::{APACHE, HAPROXY, OtherServer, VARNISH};

/// A server whose configuration can be translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportKind {
    /// nginx: an nginx.conf, or a part of it.
    Nginx,
    /// NGINX Unit: JSON.
    Unit,
    /// Caddy: JSON or a Caddyfile.
    Caddy,
    /// Kubernetes: Ingress resources, in YAML or JSON.
    Ingress,
    /// Gunicorn: a gunicorn.conf.py, or a command.
    Gunicorn,
    /// Puma: a config/puma.rb, or a command.
    Puma,
    /// Starman: a command.
    Starman,
    /// Passenger: a Passengerfile.json.
    Passenger,
}

impl ImportKind {
    /// All kinds with their names.
    pub const ALL: [(&'static str, Self); 8] = [
        ("nginx", Self::Nginx),
        ("unit", Self::Unit),
        ("caddy", Self::Caddy),
        ("ingress", Self::Ingress),
        ("gunicorn", Self::Gunicorn),
        ("puma", Self::Puma),
        ("starman", Self::Starman),
        ("passenger", Self::Passenger),
    ];

    /// Returns the kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// Guesses the kind of a file from its name and its text.
    pub fn detect(path: &Path, text: &str) -> Option<Self> {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let start = text.trim_start_matches('\u{feff}').trim_start();
        let has = |word: &str| text.contains(word);
        if name == "Passengerfile.json" {
            return Some(Self::Passenger);
        }
        if start.starts_with('{') && has("\"") {
            return match () {
                () if has("\"kind\"") && has("Ingress") || has("\"apiVersion\"") => Some(Self::Ingress),
                () if has("\"apps\"") && has("\"http\"") && has("\"servers\"") => Some(Self::Caddy),
                () if has("\"listeners\"") || has("\"applications\"") => Some(Self::Unit),
                () => None,
            };
        }
        let line_starts = |word: &str| text.lines().any(|line| line.trim_start().starts_with(word));
        let starts = |server: &str| {
            text.lines().any(|line| {
                (line.trim_start().starts_with("ExecStart=") || name.starts_with("Procfile"))
                    && line
                        .split(char::is_whitespace)
                        .any(|word| word.rsplit(['/', '=']).next() == Some(server))
            })
        };
        match () {
            () if starts("gunicorn") => Some(Self::Gunicorn),
            () if starts("puma") => Some(Self::Puma),
            () if starts("starman") => Some(Self::Starman),
            () if name.ends_with(".py") && (has("bind") || has("workers") || has("wsgi_app")) => {
                Some(Self::Gunicorn)
            }
            () if name.ends_with(".rb")
                && (line_starts("threads ")
                    || line_starts("workers ")
                    || line_starts("port ")
                    || line_starts("bind ")) =>
            {
                Some(Self::Puma)
            }
            () if line_starts("kind:") && line_starts("apiVersion:") => Some(Self::Ingress),
            () if name.starts_with("Caddyfile") => Some(Self::Caddy),
            () if is_nginx(text) => Some(Self::Nginx),
            () if line_starts("reverse_proxy ") || line_starts("file_server") || line_starts("handle") => {
                Some(Self::Caddy)
            }
            () => None,
        }
    }
}

/// A server whose configuration cannot be translated: its page shows the equivalents.
#[derive(Debug, Clone, Copy)]
pub struct UntranslatedServer {
    /// The server.
    pub server: &'static OtherServer,
    /// Names of the server and its program, in lower case.
    program_names: &'static [&'static str],
    /// Line beginnings, in lower case, that are specific to its configuration.
    line_beginnings: &'static [&'static str],
}

impl UntranslatedServer {
    const ALL: [UntranslatedServer; 3] = [
        UntranslatedServer {
            server: &APACHE,
            program_names: &["apache", "apache2", "httpd", "htaccess"],
            line_beginnings: &[
                "<virtualhost",
                "<directory",
                "<ifmodule",
                "<files",
                "loadmodule ",
                "serverroot ",
                "documentroot ",
                "rewriteengine ",
            ],
        },
        UntranslatedServer {
            server: &HAPROXY,
            program_names: &["haproxy"],
            line_beginnings: &["frontend ", "backend ", "defaults"],
        },
        UntranslatedServer {
            server: &VARNISH,
            program_names: &["varnish", "vcl"],
            line_beginnings: &["vcl 4", "sub vcl_"],
        },
    ];

    /// Returns the server with this name.
    pub fn from_name(name: &str) -> Option<UntranslatedServer> {
        let name = name.to_lowercase();
        UntranslatedServer::ALL.into_iter().find(|one| one.program_names.contains(&name.as_str()))
    }

    /// Guesses the server from the text of its configuration.
    pub fn detect(text: &str) -> Option<UntranslatedServer> {
        let lines: Vec<String> = text.lines().map(|line| line.trim_start().to_lowercase()).collect();
        // `backend` begins lines of both Varnish and HAProxy: the last entry is the most specific, so search
        // in reverse.
        let has = |one: &UntranslatedServer| {
            lines.iter().any(|line| one.line_beginnings.iter().any(|start| line.starts_with(start)))
        };
        UntranslatedServer::ALL.into_iter().rev().find(has)
    }
}

/// Whether the text contains a block of nginx and a directive that ends with a semicolon.
fn is_nginx(text: &str) -> bool {
    let lines = || text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let opens = |line: &str| {
        ["server", "http", "location", "upstream", "events", "map", "stream"].iter().any(|word| {
            line.strip_prefix(word).is_some_and(|rest| {
                rest.trim_end().ends_with('{') && (rest.trim() == "{" || rest.starts_with(' '))
                    || rest.contains('{') && rest.trim_end().ends_with('}') && rest.contains(';')
            })
        })
    };
    lines().any(opens) && lines().any(|line| line.ends_with(';') || line.contains(';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn import_kind_is_detected_from_name_and_text() {
        for (name, text, kind) in [
            ("a.conf", "server {\n  listen 80;\n}\n", Some(ImportKind::Nginx)),
            ("a", "# x\nupstream a { server 1.2.3.4; }\n", Some(ImportKind::Nginx)),
            ("a.json", "{\"listeners\": {}}", Some(ImportKind::Unit)),
            ("a.json", "{\"apps\": {\"http\": {\"servers\": {}}}}", Some(ImportKind::Caddy)),
            ("a.json", "{\"apiVersion\": \"v1\", \"kind\": \"List\"}", Some(ImportKind::Ingress)),
            ("a.yaml", "apiVersion: networking.k8s.io/v1\nkind: Ingress\n", Some(ImportKind::Ingress)),
            ("Caddyfile", "example.com {\n\tfile_server\n}\n", Some(ImportKind::Caddy)),
            ("x", "example.com {\n\treverse_proxy localhost:1\n}\n", Some(ImportKind::Caddy)),
            ("gunicorn.conf.py", "bind = ':8000'\n", Some(ImportKind::Gunicorn)),
            ("puma.rb", "threads 5, 5\n", Some(ImportKind::Puma)),
            ("Procfile", "web: bundle exec puma -p 3000\n", Some(ImportKind::Puma)),
            ("shop.service", "[Service]\nExecStart=/usr/bin/starman app.psgi\n", Some(ImportKind::Starman)),
            ("x", "hello", None),
        ] {
            assert_eq!(ImportKind::detect(Path::new(name), text), kind, "{text}");
        }
    }
}

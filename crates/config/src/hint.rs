//! Hints for directives and syntax of other servers: the equivalent in this configuration.

use other_servers::{ForeignDirective, Ours, SERVERS};

/// Returns an example of a table, by its name, for a value of another type in its place.
pub(crate) fn table_example(name: &str) -> Option<&'static str> {
    Some(match name {
        "CompressResponses" | "Compress" => {
            "write `compress = true`; codings and levels have a table: `compress = { codings = [\"gzip\"] }`"
        }
        "KeepAlive" => "write `keep_alive = { connections = 32, idle = \"60s\" }`",
        "Retry" => "write `retry = { attempts = 3 }`",
        "ProxyTimeouts" => "write `timeouts = { connect = \"5s\", head = \"60s\" }`",
        "Timeouts" | "RouteTimeouts" => "write `timeouts = { body = \"30s\" }`",
        "AppTimeouts" => "write `timeouts = { request = \"60s\" }`",
        "CachePolicy" => {
            "write `cache = true`, or how long responses are kept: `cache = { rule = [{ ttl = \"1h\" }] }`"
        }
        "CacheStore" => "write `[cache]` and `memory = \"64MiB\"`; a route has `cache = true`",
        "Auth" => "write `auth = { basic = \"FILE\" }`",
        "Log" => "write `[log]`, and `access` and `file` below it",
        "Tls" => {
            "write `[tls]`; a site has `tls = { certificate = \"cert.pem\", key = \"key.pem\" }` or `tls = \"auto\"`"
        }
        "ResponseHeaders" => "write `response_headers = { set = { X-Name = \"value\" } }`",
        _ => return None,
    })
}

/// Returns the table of an application for a text that looks like its file or module.
pub(crate) fn app_hint(name: &str) -> Option<String> {
    let file = name.rsplit('/').next().unwrap_or(name);
    let key = match file.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "ru" => "rack",
        "psgi" | "pl" => "psgi",
        "php" => "php",
        "so" => "handler",
        "py" => "python",
        _ if name.contains(':') => "python",
        _ => return None,
    };
    Some(format!(
        "a file or module stands in a table: write `app = \"NAME\"` here, and `[apps.NAME]` with `{key} = \"{name}\"` below it"
    ))
}

/// Returns the remedy for a directive of another server, found as an unknown key in the table `place`.
pub(crate) fn directive_hint(key: &str, place: &str) -> Option<String> {
    let mut found = other_servers::find(&SERVERS, key).filter(|(_, directive)| directive.is_distinct);
    let (server, first) = found.next()?;
    let in_place = format!(" in {place}");
    let text = match first.ours {
        Ours::NotNeeded(reason) => return Some(format!("{}'s `{key}` is not needed: {reason}", server.name)),
        Ours::NotThere(reason) => return Some(format!("{}'s `{key}` is not there: {reason}", server.name)),
        Ours::Here(equivalent) => equivalent.strip_suffix(&in_place).unwrap_or(equivalent),
    };
    if text.trim_matches('`') == key {
        return None;
    }
    let other = found.find_map(|(server, directive)| match directive {
        ForeignDirective { ours: Ours::Here(other), .. } if directive.ours != first.ours => {
            Some(format!("; of {}, {}", server.name, other.strip_suffix(&in_place).unwrap_or(other)))
        }
        _ => None,
    });
    Some(format!("here this is {text}{}", other.unwrap_or_default()))
}

/// Recognizes the format of a file that is not TOML and returns the remedy.
pub(crate) fn syntax_hint(text: &str) -> Option<&'static str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = lines.next()?;
    let word = first.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or("");
    if first.starts_with('{') || first.starts_with('[') && first.ends_with('{') {
        return Some(match (text.contains("\"listeners\""), text.contains("\"apps\"")) {
            (true, _) => {
                "this file looks like a configuration of NGINX Unit; `komainu import unit FILE` translates it. Komainu reads TOML: `listeners` are `listen` at the top of \
                 the file, `routes` are `[[route]]`, `applications` are `[apps.NAME]`"
            }
            (false, true) => {
                "this file looks like Caddy's JSON; `komainu import caddy FILE` translates it. Komainu reads TOML: a server is a `[[site]]`, a route a `[[site.route]]`"
            }
            (false, false) => {
                "this file looks like JSON; Komainu reads TOML: `{ \"a\": { \"b\": 1 } }` is `[a]` and below it `b = 1`"
            }
        });
    }
    if first.starts_with('<') && !first.starts_with("<!") && !first.to_ascii_lowercase().starts_with("<html")
    {
        return Some(
            "this file looks like a configuration of Apache; Komainu reads TOML: a `<VirtualHost>` is a `[[site]]`, a \
             `<Location>` a `[[site.route]]`, `ProxyPass` is `proxy`, `DocumentRoot` is `files`",
        );
    }
    if word == "vcl" && first.ends_with(';') {
        return Some(
            "this file looks like Varnish's VCL; Komainu reads TOML: a backend is `proxy = \"http://...\"` of a route, what is \
             cached is said by `cache` and its rules",
        );
    }
    if first.contains('=') {
        return None;
    }
    if matches!(word, "global" | "defaults" | "frontend" | "backend") && !first.ends_with(['{', ';', ':']) {
        return Some(
            "this file looks like a configuration of HAProxy; Komainu reads TOML: `bind` is `listen`, a frontend is a `[[site]]` \
             with its `[[site.route]]`, a backend is `[upstreams.NAME]`",
        );
    }
    let is_block = first.ends_with('{') || lines.next() == Some("{");
    let is_caddyfile = is_block
        && (first.starts_with([':', '*', '(', '/']) || word.is_empty() || !is_nginx_block(word))
        && !text.lines().any(|line| line.trim_end().ends_with(';'));
    if is_caddyfile {
        return Some(
            "this file looks like a Caddyfile; `komainu import caddy` translates what `caddy adapt` makes of it. Komainu reads TOML: a site's block is a `[[site]]` with `hosts`, `handle` is a \
             `[[site.route]]`, `reverse_proxy` is `proxy`, `file_server` is `files`",
        );
    }
    if first.starts_with(|first: char| first.is_ascii_lowercase())
        && (is_block || first.ends_with([';', '}']))
    {
        return Some(
            "this file looks like a configuration of nginx; `komainu import nginx FILE` translates it. Komainu reads TOML: `[[site]]` is nginx's `server`, \
             `[[site.route]]` its `location`, `threads` its `worker_processes`",
        );
    }
    let is_yaml = first == "---"
        || first.split_once(':').is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with(' '));
    is_yaml.then_some(
        "this file looks like YAML; Komainu reads TOML: `a: 1` is `a = 1`, a mapping `a:` is a table `[a]`, a list of mappings is a \
         `[[a]]` for each",
    )
}

fn is_nginx_block(word: &str) -> bool {
    matches!(
        word,
        "server"
            | "http"
            | "events"
            | "upstream"
            | "location"
            | "map"
            | "geo"
            | "stream"
            | "types"
            | "if"
            | "split_clients"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syntax_of_other_servers_is_recognized() {
        let server = |text: &str| {
            let text = syntax_hint(text)?;
            let rest = text.strip_prefix("this file looks like ").expect("each begins so");
            Some(rest.split_once(';').expect("each says why").0)
        };
        assert_eq!(server("server {\n listen 80;\n}\n"), Some("a configuration of nginx"));
        assert_eq!(server("# a\nuser www;\nhttp {\n}\n"), Some("a configuration of nginx"));
        assert_eq!(server("upstream app\n{\n server a;\n}\n"), Some("a configuration of nginx"));
        assert_eq!(server("example.com {\n reverse_proxy :3000\n}\n"), Some("a Caddyfile"));
        assert_eq!(server(":80 {\n file_server\n}\n"), Some("a Caddyfile"));
        assert_eq!(server("{\n \"apps\": { \"http\": {} }\n}\n"), Some("Caddy's JSON"));
        assert_eq!(server("{ \"listeners\": {} }"), Some("a configuration of NGINX Unit"));
        assert_eq!(server("{ \"a\": 1 }"), Some("JSON"));
        assert_eq!(server("global\n daemon\n"), Some("a configuration of HAProxy"));
        assert_eq!(server("frontend web\n bind :80\n"), Some("a configuration of HAProxy"));
        assert_eq!(server("<VirtualHost *:80>\n"), Some("a configuration of Apache"));
        assert_eq!(server("vcl 4.1;\nbackend default {\n}\n"), Some("Varnish's VCL"));
        assert_eq!(server("---\nlisten: 80\n"), Some("YAML"));
        assert_eq!(server("listen: 80\n"), Some("YAML"));
        assert_eq!(server("sites:\n  - a: b\n"), Some("YAML"));
        for toml in
            ["", "listen = \":80\nx = 1", "[log]\nx", "[[site]]\nhosts = [", "a.b = { c = ", "\u{feff}x"]
        {
            assert_eq!(server(toml), None, "{toml}");
        }
    }

    #[test]
    fn hints_are_found_for_directives_of_other_servers() {
        let text = directive_hint("Sendfile", "`[[route]]`").unwrap();
        assert!(text.starts_with("nginx's `Sendfile` is not needed: "), "{text}");
        assert_eq!(directive_hint("error_log", "`[log]`").unwrap(), "here this is `errors`");
        assert_eq!(directive_hint("frobnicate", "`[log]`"), None);
    }
}

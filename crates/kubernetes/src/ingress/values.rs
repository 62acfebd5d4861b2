//! Values of annotations as values of directives.

use std::net::IpAddr;

/// Seconds of the longest timeout.
const SECONDS_MAX: u64 = 86_400;
/// Bytes that nginx's units are at most.
const SIZE_MAX: u64 = 1 << 40;

/// `true` and `false`, as ingress-nginx reads them.
pub(crate) fn flag(text: &str) -> Option<bool> {
    match text.trim() {
        "true" | "True" | "TRUE" | "1" | "t" | "T" => Some(true),
        "false" | "False" | "FALSE" | "0" | "f" | "F" => Some(false),
        _ => None,
    }
}

/// A number of seconds, perhaps with the unit `s`.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    let text = text.trim();
    text.strip_suffix('s').unwrap_or(text).parse::<u64>().ok().map(|count| count.min(SECONDS_MAX))
}

/// A size in nginx's notation, in bytes.
pub(crate) fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1 << 10),
        (at, 'm' | 'M') => (&text[..at], 1 << 20),
        (at, 'g' | 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|bytes| *bytes <= SIZE_MAX)
}

/// A list with commas; empty items are left out.
pub(crate) fn list(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
}

/// Networks and addresses with commas. `None` if one of them is none.
pub(crate) fn networks(text: &str) -> Option<Vec<String>> {
    let is_network = |text: &str| match text.split_once('/') {
        Some((address, bits)) => {
            let most = address.parse::<IpAddr>().map(|address| if address.is_ipv4() { 32 } else { 128 });
            most.is_ok_and(|most| bits.parse::<u8>().is_ok_and(|bits| bits <= most))
        }
        None => text.parse::<IpAddr>().is_ok(),
    };
    let all = list(text);
    all.iter().all(|text| is_network(text)).then(|| all.into_iter().map(str::to_owned).collect())
}

/// A text with variables of nginx as one with variables of directives. `None` if there is one that does not exist here.
pub(crate) fn template(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out += &rest[..at];
        rest = &rest[at + 1..];
        let (name, after) = match rest.strip_prefix('{') {
            Some(braced) => braced.split_once('}')?,
            None => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                rest.split_at(end)
            }
        };
        out += match name {
            "request_uri" => "${uri}",
            "uri" | "document_uri" => "${path}",
            "host" | "best_http_host" => "${host}",
            "http_host" => "${http_host}",
            "scheme" | "pass_access_scheme" => "${scheme}",
            "args" | "query_string" => "${args}",
            "remote_addr" | "the_real_ip" => "${remote_addr}",
            "request_method" => "${method}",
            _ => return None,
        };
        rest = after;
    }
    out += rest;
    Some(out)
}

/// The target of a redirect: `$host` of the request stands in the host, `$request_uri` at the end.
pub(crate) fn redirect_target(text: &str) -> Option<String> {
    let text = text.trim();
    let is_target = text.starts_with('/')
        || text.starts_with("http://")
        || text.starts_with("https://")
        || text.starts_with("$scheme://");
    if !is_target || !text.chars().all(|c| c.is_ascii_graphic()) {
        return None;
    }
    // A redirect knows fewer variables.
    template(&text.replace("$http_host", "$host"))
        .filter(|text| !text.contains("${remote_addr}") && !text.contains("${method}"))
}

/// The way of balancing by a key of nginx. `None` if there is none like it.
pub(crate) fn hash_balance(text: &str) -> Option<String> {
    let name = text.trim().strip_prefix('$')?;
    let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    match name {
        "request_uri" | "uri" => Some("hash:uri".to_owned()),
        "remote_addr" | "binary_remote_addr" | "the_real_ip" => Some("hash:client".to_owned()),
        _ => {
            let is_word =
                |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let field = name.strip_prefix("http_").filter(|name| is_word(name));
            let cookie = name.strip_prefix("cookie_").filter(|name| is_word(name));
            field
                .map(|name| format!("hash:header:{}", name.replace('_', "-")))
                .or_else(|| cookie.map(|name| format!("hash:cookie:{name}")))
        }
    }
}

/// The fields and cookies of a key of nginx that requests are remembered by. `None` if another variable is in it.
pub(crate) fn key_fields(text: &str) -> Option<Vec<String>> {
    let mut fields = Vec::new();
    for part in text.trim().split('$').skip(1) {
        let name: String = part
            .trim_start_matches('{')
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        let field = match name.as_str() {
            // The client and the URL are part of the key in any case.
            "request_uri" | "uri" | "host" | "http_host" | "remote_addr" | "binary_remote_addr"
            | "request_method" | "scheme" => continue,
            "remote_user" => "authorization".to_owned(),
            name => match name.strip_prefix("http_") {
                Some(field) => field.replace('_', "-"),
                None if name.starts_with("cookie_") => "cookie".to_owned(),
                None => return None,
            },
        };
        if !fields.contains(&field) {
            fields.push(field);
        }
    }
    Some(fields)
}

/// The longest time of `auth-cache-duration` for answers that let a request in, in seconds: `200 202 10m, 401 5m`.
pub(crate) fn cache_seconds(text: &str) -> Option<u64> {
    let mut found = None;
    for entry in list(text) {
        let mut words = entry.split_whitespace().collect::<Vec<_>>();
        let time = words.pop()?;
        let (digits, unit) = match time.char_indices().last()? {
            (at, 's') => (&time[..at], 1),
            (at, 'm') => (&time[..at], 60),
            (at, 'h') => (&time[..at], 3600),
            (at, 'd') => (&time[..at], 86_400),
            _ => (time, 1),
        };
        let seconds = digits.parse::<u64>().ok()?.checked_mul(unit)?;
        if words.is_empty() || words.iter().any(|code| code.starts_with('2')) {
            found = Some(found.map_or(seconds, |known: u64| known.min(seconds)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_nginx() {
        assert_eq!(size("8m"), Some(8 << 20));
        assert_eq!(size("1K"), Some(1024));
        assert_eq!(size("0"), Some(0));
        for refused in ["", "m", "-1", "1x", "99999999999999999999g", "1.5m"] {
            assert_eq!(size(refused), None, "{refused}");
        }
    }

    #[test]
    fn networks_are_all_valid_or_none_is() {
        assert_eq!(networks("10.0.0.0/8, 192.0.2.1,").unwrap(), ["10.0.0.0/8", "192.0.2.1"]);
        assert_eq!(networks("2001:db8::/32").unwrap(), ["2001:db8::/32"]);
        for refused in ["10.0.0.0/33", "10.0.0.0/8,office", "2001:db8::/129", "$x"] {
            assert_eq!(networks(refused), None, "{refused}");
        }
    }

    #[test]
    fn variables_of_nginx_have_other_names_here() {
        assert_eq!(template("$scheme://$host$request_uri").unwrap(), "${scheme}://${host}${uri}");
        assert_eq!(template("${uri}x").unwrap(), "${path}x");
        assert_eq!(template("$1"), None);
        assert_eq!(template("a$"), None);
        assert_eq!(template("$upstream_addr"), None);
        assert_eq!(
            redirect_target("https://new.example.com$request_uri").unwrap(),
            "https://new.example.com${uri}"
        );
        for refused in ["javascript:x", "https://a b", "ftp://x", "$remote_addr", "https://a/$remote_addr"] {
            assert_eq!(redirect_target(refused), None, "{refused}");
        }
    }

    #[test]
    fn hash_keys_are_one_variable() {
        let balance = |text: &str| hash_balance(text).unwrap_or_default();
        assert_eq!(balance("$request_uri"), "hash:uri");
        assert_eq!(balance("${binary_remote_addr}"), "hash:client");
        assert_eq!(balance("$http_x_user"), "hash:header:x-user");
        assert_eq!(balance("$cookie_session"), "hash:cookie:session");
        for refused in ["$request_uri$host", "text", "$arg_x", "$http_", "$cookie_a-b"] {
            assert_eq!(balance(refused), "", "{refused}");
        }
    }

    #[test]
    fn durations_of_the_cache_are_those_of_positive_answers() {
        assert_eq!(cache_seconds("200 202 10m, 401 5m"), Some(600));
        assert_eq!(cache_seconds("200 10m, 5s"), Some(5));
        assert_eq!(cache_seconds("401 5m"), None);
        assert_eq!(cache_seconds("200 x"), None);
        assert_eq!(key_fields("$remote_user$http_x_key$request_uri").unwrap(), ["authorization", "x-key"]);
        assert_eq!(key_fields("$ssl_client_s_dn"), None);
    }
}

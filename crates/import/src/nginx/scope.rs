//! Inheritance of directives from `http` to `server` to `location`, variables, and units of sizes and
//! durations.

use std::collections::HashMap;
use std::rc::Rc;

use super::tree::NginxDirective;
use crate::findings::Untranslatable;

/// The directives of a block by their names: blocks may have thousands, and each of their locations asks for many names.
#[derive(Debug, Default)]
struct NamedDirectives<'d> {
    /// Directives of a name, with their places in the block.
    by_name: HashMap<&'d str, Vec<(usize, &'d NginxDirective)>>,
    /// Names of directives without a block, in the order in which they occur.
    simple_names: Vec<&'d str>,
}

impl<'d> NamedDirectives<'d> {
    fn of(block: &'d [NginxDirective]) -> Self {
        let mut found = Self::default();
        for (at, one) in block.iter().enumerate() {
            let known = found.by_name.entry(&one.name).or_default();
            if one.block.is_none() && known.iter().all(|(_, other)| other.block.is_some()) {
                found.simple_names.push(&one.name);
            }
            known.push((at, one));
        }
        found
    }

    fn of_name(&self, name: &str) -> &[(usize, &'d NginxDirective)] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }
}

/// The blocks that enclose a place in the configuration, the outermost first.
#[derive(Debug, Clone)]
pub(crate) struct Scope<'d> {
    pub(crate) levels: Vec<&'d [NginxDirective]>,
    /// The directives of each level by their names.
    named: Vec<Rc<NamedDirectives<'d>>>,
    /// Capture groups of the regular expression that selected this place: names in nginx and in Komainu.
    pub(crate) groups: Vec<(String, String)>,
}

impl<'d> Scope<'d> {
    /// Creates the scope of these blocks, the outermost first.
    pub(crate) fn of(levels: Vec<&'d [NginxDirective]>) -> Self {
        let named = levels.iter().map(|level| Rc::new(NamedDirectives::of(level))).collect();
        Self { levels, named, groups: Vec::new() }
    }

    /// Returns this scope with the groups of the regular expression that selected it.
    pub(crate) fn with_groups(&self, groups: &[(String, String)]) -> Self {
        Self { groups: groups.to_vec(), ..self.clone() }
    }

    /// Returns the scope of a block within this one.
    pub(crate) fn with_block(&self, block: &'d [NginxDirective]) -> Self {
        let mut scope = self.clone();
        scope.levels.push(block);
        scope.named.push(Rc::new(NamedDirectives::of(block)));
        scope
    }

    /// Returns the effective directive: that of the innermost block that has one.
    pub(crate) fn effective(&self, name: &str) -> Option<&'d NginxDirective> {
        self.named.iter().rev().find_map(|level| level.of_name(name).last()).map(|(_, one)| *one)
    }

    /// Returns the effective directives of a name that may be repeated: all of the innermost block that has
    /// any.
    pub(crate) fn effective_all(&self, name: &str) -> Vec<&'d NginxDirective> {
        self.effective_all_of(&[name])
    }

    /// Returns the effective `root` or `alias`, whose argument is `$document_root`.
    pub(crate) fn folder(&self) -> Option<&'d NginxDirective> {
        self.effective_all_of(&["root", "alias"]).pop()
    }

    /// Like [`effective_all`](Self::effective_all), for several names that replace each other, such as `allow` and `deny`.
    pub(crate) fn effective_all_of(&self, names: &[&str]) -> Vec<&'d NginxDirective> {
        let named = |level: &Rc<NamedDirectives<'d>>| {
            let mut found: Vec<_> = names.iter().flat_map(|name| level.of_name(name)).copied().collect();
            found.sort_by_key(|(at, _)| *at);
            found
        };
        let found = self.named.iter().rev().map(named).find(|found| !found.is_empty()).unwrap_or_default();
        found.into_iter().map(|(_, one)| one).collect()
    }

    /// Returns the directives of the innermost block.
    pub(crate) fn innermost(&self) -> &'d [NginxDirective] {
        self.levels.last().copied().unwrap_or(&[])
    }

    /// Returns the last directive of this name in the innermost block.
    pub(crate) fn innermost_last(&self, name: &str) -> Option<&'d NginxDirective> {
        let (_, last) = self.named.last()?.of_name(name).last()?;
        Some(last)
    }

    /// Returns the names of the directives without a block of all levels, in the order in which they occur, some several times.
    pub(crate) fn simple_names(&self) -> impl Iterator<Item = &'d str> {
        self.named.iter().flat_map(|level| level.simple_names.iter().copied())
    }

    /// Whether a `rewrite` in the server or one of its locations changes paths.
    pub(crate) fn has_rewrites(&self) -> bool {
        let mut found = false;
        let is_of_server = |level: &&&[NginxDirective]| level.iter().all(|one| one.name != "server");
        for level in self.levels.iter().filter(is_of_server) {
            super::tree::visit(level, &mut |one| {
                found |= one.name == "rewrite" && !matches!(one.arg_at(2), "permanent" | "redirect");
            });
        }
        found
    }

    /// Returns this scope as of the execution of `one`: without the directives that follow in its block.
    pub(crate) fn before(&self, directive: &NginxDirective) -> Self {
        let mut scope = self.clone();
        for (level, named) in scope.levels.iter_mut().zip(&mut scope.named) {
            let same =
                named.of_name(&directive.name).iter().find(|(_, other)| other.entry == directive.entry);
            if let Some((at, _)) = same.copied() {
                *level = &level[..at];
                *named = Rc::new(NamedDirectives::of(level));
            }
        }
        scope
    }

    /// Whether level `at` is the block of a `location`.
    fn is_location(&self, at: usize) -> bool {
        let Some(level) = self.levels.get(at).filter(|_| at > 0) else { return false };
        let locations = self.named[at - 1].of_name("location");
        locations.iter().any(|(_, one)| std::ptr::eq(one.block_directives().as_ptr(), level.as_ptr()))
    }

    /// Returns the only `set` of a variable in these blocks; `None` if there are several or an `if` sets it.
    /// nginx does not execute the `set` of a location that encloses the selected one.
    fn find_set(&self, variable: &str) -> Option<&'d NginxDirective> {
        let is_it =
            |one: &&NginxDirective| one.name == "set" && one.first_arg().strip_prefix('$') == Some(variable);
        let named = |level: usize, name: &str| self.named[level].of_name(name).iter().map(|(_, one)| *one);
        let has_one = |level: &usize| named(*level, "set").any(|one| is_it(&one));
        if !(0..self.levels.len()).any(|level| has_one(&level)) {
            return None;
        }
        let executed = |at: &usize| !(self.is_location(*at) && self.is_location(at + 1));
        let all = |name| (0..self.levels.len()).filter(executed).flat_map(move |at| named(at, name));
        let mut found = all("set").filter(is_it);
        let first = found.next()?;
        let is_set_by_if = all("if").any(|one| one.block_directives().iter().any(|one| is_it(&one)));
        (found.next().is_none() && !is_set_by_if).then_some(first)
    }
}

/// A part of a text with variables.
#[derive(Debug, PartialEq)]
pub(crate) enum TextPart {
    Text(String),
    Variable(String),
}

/// Splits a text into variables and the literal text between them.
pub(crate) fn split_template(text: &str) -> Vec<TextPart> {
    let mut found = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        plain.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let (name, end) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, _)) => (name, name.len() + 2),
            None => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = match after.starts_with(|c: char| c.is_ascii_digit()) {
                    // Names of numbered groups have one digit.
                    true => 1,
                    false => after.find(|c| !is_name(c)).unwrap_or(after.len()),
                };
                (&after[..end], end)
            }
        };
        if name.is_empty() {
            plain.push('$');
        } else {
            if !plain.is_empty() {
                found.push(TextPart::Text(std::mem::take(&mut plain)));
            }
            found.push(TextPart::Variable(name.to_owned()));
        }
        rest = &after[end..];
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        found.push(TextPart::Text(plain));
    }
    found
}

/// Destination of a text with variables.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TemplateDestination {
    /// The value of a header field.
    Header,
    /// The target of a redirect.
    Target,
    /// A line of the access log.
    Log,
}

/// Maximum depth of `set` variables that refer to other `set` variables.
const SET_DEPTH_MAX: usize = 8;

/// Translates nginx's variables in a text to Komainu's. `own` returns the names of variables that the
/// configuration defines.
///
/// # Errors
/// A variable has no equivalent in Komainu.
pub(crate) fn translate_template(
    text: &str,
    scope: &Scope<'_>,
    used: TemplateDestination,
    own: &dyn Fn(&str) -> Option<String>,
) -> Result<String, Untranslatable> {
    let resolved = replace_constants(text, scope, 0);
    let mut out = String::new();
    let parts = split_template(&resolved);
    let mut at = 0;
    while let Some(part) = parts.get(at) {
        at += 1;
        match part {
            TextPart::Text(plain) => out.push_str(&plain.replace('$', "$$")),
            TextPart::Variable(name) => {
                let is_query = name == "is_args"
                    && matches!(parts.get(at), Some(TextPart::Variable(next)) if next == "args" || next == "query_string");
                let mapped = if is_query {
                    at += 1;
                    "query".to_owned()
                } else {
                    translate_group(name, scope)
                        .or_else(|| own(name))
                        .or_else(|| translate_variable(name, used))
                        .ok_or_else(|| format!("there is no `${name}` here"))?
                };
                let braced = matches!(parts.get(at), Some(TextPart::Text(next))
                    if next.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'));
                if braced {
                    out.push_str(&format!("${{{mapped}}}"))
                } else {
                    out.push_str(&format!("${mapped}"))
                }
            }
        }
    }
    Ok(out)
}

/// Returns Komainu's name of a group of the expression that selected this place.
fn translate_group(name: &str, scope: &Scope<'_>) -> Option<String> {
    scope.groups.iter().find(|(old, _)| old == name).map(|(_, new)| new.clone())
}

/// Replaces the variables that have a constant value.
pub(crate) fn replace_constants(text: &str, scope: &Scope<'_>, depth: usize) -> String {
    let mut out = String::new();
    for part in split_template(text) {
        match part {
            TextPart::Text(plain) => out.push_str(&plain),
            TextPart::Variable(name) => match scope.find_set(&name).filter(|_| depth < SET_DEPTH_MAX) {
                Some(set) => out.push_str(&replace_constants(set.arg_at(1), scope, depth + 1)),
                None => out.push_str(&match server_constant(&name, scope) {
                    Some(value) => value,
                    // nginx does not recognize numbered groups in braces.
                    None if name.len() == 1 && name.starts_with(|c: char| c.is_ascii_digit()) => {
                        format!("${name}")
                    }
                    None => format!("${{{name}}}"),
                }),
            },
        }
    }
    out
}

/// Value of a variable that is constant within a server.
fn server_constant(name: &str, scope: &Scope<'_>) -> Option<String> {
    let value = match name {
        "server_name" => scope.effective("server_name")?.first_arg(),
        "document_root" | "realpath_root" => scope.folder()?.first_arg(),
        _ => return None,
    };
    (!value.contains('$')).then(|| value.to_owned())
}

/// Komainu's name of a variable; `None` if there is no equivalent.
fn translate_variable(name: &str, used: TemplateDestination) -> Option<String> {
    let known = match name {
        "host" => "host",
        "scheme" => "scheme",
        "request_uri" => "uri",
        "uri" | "document_uri" => "path",
        "args" | "query_string" => "args",
        // `$host` lacks the port.
        "http_host" if used == TemplateDestination::Target => "host",
        _ if used == TemplateDestination::Target => return None,
        "remote_addr" | "realip_remote_addr" if name == "remote_addr" => "remote_addr",
        "remote_port" => "client_port",
        "remote_user" => "remote_user",
        "request_method" => "method",
        "request_id" => "request_id",
        "ssl_client_verify" if used == TemplateDestination::Header => "tls_client_verify",
        "ssl_client_s_dn" if used == TemplateDestination::Header => "tls_client_subject",
        "ssl_client_i_dn" if used == TemplateDestination::Header => "tls_client_issuer",
        "ssl_client_serial" if used == TemplateDestination::Header => "tls_client_serial",
        _ if name.starts_with("http_") || name.starts_with("cookie_") => name,
        _ if used == TemplateDestination::Log => return translate_log_variable(name).map(str::to_owned),
        _ => return None,
    };
    Some(known.to_owned())
}

/// Variables that exist only in the access log. `None` if Komainu lacks the variable.
fn translate_log_variable(name: &str) -> Option<&'static str> {
    Some(match name {
        "time_local" => "time_local",
        "time_iso8601" => "time",
        "status" => "status",
        "body_bytes_sent" | "bytes_sent" => "body_bytes",
        "request_length" => "request_bytes",
        "request_time" => "request_time",
        "upstream_response_time" | "upstream_header_time" => "upstream_ms",
        "upstream_connect_time" => "connect_ms",
        "upstream_addr" => "upstream",
        "upstream_cache_status" => "cache",
        "server_protocol" => "version",
        "realip_remote_addr" => "proxy_addr",
        _ => return None,
    })
}

/// The field name in a variable: `X-Api-Key` for `$http_x_api_key`.
pub(crate) fn field_name(name: &str) -> String {
    let capital = |word: &str| {
        let mut chars = word.chars();
        chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
    };
    name.split('_').map(capital).collect::<Vec<String>>().join("-")
}

/// Whether a field describes the connection or the length of the content. The server sets such fields itself,
/// and rules cannot change them.
pub(crate) fn is_connection_field(name: &str) -> bool {
    ["connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
}

/// Remark on fields for which [`is_connection_field`] is true.
pub(crate) const CONNECTION_FIELD_REMARK: &str = "not needed: the server sets this field itself";

/// Translates a size such as `10m` to Komainu's notation.
pub(crate) fn translate_size(text: &str) -> Option<String> {
    let (digits, unit) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], "KiB"),
        (at, 'm' | 'M') => (&text[..at], "MiB"),
        (at, 'g' | 'G') => (&text[..at], "GiB"),
        _ => (text, "B"),
    };
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "B" if number >= 1024 && number.is_multiple_of(1024) => format!("{}KiB", number / 1024),
        _ => format!("{number}{unit}"),
    })
}

/// Parses a size such as `10m` and returns bytes.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, factor) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], 1 << 10),
        (at, 'm' | 'M') => (&text[..at], 1 << 20),
        (at, 'g' | 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Parses a duration such as `1h 30m`, `60` or `500ms` and returns milliseconds.
pub(crate) fn parse_milliseconds(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..end].parse().ok()?;
        let after = &rest[end..];
        let unit_end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let factor = match &after[..unit_end] {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            "M" => 30 * 86_400_000,
            "y" => 365 * 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(factor)?)?;
        rest = after[unit_end..].trim_start();
    }
    Some(total)
}

/// Formats milliseconds in Komainu's notation.
pub(crate) fn format_duration(ms: u64) -> String {
    match ms {
        0 => "0s".to_owned(),
        _ if !ms.is_multiple_of(1000) => format!("{ms}ms"),
        _ => {
            let seconds = ms / 1000;
            match seconds {
                _ if seconds.is_multiple_of(86_400) => format!("{}d", seconds / 86_400),
                _ if seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
                _ if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
                _ => format!("{seconds}s"),
            }
        }
    }
}

/// Formats a duration clamped to a range, and whether it was within it.
pub(crate) fn format_clamped_duration(ms: u64, min: u64, max: u64) -> (String, bool) {
    let within = ms.clamp(min, max);
    (format_duration(within), within == ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_units_are_converted() {
        assert_eq!(translate_size("10m").as_deref(), Some("10MiB"));
        assert_eq!(translate_size("8192").as_deref(), Some("8KiB"));
        assert_eq!(translate_size("1x"), None);
        assert_eq!(parse_milliseconds("1h 30m"), Some(5_400_000));
        assert_eq!(parse_milliseconds("60"), Some(60_000));
        assert_eq!(parse_milliseconds("1x"), None);
        assert_eq!(format_duration(90_000), "90s");
        assert_eq!(format_duration(3_600_000), "1h");
    }

    #[test]
    fn nginx_variables_are_translated() {
        let scope = Scope::of(Vec::new());
        let of = |text: &str, used| translate_template(text, &scope, used, &|_| None);
        assert_eq!(
            of("https://$host$request_uri", TemplateDestination::Target).as_deref(),
            Ok("https://$host$uri")
        );
        assert_eq!(
            of("${scheme}s_$uri$is_args$args", TemplateDestination::Header).as_deref(),
            Ok("${scheme}s_$path$query")
        );
        assert_eq!(of("a$1", TemplateDestination::Header), Err("there is no `$1` here".into()));
        assert_eq!(of("100$", TemplateDestination::Header).as_deref(), Ok("100$$"));
        let pair = |old: &str, new: &str| (old.to_owned(), new.to_owned());
        let scope = scope.with_groups(&[pair("1", "1"), pair("path", "path_")]);
        let own = |name: &str| (name == "pool").then(|| "pool".to_owned());
        let of = |text: &str| translate_template(text, &scope, TemplateDestination::Target, &own);
        assert_eq!(of("/$1/${path}x$pool").as_deref(), Ok("/$1/${path_}x$pool"));
        assert!(of("$2").is_err());
        assert_eq!(of("/$1x").as_deref(), Ok("/${1}x"));
        assert_eq!(replace_constants("/$1a/$host", &scope, 0), "/$1a/${host}");
    }
}

//! Maps addresses and paths of upstream servers in response fields to the client's view.

use std::borrow::Cow;

use http::{Name, Template, scan};

use crate::options::{GroupOptions, PathMap, RouteOptions};
use crate::template::TemplateContext;

/// Rules for `Location`, `Content-Location`, `Refresh` and `Set-Cookie`.
#[derive(Debug)]
pub struct ReverseMapping {
    path: Option<PathMap>,
    /// `host[:port]` of each server, and the hosts without ports.
    authorities: Vec<String>,
    hosts: Vec<String>,
    locations: Vec<(String, Template)>,
    cookie_domains: Vec<(String, String)>,
    /// Whether addresses and paths of the servers are mapped.
    maps_servers: bool,
}

impl ReverseMapping {
    /// Creates the rules of a route to a group.
    #[must_use]
    pub fn new(group: &GroupOptions, route: &RouteOptions) -> ReverseMapping {
        let authorities: Vec<String> = group.servers.iter().map(|server| server.authority()).collect();
        let host = |authority: &String| match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => host.to_owned(),
            _ => authority.clone(),
        };
        ReverseMapping {
            path: route.path.clone(),
            hosts: authorities.iter().map(host).collect(),
            authorities,
            locations: route.response.locations.clone(),
            cookie_domains: route.response.cookie_domains.clone(),
            maps_servers: route.response.rewrite,
        }
    }

    /// Whether rewriting is enabled.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.maps_servers || !self.locations.is_empty()
    }

    /// Returns the value of one of the fields in the client's view.
    #[must_use]
    pub fn rewrite<'v>(&self, id: Name, value: &'v [u8], context: &TemplateContext<'_>) -> Cow<'v, [u8]> {
        match id {
            Name::Location => self.location(value, context),
            Name::ContentLocation if self.maps_servers => self.url(value, context),
            Name::Refresh => self.refresh(value, context),
            Name::SetCookie if self.maps_servers => self.cookie(value),
            _ => Cow::Borrowed(value),
        }
    }

    /// Replaces the beginning of a URL, or maps it.
    fn location<'v>(&self, url: &'v [u8], context: &TemplateContext<'_>) -> Cow<'v, [u8]> {
        let found =
            self.locations.iter().find_map(|(from, to)| Some((to, url.strip_prefix(from.as_bytes())?)));
        match found {
            Some((to, rest)) => {
                let mut out = Vec::new();
                to.write(&mut out, &context.values());
                out.extend_from_slice(rest);
                Cow::Owned(out)
            }
            None if self.maps_servers => self.url(url, context),
            None => Cow::Borrowed(url),
        }
    }

    fn url<'v>(&self, url: &'v [u8], ask: &TemplateContext<'_>) -> Cow<'v, [u8]> {
        if url.starts_with(b"/") && !url.starts_with(b"//") {
            return self.path(url);
        }
        let Some(scheme) = scheme_len(url) else { return Cow::Borrowed(url) };
        let (start, rest) = url.split_at(scheme);
        let is_relative = start == b"//";
        let default_port: &[u8] = match start {
            b"//" if ask.client.is_secure => b":443",
            b"//" => b":80",
            _ if start.len() == b"https://".len() => b":443",
            _ => b":80",
        };
        let path_at = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(path_at);
        let bare = |authority: &'_ [u8]| {
            authority.strip_suffix(default_port).unwrap_or(authority).to_ascii_lowercase()
        };
        let is = |other: &[u8]| bare(other) == bare(authority);
        let client = ask.authority();
        if self.authorities.iter().any(|own| is(own.as_bytes())) && !client.is_empty() && !is(client) {
            let scheme = if is_relative { "" } else { ask.scheme() };
            let colon = if is_relative { "" } else { ":" };
            let start = [scheme, colon, "//"].concat();
            return Cow::Owned([start.as_bytes(), client, &self.path(path)].concat());
        }
        if is(client) {
            Cow::Owned([start, authority, &self.path(path)].concat())
        } else {
            Cow::Borrowed(url)
        }
    }

    fn path<'v>(&self, path: &'v [u8]) -> Cow<'v, [u8]> {
        match self.path.as_ref().and_then(|map| map.to_client(path)) {
            // If the client's prefix is empty, the rest of the path may be empty or only a query.
            Some((b"", rest)) if !rest.starts_with(b"/") => Cow::Owned([b"/", rest].concat()),
            Some((prefix, rest)) => Cow::Owned([prefix, rest].concat()),
            None => Cow::Borrowed(path),
        }
    }

    /// Rewrites `5; url=/path`.
    fn refresh<'v>(&self, value: &'v [u8], ask: &TemplateContext<'_>) -> Cow<'v, [u8]> {
        let begins = |at: usize| value[at..].get(..4).is_some_and(|word| word.eq_ignore_ascii_case(b"url="));
        let Some(at) = (0..value.len()).find(|&at| begins(at)).map(|at| at + 4) else {
            return Cow::Borrowed(value);
        };
        let quotes: &[u8] = match value.get(at) {
            Some(b'"') => b"\"",
            Some(b'\'') => b"'",
            _ => b"",
        };
        let url = &value[at + quotes.len()..];
        let url = url.strip_suffix(quotes).unwrap_or(url);
        Cow::Owned([&value[..at], quotes, &self.location(url, ask), quotes].concat())
    }

    /// Rewrites the `Path` and `Domain` attributes of a cookie.
    fn cookie<'v>(&self, value: &'v [u8]) -> Cow<'v, [u8]> {
        let mut attributes = value.split(|&byte| byte == b';');
        let mut out = attributes.next().unwrap_or_default().to_vec();
        let mut changed = false;
        for attribute in attributes {
            let trimmed = scan::trim(attribute);
            let kept = match attribute_value(trimmed, b"path=") {
                Some(path) => match self.path(scan::trim(path)) {
                    Cow::Borrowed(_) => None,
                    // `/api/` would not match a request for `/api`.
                    Cow::Owned(path) => {
                        let path = path.strip_suffix(b"/").filter(|path| !path.is_empty()).unwrap_or(&path);
                        Some([b"Path=", path].concat())
                    }
                },
                None => {
                    attribute_value(trimmed, b"domain=").and_then(|domain| self.domain(scan::trim(domain)))
                }
            };
            match kept {
                None => out.extend([b";", attribute].concat()),
                Some(new) => {
                    changed = true;
                    if !new.is_empty() {
                        out.extend([b"; ", &new[..]].concat());
                    }
                }
            }
        }
        if changed { Cow::Owned(out) } else { Cow::Borrowed(value) }
    }

    /// Returns the new `Domain` attribute, empty to remove it; `None` to leave it unchanged.
    fn domain(&self, domain: &[u8]) -> Option<Vec<u8>> {
        let domain = domain.strip_prefix(b".").unwrap_or(domain);
        let is = |other: &str| other.trim_start_matches('.').as_bytes().eq_ignore_ascii_case(domain);
        if let Some((_, new)) = self.cookie_domains.iter().find(|(old, _)| is(old)) {
            return Some(if new.is_empty() { Vec::new() } else { [b"Domain=", new.as_bytes()].concat() });
        }
        // Browsers reject a cookie for the upstream's own host.
        self.hosts.iter().any(|host| is(host)).then(Vec::new)
    }
}

fn attribute_value<'a>(attribute: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    attribute.get(..name.len())?.eq_ignore_ascii_case(name).then(|| &attribute[name.len()..])
}

/// Returns the length of `http://`, `https://` or `//` at the beginning of the URL.
fn scheme_len(url: &[u8]) -> Option<usize> {
    [&b"http://"[..], b"https://", b"//"]
        .iter()
        .find_map(|scheme| attribute_value(url, scheme).map(|_| scheme.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{ResponseOptions, UpstreamAddress, UpstreamServer};
    use http::RequestHead;
    use net::Peer;

    fn rewritten(id: Name, value: &str, map: Option<(&str, &str)>) -> String {
        let cookie_domains = vec![("old.test".into(), "shop.test".into())];
        rewritten_by(id, value, map, ResponseOptions { cookie_domains, ..ResponseOptions::default() })
    }

    fn rewritten_by(id: Name, value: &str, map: Option<(&str, &str)>, response: ResponseOptions) -> String {
        let bytes = b"GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n";
        let mut head = RequestHead::default();
        assert!(head.parse(bytes, &http::Limits::default()).unwrap());
        let ask = TemplateContext {
            head: &head,
            bytes,
            peer: Peer::Unix,
            client: net::Client::direct(Peer::Unix, true),
            tls: None,
            empty_segments: http::EmptySegments::Merge,
            ids: http::RequestIds::default(),
            user: None,
            upstream: "",
            custom_variables: None,
        };
        let server = UpstreamServer::new(UpstreamAddress::Tcp { host: "app.internal".into(), port: 3000 });
        let route = RouteOptions {
            path: map.map(|(from, to)| PathMap::new(from, to)),
            response,
            ..RouteOptions::default()
        };
        let value = ReverseMapping::new(&GroupOptions::new(vec![server]), &route)
            .rewrite(id, value.as_bytes(), &ask)
            .into_owned();
        String::from_utf8(value).unwrap()
    }

    #[test]
    fn upstream_urls_are_rewritten_for_the_client() {
        for (value, want) in [
            ("http://app.internal:3000/x?y#z", "https://shop.test/x?y#z"),
            ("HTTP://APP.internal:3000", "https://shop.test"),
            ("http://app.internal/x", "http://app.internal/x"),
            ("http://shop.test/x", "http://shop.test/x"),
            ("https://else.test/x", "https://else.test/x"),
            ("/x", "/x"),
            ("x", "x"),
            ("//else.test/x", "//else.test/x"),
            ("//app.internal:3000/x", "//shop.test/x"),
        ] {
            assert_eq!(rewritten(Name::Location, value, None), want, "{value}");
        }
    }

    #[test]
    fn beginnings_of_locations_are_replaced() {
        let template = |text: &str| Template::parse(text, |_| true).unwrap();
        let locations = vec![
            ("http://old.test/a/".into(), template("$scheme://$host/b/")),
            ("/inner".into(), template("/outer")),
        ];
        for is_mapped in [false, true] {
            let response = ResponseOptions {
                rewrite: is_mapped,
                locations: locations.clone(),
                ..ResponseOptions::default()
            };
            let of = |id, value| rewritten_by(id, value, None, response.clone());
            assert_eq!(of(Name::Location, "http://old.test/a/x?y"), "https://shop.test/b/x?y");
            assert_eq!(of(Name::Location, "/inner/x"), "/outer/x");
            assert_eq!(of(Name::Refresh, "1; url=/inner"), "1; url=/outer");
            assert_eq!(of(Name::ContentLocation, "/inner/x"), "/inner/x");
            assert_eq!(of(Name::Location, "http://old.test/c"), "http://old.test/c");
            let mapped = if is_mapped { "https://shop.test/x" } else { "http://app.internal:3000/x" };
            assert_eq!(of(Name::Location, "http://app.internal:3000/x"), mapped);
        }
    }

    #[test]
    fn mapped_paths_are_mapped_back() {
        let map = Some(("/api", "/v1"));
        for (id, value, want) in [
            (Name::Location, "/v1/x", "/api/x"),
            (Name::Location, "/v1?a", "/api?a"),
            (Name::Location, "/v12/x", "/v12/x"),
            (Name::Location, "http://app.internal:3000/v1/x", "https://shop.test/api/x"),
            (Name::ContentLocation, "https://shop.test/v1/x", "https://shop.test/api/x"),
            (Name::Location, "https://shop.test:443/v1/x", "https://shop.test:443/api/x"),
            (Name::Location, "http://shop.test:80/v1/x", "http://shop.test:80/api/x"),
            (Name::Location, "https://shop.test:80/v1/x", "https://shop.test:80/v1/x"),
            (Name::Location, "//shop.test/v1/x", "//shop.test/api/x"),
            (Name::Location, "//SHOP.test:443/v1", "//SHOP.test:443/api"),
            (Name::Location, "//app.internal:3000/v1/x", "//shop.test/api/x"),
            (Name::Location, "//else.test/v1/x", "//else.test/v1/x"),
            (Name::Refresh, "5; url=/v1/x", "5; url=/api/x"),
            (Name::Refresh, "5;URL='http://app.internal:3000/v1/'", "5;URL='https://shop.test/api/'"),
            (Name::Refresh, "5", "5"),
            (Name::SetCookie, "a=b; Path=/v1; HttpOnly", "a=b; Path=/api; HttpOnly"),
            (Name::SetCookie, "a=b; path=/other", "a=b; path=/other"),
            (Name::SetCookie, "a=b;Path=/v1/;Secure", "a=b; Path=/api;Secure"),
        ] {
            assert_eq!(rewritten(id, value, map), want, "{value}");
        }
        assert_eq!(rewritten(Name::Location, "/", Some(("/api", "/"))), "/api/");
        assert_eq!(rewritten(Name::SetCookie, "a=b; Path=/", Some(("/api", "/"))), "a=b; Path=/api");
        // An empty client prefix: the root must remain a path.
        let added = Some(("", "/app"));
        for (id, value, want) in [
            (Name::Location, "/app", "/"),
            (Name::Location, "/app?x", "/?x"),
            (Name::Location, "/app/x", "/x"),
            (Name::Location, "http://app.internal:3000/app", "https://shop.test/"),
            (Name::SetCookie, "a=b; Path=/app", "a=b; Path=/"),
            (Name::SetCookie, "a=b; Path=/app/", "a=b; Path=/"),
        ] {
            assert_eq!(rewritten(id, value, added), want, "{value}");
        }
    }

    #[test]
    fn cookie_domains_are_rewritten() {
        for (value, want) in [
            ("a=b; Domain=.old.test", "a=b; Domain=shop.test"),
            ("a=b; Domain=app.internal; Secure", "a=b; Secure"),
            ("a=b; Domain=x.test", "a=b; Domain=x.test"),
            ("a=b", "a=b"),
        ] {
            assert_eq!(rewritten(Name::SetCookie, value, None), want, "{value}");
        }
    }
}

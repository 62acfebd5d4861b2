//! Comparison of two responses and of the requests that upstream servers received; records what is not
//! compared.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use import::scratch::{Aspect, ScratchListener, VerifyRequest};

use crate::message::{ReceivedRequest, ServerResponse, format_content, joined_values};
use crate::server::{NEW_ADDRESS, OLD_ADDRESS};

/// Difference whose reason has not been determined yet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct UnexplainedDifference {
    pub(crate) aspect: Aspect,
    pub(crate) old: String,
    pub(crate) new: String,
}

/// Response of one server, and the requests that upstream servers received for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerOutcome {
    pub(crate) response: ServerResponse,
    pub(crate) upstream_requests: Vec<ReceivedRequest>,
}

const FRAMING: &str = "Fields that belong to the connection: Connection, Keep-Alive, Transfer-Encoding, and Content-Length where the content is compared";
const IDENTITY: &str = "Date, Server and Via";
const ETAG: &str = "The form of ETag (each server makes its own), only whether there is one; so If-None-Match with a real value is not tried";
const ERROR_PAGE: &str = "The pages that the old server itself makes for errors and redirects, with their Content-Type and Content-Length";
const LISTING: &str = "The pages of folder listings";
const RELATIVE_REDIRECTS: &str =
    "Whether a redirect is relative or absolute, and the port in it where it is that of the listener";
const FORWARDED: &str = "X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Host to upstream servers where the old server sends none: Komainu always sends them";
const ALLOW: &str = "Allow, Retry-After and Content-Length of errors that Komainu answers itself, which the old server has not";
const CHARSET: &str = "`charset=utf-8` in the Content-Type of texts, where the old server has none (`charset = false` in `files` leaves it out)";
const FASTCGI: &str = "The variables SERVER_SOFTWARE, SERVER_ADDR, REMOTE_PORT and GATEWAY_INTERFACE of FastCGI; SERVER_PORT, which is that of each listener; and HTTP_CONTENT_LENGTH, HTTP_CONTENT_TYPE and HTTP_TRANSFER_ENCODING, which RFC 3875 leaves out";
const ALTERNATIVES: &str = "Alt-Svc, by which Komainu names HTTP/3, where the old server has none";
const RANGES: &str =
    "Accept-Ranges in a part of a file (206), which Komainu sends and the old server does not";
const UPSTREAM: &str =
    "X-Request-Id to upstream servers, which is another for each request, and TE, which nginx drops";
const COMPRESSED_BYTES: &str = "The bytes of compressed contents, only what they hold";
const TARGET_SPELLING: &str = "How octets of targets to upstream servers are percent-encoded where that means the same (`%7e`, `%7E` and `~`), and a `?` without a query";

/// Comparison of all responses, including a record of what was not compared.
#[derive(Debug, Default)]
pub(crate) struct ResponseComparison {
    pub(crate) not_compared: BTreeSet<String>,
}

impl ResponseComparison {
    fn record_skipped(&mut self, what: &str) {
        if !self.not_compared.contains(what) {
            self.not_compared.insert(what.to_owned());
        }
    }

    /// Returns all differences between two outcomes.
    pub(crate) fn find_differences(
        &mut self,
        request: &VerifyRequest,
        listener: &ScratchListener,
        old: &ServerOutcome,
        new: &ServerOutcome,
    ) -> Vec<UnexplainedDifference> {
        let mut found = Vec::new();
        let a = &old.response;
        let b = &new.response;
        let status = |answer: &ServerResponse| match (answer.status, &answer.failure) {
            (0, Some(trouble)) => trouble.clone(),
            (status, Some(trouble)) => format!("{status}, {trouble}"),
            (status, None) => status.to_string(),
        };
        let is_closed = |answer: &ServerResponse| answer.status == 0;
        if status(a) != status(b) && !(is_closed(a) && is_closed(b)) {
            found.push(UnexplainedDifference { aspect: Aspect::Status, old: status(a), new: status(b) });
        }
        if a.status == b.status && a.status != 0 {
            self.compare_responses(request, listener, a, b, &mut found);
        }
        self.compare_upstream_requests(&old.upstream_requests, &new.upstream_requests, &mut found);
        found
    }

    fn compare_responses(
        &mut self,
        request: &VerifyRequest,
        listener: &ScratchListener,
        old: &ServerResponse,
        new: &ServerResponse,
        found: &mut Vec<UnexplainedDifference>,
    ) {
        self.record_skipped(FRAMING);
        self.record_skipped(IDENTITY);
        let own_page = is_nginx_page(&old.content) || old.status >= 300 && old.content.is_empty();
        let is_listing = old.content.starts_with(b"<html>\r\n<head><title>Index of");
        if own_page {
            self.record_skipped(ERROR_PAGE);
        }
        if is_listing {
            self.record_skipped(LISTING);
        }
        let same_coding = old.field("content-encoding") == new.field("content-encoding");
        let names: BTreeSet<&str> =
            old.fields.iter().chain(&new.fields).map(|(name, _)| name.as_str()).collect();
        for name in names {
            let a = old.field(name);
            let b = new.field(name);
            if a == b || self.should_skip_field(name, old, new, own_page || is_listing) {
                continue;
            }
            let (a, b) = self.normalize_values(name, a, b, request, listener);
            if a != b {
                let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
                found.push(UnexplainedDifference {
                    aspect: Aspect::Field(name.to_owned()),
                    old: shown(a),
                    new: shown(b),
                });
            }
        }
        if request.method == "HEAD" || own_page || is_listing || !same_coding {
            return;
        }
        let a = self.comparable_content(old);
        let b = self.comparable_content(new);
        if a != b {
            found.push(UnexplainedDifference {
                aspect: Aspect::Content,
                old: format_content(&a),
                new: format_content(&b),
            });
        }
    }

    fn should_skip_field(
        &mut self,
        name: &str,
        old: &ServerResponse,
        new: &ServerResponse,
        own_page: bool,
    ) -> bool {
        let is_error = old.status >= 400;
        match name {
            "date" | "server" | "via" | "connection" | "keep-alive" | "transfer-encoding"
            | "cache-status" | "proxy-connection" => true,
            "content-length" => {
                let both = old.field(name).is_some() && new.field(name).is_some();
                // If neither response has content, the length is all there is to compare.
                !(both && old.content.is_empty() && new.content.is_empty()) || own_page
            }
            "etag" => {
                self.record_skipped(ETAG);
                old.field(name).is_some() == new.field(name).is_some()
            }
            "content-type" | "content-language" | "x-content-type-options" | "vary" if own_page => true,
            "accept-ranges" | "last-modified" if own_page => true,
            "accept-ranges" if old.status == 206 => {
                self.record_skipped(RANGES);
                true
            }
            "alt-svc" if old.field(name).is_none() => {
                self.record_skipped(ALTERNATIVES);
                true
            }
            "allow" | "retry-after" if is_error && old.field(name).is_none() => {
                self.record_skipped(ALLOW);
                true
            }
            _ => false,
        }
    }

    fn normalize_values(
        &mut self,
        name: &str,
        old: Option<String>,
        new: Option<String>,
        request: &VerifyRequest,
        listener: &ScratchListener,
    ) -> (Option<String>, Option<String>) {
        let old = old.map(|text| mask_addresses(&text));
        let new = new.map(|text| mask_addresses(&text));
        match name {
            "location" | "content-location" | "refresh" => {
                self.record_skipped(RELATIVE_REDIRECTS);
                let full =
                    |text: Option<String>| text.map(|text| absolute_redirect(&text, request, listener));
                (full(old), full(new))
            }
            "vary" | "cache-control" | "allow" => {
                let sorted = |text: Option<String>| {
                    let text = text?.to_ascii_lowercase();
                    let words: BTreeSet<&str> =
                        text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
                    (!words.is_empty()).then(|| words.into_iter().collect::<Vec<_>>().join(", "))
                };
                (sorted(old), sorted(new))
            }
            "content-type" => {
                let plain =
                    |text: Option<String>| text.map(|text| text.to_ascii_lowercase().replace("; ", ";"));
                let old = plain(old);
                let new = plain(new);
                let boundary = |text: Option<String>| {
                    text.map(|text| match text.split_once(";boundary=") {
                        Some((kind, _)) => format!("{kind};boundary=…"),
                        None => text,
                    })
                };
                let old = boundary(old);
                let new = boundary(new);
                let with = old.as_ref().map(|old| format!("{old};charset=utf-8"));
                if with == new && with.is_some() {
                    self.record_skipped(CHARSET);
                    return (new.clone(), new);
                }
                (old, new)
            }
            _ => (old, new),
        }
    }

    /// Returns the content, decompressed and with multipart boundaries replaced.
    fn comparable_content(&mut self, response: &ServerResponse) -> Vec<u8> {
        if response.field("content-encoding").as_deref() == Some("gzip") {
            self.record_skipped(COMPRESSED_BYTES);
            let mut plain = Vec::new();
            let limit = crate::message::CONTENT_BYTES_MAX as u64;
            let decoded =
                flate2::read::GzDecoder::new(response.content.as_slice()).take(limit).read_to_end(&mut plain);
            return if decoded.is_ok() { plain } else { response.content.clone() };
        }
        let kind = response.field("content-type").unwrap_or_default();
        match kind.split_once("boundary=") {
            None => response.content.clone(),
            Some((_, boundary)) => {
                let text = String::from_utf8_lossy(&response.content);
                let text =
                    text.replace(boundary.trim_matches('"'), "BOUNDARY").replace("; charset=utf-8", "");
                let mut lines: Vec<String> = text.split("\r\n").map(str::to_owned).collect();
                lines.retain(|line| !line.is_empty());
                lines.join("\n").to_lowercase().into_bytes()
            }
        }
    }

    fn compare_upstream_requests(
        &mut self,
        old: &[ReceivedRequest],
        new: &[ReceivedRequest],
        found: &mut Vec<UnexplainedDifference>,
    ) {
        let line = |one: &ReceivedRequest| format!("{} {} to {}", one.method, one.target, one.server);
        let servers = |all: &[ReceivedRequest]| all.iter().map(|one| one.server.clone()).collect::<Vec<_>>();
        if servers(old) != servers(new) {
            let list = |all: &[ReceivedRequest]| match all {
                [] => "none".to_owned(),
                _ => all.iter().map(line).collect::<Vec<_>>().join("; "),
            };
            let found_one =
                UnexplainedDifference { aspect: Aspect::UpstreamRequests, old: list(old), new: list(new) };
            found.push(found_one);
            return;
        }
        for (old, new) in old.iter().zip(new) {
            self.compare_upstream_request(old, new, found);
        }
    }

    fn compare_upstream_request(
        &mut self,
        old: &ReceivedRequest,
        new: &ReceivedRequest,
        found: &mut Vec<UnexplainedDifference>,
    ) {
        let mut note = |aspect: Aspect, old: String, new: String| {
            if old != new {
                found.push(UnexplainedDifference { aspect, old, new });
            }
        };
        let trouble = |one: &ReceivedRequest| one.failure.clone().unwrap_or_else(|| "-".to_owned());
        note(Aspect::UpstreamRequests, trouble(old), trouble(new));
        note(Aspect::UpstreamMethod, old.method.clone(), new.method.clone());
        let a = normalize_target(&old.target);
        let b = normalize_target(&new.target);
        let is_spelling = a == b && old.target != new.target;
        note(Aspect::UpstreamTarget, a, b);
        note(Aspect::UpstreamContent, format_content(&old.content), format_content(&new.content));
        if is_spelling {
            self.record_skipped(TARGET_SPELLING);
        }
        let fields = |one: &ReceivedRequest| {
            let mut all: BTreeMap<String, String> = BTreeMap::new();
            for (name, last) in &one.fields {
                // If a variable is sent twice, the last value counts; nginx sends one for each line of a field, which is one
                // variable with commas here.
                let value = if is_fastcgi_variable(name) && !name.starts_with("HTTP_") {
                    last.clone()
                } else {
                    joined_values(&one.fields, name).unwrap_or_default()
                };
                all.insert(name.clone(), mask_addresses(&value));
            }
            all
        };
        let old = fields(old);
        let new = fields(new);
        let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for name in names {
            let a = old.get(name);
            let b = new.get(name);
            if a == b || self.should_skip_upstream_field(name, a, b) {
                continue;
            }
            let shown = |value: Option<&String>| value.map_or("-", String::as_str).to_owned();
            found.push(UnexplainedDifference {
                aspect: Aspect::UpstreamField(name.to_ascii_lowercase()),
                old: shown(a),
                new: shown(b),
            });
        }
    }

    fn should_skip_upstream_field(&mut self, name: &str, old: Option<&String>, new: Option<&String>) -> bool {
        match name {
            "connection" | "keep-alive" | "transfer-encoding" | "content-length" | "via" => true,
            "te" | "HTTP_TE" => {
                self.record_skipped(UPSTREAM);
                true
            }
            "x-request-id" | "HTTP_X_REQUEST_ID"
                if old.is_none_or(|old| is_request_id(old)) && new.is_none_or(|new| is_request_id(new)) =>
            {
                self.record_skipped(UPSTREAM);
                true
            }
            "x-forwarded-for"
            | "x-forwarded-proto"
            | "x-forwarded-host"
            | "HTTP_X_FORWARDED_FOR"
            | "HTTP_X_FORWARDED_PROTO"
            | "HTTP_X_FORWARDED_HOST"
            | "HTTP_VIA"
                if old.is_none() =>
            {
                self.record_skipped(FORWARDED);
                true
            }
            "SERVER_SOFTWARE" | "SERVER_ADDR" | "REMOTE_PORT" | "GATEWAY_INTERFACE" | "HTTP_CONNECTION" => {
                self.record_skipped(FASTCGI);
                true
            }
            "SERVER_PORT" | "HTTP_CONTENT_LENGTH" | "HTTP_CONTENT_TYPE" | "HTTP_TRANSFER_ENCODING" => {
                self.record_skipped(FASTCGI);
                true
            }
            // Both spellings mean no content.
            "CONTENT_LENGTH" if old.is_none_or(|old| matches!(old.as_str(), "" | "0")) => {
                new.is_none_or(|new| matches!(new.as_str(), "" | "0"))
            }
            // An empty variable is equivalent to a missing one.
            _ if is_fastcgi_variable(name) => {
                old.is_none_or(String::is_empty) && new.is_none_or(String::is_empty)
            }
            _ => false,
        }
    }
}

/// Whether a name is that of a FastCGI variable instead of a field.
fn is_fastcgi_variable(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// Whether a value looks like a request ID generated by the server.
fn is_request_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_nginx_page(content: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&content[..content.len().min(2000)]);
    text.contains("<hr><center>nginx")
}

/// Replaces the addresses of both servers by the same placeholder.
fn mask_addresses(text: &str) -> String {
    text.replace(OLD_ADDRESS, "127.0.0.x").replace(NEW_ADDRESS, "127.0.0.x")
}

/// Normalizes percent-encoding and removes an empty query.
fn normalize_target(target: &str) -> String {
    let mut out = String::new();
    let mut rest = target;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let octet = rest.get(at + 1..at + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let Some(octet) = octet else {
            out.push('%');
            rest = &rest[at + 1..];
            continue;
        };
        if octet.is_ascii_alphanumeric() || b"-._~".contains(&octet) {
            out.push(char::from(octet))
        } else {
            out.push_str(&format!("%{octet:02X}"))
        }
        rest = &rest[at + 3..];
    }
    out.push_str(rest);
    out.strip_suffix('?').map(str::to_owned).unwrap_or(out)
}

/// Returns the absolute URL of a redirect, without the port of the listener.
fn absolute_redirect(text: &str, request: &VerifyRequest, listener: &ScratchListener) -> String {
    let host = request.host.as_deref().unwrap_or("127.0.0.x").to_ascii_lowercase();
    let scheme = if listener.tls { "https" } else { "http" };
    let path = request.target.split('?').next().unwrap_or("");
    let folder = &path[..path.rfind('/').map_or(0, |slash| slash + 1)];
    let full = match text {
        _ if text.starts_with("//") || text.contains("://") => text.to_owned(),
        _ if text.starts_with('/') => format!("{scheme}://{host}{text}"),
        _ => format!("{scheme}://{host}{folder}{}", text.strip_prefix("./").unwrap_or(text)),
    };
    let full = full.replacen(&format!(":{}/", listener.port), "/", 1);
    // nginx uses the host without port and trailing dot.
    let bare = host.rsplit_once(':').map_or(host.as_str(), |(bare, _)| bare).trim_end_matches('.');
    match full.strip_prefix(&format!("{scheme}://{host}")) {
        Some(rest) => format!("{scheme}://{bare}{rest}"),
        None => full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding_of_targets_is_normalized() {
        for (target, expected) in
            [("/%76%7e", "/v~"), ("/%c3%2f", "/%C3%2F"), ("/a?", "/a"), ("/a?b", "/a?b"), ("/%zz%", "/%zz%")]
        {
            assert_eq!(normalize_target(target), expected);
        }
    }

    #[test]
    fn fastcgi_variables_are_compared_by_meaning() {
        let mut comparison = ResponseComparison::default();
        let received = |fields: &[(&str, &str)]| ReceivedRequest {
            fields: fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..ReceivedRequest::default()
        };
        let old = received(&[
            ("SCRIPT_NAME", "/a"),
            ("SCRIPT_NAME", "/index.php"),
            ("CONTENT_LENGTH", "0"),
            ("PATH_INFO", ""),
            ("HTTP_CONTENT_TYPE", "text/plain"),
            ("QUERY_STRING", "a=1"),
        ]);
        let new = received(&[("SCRIPT_NAME", "/index.php"), ("CONTENT_LENGTH", ""), ("QUERY_STRING", "a=2")]);
        let mut found = Vec::new();
        comparison.compare_upstream_request(&old, &new, &mut found);
        let aspects: Vec<String> = found.iter().map(|one| one.aspect.to_string()).collect();
        assert_eq!(aspects, ["upstream field query_string"]);
    }
}

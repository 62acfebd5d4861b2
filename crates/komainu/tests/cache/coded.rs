//! Stored responses in other codings: encoded once and kept next to the content, or sent as a delta against a
//! dictionary of the client (RFC 9842).

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::delta::{decoded, has, versions};
use crate::origin::{Ask, Origin, answer};
use crate::rig::{Answer, Folder, Rig};

const FIELDS: &str = "Content-Type: text/javascript\r\nCache-Control: max-age=3600\r\nETag: \"tag\"\r\n";

/// Starts an origin that sends the first version until the flag is set, then the second, and a cache in front
/// of it.
fn cached(fields: &'static str, route: &str) -> (Origin, Rig, Arc<AtomicBool>) {
    cached_by(fields, "{ purge = { from = [\"127.0.0.1\", \"::1\"] } }", route)
}

/// Like `cached`, with another cache policy.
fn cached_by(fields: &'static str, cache: &str, route: &str) -> (Origin, Rig, Arc<AtomicBool>) {
    let next = Arc::new(AtomicBool::new(false));
    let (is_next, (old, new)) = (next.clone(), versions());
    let origin = Origin::start(move |_: &Ask| {
        answer("200 OK", fields, if is_next.load(Ordering::SeqCst) { &new } else { &old })
    });
    let text = format!(
        r"
        threads = 1
        [dictionaries]
        without_tls = true
        [[route]]
        proxy = {{ to = {:?} }}
        cache = {cache}
        {route}
        ",
        origin.url
    );
    (origin, Rig::config(Folder::new(), &text), next)
}

fn asks(origin: &Origin) -> usize {
    origin.seen.lock().unwrap().asks.len()
}

/// Decodes the content of a stored response.
fn plain(answer: &Answer) -> String {
    let mut text = String::new();
    let bytes = &answer.body[..];
    match answer.field("Content-Encoding") {
        None => text = answer.text(),
        Some("gzip") => _ = flate2::read::GzDecoder::new(bytes).read_to_string(&mut text).unwrap(),
        Some("br") => _ = brotli::Decompressor::new(bytes, 4096).read_to_string(&mut text).unwrap(),
        Some("zstd") => text = String::from_utf8(zstd::stream::decode_all(bytes).unwrap()).unwrap(),
        other => panic!("{other:?}"),
    }
    text
}

#[test]
fn one_stored_response_serves_all_content_codings() {
    let fields = "Content-Type: text/javascript\r\nCache-Control: max-age=3600\r\nETag: \"tag\"\r\nVary: Accept-Encoding\r\n";
    let (origin, rig, _) = cached(fields, "compress = true");
    let script = versions().0;
    rig.ask("/", "Accept-Encoding: br\r\n").expect_status(200).expect_field("Content-Encoding", "br");
    assert!(origin.seen.lock().unwrap().asks[0].field("Accept-Encoding").is_empty());
    for codings in ["gzip", "br", "zstd", "gzip;q=0.5, br", "identity"] {
        let get = |fields: &str| rig.ask("/", &format!("Accept-Encoding: {codings}\r\n{fields}"));
        let first = get("");
        let second = get("");
        first.expect_hit();
        assert_eq!(plain(&first), script, "{codings}");
        assert_eq!(first.body, second.body, "{codings}: made once");
        // A response that is compressed while it is sent has no `Content-Length`.
        second.expect_field("Content-Length", &second.body.len().to_string());
        second.expect_field("Vary", "Accept-Encoding");
        let is_coded = second.field("Content-Encoding").is_some();
        assert!(!is_coded || second.body.len() < script.len() / 2, "{codings}");
        second.expect_field("ETag", if is_coded { "W/\"tag\"" } else { "\"tag\"" });
        get("If-None-Match: W/\"tag\"\r\n").expect_status(304).expect_field("Vary", "Accept-Encoding");
        get("Range: bytes=0-9\r\n").expect(206, &script[..10]).expect_no_field("Content-Encoding");
        let head = "HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
        let head = rig.send(&format!("{head}Accept-Encoding: {codings}\r\n\r\n"));
        head.expect(200, "").expect_field("Content-Length", &second.body.len().to_string());
    }
    assert_eq!(asks(&origin), 1);
}

#[test]
fn cached_response_is_sent_as_dictionary_delta() {
    let (old, new) = versions();
    let (origin, rig, next) = cached(FIELDS, "compress = true\nuse_as_dictionary = true");
    let both = "Accept-Encoding: br, dcb, dcz\r\n";
    for _ in 0..2 {
        // Once on the way into the cache, once from it.
        rig.ask("/app.js", both).expect_field("Use-As-Dictionary", "match=\"/app.js\", type=raw");
    }
    next.store(true, Ordering::SeqCst);
    rig.send("PURGE /app.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect_status(200);
    let first = rig.ask("/app.js", &has(&old, "br, dcb"));
    first.expect_field("Content-Encoding", "br");
    for (codings, coding) in [("br, dcb, dcz", "dcb"), ("br, dcz", "dcz"), ("br, dcb", "dcb")] {
        let delta = rig.ask("/app.js", &has(&old, codings));
        delta.expect_hit().expect_status(200).expect_field("Content-Encoding", coding);
        assert_eq!(decoded(&delta, &old), new);
        assert!(delta.body.len() < 400, "{codings}: {} of {}", delta.body.len(), new.len());
        delta.expect_field("ETag", "W/\"tag\"");
        let vary: Vec<&str> = delta.head.lines().filter_map(|line| line.strip_prefix("Vary: ")).collect();
        assert_eq!(vary, ["Accept-Encoding", "Available-Dictionary"]);
    }
    rig.ask("/app.js", &has("x", "br, dcb")).expect_field("Content-Encoding", "br");
    let tag = format!("{}If-None-Match: W/\"tag\"\r\n", has(&old, "br, dcb"));
    rig.ask("/app.js", &tag).expect_status(304);
    assert_eq!(asks(&origin), 2);
}

#[test]
fn personal_responses_are_not_used_as_dictionaries() {
    let private = "Content-Type: text/javascript\r\nCache-Control: private, max-age=3600\r\n";
    let by_cookie = "Content-Type: text/javascript\r\nCache-Control: max-age=3600\r\nVary: Cookie\r\n";
    let key = "{ rule = [{ key = { cookie = \"user\" } }] }";
    let credentials = "{ rule = [{ with_authorization = true, key = { header = \"Authorization\" } }] }";
    for (fields, cache) in [(private, "true"), (by_cookie, "true"), (FIELDS, key), (FIELDS, credentials)] {
        let (_origin, rig, next) = cached_by(fields, cache, "compress = true\nuse_as_dictionary = true");
        let old = versions().0;
        for user in ["a", "a", "b", "b"] {
            next.store(user == "b", Ordering::SeqCst);
            let found = rig.ask("/app.js", &format!("Cookie: user={user}\r\n{}", has(&old, "br, dcb")));
            found.expect_field("Content-Encoding", "br").expect_no_field("Use-As-Dictionary");
        }
    }
}

//! Compression with dictionaries held by clients (RFC 9842).

use crate::delta::{decoded, has, versions};
use crate::rig::{Folder, Rig};

const SETTINGS: &str = r#"
    threads = 1
    [dictionaries]
    without_tls = true
    [open_files]
    recheck = "0s"
"#;

/// Serves a directory with `app.js`, with these settings in its route.
fn files(script: &str, route: &str) -> Rig {
    let folder = Folder::new();
    folder.write("public/app.js", script);
    let text = format!(
        r#"
        {SETTINGS}
        [[route]]
        path = "/*"
        files = {{ root = "public", cache_control = "max-age=3600" }}
        {route}
        "#
    );
    Rig::config(folder, &text)
}

#[test]
fn new_version_of_a_file_is_sent_as_dictionary_delta() {
    let (old, new) = versions();
    let rig = files(&old, "compress = true\nuse_as_dictionary = true\n");
    let first = rig.ask("/app.js", "Accept-Encoding: gzip, br, dcb, dcz\r\n");
    first.expect_status(200).expect_field("Content-Encoding", "br");
    first.expect_field("Use-As-Dictionary", "match=\"/app.js\", type=raw");
    first.expect_field("Vary", "Accept-Encoding, Available-Dictionary");
    // The new file is renamed into place, as in a deployment.
    rig.folder.write("public/next.js", &new);
    std::fs::rename(rig.folder.at("public/next.js"), rig.folder.at("public/app.js")).unwrap();
    for (codings, coding) in
        [("gzip, br, dcb", "dcb"), ("gzip, br, zstd, dcz", "dcz"), ("dcb;q=0.5, dcz", "dcz")]
    {
        let delta = rig.ask("/app.js", &has(&old, codings));
        delta.expect_status(200).expect_field("Content-Encoding", coding);
        delta.expect_field("Vary", "Accept-Encoding, Available-Dictionary");
        assert_eq!(decoded(&delta, &old), new);
        assert!(delta.body.len() < 400, "{codings}: {} of {}", delta.body.len(), new.len());
        delta
            .expect_field("Use-As-Dictionary", "match=\"/app.js\", type=raw")
            .expect_no_field("Accept-Ranges");
        let tag = delta.field("ETag").unwrap();
        assert!(tag.starts_with("W/"), "{tag}");
        let known = format!("{}If-None-Match: {tag}\r\n", has(&new, codings));
        rig.ask("/app.js", &known).expect_status(304);
        let head = format!(
            "HEAD /app.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}\r\n",
            has(&old, codings)
        );
        rig.send(&head).expect(200, "").expect_field("Content-Encoding", coding);
    }
    let ordinary = |what: &str, fields: &str, status, coding| {
        let found = rig.ask("/app.js", fields);
        assert_eq!(
            (found.status(), found.field("Content-Encoding")),
            (status, coding),
            "{what}: {}",
            found.head
        );
    };
    let br = Some("br");
    ordinary("a content that nobody was sent", &has("x", "br, dcb"), 200, br);
    ordinary("no coding for it", &has(&old, "br"), 200, br);
    ordinary("another coding is preferred", &has(&old, "br, dcb;q=0.9"), 200, br);
    ordinary("it is refused", &has(&old, "br;q=0.5, dcb;q=0"), 200, br);
    ordinary("a part", &format!("{}Range: bytes=0-9\r\n", has(&old, "br, dcb")), 206, None);
    let other_site = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n";
    ordinary("it must not be read", &format!("{}{other_site}", has(&old, "br, dcb")), 200, br);
    let request =
        format!("GET /app.js HTTP/1.1\r\nHost: other\r\nConnection: close\r\n{}\r\n", has(&old, "br, dcb"));
    rig.send(&request).expect_field("Content-Encoding", "br");
}

#[test]
fn rules_select_dictionaries_and_their_matches() {
    let (old, new) = versions();
    let rules = r#"
        [[route.use_as_dictionary]]
        path = "/v*.js"
        match = "/v*.js"
        match_dest = ["script", "style"]
        id = "app"
    "#;
    let rig = files(&old, rules);
    rig.folder.write("public/v1.js", &old).write("public/v2.js", &new).write("public/v.png", &old);
    let first = rig.ask("/v1.js", "");
    first.expect_field(
        "Use-As-Dictionary",
        "match=\"/v*.js\", match-dest=(\"script\" \"style\"), id=\"app\", type=raw",
    );
    rig.ask("/app.js", "")
        .expect_no_field("Use-As-Dictionary")
        .expect_field("Vary", "Accept-Encoding, Available-Dictionary");
    let delta = rig.ask("/v2.js", &has(&old, "dcb"));
    delta.expect_field("Content-Encoding", "dcb");
    assert_eq!(decoded(&delta, &old), new);
    rig.ask("/v.png", &has(&old, "dcb")).expect_no_field("Content-Encoding").expect_no_field("Vary");
}

/// Hash of "myPassword".
const PASSWORD: &str = "$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC";
const ALICE: &str = "Authorization: Basic YWxpY2U6bXlQYXNzd29yZA==\r\n";

/// A client that knows only the hash of a guarded dictionary, as from Subresource Integrity, learns nothing of it: not that
/// the server has it, and not from the length of what is compressed with it.
#[test]
fn guarded_dictionaries_are_used_only_behind_their_guard() {
    let (secret, open) = versions();
    let folder = Folder::new();
    folder.write("users", format!("alice:{PASSWORD}\n"));
    folder.write("public/app.js", &open).write("public/staff/app.js", &secret);
    folder.write("public/staff/new.js", &open).write("public/allies/new.js", &open);
    let guarded = |path: &str, guard: &str| {
        format!(
            r#"
            [[route]]
            path = "{path}"
            {guard}
            files = {{ root = "public", cache_control = "max-age=3600" }}
            compress = true
            use_as_dictionary = {{ match = "/*" }}
            "#
        )
    };
    let text = [
        SETTINGS.to_owned(),
        guarded("/staff/*", r#"auth = { basic = "users" }"#),
        guarded("/allies/*", r#"auth = { basic = "users", realm = "another" }"#),
        guarded("/*", ""),
    ]
    .concat();
    let rig = Rig::config(folder, &text);
    // The secret becomes a dictionary.
    let staff = |path: &str, fields: &str| rig.ask(path, &format!("{ALICE}{fields}"));
    staff("/staff/app.js", "")
        .expect(200, &secret)
        .expect_field("Use-As-Dictionary", "match=\"/*\", type=raw");
    let known = has(&secret, "br, dcb");
    let refused = rig.ask("/staff/app.js", &known);
    refused.expect_status(401).expect_no_field("Use-As-Dictionary").expect_no_field("Content-Encoding");
    rig.ask("/staff/new.js", &known).expect_status(401).expect_no_field("Content-Encoding");
    // Where other clients get responses, it is unknown like any other hash, also to clients that have credentials.
    for (path, fields) in [("/app.js", ""), ("/app.js", ALICE), ("/allies/new.js", ALICE)] {
        let answer = rig.ask(path, &format!("{fields}{known}"));
        answer.expect_status(200).expect_field("Content-Encoding", "br");
    }
    let delta = staff("/staff/new.js", &known);
    delta.expect_status(200).expect_field("Content-Encoding", "dcb");
    assert_eq!(decoded(&delta, &secret), open);
}

#[test]
fn dictionaries_are_used_only_over_tls() {
    let (old, _) = versions();
    let folder = Folder::new();
    folder.write("public/app.js", &old);
    let text = r#"
        threads = 1
        [[route]]
        files = { root = "public", cache_control = "max-age=60" }
        use_as_dictionary = true
    "#;
    let rig = Rig::config(folder, text);
    if crate::rig::through_tls() {
        rig.ask("/app.js", "").expect_field("Use-As-Dictionary", "match=\"/app.js\", type=raw");
        rig.ask("/app.js", &has(&old, "dcb")).expect_field("Content-Encoding", "dcb");
    } else {
        rig.ask("/app.js", "").expect_no_field("Use-As-Dictionary");
        rig.ask("/app.js", &has(&old, "dcb")).expect_no_field("Content-Encoding");
    }
}

//! Purging the cache: by `komainu cache`, by the PURGE method, and by groups; and the cache's statistics.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::origin::{Ask, Origin, answer};
use crate::rig;
use crate::rig::{Answer, Folder, Rig, eventually, komainu, listen, read_answer, text};
use serde_json::Value;

/// Runs `komainu cache`; returns whether it succeeded, and its output.
fn cache(rig: &Rig, arguments: &[&str]) -> (bool, String) {
    let mut command = komainu();
    command.arg("cache").args(arguments).args(["--pid", &rig.child.id().to_string()]);
    let done = command.env("RUNTIME_DIRECTORY", rig.folder.at("run")).output().unwrap();
    (done.status.success(), text(&done.stdout) + &text(&done.stderr))
}

#[track_caller]
fn says(rig: &Rig, arguments: &[&str], parts: &[&str]) {
    let (succeeds, said) = cache(rig, arguments);
    assert!(succeeds, "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} in {said}");
    }
}

/// Starts an origin that numbers its responses; `/news?tags=a+b` has these tags, `/news?group=a` is in that
/// group.
fn origin() -> Origin {
    let count = AtomicUsize::new(0);
    Origin::start(move |ask: &Ask| {
        let of = |name: &str| {
            let query = ask.line().split(' ').nth(1).unwrap().split('?').nth(1).unwrap_or_default();
            query.strip_prefix(name).map(|value| value.replace('+', " "))
        };
        let mut fields = "Cache-Control: max-age=3600\r\nETag: \"a\"\r\n".to_owned();
        fields += &of("tags=").map(|tags| format!("Surrogate-Key: {tags}\r\n")).unwrap_or_default();
        fields += &of("group=").map(|group| format!("Cache-Groups: \"{group}\"\r\n")).unwrap_or_default();
        fields += &of("private").map(|_| "Set-Cookie: a=b\r\n".to_owned()).unwrap_or_default();
        let is_post = ask.line().starts_with("POST");
        let changed = of("group=").filter(|_| is_post);
        fields +=
            &changed.map(|group| format!("Cache-Group-Invalidation: \"{group}\"\r\n")).unwrap_or_default();
        answer("200 OK", &fields, &format!("{}", count.fetch_add(1, Ordering::SeqCst)))
    })
}

/// The URL of a path as the rig's clients request it.
fn url(rig: &Rig, path: &str) -> String {
    format!("{}://localhost{path}", rig.scheme())
}

#[test]
fn cache_command_purges_and_reports_counts() {
    let origin = origin();
    let rig = Rig::controlled(&format!(
        r#"
        [[route]]
        proxy = "{}"
        cache = true
        "#,
        origin.url
    ));
    let fill = |paths: &[&str]| paths.iter().for_each(|path| _ = rig.get(path).expect_status(200));
    let hits = |paths: &[&str]| -> Vec<bool> { paths.iter().map(|path| rig.get(path).is_hit()).collect() };
    let all = ["/a", "/a?x", "/b?tags=t+u", "/c?tags=u"];
    fill(&all);
    rig.get("/b?tags=t+u").expect_no_field("Surrogate-Key");
    assert_eq!(hits(&all), [true; 4]);
    says(&rig, &["purge", &url(&rig, "/a")], &["purged: 1 response ("]);
    assert_eq!(hits(&all), [false, true, true, true]);
    says(&rig, &["purge", "--tag", "u", "--tag", "nothing"], &["purged: 2 responses ("]);
    assert_eq!(hits(&all), [true, true, false, false]);
    says(&rig, &["purge", "--prefix", "//localhost/a"], &["purged: 2 responses ("]);
    assert_eq!(hits(&all), [false, false, true, true]);
    says(&rig, &["purge", "--all"], &["purged: 4 responses ("]);
    says(&rig, &["purge", "--all"], &["purged: 0 responses ("]);
    fill(&all);
    // A stale response is kept and revalidated at the origin.
    says(&rig, &["purge", "--soft", "//localhost/a"], &["made stale: 1 response ("]);
    let again = rig.get("/a");
    assert_eq!(origin.last().field("If-None-Match"), ["\"a\""], "{}", again.head);
    let (succeeds, said) = cache(&rig, &["purge", "localhost/a"]);
    assert!(!succeeds && said.contains("is no URL: write http://"), "{said}");
    let (succeeds, said) = cache(&rig, &["purge"]);
    assert!(!succeeds && said.contains("<URL>"), "{said}");
}

#[test]
fn cache_why_and_stats_explain_hits_and_misses() {
    let origin = origin();
    let rig = Rig::controlled(&format!(
        r#"
        [[route]]
        proxy = "{}"
        cache = true
        "#,
        origin.url
    ));
    for path in ["/a?tags=t+u", "/a?tags=t+u", "/b?private", "/b?private"] {
        rig.get(path).expect_status(200);
    }
    let why = |path: &str, parts: &[&str]| says(&rig, &["why", &url(&rig, path)], parts);
    let stored = ["is a hit", "status 200", " 1 hits", "max-age=3600", "tags: t u", "it was stored"];
    why("/a?tags=t+u", &stored);
    why("/b?private", &["is a miss", "it was not stored: the response sets a cookie"]);
    why("/c", &["nothing is remembered"]);
    says(&rig, &["purge", &url(&rig, "/a?tags=t+u")], &["1 response"]);
    why("/a?tags=t+u", &["is a miss", "it was removed by a purge"]);
    let (_, said) = cache(&rig, &["stats", "--json"]);
    let stats: Value = serde_json::from_str(&said).unwrap();
    let figures = ["hits", "misses", "stored", "removed", "evicted", "purges", "objects"]
        .map(|key| stats[key].as_u64().unwrap());
    assert_eq!(figures, [1, 3, 1, 1, 0, 1, 0], "{stats:#}");
    assert_eq!(stats["refused"]["the response sets a cookie"], 2, "{stats:#}");
    says(&rig, &["stats"], &["holds 0 responses", "the response sets a cookie"]);
    let none = Rig::controlled(&format!("[[route]]\nproxy = \"{}\"\n", origin.url));
    let (succeeds, said) = cache(&none, &["stats"]);
    assert!(!succeeds && said.contains("no route has `cache`"), "{said}");
}

#[test]
fn response_requested_before_a_purge_is_not_stored_after_it() {
    let (came, comes) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let goes = std::sync::Mutex::new(goes);
    let origin = Origin::start(move |ask| {
        if ask.line().contains("/slow") {
            came.send(()).unwrap();
            goes.lock().unwrap().recv().unwrap();
        }
        answer("200 OK", "Cache-Control: max-age=3600\r\nxkey: t\r\n", "body")
    });
    let rig = Rig::controlled(&format!(
        r#"
        [[route]]
        proxy = "{}"
        cache = true
        "#,
        origin.url
    ));
    for purge in [
        &["--tag", "t"][..],
        &["--all"],
        &["//localhost/slow"],
        &["--prefix", "//localhost/"],
        &["--tag", "other"],
    ] {
        let mut client = rig.connect();
        client.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        comes.recv().unwrap();
        says(&rig, &[&["purge"][..], purge].concat(), &["purged: 0 responses"]);
        go.send(()).unwrap();
        read_answer(&mut client).expect(200, "body");
        let is_of_it = purge != ["--tag", "other"];
        let outcome = if is_of_it { "the URL was purged while" } else { "it was stored" };
        let seen = || cache(&rig, &["why", &url(&rig, "/slow")]).1.contains(outcome);
        eventually("its end is remembered", seen);
    }
    assert!(rig.get("/slow").is_hit(), "a purge of another tag had no part in it");
}

const TOKEN: &str = "0123456789abcdef-a-token";

fn purge_as(rig: &Rig, path: &str, fields: &str) -> Answer {
    rig.send(&format!("PURGE {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n"))
}

#[test]
fn purge_method_requires_authorization() {
    let origin = origin();
    let folder = Folder::new();
    folder.write("token", format!("{TOKEN}\n"));
    let config = format!(
        r#"
        [[route]]
        path = "/open/*"
        proxy = "{0}"
        cache = true

        [[route]]
        path = "/far/*"
        proxy = "{0}"
        cache = {{ purge = {{ token = "{TOKEN}", from = ["192.0.2.1"] }} }}

        [[route]]
        path = "/near/*"
        proxy = "{0}"
        cache = {{ purge = {{ from = ["127.0.0.1"] }} }}

        [[route]]
        proxy = "{0}"
        cache = {{ purge = {{ token_file = "{1}" }} }}
        "#,
        origin.url,
        folder.at("token").display()
    );
    let rig = Rig::controlled(&config);
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let with_token = |path: &str, more: &str| purge_as(&rig, path, &format!("{token}{more}"));
    let fill = |path: &str| {
        rig.get(path);
        assert!(rig.get(path).is_hit(), "{path}");
    };
    let asked = || origin.asks().len();
    fill("/a");
    let before = asked();
    for wrong in [
        "",
        "Authorization: Bearer 0123456789abcdef-a-tokem\r\n",
        "Authorization: Basic abc\r\n",
        "Authorization: Bearer\r\n",
    ] {
        purge_as(&rig, "/a", wrong).expect_status(403);
    }
    purge_as(&rig, "/far/a", &token).expect_status(403);
    purge_as(&rig, "/near/a", "X-Forwarded-For: 127.0.0.1\r\n").expect_status(403);
    for field in [
        "X-Real-IP: 1.2.3.4",
        "CF-Connecting-IP: 1.2.3.4",
        "x-forwarded-port: 80",
        "Via: 1.1 a",
        "True-Client-IP: a",
    ] {
        purge_as(&rig, "/near/a", &format!("{field}\r\n")).expect_status(403);
    }
    eventually("refusals are logged", || {
        [
            "PURGE refused: the token is wrong",
            "PURGE refused: there is no token",
            "`from`",
            "`trusted_proxies`",
        ]
        .iter()
        .all(|part| rig.reported().contains(part))
    });
    rig.get("/a").expect_hit();
    let done = with_token("/a", "");
    let said: Value = serde_json::from_str(&done.expect_status(200).text()).unwrap();
    assert!(said["objects"] == 1 && said["bytes"].as_u64() > Some(0), "{said}");
    rig.get("/a").expect_no_hit();
    fill("/near/a");
    let near = purge_as(&rig, "/near/a", "");
    assert!(near.expect_status(200).text().contains("\"objects\":1"));
    // By tags, for this host only.
    fill("/b?tags=t+u");
    rig.send("GET /b?tags=t HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n");
    assert!(with_token("/any", "Surrogate-Key: t\r\n").text().contains("\"objects\":1"));
    rig.get("/b?tags=t+u").expect_no_hit();
    let other = rig.send("GET /b?tags=t HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n");
    assert!(other.is_hit(), "{}", other.head);
    with_token("/any", "Surrogate-Key: \r\n").expect_status(400);
    with_token("/any", &format!("xkey: {}\r\n", "t ".repeat(257))).expect_status(400);
    // A soft purge keeps the response and revalidates it.
    fill("/c");
    assert!(with_token("/c", "Soft-Purge: 1\r\n").text().contains("\"objects\":1"));
    rig.get("/c");
    assert_eq!(origin.last().field("If-None-Match"), ["\"a\""]);
    assert!(origin.asks().iter().all(|ask| !ask.line().starts_with("PURGE")), "before {before}");
    // Without `purge`, PURGE is a method like any other.
    purge_as(&rig, "/open/a", "").expect_status(200);
    assert!(origin.last().line().starts_with("PURGE /open/a "));
}

#[test]
fn purge_with_two_authorization_fields_is_rejected() {
    let origin = origin();
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            proxy = "{}"
            cache = {{ purge = {{ token = "{TOKEN}" }} }}
            "#,
            origin.url
        ),
    );
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    for other in ["Bearer 0123456789abcdef-a-tokem", "Basic abc", ""] {
        let wrong = format!("Authorization: {other}\r\n");
        for fields in [format!("{right}{wrong}"), format!("{wrong}{right}"), format!("{right}{right}")] {
            purge_as(&rig, "/a", &fields).expect_status(400);
        }
    }
    purge_as(&rig, "/a", &right).expect_status(200);
}

#[test]
fn purge_token_file_readable_only_by_owner_is_accepted() {
    let origin = origin();
    for kind in rig::kinds() {
        let folder = Folder::new();
        folder.write("token", TOKEN);
        std::fs::set_permissions(folder.at("token"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let config = |token: &str| {
            format!(
                r#"
                {}
                {kind}
                [[route]]
                proxy = "{}"
                cache = {{ purge = {{ token_file = "{token}" }} }}
                "#,
                listen(&folder),
                origin.url
            )
        };
        folder.write("komainu.toml", config("token"));
        folder.write("short.toml", config("short")).write("short", "too-short");
        let start = |file: &str| {
            let mut command = komainu();
            command.arg("start").arg("-c").arg(folder.at(file)).env("RUNTIME_DIRECTORY", folder.at("run"));
            command
        };
        let refused = start("short.toml").output().unwrap();
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains("this token is too short"), "{kind:?}: {said}");
        let command = start("komainu.toml");
        let rig = Rig::start(command, folder);
        rig.get("/a");
        purge_as(&rig, "/a", "Authorization: Bearer 0123456789abcdef-a-tokem\r\n").expect_status(403);
        let done = purge_as(&rig, "/a", &format!("Authorization: Bearer {TOKEN}\r\n"));
        assert!(done.expect_status(200).text().contains("\"objects\":1"), "{kind:?}: {}", done.text());
        says(&rig, &["stats", "--json"], &["\"purges\": 1"]);
    }
}

#[test]
fn many_purges_keep_unrelated_responses() {
    let origin = origin();
    let rig = Rig::controlled(&format!(
        r#"
        [[route]]
        proxy = "{}"
        cache = {{ purge = {{ token = "{TOKEN}" }} }}
        "#,
        origin.url
    ));
    rig.get("/kept");
    let mut client = rig.connect();
    let purge = |n: usize| {
        let tag = if n.is_multiple_of(4) { format!("xkey: t{n}\r\n") } else { String::new() };
        format!("PURGE /{n} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n{tag}\r\n")
    };
    for batch in 0..40 {
        let requests: String = (0..50).map(|n| purge(batch * 50 + n)).collect();
        client.write_all(requests.as_bytes()).unwrap();
        for _ in 0..50 {
            read_answer(&mut client).expect(200, "{\"objects\":0,\"bytes\":0}\n");
        }
        assert!(rig.get("/kept").is_hit(), "{batch}");
    }
    let (_, said) = cache(&rig, &["stats", "--json"]);
    let stats: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((stats["purges"].as_u64(), stats["objects"].as_u64()), (Some(2000), Some(1)), "{stats:#}");
}

#[test]
fn unsafe_request_invalidates_the_named_cache_group() {
    let origin = origin();
    let rig = Rig::controlled(&format!(
        r#"
        [[route]]
        proxy = "{}"
        cache = true
        "#,
        origin.url
    ));
    let send = |method: &str, path: &str, host: &str| {
        let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
        rig.send(&format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{length}Connection: close\r\n\r\n"))
    };
    for (path, host) in
        [("/a?group=g", "localhost"), ("/b?group=h", "localhost"), ("/a?group=g", "other.test")]
    {
        send("GET", path, host).expect_field("Cache-Groups", &format!("\"{}\"", &path[9..]));
        send("GET", path, host).expect_hit();
    }
    send("POST", "/change?group=g", "localhost").expect_status(200);
    send("GET", "/a?group=g", "localhost").expect_no_hit();
    assert!(send("GET", "/b?group=h", "localhost").is_hit(), "another group");
    assert!(send("GET", "/a?group=g", "other.test").is_hit(), "another origin");
    let mut rest = String::new();
    let mut client = rig.connect();
    client.write_all(b"GET /a?group=g HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    client.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("hit"), "{rest}");
}

#[test]
fn cache_command_applies_key_rules_to_urls() {
    let origin = origin();
    let rules = "{ path = \"/short/*\", key = { query = [\"page\"] } }, { key = { ignore_query = [\"utm_*\"], sort_query = true } }";
    let rig = Rig::controlled(&format!(
        r#"
        [[route]]
        proxy = "{}"
        cache = {{ rule = [{rules}] }}
        "#,
        origin.url
    ));
    for (asked, named, other) in [
        ("/short/a?page=1&x=2", "/short/a?x=3&page=1", "/short/a?page=2"),
        ("/b?utm_source=x&c=1&a=2", "/b?a=2&c=1&utm_medium=y", "/b?c=1"),
        ("/c/d/../e", "/c/e?utm_id", "/c/f"),
        ("/g//d/../e", "/g//e?utm_id", "/g/f"),
        ("/x/../d?g=%C3%A4", "/d?g=%C3%A4", "/d"),
    ] {
        for path in [asked, other] {
            rig.get(path).expect_status(200);
            assert!(rig.get(path).is_hit(), "{path}");
        }
        says(&rig, &["why", &url(&rig, named)], &["the request is a hit"]);
        says(&rig, &["purge", &url(&rig, named)], &["purged: 1 response ("]);
        assert!(!rig.get(asked).is_hit() && rig.get(other).is_hit(), "{asked}");
    }
}

#[test]
fn cache_why_names_the_deciding_rule() {
    let origin = origin();
    let rig = Rig::controlled(&format!(
        r#"
        [[route]]
        path = "/plain"
        proxy = "{0}"

        [[route]]
        proxy = "{0}"

        [[route.cache.rule]]
        cookie = "session"
        bypass = true

        [[route.cache.rule]]
        path = "/assets/*"
        ttl = "2h"

        [[route.cache.rule]]
        path = "/never/*"
        store = false
        "#,
        origin.url
    ));
    let text = std::fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    let rules: Vec<usize> =
        (1..).zip(text.lines()).filter(|(_, text)| text.contains("rule")).map(|of| of.0).collect();
    for path in ["/assets/a", "/never/a", "/other", "/plain"] {
        rig.get(path).expect_status(200);
    }
    let says = |arguments: &[&str], wanted: &str| {
        says(&rig, &[&["why", &url(&rig, arguments[0])], &arguments[1..]].concat(), &[wanted]);
    };
    says(&["/assets/a"], &format!("(`ttl` in line {} of the configuration)", rules[1]));
    says(&["/other"], "(Cache-Control: max-age=3600)");
    says(&["/never/a"], &format!("(`store = false` in line {} of the configuration)", rules[2]));
    let passes = format!("passes the cache: `bypass = true` in line {} of the configuration", rules[0]);
    says(&["/other", "-H", "Cookie: session=1"], &passes);
    says(&["/plain"], "passes the cache: the route that answers it has no `cache`");
}

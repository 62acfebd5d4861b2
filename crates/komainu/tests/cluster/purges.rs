//! Purges that reach all servers of a set.

use std::path::Path;
use std::time::Instant;

use crate::origin::{Origin, answer};
use crate::rig::{Folder, Rig, eventually, komainu, text};
use crate::store::Store;

fn server(common: &Path, name: &str, origin: &Origin) -> Rig {
    let folder = Folder::new();
    let text = format!(
        r#"
        {}
        [[route]]
        proxy = "{}"
        cache = {{ purge = {{ from = ["127.0.0.1"] }} }}
        "#,
        Store::table(common, name),
        origin.url
    );
    Rig::config(folder, &text)
}

/// Runs `komainu cache purge`.
fn purge(rig: &Rig, words: &[&str]) -> String {
    let pid = rig.child.id().to_string();
    let output = komainu().args(["cache", "purge"]).args(words).args(["--pid", &pid]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn purges_reach_all_servers_and_are_replayed() {
    let common = Folder::new();
    let origin = Origin::start(|_| answer("200 OK", "Cache-Control: max-age=600\r\nCache-Tag: t\r\n", "x"));
    let store = Store::start(common.path());
    let names = ["one", "two", "three"];
    let servers = names.map(|name| server(common.path(), name, &origin));
    let fill = |path: &str| {
        for rig in &servers {
            rig.get(path).expect(200, "x");
            rig.get(path).expect_hit();
        }
    };
    let method = |rig: &Rig, fields: &str| {
        let head = format!("PURGE /a HTTP/1.1\r\nHost: localhost\r\n{fields}Connection: close\r\n\r\n");
        rig.send(&head).expect_status(200).text()
    };
    eventually("all servers are there", || {
        method(&servers[0], "").contains(r#""applied":["one","three","two"]"#)
    });
    fill("/a");
    let begin = Instant::now();
    let said = method(&servers[0], "");
    println!("a purge was applied by three servers within {:?}", begin.elapsed());
    assert!(
        said.contains(r#""applied":["one","three","two"]"#) && said.contains(r#""missing":[]"#),
        "{said}"
    );
    for rig in &servers {
        rig.get("/a").expect_no_hit();
    }
    for words in [&["//localhost/a"][..], &["--prefix", "//localhost/"], &["--tag", "t"], &["--all"]] {
        fill("/a");
        let said = purge(&servers[1], words);
        assert!(said.contains("applied by one, three, two"), "{said}");
        for rig in &servers {
            rig.get("/a").expect_no_hit();
        }
    }
    fill("/a");
    assert!(purge(&servers[1], &["--soft", "--tag", "t"]).contains("applied by one, three, two"));
    for rig in &servers {
        // What a soft purge has made stale is asked for again.
        rig.get("/a").expect_no_hit();
    }
    fill("/a");
    method(&servers[2], "Cache-Tag: t\r\n");
    servers.iter().for_each(|rig| _ = rig.get("/a").expect_no_hit());

    // The store is killed: a purge applies to one server, and to the others when the store is back.
    fill("/a");
    drop(store);
    for rig in &servers {
        eventually("it is reported", || rig.reported().contains("is away"));
    }
    let said = purge(&servers[0], &["--tag", "t"]);
    assert!(said.contains("as soon as the store of `[cluster]` is there"), "{said}");
    servers[0].get("/a").expect_no_hit();
    servers[1].get("/a").expect_hit();
    let _store = Store::start(common.path());
    for rig in &servers[1..] {
        eventually("the purge arrives", || !rig.get("/a").is_hit());
    }
}

/// Times until three servers have applied a purge, as the answer says. Run alone on the machine, with the binary of a release:
///
/// ```text
/// KOMAINU_TEST_BINARY=$PWD/target/release/komainu cargo test --test cluster -- --ignored --nocapture figures
/// ```
#[test]
#[ignore = "a measurement"]
fn figures_of_purges() {
    const PURGES: usize = 300;
    let common = Folder::new();
    let origin = Origin::start(|_| answer("200 OK", "Cache-Control: max-age=600\r\n", "x"));
    let _store = Store::start(common.path());
    let servers = ["one", "two", "three"].map(|name| server(common.path(), name, &origin));
    let purge = |path: &str| {
        let head = format!("PURGE {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        servers[0].send(&head).expect_status(200).text()
    };
    eventually("all servers are there", || purge("/").contains(r#""applied":["one","three","two"]"#));
    let mut times: Vec<_> = (0..PURGES)
        .map(|at| {
            let path = format!("/{at}");
            servers.iter().for_each(|rig| _ = rig.get(&path).expect_status(200));
            let begin = Instant::now();
            let said = purge(&path);
            let time = begin.elapsed();
            assert!(said.contains(r#""missing":[]"#), "{said}");
            servers.iter().for_each(|rig| _ = rig.get(&path).expect_no_hit());
            time
        })
        .collect();
    times.sort();
    let at = |part: usize| times[(PURGES - 1) * part / 100];
    println!(
        "purges applied by three servers: median {:?}, 99 of 100 within {:?}, longest {:?}",
        at(50),
        at(99),
        at(100)
    );
}

//! Reading and changing configurations by path: formatting and comments of the files are preserved.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use tree::{ConfigTree, TreeError, TreePath};

const MAIN: &str = "\
# The shop.
threads = 2 # two are enough
include = \"sites/*.toml\"

[limits]
body = \"1MiB\"

# The API.
[upstreams.api] # its servers
to = [
    \"http://10.0.0.1\", # the old one
    { url = \"http://10.0.0.2\", weight = 2 },
]

[[site]]
hosts = [\"shop.test\", \"www.shop.test\"]

# Everything else.
[[site.route]]
path = \"/api/*\"
proxy = { upstream = \"api\" }

[[site.route]]
files = \"/srv/shop\"
";
const OTHER: &str = "\
# Another team's.
[limits]
headers = 50
[[site]]
hosts = [\"blog.test\"]
[[site.route]]
respond = \"hello\"
";

fn tree() -> ConfigTree {
    let files = [("main.toml", MAIN), ("sites/blog.toml", OTHER)];
    let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
    ConfigTree::parse(files, &["url", "hosts", "path"], &["include"]).unwrap()
}

fn path(text: &str) -> TreePath {
    TreePath::parse(text).unwrap()
}

/// The file texts after a change; they must parse to the changed tree.
fn changed(change: impl Fn(&mut ConfigTree) -> Result<(), TreeError>) -> (String, String) {
    let mut tree = tree();
    change(&mut tree).unwrap();
    let texts = tree.texts();
    let again = ConfigTree::parse(texts.clone(), &["url", "hosts", "path"], &["include"]).unwrap();
    let root = TreePath::default();
    assert_eq!(again.get(&root).unwrap(), tree.get(&root).unwrap());
    (texts[0].1.clone(), texts[1].1.clone())
}

fn put(at: &str, value: Value) -> (String, String) {
    let (first, second) = changed(|tree| tree.put(&path(at), &value));
    let again = ConfigTree::parse(
        [("a".to_owned(), first.clone()), ("b".to_owned(), second.clone())],
        &["url", "hosts", "path"],
        &["include"],
    );
    if !at.ends_with('-') {
        assert_eq!(again.unwrap().get(&path(at)).unwrap(), value);
    }
    (first, second)
}

#[test]
fn items_are_found_by_number_and_by_name() {
    let tree = tree();
    let get = |at: &str| tree.get(&path(at));
    assert_eq!(get("threads").unwrap(), json!(2));
    assert_eq!(get("limits").unwrap(), json!({ "body": "1MiB", "headers": 50 }));
    assert_eq!(get("site/1/hosts/0").unwrap(), json!("blog.test"));
    assert_eq!(get("site/blog.test/route/*/respond").unwrap(), json!("hello"));
    assert_eq!(get("site/shop.test/route/%2Fapi%2F*/proxy/upstream").unwrap(), json!("api"));
    assert_eq!(get("upstreams/api/to/http:%2F%2F10.0.0.2/weight").unwrap(), json!(2));
    assert_eq!(get("upstreams/api/to/http:%2F%2F10.0.0.1").unwrap(), json!("http://10.0.0.1"));
    assert_eq!(get("").unwrap()["site"].as_array().unwrap().len(), 2);
    for (missing, says) in [
        ("site/none.test", "there is no `none.test` at `site`, which has: 2 items"),
        ("limit", "which has: include, limits, site, threads, upstreams"),
        ("threads/2", "there is no `2` at `threads`"),
        ("site/7/route", "there is no `7` at `site`"),
    ] {
        let error = get(missing).unwrap_err();
        assert!(matches!(&error, TreeError::NotFound(text) if text.contains(says)), "{missing}: {error}");
    }
}

#[test]
fn changes_preserve_formatting_and_comments() {
    let (main, other) = put("threads", json!(4));
    assert_eq!((main, other.as_str()), (MAIN.replace("threads = 2 #", "threads = 4 #"), OTHER));
    let (main, _) = put("upstreams/api/to/1/weight", json!(5));
    assert_eq!(main, MAIN.replace("weight = 2", "weight = 5"));
    let (main, _) = put("upstreams/api/to/0", json!("http://10.0.0.3"));
    assert_eq!(main, MAIN.replace("10.0.0.1", "10.0.0.3"));
    // When a whole table is set, unchanged parts keep their formatting.
    let site = json!({
        "hosts": ["shop.test", "www.shop.test"],
        "route": [{ "path": "/api/*", "proxy": { "upstream": "api" } }, { "files": "/srv/other" }],
    });
    assert_eq!(put("site/shop.test", site).0, MAIN.replace("/srv/shop", "/srv/other"));
}

#[test]
fn a_change_goes_to_the_file_that_holds_the_item() {
    let (main, other) = put("site/blog.test/route/0/respond", json!("bye"));
    assert_eq!((main.as_str(), other), (MAIN, OTHER.replace("hello", "bye")));
    let (main, other) = put("limits/headers", json!(60));
    assert_eq!((main.as_str(), other), (MAIN, OTHER.replace("50", "60")));
    // A table of which two files have a part, and a list.
    let (main, other) = put("limits", json!({ "body": "2MiB", "headers": 60, "connections": 9 }));
    assert!(main.contains("body = \"2MiB\"\nconnections = 9\n"), "{main}");
    assert_eq!(other, OTHER.replace("50", "60"));
    let (main, other) = put("site", json!([{ "hosts": ["shop.test"] }, { "hosts": ["b.test"] }]));
    assert!(main.contains("hosts = [\"shop.test\"]") && !main.contains("site.route"), "{main}");
    assert!(other.contains("hosts = [\"b.test\"]") && other.contains("# Another team's."), "{other}");
    let (main, other) = changed(|tree| tree.delete(&path("site/1")));
    assert_eq!((main.as_str(), other.as_str()), (MAIN, "# Another team's.\n[limits]\nheaders = 50\n"));
}

#[test]
fn items_are_added_and_removed() {
    let (_, other) = put("site/-", json!({ "hosts": ["new.test"], "route": [{ "respond": "new" }] }));
    assert!(other.starts_with(OTHER) && other.contains("[[site]]\nhosts = [\"new.test\"]\n"), "{other}");
    let (main, _) = put("site/shop.test/route/-", json!({ "path": "/x", "respond": "x" }));
    let (before, after) = main.split_at(MAIN.len());
    assert_eq!((before, after), (MAIN, "\n[[site.route]]\npath = \"/x\"\nrespond = \"x\"\n"));
    let (main, _) = put("cache/memory", json!("1GiB"));
    assert!(main.contains("[cache]\nmemory = \"1GiB\"\n"), "{main}");
    let (main, _) = put("site/shop.test/route/0/timeouts", json!({ "body": "5s" }));
    assert!(main.contains("proxy = { upstream = \"api\" }\ntimeouts = { body = \"5s\" }\n"), "{main}");
    let (main, _) = put("upstreams/api/to/-", json!("http://10.0.0.9"));
    assert!(main.contains("# the old one") && main.contains("\"http://10.0.0.9\""), "{main}");
    let (main, _) = changed(|tree| tree.delete(&path("upstreams/api/to/1")));
    assert!(main.contains("# the old one") && !main.contains("weight"), "{main}");
    let (main, _) = changed(|tree| tree.delete(&path("site/shop.test/route/%2Fapi%2F*")));
    assert!(!main.contains("/api/*") && main.contains("/srv/shop"), "{main}");
}

#[test]
fn deleting_the_last_entry_removes_an_implicit_table() {
    let (main, _) = changed(|tree| tree.delete(&path("upstreams/api")));
    assert!(!main.contains("upstreams.api"), "{main}");
    let (main, _) = changed(|tree| tree.patch(&path("upstreams"), &json!({ "api": null })));
    assert!(!main.contains("upstreams.api"), "{main}");
    let (main, _) = put("upstreams", json!({}));
    assert!(main.contains("[upstreams]\n"), "{main}");
    for text in ["a.b.c = 1\nd = 2\n", "[a.b.c]\n[d]\n", "a = { b.c = 1 }\nd = 2\n", "[[a.b.c]]\n[d]\n"] {
        let mut tree = ConfigTree::parse([("x".to_owned(), text.to_owned())], &[], &[]).unwrap();
        tree.delete(&path("a/b/c")).unwrap();
        let again = ConfigTree::parse(tree.texts(), &[], &[]).unwrap();
        let root = TreePath::default();
        assert_eq!(again.get(&root).unwrap(), tree.get(&root).unwrap(), "{text}");
        assert!(tree.get(&path("a/b")).is_err(), "{text}");
        assert!(tree.get(&path("d")).is_ok(), "{text}");
    }
}

#[test]
fn patch_follows_json_merge_patch() {
    let patch = json!({ "threads": null, "limits": { "headers": null, "body": "3MiB" }, "nothing": null,
        "timeouts": { "drain": "9s", "idle": null } });
    let (main, other) = changed(|tree| tree.patch(&TreePath::default(), &patch));
    assert!(!main.contains("threads =") && main.contains("body = \"3MiB\""), "{main}");
    assert!(main.contains("[timeouts]\ndrain = \"9s\"\n") && !main.contains("idle"), "{main}");
    assert!(!other.contains("headers") && other.contains("blog.test"), "{other}");
}

#[test]
fn invalid_changes_are_rejected_without_effect() {
    let mut tree = tree();
    let before = tree.texts();
    for (at, value, says) in [
        ("threads", json!(null), "no null"),
        ("threads", json!(u64::MAX), "larger"),
        ("include", json!("/etc/*"), "only be changed in the file"),
        ("", json!({ "include": "x" }), "only be changed in the file"),
        ("threads/x", json!(1), "neither a table nor a list"),
        ("site/9", json!({}), "there is no `9`"),
        ("site/0", json!(1), "are tables"),
        ("limits", json!(1), "several files"),
    ] {
        let error = tree.put(&path(at), &value).unwrap_err();
        assert!(error.text().contains(says), "{at}: {error}");
        assert_eq!(tree.texts(), before, "{at}");
    }
    assert!(tree.delete(&path("site/9")).is_err() && tree.delete(&TreePath::default()).is_err());
    let deep = (0..40).fold(json!(1), |inner, _| json!([inner]));
    assert!(tree.put(&path("threads"), &deep).is_err());
    let twice = [("a".to_owned(), "site = [{ hosts = \"a\" }, { hosts = \"a\" }]".to_owned())];
    let twice = ConfigTree::parse(twice, &["hosts"], &[]).unwrap();
    assert!(twice.get(&path("site/a")).unwrap_err().text().contains("write the number"));
    assert!(ConfigTree::parse([("x".to_owned(), "a = ".to_owned())], &[], &[]).is_err());
}

#[test]
fn item_added_to_a_multiline_array_gets_its_own_line() {
    let text = "to = [\n    \"http://a\", # A\n    \"http://b\", # B\n]\n";
    let mut tree = ConfigTree::parse([("k".to_owned(), text.to_owned())], &[], &[]).unwrap();
    tree.put(&path("to/-"), &json!("http://c")).unwrap();
    tree.put(&path("to/-"), &json!("http://d")).unwrap();
    let lines =
        "to = [\n    \"http://a\", # A\n    \"http://b\", # B\n    \"http://c\",\n    \"http://d\",\n]\n";
    assert_eq!(tree.texts()[0].1, lines);
}

#[test]
fn patch_with_many_keys_is_applied_in_one_pass() {
    let mut tree =
        ConfigTree::parse([("k".to_owned(), "[maps.m]\nof = \"$host\"\n".to_owned())], &[], &[]).unwrap();
    let values: serde_json::Map<String, Value> =
        (0..60_000).map(|at| (format!("host{at}.test"), json!(at.to_string()))).collect();
    // With a search for each key this would take many minutes.
    tree.patch(&path("maps/m"), &json!({ "values": values })).unwrap();
    tree.patch(&path("maps/m/values"), &json!({ "host1.test": "other", "more.test": "x" })).unwrap();
    assert_eq!(tree.get(&path("maps/m/values/host1.test")).unwrap(), json!("other"));
    assert_eq!(tree.get(&path("maps/m/values")).unwrap().as_object().unwrap().len(), 60_001);
}

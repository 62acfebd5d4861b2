//! Plack's own test suite and examples, and applications in common frameworks.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::hosted::{Client, logged, modules, run};
use crate::rig::{Folder, Rig, server_environment, text};
use serde_json::{Value, json};

fn perl() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perl")
}

/// Panics with the package to install if the Perl module is missing.
fn needs(module: &str, package: &str) {
    let there = Command::new("perl").args([&format!("-M{module}"), "-e1"]).output().unwrap();
    assert!(there.status.success(), "{module} is missing: apt-get install {package}");
}

#[test]
fn plack_test_suite_passes() {
    needs("Plack::Test::Suite", "libplack-perl");
    let reported = Command::new("perl")
        .arg(perl().join("suite.t"))
        .arg(env!("CARGO_BIN_EXE_komainu"))
        .arg(perl())
        .env("KOMAINU_WORKERS", modules())
        .envs(server_environment())
        .output()
        .unwrap();
    let out = text(&reported.stdout);
    let errors = text(&reported.stderr);
    assert!(reported.status.success(), "{out}{errors}");
    let plan: usize = out.lines().find_map(|line| line.strip_prefix("1..")?.parse().ok()).unwrap();
    let good = out.lines().filter(|line| line.starts_with("ok ") && !line.contains("# skip")).count();
    assert!(plan > 95 && good == plan, "{good} of {plan}\n{out}");
    // Plack::Middleware::Lint reports violations on standard error.
    assert!(!errors.contains("Lint"), "{errors}");
}

fn app(name: &str) -> Rig {
    run(Folder::new(), &["--workers", "1", perl().join(name).to_str().unwrap()])
}

fn json(answer: (u16, String)) -> Value {
    assert_eq!(answer.0, 200, "{}", answer.1);
    serde_json::from_str(&answer.1).unwrap()
}

/// Sends a form as browsers do, with additional fields, and returns the response.
fn send(rig: &Rig, method: &str, path: &str, kind: &str, body: &str) -> (u16, String) {
    let mut client = Client::new(rig.address);
    let len = body.len();
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n\r\n{body}"
    ));
    client.answer()
}

const UPLOAD: &str = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\
                      Content-Type: text/plain\r\n\r\nthe file\r\n--b--\r\n";
const FORM: &str = "application/x-www-form-urlencoded";

/// Sends three requests, each with the cookie of the previous response.
fn count(rig: &Rig) -> Vec<String> {
    let mut cookie = String::new();
    let ask = |_| {
        let answer = rig.ask("/count", &cookie);
        let given = answer.field("Set-Cookie").unwrap().split(';').next().unwrap().to_owned();
        cookie = format!("Cookie: {given}\r\n");
        answer.expect_status(200).field("Content-Length").unwrap();
        answer.text()
    };
    (0..3).map(ask).collect()
}

#[test]
fn dancer2_application_runs() {
    needs("Dancer2", "libdancer2-perl");
    let rig = app("dancer.psgi");
    let mut client = Client::new(rig.address);
    assert_eq!(client.get("/?name=J%C3%BCrgen+B"), (200, "hello Jürgen B".to_owned()));
    assert_eq!(json(client.get("/split/a/b%20c")), json!({ "parts": ["a", "b c"] }));
    assert_eq!(json(send(&rig, "POST", "/form", FORM, "said=a%26b")), json!({ "said": "a&b" }));
    let sum = send(&rig, "PUT", "/json", "application/json", "{\"a\": 2, \"b\": 3}");
    assert_eq!(json(sum), json!({ "sum": 5 }));
    let uploaded = send(&rig, "POST", "/upload", "multipart/form-data; boundary=b", UPLOAD);
    assert_eq!(json(uploaded), json!({ "name": "a.txt", "bytes": 8 }));
    assert_eq!(count(&rig), ["1", "2", "3"]);
    assert!(client.get("/file").1.contains("use Dancer2;"));
    assert_eq!(client.get("/stream"), (200, "piece 1\npiece 2\npiece 3\n".to_owned()));
    assert_eq!((client.get("/die").0, client.get("/nowhere").0), (500, 404));
    logged(&rig, "in Dancer");
}

#[test]
fn mojolicious_application_runs() {
    needs("Mojolicious", "libmojolicious-perl");
    let rig = app("mojo.psgi");
    let mut client = Client::new(rig.address);
    assert_eq!(json(client.get("/?name=J%C3%BCrgen+B")), json!({ "hello": "Jürgen B" }));
    assert_eq!(client.get("/page"), (200, "<p>Jürgen &lt;b&gt;</p>\n".to_owned()));
    assert_eq!(send(&rig, "POST", "/form", FORM, "said=a%26b"), (200, "a&b".to_owned()));
    let uploaded = send(&rig, "POST", "/upload", "multipart/form-data; boundary=b", UPLOAD);
    assert_eq!(json(uploaded), json!({ "name": "a.txt", "bytes": 8 }));
    assert_eq!(count(&rig), ["1", "2", "3"]);
    assert_eq!(client.get("/stream"), (200, "piece 1\npiece 2\npiece 3\n".to_owned()));
    assert_eq!((client.get("/die").0, client.get("/nowhere").0), (500, 404));
    logged(&rig, "in Mojolicious");
}

#[test]
fn plack_examples_run() {
    let examples = Path::new("/usr/share/doc/libplack-perl/examples/dot-psgi");
    if !examples.is_dir() {
        eprintln!("SKIPPED: this system leaves the examples of libplack-perl out");
        return;
    }
    let serve = |name: &str| run(Folder::new(), &["--workers", "1", examples.join(name).to_str().unwrap()]);
    for name in ["Hello.psgi", "runnable.psgi", "slowapp.psgi"] {
        serve(name).get("/").expect(200, "Hello World").expect_field("Content-Type", "text/plain");
    }
    assert!(serve("Dumper.psgi").get("/?a=b").expect_status(200).text().contains("a=b"));
    serve("plack-req.psgi").get("/?name=moin").expect(200, "Hello moin");
    serve("error.psgi").get("/").expect_status(500);
    let statics = serve("static.psgi");
    let page = statics.get("/index.html");
    page.expect_status(200).expect_field("Content-Type", "text/html; charset=utf-8");
    let since = format!("If-Modified-Since: {}\r\n", page.field("Last-Modified").unwrap());
    statics.ask("/index.html", &since).expect(304, "");
    statics.get("/nothing").expect_status(404);
    // The examples write the time once a second.
    for (name, lines) in [("echo.psgi", 6), ("echo-stream-sync.psgi", 5)] {
        let rig = serve(name);
        let (status, times) = Client::new(rig.address).get("/");
        assert_eq!((status, times.lines().count()), (200, lines), "{times}");
    }
}

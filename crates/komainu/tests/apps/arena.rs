//! The entries for HttpArena in the folder `arena`: its rules, asked of a server with each entry's own configuration. The ports are fixed, so the
//! server listens on a loopback address of its own.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::hosted::server;
use crate::rig::{Folder, Rig, as_we_are, curl, komainu, text};

/// The folder of an entry.
fn entry(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../arena").join(name)
}

/// Items with all kinds of values, and characters that JSON escapes.
fn dataset() -> Value {
    let item = |id: u64, name: &str, tags: Value| {
        json!({ "id": id, "name": name, "category": "tools", "price": 300 + id, "quantity": 7, "active": id.is_multiple_of(2),
            "tags": tags, "rating": { "score": 48, "count": 127 } })
    };
    json!([
        item(1, "Alpha \"Widget\" \\ \n", json!(["fast", "new"])),
        item(2, "Größe 😀", json!([])),
        // Long enough to be compressed.
        item(3, &"C".repeat(2_000), json!(["x"]))
    ])
}

/// A server with the entry's configuration, and the host part of its URLs.
struct Arena {
    rig: Rig,
    host: String,
}

impl Arena {
    fn start(name: &str) -> Arena {
        let pid = std::process::id();
        let lane = 1 + name.bytes().map(u32::from).sum::<u32>() % 250;
        let host = format!("127.{}.{}.{lane}", 64 + (pid >> 8) % 128, pid % 256);
        let folder = Folder::new();
        folder.certify();
        folder.write("dataset.json", dataset().to_string());
        std::fs::create_dir(folder.at("static")).unwrap();
        folder
            .write("static/app.js", "1".repeat(5_000))
            .write("static/app.js.br", "br")
            .write("static/app.js.gz", "gz");
        folder.write("static/reset.css", "a {}").write("static/manifest.json", "{}");
        for file in std::fs::read_dir(entry(name)).unwrap() {
            let path = file.unwrap().path();
            std::fs::copy(&path, folder.at(path.file_name().unwrap().to_str().unwrap())).unwrap();
        }
        if name == "komainu" {
            let source = std::fs::read_to_string(entry(name).join("handler.c")).unwrap();
            crate::hosted::native(&folder, &source);
        }
        let here = |path: &str| folder.at(path).display().to_string();
        let config = std::fs::read_to_string(entry(name).join("komainu.toml")).unwrap();
        let config = config
            .replace("\":80", &format!("\"{host}:80"))
            .replace("\":8443", &format!("\"{host}:8443"))
            .replace("/certs/server.crt", &here("cert.pem"))
            .replace("/certs/server.key", &here("key.pem"))
            .replace("/app/handler.so", &here("n.so"))
            .replace("/app/", &format!("{}/", here("")))
            .replace("/data/dataset.json", &here("dataset.json"))
            .replace("root = \"/data\"", &format!("root = \"{}\"", here("")));
        folder.write("komainu.toml", format!("{}{config}", as_we_are()));
        let mut command = server();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        Arena { rig: Rig::start(command, folder), host }
    }

    /// Asks by curl with these arguments, of which the last is a port and a path. Returns status, version, type and body.
    fn ask(&self, arguments: &[&str]) -> (u16, String, String, String) {
        let (at, options) = arguments.split_last().unwrap();
        let scheme = if at.starts_with("8081") || at.starts_with("8443") { "https" } else { "http" };
        let url = format!("{scheme}://{}:{at}", self.host);
        let format = "\n%{http_code} %{http_version} %{content_type}";
        let output = curl(&[&["-sk", "-w", format], options, &[&url]].concat());
        let answer = text(&output.stdout);
        let (body, end) = answer.rsplit_once('\n').unwrap_or_default();
        let mut words = end.splitn(3, ' ').map(str::to_owned);
        let mut word = || words.next().unwrap_or_default();
        (word().parse().unwrap_or(0), word(), word(), body.to_owned())
    }

    fn expect(&self, arguments: &[&str], version: &str, kind: &str, body: &str) {
        let (status, spoken, found, answer) = self.ask(arguments);
        assert_eq!(
            (status, spoken.as_str(), answer.as_str()),
            (200, version, body),
            "{arguments:?}\n{}",
            self.rig.reported()
        );
        assert!(found.starts_with(kind), "{arguments:?}: {found}");
    }

    /// Sums of parameters and bodies, at each of the ports.
    fn sums(&self) {
        self.expect(&["8080/baseline11?a=13&b=42"], "1.1", "text/plain", "55");
        self.expect(&["8080/baseline11?b=-2&a=1000"], "1.1", "text/plain", "998");
        self.expect(&["-d", "20", "8080/baseline11?a=13&b=42"], "1.1", "text/plain", "75");
        self.expect(
            &["-d", "321", "-H", "Transfer-Encoding: chunked", "8080/baseline11?a=13&b=42"],
            "1.1",
            "text/plain",
            "376",
        );
        self.expect(&["--http2", "8443/baseline2?a=1&b=1"], "2", "text/plain", "2");
        self.expect(&["--http2-prior-knowledge", "8082/baseline2?a=7&b=1"], "2", "text/plain", "8");
        self.expect(&["8080/pipeline"], "1.1", "text/plain", "ok");
        let (status, ..) = self.ask(&["--http1.1", "8082/baseline2?a=1&b=1"]);
        assert_eq!(status, 505);
        assert_eq!(self.ask(&["8080/none"]).0, 404);
        let split = self.rig.send(
            "POST /baseline11?a=1&b=2 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nConnection: close\r\n\r\n9",
        );
        split.expect(200, "12");
    }

    /// The first items with their totals, over each protocol.
    fn json(&self) {
        for (count, factor) in [(1, 3), (2, 11), (3, 1), (0, 2), (50, 5)] {
            let path = format!("json/{count}?m={factor}");
            let all = dataset();
            let items: Vec<Value> = all.as_array().unwrap().iter().take(count).cloned().collect();
            let items: Vec<Value> = items
                .into_iter()
                .map(|mut item| {
                    item["total"] =
                        json!(item["price"].as_u64().unwrap() * item["quantity"].as_u64().unwrap() * factor);
                    item
                })
                .collect();
            let wanted = json!({ "count": items.len(), "items": items });
            for (options, port) in [
                (&["--http1.1"][..], 8080),
                (&["--http1.1"], 8081),
                (&["--http2"], 8443),
                (&["--http2-prior-knowledge"], 8082),
                (&["--compressed", "-H", "Accept-Encoding: gzip, br"], 8080),
            ] {
                let (status, _, kind, body) = self.ask(&[options, &[&format!("{port}/{path}")]].concat());
                let found: Value = serde_json::from_str(&body).unwrap_or_default();
                assert_eq!(
                    (status, &found),
                    (200, &wanted),
                    "{port} {path}: {body}\n{}",
                    self.rig.reported()
                );
                assert!(kind.starts_with("application/json"), "{kind}");
            }
        }
        let head = self
            .ask(&["-i", "-H", "Accept-Encoding: gzip, br", "-o", "/dev/null", "-D", "-", "8080/json/3?m=1"])
            .3;
        assert!(head.to_ascii_lowercase().contains("content-encoding: br"), "{head}");
        let plain = self.ask(&["-o", "/dev/null", "-D", "-", "8080/json/3?m=1"]).3.to_ascii_lowercase();
        assert!(plain.contains("application/json") && !plain.contains("content-encoding"), "{plain}");
    }

    /// Files with their types, precompressed where the client takes it, and 404.
    fn files(&self) {
        for (file, kind) in
            [("reset.css", "text/css"), ("app.js", "text/javascript"), ("manifest.json", "application/json")]
        {
            for options in [&["--http1.1"][..], &["--http2"]] {
                let port = if options == ["--http2"] { 8443 } else { 8080 };
                let (status, _, found, body) =
                    self.ask(&[options, &[&format!("{port}/static/{file}")]].concat());
                let size = std::fs::metadata(self.rig.folder.at(&format!("static/{file}"))).unwrap().len();
                assert_eq!((status, body.len() as u64), (200, size), "{file}");
                assert!(found.starts_with(kind), "{file}: {found}");
            }
        }
        self.expect(
            &["-H", "Accept-Encoding: br;q=1, gzip;q=0.8", "8080/static/app.js"],
            "1.1",
            "text/javascript",
            "br",
        );
        assert_eq!(self.ask(&["8080/static/nonexistent.txt"]).0, 404);
        let body = "x".repeat(300_000);
        self.rig.folder.write("upload", &body);
        let from = format!("@{}", self.rig.folder.at("upload").display());
        self.expect(&["--data-binary", &from, "8080/upload"], "1.1", "text/plain", "300000");
    }

    /// HTTP/3, by the load generator, because curl may be without it.
    fn http3(&self) {
        for path in ["baseline2?a=1&b=1", "static/reset.css"] {
            let url = format!("https://{}:8443/{path}", self.host);
            let json = self.rig.folder.at("report.json");
            let output = komainu()
                .args(["bench", "--http3", "-k", "-q", "-c", "1", "-n", "3", "--json"])
                .args([json.as_os_str(), url.as_ref()])
                .output()
                .unwrap();
            let report = std::fs::read(&json).unwrap_or_default();
            let report: Value = serde_json::from_slice(&report).unwrap_or_default();
            assert_eq!(
                report["figures"]["responses"],
                3.0,
                "{}{}",
                text(&output.stdout),
                text(&output.stderr)
            );
            assert_eq!(report["figures"]["errors"], 0.0);
        }
    }
}

fn keeps_the_rules(name: &str) {
    let arena = Arena::start(name);
    arena.sums();
    arena.json();
    arena.files();
    arena.http3();
}

#[test]
fn native_entry_keeps_the_rules() {
    keeps_the_rules("komainu");
}

#[test]
fn wsgi_entry_keeps_the_rules() {
    keeps_the_rules("komainu-wsgi");
}

#[test]
fn asgi_entry_keeps_the_rules() {
    keeps_the_rules("komainu-asgi");
}

#[test]
fn rack_entry_keeps_the_rules() {
    keeps_the_rules("komainu-rack");
}

#[test]
fn psgi_entry_keeps_the_rules() {
    keeps_the_rules("komainu-psgi");
}

#[test]
fn entries_describe_themselves() {
    for folder in std::fs::read_dir(entry(""))
        .unwrap()
        .map(|folder| folder.unwrap().path())
        .filter(|path| path.is_dir())
    {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let meta: Value =
            serde_json::from_str(&std::fs::read_to_string(folder.join("meta.json")).unwrap()).unwrap();
        for key in ["display_name", "language", "engine", "type", "description", "repo"] {
            assert!(meta[key].as_str().is_some_and(|text| !text.is_empty()), "{name}: {key}");
        }
        assert_eq!(
            (meta["display_name"].as_str(), meta["enabled"].as_bool()),
            (Some(name.as_str()), Some(true))
        );
        let dockerfile = std::fs::read_to_string(folder.join("Dockerfile")).unwrap();
        for line in dockerfile.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from")) {
            for file in line.split(' ').skip(1).filter(|word| !word.starts_with('/')) {
                assert!(folder.join(file).exists(), "{name}: {line}");
            }
        }
    }
}

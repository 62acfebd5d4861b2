//! The demo of `make run`: every response mode that its page offers, and the benchmark that the page starts.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::hosted::modules;
use crate::pages::root;
use crate::pebble::free_port;
use crate::rig::{Folder, curl, eventually, installed, text};

/// A running demo, terminated on drop.
struct Demo {
    child: Child,
    url: String,
}

impl Demo {
    fn start(log: &Folder) -> Demo {
        let port = free_port();
        let output = std::fs::File::create(log.at("demo.log")).unwrap();
        let mut command = Command::new(root().join("scripts/demo"));
        command
            .arg(env!("CARGO_BIN_EXE_komainu"))
            .env("DEMO_PORT", port.to_string())
            .env("KOMAINU_WORKERS", modules())
            .env("TMPDIR", log.path())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .process_group(0);
        let demo = Demo { child: command.spawn().unwrap(), url: format!("http://127.0.0.1:{port}") };
        eventually("the demo serves", || text(&curl(&[&demo.at("/a")]).stdout) == "un\n");
        demo
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Requests a measurement with this field and returns the status and the body.
    fn measured(&self, mode: &str, field: &str) -> (String, String) {
        let url = self.at(&format!("/bench/{mode}"));
        let output = text(&curl(&["-X", "POST", "-H", field, "-w", "\n%{http_code}", &url]).stdout);
        let (body, status) = output.rsplit_once('\n').unwrap();
        (status.to_owned(), body.to_owned())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

#[test]
fn demo_answers_in_every_mode_and_runs_a_benchmark() {
    let log = Folder::new();
    let demo = Demo::start(&log);
    let modes: Vec<String> = serde_json::from_slice(&curl(&[&demo.at("/modes.json")]).stdout).unwrap();
    assert!(modes.len() >= 3, "{modes:?}");
    let script = text(&curl(&[&demo.at("/demo.js")]).stdout);
    for mode in &modes {
        let answer = text(&curl(&[&demo.at(&format!("/via/{mode}/hello"))]).stdout);
        assert!(answer.starts_with("Hello from "), "{mode}: {answer}");
        assert!(script.contains(&format!("\n  {mode}: [")), "the page knows {mode}");
    }
    let page = text(&curl(&[&demo.at("/")]).stdout);
    // Few machines have a font with these characters, so they are drawn.
    let is_kanji = |c: char| ('\u{2e80}'..='\u{9fff}').contains(&c);
    let spoken: usize = page
        .split("aria-label=\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap().chars().filter(|c| is_kanji(*c)).count())
        .sum();
    assert_eq!((page.chars().filter(|c| is_kanji(*c)).count(), spoken), (4, 4));
    let documents: Vec<&str> =
        page.split("href=\"/read/").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(documents.len() > 5, "{documents:?}");
    for document in documents {
        let status = curl(&["-o", "/dev/null", "-w", "%{http_code}", &demo.at(&format!("/docs/{document}"))]);
        assert_eq!(text(&status.stdout), "200", "{document}");
        let shown = text(&curl(&[&demo.at(&format!("/read/{document}"))]).stdout);
        assert!(shown.contains("/read.js"), "{document}: {shown}");
    }
    if installed("python3").is_none() {
        return;
    }
    eventually("the bench listens", || demo.measured("nothing", "X-Demo: bench").0 == "404");
    assert_eq!(demo.measured("file", "Origin: http://elsewhere.example").0, "403");
    let (status, body) = demo.measured("cache", "X-Demo: bench");
    let figures: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, "200", "{body}");
    assert!(figures["requests_per_s"].as_f64().unwrap() > 0.0 && figures["errors"] == 0.0, "{body}");
}

//! HTTP/2 in the clear, as clients see it.
#![allow(clippy::print_stderr, clippy::unwrap_used)] // helpers of tests are tests too

mod rig;

use std::process::Command;

use rig::{Folder, Rig, as_we_are, curl, environment, komainu, text};

const H2: &str = "--http2-prior-knowledge";

fn server() -> Rig {
    let folder = Folder::new();
    folder.write("a", "0123456789").write("index.html", "<h1>hi</h1>").write("large", "x".repeat(3_000_000));
    let mut command = komainu();
    command.args(["run", "--h2c", "--listen", "127.0.0.1:0"]).arg(folder.path());
    Rig::start(command, folder)
}

#[test]
fn files_are_served_over_both_versions_at_one_address() {
    let rig = server();
    let url = rig.url("/a");
    let format = "|%{http_version} %{http_code} %{num_connects}|";
    let many = curl(&[H2, "-w", format, &url, &url, &url]);
    assert_eq!(text(&many.stdout), "0123456789|2 200 1|0123456789|2 200 0|0123456789|2 200 0|");
    assert_eq!(text(&curl(&["-w", format, &url]).stdout), "0123456789|1.1 200 1|");
    assert_eq!(text(&curl(&[H2, "-r", "2-3", "-w", format, &url]).stdout), "23|2 206 1|");
    let head = text(&curl(&[H2, "-I", &url]).stdout).to_ascii_lowercase();
    assert!(head.starts_with("http/2 200") && head.contains("content-length: 10"), "{head}");
    assert!(!head.contains("connection:") && head.contains("server: komainu"), "{head}");
    assert_eq!(text(&curl(&[H2, "-w", "%{http_code}", "-o", "/dev/null", &rig.url("/none")]).stdout), "404");
    let large = curl(&[H2, &rig.url("/large")]).stdout;
    assert!(large.len() == 3_000_000 && large.iter().all(|&byte| byte == b'x'));
}

#[test]
fn an_address_without_h2c_speaks_http_1_alone() {
    let rig = Rig::files(&[("a", "0123456789")]);
    let refused = curl(&[H2, &rig.url("/a")]);
    assert!(!refused.status.success() && refused.stdout.is_empty());
    rig.get("/a").expect(200, "0123456789");
}

#[test]
fn a_request_and_its_body_reach_an_upstream_server() {
    let origin = server();
    let folder = Folder::new();
    let listen = "listen = { address = \"127.0.0.1:0\", h2c = true }";
    let route = format!("[[site]]\n[[site.route]]\nproxy = \"{}\"\n", origin.url(""));
    folder.write("komainu.toml", format!("{listen}\n{}{route}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let format = "|%{http_version} %{http_code}|";
    assert_eq!(text(&curl(&[H2, "-w", format, &rig.url("/a")]).stdout), "0123456789|2 200|");
    let large = curl(&[H2, &rig.url("/large")]).stdout;
    assert_eq!(large.len(), 3_000_000);
    let data = format!("@{}", origin.folder.at("large").display());
    let posted = curl(&[H2, "-o", "/dev/null", "-w", format, "--data-binary", &data, &rig.url("/a")]);
    assert_eq!(text(&posted.stdout), "|2 405|", "files take no body, whatever brought it");
}

/// The whole of h2spec (github.com/summerwind/h2spec).
#[test]
fn h2spec() {
    let h2spec = environment().with_file_name("h2spec").join("h2spec");
    if !h2spec.is_file() {
        eprintln!("SKIPPED: h2spec is not installed; scripts/setup test brings it");
        return;
    }
    let rig = server();
    let port = rig.url("").rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    let output =
        Command::new(h2spec).args(["--strict", "-h", "127.0.0.1", "-p", &port, "-o", "2"]).output().unwrap();
    let report = text(&output.stdout);
    assert!(output.status.success() && report.contains(" 0 failed"), "{report}");
}

//! A real Prometheus scrapes a running server.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::process::{Child, Command};

use serde_json::Value;

use crate::rig::{Folder, Rig, curl, eventually, installed, text};

/// Ends with its test.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What it answers to a question of its API.
fn asked(at: SocketAddr, path: &str, arguments: &[&str]) -> Value {
    let url = format!("http://{at}/api/v1/{path}");
    let mut all = vec!["-G", &url];
    arguments.iter().for_each(|argument| all.extend(["--data-urlencode", argument]));
    let answer: Value = serde_json::from_slice(&curl(&all).stdout).unwrap_or_default();
    answer["data"].clone()
}

#[test]
fn prometheus_scrapes_counts_histograms_and_exemplars() {
    let Some(prometheus) = installed("prometheus") else { return };
    let rig = Rig::config(
        Folder::new(),
        "threads = 2\n[tracing]\nenabled = true\nsample = \"100%\"\n[log]\nlevel = \"info\"\n[control]\nlisten = \"127.0.0.1:0\"\n\
         [[route]]\npath = \"/a\"\nrespond = \"A\"\nresponse_headers = { set = { X-Trace = \"$trace_id\" } }\n",
    );
    let traces: Vec<String> =
        (0..3).map(|_| rig.get("/a").expect(200, "A").field("X-Trace").unwrap().to_owned()).collect();
    let said = "the control listener is http://";
    eventually("the control listener is there", || rig.reported().contains(said));
    let reported = rig.reported();
    let target = reported.split(said).nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let yaml = format!(
        "scrape_configs:\n  - job_name: komainu\n    scrape_interval: 1s\n    scrape_timeout: 1s\n    static_configs: [{{ targets: [\"{target}\"] }}]\n"
    );
    rig.folder.write("prometheus.yml", yaml);
    let log = rig.folder.at("prometheus.log");
    let mut command = Command::new(prometheus);
    command.arg(format!("--config.file={}", rig.folder.at("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", rig.folder.at("tsdb").display()));
    command.args(["--web.listen-address=127.0.0.1:0", "--enable-feature=exemplar-storage"]);
    let _running = Prometheus(command.stderr(File::create(&log).unwrap()).spawn().unwrap());
    let listens = || {
        let log = fs::read_to_string(&log).unwrap_or_default();
        let line = log.lines().find(|line| line.contains("msg=\"Listening on\""))?;
        line.split("address=").nth(1)?.trim().parse::<SocketAddr>().ok()
    };
    eventually("Prometheus listens", || listens().is_some());
    let at = listens().unwrap();
    let value = |query: &str| -> Option<f64> {
        let found = asked(at, "query", &[&format!("query={query}")]);
        found["result"][0]["value"][1].as_str()?.parse().ok()
    };
    let counted = "komainu_http_requests_total{job=\"komainu\",code=\"200\",route=\"/a\"}";
    eventually("it has scraped the requests", || value(counted) == Some(3.0));
    assert_eq!(value("up"), Some(1.0));
    assert_eq!(value("komainu_http_request_duration_seconds_count{route=\"/a\"}"), Some(3.0));
    let slowest = value("histogram_quantile(1, komainu_http_request_duration_seconds_bucket{route=\"/a\"})");
    assert!(slowest.is_some_and(|seconds| seconds > 0.0 && seconds < 30.0), "{slowest:?}");
    // The exemplar is one of the traces that responses have named.
    let exemplars = || {
        let (start, end) = ("start=0", "end=9999999999");
        asked(at, "query_exemplars", &["query=komainu_http_request_duration_seconds_bucket", start, end])
    };
    eventually("it has exemplars", || exemplars()[0]["exemplars"][0].is_object());
    let id = exemplars()[0]["exemplars"][0]["labels"]["trace_id"].as_str().unwrap().to_owned();
    assert!(traces.contains(&id), "{id} in {traces:?}");
    // And it has no complaint about the text.
    let targets = text(&curl(&[&format!("http://{at}/api/v1/targets")]).stdout);
    assert!(targets.contains("\"health\":\"up\"") && targets.contains("\"lastError\":\"\""), "{targets}");
}

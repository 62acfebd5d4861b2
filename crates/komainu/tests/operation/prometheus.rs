//! A real Prometheus scrapes a running server.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use serde_json::Value;

use crate::origin::{Origin, answer};
use crate::rig::{Folder, Rig, curl, eventually, installed, text};

/// Killed on drop.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Response to a request to Prometheus' API.
fn asked(at: SocketAddr, path: &str, arguments: &[&str]) -> Value {
    let url = format!("http://{at}/api/v1/{path}");
    let mut all = vec!["-G", &url];
    arguments.iter().for_each(|argument| all.extend(["--data-urlencode", argument]));
    let answer: Value = serde_json::from_slice(&curl(&all).stdout).unwrap_or_default();
    answer["data"].clone()
}

/// First value that a query returns.
fn value(at: SocketAddr, query: &str) -> Option<f64> {
    let found = asked(at, "query", &[&format!("query={query}")]);
    found["result"][0]["value"][1].as_str()?.parse().ok()
}

/// Starts Prometheus with a feature flag; it scrapes the target every second.
fn start(program: PathBuf, folder: &Folder, target: &str, feature: &str) -> (Prometheus, SocketAddr) {
    let yaml = format!(
        "scrape_configs:\n  - job_name: komainu\n    scrape_interval: 1s\n    scrape_timeout: 1s\n    static_configs: [{{ targets: [\"{target}\"] }}]\n"
    );
    folder.write("prometheus.yml", yaml);
    let log = folder.at("prometheus.log");
    let mut command = Command::new(program);
    command.arg(format!("--config.file={}", folder.at("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", folder.at("tsdb").display()));
    command.arg("--web.listen-address=127.0.0.1:0").arg(format!("--enable-feature={feature}"));
    let running = Prometheus(command.stderr(File::create(&log).unwrap()).spawn().unwrap());
    let listens = || {
        let log = fs::read_to_string(&log).unwrap_or_default();
        let line = log.lines().find(|line| line.contains("msg=\"Listening on\""))?;
        line.split("address=").nth(1)?.trim().parse::<SocketAddr>().ok()
    };
    eventually("Prometheus listens", || listens().is_some());
    (running, listens().unwrap())
}

/// Address of the control listener.
fn control(rig: &Rig) -> String {
    let said = "the control listener is http://";
    eventually("the control listener is there", || rig.reported().contains(said));
    let reported = rig.reported();
    reported.split(said).nth(1).unwrap().split_whitespace().next().unwrap().to_owned()
}

#[test]
fn prometheus_scrapes_counts_histograms_and_exemplars() {
    let Some(prometheus) = installed("prometheus") else { return };
    let rig = Rig::config(
        Folder::new(),
        r#"
        threads = 2

        [tracing]
        enabled = true
        sample = "100%"

        [log]
        level = "info"

        [control]
        listen = "127.0.0.1:0"

        [[route]]
        path = "/a"
        respond = "A"
        response_headers = { set = { X-Trace = "$trace_id" } }
        "#,
    );
    let traces: Vec<String> =
        (0..3).map(|_| rig.get("/a").expect(200, "A").field("X-Trace").unwrap().to_owned()).collect();
    let target = control(&rig);
    let (_running, at) = start(prometheus, &rig.folder, &target, "exemplar-storage");
    let value = |query: &str| value(at, query);
    let counted = "komainu_http_requests_total{job=\"komainu\",code=\"200\",route=\"/a\"}";
    eventually("it has scraped the requests", || value(counted) == Some(3.0));
    assert_eq!(value("up"), Some(1.0));
    assert_eq!(value("komainu_http_request_duration_seconds_count{route=\"/a\"}"), Some(3.0));
    let slowest = value("histogram_quantile(1, komainu_http_request_duration_seconds_bucket{route=\"/a\"})");
    assert!(slowest.is_some_and(|seconds| seconds > 0.0 && seconds < 30.0), "{slowest:?}");
    // The exemplar is one of the traces named in responses.
    let exemplars = || {
        let start = "start=0";
        let end = "end=9999999999";
        asked(at, "query_exemplars", &["query=komainu_http_request_duration_seconds_bucket", start, end])
    };
    eventually("it has exemplars", || exemplars()[0]["exemplars"][0].is_object());
    let id = exemplars()[0]["exemplars"][0]["labels"]["trace_id"].as_str().unwrap().to_owned();
    assert!(traces.contains(&id), "{id} in {traces:?}");
    // Prometheus reports no error in the text.
    let targets = text(&curl(&[&format!("http://{at}/api/v1/targets")]).stdout);
    assert!(targets.contains("\"health\":\"up\"") && targets.contains("\"lastError\":\"\""), "{targets}");
}

/// Prometheus, with its protobuf format, accepts histograms whose buckets are 9 % wide.
#[test]
fn prometheus_scrapes_native_histograms() {
    let Some(prometheus) = installed("prometheus") else { return };
    let origin = Origin::start(|ask| {
        if ask.line().contains("/slow") {
            std::thread::sleep(Duration::from_millis(300));
        }
        answer("200 OK", "", "x")
    });
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 2
            [log]
            level = "info"
            [control]
            listen = "127.0.0.1:0"
            [[route]]
            path = "/*"
            proxy = "{}"
            "#,
            origin.url
        ),
    );
    let target = control(&rig);
    let (_running, at) = start(prometheus, &rig.folder, &target, "native-histograms");
    let value = |query: &str| value(at, query);
    eventually("it has scraped an empty histogram", || value("up") == Some(1.0));
    for path in ["/slow", "/slow", "/slow"] {
        rig.get(path).expect(200, "x");
    }
    let own = "komainu_http_request_duration_seconds{handler=\"proxy\"}";
    eventually("it has the requests", || value(&format!("histogram_count({own})")) == Some(3.0));
    let sum = value(&format!("histogram_sum({own})")).unwrap();
    // Each request took 0.3 s or more; the bucket that contains it is at most 9 % wide.
    let fastest = value(&format!("histogram_quantile(0, {own})")).unwrap();
    let slowest = value(&format!("histogram_quantile(1, {own})")).unwrap();
    assert!(sum >= 0.9 && 3.0 * fastest <= sum && sum <= 3.0 * slowest, "{fastest} {slowest} {sum}");
    assert!(fastest >= 0.3 / 1.0906 && fastest <= sum / 3.0, "{fastest} of {sum}");
    let share = value(&format!("histogram_fraction(0, 0.25, {own})"));
    assert_eq!(share, Some(0.0), "the classic class reaches from 0.25 s to 0.5 s, this one does not");
    let upstream = "histogram_count(komainu_upstream_response_seconds)";
    assert_eq!(value(upstream), Some(3.0));
    // The other metrics have the names of the text format.
    assert_eq!(value("komainu_http_requests_total{code=\"200\"}"), Some(3.0));
    assert!(value("komainu_resident_bytes").is_some_and(|bytes| bytes > 1e6));
    assert_eq!(value("komainu_http_request_duration_seconds_bucket"), None, "classic classes are not kept");
    let targets = text(&curl(&[&format!("http://{at}/api/v1/targets")]).stdout);
    assert!(targets.contains("\"health\":\"up\"") && targets.contains("\"lastError\":\"\""), "{targets}");
}

//! A real OpenTelemetry collector, whose receiver takes traces, metrics and logs, and whose exporter prints
//! them.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::rig::{Folder, Rig, environment, eventually};

/// The collector, which `scripts/setup test` builds from `tests/collector`.
fn program() -> Option<PathBuf> {
    let program = environment().with_file_name("collector").join("collector");
    if program.is_file() {
        return Some(program);
    }
    eprintln!("SKIPPED: the collector of OpenTelemetry is not built; scripts/setup test does it, with Go");
    None
}

struct Collector {
    process: Child,
    folder: Folder,
    url: String,
}

impl Collector {
    fn start(program: PathBuf) -> Collector {
        let folder = Folder::new();
        // The port is unlikely to be taken until the collector binds it.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        folder.write(
            "collector.yaml",
            format!(
                r#"receivers: {{ otlp: {{ protocols: {{ http: {{ endpoint: "{address}" }} }} }} }}
exporters: {{ debug: {{ verbosity: detailed, sampling_initial: 10000 }} }}
service:
  telemetry: {{ metrics: {{ level: none }} }}
  pipelines:
    traces: {{ receivers: [otlp], exporters: [debug] }}
    metrics: {{ receivers: [otlp], exporters: [debug] }}
    logs: {{ receivers: [otlp], exporters: [debug] }}
"#
            ),
        );
        let printed = fs::File::create(folder.at("printed")).unwrap();
        let mut command = Command::new(program);
        command.arg("--config").arg(format!("file:{}", folder.at("collector.yaml").display()));
        let process = command.stdout(Stdio::null()).stderr(printed).spawn().unwrap();
        let collector = Collector { process, folder, url: format!("http://{address}") };
        eventually("the collector listens", || TcpStream::connect(address).is_ok());
        collector
    }

    fn printed(&self) -> String {
        fs::read_to_string(self.folder.at("printed")).unwrap()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("--- the collector printed:\n{}", self.printed());
        }
    }
}

#[test]
fn opentelemetry_collector_accepts_traces_metrics_and_logs() {
    let Some(program) = program() else { return };
    let collector = Collector::start(program);
    let url = &collector.url;
    let mut rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1

            [tracing]
            enabled = true
            sample = "100%"
            to = "{url}"
            service = "shop"

            [metrics]
            to = "{url}"
            every = "1s"
            service = "shop"
            instance = "one"
            histograms = "exponential"

            [log]
            access = '$method $uri $status'
            level = "info"
            file = {{ otlp = "{url}", service = "shop" }}

            [[route]]
            path = "/a"
            respond = "A"
            response_headers = {{ set = {{ X-Trace = "$trace_id", X-Span = "$span_id" }} }}
            "#
        ),
    );
    let answer = rig.get("/a");
    let trace = answer.field("X-Trace").unwrap();
    let span = answer.field("X-Span").unwrap();
    let wanted = [
        "service.name: Str(shop)".to_owned(),
        "service.instance.id: Str(one)".to_owned(),
        // The trace and its span, and the log record that names them.
        format!("Trace ID       : {trace}"),
        format!("Trace ID: {trace}"),
        format!("Span ID: {span}"),
        "Body: Str(GET /a 200)".to_owned(),
        "SeverityText: INFO".to_owned(),
        "Name           : GET /a".to_owned(),
        "Name: http.server.request.duration".to_owned(),
        "DataType: ExponentialHistogram".to_owned(),
        "Name: komainu.http.requests".to_owned(),
        "IsMonotonic: true".to_owned(),
        "AggregationTemporality: Cumulative".to_owned(),
        "http.route: Str(/a)".to_owned(),
        "http.response.status_code: Int(200)".to_owned(),
    ];
    for line in wanted {
        // Columns are padded, differently in each release of the exporter.
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").replace(" :", ":");
        let line = plain(&line);
        eventually(&format!("it prints `{line}`"), || plain(&collector.printed()).contains(&line));
    }
    rig.signal("-TERM");
    assert!(rig.ended().success());
    // The collector accepted everything: nothing was rejected or dropped.
    let said = rig.reported();
    assert!(!said.contains("collector") && !said.contains("status 4") && !said.contains("dropped"), "{said}");
}

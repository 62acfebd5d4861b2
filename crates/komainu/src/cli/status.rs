//! `komainu status`, `komainu reload` and `komainu upgrade`: status and control of running servers.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bench::quantity::{format_bytes, format_thousands, format_time};
use bench::table::TextTable;
use clap::Args;
use failure::Failure;
use operator::socket;
use serde_json::Value;

use crate::cli::control_endpoint::ControlCredentials;
use crate::cli::values::parse_process_id;
use crate::cli::{control_client, status_fetch};
use crate::terminal;

#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// The control listener of a server: HOST:PORT, https://HOST:PORT or unix:PATH [default: the control sockets of all servers of this user]
    #[arg(value_name = "ADDR", conflicts_with = "pid")]
    pub(crate) address: Option<String>,
    #[command(flatten)]
    pub(crate) credentials: ControlCredentials,
    /// The server with this process id [default: all servers of this user]
    #[arg(long, value_parser = parse_process_id)]
    pub(crate) pid: Option<u32>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReloadArguments {
    /// The server with this process id; not needed if only one runs
    #[arg(long, value_parser = parse_process_id)]
    pub(crate) pid: Option<u32>,
    /// The server that uses this configuration file
    #[arg(long, short, value_name = "FILE", conflicts_with = "pid")]
    pub(crate) config: Option<PathBuf>,
    /// Load only this application again, and do not read the configuration
    #[arg(value_name = "APP")]
    pub(crate) app: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct UpgradeArguments {
    /// The server of this process id; not needed where one runs
    #[arg(long, value_parser = parse_process_id)]
    pub(crate) pid: Option<u32>,
}

/// Runs `komainu status`; returns the text to print.
///
/// # Errors
/// No server runs, or none answers.
pub(crate) fn run_status(arguments: &StatusArguments) -> Result<String, Failure> {
    if let Some(address) = &arguments.address {
        let server = status_fetch::source_for_address(address, &arguments.credentials)?()?;
        return Ok(format_servers(vec![server], arguments.json));
    }
    arguments.credentials.refuse_without_address()?;
    let pids = select_pids(arguments.pid, control_client::running_servers)?;
    let answers = control_client::send_command_to_all(&pids, "status");
    let (servers, failed): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    let servers: Vec<Value> = servers.into_iter().flatten().collect();
    // One of several servers may just have ended.
    if let (true, Some(Err(error))) = (servers.is_empty(), failed.into_iter().next()) {
        return Err(error);
    }
    Ok(format_servers(servers, arguments.json))
}

fn format_servers(servers: Vec<Value>, is_json: bool) -> String {
    if is_json {
        return format!("{:#}\n", Value::Array(servers));
    }
    let formatted = |server: &Value| format_server(&terminal::indent_texts(server));
    let text = servers.iter().map(formatted).collect::<Vec<_>>().join("\n");
    terminal::sanitize(&text)
}

/// Runs `komainu reload`: waits for the result and returns the text to print.
///
/// # Errors
/// No server runs, or several do and none is named; the server rejects the new configuration, or needs a
/// restart for a part of it; the application is unknown.
pub(crate) fn run_reload(arguments: &ReloadArguments) -> Result<String, Failure> {
    let line = format!("reload {}", arguments.app.as_deref().unwrap_or_default());
    let pid = match &arguments.config {
        Some(file) => Some(pid_for_file(file)?),
        None => arguments.pid,
    };
    send_command(pid, line.trim_end())
}

/// Returns the process id of the only server that uses the configuration file.
///
/// # Errors
/// The file does not exist, or is not used by exactly one server; the message lists the candidates.
pub(crate) fn pid_for_file(file: &Path) -> Result<u32, Failure> {
    let wanted = file.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new(format!("there is no file {}", file.display()))
            .help("`komainu status` shows the running servers and their files"),
        _ => Failure::from(error).context(file.display()),
    })?;
    let uses = |pid: u32, answer: Result<Value, Failure>| {
        answer.unwrap_or_default()["file"].as_str().is_some_and(|used| {
            // The server may name its file relative to its working directory.
            let used = Path::new(&format!("/proc/{pid}/cwd")).join(used);
            used.canonicalize().is_ok_and(|used| used == wanted)
        })
    };
    let running = select_pids(None, control_client::serving_servers)?;
    let answers = control_client::send_command_to_all(&running, "ping");
    let asked = running.iter().copied().zip(answers);
    let found: Vec<u32> = asked.filter_map(|(pid, answer)| uses(pid, answer).then_some(pid)).collect();
    match found.as_slice() {
        [pid] => Ok(*pid),
        [] => Err(Failure::new(format!(
            "no server uses {}; {}",
            wanted.display(),
            several_servers_message(&running)
        ))),
        found => Err(Failure::new(several_servers_message(found))),
    }
}

/// Runs `komainu upgrade`: waits for the result and returns the text to print.
///
/// # Errors
/// No server runs, or several do and none is named; the new server does not start.
pub(crate) fn run_upgrade(arguments: &UpgradeArguments) -> Result<String, Failure> {
    send_command(arguments.pid, "upgrade")
}

/// Sends a command to the selected server.
fn send_command(pid: Option<u32>, line: &str) -> Result<String, Failure> {
    let answer = terminal::indent_texts(&control_client::send_command(select_pid(pid)?, line)?);
    for text in as_list(&answer["warnings"]).iter().filter_map(Value::as_str) {
        terminal::print_error_line(&format!("warning: {text}"));
    }
    Ok(format!("{}\n", terminal::sanitize(answer["done"].as_str().unwrap_or("done"))))
}

/// Returns the process id of the selected server.
///
/// # Errors
/// No server runs, or several do and none is named.
pub(crate) fn select_pid(pid: Option<u32>) -> Result<u32, Failure> {
    match select_pids(pid, control_client::serving_servers)?.as_slice() {
        [pid] => Ok(*pid),
        pids => Err(Failure::new(several_servers_message(pids))),
    }
}

/// Returns a message that lists the servers with their addresses and files.
pub(crate) fn several_servers_message(pids: &[u32]) -> String {
    const LISTED_MAX: usize = 20;
    let mut text = match pids {
        [_] => "one server runs: name it with --pid".to_owned(),
        _ => "several servers run: name one with --pid".to_owned(),
    };
    let shown = &pids[..pids.len().min(LISTED_MAX)];
    for (pid, answer) in shown.iter().zip(control_client::send_command_to_all(shown, "ping")) {
        let answer = answer.unwrap_or_default();
        let addresses: Vec<&str> = as_list(&answer["listen"]).iter().filter_map(Value::as_str).collect();
        let file = answer["file"].as_str().map(|file| format!(", {file}")).unwrap_or_default();
        let line = format!("{pid}: {}{file}", addresses.join(" "));
        text += &format!("\n  {}", terminal::sanitize(&line).replace('\n', "?"));
    }
    if pids.len() > LISTED_MAX {
        text += &format!("\n  and {} more: `komainu status` shows all", pids.len() - LISTED_MAX);
    }
    text
}

fn select_pids(pid: Option<u32>, all: fn() -> Vec<u32>) -> Result<Vec<u32>, Failure> {
    let pids = pid.map_or_else(all, |pid| vec![pid]);
    if pids.is_empty() {
        Err(Failure::new(format!(
            "no server of this user is running (there is no socket in {})",
            socket::socket_folder().display()
        )))
    } else {
        Ok(pids)
    }
}

/// Formats a server and its applications as a table.
pub(crate) fn format_server(server: &Value) -> String {
    let addresses: Vec<&str> = as_list(&server["listen"]).iter().filter_map(Value::as_str).collect();
    let mut table = TextTable::new(&[
        "",
        "PID",
        "state",
        "generation",
        "requests",
        "age",
        "CPU",
        "RSS",
        "PSS",
        "private dirty",
    ]);
    if server["supervisor"].is_object() {
        table.add_row(process_row("supervisor", &server["supervisor"], &format_age(server)));
    }
    table.add_row(process_row("server", server, &format_age(server)));
    for app in as_list(&server["apps"]) {
        let name = app["name"].as_str().unwrap_or_default();
        let processes = as_list(&app["processes"]);
        for (at, process) in processes.iter().enumerate() {
            table.add_row(process_row(if at == 0 { name } else { "" }, process, &format_age(process)));
        }
    }
    let apps = as_list(&server["apps"]).iter().flat_map(|app| as_list(&app["processes"]));
    let supervisor = Some(&server["supervisor"]).filter(|supervisor| supervisor.is_object());
    let all: Vec<&Value> = supervisor.into_iter().chain([server]).chain(apps).collect();
    let sum = |key: &str| all.iter().filter_map(|one| one["usage"][key].as_u64()).sum::<u64>();
    let mut total = vec![format!("{} process{}", all.len(), if all.len() == 1 { "" } else { "es" })];
    total.resize(6, String::new());
    // Resident sizes are not summed, since shared pages would be counted once per process.
    total.extend([format_cpu(sum("cpu_ms")), String::new()]);
    total.extend([format_bytes(sum("pss_bytes") as f64), format_bytes(sum("private_dirty_bytes") as f64)]);
    table.add_row(total);
    let version = server["version"].as_str().unwrap_or_default();
    let memory = format_memory(&server["memory"]).unwrap_or_default();
    let sandbox =
        server["sandbox"].as_str().map(|text| format!("  sandbox of the serving threads: {text}\n"));
    let table = table.plain("  ");
    let sandbox = sandbox.unwrap_or_default();
    let place = match addresses.as_slice() {
        // The successor has the addresses.
        [] if server["state"] == socket::DRAINING => "draining: it accepts no connections".to_owned(),
        [] => "without addresses".to_owned(),
        addresses => format!("on {}", addresses.join(", ")),
    };
    let kubernetes = format_kubernetes(&server["kubernetes"]).unwrap_or_default();
    format!("komainu {version} {place}\n{table}{memory}{kubernetes}{sandbox}")
}

/// Formats the lines about the API server of Kubernetes.
fn format_kubernetes(kubernetes: &Value) -> Option<String> {
    let text = |key: &str| kubernetes[key].as_str();
    let count = |value: &Value| format_thousands(value.as_u64().unwrap_or_default() as f64);
    let api = match (kubernetes["up"].as_bool()?, text("away_since")) {
        (true, _) => "answers".to_owned(),
        (false, since) => format!(
            "away since {}: {}",
            since.unwrap_or("the start"),
            text("fault").unwrap_or("it does not answer")
        ),
    };
    let changes = &kubernetes["changes"];
    let applied = text("applied").map_or("nothing is applied yet".to_owned(), |at| {
        format!(
            "last change applied {at} ({} of routes, {} of servers alone, {} of certificates alone, {} failed)",
            count(&changes["routes"]),
            count(&changes["servers"]),
            count(&changes["certificates"]),
            count(&changes["failed"])
        )
    });
    let leader =
        if kubernetes["leader"] == true { "writes statuses" } else { "another replica writes statuses" };
    Some(format!(
        "  API server: {api}\n  {applied}\n  {} objects, {} sites; {leader}\n",
        count(&kubernetes["objects"]),
        count(&kubernetes["sites"])
    ))
}

/// Formats the line about memory held for clients and upstream servers.
fn format_memory(memory: &Value) -> Option<String> {
    let of = |key: &str| memory[key].as_u64();
    let held = format_bytes(of("held_bytes")? as f64);
    let budget = format_bytes(of("budget_bytes")? as f64);
    let refused = match of("refused")? {
        0 => String::new(),
        count => format!("; {} requests refused for want of memory", format_thousands(count as f64)),
    };
    Some(format!("  held for clients and upstream servers: {held} of {budget} (`limits.memory`){refused}\n"))
}

fn process_row(name: &str, process: &Value, age: &str) -> Vec<String> {
    let number =
        |key: &str| process[key].as_u64().map_or_else(String::new, |value| format_thousands(value as f64));
    let usage = |key: &str| process["usage"][key].as_u64();
    let memory = |key: &str| usage(key).map_or_else(String::new, |value| format_bytes(value as f64));
    let state = match process["state"].as_str().unwrap_or_default() {
        "ready" if !as_list(&process["current"]).is_empty() => "busy",
        state => state,
    };
    vec![
        name.to_owned(),
        process["pid"].to_string(),
        state.to_owned(),
        number("generation"),
        number("requests"),
        age.to_owned(),
        usage("cpu_ms").map_or_else(String::new, format_cpu),
        memory("rss_bytes"),
        memory("pss_bytes"),
        memory("private_dirty_bytes"),
    ]
}

fn as_list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn format_cpu(ms: u64) -> String {
    format_time(ms as f64 * 1e6)
}

fn format_age(process: &Value) -> String {
    let time = Duration::from_millis(process["age_ms"].as_u64().unwrap_or_default());
    match time.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min", s / 60),
        s @ 7_200..172_800 => format!("{} h", s / 3_600),
        s => format!("{} d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn status_table_lists_server_and_workers() {
        let usage = json!({ "cpu_ms": 1500, "rss_bytes": 3 << 20, "pss_bytes": 2 << 20, "private_dirty_bytes": 1 << 20 });
        let worker = |pid: u32, state: &str| json!({ "pid": pid, "state": state, "generation": 2, "requests": 12345, "age_ms": 125_000, "usage": usage });
        let mut busy = worker(10, "ready");
        busy["current"] = json!([{ "method": "GET", "path": "/" }]);
        let server = json!({
            "pid": 7, "version": "1.2.3", "age_ms": 3_000, "listen": ["http://127.0.0.1:80"], "usage": usage,
            "apps": [{ "name": "shop", "processes": [worker(8, "prototype"), worker(9, "ready"), busy] }],
        });
        let text = format_server(&server);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["komainu", "1.2.3", "on", "http://127.0.0.1:80"]);
        assert_eq!(lines[2][..4], ["server", "7", "3", "s"]);
        assert_eq!(lines[3][..7], ["shop", "8", "prototype", "2", "12,345", "2", "min"]);
        assert_eq!(lines[4][..3], ["9", "ready", "2"]);
        assert_eq!(lines[5][..3], ["10", "busy", "2"]);
        assert_eq!(lines[6], ["4", "processes", "6.00", "s", "8.00", "MiB", "4.00", "MiB"]);
    }

    #[test]
    fn state_of_the_api_server_is_shown() {
        let changes = json!({ "routes": 3, "servers": 1200, "certificates": 1, "failed": 0 });
        let mut kubernetes = json!({ "up": true, "applied": "2026-11-30T10:00:00Z", "changes": changes, "sites": 5, "objects": 40, "leader": true });
        let shown = |kubernetes: &Value| {
            format_server(
                &json!({ "pid": 7, "version": "1", "listen": [], "apps": [], "kubernetes": kubernetes }),
            )
        };
        let text = shown(&kubernetes);
        assert!(text.contains("  API server: answers\n  last change applied 2026-11-30T10:00:00Z (3 of routes, 1,200 of servers alone"), "{text}");
        kubernetes["up"] = json!(false);
        kubernetes["away_since"] = json!("2026-11-30T10:01:00Z");
        kubernetes["fault"] = json!("Secret: cannot connect");
        let text = shown(&kubernetes);
        assert!(
            text.contains("  API server: away since 2026-11-30T10:01:00Z: Secret: cannot connect\n"),
            "{text}"
        );
        assert!(!shown(&Value::Null).contains("API server"));
    }

    #[test]
    fn server_without_usage_figures_is_shown() {
        let text =
            format_server(&json!({ "pid": 7, "version": "1", "listen": [], "usage": null, "apps": [] }));
        assert!(text.contains("server"), "{text}");
    }

    #[test]
    fn server_without_addresses_is_shown_with_its_state() {
        let heading = |state: &str| {
            let text =
                format_server(&json!({ "pid": 7, "version": "1", "state": state, "listen": [], "apps": [] }));
            text.lines().next().unwrap().to_owned()
        };
        assert_eq!(heading("draining"), "komainu 1 draining: it accepts no connections");
        assert_eq!(heading("serving"), "komainu 1 without addresses");
    }

    #[test]
    fn status_shows_held_memory_and_budget() {
        let memory = json!({ "held_bytes": 3 << 20, "budget_bytes": 512 << 20, "refused": 1_234 });
        let text = format_server(
            &json!({ "pid": 7, "version": "1", "listen": [], "usage": null, "apps": [], "memory": memory }),
        );
        assert!(text.contains("3.00 MiB of 512 MiB") && text.contains("1,234 requests refused"), "{text}");
    }
}

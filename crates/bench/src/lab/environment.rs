//! Starts the services and the subject of a cell, checks them, and prepares the load.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use failure::{Failure, FailureContext};
use http::{Fields, Version};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::child_processes::{self, ProcessTree, TempFolder};
use crate::job::free_port;
use crate::lab::file::{Lab, LabProcess, LabSettings, LabSubject, ReadyCondition};
use crate::lab::matrix::LabCell;
use crate::lab::template::{TemplateValues, fill};
use crate::load;
use crate::plan::{Arrivals, ConnectOptions, LoadPlan, Pace};
use crate::quantity;
use crate::request::{BenchRequest, RequestSettings};
use crate::session::{self, LoadSubject};
use crate::tally::LoadTally;
use crate::url::Url;

/// Timeout in milliseconds for a process to accept connections, and for a subject to return its first correct
/// response.
const READY_MS_MAX: u64 = 20_000;

/// Environment of an experiment: its folder, program and cores.
pub struct LabEnvironment {
    scratch: TempFolder,
    /// Path of this program, for Komainu subjects.
    komainu: PathBuf,
    /// CPU affinity of this process at its start.
    cores: CpuSet,
}

/// A cell whose processes are running.
pub struct RunningCell {
    /// Subject, ready for the load.
    pub subject: LoadSubject,
    /// Number of idle connections to hold in addition to the load.
    pub idle_connections: usize,
    /// Expected status, and expected content length if it is known.
    expected_status: u16,
    expected_bytes: Option<u64>,
    trees: Vec<(String, ProcessTree)>,
}

impl RunningCell {
    /// Returns an error if more than 1 % of the responses are wrong: a server that rejects requests is fast
    /// and would look good.
    #[must_use]
    pub fn response_error(&self, tally: &LoadTally) -> Option<String> {
        let right = tally
            .statuses()
            .iter()
            .find(|(code, _)| *code == self.expected_status)
            .map_or(0, |(_, count)| *count);
        let refused = tally.responses - right;
        let reported = |count: u64, what: String| {
            (count * 100 > tally.responses)
                .then(|| format!("wrong answers under load: {count} of {} {what}", tally.responses))
        };
        reported(refused, format!("were not {}", self.expected_status)).or_else(|| {
            let odd = if self.expected_bytes.is_some() { tally.different_lengths } else { 0 };
            reported(odd, "were not as long as the first".into())
        })
    }

    /// Returns the first process that has ended; none should end before the measurement.
    pub fn ended_process(&mut self) -> Option<String> {
        let dead = self
            .trees
            .iter_mut()
            .find_map(|(name, tree)| (!tree.is_alive()).then(|| (name.clone(), output_tail(tree))));
        dead.map(|(name, words)| format!("{name} died under load: {words}"))
    }
}

/// Returns the remedy if something that a process needs is not installed; `{{workers}}` in a path stands for
/// the folder of Komainu's language modules. `programs` are there whether they are installed or not.
#[must_use]
pub fn missing_requirement(
    process: &LabProcess,
    komainu: &Path,
    programs: &[(String, PathBuf)],
) -> Option<String> {
    let beside = komainu.parent().unwrap_or(Path::new("."));
    let folders = [beside.join("workers"), beside.join("../lib/komainu")];
    let there = |program: &str| match program.strip_prefix("{{workers}}/") {
        Some(language) => folders.iter().any(|folder| folder.join(language).exists()),
        None => programs.iter().any(|(name, _)| name == program) || is_installed(program),
    };
    let (program, source) = process.needs.iter().find(|(program, _)| !there(program))?;
    Some(match program.strip_prefix("{{workers}}/") {
        Some(language) => format!("Komainu's module for {language} is not there: {source}"),
        None => format!("{program} is not installed: the package {source} brings it"),
    })
}

/// Whether a program is installed. Debian installs servers in /usr/sbin, which may be missing in PATH.
fn is_installed(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .any(|folder| folder.join(program).is_file())
}

impl LabEnvironment {
    /// Writes the experiment's files and runs its `prepare` commands.
    ///
    /// # Errors
    /// Fails if a file cannot be written or a command fails.
    pub fn new(lab: &Lab, komainu: &Path) -> Result<LabEnvironment, Failure> {
        let scratch = TempFolder::new("lab")?;
        let cores = sched_getaffinity(None).map_err(Failure::new)?;
        let stage = LabEnvironment { scratch, komainu: komainu.to_path_buf(), cores };
        let values = stage.template_values();
        stage.write(stage.scratch.path(), &lab.files, &values)?;
        for command in &lab.prepare {
            let filled = fill(command, &values)?;
            let done = shell(&filled, None).current_dir(stage.scratch.path()).output();
            let done = done.context(&filled)?;
            if !done.status.success() {
                return Err(Failure::new(format!(
                    "{filled}: {}",
                    String::from_utf8_lossy(&done.stderr).trim()
                )));
            }
        }
        Ok(stage)
    }

    fn template_values(&self) -> TemplateValues {
        TemplateValues::from([
            ("dir".into(), self.scratch.path().display().to_string()),
            ("komainu".into(), self.komainu.display().to_string()),
        ])
    }

    fn write(&self, folder: &Path, files: &LabSettings, values: &TemplateValues) -> Result<(), Failure> {
        for (name, text) in files {
            let path = folder.join(name);
            let attempted = || format!("cannot write {}", path.display());
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).with_context(attempted)?;
            }
            // Values that depend on the cell are filled in when a process gets its own folder.
            fs::write(&path, fill(text, values)?).with_context(attempted)?;
        }
        Ok(())
    }

    /// Returns the folder with the programs that a subject runs instead of the installed ones, which is searched first.
    fn programs_folder(&self, subject: &LabSubject) -> Result<Option<PathBuf>, Failure> {
        if subject.programs.is_empty() {
            return Ok(None);
        }
        let folder = self.scratch.path().join("programs").join(slug(&subject.process.name));
        fs::create_dir_all(&folder)?;
        for (name, path) in &subject.programs {
            let link = folder.join(name);
            if !link.is_symlink() {
                std::os::unix::fs::symlink(path, &link)
                    .with_context(|| format!("cannot make {}", link.display()))?;
            }
        }
        Ok(Some(folder))
    }

    /// Returns the reason why a subject is not measured if its `if` fails.
    ///
    /// # Errors
    /// Fails if the command cannot be run.
    pub fn unmet_condition(&self, subject: &LabSubject) -> Result<Option<String>, Failure> {
        let Some(condition) = &subject.condition else { return Ok(None) };
        let command = fill(condition, &self.template_values())?;
        let output = shell(&command, self.programs_folder(subject)?.as_deref()).output()?;
        Ok((!output.status.success()).then(|| format!("the condition `{command}` does not hold")))
    }

    /// Returns the version that a process reports, in one line. `subject` is the subject whose process it is; `None` for
    /// a service.
    #[must_use]
    pub fn version(&self, process: &LabProcess, subject: Option<&LabSubject>) -> String {
        let mut values = self.template_values();
        if let Some(build) = subject.and_then(|subject| subject.komainu.as_deref()) {
            values.insert("komainu".into(), build.display().to_string());
        }
        let Some(Ok(command)) = process.version.as_deref().map(|text| fill(text, &values)) else {
            return String::new();
        };
        let Ok(programs) = subject.map_or(Ok(None), |subject| self.programs_folder(subject)) else {
            return String::new();
        };
        let Ok(output) = shell(&command, programs.as_deref()).output() else { return String::new() };
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&said)
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default()
            .trim()
            .to_string()
    }

    /// Starts a cell and waits for its first correct response.
    ///
    /// # Errors
    /// Returns the reason why the cell does not start or respond correctly; the cell counts as broken.
    pub fn start(&self, lab: &Lab, cell: &LabCell, settings: &LabSettings) -> Result<RunningCell, Failure> {
        let subject = &lab.subjects[cell.subject];
        let mut values = self.template_values();
        values.extend(cell.values(lab));
        if let Some(build) = &subject.komainu {
            values.insert("komainu".into(), build.display().to_string());
        }
        let settings: LabSettings = settings
            .iter()
            .map(|(key, value)| Ok((key.clone(), fill(value, &values)?)))
            .collect::<Result<_, Failure>>()?;
        let restore = self.pin(settings.get("cores"))?;
        let mut trees = Vec::new();
        for name in &subject.required_services {
            let service =
                lab.services.iter().find(|service| service.name == *name).expect("checked with the file");
            trees.push((name.clone(), self.spawn(service, &mut values, None)?));
        }
        let programs = self.programs_folder(subject)?;
        let own = self.spawn(&subject.process, &mut values, programs.as_deref())?;
        trees.push((subject.process.name.clone(), own));
        self.unpin(restore)?;
        let url = fill(&subject.url, &values)?;
        let (plan, url) = build_plan(&url, &settings, values.get("socket"), self.scratch.path())?;
        let counts = |name: &String| subject.measure.is_empty() || subject.measure.contains(name);
        let (server, beside): (Vec<_>, Vec<_>) = trees.iter().partition(|(name, _)| counts(name));
        let pids = |trees: Vec<&(String, ProcessTree)>| trees.iter().map(|(_, tree)| tree.pid()).collect();
        let server_pids = pids(server);
        let beside_pids = pids(beside);
        let bytes = subject.bytes.as_ref().map(|text| fill(text, &values)).transpose()?;
        let bytes = bytes.map(|text| text.parse()).transpose();
        let bytes =
            bytes.map_err(|_| Failure::new(format!("{}: bytes is a number", subject.process.name)))?;
        let version = parse_version(settings.get("http").map(String::as_str))?;
        let idle = settings
            .get("idle")
            .map_or(Ok(0), |text| text.parse())
            .map_err(|_| "idle is a number of connections")?;
        let loaded = LoadSubject { plan, url, version, server_pids, excluded_pids: beside_pids };
        let mut running = RunningCell {
            subject: loaded,
            idle_connections: idle,
            expected_status: subject.status,
            expected_bytes: bytes,
            trees,
        };
        wait_until_correct(&mut running, subject.status, bytes)?;
        Ok(running)
    }

    /// Starts one process in its own folder, with the programs of `programs` before the installed ones, and waits until
    /// it accepts connections.
    fn spawn(
        &self,
        process: &LabProcess,
        values: &mut TemplateValues,
        programs: Option<&Path>,
    ) -> Result<ProcessTree, Failure> {
        let name = &process.name;
        let own = self.scratch.path().join(slug(name));
        let socket = own.join("socket");
        let port = free_port()?;
        fs::create_dir_all(&own)?;
        // The previous repetition may have left its socket.
        let _ = fs::remove_file(&socket);
        for (key, value) in [
            ("port", port.to_string()),
            ("socket", socket.display().to_string()),
            ("own", own.display().to_string()),
        ] {
            values.insert(format!("{name}.{key}"), value.clone());
            values.insert(key.to_string(), value);
        }
        self.write(&own, &process.files, values)?;
        let line = fill(&process.run, values)?;
        let mut command = shell(&format!("exec {line}"), programs);
        let mut tree =
            ProcessTree::start(command.current_dir(&own), &own.join("output.log")).context(name)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let takes = |_: &ProcessTree| match process.ready {
            ReadyCondition::Port => TcpStream::connect(address).is_ok().then_some(()),
            ReadyCondition::Socket => UnixStream::connect(&socket).is_ok().then_some(()),
        };
        match tree.wait_until(READY_MS_MAX, takes) {
            Some(()) => Ok(tree),
            None => Err(Failure::new(format!("{name} does not start: {}", output_tail(&tree)))),
        }
    }

    /// Moves this thread to the servers' cores while children are started; returns the load generator's
    /// cores.
    fn pin(&self, cores: Option<&String>) -> Result<CpuSet, Failure> {
        let Some(cores) = cores else { return Ok(self.cores) };
        let wrong = || {
            format!(
                "cores: {cores:?}: write the servers' cores, a slash and the generator's, such as \"0 / 1\""
            )
        };
        let (servers, generator) = cores.split_once('/').ok_or_else(wrong)?;
        let parse = |text: &str| -> Result<CpuSet, Failure> {
            let mut set = CpuSet::new();
            for core in text.split(',') {
                let core: usize = core.trim().parse().map_err(|_| wrong())?;
                // Cores that do not exist are ignored, so that the experiment also runs on small machines.
                if core < CpuSet::MAX_CPU && self.cores.is_set(core) {
                    set.set(core);
                }
            }
            Ok(if set.count() == 0 { self.cores } else { set })
        };
        sched_setaffinity(None, &parse(servers)?).map_err(Failure::new)?;
        parse(generator)
    }

    fn unpin(&self, cores: CpuSet) -> Result<(), Failure> {
        sched_setaffinity(None, &cores).map_err(Failure::new)
    }
}

impl Drop for LabEnvironment {
    fn drop(&mut self) {
        // Fails only if the original cores are no longer available.
        let _ = sched_setaffinity(None, &self.cores);
    }
}

/// A shell that runs `line`; programs are searched in `first`, then where this process finds them.
fn shell(line: &str, first: Option<&Path>) -> Command {
    let mut command = Command::new("sh");
    let path = std::env::var("PATH").unwrap_or_default();
    let first = first.map_or_else(String::new, |first| format!("{}:", first.display()));
    command.args(["-c", line]).env("PATH", format!("{first}{path}:/usr/sbin"));
    command
}

/// A name of a folder for a process of this name.
fn slug(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

fn output_tail(tree: &ProcessTree) -> String {
    let output = tree.output();
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines.len() {
        0 => "it says nothing".to_string(),
        count => {
            let words = lines[count.saturating_sub(3)..].join(" / ");
            words.split_whitespace().collect::<Vec<_>>().join(" ")
        }
    }
}

/// Builds the load plan of one cell.
fn build_plan(
    url: &str,
    settings: &LabSettings,
    socket: Option<&String>,
    folder: &Path,
) -> Result<(LoadPlan, String), Failure> {
    let text = |key: &str| settings.get(key).map(String::as_str);
    let yes = |key: &str, default: bool| match text(key) {
        None => Ok(default),
        Some("true" | "on" | "yes") => Ok(true),
        Some("false" | "off" | "no") => Ok(false),
        Some(other) => Err(Failure::new(format!("load: {key} is on or off, not {other:?}"))),
    };
    let number = |key: &str, default: f64| text(key).map_or(Ok(default), quantity::count);
    let time = |key: &str, default: &str| quantity::parse_duration(text(key).unwrap_or(default));
    let manner = RequestSettings {
        version: parse_version(text("http"))?,
        keep_alive: yes("keep-alive", true)?,
        chunked: false,
        fields: Fields::new(),
    };
    // `unix:/path` requests `/path` over the subject's Unix socket.
    let (unix, url) = match url.strip_prefix("unix:") {
        Some(target) => (socket.map(PathBuf::from), format!("http://localhost{target}")),
        None => (None, url.to_string()),
    };
    let ask = BenchRequest {
        method: text("method").unwrap_or("GET").to_string(),
        url: Url::parse(&url)?,
        body: text("body").map_or(Ok(None), |text| request_body(text, folder))?,
        weight: 1,
    };
    let no_resumption = !yes("resumption", true)?;
    let tls_groups = text("groups").map_or_else(Vec::new, |all| {
        all.split(',').map(|group| group.trim().to_string()).filter(|group| !group.is_empty()).collect()
    });
    let tls_version = text("tls-version").map(str::to_string);
    let reach = ConnectOptions {
        unix,
        insecure: true,
        no_resumption,
        tls_version,
        tls_groups,
        ..ConnectOptions::default()
    };
    let mut plan = LoadPlan::new(std::slice::from_ref(&ask), &manner, &reach)?;
    plan.connections = number("connections", 50.0)? as usize;
    plan.duration = Some(time("duration", "5s")?);
    plan.warm_up = time("warm-up", "500ms")?;
    plan.timeout = time("timeout", "10s")?;
    plan.pipeline = number(if plan.is_multiplexed() { "streams" } else { "pipeline" }, 1.0)? as usize;
    plan.seed = number("seed", 1.0)? as u64;
    plan.threads = match number("threads", 0.0)? as usize {
        0 => session::suggested_threads(plan.connections, true),
        threads => threads,
    };
    if let Some(rate) = text("rate") {
        plan.pace = Pace::Open { rate: quantity::count(rate)?, arrivals: Arrivals::Poisson };
    }
    plan.check()?;
    Ok((plan, url))
}

/// Parses the HTTP version of a load.
fn parse_version(http: Option<&str>) -> Result<Version, Failure> {
    match http {
        None | Some("1.1") => Ok(Version::Http11),
        Some("1.0") => Ok(Version::Http10),
        Some("2") => Ok(Version::Http2),
        Some("3") => Ok(Version::Http3),
        Some(other) => Err(Failure::new(format!("load: http is 1.1, 1.0, 2 or 3, not {other:?}"))),
    }
}

/// Returns the content of a request: text, or `@` and the name of a file in the experiment's folder; `None`
/// for empty text.
fn request_body(text: &str, folder: &Path) -> Result<Option<Vec<u8>>, Failure> {
    match text.strip_prefix('@') {
        Some(file) => fs::read(folder.join(file)).map(Some).with_context(|| format!("load: body {file}")),
        None => Ok((!text.is_empty()).then(|| text.as_bytes().to_vec())),
    }
}

/// Sends requests until a response is correct, for at most [`READY_MS_MAX`].
fn wait_until_correct(running: &mut RunningCell, status: u16, bytes: Option<u64>) -> Result<(), Failure> {
    let mut plan = running.subject.plan.clone();
    (plan.connections, plan.threads, plan.pipeline) = (1, 1, 1);
    (plan.requests_max, plan.duration, plan.warm_up) = (Some(2), None, Duration::ZERO);
    plan.pace = Pace::Closed { think: Duration::ZERO };
    plan.timeout = Duration::from_secs(5);
    let deadline = Instant::now() + Duration::from_millis(READY_MS_MAX);
    loop {
        let wrong = match load::run_load(&plan, child_processes::stop_flag(), &mut ()) {
            Err(error) => error.to_string(),
            Ok(asked) => {
                let tally = &asked.tally;
                let each = tally.content_bytes / tally.responses.max(1);
                match (tally.statuses().as_slice(), tally.errors.iter().next()) {
                    (_, Some((kind, _, example))) => format!("{}: {example}", kind.name()),
                    (&[(found, 2)], None) if found != status => {
                        format!("it answers {found} instead of {status}")
                    }
                    (&[(_, 2)], None) if bytes.is_some_and(|bytes| bytes != each) => {
                        format!("its content has {each} bytes instead of {}", bytes.unwrap_or(0))
                    }
                    (&[(_, 2)], None) => return Ok(()),
                    (statuses, None) => format!("it answers now so, now so: {statuses:?}"),
                }
            }
        };
        if let Some(dead) = running.ended_process() {
            return Err(Failure::new(dead));
        }
        if Instant::now() >= deadline || child_processes::stop_flag().load(Ordering::Relaxed) {
            return Err(Failure::new(format!("wrong answer: {wrong}")));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

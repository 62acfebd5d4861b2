//! Starts the server and stays with it: signals, reload, drain.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use config::{AccessLog, Config};
use proxy::Group;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::access::{Access, FLUSH_MS};
use crate::assemble::{self, Descriptors, Plan, Seat};
use crate::control::{Control, Told};
use crate::hosting::{Handles, Hosting};
use crate::notice::Notices;
use crate::router::{Router, Shared, Table};
use crate::sink::{Sink, Target};
use crate::watch;

/// Where a configuration came from, to be read again.
pub(crate) type Reread = Box<dyn Fn() -> Result<Config, String>>;

/// The configuration in force, for all cores: they take it over at their next request.
struct Current {
    generation: AtomicU64,
    plan: Mutex<Arc<Plan>>,
    hosting: Arc<Hosting>,
    cores: usize,
}

impl Current {
    fn plan(&self) -> Arc<Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Every log that the server writes.
#[derive(Clone)]
struct Logs {
    access: Option<Sink>,
    notices: Notices,
}

impl Logs {
    fn open(config: &Config) -> io::Result<Logs> {
        let target = |sink: &config::Sink| match sink {
            config::Sink::Stdout => Target::Stdout,
            config::Sink::Stderr => Target::Stderr,
            config::Sink::File(path) => Target::File(PathBuf::from(path)),
        };
        let access = match config.log.access {
            AccessLog::Off => None,
            _ => Some(Sink::open(target(&config.log.file))?),
        };
        Ok(Logs { access, notices: Notices::new(Sink::open(target(&config.log.errors))?, config.log.level) })
    }

    /// Opens log files again; what was said before goes to the old ones. Takes a moment.
    fn reopen(&self) {
        self.notices.sink().reopen();
        self.access.iter().for_each(Sink::reopen);
    }

    fn close(&self) {
        // As if a second had passed: what is not told now never is.
        self.notices.tell_counts(Instant::now() + Duration::from_secs(1));
        self.access.iter().for_each(Sink::close);
        self.notices.sink().close();
    }
}

/// Serves until told to stop. With `watch`, applications are loaded anew when their files change. `ready` is told the
/// addresses once connections are accepted.
///
/// # Errors
/// What keeps the server from starting, for people.
pub(crate) fn serve(
    config: Config,
    reread: Option<Reread>,
    watch: bool,
    ready: impl FnOnce(&[net::Bind]),
) -> io::Result<()> {
    // Before anything is started: a signal that comes early must find us listening.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1])?;
    let logs = Logs::open(&config)?;
    let descriptors = Descriptors::new(&config, raise_descriptor_limit());
    let (level, notice) = descriptors.notice(&config);
    logs.notices.at(level, &notice);
    let options = assemble::engine(&config, &descriptors);
    let listens = assemble::listens(&config);
    let cores = options.threads;
    let plan = Plan::new(config, None, cores)?;
    let hosting = Arc::new(Hosting::new(cores, &logs.notices));
    hosting.apply(&plan.config.apps)?;
    let current = Arc::new(Current {
        generation: AtomicU64::new(0),
        plan: Mutex::new(Arc::new(plan)),
        hosting: hosting.clone(),
        cores,
    });
    let (theirs, their_logs, next) = (current.clone(), logs.clone(), AtomicUsize::new(0));
    let server = net::Server::start(&options, &listens, move |core| {
        router(core, next.fetch_add(1, Ordering::Relaxed), &theirs, &their_logs)
    })?;
    hook_panics(&logs.notices);
    let _control = open_control(&hosting, server.addresses(), options.memory.clone(), &logs.notices);
    if watch {
        watch::watch(hosting.folders(), hosting.clone(), logs.notices.clone())?;
    }
    ready(server.addresses());
    logs.notices.debug(&format!("serving on {}", addresses(server.addresses())));
    let stop = server.stop();
    let waiter = std::thread::spawn({
        let handle = signals.handle();
        move || {
            let drained = server.join();
            handle.close();
            drained
        }
    });
    let mut stopping = false;
    for signal in &mut signals {
        match signal {
            SIGUSR1 => logs.reopen(),
            SIGHUP => reload(&current, reread.as_ref(), &logs.notices),
            _ if std::mem::replace(&mut stopping, true) => {
                logs.notices.warn("told to stop again: not waiting for running requests");
                logs.close();
                std::process::exit(1);
            }
            _ => {
                logs.notices.info("stopping: finishing what runs");
                stop.drain();
            }
        }
    }
    let drained = waiter.join().map_err(|_| io::Error::other("the server panicked"))??;
    if !drained {
        logs.notices.warn("stopped with requests unfinished: `timeouts.drain` ran out");
    }
    hosting.stop();
    logs.notices.info("stopped");
    logs.close();
    Ok(())
}

/// A server that cannot be asked serves all the same.
fn open_control(
    hosting: &Arc<Hosting>,
    binds: &[net::Bind],
    memory: net::MemoryBudget,
    notices: &Notices,
) -> Option<Control> {
    let told = Told {
        hosting: hosting.clone(),
        addresses: binds.iter().map(ToString::to_string).collect(),
        since: Instant::now(),
        memory,
    };
    let opened = Control::open(told, notices.clone());
    opened.map_err(|error| notices.warn(&format!("`komainu status` will not work: {error}"))).ok()
}

fn addresses(binds: &[net::Bind]) -> String {
    binds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// One core's router.
fn router(core: &net::Core, index: usize, current: &Arc<Current>, logs: &Logs) -> io::Result<Shared> {
    let plan = current.plan();
    let handles = Handles::new(core, index, &current.hosting);
    let groups = RefCell::default();
    let seat = Seat { core, handles: &handles, notices: &logs.notices, groups: &groups };
    let table = Rc::new(assemble::table(&plan, Some(seat), current.cores)?);
    let access = logs.access.clone().map(|sink| Access::new(plan.config.log.access, sink));
    let router = Rc::new(Router::new(
        table,
        renewer(core.clone(), handles, groups, current.clone(), logs.notices.clone()),
        access,
        logs.notices.clone(),
    ));
    if logs.access.is_some() {
        let (flushed, clock) = (router.clone(), core.clone());
        core.spawn(async move {
            loop {
                clock.sleep(FLUSH_MS).await;
                flushed.flush();
            }
        });
    }
    let (flushed, clock, notices) = (router.clone(), core.clone(), logs.notices.clone());
    core.spawn(async move {
        loop {
            clock.sleep(1_000).await;
            // A core that nobody asks takes a new configuration over too: applications and upstream servers that are gone
            // from it end only when no core holds them any more.
            flushed.renew();
            tell_of_memory(&clock, &notices);
            notices.tell_counts(Instant::now());
        }
    });
    Ok(Shared(router))
}

/// Says that requests are refused for want of memory: one line a second for all cores.
fn tell_of_memory(core: &net::Core, notices: &Notices) {
    let memory = core.memory();
    if memory.pressure() < net::Pressure::Critical {
        return;
    }
    let kind = "`limits.memory` is nearly used up: requests are answered 503".to_owned();
    notices.once_a_second(config::Level::Error, kind.clone(), || {
        let budget = memory.budget();
        format!(
            "{kind} ({} of {} bytes held, {} requests refused)",
            budget.held_bytes(),
            budget.bytes_max(),
            budget.refused()
        )
    });
}

/// Gives a new table where the configuration has changed.
fn renewer(
    core: net::Core,
    handles: Handles,
    groups: RefCell<Vec<Group>>,
    current: Arc<Current>,
    notices: Notices,
) -> Box<dyn Fn() -> Option<Rc<Table>>> {
    let seen = Cell::new(current.generation.load(Ordering::Acquire));
    Box::new(move || {
        let generation = current.generation.load(Ordering::Acquire);
        if seen.replace(generation) == generation {
            return None;
        }
        let seat = Seat { core: &core, handles: &handles, notices: &notices, groups: &groups };
        match assemble::table(&current.plan(), Some(seat), current.cores) {
            Ok(table) => Some(Rc::new(table)),
            Err(error) => {
                notices.error(&format!("the new configuration is not used on this core: {error}"));
                None
            }
        }
    })
}

fn reload(current: &Current, reread: Option<&Reread>, notices: &Notices) {
    let Some(reread) = reread else {
        // What there is besides a file can be had anew all the same.
        let _ = current.hosting.apply(&current.plan().config.apps);
        return notices
            .info("SIGHUP: applications are loaded anew; there is no configuration file to read again");
    };
    // Assembled once here to see that it can be: folders and pages that are missing are found before it is used.
    let before = current.plan();
    let plan = |config| Plan::new(config, Some(&before), current.cores).map_err(|error| error.to_string());
    let checked = reread().and_then(plan);
    match checked {
        Err(error) => notices.error(&format!("the configuration stays as it was:\n{error}")),
        Ok(plan) => {
            let (new, old) = (&plan.config, &before.config);
            let late = late_changes(old, new);
            if !late.is_empty() {
                notices.warn(&format!("{} change when the server is started anew", late.join(", ")));
            }
            if let Err(error) = current.hosting.apply(&plan.config.apps) {
                notices.error(&error.to_string());
            }
            *current.plan.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(plan);
            current.generation.fetch_add(1, Ordering::Release);
            notices.info("the configuration was read again");
        }
    }
}

/// What differs and is not taken over by a server that runs. Of limits and timeouts, what routes may set for themselves is.
fn late_changes(old: &Config, new: &Config) -> Vec<&'static str> {
    let limits = config::Limits { body_bytes_max: old.limits.body_bytes_max, ..new.limits.clone() };
    let (body, write) = (old.timeouts.body, old.timeouts.write);
    let timeouts = config::Timeouts { body, write, ..new.timeouts.clone() };
    let changes = [
        ("`listen`", new.listen != old.listen),
        ("`threads`", new.threads != old.threads),
        ("`lenient_bare_lf`", new.lenient_bare_lf != old.lenient_bare_lf),
        ("`[limits]`", limits != old.limits),
        ("`[timeouts]`", timeouts != old.timeouts),
        ("`[log]`", new.log != old.log),
    ];
    changes.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

/// A panic is a fault of ours: it goes to the error log, with its place.
fn hook_panics(notices: &Notices) {
    let notices = notices.clone();
    std::panic::set_hook(Box::new(move |info| notices.error(&format!("a handler panicked: {info}"))));
}

/// As many descriptors as the system lets us have; tells how many.
fn raise_descriptor_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(1 << 20);
    if limit.current.is_some_and(|current| current < hard) {
        limit.current = Some(hard);
        // Where it fails the limit stays as it was.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}

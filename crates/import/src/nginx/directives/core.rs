//! Directives outside `http`: processes and events.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::process;
use super::super::translation::DirectiveRow;
use super::row::{block, each, not_needed, not_possible, together};

const EVENTS: &str = "not needed: each thread has its own queue of events";
const SERVICE: &str =
    "not needed: `komainu status` finds the server, a service manager starts it in the foreground";
const THREADS: &str = "not needed: there is one thread for each core";
const CONNECTIONS: &str =
    "not needed: the limit on connections follows that on open files; `connections` in `[limits]` lowers it";
const MODULES: &str = "there are no modules to load; `env` in `[apps.NAME]` sets variables for applications";

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    block("http", In::MAIN),
    not_needed("events", In::MAIN, Args::NONE, EVENTS),
    not_possible("mail", In::MAIN, Args::NONE, "Komainu is no proxy for mail: keep nginx for this part"),
    together("include", In::ANYWHERE, Args::ONE, Part::Places),
    each("user", In::MAIN, Args::ONE_OR_TWO, Part::Process, process::user),
    each("worker_processes", In::MAIN, Args::ONE, Part::Process, process::worker_processes),
    together("error_log", In::MAIN.or(In::PLACES).or(In::STREAMS), Args::SOME, Part::Site).harmless(),
    not_possible("load_module", In::MAIN, Args::ONE, MODULES).harmless(),
    not_possible("env", In::MAIN, Args::ONE, MODULES).harmless(),
    not_needed("use", In::EVENTS, Args::ONE, EVENTS),
    not_needed("multi_accept", In::EVENTS, Args::ONE, EVENTS),
    not_needed("accept_mutex", In::EVENTS, Args::ONE, EVENTS),
    not_needed("accept_mutex_delay", In::EVENTS, Args::ONE, EVENTS),
    not_needed("worker_aio_requests", In::EVENTS, Args::ONE, EVENTS),
    not_needed("epoll_events", In::EVENTS, Args::ONE, EVENTS),
    not_needed("worker_connections", In::EVENTS, Args::ONE, CONNECTIONS),
    not_needed("worker_rlimit_nofile", In::MAIN, Args::ONE, CONNECTIONS),
    not_needed("pid", In::MAIN, Args::ONE, SERVICE),
    not_needed("daemon", In::MAIN, Args::ONE, SERVICE),
    not_needed("master_process", In::MAIN, Args::ONE, SERVICE),
    not_needed("lock_file", In::MAIN, Args::ONE, SERVICE),
    not_needed("worker_shutdown_timeout", In::MAIN, Args::ONE, SERVICE),
    not_needed("worker_cpu_affinity", In::MAIN, Args::SOME, THREADS),
    not_needed("worker_priority", In::MAIN, Args::ONE, THREADS),
    not_needed("worker_rlimit_core", In::MAIN, Args::ONE, THREADS),
    not_needed("timer_resolution", In::MAIN, Args::ONE, THREADS),
    not_needed("pcre_jit", In::MAIN, Args::ONE, THREADS),
    not_needed("thread_pool", In::MAIN, Args::TWO_OR_THREE, THREADS),
    not_needed("working_directory", In::MAIN, Args::ONE, THREADS),
    not_needed("debug_connection", In::EVENTS, Args::ONE, THREADS),
];

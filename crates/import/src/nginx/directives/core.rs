//! Directives outside `http`: processes and events.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::process;
use super::super::translation::DirectiveRow;
use super::row::{block, each, together, untranslated};

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    block("http", In::MAIN),
    untranslated("events", In::MAIN, Args::NONE),
    untranslated("mail", In::MAIN, Args::NONE),
    together("include", In::ANYWHERE, Args::ONE, Part::Places),
    each("user", In::MAIN, Args::ONE_OR_TWO, Part::Process, process::user),
    each("worker_processes", In::MAIN, Args::ONE, Part::Process, process::worker_processes),
    together("error_log", In::MAIN.or(In::PLACES).or(In::STREAMS), Args::SOME, Part::Site).harmless(),
    untranslated("load_module", In::MAIN, Args::ONE).harmless(),
    untranslated("env", In::MAIN, Args::ONE).harmless(),
    untranslated("use", In::EVENTS, Args::ONE),
    untranslated("multi_accept", In::EVENTS, Args::ONE),
    untranslated("accept_mutex", In::EVENTS, Args::ONE),
    untranslated("accept_mutex_delay", In::EVENTS, Args::ONE),
    untranslated("worker_aio_requests", In::EVENTS, Args::ONE),
    untranslated("epoll_events", In::EVENTS, Args::ONE),
    untranslated("worker_connections", In::EVENTS, Args::ONE),
    untranslated("worker_rlimit_nofile", In::MAIN, Args::ONE),
    untranslated("pid", In::MAIN, Args::ONE),
    untranslated("daemon", In::MAIN, Args::ONE),
    untranslated("master_process", In::MAIN, Args::ONE),
    untranslated("lock_file", In::MAIN, Args::ONE),
    untranslated("worker_shutdown_timeout", In::MAIN, Args::ONE),
    untranslated("worker_cpu_affinity", In::MAIN, Args::SOME),
    untranslated("quic_bpf", In::MAIN, Args::ONE),
    untranslated("worker_priority", In::MAIN, Args::ONE),
    untranslated("worker_rlimit_core", In::MAIN, Args::ONE),
    untranslated("timer_resolution", In::MAIN, Args::ONE),
    untranslated("pcre_jit", In::MAIN, Args::ONE),
    untranslated("thread_pool", In::MAIN, Args::TWO_OR_THREE),
    untranslated("working_directory", In::MAIN, Args::ONE),
    untranslated("debug_connection", In::EVENTS, Args::ONE),
];

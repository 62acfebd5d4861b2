//! Passenger.

use crate::directive::{ForeignDirective, here, not_needed};

const DIRECTIVES: &[ForeignDirective] = &[
    here(&["passenger_enabled"], "`app`, with `files` beside it"),
    here(&["passenger_app_root", "passenger_startup_file"], "`folder`, `rack` or `wsgi` in `[apps.NAME]`"),
    here(&["passenger_ruby", "passenger_python"], "`interpreter`, `virtualenv` in `[apps.NAME]`"),
    here(
        &["passenger_max_pool_size", "passenger_min_instances", "passenger_pool_idle_time"],
        "`workers = { min, max }`, `timeouts.idle` of the application; each application has its own",
    ),
    here(&["passenger_spawn_method"], "`preload` in `[apps.NAME]`, which is on by default"),
    not_needed(&["passenger_pre_start"], "workers start with the server"),
    here(
        &["passenger_max_requests", "passenger_memory_limit"],
        "`recycle = { requests, memory }` in `[apps.NAME]`",
    ),
    here(&["passenger_max_request_time"], "`request` in `timeouts` of `[apps.NAME]`"),
    here(&["passenger_max_request_queue_size"], "`queue` in `[apps.NAME]`"),
    here(&["passenger_thread_count", "passenger_concurrency_model"], "`threads` in `[apps.NAME]`"),
    here(&["passenger_user", "passenger_env_var"], "`user`, `env` in `[apps.NAME]`"),
    here(&["passenger_friendly_error_pages"], "`show_errors`"),
    here(&["passenger_base_uri"], "`path = \"/shop/*\"`, `app = { name = \"shop\", strip_prefix = true }`"),
    here(&["passenger_sticky_sessions"], "`balance = \"sticky\"` of upstream servers; not for workers"),
    here(&["touch tmp/restart.txt"], "`komainu reload shop`"),
    here(&["passenger-status", "passenger-memory-stats"], "`komainu status`"),
    here(&["PhusionPassenger.on_event(:starting_worker_process)"], "`Komainu.after_fork`"),
    here(&["(out-of-band work)"], "`rack.response_finished`, `psgix.cleanup`"),
];

pub(crate) const TABLES: &[&[ForeignDirective]] = &[DIRECTIVES];

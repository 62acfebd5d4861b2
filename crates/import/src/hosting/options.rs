//! Settings of application servers that open nothing if they are lost. All others close the application unless
//! they are translated: a setting that the importer does not know may refuse requests.

use crate::kind::ImportKind;

/// Settings of all servers that neither refuse requests nor choose addresses or the application.
const HARMLESS: &str = "\
    workers max_pool_size min_instances threads thread_count worker_class timeout worker_timeout \
    max_request_time graceful_timeout worker_shutdown_timeout force_shutdown_after worker_boot_timeout \
    start_timeout max_requests max_requests_jitter memory_limit pool_idle_time max_pool_idle_time \
    max_request_queue_size keepalive keepalive_timeout persistent_timeout disable_keepalive \
    enable_keepalive preload_app preload_app! preload preload! spawn_method worker_connections backlog \
    reuse_port sendfile no_sendfile worker_tmp_dir tmp_upload_dir daemon daemonize D pidfile pid \
    pid_file tag proc_name default_proc_name name chdir directory user group initgroups umask \
    environment raw_env env envvars pythonpath python ruby static_files_dir include accesslog access_log \
    log_file errorlog error_log stdout_redirect loglevel log_level access_log_format access_logformat \
    logconfig logconfig_dict logconfig_json logger_class log_formatter log_requests syslog syslog_addr \
    syslog_prefix syslog_facility log_syslog log_syslog_to log_syslog_prefix log_syslog_facility \
    capture_output statsd_host statsd_prefix dogstatsd_tags enable_backlog_metric \
    disable_redirect_access_to_syslog enable_stdio_inheritance limit_request_line limit_request_fields \
    limit_request_field_size http_content_length_limit ssl_version ciphers ssl_cipher ssl_cipher_filter \
    do_handshake_on_connect suppress_ragged_eofs reload reload_engine reload_extra_files \
    reload_extra_file spew check_config print_config quiet q";

const GUNICORN: &str = "\
    forwarded_allow_ips secure_scheme_headers forwarder_headers header_map strip_header_spaces \
    permit_obsolete_folding permit_unconventional_http_method permit_unconventional_http_version \
    casefold_http_method http_protocols http2_cleartext http2_max_concurrent_streams \
    http2_initial_window_size http2_max_frame_size http2_max_header_list_size http_parser asgi_loop \
    asgi_lifespan asgi_disconnect_grace_period root_path dirty_apps dirty_workers dirty_timeout \
    dirty_threads dirty_graceful_timeout on_dirty_starting dirty_post_fork dirty_worker_init \
    dirty_worker_exit control_socket control_socket_mode control_socket_disable \
    websocket_max_message_size on_starting on_reload when_ready pre_fork post_fork post_worker_init \
    worker_int worker_abort pre_exec post_request child_exit worker_exit nworkers_changed on_exit";

const PUMA: &str = "\
    fork_worker nakayoshi_fork first_data_timeout wait_for_less_busy_worker state_path state_permission \
    activate_control_app control_url control_token control restart_command on_restart before_restart \
    on_booted after_booted on_stopped after_stopped before_fork on_worker_boot before_worker_boot \
    on_worker_shutdown before_worker_shutdown on_worker_fork before_worker_fork after_worker_fork \
    after_worker_boot on_refork before_refork after_refork on_thread_start before_thread_start \
    on_thread_exit before_thread_exit out_of_band lowlevel_error_handler prune_bundler \
    raise_exception_on_sigterm extra_runtime_dependencies worker_check_interval worker_culling_strategy \
    queue_requests shutdown_debug max_fast_inline max_keep_alive io_selector_backend \
    mutate_stdout_and_stderr_to_sync_on_write silence_single_worker_warning \
    silence_fork_callback_warning clean_thread_locals drain_on_shutdown idle_timeout debug early_hints \
    rack_url_scheme low_latency enable_keep_alives fiber_per_request fork_worker_after_requests \
    redirect_stdout redirect_stderr redirect_append dir S state I puts print p warn raise require \
    require_relative else elsif when rescue ensure gc_before_fork";

const STARMAN: &str = "\
    read_timeout min_servers max_servers min_spare_servers max_spare_servers proctitle disable_proctitle \
    enable_proctitle r R Reload M I L loader server s no_default_middleware default_middleware";

const PASSENGER: &str = "\
    passenger_version engine friendly_error_pages friendly_error_pages_auto app_root sticky_sessions \
    sticky_sessions_cookie_name sticky_sessions_cookie_attributes vary_turbocache_by_cookie turbocaching \
    rolling_restarts resist_deployment_errors restart_dir restart_directory instance_registry_dir \
    data_buffer_dir core_file_descriptor_ulimit app_file_descriptor_ulimit disable_security_update_check \
    security_update_check_proxy disable_anonymous_telemetry anonymous_telemetry_proxy debugger \
    concurrency_model unlimited_concurrency_paths force_max_concurrent_requests_per_process \
    load_shell_envvars preload_bundler abort_websockets_on_process_shutdown admin_panel_url \
    admin_panel_auth_type admin_panel_username admin_panel_password nginx_version nginx_bin \
    nginx_tarball auto no_install_runtime runtime_check_only stat_throttle_rate max_preloader_idle_time \
    max_requests_per_process nodejs meteor_app_settings benchmark open_file_descriptor_limit";

/// Names of gunicorn's settings that are none of the harmless ones. Names that gunicorn does not know are variables of
/// its file.
const GUNICORN_OTHERS: &str = "\
    bind wsgi_app paste raw_paste_global_conf pre_request ssl_context proxy_protocol proxy_allow_ips \
    protocol uwsgi_allow_ips keyfile certfile cert_reqs ca_certs config django_settings";

/// Words of Puma's file that are addresses, or may refuse requests.
const PUMA_OTHERS: &str = "\
    bind port ssl_bind bind_to_activated_sockets clear_binds! set_default_host app rackup load plugin \
    inject set_remote_address supported_http_methods instance_eval instance_exec eval send public_send \
    __send__ _load_from _offer_plugins";

fn has_word(words: &str, name: &str) -> bool {
    words.split_ascii_whitespace().any(|word| word == name)
}

/// Whether the loss of a setting opens nothing.
pub(super) fn is_harmless(kind: ImportKind, name: &str) -> bool {
    let own = match kind {
        ImportKind::Gunicorn => GUNICORN,
        ImportKind::Puma => PUMA,
        ImportKind::Starman => STARMAN,
        _ => PASSENGER,
    };
    has_word(HARMLESS, name) || has_word(own, name)
}

/// Whether gunicorn has a setting of this name.
pub(super) fn is_of_gunicorn(name: &str) -> bool {
    is_harmless(ImportKind::Gunicorn, name) || has_word(GUNICORN_OTHERS, name)
}

/// Whether a setting names an address, so that it is left out if it is code.
pub(super) fn is_address(name: &str) -> bool {
    const ADDRESSES: [&str; 9] = [
        "bind",
        "port",
        "listen",
        "host",
        "address",
        "socket_file",
        "socket",
        "ssl_port",
        "bind_to_activated_sockets",
    ];
    ADDRESSES.contains(&name)
}

/// Returns the words of a line of code that may be settings other than harmless ones.
pub(super) fn named_settings(kind: ImportKind, text: &str) -> Vec<&str> {
    let known = if kind == ImportKind::Puma { PUMA_OTHERS } else { GUNICORN_OTHERS };
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '!');
    let mut found = Vec::new();
    for word in text.split(|c| !is_part(c)).filter(|word| has_word(known, word)) {
        if !found.contains(&word) {
            found.push(word);
        }
    }
    found
}

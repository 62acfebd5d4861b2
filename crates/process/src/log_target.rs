//! Destinations of logs in a server that may have a supervisor.

use std::io;
use std::sync::Arc;

use logging::Sink;
use logging::remote::{RemoteTarget, host_name};
use logging::sink::LogTarget;
use otlp::OtlpOptions;

use crate::config_files::ConfigFiles;
use crate::link::{self, SupervisorLink};

/// The target of a log; the supervisor, if there is one, opens files.
///
/// # Errors
/// The file of header fields cannot be read.
pub(crate) fn log_target(link: Option<&SupervisorLink>, sink: &Sink) -> io::Result<LogTarget> {
    Ok(match (link.cloned(), sink) {
        (link, Sink::Otlp(otlp)) => {
            let headers =
                ConfigFiles::new(link).headers("a log", &otlp.headers, otlp.headers_file.as_ref())?;
            let url = otlp.to.clone();
            let service = otlp.service.clone();
            let options = OtlpOptions { url, service, instance: host_name(), headers };
            LogTarget::Remote(RemoteTarget::Otlp(options))
        }
        (Some(link), Sink::File(path)) => {
            let named = path.clone();
            LogTarget::OpenedElsewhere {
                path: path.clone(),
                open: Arc::new(move || link::open_log(&link, &named)),
            }
        }
        _ => LogTarget::from(sink),
    })
}

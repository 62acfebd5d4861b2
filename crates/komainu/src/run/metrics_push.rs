//! Periodic push of metrics to a collector (`[metrics]`), on a separate thread.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::otlp::{OtlpClient, OtlpReport, OtlpSendError, OtlpSignal};
use logging::notice::ErrorLog;
use logging::otlp_record::now_ns;
use operator::endpoint::ControlSources;
use telemetry::otlp::{self, CountedTime, PushOptions};

/// Maximum time that a stop waits for the last values to be sent.
const LAST_PUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The push of metrics, and its thread if a collector is configured.
pub(crate) struct MetricsPush {
    sources: ControlSources,
    notices: ErrorLog,
    /// Start of counting, in nanoseconds since 1970.
    start_ns: u64,
    running: Mutex<Option<RunningPush>>,
}

/// A thread that sends to one collector. It ends when the sender is dropped; a message makes it send once
/// more first.
struct RunningPush {
    options: PushOptions,
    finish_request: Sender<()>,
    thread: JoinHandle<()>,
}

impl MetricsPush {
    /// Creates the push of a server that has just started, without a thread.
    pub(crate) fn new(sources: ControlSources, notices: ErrorLog) -> MetricsPush {
        MetricsPush { sources, notices, start_ns: now_ns(), running: Mutex::default() }
    }

    fn running(&self) -> MutexGuard<'_, Option<RunningPush>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies new options. A thread with the same options is kept.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn apply(&self, options: Option<PushOptions>) -> io::Result<()> {
        let mut running = self.running();
        if running.as_ref().map(|running| &running.options) == options.as_ref() {
            return Ok(());
        }
        *running = None;
        let Some(options) = options else { return Ok(()) };
        let (last, orders) = channel();
        let client = OtlpClient::new(options.otlp.clone(), OtlpSignal::Metrics)?;
        let notices = self.notices.clone();
        let log = Box::new(move |text: &str| notices.warn(text));
        let report = OtlpReport::new("documents", Arc::new(AtomicU64::new(0)), log);
        let mut sending = MetricsSender {
            sources: self.sources.clone(),
            options: options.clone(),
            start_ns: self.start_ns,
            client,
            report,
        };
        let thread =
            std::thread::Builder::new().name("metrics".into()).spawn(move || sending.run(&orders))?;
        *running = Some(RunningPush { options, finish_request: last, thread });
        Ok(())
    }

    /// Stops sending.
    pub(crate) fn stop(&self) {
        *self.running() = None;
    }

    /// Sends the last values, and waits at most [`LAST_PUSH_TIMEOUT`] for this.
    pub(crate) fn finish(&self) {
        let Some(RunningPush { finish_request: last, thread, .. }) = self.running().take() else { return };
        // The thread has not ended, because its sender still exists.
        let _ = last.send(());
        let until = Instant::now() + LAST_PUSH_TIMEOUT;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// State of the sending thread.
struct MetricsSender {
    sources: ControlSources,
    options: PushOptions,
    start_ns: u64,
    client: OtlpClient,
    report: OtlpReport,
}

impl MetricsSender {
    fn run(&mut self, finish_requests: &Receiver<()>) {
        let mut pause = self.options.interval;
        loop {
            match finish_requests.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => pause = self.send_values(),
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(()) => {
                    self.send_values();
                    return;
                }
            }
        }
    }

    /// Sends the current values; returns the pause until the next ones.
    fn send_values(&mut self) -> Duration {
        let families = self.sources.families();
        let span = CountedTime { start_ns: self.start_ns, now_ns: now_ns() };
        let (start, end) = self.client.frame();
        let items = otlp::items(&families, span, self.options.histograms);
        let place = format!("metrics: {}", self.client.url());
        match self.client.send(format!("{start}{items}{end}").into_bytes()) {
            Ok(refused) => {
                self.report.record_success(&place, &refused);
                self.options.interval
            }
            Err(error @ OtlpSendError { retry_after: again, .. }) => {
                self.report.record_failure(
                    &place,
                    &error,
                    "the values of a later time are sent as soon as they are taken",
                );
                again.unwrap_or(self.options.interval)
            }
        }
    }
}

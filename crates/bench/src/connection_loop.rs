//! Load of one connection, independent of the protocol: connects, takes requests, counts responses and
//! reconnects.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use net::client::LocalNotify;
use net::{Core, Fault, Http3Client, Interest, Link, Stream};
use times::{Millis, Moment};

use crate::clock::now_ns;
use crate::connect::{self, ConnectTimes};
use crate::load_state::{LoadState, RequestJob};
use crate::plan::{LoadTarget, Pace};
use crate::quantity;
use crate::request_failure::RequestFailure;
use crate::tally::ErrorKind;

/// Wait in milliseconds after a failed connection; doubled after each further failure, up to
/// [`BACK_OFF_MS_MAX`].
const BACK_OFF_MS: u64 = 5;
const BACK_OFF_MS_MAX: u64 = 500;

/// Protocol-specific part of a load connection.
pub(crate) trait JobConnection {
    /// Returns the protocol-independent part.
    fn connection_state(&mut self) -> &mut ConnectionState;

    /// Runs one connection from connect to close. Returns true if no work is left.
    async fn serve_connection(&mut self) -> Result<bool, RequestFailure>;

    /// Returns the bytes of content received of incomplete responses.
    fn content_bytes(&self) -> u64;

    /// Handles the end of the connection: puts requests without a response back into the queue.
    fn requeue_unanswered(&mut self);
}

/// Protocol-independent state of a load connection.
pub(crate) struct ConnectionState {
    pub(crate) load_state: Rc<LoadState>,
    origin: usize,
    request_notify: Rc<LocalNotify>,
    /// Requests that were taken, but whose connection failed: they are sent first.
    pub(crate) retry_queue: VecDeque<RequestJob>,
    /// Number of responses on this connection.
    pub(crate) response_count: u64,
    /// Time of the latest read or other event, in nanoseconds.
    pub(crate) now_ns: u64,
    /// Whether `request_notify` is registered for the next due request.
    is_registered: bool,
    /// Whether the first connection attempt is in progress.
    is_first_attempt_running: bool,
    /// Whether the first connection attempt has started, regardless of the result.
    has_first_attempt_started: bool,
}

/// A complete response.
pub(crate) struct CompleteResponse {
    pub(crate) job: RequestJob,
    pub(crate) sent_ns: u64,
    /// Time of the first byte, in nanoseconds.
    pub(crate) first_ns: u64,
    pub(crate) status: u16,
    pub(crate) content_bytes: u64,
    /// Hash of the content; 0 if contents are not compared.
    pub(crate) hash: u64,
}

/// Runs one connection after another until the run has ended.
pub(crate) async fn run_connections(mut connection: impl JobConnection, delay: Duration) {
    let world = connection.connection_state().load_state.clone();
    world.core.sleep(delay.into()).await;
    let mut back_off_ms = BACK_OFF_MS;
    loop {
        let outcome = connection.serve_connection().await;
        let outcome = outcome.map_err(|failure| explain_timeout(failure, connection.content_bytes()));
        connection.requeue_unanswered();
        let jobs = connection.connection_state();
        match outcome {
            Ok(true) => return,
            Ok(false) => {}
            Err(failure) => jobs.fail_requests(&failure),
        }
        if jobs.response_count > 0 {
            back_off_ms = BACK_OFF_MS;
        } else if !world.is_over() {
            world.core.sleep(Millis(back_off_ms)).await;
            back_off_ms = (back_off_ms * 2).min(BACK_OFF_MS_MAX);
        }
    }
}

/// Turns a timeout after the response has started into an error that says how much was received.
pub(crate) fn explain_timeout(failure: RequestFailure, content_bytes: u64) -> RequestFailure {
    if failure.kind != ErrorKind::Timeout {
        return failure;
    }
    let example = match content_bytes {
        0 => "no response in time".to_string(),
        _ => format!(
            "the response did not end in time, after {} of content",
            quantity::format_bytes(content_bytes as f64)
        ),
    };
    RequestFailure::new(ErrorKind::Timeout, example)
}

impl ConnectionState {
    pub(crate) fn new(load_state: Rc<LoadState>, origin: usize) -> ConnectionState {
        let bell = Rc::new(LocalNotify::new(&load_state.core));
        ConnectionState {
            load_state,
            origin,
            request_notify: bell,
            retry_queue: VecDeque::new(),
            response_count: 0,
            now_ns: 0,
            is_registered: false,
            is_first_attempt_running: false,
            has_first_attempt_started: false,
        }
    }

    /// Connects when there is a request to send; returns `None` if there will be none.
    pub(crate) async fn connect_when_needed(&mut self) -> Result<Option<Link>, RequestFailure> {
        if !self.prepare_connection().await {
            return Ok(None);
        }
        let link = self.connect(connect::connect_link).await?;
        self.now_ns = now_ns();
        Ok(Some(link))
    }

    /// Waits on an idle connection for the next request. Returns false if the server has closed the
    /// connection meanwhile, which HTTP allows: no request was lost.
    pub(crate) async fn wait_for_request(&mut self, link: &mut Link) -> bool {
        self.wait_for_next().await;
        self.response_count == 0 || link.is_reusable()
    }

    /// Waits for the next request.
    pub(crate) async fn wait_for_next(&mut self) {
        self.wait_think_time().await;
        if !self.wait_until_available().await {
            // The connection is closed together with all others, after the run has been counted.
            std::future::pending::<()>().await;
        }
    }

    /// Connects as [`ConnectionState::connect_when_needed`] does, for HTTP/3.
    pub(crate) async fn connect_http3_when_needed(&mut self) -> Result<Option<Http3Client>, RequestFailure> {
        if !self.prepare_connection().await {
            return Ok(None);
        }
        let client = self.connect(connect::connect_http3).await?;
        self.now_ns = now_ns();
        Ok(Some(client))
    }

    /// Waits until a connection is needed. Returns false if there will be no request.
    async fn prepare_connection(&mut self) -> bool {
        self.response_count = 0;
        // An open loop connects in advance; otherwise a connection is made when there is a request.
        let stays_open = self.load_state.plan.is_open() && self.load_state.plan.keep_alive;
        stays_open || self.wait_until_available().await
    }

    async fn connect<L>(
        &mut self,
        connect: impl AsyncFn(&Core, &LoadTarget, u64) -> Result<(L, ConnectTimes), RequestFailure>,
    ) -> Result<L, RequestFailure> {
        let world = &self.load_state;
        self.is_first_attempt_running |= !self.has_first_attempt_started;
        self.has_first_attempt_started = true;
        // Thousands of attempts in a row would delay the end of the run, so the clock is checked between them.
        while world.should_yield() {
            world.core.yield_now().await;
        }
        if world.has_ended() {
            if !world.plan.is_open() {
                // Their requests were not sent.
                self.retry_queue.drain(..).for_each(|_| world.finish_request());
            }
            return std::future::pending().await;
        }
        let timeout_ms = world.plan.connect_timeout.as_millis() as u64;
        let dialled = connect(&world.core, &world.plan.origins[self.origin], timeout_ms).await;
        self.is_first_attempt_running = false;
        let (link, spent) = dialled?;
        let mut tally = world.tally.borrow_mut();
        tally.connections += 1;
        tally.connect.record(spent.connect_ns);
        if let Some((ns, agreed)) = spent.tls {
            tally.count_handshake(agreed, ns);
        }
        Ok(link)
    }

    async fn wait_think_time(&mut self) {
        if let Pace::Closed { think } = self.load_state.plan.pace
            && !think.is_zero()
            && self.response_count > 0
        {
            self.load_state.core.sleep(think.into()).await;
            self.now_ns = now_ns();
        }
    }

    /// Waits until there is a request to send; returns false if there will be none.
    async fn wait_until_available(&mut self) -> bool {
        while self.retry_queue.is_empty() {
            if self.now_ns == 0 || !self.load_state.plan.keep_alive {
                self.now_ns = now_ns();
            }
            if let Some(job) = self.load_state.take_request(self.origin, self.now_ns) {
                self.retry_queue.push_back(job);
            } else if self.load_state.is_over() {
                return false;
            } else {
                self.register();
                self.request_notify.notified().await;
                self.is_registered = false;
                self.now_ns = now_ns();
            }
        }
        true
    }

    /// Lets the next due request wake this connection.
    fn register(&mut self) {
        if !std::mem::replace(&mut self.is_registered, true) {
            self.load_state.register_idle(self.request_notify.clone());
        }
    }

    /// Waits until the stream meets the interest, a request is due that the connection has room for unless it `is_full`,
    /// or the deadline has passed.
    ///
    /// # Errors
    /// The connection has failed, or the deadline has passed ([`Fault::Timeout`]).
    pub(crate) async fn wait_for_stream(
        &mut self,
        stream: &Stream,
        interest: Interest,
        is_full: bool,
        deadline: Moment,
    ) -> Result<(), Fault> {
        self.prepare_wait(is_full);
        let waited = self.request_notify.or_ready(stream, interest, deadline).await;
        self.finish_wait(is_full);
        waited
    }

    /// Like [`ConnectionState::wait_for_stream`], for a connection of HTTP/3.
    pub(crate) async fn wait_for_packets(
        &mut self,
        client: &mut Http3Client,
        is_full: bool,
        deadline: Moment,
    ) {
        self.prepare_wait(is_full);
        self.request_notify.or_packets(client, deadline).await;
        self.finish_wait(is_full);
    }

    fn prepare_wait(&mut self, is_full: bool) {
        if self.load_state.plan.is_open() && !is_full {
            self.register();
        }
    }

    fn finish_wait(&mut self, is_full: bool) {
        self.now_ns = now_ns();
        if self.request_notify.take() {
            self.is_registered = false;
            if is_full {
                // Another connection may have room for the request.
                self.load_state.notify_idle();
            }
        }
    }

    /// Returns the next request to send now, if there is one.
    pub(crate) fn next_request(&mut self) -> Option<RequestJob> {
        let plan = &self.load_state.plan;
        let mut job = self
            .retry_queue
            .pop_front()
            .or_else(|| self.load_state.take_request(self.origin, self.now_ns))?;
        if !plan.is_open() && plan.keep_alive {
            // Connection time is reported separately and is not part of the latency.
            job.due_ns = self.now_ns;
        }
        Some(job)
    }

    /// Returns the deadline for the response to a request sent at `sent_ns`; for `None`, counted from the
    /// current time.
    pub(crate) fn deadline_ms(&self, sent_ns: Option<u64>) -> u64 {
        // Rounded up, so that no response times out too early.
        sent_ns.unwrap_or(self.now_ns).div_ceil(1_000_000) + self.load_state.plan.timeout.as_millis() as u64
    }

    /// Counts a complete response.
    pub(crate) fn record(&mut self, response: &CompleteResponse) {
        let world = &self.load_state;
        let expected = &world.run_state.expected[response.job.request as usize];
        let &(length, content) = expected.get_or_init(|| (response.content_bytes, response.hash));
        let mut tally = world.tally.borrow_mut();
        tally.latency.record(self.now_ns - response.job.due_ns);
        tally.first_byte.record(response.first_ns.saturating_sub(response.sent_ns));
        tally.responses += 1;
        tally.reused_responses += u64::from(self.response_count > 0);
        tally.content_bytes += response.content_bytes;
        tally.different_lengths += u64::from(length != response.content_bytes);
        tally.different_contents += u64::from(content != response.hash);
        tally.count_status(response.status);
        drop(tally);
        world.last_end_ns.set(self.now_ns);
        world.longest_ns.set(world.longest_ns.get().max(self.now_ns - response.job.due_ns));
        world.finish_request();
        self.response_count += 1;
    }

    /// Counts all requests in progress as failed.
    fn fail_requests(&mut self, failure: &RequestFailure) {
        let plan = &self.load_state.plan;
        let was_made = !matches!(failure.kind, ErrorKind::Connect | ErrorKind::Tls);
        if self.retry_queue.is_empty() || !was_made && plan.is_open() && plan.keep_alive {
            // An open-loop connection could not be made in advance: its requests are for others.
            self.load_state.tally.borrow_mut().errors.add(failure.kind, 1, &failure.example);
            while let Some(job) = self.retry_queue.pop_back() {
                self.load_state.return_request(job);
            }
        }
        let now_ns = now_ns();
        for job in self.retry_queue.drain(..) {
            self.load_state.fail_request(job, failure.kind, &failure.example, now_ns);
        }
    }
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        let world = &self.load_state;
        let was_never_connected = self.is_first_attempt_running && world.plan.requests_max.is_none();
        if was_never_connected {
            let text = "no connection before the run ended";
            world.tally.borrow_mut().errors.add(ErrorKind::Connect, 1, text);
        }
        // Of a closed loop that the user has ended, or whose connection has failed, nothing is known about the server.
        let is_counted =
            world.plan.is_open() || !(was_never_connected || world.run_state.stop.load(Ordering::Relaxed));
        let now_ns = now_ns();
        for job in self.retry_queue.drain(..) {
            match is_counted {
                true => {
                    world.fail_request(job, ErrorKind::Unanswered, "not answered when the run ended", now_ns);
                }
                false => world.finish_request(),
            }
        }
    }
}

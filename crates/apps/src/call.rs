//! A request in progress, from its slot to the last byte of the response.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use http::body::NO_LIMIT;
use http::{Length, Method, Status};
use net::{Exchange, Fault, Interest};
use ring::{FilePart, ReceivedPart, ResponsePart, TicketError};
use times::Millis;

use crate::chunks::{self, Chunks};
use crate::dispatcher::{Completion, Deadline, Dispatcher, PendingRequest};
use crate::file;
use crate::generation::HeldWorker;
use crate::hijack;
use crate::log::{AppLog, AppLogLevel, request_line};
use crate::response::{self, AppResponse, HeaderNameCache};
use crate::upgrade::{self, UpgradeRequest};
use crate::upload::Upload;
use crate::websocket::WebSocketSession;

/// Completion reason of a request whose application has called `exit`: see `workers/README.md`.
const APPLICATION_EXITED: u32 = 17;
/// Bytes of a response that are collected before sending: a response that ends within them gets a
/// `Content-Length`.
const COLLECTED_BYTES_MAX: usize = 64 * 1024;
/// Interval at which a call whose worker waits for the client checks whether the client has read anything.
const CHECK_INTERVAL: Millis = Millis(2_000);
/// Maximum number of lookups of a worker's process, and the pause between them.
const PROCESS_LOOKUPS_MAX: u32 = 1000;
const PROCESS_LOOKUP_PAUSE: Millis = Millis(5);

/// Outcome of a call.
pub(crate) enum CallOutcome {
    /// The response was delivered.
    Answered,
    /// The request ended without a response, and nothing was sent.
    Unanswered(Completion),
    /// The application failed, and nothing was sent.
    Failed,
    /// The worker's response is invalid, and nothing was sent.
    InvalidResponse,
}

/// A call in progress.
pub(crate) struct Call<'c> {
    pub(crate) pending: PendingRequest,
    pub(crate) upload: &'c mut Upload,
    /// The client's WebSocket handshake, if it requests one.
    upgrade_request: Option<&'c UpgradeRequest>,
    pub(crate) header_names: &'c HeaderNameCache,
    pub(crate) app_log: &'c AppLog,
    /// Whether the length of the response is known, so that the kernel can send files.
    length_known: bool,
    /// The event loop was told that the client has closed its sending side.
    closed_reported: bool,
    /// Decoder of a body that the application has chunked itself.
    chunks: Option<Box<Chunks>>,
    /// Remaining bytes of the announced body length.
    remaining_bytes: u64,
    /// Whether the excess of the body over its announced length was logged.
    excess_reported: bool,
}

/// Contents of the buffer after receiving: a head, the body, and the part that stopped the receiving.
struct ReceivedParts {
    /// End of the head, if there is one.
    head: Option<usize>,
    /// End of the body.
    body_end: usize,
    /// Part that stopped the receiving; `None` if no more parts were available.
    stop: Option<ReceivedPart>,
}

impl<'c> Call<'c> {
    pub(crate) fn new(
        pending: PendingRequest,
        upload: &'c mut Upload,
        upgrade_request: Option<&'c UpgradeRequest>,
        header_names: &'c HeaderNameCache,
        app_log: &'c AppLog,
    ) -> Call<'c> {
        Call {
            pending,
            upload,
            upgrade_request,
            header_names,
            app_log,
            length_known: false,
            closed_reported: false,
            chunks: None,
            remaining_bytes: NO_LIMIT,
            excess_reported: false,
        }
    }

    /// Relays the request and the response until both have ended.
    ///
    /// # Errors
    /// Errors of the client's connection; [`Fault::Failed`] if the response cannot be completed.
    pub(crate) async fn run(&mut self, exchange: &mut Exchange<'_>) -> Result<CallOutcome, Fault> {
        loop {
            if !self.upload.is_sent() {
                self.upload.transfer(exchange, &self.pending).await?;
                let client = self.upload.waits_for_client();
                self.pending.set_deadline(if client {
                    Deadline::Client(exchange.body_timeout())
                } else {
                    worker_deadline(exchange)
                });
            }
            if exchange.is_spilling() {
                exchange.yield_after_spill().await;
            }
            if let Err(fate) = self.wait(exchange).await {
                if fate == Completion::TimedOut {
                    self.pending.log_timeout(exchange, self.app_log);
                }
                return end_unanswered(exchange, fate);
            }
            // A worker that sends nothing must learn of the disconnect as well, so do not wait for the next
            // write to fail.
            if exchange.is_gone()
                || self.pending.dispatcher.generation.cancels_on_client_close() && exchange.has_disconnected()
            {
                return Err(Fault::Disconnected);
            }
            if exchange.is_half_closed() && self.must_report_close() {
                self.closed_reported = true;
                self.pending.report_client_closed();
            }
            let dispatcher: Rc<Dispatcher> = self.pending.dispatcher.clone();
            let mut buffer = dispatcher.buffer();
            let ended = self.relay_response(exchange, &mut buffer).await;
            dispatcher.return_buffer(buffer);
            if let Some(ended) = ended? {
                return Ok(ended);
            }
        }
    }

    /// Waits for the worker, and for the client if it must send or read, or may disconnect.
    async fn wait(&self, exchange: &mut Exchange<'_>) -> Result<(), Completion> {
        exchange.hold(self.upload.held_bytes());
        let interest = match (self.upload.waits_for_client(), exchange.unsent() > 0) {
            (false, false) => self.disconnect_interest(exchange),
            (read, write) => Interest::of(read, write),
        };
        self.pending.wait_for_event(Some((exchange, interest))).await
    }

    /// Returns the disconnect events of the client that matter to the request.
    fn disconnect_interest(&self, exchange: &Exchange<'_>) -> Interest {
        match (self.must_report_close(), self.pending.dispatcher.generation.cancels_on_client_close()) {
            (true, _) => Interest::END,
            (false, true) => exchange.disconnect_interest(),
            (false, false) => Interest::GONE,
        }
    }

    /// Whether the event loop must still be told that the client closes its sending side.
    fn must_report_close(&self) -> bool {
        !self.closed_reported && !self.pending.dispatcher.generation.is_one_request_per_thread()
    }

    /// Receives the available parts of the response and sends them.
    async fn relay_response(
        &mut self,
        exchange: &mut Exchange<'_>,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<CallOutcome>, Fault> {
        loop {
            buffer.clear();
            let gathered = match self.receive_parts(buffer) {
                Ok(gathered) => gathered,
                Err(TicketError::WorkerFault(fault)) => {
                    self.app_log.report(AppLogLevel::Error, &fault.to_string());
                    return end_invalid(exchange);
                }
                Err(TicketError::Void) => return end_invalid(exchange),
            };
            self.pending.record_costs(exchange.notes());
            let ReceivedParts { head, body_end, stop } = gathered;
            if let Some(ReceivedPart { part: ResponsePart::Aborted(reason), .. }) = stop {
                return self.handle_abort(exchange, buffer, head, body_end, reason).await;
            }
            if let (None, false, Some(ReceivedPart { part: ResponsePart::File(part), is_last: false })) =
                (head, exchange.has_begun(), stop)
            {
                return Box::pin(self.hijack(exchange, part)).await;
            }
            if let (Some(head), Some(upgrade_request)) = (head, self.upgrade_request)
                && response::accepts_upgrade(&buffer[..head])
            {
                return Box::pin(self.upgrade(
                    exchange,
                    upgrade_request,
                    &buffer[..head],
                    &buffer[head..body_end],
                    stop,
                ))
                .await;
            }
            if let Some(head) = head {
                let whole = stop.is_some_and(|stop| stop.part == ResponsePart::End);
                let length = whole.then_some((body_end - head) as u64);
                if let Err(why) = self.begin(exchange, &buffer[..head], &buffer[head..body_end], length) {
                    let request = exchange.request();
                    let shown =
                        format!("{} {}", request.method_name().escape_ascii(), request.path().escape_ascii());
                    let text = format!("its answer to {shown} makes no response: {why}");
                    self.app_log.report(AppLogLevel::Error, &text);
                    return end_invalid(exchange);
                }
            }
            let (body, more) = buffer[head.unwrap_or(0)..].split_at(body_end - head.unwrap_or(0));
            let last = stop.is_some_and(|stop| stop.is_last);
            match &mut self.chunks {
                None => self.send(exchange, body, last).await?,
                Some(chunks) => {
                    let content = chunks.content(body, last)?;
                    self.send(exchange, &content, last).await?;
                }
            }
            match stop {
                Some(stop) => {
                    self.handle_special_part(exchange, stop.part, more).await?;
                    if stop.is_last {
                        return Ok(Some(CallOutcome::Answered));
                    }
                }
                // A response to HEAD ends with its head, even if the content would never end.
                None if exchange.has_begun() && !exchange.wants_content() => {
                    self.pending.count_answered();
                    return Ok(Some(CallOutcome::Answered));
                }
                None if buffer.len() >= COLLECTED_BYTES_MAX => {}
                None => {
                    exchange.try_flush()?;
                    self.pending.set_deadline(worker_deadline(exchange));
                    return Ok(None);
                }
            }
        }
    }

    /// The application aborted the request. Output that was already sent stays sent; a head alone does not
    /// count as a response.
    async fn handle_abort(
        &mut self,
        exchange: &mut Exchange<'_>,
        buffer: &[u8],
        head: Option<usize>,
        body_end: usize,
        reason: u32,
    ) -> Result<Option<CallOutcome>, Fault> {
        if self.closed_reported {
            return Err(Fault::Disconnected);
        }
        let body = &buffer[head.unwrap_or(0)..body_end];
        let begins = head.filter(|head| !body.is_empty() && !response::accepts_upgrade(&buffer[..*head]));
        if let Some(head) = begins
            && self.begin(exchange, &buffer[..head], body, None).is_err()
        {
            return end_invalid(exchange);
        }
        if !exchange.has_begun() {
            let outcome =
                if reason == APPLICATION_EXITED { CallOutcome::InvalidResponse } else { CallOutcome::Failed };
            return Ok(Some(outcome));
        }
        if self.chunks.is_none() {
            self.send(exchange, body, false).await?;
            exchange.try_flush()?;
        }
        end_invalid(exchange)
    }

    /// Accepts the WebSocket; `body` was received together with the head.
    async fn upgrade(
        &mut self,
        exchange: &mut Exchange<'_>,
        upgrade_request: &UpgradeRequest,
        head: &[u8],
        body: &[u8],
        stop: Option<ReceivedPart>,
    ) -> Result<Option<CallOutcome>, Fault> {
        let generation = self.pending.dispatcher.generation.clone();
        let limits = generation.options.settings.websocket_limits();
        let (Ok(reply), Some(limits)) = (AppResponse::read(head, self.header_names), limits) else {
            self.app_log.report(AppLogLevel::Error, "its answer makes no WebSocket");
            return end_invalid(exchange);
        };
        let deflate = upgrade_request.deflate.filter(|_| limits.compress);
        exchange.upgrade(|lines| {
            lines.line(b"Connection", b"Upgrade");
            lines.line(b"Upgrade", b"websocket");
            if let Some(accept) = &upgrade_request.accept {
                lines.line(b"Sec-WebSocket-Accept", accept);
            }
            if let Some(deflate) = &deflate {
                lines.line(b"Sec-WebSocket-Extensions", deflate.field_value().as_bytes());
            }
            reply.write_if(self.header_names, lines, |name| !upgrade::is_handshake_field(name));
        });
        exchange.try_flush()?;
        let mut socket = WebSocketSession::new(&self.pending, limits, deflate, self.app_log);
        socket.run(exchange, &mut self.pending, body, stop.is_some_and(|stop| stop.is_last)).await?;
        Ok(Some(CallOutcome::Answered))
    }

    /// Hands the connection over to the application. The worker is free as soon as its descriptor was copied.
    async fn hijack(
        &mut self,
        exchange: &mut Exchange<'_>,
        part: FilePart,
    ) -> Result<Option<CallOutcome>, Fault> {
        let process = self.worker_process(exchange).await?;
        let idle_timeout = self.pending.dispatcher.generation.options.settings.hijacked_idle();
        let taken = match idle_timeout {
            Some(idle_timeout) => hijack::take_socket(&process, part).map(|socket| (socket, idle_timeout)),
            None => Err("its language takes no connections over".into()),
        };
        let (socket, idle_timeout) = match taken {
            Ok(taken) if exchange.take_over() || hijack::may_switch(exchange) => taken,
            Ok(_) => {
                self.app_log.report(AppLogLevel::Error, hijack::refusal_reason(exchange.request().version()));
                return end_invalid(exchange);
            }
            Err(why) => {
                self.app_log.report(AppLogLevel::Error, &why.to_string());
                return end_invalid(exchange);
            }
        };
        self.pending.release_file();
        // The request ends here; if its worker dies instead, the socket reports that.
        let mut rest = Vec::new();
        while self.pending.wait_for_event(None).await.is_ok() {
            rest.clear();
            match self.pending.receive(&mut rest, COLLECTED_BYTES_MAX) {
                Ok(Some(ReceivedPart { is_last: false, .. }) | None) => {}
                Ok(Some(_)) | Err(_) => break,
            }
        }
        let head_timeout = self.pending.dispatcher.generation.options.settings.timeouts.request.into();
        hijack::relay(exchange, socket, head_timeout, idle_timeout).await?;
        Ok(Some(CallOutcome::Answered))
    }

    /// Receives parts while they are head and body, up to the first other part. Log lines are written
    /// immediately.
    fn receive_parts(&mut self, buffer: &mut Vec<u8>) -> Result<ReceivedParts, TicketError> {
        let mut head = None;
        while buffer.len() < COLLECTED_BYTES_MAX {
            let body_end = buffer.len();
            let room = COLLECTED_BYTES_MAX - body_end;
            let Some(mut received) = self.pending.receive(buffer, room)? else {
                return Ok(ReceivedParts { head, body_end, stop: None });
            };
            match received.part {
                ResponsePart::Head => head = Some(buffer.len()),
                ResponsePart::Data => {}
                ResponsePart::Log(level) => {
                    self.app_log.line(level, &buffer[body_end..]);
                    buffer.truncate(body_end);
                }
                _ => return Ok(ReceivedParts { head, body_end, stop: Some(received) }),
            }
            if received.is_last {
                received.part = ResponsePart::End;
                return Ok(ReceivedParts { head, body_end: buffer.len(), stop: Some(received) });
            }
        }
        Ok(ReceivedParts { head, body_end: buffer.len(), stop: None })
    }

    /// Begins the response. `body` was received together with the head; if the body is complete, `whole` is
    /// its length.
    fn begin(
        &mut self,
        exchange: &mut Exchange<'_>,
        head: &[u8],
        body: &[u8],
        whole: Option<u64>,
    ) -> Result<(), &'static str> {
        let reply = AppResponse::read(head, self.header_names)?;
        if reply.status.is_informational() {
            return Err("an interim status at the end");
        }
        if reply.names_file(exchange) {
            return Ok(());
        }
        let says_framed = reply.chunked && self.pending.dispatcher.generation.may_chunk();
        let framed = says_framed && chunks::is_chunked(body, whole.is_some());
        if says_framed && !framed && exchange.wants_content() {
            self.pending.dispatcher.generation.report_unframed(self.app_log);
        }
        // An empty body in response to HEAD does not reveal the length that GET would have.
        let body = whole.filter(|bytes| *bytes > 0 || exchange.request().method() != Method::Head);
        let length = match reply.length.or(body) {
            Some(length) if !framed => Length::Known(length),
            _ => Length::Unknown,
        };
        self.length_known = length != Length::Unknown;
        self.remaining_bytes = match length {
            Length::Known(bytes) if exchange.request().method() != Method::Head => bytes,
            _ => NO_LIMIT,
        };
        let mut ignores_file = false;
        exchange.begin_lines(reply.status, length, reply.provided_defaults, |lines| {
            ignores_file = reply.write(self.header_names, lines);
        });
        exchange.notes().ignores_file = ignores_file;
        self.chunks = (framed && exchange.wants_content()).then(|| Box::new(Chunks::new()));
        Ok(())
    }

    /// Sends a piece of the body. Data that a slow client does not accept is buffered in memory and then in a
    /// file, so that the worker can continue.
    async fn send(&mut self, exchange: &mut Exchange<'_>, body: &[u8], last: bool) -> Result<(), Fault> {
        let body = &body[..self.limit_to_announced(exchange, body.len() as u64) as usize];
        if body.is_empty() {
            return Ok(());
        }
        if last && exchange.backlog() + body.len() <= COLLECTED_BYTES_MAX {
            return exchange.write(body).await;
        }
        exchange.offer(body)?;
        self.apply_backpressure(exchange, last).await
    }

    /// Returns how many of `bytes` are within the announced length. Any excess is logged once.
    fn limit_to_announced(&mut self, exchange: &Exchange<'_>, bytes: u64) -> u64 {
        let taken = bytes.min(self.remaining_bytes);
        self.remaining_bytes = match self.remaining_bytes {
            NO_LIMIT => NO_LIMIT,
            left => left - taken,
        };
        if taken < bytes && !std::mem::replace(&mut self.excess_reported, true) {
            let text = format!("{}: more body written than announced", request_line(exchange));
            self.app_log.report(AppLogLevel::Warn, &text);
        }
        taken
    }

    /// Applies backpressure if the client's backlog exceeds the buffer. After the `last` piece no worker
    /// waits.
    async fn apply_backpressure(&self, exchange: &mut Exchange<'_>, last: bool) -> Result<(), Fault> {
        if exchange.backlog()
            > exchange.buffered_bytes_max(
                self.pending.dispatcher.generation.options.settings.answer_ahead_bytes as usize,
            )
        {
            Box::pin(self.make_room(exchange, last)).await
        } else {
            Ok(())
        }
    }

    /// Handles a client that is far behind. After the `last` piece no worker waits any more.
    async fn make_room(&self, exchange: &mut Exchange<'_>, last: bool) -> Result<(), Fault> {
        let options = &self.pending.dispatcher.generation.options;
        self.pending.set_deadline(Deadline::Other);
        while exchange.backlog() > exchange.buffered_bytes_max(options.settings.answer_ahead_bytes as usize) {
            let spilled = match &options.spill {
                Some(quota) => exchange.spill(quota).await?.map_err(|why| (quota, why)),
                None if last => break,
                None => return self.wait_for_client(exchange).await,
            };
            let Err((quota, why)) = spilled else { continue };
            if quota.should_report() {
                let text = format!("slow clients hold workers: {why}");
                self.app_log.report(AppLogLevel::Warn, &text);
            }
            if last {
                break;
            }
            return self.wait_for_client(exchange).await;
        }
        self.pending.set_deadline(worker_deadline(exchange));
        Ok(())
    }

    /// Makes the worker wait until the client has read everything; ended early if other requests need the
    /// worker.
    async fn wait_for_client(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let dispatcher = self.pending.dispatcher.clone();
        let _held = HeldWorker::new(&dispatcher.generation);
        self.pending.set_deadline(Deadline::ClientRead(exchange.write_timeout()));
        dispatcher.end_slowest_response();
        let mut unsent = u64::MAX;
        while !exchange.try_flush()? {
            if exchange.unsent() < unsent {
                unsent = exchange.unsent();
                self.pending.set_deadline(Deadline::ClientRead(exchange.write_timeout()));
            }
            let look_after = CHECK_INTERVAL.min(exchange.write_timeout() / 2).max(Millis(1));
            let looked = {
                let mut time = pin!(exchange.core().sleep(look_after));
                let mut news = pin!(self.pending.wait_for_event(Some((exchange, Interest::WRITE))));
                poll_fn(|context| match news.as_mut().poll(context) {
                    Poll::Pending => time.as_mut().poll(context).map(|()| None),
                    news => news.map(Some),
                })
                .await
            };
            match looked {
                None if exchange.has_progressed() => {
                    self.pending.set_deadline(Deadline::ClientRead(exchange.write_timeout()))
                }
                None => {}
                Some(Ok(())) => exchange.yield_after_spill().await,
                Some(Err(Completion::ClientTooSlow)) => {
                    if dispatcher.should_log_truncation() {
                        let text = "answers are cut off: their clients take them slowly, others wait for a worker, and \
                                    temporary files have no more room";
                        self.app_log.report(AppLogLevel::Warn, text);
                    }
                    return Err(Fault::Timeout);
                }
                Some(Err(fate)) => {
                    return end_unanswered(exchange, fate).and(Err(Fault::Failed("the answer ended early")));
                }
            }
        }
        // Parts that the worker sent meanwhile did not set `news`.
        self.pending.skip_next_wait();
        self.pending.set_deadline(worker_deadline(exchange));
        Ok(())
    }

    /// Handles a part that is neither head nor body; `more` holds its bytes.
    async fn handle_special_part(
        &mut self,
        exchange: &mut Exchange<'_>,
        part: ResponsePart,
        more: &[u8],
    ) -> Result<(), Fault> {
        match part {
            ResponsePart::Interim => {
                let reply = AppResponse::read(more, self.header_names);
                let fits =
                    |status: Status| status.is_informational() && status != Status::SWITCHING_PROTOCOLS;
                match reply {
                    Ok(reply) if fits(reply.status) => {
                        exchange
                            .send_interim(reply.status, |lines| _ = reply.write(self.header_names, lines));
                        exchange.try_flush()?;
                        self.apply_backpressure(exchange, false).await?;
                    }
                    _ => {
                        self.app_log.report(AppLogLevel::Error, "an interim answer that is none was left out")
                    }
                }
                Ok(())
            }
            ResponsePart::Trailers => exchange.end(&response::trailers(more, self.header_names)),
            ResponsePart::File(part) => self.send_file(exchange, part).await,
            ResponsePart::Head
            | ResponsePart::Data
            | ResponsePart::Log(_)
            | ResponsePart::End
            | ResponsePart::Aborted(_) => Ok(()),
        }
    }

    /// Returns the worker's process. A worker that has just started may answer before the supervisor knows of
    /// it.
    async fn worker_process(&self, exchange: &Exchange<'_>) -> Result<Arc<OwnedFd>, Fault> {
        for _ in 0..PROCESS_LOOKUPS_MAX {
            match self.pending.process() {
                Some(process) => return Ok(process),
                None if self.pending.is_void() => break,
                None => exchange.core().sleep(PROCESS_LOOKUP_PAUSE).await,
            }
        }
        Err(Fault::Failed("the worker is gone"))
    }

    async fn send_file(&mut self, exchange: &mut Exchange<'_>, mut part: FilePart) -> Result<(), Fault> {
        if self.chunks.is_some() {
            return Err(Fault::Failed("a file has no chunks"));
        }
        part.len = self.limit_to_announced(exchange, part.len);
        let process = self.worker_process(exchange).await?;
        let taken = match self.pending.launcher() {
            None => file::take_descriptor(&process, part, None),
            // The launcher is another process, so its reply is awaited on another thread.
            Some(launcher) => {
                let take = move || io::Result::Ok(file::take_descriptor(&process, part, Some(&*launcher)));
                exchange.core().offload(take).await?
            }
        };
        self.pending.release_file();
        match taken {
            Ok(_) if !exchange.wants_content() => Ok(()),
            Ok(taken) => {
                self.pending.set_deadline(Deadline::Other);
                file::send(exchange, taken, part, self.length_known).await?;
                self.pending.set_deadline(Deadline::NextPiece);
                Ok(())
            }
            Err(why) => {
                self.app_log.report(AppLogLevel::Error, &why.to_string());
                Err(Fault::Failed("the application's file cannot be sent"))
            }
        }
    }
}

/// Deadline for the worker's next progress.
fn worker_deadline(exchange: &Exchange<'_>) -> Deadline {
    if exchange.has_begun() { Deadline::NextPiece } else { Deadline::Worker }
}

fn end_unanswered(exchange: &Exchange<'_>, fate: Completion) -> Result<CallOutcome, Fault> {
    match fate {
        Completion::ClientStalled => Err(Fault::Timeout),
        fate if !exchange.has_begun() => Ok(CallOutcome::Unanswered(fate)),
        Completion::TimedOut => {
            Err(Fault::Failed("the application paused for too long in the middle of its answer"))
        }
        _ => Err(Fault::Failed("the worker died in the middle of its answer")),
    }
}

/// Ends a response that cannot be completed.
fn end_invalid(exchange: &Exchange<'_>) -> Result<Option<CallOutcome>, Fault> {
    if exchange.has_begun() {
        Err(Fault::Failed("the application gave up in the middle of its answer"))
    } else {
        Ok(Some(CallOutcome::InvalidResponse))
    }
}

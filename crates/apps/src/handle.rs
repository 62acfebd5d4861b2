//! The access of one core to an application.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;

use http::{Fields, Method, Name, Status};
use net::{Core, Exchange, Fault, MeasuredCosts, SpillQuota, TaskId, TurnHook};
use ring::{Measure, SubmitError};
use times::Millis;

use crate::call::{Call, CallOutcome};
use crate::dispatcher::{Completion, Dispatcher};
use crate::log::{AppLog, AppLogLevel};
use crate::queues::{CommandQueue, CoreEvent, EventQueue, SupervisorCommand};
use crate::request::{self, HandshakeForm, HeaderIds};
use crate::response::HeaderNameCache;
use crate::upgrade::{self, UpgradeRequest};
use crate::upload::{ReadAhead, Upload};

pub use crate::request::Mount;

/// Interval of the deadline checks, and thus the granularity of deadlines.
const SWEEP_INTERVAL: Millis = Millis(100);
/// Time after which another worker is woken for a request that the first one has not claimed.
const CLAIM_CHECK_INTERVAL: Millis = Millis(1);
/// Value of `Retry-After`.
const RETRY_AFTER_S: &[u8] = b"1";

/// Handle of one core to an application. Cheap to clone.
#[derive(Clone)]
pub struct Handle(Rc<HandleState>);

struct HandleState {
    core: Core,
    index: usize,
    commands: Arc<CommandQueue>,
    app_log: AppLog,
    header_ids: HeaderIds,
    header_names: HeaderNameCache,
    /// Dispatchers, one per generation in which this core has requests; the last one serves.
    dispatchers: RefCell<Vec<Rc<Dispatcher>>>,
    /// The task that checks whether requests are claimed, once started, and whether it must check.
    claim_watch: Cell<Option<TaskId>>,
    watches_claims: Cell<bool>,
    /// The load failure; `None` if the application is loaded.
    load_failure: RefCell<Option<LoadFailure>>,
}

impl Handle {
    pub(crate) fn new(
        core: &Core,
        index: usize,
        inbox: Arc<EventQueue>,
        commands: Arc<CommandQueue>,
        app_log: AppLog,
    ) -> Handle {
        let inner = Rc::new(HandleState {
            core: core.clone(),
            index,
            commands,
            app_log,
            header_ids: HeaderIds::new(),
            header_names: HeaderNameCache::new(),
            dispatchers: RefCell::default(),
            claim_watch: Cell::default(),
            watches_claims: Cell::default(),
            load_failure: RefCell::default(),
        });
        let tick: Rc<dyn TurnHook> = inner.clone();
        core.add_turn_hook(&tick);
        inbox.open();
        let mail = Rc::downgrade(&inner);
        core.spawn(async move { run_event_loop(&mail, &inbox).await });
        let watched = Rc::downgrade(&inner);
        let clock = core.clone();
        core.spawn(async move { watch_claims(&watched, &clock).await });
        let swept = Rc::downgrade(&inner);
        let clock = core.clone();
        core.spawn(async move {
            loop {
                clock.sleep(SWEEP_INTERVAL).await;
                let Some(inner) = swept.upgrade() else { return };
                inner.sweep();
            }
        });
        Handle(inner)
    }

    /// Serves the request with the application.
    ///
    /// # Errors
    /// Errors of the client's connection; [`Fault::Failed`] if a response that had begun could not be
    /// completed.
    pub async fn serve(&self, exchange: &mut Exchange<'_>, mount: &Mount<'_>) -> Result<(), Fault> {
        let mut upgrade_request = None;
        if self.0.supports_websockets() {
            match upgrade::upgrade_request(&exchange.request()) {
                Ok(found) => upgrade_request = found,
                Err(refusal) => {
                    return exchange.refuse_with(refusal.status, refusal.reason, &refusal.fields).await;
                }
            }
        }
        let Some(mut upload) = self.read_upload(exchange).await? else {
            let reason = "the server has no room to keep the request until a worker takes it";
            return exchange.refuse_with(Status::SERVICE_UNAVAILABLE, reason, &retry_after()).await;
        };
        let mut tries = 2;
        loop {
            tries -= 1;
            if upload.is_buffered() {
                Box::pin(upload.rewind(exchange)).await?;
            }
            let measure = match exchange.notes().measured {
                MeasuredCosts::None => Measure::Claim,
                MeasuredCosts::Cpu => Measure::Cpu,
                MeasuredCosts::All => Measure::All,
            };
            let ended = match self.submit(exchange, mount, &mut upload, upgrade_request.as_ref(), measure) {
                Ok(mut call) => call.run(exchange).await?,
                Err(NotSubmitted::LoadFailed(failure)) => return self.send_failure(exchange, &failure).await,
                Err(NotSubmitted::Refused(SubmitError::HeadTooLarge)) => {
                    return exchange
                        .refuse(Status::FIELDS_TOO_LARGE, "the request's head is too large")
                        .await;
                }
                Err(NotSubmitted::Loading) => {
                    let reason = "the application is not loaded yet";
                    return exchange.refuse_with(Status::SERVICE_UNAVAILABLE, reason, &retry_after()).await;
                }
                Err(NotSubmitted::Refused(SubmitError::Full)) => CallOutcome::Unanswered(Completion::Dropped),
            };
            match ended {
                CallOutcome::Answered => return Ok(()),
                CallOutcome::Failed => {
                    return exchange.refuse(Status::INTERNAL_SERVER_ERROR, "the application failed").await;
                }
                CallOutcome::InvalidResponse => {
                    return exchange.refuse(Status::BAD_GATEWAY, "the application gave no answer").await;
                }
                CallOutcome::Unanswered(Completion::WorkerDied { may_retry: true })
                    if tries > 0 && upload.can_rewind() && is_idempotent(exchange.request().method()) => {}
                CallOutcome::Unanswered(Completion::LoadFailed) => {
                    let why = self.0.load_failure.borrow().clone();
                    return self.send_failure(exchange, &why.unwrap_or_default()).await;
                }
                CallOutcome::Unanswered(fate) => return refuse(exchange, fate).await,
            }
        }
    }

    /// Reads the beginning of the request's body, or all of it. Returns `None` if the body could not be
    /// buffered completely and has no known length, which many applications need.
    async fn read_upload(&self, exchange: &mut Exchange<'_>) -> Result<Option<Upload>, Fault> {
        if exchange.request().body() == http::BodySize::None {
            return Ok(Some(Upload::empty()));
        }
        let (upload, why) = Upload::begin(exchange, &self.0.read_ahead()).await?;
        let Some((quota, why)) = self.0.quota().zip(why) else { return Ok(Some(upload)) };
        if quota.should_report() {
            self.0.app_log.report(AppLogLevel::Warn, &format!("requests are not buffered: {why}"));
        }
        let has_length = upload.length().is_some() || exchange.request().body() != http::BodySize::Unknown;
        Ok(has_length.then_some(upload))
    }

    fn submit<'c>(
        &'c self,
        exchange: &Exchange<'_>,
        mount: &Mount<'_>,
        upload: &'c mut Upload,
        upgrade_request: Option<&'c UpgradeRequest>,
        measure: Measure,
    ) -> Result<Call<'c>, NotSubmitted> {
        let inner = &*self.0;
        if let Some(failure) = &*inner.load_failure.borrow() {
            return Err(NotSubmitted::LoadFailed(failure.clone()));
        }
        let Some(dispatcher) = inner.dispatchers.borrow().last().cloned() else {
            return Err(NotSubmitted::Loading);
        };
        let mut head = dispatcher.buffer();
        let request = exchange.request();
        let chunked = request.body() == http::BodySize::Unknown;
        let length = upload.length().filter(|_| chunked);
        let socket = match upgrade_request {
            Some(upgrade_request) => HandshakeForm::ByServer(upgrade_request),
            None if dispatcher.generation.options.settings.hijacked_idle().is_some()
                && upgrade::lacks_handshake(&request) =>
            {
                HandshakeForm::Handshake
            }
            None => HandshakeForm::Fields,
        };
        let submitted = match request::encode(
            &mut head,
            &request,
            mount,
            length,
            socket,
            exchange.local_port(),
            &inner.header_ids,
        ) {
            // A WebSocket client's messages are the body.
            Ok(()) => {
                let is_last = upload.is_last() && upgrade_request.is_none();
                dispatcher.submit(&head, upload.ahead(), is_last, measure, exchange.permits())
            }
            Err(_) => Err(SubmitError::HeadTooLarge),
        };
        dispatcher.return_buffer(head);
        let (pending, taken) = submitted.map_err(NotSubmitted::Refused)?;
        upload.record_sent(taken);
        if dispatcher.generation.may_claim_late() && !inner.watches_claims.replace(true) {
            inner.claim_watch.get().into_iter().for_each(|task| inner.core.wake_task(task));
        }
        Ok(Call::new(pending, upload, upgrade_request, &inner.header_names, &inner.app_log))
    }

    async fn send_failure(&self, exchange: &mut Exchange<'_>, failure: &LoadFailure) -> Result<(), Fault> {
        if !failure.is_shown {
            return exchange
                .refuse_with(Status::SERVICE_UNAVAILABLE, "the application does not start", &retry_after())
                .await;
        }
        let mut fields = Fields::new();
        fields.push(Name::ContentType, b"text/html; charset=utf-8");
        fields.push(Name::CacheControl, b"no-store");
        let page = failure_page(&self.0.app_log.app, &failure.error_text);
        exchange.reply(Status::INTERNAL_SERVER_ERROR, &fields, page.as_bytes()).await
    }
}

/// The reason why the application cannot be loaded.
#[derive(Clone, Default)]
struct LoadFailure {
    error_text: Arc<str>,
    /// Whether the error text may be shown to clients.
    is_shown: bool,
}

/// The reason why a request was not submitted to a worker.
enum NotSubmitted {
    LoadFailed(LoadFailure),
    /// No worker has finished loading yet.
    Loading,
    Refused(SubmitError),
}

async fn refuse(exchange: &mut Exchange<'_>, fate: Completion) -> Result<(), Fault> {
    match fate {
        Completion::TimedOut => {
            exchange.refuse(Status::GATEWAY_TIMEOUT, "the application took too long to answer").await
        }
        Completion::Unclaimed | Completion::Dropped => {
            let reason = "too many requests wait for the application";
            exchange.refuse_with(Status::SERVICE_UNAVAILABLE, reason, &retry_after()).await
        }
        Completion::WorkerDied { .. }
        | Completion::LoadFailed
        | Completion::ClientStalled
        | Completion::ClientTooSlow => {
            exchange.refuse(Status::BAD_GATEWAY, "the application died while it answered").await
        }
    }
}

fn retry_after() -> Fields {
    let mut fields = Fields::new();
    fields.push(Name::RetryAfter, RETRY_AFTER_S);
    fields
}

/// Whether the method is idempotent (RFC 9110 section 9.2.2).
fn is_idempotent(method: Method) -> bool {
    matches!(
        method,
        Method::Get | Method::Head | Method::Options | Method::Trace | Method::Put | Method::Delete
    )
}

fn failure_page(app: &str, why: &str) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>{app} does not start</title>\
         <style>:root{{color-scheme:light dark}}body{{font:1rem/1.5 system-ui,sans-serif;margin:3rem auto;\
         max-width:60rem;padding:0 1.5rem}}pre{{overflow:auto;padding:1rem;border:1px solid;border-radius:.4rem}}</style>\
         <h1>{app} does not start</h1><pre>{}</pre><p>It is tried again by and by, and at once when it is reloaded.</p>\n",
        escaped(why),
        app = escaped(app),
    )
}

async fn run_event_loop(inner: &Weak<HandleState>, inbox: &EventQueue) {
    loop {
        let notices = poll_fn(|context| {
            let notices = inbox.take(context);
            if notices.is_empty() { Poll::Pending } else { Poll::Ready(notices) }
        })
        .await;
        let Some(inner) = inner.upgrade() else { return };
        notices.into_iter().for_each(|notice| inner.handle_event(notice));
    }
}

/// Wakes other idle workers for requests that are not claimed soon.
async fn watch_claims(inner: &Weak<HandleState>, core: &Core) {
    loop {
        poll_fn(|_| {
            let Some(inner) = inner.upgrade() else { return Poll::Ready(()) };
            inner.claim_watch.set(Some(core.current_task()));
            if inner.watches_claims.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        core.sleep(CLAIM_CHECK_INTERVAL).await;
        let Some(inner) = inner.upgrade() else { return };
        let woken = inner.dispatchers.borrow().iter().filter(|dispatcher| dispatcher.wake_another()).count();
        inner.watches_claims.set(woken > 0);
    }
}

impl Drop for HandleState {
    fn drop(&mut self) {
        // The task ends when it is woken.
        self.claim_watch.get().into_iter().for_each(|task| self.core.wake_task(task));
    }
}

impl HandleState {
    fn supports_websockets(&self) -> bool {
        self.dispatchers
            .borrow()
            .last()
            .is_some_and(|dispatcher| dispatcher.generation.options.settings.websocket_limits().is_some())
    }

    fn read_ahead(&self) -> ReadAhead {
        self.dispatchers
            .borrow()
            .last()
            .map_or_else(ReadAhead::none, |dispatcher| ReadAhead::of(&dispatcher.generation.options))
    }

    fn quota(&self) -> Option<Arc<SpillQuota>> {
        self.dispatchers.borrow().last().and_then(|dispatcher| dispatcher.generation.options.spill.clone())
    }

    fn handle_event(&self, notice: CoreEvent) {
        match notice {
            CoreEvent::Serve(generation) => {
                *self.load_failure.borrow_mut() = None;
                let number = generation.number;
                let known = |dispatcher: &Rc<Dispatcher>| dispatcher.generation.number == number;
                if self.dispatchers.borrow().iter().any(known) {
                    self.commands.send(SupervisorCommand::Switched { generation: number });
                    return;
                }
                let dispatcher = Dispatcher::new(&self.core, generation, self.index, self.commands.clone());
                match dispatcher {
                    Ok(dispatcher) => {
                        let mut dispatchers = self.dispatchers.borrow_mut();
                        dispatchers.iter().for_each(|dispatcher| dispatcher.mark_replaced());
                        dispatchers.push(Rc::new(dispatcher));
                    }
                    Err(error) => {
                        let text = format!("a core keeps the old generation: {error}");
                        self.app_log.report(AppLogLevel::Error, &text);
                    }
                }
                self.commands.send(SupervisorCommand::Switched { generation: number });
            }
            CoreEvent::LoadFailed { error_text: why, is_shown: show } => {
                *self.load_failure.borrow_mut() = Some(LoadFailure { error_text: why, is_shown: show });
                self.dispatchers.borrow().iter().for_each(|dispatcher| dispatcher.refuse_unclaimed());
            }
            CoreEvent::Damaged { generation } => {
                let dispatchers = self.dispatchers.borrow();
                let dispatcher =
                    dispatchers.iter().find(|dispatcher| dispatcher.generation.number == generation);
                dispatcher.into_iter().for_each(|dispatcher| dispatcher.abandon_unclaimed());
            }
            CoreEvent::WorkerDied { generation, place, worker_slots, called_exit: by_itself } => {
                let dispatchers = self.dispatchers.borrow();
                match dispatchers.iter().find(|dispatcher| dispatcher.generation.number == generation) {
                    Some(dispatcher) => dispatcher.worker_died(place, worker_slots, by_itself),
                    None => self.commands.send(SupervisorCommand::Released { generation, place }),
                }
            }
        }
    }

    fn sweep(&self) {
        let mut dispatchers = self.dispatchers.borrow_mut();
        dispatchers.iter().for_each(|dispatcher| dispatcher.sweep());
        if self.core.is_draining() {
            dispatchers.iter().for_each(|dispatcher| dispatcher.wake_polling_tasks());
        }
        let serving = dispatchers.len().saturating_sub(1);
        for at in (0..serving).rev() {
            if dispatchers[at].in_use() == 0 {
                dispatchers.remove(at).close();
            }
        }
    }
}

impl TurnHook for HandleState {
    fn drain(&self) {
        self.dispatchers.borrow().iter().for_each(|dispatcher| dispatcher.drain());
    }

    fn prepare_wait(&self) -> bool {
        self.dispatchers.borrow().iter().filter(|dispatcher| !dispatcher.prepare_wait()).count() == 0
    }

    fn finish_wait(&self) {
        self.dispatchers.borrow().iter().for_each(|dispatcher| dispatcher.finish_wait());
    }
}

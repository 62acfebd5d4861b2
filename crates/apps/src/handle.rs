//! One core's way to an application.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;

use http::{Fields, Method, Name, Status};
use net::{Core, Exchange, Fault, SpillQuota, Tick};
use ring::Refused;

use crate::call::{Call, Ended};
use crate::desk::{Desk, Fate};
use crate::log::{Teller, Urgency};
use crate::mail::{Inbox, Mailbox, Notice};
use crate::reply::Spelling;
use crate::request::{self, Names};
use crate::upgrade::{self, Wish};
use crate::upload::{Ahead, Upload};

pub use crate::request::Mount;

/// How often deadlines are looked at; they are coarse by this much.
const SWEEP_MS: u64 = 100;
/// What `Retry-After` says.
const RETRY_AFTER_S: &[u8] = b"1";

/// An application as one core sees it. Cheap to clone.
#[derive(Clone)]
pub struct Handle(Rc<Inner>);

struct Inner {
    core: Core,
    index: usize,
    mailbox: Arc<Mailbox>,
    teller: Teller,
    names: Names,
    spelling: Spelling,
    /// Of the generations this core has requests in; the one that serves is the last.
    desks: RefCell<Vec<Rc<Desk>>>,
    /// Why the application does not load, where it does not.
    down: RefCell<Option<Failure>>,
}

impl Handle {
    pub(crate) fn new(
        core: &Core,
        index: usize,
        inbox: Arc<Inbox>,
        mailbox: Arc<Mailbox>,
        teller: Teller,
    ) -> Handle {
        let inner = Rc::new(Inner {
            core: core.clone(),
            index,
            mailbox,
            teller,
            names: Names::new(),
            spelling: Spelling::new(),
            desks: RefCell::default(),
            down: RefCell::default(),
        });
        let tick: Rc<dyn Tick> = inner.clone();
        core.add_tick(&tick);
        inbox.open();
        let mail = Rc::downgrade(&inner);
        core.spawn(async move { read_mail(&mail, &inbox).await });
        let (swept, clock) = (Rc::downgrade(&inner), core.clone());
        core.spawn(async move {
            loop {
                clock.sleep(SWEEP_MS).await;
                let Some(inner) = swept.upgrade() else { return };
                inner.sweep();
            }
        });
        Handle(inner)
    }

    /// Lets the application answer.
    ///
    /// # Errors
    /// The connection's; [`Fault::Broken`] where an answer that had begun could not be brought to its end.
    pub async fn serve(&self, x: &mut Exchange<'_>, mount: &Mount<'_>) -> Result<(), Fault> {
        let mut wish = None;
        if self.0.knows_websockets() {
            match upgrade::wish(&x.request()) {
                Ok(found) => wish = found,
                Err(refusal) => return x.refuse_with(refusal.status, refusal.reason, &refusal.fields).await,
            }
        }
        let Some(mut upload) = self.upload(x).await? else {
            let reason = "the server has no room to keep the request until a worker takes it";
            return x.refuse_with(Status::SERVICE_UNAVAILABLE, reason, &retry_after()).await;
        };
        let mut tries = 2;
        loop {
            tries -= 1;
            if upload.is_buffered() {
                Box::pin(upload.rewind(x)).await?;
            }
            let ended = match self.submit(x, mount, &mut upload, wish.as_ref()) {
                Ok(call) => call.run(x).await?,
                Err(Unsent::Down(failure)) => return self.show_failure(x, &failure).await,
                Err(Unsent::Refused(Refused::HeadTooLarge)) => {
                    return x.refuse(Status::FIELDS_TOO_LARGE, "the request's head is too large").await;
                }
                Err(Unsent::Refused(Refused::Full)) => Ended::Unanswered(Fate::Crowded),
            };
            match ended {
                Ended::Answered => return Ok(()),
                Ended::Failed => {
                    return x.refuse(Status::INTERNAL_SERVER_ERROR, "the application failed").await;
                }
                Ended::Bad => return x.refuse(Status::BAD_GATEWAY, "the application gave no answer").await,
                Ended::Unanswered(Fate::Lost { again: true })
                    if tries > 0 && upload.is_whole() && is_idempotent(x.request().method()) => {}
                Ended::Unanswered(Fate::Down) => {
                    let why = self.0.down.borrow().clone();
                    return self.show_failure(x, &why.unwrap_or_default()).await;
                }
                Ended::Unanswered(fate) => return refuse(x, fate).await,
            }
        }
    }

    /// Reads the beginning of the request's body, or all of it; `None` where it would have to be passed on without a length
    /// that many applications need.
    async fn upload(&self, x: &mut Exchange<'_>) -> Result<Option<Upload>, Fault> {
        if x.request().framing() == http::Framing::None {
            return Ok(Some(Upload::empty()));
        }
        let (upload, why) = Upload::begin(x, &self.0.ahead()).await?;
        let Some((quota, why)) = self.0.quota().zip(why) else { return Ok(Some(upload)) };
        if quota.is_to_report() {
            self.0.teller.tell(Urgency::Warn, &format!("requests are not buffered: {why}"));
        }
        let has_length = upload.length().is_some() || x.request().framing() != http::Framing::Chunked;
        Ok(has_length.then_some(upload))
    }

    fn submit<'c>(
        &'c self,
        x: &Exchange<'_>,
        mount: &Mount<'_>,
        upload: &'c mut Upload,
        wish: Option<&'c Wish>,
    ) -> Result<Call<'c>, Unsent> {
        let inner = &*self.0;
        if let Some(failure) = &*inner.down.borrow() {
            return Err(Unsent::Down(failure.clone()));
        }
        let Some(desk) = inner.desks.borrow().last().cloned() else {
            return Err(Unsent::Refused(Refused::Full));
        };
        let mut head = desk.buffer();
        let request = x.request();
        let chunked = request.framing() == http::Framing::Chunked;
        let length = upload.length().filter(|_| chunked);
        let submitted =
            match request::encode(&mut head, &request, mount, length, wish, x.local_port(), &inner.names) {
                // What a WebSocket's client sends is the body.
                Ok(()) => desk.submit(&head, upload.ahead(), upload.is_last() && wish.is_none()),
                Err(_) => Err(Refused::HeadTooLarge),
            };
        desk.give_back(head);
        let (errand, taken) = submitted.map_err(Unsent::Refused)?;
        upload.begun(taken);
        Ok(Call::new(errand, upload, wish, &inner.spelling, &inner.teller))
    }

    async fn show_failure(&self, x: &mut Exchange<'_>, failure: &Failure) -> Result<(), Fault> {
        if !failure.show {
            return x
                .refuse_with(Status::SERVICE_UNAVAILABLE, "the application does not start", &retry_after())
                .await;
        }
        let mut fields = Fields::new();
        fields.push(Name::ContentType, b"text/html; charset=utf-8");
        fields.push(Name::CacheControl, b"no-store");
        let page = failure_page(&self.0.teller.app, &failure.why);
        x.reply(Status::INTERNAL_SERVER_ERROR, &fields, page.as_bytes()).await
    }
}

/// Why the application does not load.
#[derive(Clone, Default)]
struct Failure {
    why: Arc<str>,
    /// Whether clients may see it.
    show: bool,
}

/// Why a request was not handed over.
enum Unsent {
    Down(Failure),
    Refused(Refused),
}

async fn refuse(x: &mut Exchange<'_>, fate: Fate) -> Result<(), Fault> {
    match fate {
        Fate::Late => x.refuse(Status::GATEWAY_TIMEOUT, "the application took too long to answer").await,
        Fate::Unserved | Fate::Crowded => {
            let reason = "too many requests wait for the application";
            x.refuse_with(Status::SERVICE_UNAVAILABLE, reason, &retry_after()).await
        }
        Fate::Lost { .. } | Fate::Down | Fate::Stalled | Fate::TooSlow => {
            x.refuse(Status::BAD_GATEWAY, "the application died while it answered").await
        }
    }
}

fn retry_after() -> Fields {
    let mut fields = Fields::new();
    fields.push(Name::RetryAfter, RETRY_AFTER_S);
    fields
}

/// RFC 9110 section 9.2.2.
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

async fn read_mail(inner: &Weak<Inner>, inbox: &Inbox) {
    loop {
        let notices = poll_fn(|context| {
            let notices = inbox.take(context);
            if notices.is_empty() { Poll::Pending } else { Poll::Ready(notices) }
        })
        .await;
        let Some(inner) = inner.upgrade() else { return };
        notices.into_iter().for_each(|notice| inner.heed(notice));
    }
}

impl Inner {
    fn knows_websockets(&self) -> bool {
        self.desks.borrow().last().is_some_and(|desk| desk.generation.options.websockets.is_some())
    }

    fn ahead(&self) -> Ahead {
        self.desks.borrow().last().map_or_else(Ahead::none, |desk| Ahead::of(&desk.generation.options))
    }

    fn quota(&self) -> Option<Arc<SpillQuota>> {
        self.desks.borrow().last().and_then(|desk| desk.generation.options.spill.clone())
    }

    fn heed(&self, notice: Notice) {
        match notice {
            Notice::Serve(generation) => {
                *self.down.borrow_mut() = None;
                let known = |desk: &Rc<Desk>| desk.generation.number == generation.number;
                if self.desks.borrow().iter().any(known) {
                    return;
                }
                let desk = Desk::new(&self.core, generation, self.index, self.mailbox.clone());
                match desk {
                    Ok(desk) => {
                        let mut desks = self.desks.borrow_mut();
                        desks.iter().for_each(|desk| desk.replace());
                        desks.push(Rc::new(desk));
                    }
                    Err(error) => {
                        let text = format!("a core keeps the old generation: {error}");
                        self.teller.tell(Urgency::Error, &text);
                    }
                }
            }
            Notice::Down { why, show } => {
                *self.down.borrow_mut() = Some(Failure { why, show });
                self.desks.borrow().iter().for_each(|desk| desk.give_up());
            }
            Notice::Damaged { generation } => {
                let desks = self.desks.borrow();
                let desk = desks.iter().find(|desk| desk.generation.number == generation);
                desk.into_iter().for_each(|desk| desk.abandon());
            }
            Notice::Died { generation, place, seats, by_itself } => {
                let desks = self.desks.borrow();
                match desks.iter().find(|desk| desk.generation.number == generation) {
                    Some(desk) => desk.bury(place, seats, by_itself),
                    None => self.mailbox.send(crate::mail::Order::Buried { generation, place }),
                }
            }
        }
    }

    fn sweep(&self) {
        let mut desks = self.desks.borrow_mut();
        desks.iter().for_each(|desk| desk.sweep());
        if self.core.is_draining() {
            desks.iter().for_each(|desk| desk.wake_lookers());
        }
        let serving = desks.len().saturating_sub(1);
        for at in (0..serving).rev() {
            if desks[at].in_use() == 0 {
                desks.remove(at).close();
            }
        }
    }
}

impl Tick for Inner {
    fn drain(&self) {
        self.desks.borrow().iter().for_each(|desk| desk.drain());
    }

    fn rest(&self) -> bool {
        self.desks.borrow().iter().filter(|desk| !desk.rest()).count() == 0
    }

    fn wake(&self) {
        self.desks.borrow().iter().for_each(|desk| desk.wake());
    }
}

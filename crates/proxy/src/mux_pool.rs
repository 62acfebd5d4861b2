//! HTTP/2 or HTTP/3 connections of one core to one server. Requests share the first connection that has room, so that
//! surplus connections become idle and are closed.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use net::{Core, MuxLink, MuxLinkOptions, MuxRequest, MuxRequestStream};
use times::{Millis, Moment};

use crate::dial::Connected;
use crate::options::GroupOptions;

/// Maximum number of connections that are opened because others are worn or have no room for content, and of worn ones
/// whose requests have not ended. Beyond it, these are used too.
const EXTRA_CONNECTIONS_MAX: usize = 1_000;

/// Pool of HTTP/2 or HTTP/3 connections to one server.
pub(crate) struct MuxPool {
    core: Core,
    options: MuxLinkOptions,
    links: RefCell<Vec<(MuxLink, Option<SocketAddr>)>>,
    /// Worn connections whose requests have not ended.
    retired: RefCell<Vec<MuxLink>>,
    /// Whether a request is opening a connection that others wait for.
    is_dialling: Cell<bool>,
    waiting: Rc<RefCell<Vec<Waker>>>,
}

/// The right to open a connection. Dropping it wakes the requests that wait, which then try again.
pub(crate) struct DialPermit<'p>(&'p MuxPool);

impl MuxPool {
    /// Creates an empty pool.
    pub(crate) fn new(core: &Core, group: &GroupOptions) -> MuxPool {
        let keep_alive = &group.keep_alive;
        let options = MuxLinkOptions {
            // Connections are shared by routes, so the group's limits apply.
            head: group.head_limits(),
            requests_max: keep_alive.requests_max.unwrap_or(0),
            idle_timeout: if keep_alive.idle_max == 0 { Millis::ZERO } else { keep_alive.idle_timeout },
            ..MuxLinkOptions::default()
        };
        MuxPool {
            core: core.clone(),
            options,
            links: RefCell::default(),
            retired: RefCell::default(),
            is_dialling: Cell::new(false),
            waiting: Rc::default(),
        }
    }

    /// Begins a request on the first connection that has room; `None` if there is none.
    pub(crate) fn request(&self, request: &MuxRequest<'_>) -> Option<MuxRequestStream> {
        self.retire_worn();
        let needs_send_room = self.needs_send_room(!request.has_no_body);
        let links = self.links.borrow();
        let mut fitting = links.iter().filter(|(link, _)| !needs_send_room || link.has_send_room());
        fitting.find_map(|(link, _)| link.request(request))
    }

    /// Begins a request on the first connection that accepts one, even if it has no room for content.
    pub(crate) fn request_anywhere(&self, request: &MuxRequest<'_>) -> Option<MuxRequestStream> {
        self.links.borrow().iter().find_map(|(link, _)| link.request(request))
    }

    /// Whether only connections with room for content count. Uploads that a server does not read use up the window of
    /// their connection, and others would wait behind them.
    fn needs_send_room(&self, has_body: bool) -> bool {
        has_body && self.links.borrow().len() < EXTRA_CONNECTIONS_MAX
    }

    /// Lets worn connections accept no further requests, so that the server does not close them under others.
    fn retire_worn(&self) {
        let is_worn = |(link, _): &(MuxLink, _)| link.is_worn();
        if !self.links.borrow().iter().any(is_worn) {
            return;
        }
        let mut links = self.links.borrow_mut();
        let mut retired = self.retired.borrow_mut();
        retired.retain(|link| !link.has_ended());
        while retired.len() < EXTRA_CONNECTIONS_MAX
            && let Some(place) = links.iter().position(is_worn)
        {
            let (link, _) = links.remove(place);
            link.retire();
            retired.push(link);
        }
    }

    /// Acquires the right to open a connection; `None` if one is being opened.
    pub(crate) fn acquire_dial_permit(&self) -> Option<DialPermit<'_>> {
        let is_opening = self.links.borrow().iter().any(|(link, _)| link.is_opening());
        if is_opening || self.is_dialling.replace(true) {
            return None;
        }
        Some(DialPermit(self))
    }

    /// Whether the server supports extended CONNECT; `None` if no open connection has received SETTINGS.
    pub(crate) fn supports_connect(&self) -> Option<bool> {
        let links = self.links.borrow();
        links.iter().filter(|(link, _)| !link.is_closing()).find_map(|(link, _)| link.supports_connect())
    }

    /// Waits until no connection is being opened or awaits SETTINGS. False at the deadline.
    pub(crate) async fn wait_for_settings(&self, deadline: Moment) -> bool {
        self.wait(deadline, || self.may_dial()).await
    }

    /// Waits until a connection has room for a request, or one may be opened. False at the deadline.
    pub(crate) async fn wait_for_room(&self, has_body: bool, needs_connect: bool, deadline: Moment) -> bool {
        let fits = |link: &MuxLink| {
            let has_room = link.can_begin() && (!self.needs_send_room(has_body) || link.has_send_room());
            has_room && (!needs_connect || link.supports_connect() == Some(true))
        };
        let has_room = || self.links.borrow().iter().any(|(link, _)| fits(link));
        self.wait(deadline, || has_room() || self.may_dial()).await
    }

    fn may_dial(&self) -> bool {
        !self.is_dialling.get() && !self.links.borrow().iter().any(|(link, _)| link.is_opening())
    }

    async fn wait(&self, deadline: Moment, is_done: impl Fn() -> bool) -> bool {
        let mut too_long = pin!(self.core.sleep(deadline - self.core.now()));
        poll_fn(|context| {
            if is_done() {
                return Poll::Ready(true);
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            too_long.as_mut().poll(context).map(|()| false)
        })
        .await
    }

    /// Adds a new connection.
    pub(crate) fn add(&self, connected: Connected) {
        let waiting = self.waiting.clone();
        let address = connected.address();
        let link = connected.start(&self.options, move || wake(&waiting));
        self.links.borrow_mut().push((link, address));
    }

    /// Removes connections that accept no further requests or that `fits` rejects; requests under way
    /// complete.
    pub(crate) fn sweep(&self, fits: impl Fn(Option<SocketAddr>) -> bool) {
        self.links.borrow_mut().retain(|(link, address)| !link.is_closing() && fits(*address));
        self.retired.borrow_mut().retain(|link| !link.has_ended());
    }

    /// Returns the number of connections that accept requests.
    pub(crate) fn len(&self) -> usize {
        self.links.borrow().iter().filter(|(link, _)| !link.is_closing()).count()
    }
}

impl Drop for DialPermit<'_> {
    fn drop(&mut self) {
        self.0.is_dialling.set(false);
        wake(&self.0.waiting);
    }
}

fn wake(waiting: &RefCell<Vec<Waker>>) {
    let waiting = std::mem::take(&mut *waiting.borrow_mut());
    waiting.into_iter().for_each(Waker::wake);
}

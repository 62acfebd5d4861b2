//! The state of one request and of the response to it, whatever lane carries them.

use std::any::Any;
use std::rc::Rc;

use http::template::OwnValues;
use http::{BodySize, EmptySegments, Fields, RequestIds, Status};

use crate::address::{Client, Peer};
use crate::amend::AmendedHead;
use crate::body_copy::BodyCopy;
use crate::fault::Fault;
use crate::filters::{Filters, UpgradeTap};
use crate::named_file::NamedFile;
use crate::notes::RequestNotes;
use crate::page::ErrorPages;
use crate::tls::TlsSession;

/// How far the response of a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReplyState {
    /// No head yet.
    #[default]
    Unsent,
    /// The head is out; so much of the body is still to come. `None` also where the client gets no body (HEAD, 304).
    Body(BodySize),
    /// All of it is out.
    Done,
    /// The handler has named what is to be answered instead; what it writes is dropped.
    Elsewhere,
}

/// What becomes of an error that a handler answers.
#[derive(Default)]
pub(crate) enum Interception {
    /// It goes to the client.
    #[default]
    Off,
    /// The site's page goes in its place, where there is one.
    On,
    /// It is not sent: its status, and the fields of it that stay.
    Done(Box<(Status, Fields)>),
}

/// The user that the server has verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedUser {
    /// The name: visible characters, spaces and bytes beyond ASCII.
    pub name: Vec<u8>,
    /// How, as `AUTH_TYPE` has it (RFC 3875 section 4.1.1): `Basic`, `Bearer`.
    pub scheme: &'static str,
}

/// What is known of a request beside its head, and how far its response is.
pub(crate) struct RequestState {
    /// The other end of the connection.
    pub(crate) peer: Peer,
    /// Who sends the request.
    pub(crate) client: Client,
    /// The key of the listener that has accepted the connection.
    pub(crate) listener_key: u64,
    /// The TLS connection that it came through.
    pub(crate) tls: Option<Rc<TlsSession>>,
    /// What becomes of empty segments in its path.
    pub(crate) empty_segments: EmptySegments,
    /// Handlers get all empty segments of the path.
    pub(crate) passes_as_sent: bool,
    pub(crate) ids: RequestIds,
    pub(crate) user: Option<Rc<VerifiedUser>>,
    /// The variables that the configuration defines.
    pub(crate) own_values: Option<Rc<dyn OwnValues>>,
    /// When its head was whole.
    pub(crate) started_us: u64,
    /// When its response began; 0 before that.
    pub(crate) begun_us: u64,
    /// What it is counted under: the service's own numbers.
    pub(crate) label: usize,
    pub(crate) reply: ReplyState,
    pub(crate) status: Status,
    /// Content bytes of the response.
    pub(crate) body_sent: u64,
    /// Content bytes of the request that were read.
    pub(crate) body_read: u64,
    /// The copy that is made of that content.
    pub(crate) body_copy: Option<Box<BodyCopy>>,
    pub(crate) notes: RequestNotes,
    /// Whether errors of the handler have the pages of the site, and the one in whose place there is a page.
    pub(crate) interception: Interception,
    /// What the response passes on its way out. The filters stay when a handler fails: the answer to that is the site's too.
    pub(crate) filters: Filters,
    /// What makes the pages of errors, once the request's site is known.
    pub(crate) pages: Option<Rc<dyn ErrorPages>>,
    /// Bytes of memory that the handler holds.
    pub(crate) handler_bytes: usize,
    /// What is dropped once the client has the response.
    pub(crate) kept: Option<Rc<dyn Any>>,
    /// The same, once the handler is done.
    pub(crate) handler_place: Option<Rc<dyn Any>>,
    /// Its head as changed by this server, in place of the one that was sent.
    pub(crate) amended: Option<Box<AmendedHead>>,
    /// Whether handlers may name a file of this server in place of a response, and the one that was named.
    pub(crate) sends_files: bool,
    pub(crate) named_file: Option<Box<NamedFile>>,
    /// Whether it was let in because of who sends it.
    pub(crate) is_authorized: bool,
    /// What learns of an upgrade.
    pub(crate) upgrade_tap: Option<Rc<dyn UpgradeTap>>,
    /// What it has made of the upgrade.
    pub(crate) upgraded: Option<Box<dyn Any>>,
}

impl RequestState {
    pub(crate) fn new(peer: Peer, client: Client, started_us: u64) -> RequestState {
        RequestState {
            peer,
            client,
            listener_key: 0,
            tls: None,
            empty_segments: EmptySegments::Merge,
            passes_as_sent: false,
            ids: RequestIds::default(),
            user: None,
            own_values: None,
            started_us,
            begun_us: 0,
            label: 0,
            reply: ReplyState::Unsent,
            status: Status::OK,
            body_sent: 0,
            body_read: 0,
            body_copy: None,
            notes: RequestNotes::default(),
            interception: Interception::Off,
            filters: Filters::default(),
            pages: None,
            handler_bytes: 0,
            kept: None,
            handler_place: None,
            amended: None,
            sends_files: false,
            named_file: None,
            is_authorized: false,
            upgrade_tap: None,
            upgraded: None,
        }
    }

    /// The connection carries something else from now on.
    pub(crate) fn switched(&mut self, now_us: u64, status: Status) {
        self.begun(now_us, status, BodySize::Unknown);
        self.upgraded = self.upgrade_tap.take().map(UpgradeTap::upgraded);
    }

    /// Counts content that the handler gets.
    pub(crate) fn read_piece(&mut self, piece: &[u8]) {
        self.body_read += piece.len() as u64;
        if let Some(copy) = &mut self.body_copy
            && copy.add(piece)
        {
            self.body_ended();
        }
    }

    /// The handler has all of the content.
    pub(crate) fn body_ended(&mut self) {
        if let Some(copy) = self.body_copy.take() {
            copy.finish();
        }
    }

    /// A response head of that status has been sent, and so much body follows.
    pub(crate) fn begun(&mut self, now_us: u64, status: Status, body: BodySize) {
        self.begun_us = now_us;
        self.status = status;
        self.reply = ReplyState::Body(body);
    }

    /// Counts body bytes that are about to be sent. Returns what is to come after them; `None` where they are not sent,
    /// because the client gets no body.
    pub(crate) fn take(&mut self, len: u64) -> Result<Option<BodySize>, Fault> {
        let size = match self.reply {
            ReplyState::Body(size) => size,
            ReplyState::Elsewhere => return Ok(None),
            ReplyState::Unsent | ReplyState::Done => {
                return Err(Fault::Broken("body written outside a response"));
            }
        };
        if len == 0 || size == BodySize::None {
            return Ok(None);
        }
        self.body_sent += len;
        after(size, len).map(Some)
    }

    /// The body is complete.
    pub(crate) fn end(&mut self) -> Result<(), Fault> {
        match std::mem::replace(&mut self.reply, ReplyState::Done) {
            ReplyState::Body(BodySize::Known(left)) => {
                self.reply = ReplyState::Body(BodySize::Known(left));
                Err(Fault::Broken("less body written than announced"))
            }
            ReplyState::Unsent => {
                self.reply = ReplyState::Unsent;
                Err(Fault::Broken("no response"))
            }
            ReplyState::Elsewhere => {
                self.reply = ReplyState::Elsewhere;
                Ok(())
            }
            ReplyState::Body(_) | ReplyState::Done => Ok(()),
        }
    }

    /// Bytes of the body still to come, as far as they were announced.
    pub(crate) fn announced_bytes(&self) -> u64 {
        match self.reply {
            ReplyState::Body(BodySize::Known(left)) => left,
            _ => 0,
        }
    }
}

/// The part of a body that remains after `len` bytes of it.
pub(crate) fn after(size: BodySize, len: u64) -> Result<BodySize, Fault> {
    match size {
        BodySize::Unknown => Ok(BodySize::Unknown),
        BodySize::None | BodySize::Known(_) => {
            let left = if let BodySize::Known(left) = size { left } else { 0 };
            match left.checked_sub(len) {
                None => Err(Fault::Broken("more body written than announced")),
                Some(0) => Ok(BodySize::None),
                Some(left) => Ok(BodySize::Known(left)),
            }
        }
    }
}

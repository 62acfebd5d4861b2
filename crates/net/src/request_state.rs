//! State of a request and its response, independent of the lane.

use std::any::Any;
use std::rc::Rc;

use http::template::CustomVariables;
use http::{BodySize, EmptySegments, Fields, RequestIds, Status};

use crate::address::{Client, Peer};
use crate::amended_request::AmendedHead;
use crate::body_copy::BodyCopy;
use crate::fault::Fault;
use crate::filters::{Filters, UpgradeTap};
use crate::named_file::NamedFile;
use crate::notes::RequestNotes;
use crate::page::ErrorPages;
use crate::tls::TlsSession;

/// Progress of the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReplyState {
    /// No head was sent.
    #[default]
    Unsent,
    /// The head was sent; the remaining size of the body. `None` also if the client gets no body (HEAD, 304).
    Body(BodySize),
    /// The response is complete.
    Done,
    /// The handler has named a file, or its error is replaced by a page; its further output is dropped.
    Suppressed,
}

/// Size of a response up to which its record is made before the client has got it, in bytes: small responses usually leave
/// together with others.
const BODY_BYTES_SMALL: u64 = 64 * 1024;

/// Treatment of a handler's error response.
#[derive(Default)]
pub(crate) enum Interception {
    /// Sent to the client.
    #[default]
    Off,
    /// Replaced by the site's error page, if there is one.
    On,
    /// Held back if it has one of these statuses, also if this server has written it. Others are replaced by the site's error page
    /// if `uses_pages` is set.
    Of { statuses: Rc<[Status]>, uses_pages: bool },
    /// Held back: its status and the fields to keep.
    HeldBack(Box<(Status, Fields)>),
}

/// An authenticated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedUser {
    /// User name: visible characters, spaces and bytes beyond ASCII.
    pub name: Vec<u8>,
    /// Authentication scheme, as in `AUTH_TYPE` (RFC 3875 section 4.1.1): `Basic`, `Bearer`.
    pub scheme: &'static str,
}

/// State of a request without its head, and the progress of its response.
pub(crate) struct RequestState {
    /// The peer of the connection.
    pub(crate) peer: Peer,
    /// The client that sent the request.
    pub(crate) client: Client,
    /// Key of the listener that accepted the connection.
    pub(crate) listener_key: u64,
    /// The client's TLS session.
    pub(crate) tls: Option<Rc<TlsSession>>,
    /// Treatment of empty path segments.
    pub(crate) empty_segments: EmptySegments,
    /// Whether handlers get the path with all empty segments.
    pub(crate) preserves_empty_segments: bool,
    pub(crate) ids: RequestIds,
    pub(crate) user: Option<Rc<VerifiedUser>>,
    /// Variables that the configuration defines.
    pub(crate) custom_variables: Option<Rc<dyn CustomVariables>>,
    /// Time at which the head was complete.
    pub(crate) started_us: u64,
    /// Time at which the response began; 0 before that.
    pub(crate) response_started_us: u64,
    /// Label for statistics, defined by the service.
    pub(crate) label: usize,
    pub(crate) reply: ReplyState,
    pub(crate) status: Status,
    /// Body bytes of the response.
    pub(crate) body_sent: u64,
    /// Body bytes of the request that were read.
    pub(crate) body_read: u64,
    /// Copy of the request body in progress.
    pub(crate) body_copy: Option<Box<BodyCopy>>,
    pub(crate) notes: RequestNotes,
    /// Treatment of the handler's error response.
    pub(crate) interception: Interception,
    /// Filters of the response. Kept when a handler fails, because its error page passes them too.
    pub(crate) filters: Filters,
    /// Error pages of the site, once it is known.
    pub(crate) error_pages: Option<Rc<dyn ErrorPages>>,
    /// Memory held by the handler, in bytes.
    pub(crate) handler_bytes: usize,
    /// Value dropped when the client has the response.
    pub(crate) kept_until_sent: Option<Rc<dyn Any>>,
    /// Value dropped when the handler is done.
    pub(crate) handler_permit: Option<Rc<dyn Any>>,
    /// The head as modified by this server, used in place of the original one.
    pub(crate) amended: Option<Box<AmendedHead>>,
    /// Whether the handler may name a file instead of sending a response, and the named file.
    pub(crate) may_name_file: bool,
    pub(crate) named_file: Option<Box<NamedFile>>,
    /// Whether the request was authorized by its sender's identity.
    pub(crate) is_authorized: bool,
    /// Observer of a protocol switch.
    pub(crate) upgrade_tap: Option<Rc<dyn UpgradeTap>>,
    /// Value returned by the observer, dropped when the tunnel ends.
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
            preserves_empty_segments: false,
            ids: RequestIds::default(),
            user: None,
            custom_variables: None,
            started_us,
            response_started_us: 0,
            label: 0,
            reply: ReplyState::Unsent,
            status: Status::OK,
            body_sent: 0,
            body_read: 0,
            body_copy: None,
            notes: RequestNotes::default(),
            interception: Interception::Off,
            filters: Filters::default(),
            error_pages: None,
            handler_bytes: 0,
            kept_until_sent: None,
            handler_permit: None,
            amended: None,
            may_name_file: false,
            named_file: None,
            is_authorized: false,
            upgrade_tap: None,
            upgraded: None,
        }
    }

    /// Records a protocol switch.
    pub(crate) fn record_switch(&mut self, now_us: u64, status: Status) {
        self.record_head(now_us, status, BodySize::Unknown);
        self.upgraded = self.upgrade_tap.take().map(UpgradeTap::upgraded);
    }

    /// Counts content read by the handler.
    pub(crate) fn count_read(&mut self, piece: &[u8]) {
        self.body_read += piece.len() as u64;
        if let Some(copy) = &mut self.body_copy
            && copy.add(piece)
        {
            self.finish_body_copy();
        }
    }

    /// Completes the copy of the body.
    pub(crate) fn finish_body_copy(&mut self) {
        if let Some(copy) = self.body_copy.take() {
            copy.finish();
        }
    }

    /// Records that a response head was sent, and the size of the body that follows.
    pub(crate) fn record_head(&mut self, now_us: u64, status: Status, body: BodySize) {
        self.response_started_us = now_us;
        self.status = status;
        self.reply = ReplyState::Body(body);
    }

    /// Counts body bytes that are about to be sent. Returns the remaining size; `None` if nothing is sent
    /// because the client gets no body.
    pub(crate) fn count_body(&mut self, len: u64) -> Result<Option<BodySize>, Fault> {
        let size = match self.reply {
            ReplyState::Body(size) => size,
            ReplyState::Suppressed => return Ok(None),
            ReplyState::Unsent | ReplyState::Done => {
                return Err(Fault::Failed("body written outside a response"));
            }
        };
        if len == 0 || size == BodySize::None {
            return Ok(None);
        }
        self.body_sent += len;
        remaining_after(size, len).map(Some)
    }

    /// Whether the record of the request is made when the client has got its response.
    pub(crate) fn is_large(&self) -> bool {
        self.body_sent > BODY_BYTES_SMALL
    }

    /// Releases everything that only the handler needs, before a wait for the client.
    pub(crate) fn release_handler(&mut self) {
        self.handler_permit = None;
        self.upgraded = None;
    }

    /// Corrects the size of the response by what its client has not got.
    pub(crate) fn subtract_undelivered(&mut self, bytes: u64) {
        self.body_sent = self.body_sent.saturating_sub(bytes);
    }

    /// Completes the response body.
    pub(crate) fn end(&mut self) -> Result<(), Fault> {
        match std::mem::replace(&mut self.reply, ReplyState::Done) {
            ReplyState::Body(BodySize::Known(left)) => {
                self.reply = ReplyState::Body(BodySize::Known(left));
                Err(Fault::Failed("less body written than announced"))
            }
            ReplyState::Unsent => {
                self.reply = ReplyState::Unsent;
                Err(Fault::Failed("no response"))
            }
            ReplyState::Suppressed => {
                self.reply = ReplyState::Suppressed;
                Ok(())
            }
            ReplyState::Body(_) | ReplyState::Done => Ok(()),
        }
    }

    /// Returns the announced bytes of the body that were not sent yet.
    pub(crate) fn announced_bytes(&self) -> u64 {
        match self.reply {
            ReplyState::Body(BodySize::Known(left)) => left,
            _ => 0,
        }
    }
}

/// Returns the size of a body that remains after `len` bytes.
pub(crate) fn remaining_after(size: BodySize, len: u64) -> Result<BodySize, Fault> {
    match size {
        BodySize::Unknown => Ok(BodySize::Unknown),
        BodySize::None | BodySize::Known(_) => {
            let left = if let BodySize::Known(left) = size { left } else { 0 };
            match left.checked_sub(len) {
                None => Err(Fault::Failed("more body written than announced")),
                Some(0) => Ok(BodySize::None),
                Some(left) => Ok(BodySize::Known(left)),
            }
        }
    }
}

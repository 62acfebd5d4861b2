//! One request and its response, as a handler sees them.

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Range;
use std::os::fd::AsFd;
use std::rc::Rc;

use http::encode::Outgoing;
use http::framing::Framing;
use http::path::{self, EmptySegments};
use http::{BodySize, Dialect, Fields, Head, Length, Method, Name, Reject, Status, Version};

use crate::address::{Client, Peer};
use crate::compress::{self, Compressing, Compression, CompressionInput};
use crate::conn::{Conn, ResponseState};
use crate::core::Core;
use crate::fault::Fault;
use crate::memory::Pressure;
use crate::page::{self, ErrorPages, FieldEdits};

/// One request and its response. The handler pulls the body with [`Exchange::read`], answers with
/// [`Exchange::begin`] and [`Exchange::write`] (or [`Exchange::reply`]), and returns; framing, connection
/// handling and the fields `Date`, `Server`, `Content-Length`, `Transfer-Encoding` and `Connection` are the server's part.
pub struct Exchange<'c> {
    pub(crate) conn: &'c mut Conn,
    /// What a handler passes to the access log: which site, which route.
    note: Cell<u32>,
}

/// Which of the lines that every response carries the handler brings itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultFields {
    /// `Server`.
    pub server: bool,
    /// `Date`.
    pub date: bool,
}

/// A view of the request's head.
#[derive(Clone, Copy)]
pub struct Request<'x> {
    head: &'x Head,
    bytes: &'x [u8],
    peer: Peer,
    client: Client,
    empty_segments: EmptySegments,
}

impl<'x> Request<'x> {
    pub(crate) fn of(conn: &'x Conn) -> Request<'x> {
        let (head, bytes) = (&conn.work.machine.head, conn.work.input.head());
        Request { head, bytes, peer: conn.peer, client: conn.client, empty_segments: conn.empty_segments }
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> Method {
        self.head.method
    }

    /// The method as sent.
    #[must_use]
    pub fn method_name(&self) -> &'x [u8] {
        self.head.method_name.of(self.bytes)
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.head.version
    }

    /// The target as sent.
    #[must_use]
    pub fn target(&self) -> &'x [u8] {
        self.head.target.whole.of(self.bytes)
    }

    /// The path as sent, not decoded; `*` for `OPTIONS *`.
    #[must_use]
    pub fn path(&self) -> &'x [u8] {
        self.head.target.path(self.bytes)
    }

    /// The path decoded: what routes match and handlers see. See [`http::path`].
    ///
    /// # Errors
    /// 400 for a path that servers read in two ways.
    pub fn normal_path(&self) -> Result<Cow<'x, [u8]>, Reject> {
        path::normal_path(self.path(), self.empty_segments)
    }

    /// The same path percent-encoded, for request targets and header fields.
    ///
    /// # Errors
    /// Those of [`Request::normal_path`].
    pub fn encoded_path(&self) -> Result<Cow<'x, [u8]>, Reject> {
        path::encoded_path(self.path(), self.empty_segments)
    }

    /// What becomes of empty segments in the path.
    #[must_use]
    pub fn empty_segments(&self) -> EmptySegments {
        self.empty_segments
    }

    /// What follows the `?`, with bytes beyond ASCII percent-encoded.
    #[must_use]
    pub fn encoded_query(&self) -> Option<Cow<'x, [u8]>> {
        self.query().map(path::encode_beyond_ascii)
    }

    /// What follows the `?`, as sent.
    #[must_use]
    pub fn query(&self) -> Option<&'x [u8]> {
        self.head.target.query.map(|query| query.of(self.bytes))
    }

    /// `host[:port]` that the request is for; empty where a 1.0 client named none.
    #[must_use]
    pub fn authority(&self) -> &'x [u8] {
        self.head.authority.of(self.bytes)
    }

    /// The first field of that name.
    #[must_use]
    pub fn field(&self, id: Name) -> Option<&'x [u8]> {
        self.head.field(self.bytes, id)
    }

    /// All fields in order: known name, name as sent, value.
    pub fn fields(&self) -> impl Iterator<Item = (Name, &'x [u8], &'x [u8])> {
        let bytes = self.bytes;
        self.head.fields.iter().map(move |field| (field.id, field.name.of(bytes), field.value.of(bytes)))
    }

    /// The parsed head and the bytes that its spans refer to.
    #[must_use]
    pub fn head(&self) -> (&'x Head, &'x [u8]) {
        (self.head, self.bytes)
    }

    /// How much body the request has.
    #[must_use]
    pub fn body(&self) -> BodySize {
        self.head.body
    }

    /// The peer of the connection: the client, or the nearest HTTP proxy in front of this server. Behind a proxy that
    /// speaks the PROXY protocol, it is the peer that the proxy reports, not the proxy itself.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The client that sent the request: the peer, or the client that [`Exchange::set_client`] has set.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client
    }
}

impl<'c> Exchange<'c> {
    pub(crate) fn new(conn: &'c mut Conn) -> Exchange<'c> {
        Exchange { conn, note: Cell::new(0) }
    }

    /// The request's head.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        Request::of(self.conn)
    }

    /// The engine that runs this: its clock, timers and blocking threads.
    #[must_use]
    pub fn core(&self) -> &Core {
        self.conn.stream.core()
    }

    /// Sets how many bytes of memory the handler itself holds for this request, until the next call or until the handler
    /// returns. Meant to be called before a wait.
    pub fn hold(&mut self, bytes: usize) {
        self.conn.handler_bytes = bytes;
        self.conn.settle();
    }

    /// Sets a number that the service reads in the log record.
    pub fn set_note(&self, note: u32) {
        self.note.set(note);
    }

    pub(crate) fn note(&self) -> u32 {
        self.note.get()
    }

    /// Sets the client from the fields that a trusted peer has sent.
    pub fn set_client(&mut self, address: Peer, secure: bool, vouched: Dialect) {
        self.conn.client = Client { address, secure, vouched: Some(vouched) };
    }

    /// Says what becomes of empty segments in the path. They are merged without it.
    pub fn set_empty_segments(&mut self, empty_segments: EmptySegments) {
        self.conn.empty_segments = empty_segments;
    }

    /// Edits to make to the fields of whatever is answered from now on.
    pub fn set_edits(&mut self, edits: Option<Rc<FieldEdits>>) {
        self.conn.edits = edits;
    }

    /// Which responses are compressed from now on. Those that have begun stay as they are.
    pub fn set_compression(&mut self, compression: Option<Rc<Compression>>) {
        self.conn.compression = compression;
    }

    /// Pages for [`Exchange::refuse`].
    pub fn set_pages(&mut self, pages: Option<Rc<ErrorPages>>) {
        self.conn.pages = pages;
    }

    /// Sets this request's progress timeouts, in milliseconds: between two pieces of the body, and without the
    /// client taking any byte of the response.
    pub fn set_timeouts(&mut self, body_ms: u64, write_ms: u64) {
        self.conn.body_ms = body_ms;
        self.conn.write_ms = write_ms;
    }

    /// Sets the most content that the request may have, in place of [`crate::Limits::body_bytes_max`]; without
    /// effect once its body is being read.
    ///
    /// # Errors
    /// 413 where the announced length is above it.
    pub fn limit_body(&mut self, bytes_max: u64) -> Result<(), Fault> {
        Ok(self.conn.limit_body(bytes_max)?)
    }

    /// The next piece of the request's body; `None` at its end. The first call sends `100 Continue` to a client
    /// that waits for it.
    ///
    /// # Errors
    /// Invalid framing, a body above the limit, no progress, or a client that disconnected. The handler must return it.
    pub async fn read(&mut self) -> Result<Option<&[u8]>, Fault> {
        match self.conn.body_piece().await? {
            Some((start, end)) => Ok(Some(self.conn.work.input.slice(start, end))),
            None => Ok(None),
        }
    }

    /// The trailer fields of the request, once [`Exchange::read`] has returned `None`.
    #[must_use]
    pub fn trailers(&self) -> Option<&Fields> {
        self.conn.work.machine.body().map(http::body::Body::trailers)
    }

    /// Whether a response head is out: then only its body can follow.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.conn.reply != ResponseState::Unsent
    }

    /// Begins the response. `fields` must not hold what frames a message; `length` says what body follows (for
    /// HEAD: would follow).
    ///
    /// # Panics
    /// Where a response has begun already.
    pub fn begin(&mut self, status: Status, fields: &Fields, length: Length) {
        self.begin_fields(status, fields, length, DefaultFields::default());
    }

    /// Begins with fields as the route's filters make them: first its edits, then compression.
    pub(crate) fn begin_fields(
        &mut self,
        status: Status,
        fields: &Fields,
        mut length: Length,
        mut own: DefaultFields,
    ) {
        let edited;
        let mut fields = match &self.conn.edits {
            None => fields,
            Some(edits) => {
                own.server |= edits.replaces(Name::Server);
                own.date |= edits.replaces(Name::Date);
                edited = edits.apply(fields);
                &edited
            }
        };
        let mut coded;
        if let Some(compression) = self.conn.compression.clone() {
            coded = fields.clone();
            length = self.compress(&compression, status, &mut coded, length);
            fields = &coded;
        }
        self.open(status, length, own);
        self.conn.work.out.extend_from_slice(fields.wire());
        self.conn.work.out.extend_from_slice(b"\r\n");
    }

    /// Has the response compressed where that is worth it; returns the length that it has then.
    fn compress(
        &mut self,
        compression: &Compression,
        status: Status,
        fields: &mut Fields,
        length: Length,
    ) -> Length {
        let Request { head, bytes, client, .. } = self.request();
        let asked = CompressionInput { head, bytes, secure: client.secure };
        let Some(coding) = compression.choose(&asked, status, fields, length) else { return length };
        // To HEAD the fields are those of GET.
        if self.request().method() != Method::Head {
            if self.conn.pressure() >= Pressure::High {
                return length;
            }
            let media_type = fields.first(b"Content-Type").map(http::media::without_parameters);
            let is_event_stream = media_type.as_deref() == Some("text/event-stream");
            let encoders = &self.conn.context().encoders;
            let begun = Compressing::begin(coding, compression.effort, length, is_event_stream, encoders);
            let Some(compressing) = begun else { return length };
            self.conn.compressing = Some(compressing);
            self.conn.weigh();
        }
        compress::say_coded(fields, coding);
        Length::Unknown
    }

    /// Decides the framing and writes the head up to where the handler's lines begin.
    pub(crate) fn open(&mut self, status: Status, length: Length, own: DefaultFields) {
        let conn = &mut *self.conn;
        assert!(conn.reply == ResponseState::Unsent, "a response begins once");
        let (method, version) = (conn.work.machine.head.method, conn.version());
        let outgoing = Outgoing::decide(method, version, status, length, conn.may_keep_alive());
        let work = &mut *conn.work;
        conn.stream.core().clock().with_common(|common| {
            let date_at = after_server(common);
            let common = match (own.server, own.date) {
                (false, false) => common,
                (true, false) => &common[date_at..],
                (false, true) => &common[..date_at],
                (true, true) => &[],
            };
            outgoing.open(&mut work.out, version, status, common);
        });
        conn.begun(status, outgoing);
    }

    /// Whether the client is to get content: not for HEAD, 204 and 304.
    #[must_use]
    pub fn content_wanted(&self) -> bool {
        !matches!(self.conn.reply, ResponseState::Body(Framing::None) | ResponseState::Done)
    }

    /// More of the response's body. Bytes that the client is not to get (HEAD) are dropped.
    ///
    /// # Errors
    /// The client has disconnected or has read nothing for too long; or more was written than announced.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.conn.send_body(bytes).await
    }

    /// Sends out what was written so far, for a handler that will wait before it writes more.
    ///
    /// # Errors
    /// As [`Exchange::write`].
    pub async fn flush(&mut self) -> Result<(), Fault> {
        self.conn.flush_encoder()?;
        self.conn.flush().await
    }

    /// A range of a file as (more of) the response's body, sent by the kernel without copying.
    /// The length of the body must have been announced.
    ///
    /// # Errors
    /// As [`Exchange::write`]; [`Fault::Broken`] where the file is shorter than the range.
    pub async fn write_file(&mut self, file: &impl AsFd, range: Range<u64>) -> Result<(), Fault> {
        let len = range.end.saturating_sub(range.start);
        self.conn.send_file_body(file.as_fd(), range.start, len).await
    }

    /// A whole response at once.
    ///
    /// # Errors
    /// As [`Exchange::write`].
    pub async fn reply(&mut self, status: Status, fields: &Fields, body: &[u8]) -> Result<(), Fault> {
        self.begin(status, fields, Length::Known(body.len() as u64));
        if self.content_wanted() {
            self.write(body).await?;
        }
        Ok(())
    }

    /// An error page: the site's own for this status, or a plain one that gives the reason.
    ///
    /// # Errors
    /// As [`Exchange::write`].
    pub async fn refuse(&mut self, status: Status, reason: &'static str) -> Result<(), Fault> {
        self.refuse_with(status, reason, &Fields::new()).await
    }

    /// An error page with more fields (`Allow`, `Retry-After`).
    ///
    /// # Errors
    /// As [`Exchange::write`].
    pub async fn refuse_with(
        &mut self,
        status: Status,
        reason: &'static str,
        more: &Fields,
    ) -> Result<(), Fault> {
        let plain;
        let pages = self.conn.pages.clone();
        let page = match pages.as_ref().and_then(|pages| pages.find(status)) {
            Some(page) => page,
            None => {
                plain = page::plain(status, reason, self.request().field(Name::Accept));
                &plain
            }
        };
        let mut fields = Fields::new();
        fields.push(Name::ContentType, page.content_type.as_bytes());
        fields.extend(more);
        self.reply(status, &fields, &page.body).await
    }

    /// Ends a response with trailer fields, which only the chunked coding carries. Without this call it ends
    /// when the handler returns.
    ///
    /// # Errors
    /// [`Fault::Broken`] where less was written than announced.
    pub fn end(&mut self, trailers: &Fields) -> Result<(), Fault> {
        self.conn.end_response(trailers)
    }

    /// Answers a request that there is no memory for; the connection closes after it.
    pub(crate) async fn refuse_for_memory(&mut self) -> Result<(), Fault> {
        self.core().memory().count_refused();
        self.conn.keep_alive = false;
        let mut later = Fields::new();
        later.push(Name::RetryAfter, b"2");
        self.refuse_with(Status::SERVICE_UNAVAILABLE, "the server is short of memory", &later).await
    }

    /// Answers a peer's fault: its status and reason, and the connection closes after it.
    pub(crate) async fn refuse_and_close(&mut self, reject: Reject) -> Result<(), Fault> {
        self.conn.keep_alive = false;
        self.refuse(reject.status, reject.reason).await
    }
}

/// Where the second line of `common` begins: what follows `Server`, if there is one.
fn after_server(common: &[u8]) -> usize {
    match common.starts_with(b"Server:") {
        true => common.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1),
        false => 0,
    }
}

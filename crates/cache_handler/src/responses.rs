//! Sending responses of the cache: stored ones, and ones that are being received.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use cache::{
    FillReader, FillResponse, ForwardReason, IncompleteResponse, Object, Selected, StoredBody, answer,
    cache_status, stored_fields, tags,
};
use http::{Fields, Length, Name, Status};
use net::{DefaultFields, Exchange, Fault};

use crate::coded::CodedResponse;

const UNSATISFIABLE: Status = Status::of(416).expect("three digits");
const PARTIAL_CONTENT: Status = Status::of(206).expect("three digits");

/// Field of responses from the cache to other servers of a set.
pub(crate) const PEER_FIELD: &[u8] = b"Komainu-Peer";

/// Selects what the client gets of a response: never a part of one in which texts are replaced.
fn select(exchange: &Exchange<'_>, status: Status, fields: &Fields, length: Option<u64>) -> Selected {
    match answer::select(exchange.request().head(), status, fields, length) {
        Selected::Part(..) | Selected::Unsatisfiable(_) if exchange.replaces_texts(fields) => Selected::Whole,
        selected => selected,
    }
}

/// Writes a stored response, in its compressed form if `coded` has one; with all fields that the origin sent, if it is
/// `for_peer`.
pub(crate) async fn write_stored(
    exchange: &mut Exchange<'_>,
    object: &Object,
    cache_status: &str,
    coded: &CodedResponse,
    for_peer: bool,
) -> Result<(), Fault> {
    let age_s = object.freshness().age_s(exchange.core().unix_s());
    let own = if for_peer { &object.fields } else { object.client_fields() };
    let fields = coded.fields.as_ref().unwrap_or(own);
    let length = coded.body.as_ref().map_or(object.body.len(), |body| body.len() as u64);
    let selected = select(exchange, object.status, fields, Some(length));
    let dictionary = coded.dictionary.as_deref();
    let sent =
        HeadToSend { status: object.status, fields, age_s: Some(age_s), cache_status, dictionary, for_peer };
    let range = match sent.begin(exchange, &selected, Length::Known(length)).await? {
        Some(range) => range,
        None => return Ok(()),
    };
    if let Some(body) = coded.body.as_ref().filter(|_| exchange.wants_content()) {
        return exchange.write(body).await;
    }
    if exchange.wants_content() { send_body(exchange, &object.body, range).await } else { Ok(()) }
}

/// Sends a range of stored content: from the memory file like any other file, so that slow clients hold no
/// memory, or from its pieces.
async fn send_body(exchange: &mut Exchange<'_>, body: &StoredBody, range: Range<u64>) -> Result<(), Fault> {
    match body.file_range(range.clone()) {
        Some((file, place)) => exchange.write_memory(file, place).await,
        None => {
            for slice in body.slices(range) {
                exchange.write_shared(slice).await?;
            }
            Ok(())
        }
    }
}

/// Head of a response and the fields that this server adds.
struct HeadToSend<'h> {
    status: Status,
    fields: &'h Fields,
    /// Value of `Age` (RFC 9111 section 5.1), which every cache adds to what it has stored; `None` for the request that
    /// fetches the response, and for all that wait for a response that is not stored.
    age_s: Option<u64>,
    cache_status: &'h str,
    /// Value of `Use-As-Dictionary`.
    dictionary: Option<&'h [u8]>,
    /// Whether the response goes to another server of the set.
    for_peer: bool,
}

impl HeadToSend<'_> {
    /// Begins the response selected by the request's conditions and range. Returns the range of the content
    /// to send, or `None` if there is none.
    async fn begin(
        &self,
        exchange: &mut Exchange<'_>,
        selected: &Selected,
        length: Length,
    ) -> Result<Option<Range<u64>>, Fault> {
        match selected {
            Selected::Whole => {
                self.begin_as(exchange, self.status, self.fields, length, None);
                Ok(Some(0..http::body::NO_LIMIT))
            }
            Selected::Part(part, of) => {
                let range = http::range::content_range(part, *of);
                let length = Length::Known(part.end - part.start);
                self.begin_as(exchange, PARTIAL_CONTENT, self.fields, length, Some(&range));
                Ok(Some(part.clone()))
            }
            Selected::NotModified => {
                exchange.describe_not_modified(self.fields, length);
                let fields = answer::not_modified_fields(self.fields);
                self.begin_as(exchange, Status::NOT_MODIFIED, &fields, Length::Known(0), None);
                Ok(None)
            }
            Selected::Unsatisfiable(of) => {
                let mut more = Fields::new();
                more.push(Name::ContentRange, http::range::unsatisfied_range(*of).as_bytes());
                more.try_push(b"Cache-Status", self.cache_status.as_bytes()).expect("a valid field");
                exchange.refuse_with(UNSATISFIABLE, "the range is beyond the end", &more).await?;
                Ok(None)
            }
        }
    }

    fn begin_as(
        &self,
        exchange: &mut Exchange<'_>,
        status: Status,
        fields: &Fields,
        length: Length,
        range: Option<&str>,
    ) {
        let own = DefaultFields {
            server: fields.first(b"server").is_some(),
            date: fields.first(b"date").is_some(),
        };
        exchange.begin_lines(status, length, own, |lines| {
            lines.push_encoded(fields.as_bytes());
            if let Some(age_s) = self.age_s {
                lines.begin(b"Age");
                lines.number(age_s);
                lines.end();
            }
            if let Some(range) = range {
                lines.line(b"Content-Range", range.as_bytes());
            }
            if let Some(value) = self.dictionary.filter(|_| status == Status::OK) {
                lines.line(b"Use-As-Dictionary", value);
            }
            if self.for_peer {
                lines.line(PEER_FIELD, b"1");
            }
            lines.line(b"Cache-Status", self.cache_status.as_bytes());
        });
    }
}

/// Writes a response while it is being received.
pub(crate) async fn write_filled(
    exchange: &mut Exchange<'_>,
    response: &FillResponse,
    reader: FillReader,
    cancels: bool,
    reason: ForwardReason,
    dictionary: Option<&[u8]>,
    for_peer: bool,
) -> Result<(), Fault> {
    let now_s = exchange.core().unix_s();
    let outcome = match &response.outcome {
        Ok((_, freshness)) => Ok(freshness.ttl_s(now_s)),
        Err(why) => Err(*why),
    };
    // A request that waited gets the fields of a hit: `private` and `no-cache` may name fields that are only
    // for the client whose request fetched the response.
    let shared = response.outcome.as_ref().ok().filter(|_| !reader.is_leader()).map(|(_, freshness)| {
        (stored_fields(&response.fields, freshness.received_s), freshness.age_s(now_s))
    });
    let (fields, age_s) = match &shared {
        Some((fields, age_s)) => (fields, Some(*age_s)),
        None => (&response.fields, None),
    };
    let mut without_tags;
    let fields = if for_peer {
        fields
    } else {
        without_tags = fields.clone();
        tags::strip(&mut without_tags);
        &without_tags
    };
    let cache_status = cache_status::forwarded(reason, !reader.is_leader(), Some(outcome));
    let selected = select(exchange, response.status, fields, response.length);
    let length = response.length.map_or(Length::Unknown, Length::Known);
    let sent = HeadToSend {
        status: response.status,
        fields,
        age_s,
        cache_status: &cache_status,
        dictionary,
        for_peer,
    };
    let Some(range) = sent.begin(exchange, &selected, length).await? else { return Ok(()) };
    if !exchange.wants_content() {
        return Ok(());
    }
    let mut at = 0u64;
    loop {
        let Some(piece) = next_piece(exchange, &reader, cancels).await? else {
            return match selected {
                Selected::Whole => exchange.end(&reader.trailers()),
                _ => Ok(()),
            };
        };
        let end = at + piece.len() as u64;
        let from = range.start.max(at);
        let to = range.end.min(end);
        if from < to {
            exchange.write(&piece[(from - at) as usize..(to - at) as usize]).await?;
        }
        at = end;
        if at >= range.end {
            return Ok(());
        }
    }
}

/// Returns the next piece of the content. Flushes the output before waiting.
async fn next_piece(
    exchange: &mut Exchange<'_>,
    reader: &FillReader,
    cancels: bool,
) -> Result<Option<Arc<[u8]>>, Fault> {
    const BROKEN: fn(IncompleteResponse) -> Fault = |_| Fault::Failed("the response of the origin broke off");
    let now = poll_fn(|cx| match reader.poll_piece(cx) {
        Poll::Ready(piece) => Poll::Ready(Some(piece)),
        Poll::Pending => Poll::Ready(None),
    });
    if let Some(piece) = now.await {
        return piece.map_err(BROKEN);
    }
    exchange.flush().await?;
    unless_disconnected(exchange, cancels, |cx| reader.poll_piece(cx)).await?.map_err(BROKEN)
}

/// Waits for `poll`. If `cancels` is set, the wait ends when the client disconnects.
///
/// # Errors
/// [`Fault::Disconnected`] if the client has disconnected.
pub(crate) async fn unless_disconnected<T>(
    exchange: &Exchange<'_>,
    cancels: bool,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<T, Fault> {
    poll_fn(|cx| match poll(cx) {
        Poll::Pending if cancels && exchange.poll_disconnected(cx) => Poll::Ready(Err(Fault::Disconnected)),
        polled => polled.map(Ok),
    })
    .await
}

//! How a response of the cache is sent: what is stored, or is on its way.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use cache::{BrokenOff, FillReader, FillResponse, ForwardReason, Selected, answer, status};
use http::{Fields, Length, Name, Status};
use net::{DefaultFields, Exchange, Fault};

const PARTIAL_CONTENT: Status = Status::of(206).expect("three digits");
const PRECONDITION_FAILED: Status = Status::of(412).expect("three digits");
const UNSATISFIABLE: Status = Status::of(416).expect("three digits");

/// The head of a response, and what this server adds to it.
pub(crate) struct HeadToSend<'h> {
    pub(crate) status: Status,
    pub(crate) fields: &'h Fields,
    pub(crate) age_s: Option<u64>,
    pub(crate) cache_status: &'h str,
    /// The value of `Use-As-Dictionary`.
    pub(crate) dictionary: Option<&'h [u8]>,
}

impl HeadToSend<'_> {
    /// Begins the response that the client gets. Returns which bytes of the content follow; `None` for none.
    pub(crate) async fn begin(
        &self,
        x: &mut Exchange<'_>,
        selected: &Selected,
        length: Length,
    ) -> Result<Option<std::ops::Range<u64>>, Fault> {
        match selected {
            Selected::Whole => {
                self.begin_as(x, self.status, self.fields, length, None);
                Ok(Some(0..u64::MAX))
            }
            Selected::Part(part, of) => {
                let range = http::range::content_range(part, *of);
                let length = Length::Known(part.end - part.start);
                self.begin_as(x, PARTIAL_CONTENT, self.fields, length, Some(&range));
                Ok(Some(part.clone()))
            }
            Selected::NotModified => {
                let fields = answer::not_modified_fields(self.fields);
                self.begin_as(x, Status::NOT_MODIFIED, &fields, Length::Known(0), None);
                Ok(None)
            }
            Selected::Failed => {
                x.refuse(PRECONDITION_FAILED, "the resource has changed").await?;
                Ok(None)
            }
            Selected::Unsatisfiable(of) => {
                let mut more = Fields::new();
                more.push(Name::ContentRange, http::range::unsatisfied_range(*of).as_bytes());
                x.refuse_with(UNSATISFIABLE, "the range is beyond the end", &more).await?;
                Ok(None)
            }
        }
    }

    fn begin_as(
        &self,
        x: &mut Exchange<'_>,
        status: Status,
        fields: &Fields,
        length: Length,
        range: Option<&str>,
    ) {
        let own = DefaultFields {
            server: fields.first(b"server").is_some(),
            date: fields.first(b"date").is_some(),
        };
        x.begin_lines(status, length, own, |lines| {
            lines.whole(fields.wire());
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
            lines.line(b"Cache-Status", self.cache_status.as_bytes());
        });
    }
}

/// Sends a response while it arrives.
pub(crate) async fn send_response(
    x: &mut Exchange<'_>,
    response: &FillResponse,
    reader: FillReader,
    why: ForwardReason,
    dictionary: Option<&[u8]>,
) -> Result<(), Fault> {
    let now_s = x.core().unix_s();
    let outcome = match &response.outcome {
        Ok((_, freshness)) => Ok(freshness.ttl_s(now_s)),
        Err(why) => Err(*why),
    };
    let cache_status = status::forwarded(why, !reader.leads(), Some(outcome));
    let selected = answer::select(x.request().head(), response.status, &response.fields, response.length);
    let length = response.length.map_or(Length::Unknown, Length::Known);
    let sent = HeadToSend {
        status: response.status,
        fields: &response.fields,
        age_s: None,
        cache_status: &cache_status,
        dictionary,
    };
    let Some(range) = sent.begin(x, &selected, length).await? else { return Ok(()) };
    if !x.content_wanted() {
        return Ok(());
    }
    let mut at = 0u64;
    loop {
        let Some(piece) = next_piece(x, &reader).await? else {
            return match selected {
                Selected::Whole => x.end(&reader.trailers()),
                _ => Ok(()),
            };
        };
        let end = at + piece.len() as u64;
        let (from, to) = (range.start.max(at), range.end.min(end));
        if from < to {
            x.write(&piece[(from - at) as usize..(to - at) as usize]).await?;
        }
        at = end;
        if at >= range.end {
            return Ok(());
        }
    }
}

/// The next piece; what was written before goes out ahead of a wait.
async fn next_piece(x: &mut Exchange<'_>, reader: &FillReader) -> Result<Option<Arc<[u8]>>, Fault> {
    const BROKEN: fn(BrokenOff) -> Fault = |_| Fault::Broken("the response of the origin broke off");
    let now = poll_fn(|cx| match reader.poll_piece(cx) {
        Poll::Ready(piece) => Poll::Ready(Some(piece)),
        Poll::Pending => Poll::Ready(None),
    });
    if let Some(piece) = now.await {
        return piece.map_err(BROKEN);
    }
    x.flush().await?;
    poll_fn(|cx| reader.poll_piece(cx)).await.map_err(BROKEN)
}

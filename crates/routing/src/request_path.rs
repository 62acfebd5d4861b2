//! The path of a request, as routes and handlers see it.

use std::borrow::Cow;
use std::rc::Rc;

use http::path::{differ_in_slashes_alone, has_encoded_slash, normal_path};
use http::{EmptySegments, Reject};
use net::{Exchange, Request};
use proxy::Script;

/// The path of a request.
#[derive(Clone, Default)]
pub(crate) struct RequestPath {
    /// It decoded ([`http::path::matched_path`]); `None` where that changes nothing, so that nothing needs to be copied.
    pub(crate) decoded: Option<Vec<u8>>,
    /// Whether it has an encoded slash or backslash.
    pub(crate) has_encoded_slash: bool,
    /// Whether the handler gets it with the empty segments that the client has sent: see [`RequestPath::as_sent`].
    pub(crate) goes_as_sent: bool,
    /// The script that it is for, on a route with scripts.
    pub(crate) script: Option<Rc<Script>>,
}

impl RequestPath {
    /// The path of `request`.
    ///
    /// # Errors
    /// 400 where it has no normal form.
    pub(crate) fn of(request: &Request<'_>) -> Result<RequestPath, Reject> {
        RequestPath::with(request, request.empty_segments())
    }

    fn with(request: &Request<'_>, empty_segments: EmptySegments) -> Result<RequestPath, Reject> {
        Ok(match request.matched_path(empty_segments)? {
            Cow::Borrowed(_) => RequestPath::default(),
            Cow::Owned(decoded) => RequestPath {
                decoded: Some(decoded),
                has_encoded_slash: has_encoded_slash(request.path()),
                ..RequestPath::default()
            },
        })
    }

    /// The path with all empty segments that were sent; `None` where there are none, or where `..` removes one, so that the two paths
    /// name different things.
    pub(crate) fn as_sent(&self, request: &Request<'_>) -> Option<RequestPath> {
        let decoded =
            self.decoded.as_deref().filter(|_| request.path().windows(2).any(|pair| pair == b"//"))?;
        let sent = RequestPath::with(request, EmptySegments::AsSent).ok()?;
        differ_in_slashes_alone(decoded, sent.bytes(request)).then_some(sent)
    }

    /// The path that applications and upstream servers get.
    ///
    /// # Errors
    /// Those of [`RequestPath::of`].
    pub(crate) fn passed_on(&self, exchange: &mut Exchange<'_>) -> Result<Cow<'_, RequestPath>, Reject> {
        if !self.goes_as_sent {
            return Ok(Cow::Borrowed(self));
        }
        exchange.pass_as_sent();
        Ok(Cow::Owned(RequestPath { script: self.script.clone(), ..RequestPath::of(&exchange.request())? }))
    }

    /// It decoded, for as long as the request may be looked at.
    pub(crate) fn bytes<'p>(&'p self, request: &Request<'p>) -> &'p [u8] {
        self.decoded.as_deref().unwrap_or_else(|| request.path())
    }

    /// Its end of as many segments as `end`, which is that end where encoded slashes are not kept.
    pub(crate) fn end_like<'p>(&'p self, end: &[u8], request: &Request<'p>) -> &'p [u8] {
        let slashes = end.iter().filter(|&&byte| byte == b'/').count();
        let path = self.bytes(request);
        let ends = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.take(slashes).last().map_or(&b""[..], |at| &path[at..])
    }

    /// It decoded, for a handler that needs it while it changes the exchange; `keeps_slashes` for one that gets encoded slashes.
    pub(crate) fn kept(&self, exchange: &Exchange<'_>, keeps_slashes: bool) -> Vec<u8> {
        let request = exchange.request();
        match normal_path(request.path(), request.empty_segments()) {
            // Without encoded slashes `%2F` can only have been `%252F`.
            Ok(path) if !keeps_slashes && self.decoded.is_some() => path.into_owned(),
            _ => self.bytes(&request).to_vec(),
        }
    }
}

/// The prefix to remove from a path.
pub struct Strip(pub Vec<u8>);

impl Strip {
    /// The path below the prefix, empty for the prefix itself; the whole path if it is not below it.
    pub(crate) fn below<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        match path.strip_prefix(self.0.as_slice()) {
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => rest,
            _ => path,
        }
    }
}

//! Request paths as seen by routes and handlers.

use std::borrow::Cow;
use std::rc::Rc;

use http::path::{differ_only_in_slashes, has_encoded_slash, normal_path};
use http::{EmptySegments, Reject};
use net::{Exchange, Request};
use proxy::Script;

/// Path of a request.
#[derive(Clone, Default)]
pub(crate) struct RequestPath {
    /// Decoded path ([`http::path::matched_path`]); `None` if it equals the path of the request, to save a
    /// copy.
    pub(crate) decoded: Option<Vec<u8>>,
    /// Whether the path has an encoded slash or backslash.
    pub(crate) has_encoded_slash: bool,
    /// Whether the handler receives empty segments as sent by the client: see [`RequestPath::as_sent`].
    pub(crate) preserves_empty_segments: bool,
    /// Script of the request, on a PHP route.
    pub(crate) script: Option<Rc<Script>>,
}

impl RequestPath {
    /// Returns the path of a request.
    ///
    /// # Errors
    /// 400 if the path cannot be normalized.
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

    /// Returns the path with the empty segments that were sent. `None` if there are none, or if `..` removes
    /// one, so that the two paths denote different resources.
    pub(crate) fn as_sent(&self, request: &Request<'_>) -> Option<RequestPath> {
        let decoded =
            self.decoded.as_deref().filter(|_| request.path().windows(2).any(|pair| pair == b"//"))?;
        let sent = RequestPath::with(request, EmptySegments::AsSent).ok()?;
        differ_only_in_slashes(decoded, sent.bytes(request)).then_some(sent)
    }

    /// Makes the exchange show the path with empty segments to applications and upstream servers, if
    /// `preserves_empty_segments` is set, and returns that path. `None` if the path stays as it is.
    ///
    /// # Errors
    /// Those of [`RequestPath::of`].
    pub(crate) fn for_upstream(&self, exchange: &mut Exchange<'_>) -> Result<Option<RequestPath>, Reject> {
        if !self.preserves_empty_segments {
            return Ok(None);
        }
        exchange.preserve_empty_segments();
        Ok(Some(RequestPath { script: self.script.clone(), ..RequestPath::of(&exchange.request())? }))
    }

    /// Returns the decoded path, borrowed from the request if possible.
    pub(crate) fn bytes<'p>(&'p self, request: &Request<'p>) -> &'p [u8] {
        self.decoded.as_deref().unwrap_or_else(|| request.path())
    }

    /// Returns the end of the path with as many segments as `end`, the corresponding end of the fully decoded
    /// path.
    pub(crate) fn suffix_like<'p>(&'p self, end: &[u8], request: &Request<'p>) -> &'p [u8] {
        let slashes = end.iter().filter(|&&byte| byte == b'/').count();
        let path = self.bytes(request);
        let ends = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.take(slashes).last().map_or(&b""[..], |at| &path[at..])
    }

    /// Returns a copy of the decoded path, for handlers that modify the exchange. `keeps_slashes` is set for
    /// handlers that receive encoded slashes.
    pub(crate) fn copy_for_handler(&self, exchange: &Exchange<'_>, keeps_slashes: bool) -> Vec<u8> {
        let request = exchange.request();
        match normal_path(request.path(), request.empty_segments()) {
            // Encoded slashes have been refused, so `%2F` in the decoded path can only come from `%252F`.
            Ok(path) if !keeps_slashes && self.decoded.is_some() => path.into_owned(),
            _ => self.bytes(&request).to_vec(),
        }
    }
}

/// Prefix to remove from paths.
pub struct PathPrefix(pub Vec<u8>);

impl PathPrefix {
    /// Returns the path below the prefix: empty for the prefix itself, the whole path if it is not below the
    /// prefix.
    pub(crate) fn strip_from<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        match path.strip_prefix(self.0.as_slice()) {
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => rest,
            _ => path,
        }
    }
}

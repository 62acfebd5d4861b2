//! The response under way on an HTTP/1 connection: its head, the framing of its body, and its end.

use http::encode::{Lines, Outgoing};
use http::framing::Framing;
use http::{BodySize, Fields, Length, Status, Version};

use crate::conn::Conn;
use crate::fault::Fault;
use crate::filters::DefaultFields;

/// What is sent without a body and keeps the connection.
const BARE: Outgoing = Outgoing { framing: Framing::None, length: None, keep_alive: true };

impl Conn {
    /// Decides the framing and writes the head. Returns how much body the client gets.
    pub(crate) fn begin(
        &mut self,
        status: Status,
        length: Length,
        own: DefaultFields,
        lines: impl FnOnce(&mut Lines<'_>),
    ) -> BodySize {
        let (method, version) = (self.work.machine.head.method, self.version());
        let outgoing = Outgoing::decide(method, version, status, length, self.may_keep_alive());
        let (out, unix_s) = (&mut self.work.out, self.link.core().unix_s());
        let default_lines = &self.permit.context().default_lines;
        let reason = self.reason.take().filter(|reason| reason.0 == status);
        default_lines.with(unix_s, own, |default| {
            outgoing.open(out, version, (status, reason.as_ref().map(|reason| &reason.1[..])), default);
        });
        lines(&mut Lines::new(out));
        out.extend_from_slice(b"\r\n");
        self.keep_alive = outgoing.keep_alive;
        self.framing = outgoing.framing;
        if outgoing.framing == Framing::UntilClose {
            // Its end is the connection's. Whatever ends the connection before the response is whole (a panic,
            // the end of the process) must not look like that.
            self.link.stream().reset_on_close(true);
        }
        outgoing.framing.size()
    }

    /// An interim response, or the one that switches protocols. A 1.0 client knows none, and gets none; others get 103 (Early
    /// Hints) only where that is configured.
    pub(crate) fn inform(&mut self, status: Status, lines: impl FnOnce(&mut Lines<'_>)) {
        let is_hint = status == Status::EARLY_HINTS && !self.context().hints_over_http1.get();
        if self.version() == Version::Http10 || is_hint {
            return;
        }
        let out = &mut self.work.out;
        BARE.open(out, Version::Http11, (status, None), b"");
        lines(&mut Lines::new(out));
        out.extend_from_slice(b"\r\n");
    }

    /// The connection carries something else than HTTP from here on.
    pub(crate) fn switch(&mut self) {
        // What both ends make of it now is no response.
        self.link.set_bucket(None);
        // It may be idle for hours from here on.
        self.work.input.shrink();
        self.keep_alive = false;
        self.framing = Framing::UntilClose;
    }

    /// Body bytes of the response, at least one, framed.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.framing != Framing::Chunked {
            return self.push(bytes).await;
        }
        http::encode::chunk_start(&mut self.work.out, bytes.len());
        self.push(bytes).await?;
        self.work.out.extend_from_slice(http::encode::CHUNK_END);
        Ok(())
    }

    /// The same, without waiting.
    pub(crate) fn offer_body(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.framing != Framing::Chunked {
            return self.offer(bytes);
        }
        http::encode::chunk_start(&mut self.work.out, bytes.len());
        self.offer(bytes)?;
        self.work.out.extend_from_slice(http::encode::CHUNK_END);
        Ok(())
    }

    /// The body is complete.
    pub(crate) fn finish(&mut self, trailers: &Fields) {
        if self.framing == Framing::Chunked {
            http::encode::last_chunk(&mut self.work.out, trailers);
        }
    }

    /// Whether the connection may serve another request after this one.
    fn may_keep_alive(&self) -> bool {
        let context = self.context();
        // A client that still waits for its 100 will not get it now, and whether it sends the body is anybody's guess.
        self.keep_alive
            && !self.continue_due
            && !context.draining.get()
            && !context.connection_limit.crowded()
    }

    /// The version to answer in kind: a head that was refused may not have one.
    fn version(&self) -> Version {
        self.work.machine.head.version
    }
}

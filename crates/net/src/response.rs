//! The response of an HTTP/1 connection: head, body framing and end.

use http::encode::{FieldWriter, OutgoingFraming};
use http::framing::Framing;
use http::{BodySize, Fields, Length, Status, Version};

use crate::conn::Conn;
use crate::fault::Fault;
use crate::filters::DefaultFields;

/// A response without a body that keeps the connection open.
const EMPTY_RESPONSE: OutgoingFraming =
    OutgoingFraming { framing: Framing::None, length: None, keep_alive: true };

impl Conn {
    /// Decides the framing and writes the head. Returns the size of the body that the client gets.
    pub(crate) fn begin(
        &mut self,
        status: Status,
        length: Length,
        own: DefaultFields,
        lines: impl FnOnce(&mut FieldWriter<'_>),
    ) -> BodySize {
        let method = self.buffers.machine.head.method;
        let version = self.version();
        let outgoing = OutgoingFraming::decide(method, version, status, length, self.may_keep_alive());
        let out = &mut self.buffers.out;
        let unix_s = self.link.core().unix_s();
        let default_lines = &self.permit.context().default_lines;
        let reason = self.status_and_reason.take().filter(|reason| reason.0 == status);
        default_lines.with(unix_s, own, |default| {
            outgoing.begin_head(out, version, status, reason.as_ref().map(|reason| &reason.1[..]), default);
        });
        lines(&mut FieldWriter::new(out));
        out.extend_from_slice(b"\r\n");
        self.keep_alive = outgoing.keep_alive;
        self.framing = outgoing.framing;
        if outgoing.framing == Framing::UntilClose {
            // The end of the connection marks the end of the body, so a premature end (a panic, the end of
            // the process) must be a reset.
            self.link.stream().reset_on_close(true);
        }
        outgoing.framing.size()
    }

    /// Writes an interim response, or the one that switches protocols. HTTP/1.0 clients get none; others get
    /// 103 (Early Hints) only if that is configured.
    pub(crate) fn send_interim(&mut self, status: Status, lines: impl FnOnce(&mut FieldWriter<'_>)) {
        let is_hint = status == Status::EARLY_HINTS && !self.context().hints_over_http1.get();
        if self.version() == Version::Http10 || is_hint {
            return;
        }
        let out = &mut self.buffers.out;
        EMPTY_RESPONSE.begin_head(out, Version::Http11, status, None, b"");
        lines(&mut FieldWriter::new(out));
        out.extend_from_slice(b"\r\n");
    }

    /// Switches the connection from HTTP to raw bytes.
    pub(crate) fn switch_to_raw(&mut self) {
        // The bandwidth limit applies to responses only.
        self.link.set_bucket(None);
        // A tunnel may be idle for hours.
        self.buffers.input.shrink();
        self.keep_alive = false;
        self.framing = Framing::UntilClose;
    }

    /// Sends body bytes, at least one, with framing.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.framing != Framing::Chunked {
            return self.push(bytes).await;
        }
        http::encode::write_chunk_start(&mut self.buffers.out, bytes.len());
        self.push(bytes).await?;
        self.buffers.out.extend_from_slice(http::encode::CHUNK_END);
        Ok(())
    }

    /// Like [`Conn::send`], without waiting.
    pub(crate) fn offer_body(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.framing != Framing::Chunked {
            return self.offer(bytes);
        }
        http::encode::write_chunk_start(&mut self.buffers.out, bytes.len());
        self.offer(bytes)?;
        self.buffers.out.extend_from_slice(http::encode::CHUNK_END);
        Ok(())
    }

    /// Completes the body.
    pub(crate) fn finish(&mut self, trailers: &Fields) {
        if self.framing == Framing::Chunked {
            http::encode::write_last_chunk(&mut self.buffers.out, trailers);
        }
    }

    /// Whether the connection may serve another request after this one.
    fn may_keep_alive(&self) -> bool {
        let context = self.context();
        // A client that still waits for `100 Continue` will not get it, and may or may not send the body.
        self.keep_alive
            && !self.must_send_continue
            && !context.is_draining.get()
            && !context.connection_limit.has_waiting(context.core.now())
    }

    /// Returns the version of the request; a head that was refused may have none.
    fn version(&self) -> Version {
        self.buffers.machine.head.version
    }
}

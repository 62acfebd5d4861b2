//! Tunnels on streams, opened by extended CONNECT (RFC 8441).

use http::Status;
use http::encode::FieldWriter;

use super::StreamLane;
use crate::fault::Fault;
use crate::filters::DefaultFields;
use crate::source::READ;

impl StreamLane {
    /// Whether the request is an extended CONNECT that was not accepted yet.
    pub(crate) fn can_switch(&self) -> bool {
        !self.head.protocol.is_empty() && !self.shared.is_tunnel.get()
    }

    /// Accepts the tunnel with status 200. `lines` are those of an HTTP/1 101 response; connection-specific
    /// fields and `Sec-WebSocket-Accept` are left out (RFC 8441 section 5).
    pub(crate) fn upgrade(&mut self, lines: impl FnOnce(&mut FieldWriter<'_>)) -> Status {
        let mut written = Vec::new();
        lines(&mut FieldWriter::new(&mut written));
        let has = |line: &[u8], name: &[u8]| {
            line.split_at_checked(name.len()).is_some_and(|(start, _)| start.eq_ignore_ascii_case(name))
        };
        let any = |name| written.split_inclusive(|&byte| byte == b'\n').any(|line| has(line, name));
        let own = DefaultFields { server: any(b"server:"), date: any(b"date:") };
        let mut block = Vec::new();
        let default_lines = &self.conn.context().default_lines;
        default_lines.with(self.conn.core.unix_s(), own, |default| block.extend_from_slice(default));
        for line in written.split_inclusive(|&byte| byte == b'\n') {
            if !has(line, b"sec-websocket-accept:") {
                block.extend_from_slice(line);
            }
        }
        self.shared.is_tunnel.set(true);
        self.send_head(Status::OK, &block, false);
        Status::OK
    }

    /// Marks the other end as failed, so that the stream is reset, even if its end was already sent (RFC 8441
    /// section 5).
    pub(crate) fn abort_tunnel(&self) {
        self.shared.is_broken.set(true);
    }

    /// Reads bytes of the tunnel: `None` if none are available, 0 at the end. Updates the client's window.
    pub(crate) fn try_read_raw(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        if self.raw_read_bytes == self.piece.len() {
            self.raw_read_bytes = 0;
            self.piece.clear();
            let mut input = self.shared.input.borrow_mut();
            if input.bytes.is_empty() {
                if self.shared.is_reset() {
                    return Err(Fault::Disconnected);
                }
                if input.ended || input.is_truncated {
                    return Ok(Some(0));
                }
                self.shared.source.clear(READ);
                return Ok(None);
            }
            std::mem::swap(&mut self.piece, &mut input.bytes);
        }
        let rest = &self.piece[self.raw_read_bytes..];
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        self.raw_read_bytes += len;
        self.conn.machine.borrow_mut().grant(self.shared.id, len);
        self.conn.notify();
        Ok(Some(len))
    }

    /// Releases memory before a wait that may be long.
    pub(crate) fn release_buffers(&mut self) {
        if self.raw_read_bytes == self.piece.len() {
            (self.piece, self.raw_read_bytes) = (Vec::new(), 0);
        }
        let mut input = self.shared.input.borrow_mut();
        if input.bytes.is_empty() {
            input.bytes = Vec::new();
        }
        drop(input);
        let mut output = self.shared.output.borrow_mut();
        if output.len() == 0 {
            (output.bytes, output.at) = (Vec::new(), 0);
        }
        drop(output);
        self.update_memory();
    }
}

//! The client side of an HTTP/3 connection: implements [`ClientProtocol`].

use http::Method;
use http3::{Http3Code, MessageStream};
use quinn_proto::Dir;

use super::connection::{H3Connection, RequestStream};
use crate::mux::{ClientProtocol, MuxRequest};

impl ClientProtocol for H3Connection {
    fn can_request(&mut self) -> bool {
        if self.next_stream.is_none() && !self.is_peer_leaving && !self.quic.is_closed() {
            self.next_stream = self.quic.streams().open(Dir::Bi);
        }
        self.next_stream.is_some() && !self.is_peer_leaving
    }

    fn request(&mut self, request: &MuxRequest<'_>) -> Option<u32> {
        if !self.can_request() {
            return None;
        }
        let stream = self.next_stream.take()?;
        // A connection ends long before its streams have other numbers.
        let id = u32::try_from(stream.index()).ok()?;
        let message = match request.method {
            Method::Head => MessageStream::of_head(stream.into()),
            _ => MessageStream::new(stream.into()),
        };
        self.requests.insert(id, RequestStream::of_request(message, self.now));
        self.collect(id, |http, stream, out| {
            http.write_section(stream, out, |section| {
                section.pseudo(b":method", request.method_name);
                if request.method != Method::Connect || request.protocol.is_some() {
                    section.pseudo(b":scheme", request.scheme);
                    section.pseudo(b":path", request.path);
                }
                section.pseudo(b":authority", request.authority);
                if let Some(protocol) = request.protocol {
                    section.pseudo(b":protocol", protocol);
                }
                section.lines(request.lines);
            });
        });
        if request.has_no_body {
            self.end(id);
        }
        Some(id)
    }

    fn supports_connect(&self) -> bool {
        self.http.peer_settings().connect_protocol
    }

    fn grant(&mut self, id: u32, bytes: usize) {
        self.grant(id, bytes);
    }

    fn release(&mut self, id: u32) -> bool {
        self.flush_request(id);
        let is_complete = self.requests.get(&id).is_some_and(|stream| stream.is_complete);
        let is_cancelled = !is_complete || !self.requests.get(&id).is_some_and(RequestStream::has_ended);
        // A server that has answered may never read the rest of the request.
        match is_complete && !self.is_blocked(id) {
            true => self.release(id, Http3Code::NO_ERROR),
            false => self.close_stream(id, Http3Code::REQUEST_CANCELLED),
        }
        is_cancelled
    }

    fn has_send_room(&self) -> bool {
        !self.is_window_used_up
    }

    fn cancel_flood(&mut self, id: u32) {
        self.close_stream(id, Http3Code::EXCESSIVE_LOAD);
    }

    fn ping(&mut self) {
        self.quic.ping();
    }

    fn unsent_bytes(&self) -> usize {
        self.turn_bytes()
    }

    fn held_bytes(&self) -> usize {
        self.held_bytes()
    }
}

//! HTTP/1 on a connection that has input: requests, one after the other, until there is no more input. The first
//! bytes of HTTP/2 over TCP are also read here, until [`protocol::detect`] knows the protocol.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use http::framing::Framing;
use http::machine::Step;
use http::{BodySize, Fields, Reject, Status};
use times::{Millis, Moment};

use crate::buffer_pool::ConnectionBuffers;
use crate::conn::{Conn, REQUEST_WEIGHT_BYTES};
use crate::ending;
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::inbound::ReadOutcome;
use crate::lane::Lane;
use crate::memory::Pressure;
use crate::mux::ByteProtocol;
use crate::protocol::{self, DetectedProtocol};
use crate::request::Request;
use crate::request_state::{ReplyState, RequestState};
use crate::service::{Engine, Service, run_handler};

/// Time for which an idle connection keeps its future, because the next request usually arrives soon. A
/// connection with an incomplete head keeps its buffers as long.
const LINGER_TIME: Millis = Millis(1_000);
/// Number of futures above which idle connections park at once: saves 3 KB each, without measurable cost.
const LINGERING_MAX: usize = 256;
/// Maximum input to discard at the end of a connection that has switched protocols.
const SWITCHED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Reason of the response to a client that sends its request head too slowly.
pub(crate) const HEAD_TOO_SLOW: Reject =
    Reject::new(Status::REQUEST_TIMEOUT, "the request head took too long");
/// Reason why a connection has nothing to serve at the moment.
pub(crate) enum ServeEnd {
    /// Idle since this time of the core's clock.
    Idle(Moment),
    /// The connection has ended.
    Closed,
    /// The connection speaks HTTP/2.
    Multiplexed(Rc<RefCell<dyn ByteProtocol>>),
}

/// Serves pipelined and following requests until there is no input. Ends at once if the connection speaks
/// HTTP/2.
pub(crate) async fn serve_available<S: Service>(engine: &Rc<Engine<S>>, conn: &mut Conn) -> ServeEnd {
    loop {
        let mut served = false;
        let fed = if conn.buffers.input.is_empty() {
            Ok(false)
        } else {
            match protocol::detect(conn) {
                DetectedProtocol::Http1 => feed_head(conn),
                DetectedProtocol::NeedMore => Ok(start_head_timeout(conn)),
                DetectedProtocol::Multiplexed(machine) => return ServeEnd::Multiplexed(machine),
            }
        };
        match fed {
            Ok(true) => {
                if !serve(engine, conn).await {
                    break;
                }
                served = true;
                conn.consume_budget(REQUEST_WEIGHT_BYTES).await;
                let is_limited = conn.link.stream().bucket().is_some();
                // Many small responses may pile up for a client that does not read.
                let is_behind =
                    conn.backlog() > conn.out_bytes_max() || conn.overflow.is_some() || is_limited;
                if is_behind && flush_output(conn).await.is_err() {
                    break;
                }
                if is_limited {
                    // The limit does not apply to the next response.
                    conn.link.set_bucket(None);
                }
                // The client has the response, apart from the connection's buffer: the request is over.
                conn.kept_until_sent = None;
            }
            Ok(false) => match read_head(conn).await {
                Ok(ReadOutcome::Bytes) => {}
                Ok(ReadOutcome::Nothing) => {
                    let since = conn.now();
                    if !await_next_request(conn).await {
                        return ServeEnd::Idle(since);
                    }
                }
                Ok(ReadOutcome::End) => break close(conn).await,
                Err(Fault::Timeout) => {
                    refuse(engine, conn, HEAD_TOO_SLOW).await;
                    break close(conn).await;
                }
                Err(_) => break,
            },
            Err(reject) => {
                refuse(engine, conn, reject).await;
                break close_lingering(conn).await;
            }
        }
        if served && !conn.keep_alive {
            let buffers = &conn.buffers;
            // A client that expected a persistent connection may already have sent the next request.
            let sends_more =
                buffers.machine.head.keep_alive || !buffers.machine.body_ended() || !buffers.input.is_empty();
            if sends_more || conn.link.has_input() {
                close_lingering(conn).await
            } else {
                close(conn).await
            }
            break;
        }
    }
    ServeEnd::Closed
}

/// Keeps the future, but no buffers, for a moment to wait for the next request. Returns false if none arrived
/// or if the connection should be parked at once.
async fn await_next_request(conn: &mut Conn) -> bool {
    let context = conn.permit.context();
    let is_between = conn.head_since.is_never() && conn.served > 0;
    let may_stay = !context.is_draining.get() && !context.connection_limit.has_waiting(context.core.now());
    if !is_between || !may_stay || context.core.running() > LINGERING_MAX {
        return false;
    }
    let until = conn.after(LINGER_TIME.min(context.timeouts.get().idle));
    conn.buffers.release();
    conn.permit.hold(0);
    let has_come = conn.link.readable(until).await.is_ok();
    conn.buffers.hold();
    conn.update_memory();
    conn.moved_bytes = 0;
    has_come
}

/// Sends what the client has not accepted yet, before its next request is parsed.
async fn flush_output(conn: &mut Conn) -> Result<(), Fault> {
    if conn.overflow.is_some() {
        Box::pin(conn.spill_remaining()).await;
    }
    conn.flush().await
}

/// Parses a request head; returns true if it is complete.
fn feed_head(conn: &mut Conn) -> Result<bool, Reject> {
    let limits = conn.context().limits.get().head;
    let ConnectionBuffers { machine, input, .. } = &mut *conn.buffers;
    let fed = machine.feed(input.head(), &limits)?;
    input.at = input.start + fed.consumed;
    if fed.step != Step::Head {
        return Ok(start_head_timeout(conn));
    }
    Ok(true)
}

/// Starts the head timeout.
fn start_head_timeout(conn: &mut Conn) -> bool {
    if conn.head_since.is_never() {
        conn.head_since = conn.now();
    }
    false
}

/// Reads more of a head, after sending all pending responses. `Nothing`: no input is available, and the connection
/// should not hold buffers.
async fn read_head(conn: &mut Conn) -> Result<ReadOutcome, Fault> {
    // The error carries no response: a client that accepts no responses would not read that one either.
    if !conn.flush_now().map_err(|_| Fault::Disconnected)? {
        conn.flush().await.map_err(|_| Fault::Disconnected)?;
    }
    loop {
        match conn.fill_head()? {
            ReadOutcome::Nothing if !conn.buffers.input.is_empty() => {
                let now = conn.now();
                let deadline = conn.head_since + conn.context().timeouts.get().head;
                // A client that sends byte by byte holds buffers once for each head, not for each byte.
                let linger_until = deadline.min(conn.head_since + LINGER_TIME);
                if now >= deadline {
                    return Err(Fault::Timeout);
                }
                if now >= linger_until || conn.link.core().running() > LINGERING_MAX {
                    return Ok(ReadOutcome::Nothing);
                }
                match conn.link.readable(linger_until).await {
                    Ok(()) | Err(Fault::Timeout) => {}
                    Err(fault) => return Err(fault),
                }
            }
            outcome => return Ok(outcome),
        }
    }
}

/// Serves one request. Returns false if the connection must be closed at once.
async fn serve<S: Service>(engine: &Rc<Engine<S>>, conn: &mut Conn) -> bool {
    conn.begin_request();
    let mut is_kept;
    // The block drops the state in place; `drop` would move it.
    {
        let mut state = RequestState::new(conn.peer, conn.direct_client(), conn.link.core().now_us());
        state.listener_key = conn.permit.listener_key();
        state.tls = conn.link.session().cloned();
        let served = {
            let source = conn.link.stream().source_rc();
            let is_short = conn.pressure() >= Pressure::Critical;
            let mut exchange = Exchange::new(&mut state, Lane::H1(conn));
            if is_short {
                Box::pin(exchange.refuse_for_memory()).await
            } else {
                // Pinned and passed by reference: by value, it would be in the future twice.
                let serving = pin!(engine.service.serve(&mut exchange));
                run_handler(&source, &engine.context.core, serving).await
            }
        };
        conn.request_bytes = state.filters.weight_bytes();
        let ended = served.and_then(|()| Exchange::new(&mut state, Lane::H1(conn)).end(&Fields::new()));
        let mut fault = ended.err();
        is_kept = match &fault {
            None => true,
            Some(fault) => complete_failed_exchange(conn, &mut state, fault).await,
        };
        conn.request_bytes = 0;
        conn.kept_until_sent = state.kept_until_sent.take();
        if fault.is_none() && awaits_delivery(conn, &state) {
            state.release_handler();
            fault = flush_output(conn).await.err();
            is_kept = fault.is_none();
        }
        if !is_kept {
            state.subtract_undelivered(conn.backlog() as u64 + conn.overflow.unread_bytes());
        }
        engine.context.counters.requests.add(1);
        let request = Request::of(&state, conn.head());
        engine.service.log(&state.record(Some(request), fault.as_ref(), &engine.context.core));
    }
    if !is_kept {
        return false;
    }
    conn.served = conn.served.saturating_add(1);
    let is_read = conn.buffers.machine.body_ended();
    if conn.keep_alive && !is_read && !conn.discard_body().await.unwrap_or(false) {
        conn.keep_alive = false;
    }
    if conn.keep_alive {
        conn.buffers.machine.next();
        conn.buffers.input.next_head();
    }
    true
}

/// Whether the record of a complete response is made when the client has got it. A client that has not sent its whole
/// request may read nothing before.
fn awaits_delivery(conn: &Conn, state: &RequestState) -> bool {
    let is_behind = conn.overflow.is_some() || state.is_large() && conn.backlog() > 0;
    is_behind && conn.buffers.machine.body_ended()
}

/// Completes the exchange of a failed handler: sends an error page if no response has begun. Returns false if
/// the connection must be closed.
async fn complete_failed_exchange(conn: &mut Conn, state: &mut RequestState, fault: &Fault) -> bool {
    conn.keep_alive = false;
    let framing = conn.framing;
    match state.reply {
        ReplyState::Unsent => Exchange::new(state, Lane::H1(conn)).answer_fault(fault).await,
        // The response ends with the connection, or the client accepts nothing more: reset the connection.
        ReplyState::Body(BodySize::Unknown) if framing == Framing::UntilClose => reset_connection(conn),
        ReplyState::Body(BodySize::Known(_) | BodySize::Unknown) if matches!(fault, Fault::Timeout) => {
            reset_connection(conn)
        }
        // The response was complete before its handler failed, or its framing shows that it is truncated.
        // Earlier responses must still arrive.
        ReplyState::Done | ReplyState::Suppressed | ReplyState::Body(_) => {
            !matches!(fault, Fault::Disconnected)
        }
    }
}

/// Resets the connection on close, so that the response does not seem to be complete.
fn reset_connection(conn: &Conn) -> bool {
    conn.link.stream().reset_on_close(true);
    false
}

/// Answers a malformed request.
pub(crate) async fn refuse<S: Service>(engine: &Rc<Engine<S>>, conn: &mut Conn, reject: Reject) {
    let mut state = RequestState::new(conn.peer, conn.direct_client(), conn.link.core().now_us());
    state.listener_key = conn.permit.listener_key();
    state.tls = conn.link.session().cloned();
    let mut exchange = Exchange::new(&mut state, Lane::H1(conn));
    if exchange.refuse_and_close(reject).await.and_then(|()| exchange.end(&Fields::new())).is_ok() {
        // The connection is closed next, whether or not the client accepts the response.
        let _ = conn.flush().await;
    }
    engine.context.counters.rejected.add(1);
    let fault = Fault::Reject(reject);
    engine.service.log(&state.record(None, Some(&fault), &engine.context.core));
}

/// Sends the last response to a client that sends nothing more. The caller must then drop the connection.
pub(crate) async fn close(conn: &mut Conn) {
    if send_last(conn).await {
        let patience = conn.stall_timeout();
        conn.buffers.release();
        ending::finish_sending(&mut conn.link, patience).await;
    }
}

/// Sends the last response to a client that may still be sending.
pub(crate) async fn close_lingering(conn: &mut Conn) {
    if send_last(conn).await {
        let patience = conn.stall_timeout();
        // A tunnel ends by its own protocol's rules, so limit what its client may still send.
        let bytes_max = if conn.framing == Framing::UntilClose { SWITCHED_BYTES_MAX } else { usize::MAX };
        conn.buffers.release();
        conn.permit.hold(0);
        conn.permit.update_entry(|entry| entry.requests = 0);
        ending::linger(&mut conn.link, patience, bytes_max).await;
    }
}

/// Sends the last response of the connection. Returns false if the client has disconnected.
async fn send_last(conn: &mut Conn) -> bool {
    let sent = conn.flush().await.is_ok();
    if sent {
        conn.link.stream().reset_on_close(false);
    }
    sent
}

#[cfg(test)]
mod tests;

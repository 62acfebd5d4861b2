//! The task of an HTTP/3 client connection.

use std::rc::Rc;

use http::{Fields, Head};
use http3::Http3Code;
use times::Moment;

use super::options::StreamFailure;
use super::shared::{CHECK_INTERVAL, ClientConn, EndGuard, WRITE_TIMEOUT};
use crate::fault::Fault;
use crate::h3::{H3Connection, Http3Client, Received, TURN_BYTES_MAX};
use crate::mux::AbortReason;
use crate::source::READ;

/// Bytes framed before packets are made of them.
const FRAMED_BYTES_MAX: usize = 64 * 1024;
/// Cost of an event against [`TURN_BYTES_MAX`].
const EVENT_WEIGHT_BYTES: usize = 64;

/// Progress of the server's reading.
struct ClientProgress {
    moved_bytes: usize,
    /// Totals of accepted and of acknowledged bytes at the last change, and its time.
    totals: (u64, u64),
    changed_at: Moment,
}

/// Runs a connection until its end.
pub(super) async fn drive(conn: Rc<ClientConn>, mut client: Http3Client) {
    let guard = EndGuard(conn.clone());
    let ended = run(&conn, &mut client).await;
    conn.end(match ended {
        Err(Fault::Failed(reason) | Fault::MuxError { reason, .. }) => StreamFailure::Invalid(reason),
        _ => StreamFailure::Closed,
    });
    client.close().await;
    drop(guard);
}

async fn run(conn: &ClientConn, client: &mut Http3Client) -> Result<(), Fault> {
    let connection = client.connection();
    let mut progress = ClientProgress { moved_bytes: 0, totals: (0, 0), changed_at: conn.core.now() };
    loop {
        connection.borrow_mut().limit_growth(conn.core.memory().window_growth_max());
        let is_empty = client.receive()?;
        receive_events(conn, client, &mut progress)?;
        send(conn, client, &mut progress);
        if progress.is_stalled(conn, &connection.borrow()) {
            return Err(Fault::Timeout);
        }
        conn.check_timeouts("the upstream sends no HTTP/3 settings")?;
        if conn.is_drained() && !connection.borrow().is_needed() {
            return Ok(());
        }
        if !is_empty || std::mem::take(&mut progress.moved_bytes) >= TURN_BYTES_MAX {
            conn.core.yield_now().await;
            continue;
        }
        if conn.live_streams() == 0 {
            connection.borrow_mut().shrink();
        }
        conn.set_own_bytes(0);
        client.wait_with(Some(&conn.wake_source), conn.core.now() + CHECK_INTERVAL).await;
        conn.wake_source.clear(READ);
    }
}

/// Distributes what was received to the streams.
fn receive_events(
    conn: &ClientConn,
    client: &mut Http3Client,
    progress: &mut ClientProgress,
) -> Result<(), Fault> {
    while progress.moved_bytes < TURN_BYTES_MAX {
        let Some(received) = client.next_received()? else { return Ok(()) };
        progress.moved_bytes += EVENT_WEIGHT_BYTES;
        conn.received_at.set(conn.core.now());
        conn.pinged_at.set(None);
        match received {
            Received::Head { id, ended } => {
                let connection = client.connection();
                let mut connection = connection.borrow_mut();
                let mut head = Head::default();
                let mut bytes = Vec::new();
                let status = connection.http.status;
                connection.http.swap_head(&mut head, &mut bytes);
                drop(connection);
                conn.receive_head(id, status, head.fields, bytes, ended);
            }
            Received::Data(id, bytes, ended) => {
                progress.moved_bytes += bytes.len();
                conn.receive(id, &bytes);
                if ended {
                    conn.end_response(id, Fields::new());
                }
            }
            Received::End(id, trailers) => conn.end_response(id, trailers),
            Received::Reset(id, Http3Code::REQUEST_REJECTED) => {
                conn.fail_stream(id, StreamFailure::NotProcessed);
            }
            Received::Reset(id, _) => conn.fail_stream(id, StreamFailure::Reset),
            Received::Failed(id, error) => conn.fail_stream(id, StreamFailure::Invalid(error.reason)),
            // The response may still be complete (RFC 9114 section 4.1.1).
            Received::Stopped(id) => conn.stop_sending(id),
            Received::Writable(id) => conn.unblock(Some(id)),
            Received::Settings => conn.open(),
            Received::StreamsAvailable => conn.notify_change(),
            Received::GoAway(first) => {
                conn.begin_draining();
                conn.fail_from(first);
            }
            Received::Refused(..) | Received::Priority(..) => {}
        }
    }
    Ok(())
}

/// Frames the output of streams and sends packets.
fn send(conn: &ClientConn, client: &mut Http3Client, progress: &mut ClientProgress) {
    let connection = client.connection();
    loop {
        if !client.is_blocked() {
            conn.fill_out(FRAMED_BYTES_MAX);
        }
        let framed = connection.borrow().turn_bytes();
        progress.moved_bytes += client.send().max(framed);
        let (accepted, acknowledged) = connection.borrow().progress();
        conn.drained_bytes.set(accepted);
        conn.acknowledged_bytes.set(acknowledged);
        let is_done = framed == 0 || !conn.has_queued_streams();
        if is_done || progress.moved_bytes >= TURN_BYTES_MAX || client.is_blocked() {
            return;
        }
    }
}

impl ClientProgress {
    /// Whether the server has accepted nothing for too long, of what was sent.
    fn is_stalled(&mut self, conn: &ClientConn, connection: &H3Connection) -> bool {
        let now = conn.core.now();
        let totals = connection.progress();
        if totals != self.totals || !connection.is_awaiting_acknowledgements() {
            (self.totals, self.changed_at) = (totals, now);
        }
        now >= self.changed_at + WRITE_TIMEOUT
    }
}

impl ClientConn {
    /// Discards the rest of a request whose server reads no more of it.
    fn stop_sending(&self, id: u32) {
        if let Some(stream) = self.stream(id) {
            stream.shared.abort(AbortReason::Peer);
            self.core.set_ready(&stream.shared.source, crate::source::WRITE);
        }
    }
}

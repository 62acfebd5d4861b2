//! One end of an HTTP/2 connection: its state, and the operations shared by all frames.

use http::{Fields, Head, Limits, Span, Status};

use crate::decode::HpackDecoder;
use crate::encode::HpackEncoder;
use crate::error::{ConnectionError, ErrorCode};
use crate::frame::{self, MAX_31_BITS, PREFACE};
use crate::ledger::{Ledger, PeerLimits};
use crate::settings::{PeerSettings, TABLE_BYTES_INITIAL, WINDOW_BYTES_INITIAL, id};
use crate::streams::{Sending, StreamTable};
use crate::window::{ReceiveWindow, SendWindow, WindowGrowth};
use sections::FieldBlock;
use sections::Priority;

/// Maximum number of bytes of control frames queued for a peer that does not read.
pub(crate) const CONTROL_BYTES_MAX: usize = 64 * 1024;
/// Bytes by which a header block in CONTINUATION frames may exceed the head limit, so that a slightly larger
/// head is still refused with a response.
const BLOCK_BYTES_EXTRA: usize = 16 * 1024;

/// Limits and settings of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Limits of a head and of trailers, as for HTTP/1.
    pub head: Limits,
    /// Maximum number of concurrent streams of the peer (SETTINGS_MAX_CONCURRENT_STREAMS). Default 128.
    pub streams_max: u32,
    /// Maximum number of bytes of DATA in flight or unread per stream (SETTINGS_INITIAL_WINDOW_SIZE). Default
    /// 64 KiB.
    pub stream_window: u32,
    /// Maximum for all streams together, in bytes; at least 65,535. Default 256 KiB.
    pub connection_window: u32,
    /// Whether content counts against the connection's window only until it is received, so that the windows of the
    /// streams alone limit unread content, and streams that nobody reads cannot stop others. The caller limits the
    /// number of streams. Default false.
    pub streams_bound_unread: bool,
    /// Size of the dynamic table for received heads (SETTINGS_HEADER_TABLE_SIZE). Default 4,096 bytes.
    pub table_bytes_max: u32,
    /// Memory that the caller keeps for each stream in addition to its head, charged to the peer. Default 4
    /// KiB.
    pub stream_bytes: usize,
    /// The peer's share of memory and work.
    pub peer_limits: PeerLimits,
    /// Whether extended CONNECT requests (RFC 8441) are accepted; server only. Default false.
    pub connect_protocol: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            head: Limits::default(),
            streams_max: 128,
            stream_window: 64 * 1024,
            connection_window: 256 * 1024,
            streams_bound_unread: false,
            table_bytes_max: TABLE_BYTES_INITIAL,
            stream_bytes: 4096,
            peer_limits: PeerLimits::default(),
            connect_protocol: false,
        }
    }
}

/// The result of feeding bytes to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// More bytes are needed. Bytes of an unfinished frame are not consumed: feed them again together with
    /// those that follow.
    NeedMore,
    /// The head of a request or response is in [`Machine::head`]; a client finds the status in
    /// [`Machine::status`]. On a server, a stream begins with this event and lives until
    /// [`Machine::release`].
    Head {
        /// The stream.
        stream: u32,
        /// Whether the message ends with its head.
        ended: bool,
    },
    /// A request that exceeds a limit: answer it with this status. Its body is dropped. The stream must be
    /// released too.
    Refused {
        /// The stream.
        stream: u32,
        /// The status and the reason.
        reject: http::Reject,
    },
    /// A range of content in the bytes just fed. Call [`Machine::grant`] once it is consumed.
    Data {
        /// The stream.
        stream: u32,
        /// The range of the content; may be empty at the end.
        data: Span,
        /// Whether the message ends with this content.
        ended: bool,
    },
    /// The message ends with the trailers in [`Machine::trailers`].
    Trailers {
        /// The stream.
        stream: u32,
    },
    /// The peer has reset the stream.
    Reset {
        /// The stream.
        stream: u32,
        /// The error code.
        code: ErrorCode,
    },
    /// The peer violated the protocol on the stream, which was reset. The caller may never have seen the
    /// stream.
    Aborted {
        /// The stream.
        stream: u32,
        /// The error code sent to the peer.
        code: ErrorCode,
        /// The reason, in a few words. Never contains bytes sent by the peer.
        reason: &'static str,
    },
    /// A window that was exhausted has room again.
    Writable {
        /// The stream; 0 for the connection's window, which affects all streams.
        stream: u32,
    },
    /// The client changed the priority of a stream's response.
    Reprioritized {
        /// The stream.
        stream: u32,
        /// Its new priority.
        priority: Priority,
    },
    /// The peer's settings have changed, and possibly the windows of all streams.
    Settings,
    /// The peer opens or accepts no new streams. On a client, streams above `last_stream` are reset with
    /// REFUSED_STREAM: their requests were not processed and can be retried.
    GoAway {
        /// The highest stream that the peer processes.
        last_stream: u32,
        /// The error code.
        code: ErrorCode,
    },
    /// The answer to [`Machine::ping`].
    Pong {
        /// The payload of the ping.
        payload: [u8; 8],
    },
}

/// A header block whose CONTINUATION frames are incomplete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Continuation {
    pub(crate) stream: u32,
    pub(crate) ended: bool,
    pub(crate) depends_on_itself: bool,
}

/// A DATA frame that has been received in part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartialData {
    pub(crate) stream: u32,
    /// Remaining bytes of content.
    pub(crate) remaining_bytes: usize,
    /// Bytes of padding after the content.
    pub(crate) padding: usize,
    pub(crate) ended: bool,
}

/// The part of the connection start that is expected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionStart {
    /// The client's preface.
    Preface,
    /// The first SETTINGS frame.
    Settings,
    /// The connection is established.
    Done,
}

/// The progress of a graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    None,
    /// The peer was notified; streams that it opens meanwhile are still served.
    Announced,
    /// Streams above this identifier are ignored.
    Final(u32),
}

/// Payload of the ping sent during a graceful shutdown.
pub(crate) const SHUTDOWN_PING: [u8; 8] = *b"shutdown";

/// One end of an HTTP/2 connection. The caller feeds received bytes, acts on events, and sends the output of
/// the sending methods and of [`Machine::flush`]. See [`Machine::feed`].
#[derive(Debug)]
pub struct Machine {
    pub(crate) options: Options,
    pub(crate) is_server: bool,
    pub(crate) start: ConnectionStart,
    pub(crate) failed: Option<ConnectionError>,
    pub(crate) shutdown: Shutdown,
    pub(crate) peer: PeerSettings,
    pub(crate) settings_acked: bool,
    /// The lowest last-stream identifier of the peer's GOAWAY frames.
    pub(crate) peer_last_stream: Option<u32>,
    pub(crate) decoder: HpackDecoder,
    pub(crate) encoder: HpackEncoder,
    /// The field section decoded last.
    pub(crate) block: FieldBlock,
    pub(crate) fragments: Vec<u8>,
    pub(crate) continuation: Option<Continuation>,
    pub(crate) data: Option<PartialData>,
    /// Remaining payload bytes to discard.
    pub(crate) skip_bytes: usize,
    pub(crate) streams: StreamTable,
    /// Open streams that count towards the peer's limit, or on a client towards the server's limit.
    pub(crate) open_streams: u32,
    /// The highest stream identifier opened by the peer.
    pub(crate) last_peer_stream: u32,
    /// The identifier of the next stream opened by this side.
    pub(crate) next_stream: u32,
    pub(crate) send_window: SendWindow,
    pub(crate) receive_window: ReceiveWindow,
    pub(crate) growth: WindowGrowth,
    /// Control frames waiting to be sent.
    pub(crate) control: Vec<u8>,
    /// Number of unanswered pings.
    pub(crate) pings: u32,
    pub(crate) ledger: Ledger,
    pub(crate) was_throttled: bool,
    /// The head of the last [`Event::Head`]; on a client only its fields are set. Its spans refer to
    /// [`Machine::head_bytes`].
    pub head: Head,
    /// The status of the last [`Event::Head`] of a client.
    pub status: Status,
    /// The trailers of the last [`Event::Trailers`].
    pub trailers: Fields,
    /// `:protocol` of the last head, if it was an extended CONNECT.
    pub protocol: Option<Span>,
    /// Whether `:scheme` of the last head was https.
    pub is_https: bool,
}

impl Machine {
    /// Creates the server side. Its initial settings are ready to be flushed.
    #[must_use]
    pub fn server(options: Options) -> Machine {
        Machine::new(options, true)
    }

    /// Creates the client side. Its preface and settings are ready to be flushed.
    #[must_use]
    pub fn client(options: Options) -> Machine {
        Machine::new(options, false)
    }

    fn new(options: Options, is_server: bool) -> Machine {
        let mut machine = Machine {
            options,
            is_server,
            start: if is_server { ConnectionStart::Preface } else { ConnectionStart::Settings },
            failed: None,
            shutdown: Shutdown::None,
            peer: PeerSettings::default(),
            settings_acked: false,
            peer_last_stream: None,
            // The peer may use the initial size until it has received a smaller setting.
            decoder: HpackDecoder::new(options.table_bytes_max.max(TABLE_BYTES_INITIAL) as usize),
            encoder: HpackEncoder::default(),
            block: FieldBlock::default(),
            fragments: Vec::new(),
            continuation: None,
            data: None,
            skip_bytes: 0,
            streams: StreamTable::default(),
            open_streams: 0,
            last_peer_stream: 0,
            next_stream: 1,
            send_window: SendWindow(i64::from(WINDOW_BYTES_INITIAL)),
            receive_window: ReceiveWindow::new(WINDOW_BYTES_INITIAL, WINDOW_BYTES_INITIAL),
            growth: WindowGrowth::default(),
            control: Vec::new(),
            pings: 0,
            ledger: Ledger::new(options.peer_limits),
            was_throttled: false,
            head: Head::default(),
            status: Status::OK,
            trailers: Fields::new(),
            protocol: None,
            is_https: false,
        };
        machine.write_connection_start();
        machine
    }

    /// Writes the connection start: preface, settings and window update.
    fn write_connection_start(&mut self) {
        let options = &self.options;
        let mut settings = vec![
            (id::INITIAL_WINDOW_SIZE, options.stream_window.min(MAX_31_BITS)),
            (id::MAX_HEADER_LIST_SIZE, (options.head.head_bytes_max + options.head.fields_max * 32) as u32),
        ];
        if options.table_bytes_max != TABLE_BYTES_INITIAL {
            settings.push((id::HEADER_TABLE_SIZE, options.table_bytes_max));
        }
        if self.is_server {
            settings.push((id::MAX_CONCURRENT_STREAMS, options.streams_max));
            settings.push((id::NO_RFC7540_PRIORITIES, 1));
            if options.connect_protocol {
                settings.push((id::ENABLE_CONNECT_PROTOCOL, 1));
            }
        } else {
            self.control.extend_from_slice(PREFACE);
            settings.push((id::ENABLE_PUSH, 0));
        }
        frame::settings(&mut self.control, &settings);
        self.receive_window.grow(options.connection_window);
        if let Some(increment) = self.receive_window.full_increment() {
            frame::window_update(&mut self.control, 0, increment);
        }
    }

    /// The buffer that the spans of [`Machine::head`] refer to.
    #[must_use]
    pub fn head_bytes(&self) -> &[u8] {
        &self.block.bytes
    }

    /// Takes the head that was just decoded in exchange for the buffers of another one, so that a stream
    /// keeps its head without copying.
    pub fn swap_head(&mut self, head: &mut Head, bytes: &mut Vec<u8>) {
        std::mem::swap(&mut self.head, head);
        std::mem::swap(&mut self.block.bytes, bytes);
    }

    /// The priority of a stream's response.
    #[must_use]
    pub fn priority(&self, stream: u32) -> Priority {
        self.streams.find(stream).map(|stream| stream.priority).unwrap_or_default()
    }

    /// The peer's settings.
    #[must_use]
    pub fn peer_settings(&self) -> &PeerSettings {
        &self.peer
    }

    /// Whether the peer has acknowledged the settings: a peer that does not should be disconnected with
    /// SETTINGS_TIMEOUT.
    #[must_use]
    pub fn settings_acked(&self) -> bool {
        self.settings_acked
    }

    /// Whether a header block is incomplete, so that the head timeout applies.
    #[must_use]
    pub fn is_reading_head(&self) -> bool {
        self.continuation.is_some() || self.start != ConnectionStart::Done
    }

    /// Bytes of content that the connection's window permits to be sent now, on all streams together.
    #[must_use]
    pub fn connection_sendable(&self) -> usize {
        self.send_window.available()
    }

    /// Number of streams that have not been released.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// The identifiers of all streams that have not been released.
    pub fn stream_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.streams.ids()
    }

    /// Memory held for the peer, in bytes: heads, unread content, tables, queued frames, and charges of the
    /// caller.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.ledger.held() + self.table_bytes()
    }

    /// Memory of the machine itself, in bytes: its tables and buffers, without heads and content, which the
    /// caller owns.
    #[must_use]
    pub fn own_bytes(&self) -> usize {
        size_of::<Machine>() + self.table_bytes()
    }

    /// Releases memory that a connection without streams does not need; call it after an idle period.
    /// Discards the last decoded head and trailers.
    pub fn shrink(&mut self) {
        if self.streams.len() > 0 {
            return;
        }
        (self.block, self.head, self.trailers) = (FieldBlock::default(), Head::default(), Fields::new());
        self.control.shrink_to_fit();
        self.fragments.shrink_to_fit();
        self.decoder.shrink();
        self.encoder.shrink();
        self.streams.shrink();
    }

    /// The maximum of the memory held for streams so far, in bytes.
    #[must_use]
    pub fn held_bytes_peak(&self) -> usize {
        self.ledger.held_peak() + self.table_bytes()
    }

    /// The peer's remaining credit: see [`PeerLimits::credit_max`].
    #[must_use]
    pub fn credit(&self) -> u32 {
        self.ledger.credit()
    }

    /// Bytes of content that may be unread because the connection's window has grown.
    pub(crate) fn unread_allowed(&self) -> usize {
        let initial = self.options.connection_window.max(WINDOW_BYTES_INITIAL);
        self.receive_window.unread_max().saturating_sub(initial) as usize
    }

    /// Memory held outside of streams, in bytes.
    pub(crate) fn table_bytes(&self) -> usize {
        self.decoder.held_bytes()
            + self.encoder.held_bytes()
            + self.control.capacity()
            + self.fragments.capacity()
            + self.streams.held_bytes()
    }

    /// Sets the limits of the heads that arrive from now on. The peer was told the first ones.
    pub fn set_head_limits(&mut self, limits: Limits) {
        self.options.head = limits;
    }

    /// Maximum length of a header block in bytes.
    pub(crate) fn block_bytes_max(&self) -> usize {
        self.options.head.head_bytes_max + BLOCK_BYTES_EXTRA
    }

    /// Whether the peer is throttled: it may open only one stream at a time, and its windows are not
    /// replenished. When throttling ends, withheld window updates are sent.
    pub(crate) fn is_throttled(&mut self) -> bool {
        let more = self.table_bytes();
        let is_slowed = self.ledger.is_throttled(more, self.unread_allowed());
        if self.was_throttled && !is_slowed {
            self.was_throttled = false;
            self.announce_windows();
        }
        self.was_throttled = is_slowed;
        is_slowed
    }

    fn announce_windows(&mut self) {
        for stream in self.streams.iter_mut() {
            if let Some(increment) = stream.window_update() {
                frame::window_update(&mut self.control, stream.id, increment);
            }
        }
        if let Some(increment) = self.receive_window.due_increment() {
            frame::window_update(&mut self.control, 0, increment);
        }
    }

    /// Sends due window updates for one stream and the connection. Returns whether any was sent.
    pub(crate) fn update_windows(&mut self, stream: u32) -> bool {
        let is_throttled = self.is_throttled();
        if is_throttled && !self.options.streams_bound_unread {
            return false;
        }
        let before = self.control.len();
        if !is_throttled
            && let Some(stream) = self.streams.find_mut(stream)
            && let Some(increment) = stream.window_update()
        {
            frame::window_update(&mut self.control, stream.id, increment);
        }
        if let Some(increment) = self.receive_window.due_increment() {
            frame::window_update(&mut self.control, 0, increment);
        }
        self.control.len() > before
    }

    /// Resets a stream because of a protocol error of the peer.
    pub(crate) fn stream_error(
        &mut self,
        stream: u32,
        code: ErrorCode,
        reason: &'static str,
        price: u32,
    ) -> Result<Event, ConnectionError> {
        self.ledger.spend(price)?;
        match self.streams.find_mut(stream) {
            Some(record) if record.reset.is_some() && !record.reset_by_peer => {}
            Some(record) => {
                record.reset = Some(code);
                record.reset_by_peer = false;
                frame::rst_stream(&mut self.control, stream, code);
                self.update_accounting(stream);
            }
            None => {
                frame::rst_stream(&mut self.control, stream, code);
                self.streams.remember_reset(stream);
            }
        }
        Ok(Event::Aborted { stream, code, reason })
    }

    /// Updates the accounting when one side of a stream has ended: a closed stream no longer counts as open,
    /// and a completely served one earns credit.
    pub(crate) fn update_accounting(&mut self, stream: u32) {
        if let Some(record) = self.streams.find_mut(stream)
            && record.is_counted
            && record.is_closed()
        {
            record.is_counted = false;
            self.open_streams -= 1;
            if record.reset.is_none() {
                self.earn(stream, crate::ledger::price::FINISHED);
            }
        }
    }

    /// Whether a stream is idle (RFC 9113 section 5.1).
    pub(crate) fn is_idle(&self, stream: u32) -> bool {
        match stream % 2 == 1 {
            true if self.is_server => stream > self.last_peer_stream,
            true => stream >= self.next_stream,
            // Server push is never used.
            false => true,
        }
    }

    /// Whether frames of an unknown stream are ignored: this side has reset it, or excluded it during
    /// shutdown.
    pub(crate) fn ignores_frames_of(&self, stream: u32) -> bool {
        matches!(self.shutdown, Shutdown::Final(last) if stream > last) || self.streams.was_reset(stream)
    }

    /// Whether the stream was not reset and its sending side is in `state`.
    pub(crate) fn is_sending(&self, stream: u32, state: Sending) -> bool {
        self.streams.find(stream).is_some_and(|stream| stream.reset.is_none() && stream.sending == state)
    }

    /// Fails the connection: the GOAWAY frame is ready to be flushed.
    pub(crate) fn fail(&mut self, error: ConnectionError) {
        if self.failed.is_none() {
            frame::goaway(&mut self.control, self.last_peer_stream, error.code, error.reason);
            self.failed = Some(error);
        }
    }
}

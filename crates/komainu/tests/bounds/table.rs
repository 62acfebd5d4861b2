//! The table of docs/security.md.

/// A bound on what one client can make the server hold or do in one state.
pub struct Row {
    pub state: &'static str,
    /// Upper bound of the server's memory for one connection, in bytes; 0 if the row is about work alone.
    pub memory_bytes: u64,
    /// Setting or constant that bounds the memory.
    pub limit: &'static str,
    /// Bytes in temporary files.
    pub file: &'static str,
    /// Upper bound of the CPU time for one unit of work.
    pub cpu_ns: u64,
    pub unit: &'static str,
    /// Behavior of the client.
    pub attack: &'static str,
    /// Test that measures the row.
    pub test: &'static str,
}

pub const HEAD: &str =
    "| state | memory | limited by | file | CPU | attack | test |\n|---|---:|---|---|---:|---|---|\n";
pub const KIB: u64 = 1024;
pub const US: u64 = 1000;

pub fn row(state: &str) -> &'static Row {
    rows().find(|row| row.state == state).unwrap_or_else(|| panic!("no row {state:?}"))
}

impl Row {
    pub fn line(&self) -> String {
        let Row { state, limit, file, unit, attack, test, .. } = self;
        let memory = match self.memory_bytes {
            0 => String::new(),
            bytes if bytes >= 10 * 1024 * KIB => format!("{} MiB", bytes / KIB / KIB),
            bytes => format!("{} KiB", bytes / KIB),
        };
        let cpu = match self.cpu_ns {
            ns if ns >= 10_000 * US => format!("{} ms", ns / US / 1000),
            ns => format!("{} µs", ns as f64 / US as f64),
        };
        format!("| {state} | {memory} | {limit} | {file} | {cpu} {unit} | {attack} | `{test}` |\n")
    }
}
pub const fn r(
    state: &'static str,
    (memory_bytes, limit): (u64, &'static str),
    file: &'static str,
    (cpu_ns, unit): (u64, &'static str),
    attack: &'static str,
    test: &'static str,
) -> Row {
    Row { state, memory_bytes, limit, file, cpu_ns, unit, attack, test }
}

/// Iterates over the rows of all three tables.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().chain(super::table_beside::ROWS).chain(super::table_h2::ROWS)
}

const ROWS: &[Row] = &[
    r(
        "connected, silent",
        // In the first second the kernel holds it alone.
        (2 * KIB, "after a second in the kernel; `limits.connections`; closed after `timeouts.head`"),
        "",
        (50 * US, "a connection"),
        "2,000 connections, not a byte",
        "idle_and_slow_connections_stay_within_bounds",
    ),
    r(
        "idle after a request",
        (6 * KIB, "`limits.connections`; closed after `timeouts.idle`"),
        "",
        (200 * US, "a connection"),
        "2,000 connections, one `HEAD` each",
        "idle_and_slow_connections_stay_within_bounds",
    ),
    r(
        "head begun",
        (8 * KIB, "bytes received; 408 after `timeouts.head`"),
        "",
        (100 * US, "a connection"),
        "2,000 connections, 25 bytes of a head",
        "idle_and_slow_connections_stay_within_bounds",
    ),
    r(
        "head nearly whole",
        (48 * KIB, "`limits.head`; 408 after `timeouts.head`"),
        "",
        (400 * US, "a connection"),
        "500 connections, 16 KB of a head",
        "idle_and_slow_connections_stay_within_bounds",
    ),
    r(
        "refused (400), not read",
        (16 * KIB, "the response; then the connection is closed"),
        "",
        (250 * US, "a connection"),
        "1,000 malformed requests",
        "idle_and_slow_connections_stay_within_bounds",
    ),
    r(
        "too slow (408), not read",
        (16 * KIB, "the response; then the connection is closed"),
        "",
        (250 * US, "a connection"),
        "1,000 heads that stop half-way",
        "idle_and_slow_connections_stay_within_bounds",
    ),
    r(
        "body sent slowly, to `files`, `respond`, `redirect`",
        (160 * KIB, "a buffer of 64 KiB; `timeouts.body`"),
        "",
        (500 * US, "a connection"),
        "64,000 of 65,000 bytes",
        "slow_request_bodies_stay_within_bounds",
    ),
    r(
        "body sent slowly, to `proxy`",
        (288 * KIB, "buffers of 64 and 16 KiB"),
        "",
        (8_000 * US, "for 8 MB"),
        "8 of 15 MB, to an upstream server that reads nothing",
        "slow_request_bodies_stay_within_bounds",
    ),
    r(
        "body sent slowly, to an application, in memory",
        (224 * KIB, "`body_ahead`, a buffer of 64 KiB"),
        "",
        (1_200 * US, "a connection"),
        "127,000 of 128,000 bytes",
        "slow_request_bodies_stay_within_bounds",
    ),
    r(
        "body sent slowly, to an application, in a file",
        (576 * KIB, "a buffer of 64 KiB, `body_ahead`"),
        "the body; `spill`",
        (4_000 * US, "a connection"),
        "300,000 of 400,000 bytes",
        "slow_request_bodies_stay_within_bounds",
    ),
    r(
        "`100-continue`, and no body",
        (96 * KIB, "a buffer of 64 KiB; `timeouts.body`"),
        "",
        (500 * US, "a connection"),
        "500 heads, no body",
        "slow_request_bodies_stay_within_bounds",
    ),
    r(
        "pipelining, nothing read",
        (256 * KIB, "64 KiB of responses, 16 KiB of requests"),
        "",
        (5_000 * US, "a connection"),
        "400 requests for 30 KB each",
        "unread_file_responses_stay_within_bounds",
    ),
    r(
        "slow reader of a file",
        (16 * KIB, "buffers of a request; `sendfile`"),
        "",
        (5_000 * US, "a connection"),
        "a file of 3 MB, nothing read",
        "unread_file_responses_stay_within_bounds",
    ),
    r(
        "slow reader of a proxied response, in memory",
        (448 * KIB, "`read_ahead`, a buffer of 128 KiB"),
        "",
        (6_000 * US, "a connection"),
        "a response of 10 MB, nothing read, `spill` 0",
        "unread_proxied_responses_stay_within_bounds",
    ),
    r(
        "slow reader of a proxied response, in a file",
        (896 * KIB, "a block of 256 KiB while it is written; `read_ahead`"),
        "the response; `spill`",
        (12_000 * US, "a connection"),
        "a response of 10 MB, nothing read",
        "unread_proxied_responses_stay_within_bounds",
    ),
    r(
        "1xx without end, not read",
        (40 * KIB, "32 of them; then 502"),
        "",
        (1_000 * US, "a connection"),
        "an upstream server that sends 103 endlessly",
        "unread_proxied_responses_stay_within_bounds",
    ),
    r(
        "slow reader of a response compressed with gzip",
        (1_280 * KIB, "the encoder (at most 128 a thread), `read_ahead`"),
        "",
        (120_000 * US, "for 3 MB"),
        "a response of 3 MB, nothing read",
        "unread_compressed_responses_stay_within_bounds",
    ),
    r(
        "slow reader of a response compressed with br",
        (5_120 * KIB, "the encoder (at most 128 a thread), `read_ahead`"),
        "",
        (100_000 * US, "for 3 MB"),
        "a response of 3 MB, nothing read",
        "unread_compressed_responses_stay_within_bounds",
    ),
    r(
        "slow reader of a response compressed with zstd",
        (3_072 * KIB, "the encoder (at most 128 a thread), `read_ahead`"),
        "",
        (100_000 * US, "for 3 MB"),
        "a response of 3 MB, nothing read",
        "unread_compressed_responses_stay_within_bounds",
    ),
    r(
        "slow reader of an application's response, in memory",
        (1_792 * KIB, "`answer_ahead`, one piece of the channel"),
        "",
        (20_000 * US, "a connection"),
        "a response of 10 MB, nothing read, `spill` 0",
        "unread_application_responses_stay_within_bounds",
    ),
    r(
        "slow reader of an application's response, in a file",
        (1_536 * KIB, "a block of 256 KiB while it is written; `answer_ahead`"),
        "the response; `spill`",
        (30_000 * US, "a connection"),
        "a response of 10 MB, nothing read",
        "unread_application_responses_stay_within_bounds",
    ),
    r(
        "PROXY header nearly whole",
        (24 * KIB, "4,112 bytes; `timeouts.head`"),
        "",
        (100 * US, "a connection"),
        "500 connections, all but 96 bytes",
        "slow_proxy_protocol_headers_stay_within_bounds",
    ),
    r(
        "control socket, line begun",
        (256 * KIB, "64 clients, 4,096 bytes, 2 s; only this user and root"),
        "",
        (800 * US, "a client"),
        "60 clients, 4,000 bytes and no line",
        "incomplete_control_commands_stay_within_bounds",
    ),
    r(
        "log lines that nobody takes",
        (24_576 * KIB, "8 MiB a destination; more lines are dropped and counted"),
        "",
        (1_000_000 * US, "for 5,000 requests"),
        "40 MB of targets, a FIFO that nobody reads",
        "unread_log_lines_stay_within_bounds",
    ),
    r(
        "TLS, connected, silent",
        (3 * KIB, "`limits.connections`; closed after `timeouts.head`"),
        "",
        (60 * US, "a connection"),
        "1,000 connections, not a byte",
        "idle_and_slow_tls_clients_stay_within_bounds",
    ),
    r(
        "TLS, first message begun",
        (24 * KIB, "64 KiB of it; closed after `timeouts.head`"),
        "",
        (150 * US, "a connection"),
        "1,000 connections, half of a ClientHello",
        "idle_and_slow_tls_clients_stay_within_bounds",
    ),
    r(
        "TLS, handshake left half-way",
        (24 * KIB, "keys and the handshake's messages; closed after `timeouts.head`"),
        "",
        (800 * US, "a connection"),
        "1,000 connections, a ClientHello and no more",
        "idle_and_slow_tls_clients_stay_within_bounds",
    ),
    r(
        "TLS, client certificates nearly whole",
        (160 * KIB, "64 KiB of them, where a site asks for certificates; closed after `timeouts.head`"),
        "",
        (2_000 * US, "a connection"),
        "100 connections, all but a byte of 56 KiB of certificates",
        "large_client_certificate_chains_stay_within_bounds",
    ),
    r(
        "TLS, idle after a request",
        (20 * KIB, "`limits.connections`; closed after `timeouts.idle`"),
        "",
        (1_500 * US, "a connection"),
        "1,000 connections, one `HEAD` each",
        "idle_and_slow_tls_clients_stay_within_bounds",
    ),
    r(
        "TLS, record nearly whole",
        (56 * KIB, "a record of 16 KiB; `timeouts.idle`, `head`, `body`"),
        "",
        (1_500 * US, "a connection"),
        "500 connections, all but a byte of a record of 16 KiB",
        "idle_and_slow_tls_clients_stay_within_bounds",
    ),
    r(
        "TLS, a handshake for each connection",
        (0, "one step of a handshake in each turn of a core"),
        "",
        (2_000 * US, "a handshake"),
        "300 full handshakes (ECDSA P-256, X25519MLKEM768)",
        "tls_floods_stay_within_bounds",
    ),
    r(
        "TLS, records of one byte",
        (0, "`limits.body`"),
        "",
        (2 * US, "a record"),
        "a body of 20,000 bytes, a record each",
        "tls_floods_stay_within_bounds",
    ),
    r(
        "TLS, key updates without end",
        (0, "32 of them; then closed"),
        "",
        (2_500 * US, "a connection"),
        "50 connections, 1,000 key updates each",
        "tls_floods_stay_within_bounds",
    ),
    r(
        "WebSocket, idle",
        (32 * KIB, "`websockets.idle`"),
        "",
        (500 * US, "a socket"),
        "300 sockets",
        "idle_websockets_stay_within_bounds",
    ),
    r(
        "WebSocket, message under way",
        (40_960 * KIB, "`websockets.message`"),
        "",
        (150_000 * US, "for 16 MiB"),
        "8 messages of 16 MiB but one byte",
        "incomplete_websocket_messages_stay_within_bounds",
    ),
    r(
        "WebSocket, compressed message under way",
        (128 * KIB, "an inflater (32 KiB window), bytes so far"),
        "",
        (600 * US, "a socket"),
        "300 sockets, a kilobyte of zeros each",
        "incomplete_websocket_messages_stay_within_bounds",
    ),
    r(
        "WebSocket, the application sends and nothing is read",
        (1_280 * KIB, "`answer_ahead`, one piece of the channel"),
        "",
        (8_000 * US, "a socket"),
        "an application that sends endlessly",
        "unread_websocket_messages_stay_within_bounds",
    ),
    r(
        "WebSocket, messages to an application that does not read",
        (1_280 * KIB, "one message, 16 KiB, the channel"),
        "",
        (8_000 * US, "a socket"),
        "messages of 125 bytes, an application that sends and never receives",
        "websocket_messages_not_read_by_app_stay_within_bounds",
    ),
    r(
        "WebSocket, messages that inflate",
        (2_048 * KIB, "`websockets.message` (1 MiB here); then 1009"),
        "",
        (20_000 * US, "a message"),
        "a kilobyte that stands for 1 MB",
        "inflating_websocket_messages_stay_within_bounds",
    ),
    r(
        "tunnel to an upstream server, both sides send, none reads",
        (352 * KIB, "64 KiB down, 16 KiB up"),
        "",
        (15_000 * US, "a tunnel"),
        "60 tunnels",
        "tunnels_with_unread_data_stay_within_bounds",
    ),
    r(
        "connection that a Rack application has taken over, both send, none reads",
        (416 * KIB, "64 KiB down, 16 KiB up"),
        "",
        (8_000 * US, "a connection"),
        "40 connections",
        "hijacked_connections_with_unread_data_stay_within_bounds",
    ),
    r(
        "smallest requests, pipelined",
        (0, "turns of 256 KiB, 4 KiB a request"),
        "",
        (8 * US, "a request"),
        "20,000 requests",
        "request_floods_stay_within_cpu_bounds",
    ),
    r(
        "a head byte by byte",
        (0, "`limits.head`"),
        "",
        (5 * US, "a byte"),
        "15,000 bytes, a segment each",
        "request_floods_stay_within_cpu_bounds",
    ),
    r(
        "a body in chunks of one byte",
        (0, "`limits.body`"),
        "",
        (400, "a chunk"),
        "160,000 chunks",
        "request_floods_stay_within_cpu_bounds",
    ),
    r(
        "a connection for each request",
        (0, "`limits.connections`"),
        "",
        (150 * US, "a connection"),
        "1,000 connections",
        "request_floods_stay_within_cpu_bounds",
    ),
    r(
        "a connection for each refusal",
        (0, "`limits.connections`"),
        "",
        (200 * US, "a connection"),
        "1,000 malformed requests",
        "request_floods_stay_within_cpu_bounds",
    ),
    r(
        "WebSocket, pings without end",
        (0, "1,000 frames at once, 100 a second; then 1008"),
        "",
        (25_000 * US, "a socket"),
        "10 sockets, until they are closed",
        "websocket_frame_floods_stay_within_cpu_bounds",
    ),
    r(
        "WebSocket, empty fragments without end",
        (0, "1,000 frames at once, 100 a second; then 1008"),
        "",
        (12_000 * US, "a socket"),
        "10 sockets, until they are closed",
        "websocket_frame_floods_stay_within_cpu_bounds",
    ),
    r(
        "WebSocket, fragments of one byte",
        (0, "`websockets.message`; not their number"),
        "",
        (600, "a fragment"),
        "200,000 fragments",
        "websocket_frame_floods_stay_within_cpu_bounds",
    ),
    r(
        "WebSocket, frames after its close",
        (0, "4 MiB, 5 s"),
        "",
        (8_000 * US, "a socket"),
        "10 sockets, a million frames each",
        "websocket_frame_floods_stay_within_cpu_bounds",
    ),
];

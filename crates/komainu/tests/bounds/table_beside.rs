//! Rows of the table of docs/security.md about side effects of a request: subrequests, copies, log lines,
//! spans, and clients of the control listener.

use super::table::{KIB, Row, US, r};

/// Rows about side effects of a request.
pub const ROWS: &[Row] = &[
    r(
        "request that a `limit` delays",
        (24 * KIB, "`delayed` of the limit, then 429; `delay`"),
        "",
        (300 * US, "a request"),
        "900 requests, all but one too early",
        "delayed_requests_stay_within_bounds",
    ),
    r(
        "request that `auth.ask` asks about",
        (24 * KIB, "buffers of both sides; `timeout` (10 s), then 504"),
        "",
        (500 * US, "a request"),
        "500 requests, a server that does not answer",
        "delayed_requests_stay_within_bounds",
    ),
    r(
        "body sent slowly, to a FastCGI server",
        (576 * KIB, "a buffer of 64 KiB, a block of 256 KiB while it is written"),
        "the body; `spill`",
        (4000 * US, "a connection"),
        "300,000 of 400,000 bytes",
        "delayed_requests_stay_within_bounds",
    ),
    r(
        "copies of a `mirror` that nobody answers",
        (16 * 1024 * KIB, "`in_flight` (100), each with `body_max`; more are not made"),
        "",
        (800_000 * US, "for 1,000 requests"),
        "1,000 requests with bodies of 60 KB, a server that does not answer",
        "mirrors_spans_and_log_lines_stay_within_bounds",
    ),
    r(
        "spans that no collector takes",
        (16 * 1024 * KIB, "the spans of 4,096 requests; more are dropped and counted"),
        "",
        (2_000_000 * US, "for 10,000 requests"),
        "10,000 requests with long targets, a collector that reads nothing",
        "mirrors_spans_and_log_lines_stay_within_bounds",
    ),
    r(
        "log lines that a receiver does not take",
        (24 * 1024 * KIB, "8 MiB a destination; more lines are dropped and counted"),
        "",
        (1_200_000 * US, "for 5,000 requests"),
        "40 MB of targets, a syslog server that reads nothing",
        "mirrors_spans_and_log_lines_stay_within_bounds",
    ),
    r(
        "follower of `/v1/events` who reads nothing",
        (128 * KIB, "16 followers; 256 lines of 1 KiB for all of them: who reads slowly misses lines"),
        "",
        (100_000 * US, "a follower"),
        "12 followers, 1,800 lines of 1 KB",
        "control_api_clients_stay_within_bounds",
    ),
    r(
        "client of `GET /v1/history` who reads nothing",
        (128 * KIB, "one response, less than 100 KiB: further requests wait; `timeouts.write`"),
        "",
        (120_000 * US, "a client"),
        "24 clients, 500 requests each",
        "control_api_clients_stay_within_bounds",
    ),
    r(
        "control API, body nearly whole",
        (2560 * KIB, "32 requests, 1 MiB each; `timeouts.body`"),
        "",
        (8000 * US, "a client"),
        "24 bodies of 1 MiB but one byte",
        "control_api_clients_stay_within_bounds",
    ),
];

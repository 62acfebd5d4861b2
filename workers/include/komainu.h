/*
 * komainu.h: the worker's side of the channel, for language modules and native handlers.
 *
 * A worker process takes a seat, claims requests, and answers them. It has no socket: the server handles the protocol and
 * slow clients. A module needs only this file and the library.
 *
 *     komainu_worker *worker = komainu_attach(KOMAINU_ABI, -1, error, sizeof error);
 *     komainu_request *request;
 *     while (komainu_next(worker, -1, &request) == KOMAINU_OK) {
 *         komainu_head(request, 200, fields, 1);
 *         komainu_write(request, "OK", 2, KOMAINU_MORE);
 *         komainu_end(request);
 *     }
 *     komainu_detach(worker);
 *
 * Rules
 * - A worker and its requests belong to one thread at a time. A threaded process takes one seat per thread; an event
 *   loop holds many requests of one seat at once.
 * - A handle is valid until it is passed to komainu_end, komainu_abort or komainu_detach, whatever these return.
 * - Texts are bytes with a length; they are not terminated, and their encoding is not checked.
 * - The parts of a response have this order: interim heads, one head, body, trailers; log lines anywhere.
 * - Functions that return a number of bytes return one of the codes below on failure. After any code except
 *   KOMAINU_AGAIN the request can only be ended or aborted.
 * - After fork(), either the parent or the child continues to use a seat, never both. A prototype process forks its
 *   workers before it attaches.
 */
#ifndef KOMAINU_H
#define KOMAINU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this file; increased when the meaning of a function changes, but not for new functions. */
#define KOMAINU_ABI 1

/* Return values. */
#define KOMAINU_OK 0
#define KOMAINU_AGAIN (-1)     /* nothing to read now, or no room to write: try again later */
#define KOMAINU_CANCELLED (-2) /* the server cancelled the request: komainu_cancelled returns the reason */
#define KOMAINU_ORDER (-3)     /* the parts of a response are out of order, or it ended without a head */
#define KOMAINU_TOO_LARGE (-4) /* a head, trailers or a field larger than the channel allows */
#define KOMAINU_BROKEN (-5)    /* the channel's memory is damaged */
#define KOMAINU_RETIRED (-6)   /* the server asks the worker to exit: finish its requests, detach, exit */

/* A seat that this process holds, and a claimed request. */
typedef struct komainu_worker komainu_worker;
typedef struct komainu_request komainu_request;

/* One field of a head: a header field, or a part of the request (below). */
typedef struct komainu_field {
    const char *name;  /* a well-known name is in lower case; in responses it may be NULL if `id` is set */
    const char *value;
    uint32_t name_len;
    uint32_t value_len;
    uint32_t id; /* of a well-known name, 1 to 255: an index for prepared keys; 0 for any other name */
} komainu_field;

/* The ids of parts that are not header fields. Header fields have ids from 32 on: see komainu_name. */
#define KOMAINU_METHOD 1
#define KOMAINU_TARGET 2      /* the whole path and the query, percent-encoded */
#define KOMAINU_SCRIPT_NAME 3 /* where the application is mounted, decoded; empty at the root */
#define KOMAINU_PATH 4        /* the rest of the path, decoded */
#define KOMAINU_QUERY 5       /* without its question mark */
#define KOMAINU_PROTOCOL 6    /* HTTP/1.1 */
#define KOMAINU_SCHEME 7      /* http, https */
#define KOMAINU_REMOTE_ADDR 8
#define KOMAINU_REMOTE_PORT 9
#define KOMAINU_SERVER_NAME 10
#define KOMAINU_SERVER_PORT 11
#define KOMAINU_SERVER_ADDR 12
#define KOMAINU_REQUEST_ID 13
#define KOMAINU_REASON 14     /* in a response: the reason phrase */
#define KOMAINU_APP_TARGET 16 /* the target of the application, if it is not the first */
#define KOMAINU_VARIABLE 17   /* may be repeated: NAME=VALUE for a CGI-like environment; never set by header fields */
#define KOMAINU_WEBSOCKET 15  /* the client asks for a WebSocket: its subprotocols, separated by commas */

/*
 * A WebSocket. A request with the part KOMAINU_WEBSOCKET may be answered like any other, which refuses it; a head of
 * status 101 accepts it (with `sec-websocket-protocol` for the subprotocol chosen; the server adds what belongs to the
 * handshake). Then the bodies of request and response carry records, each of them a message:
 *
 *     kind    one byte, below
 *     length  four bytes, little-endian
 *     payload as many bytes; of a KOMAINU_CLOSE: the code, two bytes, little-endian, and a reason
 *
 * The server handles frames, fragments, masks, pings and limits. The last record from the client is a close, with code
 * 1005 if it sent none, and 1006 if it disconnected without a close. Nothing is sent after a close.
 */
#define KOMAINU_TEXT 1   /* UTF-8; the server has checked it if it is from the client */
#define KOMAINU_BINARY 2
#define KOMAINU_CLOSE 8

/* The version the library was built with. */
uint32_t komainu_abi(void);

/* The text of a code, terminated. */
const char *komainu_error(int code);

/* The text of a well-known name: of a header field in lower case, of a part with a colon in front. NULL for other ids. */
const char *komainu_name(uint32_t id, size_t *len);

/*
 * Takes a seat of the channel in KOMAINU_RING. If `seat` is negative, the number in KOMAINU_SEAT is used. On failure
 * returns NULL, with a terminated text in `error`.
 */
komainu_worker *komainu_attach(uint32_t abi, int seat, char *error, size_t error_size);

/* Releases a seat that holds no request. */
void komainu_detach(komainu_worker *worker);

/*
 * Claims the oldest waiting request: waits without a limit if `wait_ms` is negative, not at all if it is 0. Returns
 * KOMAINU_OK; KOMAINU_AGAIN after a timeout, if a signal handler has run, or a few seconds have passed (so that the
 * caller can handle signals that arrived just before the wait); or KOMAINU_RETIRED.
 */
int komainu_next(const komainu_worker *worker, int64_t wait_ms, komainu_request **request);

/* The request's fields in the order in which they were sent, repeated ones too. Valid until the request is ended. */
size_t komainu_fields(const komainu_request *request, const komainu_field **fields);

/* Reads a piece of the body, and waits for it: returns its length, or 0 at the end. */
int64_t komainu_read(komainu_request *request, char *buffer, size_t size);

/* Reads a piece of the body without waiting: KOMAINU_AGAIN if none is available. */
int64_t komainu_try_read(komainu_request *request, char *buffer, size_t size);

/* Sends an interim head, such as 103 with Link fields. */
int komainu_interim(komainu_request *request, uint16_t status, const komainu_field *fields, size_t count);

/* Writes the head. It is sent with the first piece of the body, with the end, or at komainu_flush. */
int komainu_head(komainu_request *request, uint16_t status, const komainu_field *fields, size_t count);

/* Flag of komainu_write: more data follows immediately, so this piece need not be sent yet. */
#define KOMAINU_MORE 1

/* Writes a piece of the body, and waits while the client is too slow. */
int komainu_write(komainu_request *request, const char *body, size_t len, uint32_t flags);

/* Writes as much as fits now: returns the number of bytes, or KOMAINU_AGAIN. */
int64_t komainu_try_write(komainu_request *request, const char *body, size_t len);

/*
 * Non-blocking: works like komainu_head; like komainu_interim if the status is informational (but not 101); like
 * komainu_trailers if it is 0. Returns KOMAINU_AGAIN if there is no room; earlier output is then sent.
 */
int komainu_try_head(komainu_request *request, uint16_t status, const komainu_field *fields, size_t count);

/* Like komainu_try_write, but a piece that fits is sent with later data, with the end, or at komainu_flush. */
int64_t komainu_try_write_later(komainu_request *request, const char *body, size_t len);

/* Sends everything written so far. */
void komainu_flush(komainu_request *request);

/* Sends `len` bytes of an open file from `offset` on. When it returns, the server has its own descriptor. */
int komainu_file(komainu_request *request, int fd, uint64_t offset, uint64_t len);

/*
 * Connects the client to a socket (one end of a Unix socketpair) instead of sending a response: the server relays bytes
 * in both directions until both sides have closed. When it returns, the server has its own descriptor; the caller closes
 * this one and calls komainu_end. KOMAINU_CANCELLED if the server does not support it.
 */
int komainu_hijack(komainu_request *request, int fd);

/* Writes the trailer fields, after the body. */
int komainu_trailers(komainu_request *request, const komainu_field *fields, size_t count);

/* Ends the response. The handle is invalid afterwards, whatever this returns. */
int komainu_end(komainu_request *request);

/* Aborts the request: without a head the client gets an error, after one a response that is cut off. The handle is
 * invalid afterwards. */
void komainu_abort(komainu_request *request, uint32_t reason);

/* The server's reason for cancelling the request (the client disconnected, a timeout), or 0. */
uint32_t komainu_cancelled(const komainu_request *request);

/* Writes a line to the server's log, for a request or without one (NULL). Levels as in syslog, 0 to 7. */
int komainu_log(komainu_request *request, uint8_t level, const char *text, size_t len);

/*
 * For event loops that hold many requests at once. They write with komainu_try_head, komainu_try_write and
 * komainu_try_write_later, because other functions may wait for a slow client. The order is
 *
 *     if (komainu_arm(worker, wants_more_requests)) {
 *         if (nothing held has komainu_news)
 *             sleep until komainu_fd(worker) is readable, or for any other reason;
 *         komainu_disarm(worker);
 *     }
 *     if (komainu_fd(worker) was readable)
 *         komainu_quiet(worker);
 *     claim with komainu_next(worker, 0, …) while requests are wanted, check komainu_news of those that wait
 */

/* The descriptor to watch for reading, or -1 if the channel has none. */
int komainu_fd(const komainu_worker *worker);

/* Call it before sleeping. Returns 1, or 0 without arming if there is a request to claim or the worker should exit. */
int komainu_arm(const komainu_worker *worker, int wanted);

/* Call it after sleeping. If requests were wanted, then call komainu_next: the wake-up may have been for a request. */
void komainu_disarm(const komainu_worker *worker);

/* Makes the descriptor unreadable again. */
void komainu_quiet(const komainu_worker *worker);

/* Bits of komainu_news. */
#define KOMAINU_READABLE 1 /* komainu_try_read would not return KOMAINU_AGAIN */
#define KOMAINU_WRITABLE 2 /* the server has read something since komainu_try_write returned KOMAINU_AGAIN */
#define KOMAINU_GONE 4     /* the request was cancelled */
#define KOMAINU_CLIENT_CLOSED 8 /* the client has closed its sending side; it has probably disconnected, but may still read */

/* The operations on a request that are possible without waiting: the bits above. */
uint32_t komainu_news(const komainu_request *request);

#ifdef __cplusplus
}
#endif

#endif

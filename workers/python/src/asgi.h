/*
 * Shared by the files of ASGI.
 *
 *     ready.c      an awaitable whose value is ready
 *     scope.c      a request's scope
 *     asgi.c       HTTP: receive and send; a call from its claim to its end
 *     websocket.c  a WebSocket's messages
 *
 * These functions never wait; only the Python half does.
 */
#ifndef KOMAINU_ASGI_H
#define KOMAINU_ASGI_H

#include "common.h"
#include "head.h"
#include "text.h"

/* The kind and the length of a record. */
#define RECORD_HEAD_BYTES 5

enum stage { NO_HEAD, HEAD_WRITTEN, BODY_WRITTEN, OVER };

/* One request, from its claim to its end; receive and send are its methods. */
typedef struct {
    PyObject_HEAD
    komainu_request *request; /* NULL after the end of the request */
    enum stage stage;
    int trailers;    /* whether the head announced trailers */
    int body_ended;  /* whether the request's body was received completely */
    int end_sent;    /* whether the application has received the end of the body */
    int disconnected; /* whether the application has received http.disconnect, or an error for it */
    int is_socket;   /* whether the client requests a WebSocket */
    int has_tls;     /* whether the site requests client certificates */
    int64_t left;    /* bytes of the request's body still to be received, or -1 if not known */
    PyObject *rest;  /* the part of a piece that the server has not taken yet, or NULL */
    Py_ssize_t rest_at;
    int rest_last;   /* whether the response ends with `rest` */
    PyObject *again; /* a message that had no room, or NULL */
    PyObject *readers, *writers; /* lists of the futures that wait in receive and send, or NULL */
    unsigned char record_head[RECORD_HEAD_BYTES]; /* the head of a WebSocket record, as far as received */
    int record_head_len;
    PyObject *record; /* the payload of the record, as far as received, or NULL */
    Py_ssize_t record_len;
} Call;

/* The keys of scopes and messages. */
enum {
    TYPE, HTTP_VERSION, METHOD, SCHEME, PATH, RAW_PATH, QUERY, ROOT_PATH, HEADERS, CLIENT, SERVER, STATE, EXTENSIONS,
    BODY, MORE_BODY, STATUS, TRAILERS, MORE_TRAILERS, LINKS, SUBPROTOCOLS, TARGET, KEYS
};

extern PyObject *keys[KEYS];
/* The constant entries of every scope; they are copied for each. */
extern PyObject *scope_template, *scope_state, *http_extensions, *socket_extensions;
extern PyObject *empty_bytes, *done_ready;

/* ---- ready.c ---- */

int ready_init(PyObject *module);
/* Steals the reference to the value; NULL if the value is NULL. */
PyObject *ready_new(PyObject *value);

/* ---- scope.c ---- */

int scope_init(void);
/* The constant entries of every scope, from the Python half. */
int scope_prepare(PyObject *constants);
/* A scope for a call; also sets the expected length of the body. */
PyObject *scope_new(Call *call);

/* ---- asgi.c ---- */

int asgi_init(PyObject *module);
/* seat.claim(most) -> the number of requests claimed, or None if the worker must exit. */
PyObject *asgi_claim(komainu_worker *worker, PyObject *most);
/* prepare_asgi(constants of scopes, state, extensions of HTTP and of WebSockets, begin, wait_to_receive, wait_to_send) */
PyObject *asgi_prepare(PyObject *module, PyObject *arguments);

/* Ends the response. */
int call_end(Call *self);
/* Writes the rest of a piece as far as possible. Returns 1 if some of it is still left. */
int send_rest(Call *self);
/* Fields from an iterable of pairs. */
int fill_head(struct head *head, PyObject *headers);

/* ---- websocket.c ---- */

/* take_record() -> (kind, str or bytes or code, reason), or None if there is none yet. */
PyObject *call_take_record(Call *self, PyObject *unused);
/* put_record(kind, bytes) -> whether some of it is left for push() */
PyObject *call_put_record(Call *self, PyObject *arguments);
/* accept(subprotocol or None, headers) */
PyObject *call_accept(Call *self, PyObject *arguments);

#endif

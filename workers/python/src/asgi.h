/*
 * What the files of ASGI share.
 *
 *     ready.c      what is awaited where nothing has to be waited for
 *     scope.c      a request's scope
 *     asgi.c       HTTP: receive and send; a call from its claim to its end
 *     websocket.c  a WebSocket's messages
 *
 * Nothing here waits: what would is left to the Python half.
 */
#ifndef KOMAINU_ASGI_H
#define KOMAINU_ASGI_H

#include "native.h"

/* Kind and length. */
#define RECORD_HEAD_BYTES 5

enum stage { NO_HEAD, HEAD_WRITTEN, BODY_WRITTEN, OVER };

/* One request, from its claim to its end: what receive and send are methods of. */
typedef struct {
    PyObject_HEAD
    komainu_request *request; /* NULL once it is over */
    enum stage stage;
    int trailers;    /* promised */
    int body_ended;  /* all of the request's body was received */
    int told;        /* and the application knows */
    int disconnected; /* the application was told that its client is gone */
    int is_socket;   /* the client wants a WebSocket */
    int64_t left;    /* bytes of it that are still to come, or -1 where nobody knows */
    PyObject *rest;  /* what of a piece the server did not take yet, or NULL */
    Py_ssize_t rest_at;
    int rest_last;   /* the response ends with it */
    PyObject *readers, *writers; /* lists of the futures of who waits in receive and send, or NULL */
    unsigned char record_head[RECORD_HEAD_BYTES]; /* of a WebSocket's record: what of it has come */
    int record_head_len;
    PyObject *record; /* its payload, as far as it has come, or NULL */
    Py_ssize_t record_len;
} Call;

/* The keys of scopes and messages. */
enum {
    TYPE, HTTP_VERSION, METHOD, SCHEME, PATH, RAW_PATH, QUERY, ROOT_PATH, HEADERS, CLIENT, SERVER, STATE, EXTENSIONS,
    BODY, MORE_BODY, STATUS, TRAILERS, MORE_TRAILERS, LINKS, SUBPROTOCOLS, TARGET, KEYS
};

extern PyObject *keys[KEYS];
/* What is in every scope of this process; what is copied for each. */
extern PyObject *scope_template, *scope_state, *http_extensions, *socket_extensions;
extern PyObject *empty_bytes, *done_ready;

/* ---- ready.c ---- */

int ready_init(PyObject *module);
/* Takes the value over; NULL where that is. */
PyObject *ready_new(PyObject *value);

/* ---- scope.c ---- */

int scope_init(void);
/* What is in every scope, from what the Python half knows. */
int scope_prepare(PyObject *constants);
/* A scope for a call, which is told how much of a body is to be expected. */
PyObject *scope_new(Call *call);

/* ---- asgi.c ---- */

/* Ends the answer. */
int call_end(Call *self);
/* Writes what is left of a piece, as far as it goes. 1 where some of it is still left. */
int send_rest(Call *self);
/* Fields from an iterable of pairs. */
int fill_head(struct head *head, PyObject *headers);

/* ---- websocket.c ---- */

/* take_record() -> (kind, str or bytes or code, reason), or None where there is none yet. */
PyObject *call_take_record(Call *self, PyObject *unused);
/* put_record(kind, bytes): whether some of it is left for push(). */
PyObject *call_put_record(Call *self, PyObject *arguments);
/* accept(subprotocol or None, headers) */
PyObject *call_accept(Call *self, PyObject *arguments);

#endif

/* One request of ASGI, and the futures that wait for it. */
#ifndef KOMAINU_ASGI_CALL_H
#define KOMAINU_ASGI_CALL_H

#include "common.h"

/* Bits of komainu_news that cause http.disconnect. A client that closed its sending side still gets the response. */
#define CLIENT_LEFT (KOMAINU_GONE | KOMAINU_CLIENT_CLOSED)
/* Size of the head of a WebSocket record: its kind and its length. */
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
extern PyObject *empty_bytes;

int call_init(void);
/* Adds a future to the list of those that wait in receive or send. Returns None. */
PyObject *add_waiter(PyObject **waiters, PyObject *future);
/* Wakes all futures of a list, which is NULL afterwards. */
int wake_waiters(PyObject **waiters);
/* Ends the response. */
int call_end(Call *self);

#endif

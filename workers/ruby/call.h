/* Komainu::Call: one request for the Ruby half. */
#ifndef KOMAINU_CALL_H
#define KOMAINU_CALL_H

#include "common.h"

enum stage { NO_HEAD, HEAD_SENT, OVER };

/* A request, from its claim to its end. */
struct call {
    komainu_request *request; /* NULL after the end of the request */
    enum stage stage;
    int waiting;      /* whether a thread waits in the channel with this request */
    int informs;      /* whether the client understands interim heads */
    int hijacked;     /* whether the application has hijacked the connection */
    size_t unsent;    /* bytes written so far without waiting */
    VALUE env;        /* the request's environment; invalid after the end of the request */
};

/* Komainu::Gone: the request was cancelled. */
extern VALUE gone_class;
/* Whether the server can receive descriptors from this process. */
extern int sends_files;

void init_call(void);
/* Creates the call of a request; `*held` is its state, which lives as long as the call. */
VALUE call_new(komainu_request *request, struct call **held);
/* Returns the state of a Komainu::Call. */
struct call *call_of(VALUE self);
/* Raises Komainu::Gone or an IOError if the code is an error. */
void call_check(int64_t code);
/* Raises an exception if the request has ended, or another thread uses it. */
void call_must_be_free(const struct call *held);
/* Writes a piece of the body; with `more`, it need not be sent yet. */
void call_write(struct call *held, VALUE piece, int more);
/* Sends the first `len` bytes of a file. */
void call_send_file(struct call *held, int fd, uint64_t len);

#endif

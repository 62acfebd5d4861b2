/*
 * The native half of the Ruby worker: the code that runs for every request. The rest is in Ruby.
 *
 *     native.c  seats, the loop that claims and answers requests, the life cycle of the process
 *     answer.c  an application's response: head, body, end
 *     env.c     a request's environment
 *     call.c    Komainu::Call: one request for the Ruby half
 */
#ifndef KOMAINU_NATIVE_H
#define KOMAINU_NATIVE_H

#include <ruby.h>
#include <ruby/encoding.h>
#include <ruby/thread.h>

#include "komainu.h"
#include "komainu_life.h"

/*
 * Number of bytes of a response that fit into its slot, so that writing them does not block. If the channel is
 * smaller, the other threads of the process have to wait too.
 */
#define UNWAITED_BYTES_MAX (16 * 1024)

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

/* A request and the application's response. */
struct exchange {
    VALUE app;
    VALUE call; /* Komainu::Call */
    VALUE env, input;
    VALUE status, headers, body, error;
    VALUE replied; /* the value of rack.after_reply: an array, reused for the next request while it is empty */
    struct call *held;
    int file; /* the file to send, or -1 */
};

extern VALUE komainu_module;
/* Komainu::Gone: the request was cancelled. */
extern VALUE gone_class;
/* Set in a process that the application has forked from a worker: seats and requests belong to its parent. */
extern int is_copy;
/* Whether the server can receive descriptors from this process. */
extern int sends_files;

/* call.c */
void init_call(void);
VALUE call_new(komainu_request *request, struct call **held);
struct call *call_of(VALUE self);
/* Raises Komainu::Gone or an IOError if the code is an error. */
void call_check(int64_t code);
/* Raises an exception if the request has ended, or another thread uses it. */
void call_must_be_free(const struct call *held);
/* Writes a piece of the body; with `more`, it need not be sent yet. */
void call_write(struct call *held, VALUE piece, int more);
/* Sends a part of a file. */
void call_file(struct call *held, int fd, uint64_t len);

/* env.c */
void init_env(void);
/* Creates the environment of a request. */
VALUE env_new(struct exchange *x);

/* The value of rack.response_finished. */
VALUE env_finished(VALUE env);

/* The value of rack.after_reply. */
VALUE env_replied(VALUE env);

/* answer.c */
void init_answer(void);
/*
 * Calls the application and sends the response. Returns 0, or the state to continue with if the thread or the process
 * must end. The request has ended afterwards in any case.
 */
int answer(struct exchange *x);
/* Komainu::Call#call: early hints. */
VALUE answer_early(VALUE self, VALUE headers);

#endif

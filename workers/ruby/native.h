/*
 * The Ruby worker's native half, which is what every request passes through. What is not on that path is in Ruby.
 *
 *     native.c  seats, the loop that claims requests and answers them, the life of the process
 *     answer.c  an application's answer: head, body, end
 *     env.c     a request's environment
 *     call.c    Komainu::Call: one request as the Ruby half sees it
 */
#ifndef KOMAINU_NATIVE_H
#define KOMAINU_NATIVE_H

#include <ruby.h>
#include <ruby/encoding.h>
#include <ruby/thread.h>

#include "komainu.h"
#include "komainu_life.h"

/*
 * So much of an answer fits into its slot, so that writing it cannot wait. Should the channel have been made smaller, the
 * other threads of the process wait too, no more.
 */
#define UNWAITED_BYTES_MAX (16 * 1024)

enum stage { NO_HEAD, HEAD_SENT, OVER };

/* A request, from its claim to its end. */
struct call {
    komainu_request *request; /* NULL once it is over */
    enum stage stage;
    int waiting;      /* a thread waits in the channel with it */
    int informs;      /* whether the client understands interim heads */
    int hijacked;     /* the application has taken the connection over */
    size_t unsent;    /* bytes written so far that nobody had to wait for */
    VALUE env;        /* the request's environment; not to be looked at once the request is over */
};

/* A request with what the application makes of it. */
struct exchange {
    VALUE app;
    VALUE call; /* Komainu::Call */
    VALUE env, input;
    VALUE status, headers, body, error;
    struct call *held;
    int file; /* the file that is sent, or -1 */
};

extern VALUE komainu_module;
/* Komainu::Gone: nobody waits for the answer any more. */
extern VALUE gone_class;
/* Set in a process that the application has forked from a worker: the seats and requests are its parent's. */
extern int is_copy;

/* call.c */
void init_call(void);
VALUE call_new(komainu_request *request, struct call **held);
struct call *call_of(VALUE self);
/* Raises Komainu::Gone or an IOError if it is none of the good ones. */
void call_check(int64_t code);
/* Raises where the request is over, or in another thread's hands. */
void call_must_be_free(const struct call *held);
/* Writes a piece of the body; with `more`, it need not leave yet. */
void call_write(struct call *held, VALUE piece, int more);
/* Sends a part of a file. */
void call_file(struct call *held, int fd, uint64_t len);

/* env.c */
void init_env(void);
/* Makes the environment of a request. */
VALUE env_new(struct exchange *x);

/* What its rack.response_finished says. */
VALUE env_finished(VALUE env);

/* answer.c */
void init_answer(void);
/*
 * Calls the application and answers. 0, or the state to go on with where the thread or the process is to end; whatever
 * happens, the request is over then.
 */
int answer(struct exchange *x);
/* Komainu::Call#call: early hints. */
VALUE answer_early(VALUE self, VALUE headers);

#endif

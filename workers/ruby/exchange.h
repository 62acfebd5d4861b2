/* One exchange: a request, and the application's response. */
#ifndef KOMAINU_EXCHANGE_H
#define KOMAINU_EXCHANGE_H

#include "call.h"

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

void init_exchange(void);
/*
 * Calls the application and sends the response. Returns 0, or the state to continue with if the thread or the process
 * must end. The request has ended afterwards in any case.
 */
int run_exchange(struct exchange *x);

#endif

/* A request's environment. */
#ifndef KOMAINU_ENV_H
#define KOMAINU_ENV_H

#include "call.h"

void init_env(void);
/* Creates the environment of a call; `replied` is its rack.after_reply. `*input` is set to its rack.input. */
VALUE env_new(VALUE call, struct call *held, VALUE replied, VALUE *input);
/* Returns the value of rack.response_finished. */
VALUE env_finished(VALUE env);
/* Returns the value of rack.after_reply. */
VALUE env_replied(VALUE env);

#endif

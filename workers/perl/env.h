/* The PSGI environment of a request. */
#ifndef KOMAINU_ENV_H
#define KOMAINU_ENV_H

#include "common.h"

/* Initializes the environments; must be called once. */
void prepare_env(pTHX);
/* Creates the environment of the current request. */
HV *make_env(pTHX);
/* Whether the application asked its worker to exit. */
int wants_to_leave(pTHX_ HV *env);
/* Whether there may be cleanup handlers to run after the response. */
int has_clean_up(pTHX);
/* Called after a request: recovers the shared values that the environment has not kept. */
void renew_constants(pTHX);

#endif

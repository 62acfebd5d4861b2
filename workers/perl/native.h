/* Shared by the files of the Perl worker. */
#ifndef NATIVE_H
#define NATIVE_H

#define PERL_NO_GET_CONTEXT
#include "EXTERN.h"
#include "perl.h"
#include "XSUB.h"
#include "perliol.h"

#include <string.h>

#include "komainu.h"
#include "komainu_life.h"

#define HEADERS_MAX 256

typedef enum { NO_HEAD, HEAD_SENT, OVER } stage;

/* The request that is being answered. */
extern komainu_request *current;
extern stage current_stage;
extern int current_gone;
/* The number of the current request. Objects store it, because an application may keep them beyond the request. */
extern UV current_number;

/* ---- env.c ---- */

/* Initializes the environments; must be called once. */
void prepare_env(pTHX);
/* psgix.informational: its CvXSUBANY is the number of its request. */
XS(komainu_xs_inform);
/* The environment of the current request. */
HV *make_env(pTHX);
/* Whether the application asked its worker to exit. */
int wants_to_leave(pTHX_ HV *env);
/* Whether there may be cleanup handlers to run after the response. */
int has_clean_up(pTHX);
/* Called after a request: recovers the shared values that the environment has not kept. */
void renew_constants(pTHX);

/* ---- answer.c ---- */

/* Bytes of a value; croaks if it has wide characters. */
const char *bytes_of(pTHX_ SV *value, STRLEN *len, const char *what);
/* Croaks if the channel's code is an error. */
void check(pTHX_ int code);
void must_be_current(pTHX);
/* Croaks unless `number` is that of the current request. */
void must_be_request(pTHX_ UV number);
/* Headers as fields; there must be `room` for them. */
size_t make_fields(pTHX_ AV *headers, komainu_field *fields, size_t room);
uint16_t status_of(pTHX_ SV *value);
/* Sends the head; `length` is that of the body, or unknown. */
void send_head(pTHX_ SV *status, SV *headers, int64_t length);
/* Calls one of the functions in Komainu.pm. */
void call_with(pTHX_ const char *name, SV *argument);
/* Sends a triple of status, headers and body. */
void respond(pTHX_ SV *answer);

#endif

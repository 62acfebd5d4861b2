/* Declarations that every file of the Perl worker uses: the interpreter's API, and the current request. */
#ifndef KOMAINU_COMMON_H
#define KOMAINU_COMMON_H

#define PERL_NO_GET_CONTEXT
#include "EXTERN.h"
#include "perl.h"
#include "XSUB.h"
#include "perliol.h"

#include <string.h>

#include "komainu.h"
#include "komainu_life.h"

typedef enum { NO_HEAD, HEAD_SENT, OVER } stage;

/* The request that is being answered. */
extern komainu_request *current;
extern stage current_stage;
extern int current_gone;
/* The number of the current request. Objects store it, because an application may keep them beyond the request. */
extern UV current_number;

/* Croaks if the channel's code is an error. */
void check(pTHX_ int code);
/* Croaks unless there is a current request. */
void must_be_current(pTHX);
/* Croaks unless `number` is that of the current request. */
void must_be_request(pTHX_ UV number);
/* Calls one of the functions in Komainu.pm. */
void call_with(pTHX_ const char *name, SV *argument);

#endif

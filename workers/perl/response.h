/* The response of an application. */
#ifndef KOMAINU_RESPONSE_H
#define KOMAINU_RESPONSE_H

#include "common.h"

/* Bytes of a value; croaks if it has wide characters. */
const char *bytes_of(pTHX_ SV *value, STRLEN *len, const char *what);
/* Sends the head; `length` is that of the body, or -1 if it is not known. */
void send_head(pTHX_ SV *status, SV *headers, int64_t length);
/* Sends a triple of status, headers and body. */
void respond(pTHX_ SV *answer);
/* psgix.informational(status, headers): sends an interim head. Its CvXSUBANY is the number of its request. */
XS(komainu_xs_inform);

#endif

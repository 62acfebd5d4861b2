/* Conversions between bytes and strings. */
#ifndef KOMAINU_TEXT_H
#define KOMAINU_TEXT_H

#include "common.h"

/* Maximum length of the values that are cached. */
#define KEPT_BYTES_MAX 256

PyObject *latin1(const char *bytes, size_t len);
PyObject *field_text(const komainu_field *field);
/* Whether a field is a secret of one client, and must not be cached for the next request. */
int is_secret(unsigned id);
/* Like field_text; if a well-known field has the same value as in the last request, the same string is returned. */
PyObject *field_text_kept(const komainu_field *field);
int field_is(const komainu_field *field, const char *text);

#endif

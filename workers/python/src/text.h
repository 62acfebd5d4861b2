/* Conversions between bytes and strings. */
#ifndef KOMAINU_TEXT_H
#define KOMAINU_TEXT_H

#include "common.h"

/* Maximum length of the values that are cached. */
#define KEPT_BYTES_MAX 256

/* Decodes ISO 8859-1. */
PyObject *latin1(const char *bytes, size_t len);
/* Returns the value of a field. */
PyObject *field_text(const komainu_field *field);
/* Whether a field is a secret of one client, and must not be cached for the next request. */
int is_secret(unsigned id);
/* Returns the value of a field; the same string if a well-known field has the same value as in the last request. */
PyObject *field_text_kept(const komainu_field *field);
/* Whether the value of a field is this text. */
int field_is(const komainu_field *field, const char *text);

#endif

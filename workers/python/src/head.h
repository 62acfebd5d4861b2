/* Heads of responses. */
#ifndef KOMAINU_HEAD_H
#define KOMAINU_HEAD_H

#include "common.h"

/* Number of fields and of kept strings that need no allocation. */
#define FIELDS_INLINE 48

/* A head under construction. Its texts live as long as the objects they came from, and `kept`. */
struct head {
    komainu_field fields[FIELDS_INLINE];
    komainu_field *at;
    size_t count, room;
    PyObject *kept; /* objects made for it, or NULL */
    int64_t length; /* the Content-Length, or -1 */
};

void head_begin(struct head *head);
void head_end(struct head *head);
/* Adds a field whose bytes outlive the head. Returns -1 with an exception. */
int head_add(struct head *head, const char *name, size_t name_len, const char *value, size_t value_len);
/* Gets the bytes of a str in ISO 8859-1 (or, with `bytes`, of a bytes object). Returns -1 with an exception. */
int head_text(struct head *head, PyObject *object, int bytes, const char **text, size_t *len);
/* Adds a field whose name and value are such objects. */
int head_pair(struct head *head, PyObject *name, PyObject *value, int bytes);

#endif

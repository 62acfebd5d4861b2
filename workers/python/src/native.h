/*
 * The native half of the Python worker: the code that runs for every request. The rest is in Python.
 *
 *     native.c  the module, seats, the life cycle of the process
 *     text.c    conversions between bytes and strings, and heads
 *     input.c   wsgi.input
 *     wsgi.c    environ, and the application's response
 *     asgi.c    receive and send; asgi.h lists the other files of ASGI
 *
 * Uses only the limited API of Python 3.9, so that one build works with every later interpreter. Free-threaded
 * interpreters have no limited API: for each, build with KOMAINU_WHOLE_API.
 */
#ifndef KOMAINU_NATIVE_H
#define KOMAINU_NATIVE_H

#define PY_SSIZE_T_CLEAN
#ifndef KOMAINU_WHOLE_API
#define Py_LIMITED_API 0x03090000
#endif
#include <Python.h>

#include "komainu.h"
#include "komainu_life.h"

#ifndef KOMAINU_WHOLE_API
/* Exists in every interpreter since 3.3, and is part of the stable API since 3.10. */
extern const char *PyUnicode_AsUTF8AndSize(PyObject *text, Py_ssize_t *len);
/* Exist in every interpreter since 3.7. */
extern PyObject *PyContext_CopyCurrent(void);
extern int PyContext_Enter(PyObject *context);
extern int PyContext_Exit(PyObject *context);
#endif

/*
 * Number of bytes of a response that fit into its slot, so that writing them does not block. If the channel is
 * smaller, the other threads of the process have to wait too.
 */
#define UNWAITED_BYTES_MAX (16 * 1024)
/* Minimum size for which the worker adds a missing Content-Length; for smaller bodies the server adds it. */
#define LENGTH_FROM_BYTES (32 * 1024)
/* The abort reason that is sent to the server if the application fails. */
#define APPLICATION_FAILED 16
/* The abort reason if the application ends the worker. */
#define WORKER_ENDED 17

/* komainu.Gone: the request was cancelled. */
extern PyObject *gone_class;
/* Set in a process that the application has forked from a worker: seats and requests belong to its parent. */
extern int is_copy;
/* Set by leave(): the worker accepts no more requests. */
extern int leaving;

/* A seat: one for each thread, or one for an event loop. */
typedef struct {
    PyObject_HEAD
    komainu_worker *worker; /* NULL after it was released */
} Seat;

static inline PyObject *known(PyObject *object) {
    Py_INCREF(object);
    return object;
}

/* ---- native.c ---- */

/* Raises Gone or an OSError if the code is an error: returns -1 then. */
int check(int64_t code);
/* Creates a type that lives as long as the process. */
PyTypeObject *make_type(PyObject *module, const char *name, PyType_Spec *spec);
/* Returns an interned string that lives as long as the process. */
PyObject *intern(const char *text);

/* ---- text.c ---- */

PyObject *latin1(const char *bytes, size_t len);
PyObject *field_text(const komainu_field *field);
/* Longer values are not cached. */
#define KEPT_BYTES_MAX 256
/* Whether a field is a secret of one client, and must not be cached for the next request. */
int is_secret(unsigned id);
/* Like field_text; if a well-known field has the same value as in the last request, the same string is returned. */
PyObject *field_text_kept(const komainu_field *field);
int field_is(const komainu_field *field, const char *text);

/* Resizes bytes that have only one reference; the first `used` are kept. -1 with an exception, and `*bytes` is NULL. */
int bytes_resize(PyObject **bytes, Py_ssize_t used, Py_ssize_t size);

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

/* ---- input.c ---- */

int input_init(PyObject *module);
PyObject *input_new(komainu_request *request);
/* Ends the request: reading raises an exception from now on. */
void input_close(PyObject *input);
/* Reads some of a body into a buffer of `size` bytes, and waits without the interpreter's lock. -1 with an exception. */
Py_ssize_t body_read(komainu_request *request, char *into, Py_ssize_t size);

/* ---- wsgi.c, asgi.c ---- */

int wsgi_init(PyObject *module);
/* seat.serve(application): runs until the worker must exit. */
PyObject *wsgi_serve(Seat *seat, PyObject *app);
/* prepare_wsgi(constants of environ, FileWrapper, file_part, failed) */
PyObject *wsgi_prepare(PyObject *module, PyObject *arguments);

int asgi_init(PyObject *module);
/* seat.claim(most) -> a list of calls, or None if the worker must exit. */
PyObject *asgi_claim(Seat *seat, PyObject *most);
PyObject *asgi_prepare(PyObject *module, PyObject *arguments);

#endif

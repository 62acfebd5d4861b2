/*
 * The Python worker's native half, which is what every request passes through. What is not on that path is in Python.
 *
 *     native.c  the module, seats, the life of the process
 *     text.c    between bytes and strings, and heads
 *     input.c   wsgi.input
 *     wsgi.c    a request's environ, an application's answer
 *     asgi.c    a request's receive and send; asgi.h names what else belongs to ASGI
 *
 * Within the limited API of Python 3.9, so that one build serves every later interpreter. A free-threaded interpreter has
 * no limited API: there it is built for that one, with KOMAINU_WHOLE_API.
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
/* In every interpreter since 3.3, and promised to stay since 3.10. */
extern const char *PyUnicode_AsUTF8AndSize(PyObject *text, Py_ssize_t *len);
#endif

/*
 * So much of an answer fits into its slot, so that writing it cannot wait. Should the channel have been made smaller, the
 * other threads of the process wait too, no more.
 */
#define UNWAITED_BYTES_MAX (16 * 1024)
/* Of a body of this size the length is told, unless the application did; of a smaller one the server sees it. */
#define LENGTH_FROM_BYTES (32 * 1024)
/* Why a request was given up, for the server. */
#define APPLICATION_FAILED 16

/* komainu.Gone: nobody waits for the answer any more. */
extern PyObject *gone_class;
/* Set in a process that the application has forked from a worker: the seats and requests are its parent's. */
extern int is_copy;
/* Set by leave(): no more requests. */
extern int leaving;

/* A seat: one for each thread, or one for an event loop. */
typedef struct {
    PyObject_HEAD
    komainu_worker *worker; /* NULL once it is given up */
} Seat;

static inline PyObject *known(PyObject *object) {
    Py_INCREF(object);
    return object;
}

/* ---- native.c ---- */

/* Raises Gone or an OSError if the code is none of the good ones: -1 then. */
int check(int64_t code);
/* Makes a type, keeping it for the process's life. */
PyTypeObject *make_type(PyObject *module, const char *name, PyType_Spec *spec);
/* The string, interned, for the process's life. */
PyObject *intern(const char *text);

/* ---- text.c ---- */

PyObject *latin1(const char *bytes, size_t len);
PyObject *field_text(const komainu_field *field);
/* A longer value is made anew each time. */
#define KEPT_BYTES_MAX 256
/* Whether a field is one client's secret, and so not kept for the next request. */
int is_secret(unsigned id);
/* As field_text; a value that a well-known field had in the request before is the same string. */
PyObject *field_text_kept(const komainu_field *field);
int field_is(const komainu_field *field, const char *text);

/* Makes bytes that nobody else has seen longer or shorter; `used` of them are kept. -1 with an exception, and NULL. */
int bytes_resize(PyObject **bytes, Py_ssize_t used, Py_ssize_t size);

/* Most fields that need no memory of their own, and kept strings. */
#define FIELDS_INLINE 48

/* A head as it is filled. Its texts live as long as the objects it was filled from, and `kept`. */
struct head {
    komainu_field fields[FIELDS_INLINE];
    komainu_field *at;
    size_t count, room;
    PyObject *kept; /* what had to be made for it, or NULL */
    int64_t length; /* what Content-Length says, or -1 */
};

void head_begin(struct head *head);
void head_end(struct head *head);
/* A field of bytes that outlive the head. -1 with an exception. */
int head_add(struct head *head, const char *name, size_t name_len, const char *value, size_t value_len);
/* The bytes of an object: a str of ISO 8859-1 (or, with `bytes`, bytes). -1 with an exception. */
int head_text(struct head *head, PyObject *object, int bytes, const char **text, size_t *len);
/* A name and a value, of such objects. */
int head_pair(struct head *head, PyObject *name, PyObject *value, int bytes);

/* ---- input.c ---- */

int input_init(PyObject *module);
PyObject *input_new(komainu_request *request);
/* The request is over: from now on reading raises. */
void input_close(PyObject *input);
/* Reads some of a body into a place of `size` bytes, waiting without the interpreter's lock. -1 with an exception. */
Py_ssize_t body_read(komainu_request *request, char *into, Py_ssize_t size);

/* ---- wsgi.c, asgi.c ---- */

int wsgi_init(PyObject *module);
/* seat.serve(application): until the worker is to leave. */
PyObject *wsgi_serve(Seat *seat, PyObject *app);
/* prepare_wsgi(constants of environ, FileWrapper, file_part, failed) */
PyObject *wsgi_prepare(PyObject *module, PyObject *arguments);

int asgi_init(PyObject *module);
/* seat.claim(most) -> a list of calls, or None where the worker is to leave. */
PyObject *asgi_claim(Seat *seat, PyObject *most);
PyObject *asgi_prepare(PyObject *module, PyObject *arguments);

#endif

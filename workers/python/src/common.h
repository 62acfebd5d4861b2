/* Declarations that every file of the Python worker uses, and the interpreter's API. */
#ifndef KOMAINU_COMMON_H
#define KOMAINU_COMMON_H

/*
 * Only the limited API of Python 3.9, so that one build works with every later interpreter. Free-threaded interpreters
 * have no limited API: for each, build with KOMAINU_WHOLE_API.
 */
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

/* Returns a new reference to the object. */
static inline PyObject *new_ref(PyObject *object) {
    Py_INCREF(object);
    return object;
}

/* Raises Gone or an OSError if the code is an error: returns -1 then. */
int check(int64_t code);
/* Creates a type that lives as long as the process. */
PyTypeObject *make_type(PyObject *module, const char *name, PyType_Spec *spec);
/* Returns an interned string that lives as long as the process. */
PyObject *intern(const char *text);
/* Resizes bytes that have only one reference; the first `used` are kept. -1 with an exception, and `*bytes` is NULL. */
int bytes_resize(PyObject **bytes, Py_ssize_t used, Py_ssize_t size);

#endif

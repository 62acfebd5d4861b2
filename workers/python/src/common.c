/* State of the process, errors of the channel, and objects that live as long as the process. */
#include "common.h"

#include <string.h>

PyObject *gone_class;
int is_copy, leaving;

int check(int64_t code) {
    if (code >= 0)
        return 0;
    if (code == KOMAINU_CANCELLED)
        PyErr_SetString(gone_class, "nobody waits for this answer any more");
    else
        PyErr_SetString(PyExc_OSError, komainu_error((int)code));
    return -1;
}

PyObject *intern(const char *text) { return PyUnicode_InternFromString(text); }

PyTypeObject *make_type(PyObject *module, const char *name, PyType_Spec *spec) {
    PyObject *type = PyType_FromSpec(spec);
    if (!type)
        return NULL;
    Py_INCREF(type);
    if (PyModule_AddObject(module, name, type) != 0)
        return NULL;
    return (PyTypeObject *)type;
}


int bytes_resize(PyObject **bytes, Py_ssize_t used, Py_ssize_t size) {
    PyObject *before = *bytes;
    *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (*bytes)
        memcpy(PyBytes_AsString(*bytes), PyBytes_AsString(before), (size_t)used);
    Py_DECREF(before);
    return *bytes ? 0 : -1;
}

/* environ of PEP 3333. */
#ifndef KOMAINU_WSGI_ENVIRON_H
#define KOMAINU_WSGI_ENVIRON_H

#include "common.h"

int environ_init(void);
/* Sets the constant entries of every environ, from the Python half. */
int environ_prepare(PyObject *constants);
/* Creates the environ of a request. `*input` is set to its wsgi.input, or to NULL if the request has no body. */
PyObject *environ_new(komainu_request *request, PyObject **input);

#endif

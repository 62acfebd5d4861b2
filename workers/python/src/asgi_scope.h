/* scope of ASGI. */
#ifndef KOMAINU_ASGI_SCOPE_H
#define KOMAINU_ASGI_SCOPE_H

#include "asgi_call.h"

int scope_init(void);
/* Sets the constant entries of every scope, its state, and the extensions of HTTP and of WebSockets. */
int scope_prepare(PyObject *constants, PyObject *state, PyObject *http, PyObject *socket);
/* Creates the scope of a call, and sets the fields of the call that depend on the request's head. */
PyObject *scope_new(Call *call);

#endif

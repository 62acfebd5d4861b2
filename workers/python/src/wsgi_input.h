/* wsgi.input: a request's body as a file. */
#ifndef KOMAINU_WSGI_INPUT_H
#define KOMAINU_WSGI_INPUT_H

#include "common.h"

int input_init(PyObject *module);
/* Creates the input of a request; an empty one if it is NULL. */
PyObject *input_new(komainu_request *request);
/* Ends the request: reading raises an exception from now on. */
void input_close(PyObject *input);

#endif

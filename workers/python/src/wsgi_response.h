/* start_response of PEP 3333, and the response that an application sends. */
#ifndef KOMAINU_WSGI_RESPONSE_H
#define KOMAINU_WSGI_RESPONSE_H

#include "common.h"

/* The start_response callable of one request. */
typedef struct response Response;

int response_init(PyObject *module);
/* Sets the class wsgi.file_wrapper, and the function that finds the file in an object of it. */
void response_prepare(PyObject *wrapper, PyObject *part);
Response *response_new(komainu_request *request);
/* Sends the iterable that the application returned. Returns -1 with an exception. */
int response_write(Response *self, PyObject *body);
/* Ends the request after its whole response. */
void response_end(Response *self);
/* Ends the request of an application that failed, or that ends its worker. */
void response_fail(Response *self, int ends_worker);
/* Releases the reference, and what start_response was called with; the application may keep the callable. */
void response_release(Response *self);

#endif

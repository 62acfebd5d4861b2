/* ASGI 3. */
#ifndef KOMAINU_ASGI_H
#define KOMAINU_ASGI_H

#include "common.h"

int asgi_init(PyObject *module);
/* seat.claim(most) -> the number of requests claimed, or None if the worker must exit */
PyObject *asgi_claim(komainu_worker *worker, PyObject *most);
/* prepare_asgi(constants of scopes, state, extensions of HTTP, of WebSockets, begin, wait_to_receive, wait_to_send) */
PyObject *asgi_prepare(PyObject *module, PyObject *arguments);

#endif

/* WSGI (PEP 3333). */
#ifndef KOMAINU_WSGI_H
#define KOMAINU_WSGI_H

#include "common.h"

int wsgi_init(PyObject *module);
/* Answers requests until the worker must exit; then detaches `*seat` and sets it to NULL. */
PyObject *wsgi_serve(komainu_worker **seat, PyObject *app);
/* prepare_wsgi(constants of environ, FileWrapper, file_part, failed) */
PyObject *wsgi_prepare(PyObject *module, PyObject *arguments);

#endif

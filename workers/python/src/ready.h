/* An awaitable whose value is ready. */
#ifndef KOMAINU_READY_H
#define KOMAINU_READY_H

#include "common.h"

/* An awaitable whose value is None. */
extern PyObject *done_ready;

int ready_init(PyObject *module);
/* Steals the reference to the value; NULL if the value is NULL. */
PyObject *ready_new(PyObject *value);

#endif

/* receive of ASGI. */
#ifndef KOMAINU_ASGI_RECEIVE_H
#define KOMAINU_ASGI_RECEIVE_H

#include "asgi_call.h"

int receive_init(void);
/* Sets the function of the Python half that waits for the next event of a call. */
void receive_prepare(PyObject *wait);
/* receive() */
PyObject *call_receive(Call *self, PyObject *unused);
/* take() -> the next event, or None if there is none yet */
PyObject *call_take(Call *self, PyObject *unused);

#endif

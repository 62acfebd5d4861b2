/* send of ASGI. */
#ifndef KOMAINU_ASGI_SEND_H
#define KOMAINU_ASGI_SEND_H

#include "asgi_call.h"
#include "head.h"

int send_init(void);
/* Sets the function of the Python half that waits until a message is sent. */
void send_prepare(PyObject *wait);
/* Adds fields from an iterable of pairs. */
int fill_head(struct head *head, PyObject *headers);
/* Writes the rest of a piece as far as possible. Returns 1 if some of it is still left. */
int send_rest(Call *self);
/* send(message) */
PyObject *call_send(Call *self, PyObject *message);
/* push() -> whether some of the message is still left, after sending as much as possible */
PyObject *call_push(Call *self, PyObject *unused);

#endif

/* The messages of a WebSocket. */
#ifndef KOMAINU_ASGI_WEBSOCKET_H
#define KOMAINU_ASGI_WEBSOCKET_H

#include "asgi_call.h"

/* take_record() -> (kind, str or bytes or code, reason), or None if there is none yet. */
PyObject *call_take_record(Call *self, PyObject *unused);
/* put_record(kind, bytes) -> whether some of it is left for push() */
PyObject *call_put_record(Call *self, PyObject *arguments);
/* accept(subprotocol or None, headers) */
PyObject *call_accept(Call *self, PyObject *arguments);

#endif

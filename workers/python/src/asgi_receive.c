/* receive of ASGI: pieces of the request's body, and http.disconnect. */
#include "asgi_receive.h"
#include "ready.h"

/* Maximum number of body bytes passed to the application at once. */
#define PIECE_BYTES (64 * 1024)

static PyObject *request_type, *disconnect;
/* The function of the Python half that waits for the next event of a call. */
static PyObject *wait_to_receive;

static PyObject *request_event(PyObject *body, int more) {
    PyObject *event = body ? PyDict_New() : NULL;
    if (!event || PyDict_SetItem(event, keys[TYPE], request_type) != 0 ||
        PyDict_SetItem(event, keys[BODY], body) != 0 ||
        PyDict_SetItem(event, keys[MORE_BODY], more ? Py_True : Py_False) != 0)
        Py_CLEAR(event);
    Py_XDECREF(body);
    return event;
}

/* Returns the next piece of the body as an event; NULL without an exception if there is none yet. */
static PyObject *receive_body(Call *self) {
    Py_ssize_t room = self->left >= 0 && self->left < PIECE_BYTES ? (Py_ssize_t)self->left : PIECE_BYTES, len = 0;
    PyObject *body = PyBytes_FromStringAndSize(NULL, room);
    int64_t got = KOMAINU_OK;
    if (!body)
        return NULL;
    while (len < room) {
        got = komainu_try_read(self->request, PyBytes_AsString(body) + len, (size_t)(room - len));
        if (got <= 0)
            break;
        len += (Py_ssize_t)got;
    }
    self->disconnected |= got == KOMAINU_CANCELLED;
    if (got == KOMAINU_CANCELLED || (got < 0 && got != KOMAINU_AGAIN && check(got) != 0)) {
        Py_DECREF(body);
        return got == KOMAINU_CANCELLED ? PyDict_Copy(disconnect) : NULL;
    }
    if (len == 0 && got == KOMAINU_AGAIN) {
        Py_DECREF(body);
        return NULL;
    }
    if (self->left >= 0)
        self->left -= len;
    self->body_ended = self->end_sent = got == 0 || self->left == 0;
    if (len < room && bytes_resize(&body, len, len) != 0)
        return NULL;
    return request_event(body, !self->body_ended);
}

/* Returns the next event; NULL without an exception if there is none yet. */
static PyObject *next_event(Call *self) {
    if (!self->request || is_copy)
        return PyDict_Copy(disconnect);
    if (!self->body_ended)
        return receive_body(self);
    if (!self->end_sent) {
        self->end_sent = 1;
        return request_event(new_ref(empty_bytes), 0);
    }
    if (!(komainu_news(self->request) & CLIENT_LEFT))
        return NULL;
    self->disconnected = 1;
    return PyDict_Copy(disconnect);
}

PyObject *call_receive(Call *self, PyObject *unused) {
    PyObject *event = next_event(self);
    (void)unused;
    if (event)
        return ready_new(event);
    if (PyErr_Occurred())
        return NULL;
    return PyObject_CallFunctionObjArgs(wait_to_receive, (PyObject *)self, NULL);
}

PyObject *call_take(Call *self, PyObject *unused) {
    PyObject *event = next_event(self);
    (void)unused;
    return event || PyErr_Occurred() ? event : new_ref(Py_None);
}

void receive_prepare(PyObject *wait) { wait_to_receive = new_ref(wait); }

int receive_init(void) {
    request_type = intern("http.request");
    disconnect = Py_BuildValue("{ss}", "type", "http.disconnect");
    return request_type && disconnect ? 0 : -1;
}

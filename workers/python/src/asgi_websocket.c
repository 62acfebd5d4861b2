/* The messages of a WebSocket, as records of the server: komainu.h describes their format. */
#include "asgi_websocket.h"
#include "asgi_send.h"

#include <string.h>

/* Close code if the client disconnected without a close. */
#define VANISHED 1006

/* Reads into a buffer. Returns 1 if it is full, 0 if more bytes must arrive, -1 if none will. */
static int read_full(Call *self, char *into, Py_ssize_t *len, Py_ssize_t size) {
    while (*len < size) {
        int64_t got = komainu_try_read(self->request, into + *len, (size_t)(size - *len));
        if (got <= 0)
            return got == KOMAINU_AGAIN ? 0 : -1;
        *len += (Py_ssize_t)got;
    }
    return 1;
}

static Py_ssize_t payload_len(const Call *self) {
    const unsigned char *head = self->record_head;
    return (Py_ssize_t)(head[1] | (uint32_t)head[2] << 8 | (uint32_t)head[3] << 16 | (uint32_t)head[4] << 24);
}

/* Reads the available bytes of a record. Returns the same values as `fill`; -1 also with an exception. */
static int read_record(Call *self) {
    Py_ssize_t len = self->record_head_len;
    int state = read_full(self, (char *)self->record_head, &len, RECORD_HEAD_BYTES);
    self->record_head_len = (int)len;
    if (state != 1)
        return state;
    if (!self->record) {
        self->record_len = 0;
        if (!(self->record = PyBytes_FromStringAndSize(NULL, payload_len(self))))
            return -1;
    }
    return read_full(self, PyBytes_AsString(self->record), &self->record_len, payload_len(self));
}

PyObject *call_take_record(Call *self, PyObject *unused) {
    int state = self->request && !is_copy ? read_record(self) : -1;
    PyObject *record = self->record, *message;
    const unsigned char *bytes;
    (void)unused;
    if (PyErr_Occurred())
        return NULL;
    if (state == 0)
        return new_ref(Py_None);
    if (state < 0)
        return Py_BuildValue("(iis)", KOMAINU_CLOSE, VANISHED, "");
    self->record = NULL;
    self->record_head_len = 0;
    bytes = (const unsigned char *)PyBytes_AsString(record);
    if (self->record_head[0] == KOMAINU_TEXT)
        message = Py_BuildValue("(is#O)", KOMAINU_TEXT, bytes, self->record_len, Py_None);
    else if (self->record_head[0] == KOMAINU_CLOSE && self->record_len >= 2)
        message = Py_BuildValue("(iis#)", KOMAINU_CLOSE, bytes[0] | bytes[1] << 8, bytes + 2, self->record_len - 2);
    else
        message = Py_BuildValue("(iOO)", KOMAINU_BINARY, record, Py_None);
    Py_DECREF(record);
    return message;
}

PyObject *call_put_record(Call *self, PyObject *arguments) {
    const char *payload;
    char *record;
    Py_ssize_t len;
    int kind, left, at;
    if (!PyArg_ParseTuple(arguments, "iy#", &kind, &payload, &len))
        return NULL;
    if (!self->request || is_copy) {
        check(KOMAINU_CANCELLED);
        return NULL;
    }
    if (self->rest || len > INT32_MAX) {
        PyErr_SetString(PyExc_RuntimeError,
                        self->rest ? "the send before this one has not ended" : "a message too long");
        return NULL;
    }
    if (!(self->rest = PyBytes_FromStringAndSize(NULL, RECORD_HEAD_BYTES + len)))
        return NULL;
    record = PyBytes_AsString(self->rest);
    record[0] = (char)kind;
    for (at = 0; at < 4; at++)
        record[1 + at] = (char)((uint32_t)len >> (8 * at));
    memcpy(record + RECORD_HEAD_BYTES, payload, (size_t)len);
    self->rest_at = 0;
    self->rest_last = kind == KOMAINU_CLOSE;
    left = send_rest(self);
    return left < 0 ? NULL : PyBool_FromLong(left);
}

PyObject *call_accept(Call *self, PyObject *arguments) {
    struct head head;
    PyObject *protocol, *headers;
    const char *text;
    size_t len;
    int failed = 0;
    if (!PyArg_ParseTuple(arguments, "OO", &protocol, &headers))
        return NULL;
    if (!self->request || is_copy) {
        check(KOMAINU_CANCELLED);
        return NULL;
    }
    head_begin(&head);
    if (protocol != Py_None)
        failed = head_text(&head, protocol, 0, &text, &len) != 0 ||
                 head_add(&head, "sec-websocket-protocol", 22, text, len) != 0;
    failed = failed || fill_head(&head, headers) != 0 ||
             check(komainu_try_head(self->request, 101, head.at, head.count)) != 0;
    head_end(&head);
    if (failed)
        return NULL;
    self->stage = HEAD_WRITTEN;
    komainu_flush(self->request);
    return new_ref(Py_None);
}

/* ASGI 3: a call, from its claim to its end. None of the native functions waits; only the Python half does. */
#include "asgi.h"
#include "asgi_call.h"
#include "asgi_receive.h"
#include "asgi_scope.h"
#include "asgi_send.h"
#include "asgi_websocket.h"
#include "ready.h"

static PyTypeObject *call_type;
/* The function of the Python half that starts the application's task. */
static PyObject *start_task;

/* Adds a future that waits in receive. */
static PyObject *call_read_by(Call *self, PyObject *future) { return add_waiter(&self->readers, future); }

/* Adds a future that waits in send. */
static PyObject *call_written_by(Call *self, PyObject *future) { return add_waiter(&self->writers, future); }

/* Wakes the waiters that can continue. Returns whether there are others. */
static PyObject *call_look(Call *self, PyObject *unused) {
    (void)unused;
    if (self->request && !is_copy) {
        uint32_t news = komainu_news(self->request);
        int reads = news & CLIENT_LEFT || (news & KOMAINU_READABLE && !self->body_ended);
        if (reads && wake_waiters(&self->readers) != 0)
            return NULL;
        if (news & (KOMAINU_WRITABLE | KOMAINU_GONE) && wake_waiters(&self->writers) != 0)
            return NULL;
    } else if (wake_waiters(&self->readers) != 0 || wake_waiters(&self->writers) != 0) {
        return NULL;
    }
    return PyBool_FromLong(self->readers || self->writers);
}

/* Wakes the waiters in receive. */
static PyObject *call_wake(Call *self, PyObject *unused) {
    (void)unused;
    return wake_waiters(&self->readers) == 0 ? new_ref(Py_None) : NULL;
}

/* Returns the server's reason for cancelling the request, or 0. */
static PyObject *call_cancelled(Call *self, PyObject *unused) {
    (void)unused;
    return PyLong_FromLong(self->request && !is_copy ? (long)komainu_cancelled(self->request) : 0);
}

/* Returns whether the application was notified that its client has disconnected. */
static PyObject *call_knows_end(Call *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(self->disconnected);
}

/* Ends a call whose application has returned. Returns whether its response was complete or cancelled. */
static PyObject *finish_call(Call *self, int ends_worker) {
    static const char text[] = "Internal Server Error\n";
    static const komainu_field field = {"content-type", "text/plain", 12, 10, 0};
    komainu_request *request = self->request;
    int whole = !request || self->disconnected || komainu_cancelled(request) != 0;
    self->request = NULL;
    /* A process that the application has forked from this worker ends here. */
    if (request && is_copy)
        komainu_end(request);
    if (request) {
        /* There may be no room if the client has not read earlier output. */
        if (!ends_worker && self->stage == NO_HEAD && !self->disconnected &&
            komainu_try_head(request, 500, &field, 1) == KOMAINU_OK) {
            komainu_try_write_later(request, text, sizeof text - 1);
            komainu_end(request);
        } else {
            komainu_abort(request, ends_worker ? WORKER_ENDED : APPLICATION_FAILED);
        }
    }
    self->stage = OVER;
    Py_CLEAR(self->rest);
    Py_CLEAR(self->again);
    if (wake_waiters(&self->readers) != 0 || wake_waiters(&self->writers) != 0)
        return NULL;
    return PyBool_FromLong(whole);
}

static PyObject *call_finish(Call *self, PyObject *unused) {
    (void)unused;
    return finish_call(self, 0);
}

/* Ends a call whose application ends its worker. */
static PyObject *call_end_worker(Call *self, PyObject *unused) {
    (void)unused;
    return finish_call(self, 1);
}

static int begin_call(komainu_request *request) {
    PyObject *scope, *task;
    Call *call = PyObject_New(Call, call_type);
    if (!call) {
        komainu_abort(request, APPLICATION_FAILED);
        return -1;
    }
    call->request = request;
    call->stage = NO_HEAD;
    call->trailers = call->end_sent = call->disconnected = 0;
    call->left = 0;
    call->rest = call->again = call->readers = call->writers = call->record = NULL;
    call->record_head_len = 0;
    call->is_socket = 0;
    scope = scope_new(call);
    if (call->is_socket) {
        call->body_ended = 0;
        call->left = -1;
    }
    task = scope ? PyObject_CallFunctionObjArgs(start_task, scope, (PyObject *)call, NULL) : NULL;
    Py_XDECREF(scope);
    Py_XDECREF(task);
    Py_DECREF(call);
    return task ? 0 : -1;
}

PyObject *asgi_claim(komainu_worker *worker, PyObject *most) {
    long room = PyLong_AsLong(most), at;
    if (room == -1 && PyErr_Occurred())
        return NULL;
    for (at = 0; at < room; at++) {
        komainu_request *request;
        int code = komainu_next(worker, 0, &request);
        if (code == KOMAINU_RETIRED && at == 0)
            return new_ref(Py_None);
        if (code != KOMAINU_OK)
            break;
        if (begin_call(request) != 0)
            return NULL;
    }
    return PyLong_FromLong(at);
}

static void call_dealloc(Call *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (self->request && !is_copy)
        komainu_abort(self->request, APPLICATION_FAILED);
    Py_XDECREF(self->rest);
    Py_XDECREF(self->again);
    Py_XDECREF(self->record);
    Py_XDECREF(self->readers);
    Py_XDECREF(self->writers);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef call_methods[] = {
    {"receive", (PyCFunction)call_receive, METH_NOARGS, "The next event."},
    {"send", (PyCFunction)call_send, METH_O, "Sends a message."},
    {"accept", (PyCFunction)call_accept, METH_VARARGS, "Accepts a WebSocket."},
    {"take_record", (PyCFunction)call_take_record, METH_NOARGS, "A WebSocket's next message, or None."},
    {"put_record", (PyCFunction)call_put_record, METH_VARARGS, "Sends a message; whether some of it is left to push."},
    {"take", (PyCFunction)call_take, METH_NOARGS, "The next event, or None if there is none yet."},
    {"push", (PyCFunction)call_push, METH_NOARGS, "Sends what is left of a message; whether some of it is still left."},
    {"read_by", (PyCFunction)call_read_by, METH_O, "Adds a future that waits in receive."},
    {"written_by", (PyCFunction)call_written_by, METH_O, "Adds a future that waits in send."},
    {"look", (PyCFunction)call_look, METH_NOARGS, "Wakes the futures whose wait is over; whether others still wait."},
    {"wake", (PyCFunction)call_wake, METH_NOARGS, "Wakes the futures that wait in receive."},
    {"cancelled", (PyCFunction)call_cancelled, METH_NOARGS, "Why the server cancelled the request, or 0."},
    {"knows_end", (PyCFunction)call_knows_end, METH_NOARGS, "Whether the application knows that its client has left."},
    {"finish", (PyCFunction)call_finish, METH_NOARGS,
     "The application has returned; whether its response was complete."},
    {"end_worker", (PyCFunction)call_end_worker, METH_NOARGS, "As finish, if the application ends its worker."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot call_slots[] = {{Py_tp_dealloc, call_dealloc}, {Py_tp_methods, call_methods}, {0, NULL}};

static PyType_Spec call_spec = {"komainu.Call", sizeof(Call), 0, Py_TPFLAGS_DEFAULT, call_slots};

PyObject *asgi_prepare(PyObject *module, PyObject *arguments) {
    PyObject *constants, *state, *http, *socket, *receive, *send;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!O!O!OOO", &PyDict_Type, &constants, &PyDict_Type, &state, &PyDict_Type, &http,
                          &PyDict_Type, &socket, &start_task, &receive, &send))
        return NULL;
    Py_INCREF(start_task);
    receive_prepare(receive);
    send_prepare(send);
    return scope_prepare(constants, state, http, socket) == 0 ? new_ref(Py_None) : NULL;
}

int asgi_init(PyObject *module) {
    if (call_init() != 0 || scope_init() != 0 || ready_init(module) != 0 || receive_init() != 0 || send_init() != 0)
        return -1;
    return (call_type = make_type(module, "Call", &call_spec)) ? 0 : -1;
}

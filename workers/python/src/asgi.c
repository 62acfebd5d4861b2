/* ASGI 3, HTTP: receive and send, and a call from its claim to its end. */
#include "asgi.h"

#include <string.h>

/* Maximum number of body bytes passed to the application at once. */
#define PIECE_BYTES (64 * 1024)
/* Bits of komainu_news that cause http.disconnect. A client that closed its sending side still gets the response. */
#define CLIENT_LEFT (KOMAINU_GONE | KOMAINU_CLIENT_CLOSED)

static const char *const key_texts[KEYS] = {
    "type",    "http_version", "method", "scheme", "path",       "raw_path", "query_string", "root_path", "headers",
    "client",  "server",       "state",  "extensions", "body",   "more_body", "status",      "trailers",  "more_trailers",
    "links",   "subprotocols", "komainu.target",
};

static PyTypeObject *call_type;
PyObject *keys[KEYS];
PyObject *empty_bytes;
static PyObject *request_type, *disconnect;
static PyObject *start_type, *body_type, *trailers_type, *hint_type;
static PyObject *set_result_text, *done_text;
/* The Python half. */
static PyObject *begin, *wait_to_receive, *wait_to_send;

/* ---- receive ---- */

/* Wakes a waiter unless it was cancelled. */
static int wake_one(PyObject *future) {
    PyObject *answer = PyObject_CallMethodObjArgs(future, done_text, NULL);
    int done = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (done != 0)
        return done < 0 ? -1 : 0;
    answer = PyObject_CallMethodObjArgs(future, set_result_text, Py_None, NULL);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

static int wake(PyObject **waiters) {
    PyObject *futures = *waiters;
    Py_ssize_t at;
    int failed = 0;
    *waiters = NULL;
    for (at = 0; futures && !failed && at < PyList_Size(futures); at++)
        failed = wake_one(PyList_GetItem(futures, at));
    Py_XDECREF(futures);
    return failed;
}

static PyObject *wait_in(PyObject **waiters, PyObject *future) {
    if ((!*waiters && !(*waiters = PyList_New(0))) || PyList_Append(*waiters, future) != 0)
        return NULL;
    return known(Py_None);
}

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
        return request_event(known(empty_bytes), 0);
    }
    if (!(komainu_news(self->request) & CLIENT_LEFT))
        return NULL;
    self->disconnected = 1;
    return PyDict_Copy(disconnect);
}

/* receive() */
static PyObject *call_receive(Call *self, PyObject *unused) {
    PyObject *event = next_event(self);
    (void)unused;
    if (event)
        return ready_new(event);
    if (PyErr_Occurred())
        return NULL;
    return PyObject_CallFunctionObjArgs(wait_to_receive, (PyObject *)self, NULL);
}

/* For the Python half: returns the next event, or None. */
static PyObject *call_take(Call *self, PyObject *unused) {
    PyObject *event = next_event(self);
    (void)unused;
    return event || PyErr_Occurred() ? event : known(Py_None);
}

/* ---- send ---- */

int call_end(Call *self) {
    komainu_request *request = self->request;
    self->request = NULL;
    self->stage = OVER;
    if (request)
        komainu_end(request);
    return wake(&self->readers);
}

static int out_of_order(PyObject *type) {
    PyErr_Format(PyExc_RuntimeError, "%R cannot be sent in this state", type);
    return -1;
}

int fill_head(struct head *head, PyObject *headers) {
    PyObject *pairs = PyObject_GetIter(headers), *pair;
    int failed = pairs ? 0 : -1;
    while (!failed && (pair = PyIter_Next(pairs))) {
        PyObject *name = PySequence_GetItem(pair, 0), *value = name ? PySequence_GetItem(pair, 1) : NULL;
        /* The headers keep the pair alive, and the pair its texts; other texts are kept here. */
        failed = !value || head_pair(head, name, value, 1) != 0;
        if (!failed && (!head->kept && !(head->kept = PyList_New(0))))
            failed = -1;
        if (!failed && !PyTuple_Check(pair) && !PyList_Check(pair))
            failed = PyList_Append(head->kept, name) != 0 || PyList_Append(head->kept, value) != 0;
        Py_XDECREF(name);
        Py_XDECREF(value);
        Py_DECREF(pair);
    }
    Py_XDECREF(pairs);
    return failed || PyErr_Occurred() ? -1 : 0;
}

static int send_start(Call *self, PyObject *message) {
    PyObject *status = PyDict_GetItemWithError(message, keys[STATUS]);
    PyObject *headers = PyDict_GetItemWithError(message, keys[HEADERS]);
    PyObject *trailers = PyDict_GetItemWithError(message, keys[TRAILERS]);
    struct head head;
    long number;
    int failed, code = KOMAINU_OK;
    if (!status) {
        PyErr_SetString(PyExc_KeyError, "status");
        return -1;
    }
    number = PyLong_AsLong(status);
    if (number == -1 && PyErr_Occurred())
        return -1;
    if (number < 200 || number > 999) {
        PyErr_Format(PyExc_ValueError, "a response cannot have the status %ld", number);
        return -1;
    }
    head_begin(&head);
    failed = headers && fill_head(&head, headers) != 0;
    if (!failed)
        code = komainu_try_head(self->request, (uint16_t)number, head.at, head.count);
    head_end(&head);
    if (code == KOMAINU_AGAIN)
        return 1;
    failed = failed || check(code) != 0;
    self->trailers = trailers ? PyObject_IsTrue(trailers) : 0;
    self->stage = HEAD_WRITTEN;
    return failed ? -1 : 0;
}

static int send_hint(Call *self, PyObject *message) {
    PyObject *links = PyDict_GetItemWithError(message, keys[LINKS]), *each, *link;
    struct head head;
    int failed = 0, code = KOMAINU_OK;
    if (!links || !(each = PyObject_GetIter(links)))
        return -1;
    head_begin(&head);
    while (!failed && (link = PyIter_Next(each))) {
        const char *text;
        size_t len;
        if (!head.kept)
            head.kept = PyList_New(0);
        failed = !head.kept || PyList_Append(head.kept, link) != 0 || head_text(&head, link, 1, &text, &len) != 0 ||
                 head_add(&head, "link", 4, text, len) != 0;
        Py_DECREF(link);
    }
    Py_DECREF(each);
    failed = failed || PyErr_Occurred();
    if (!failed)
        code = komainu_try_head(self->request, 103, head.at, head.count);
    head_end(&head);
    if (code == KOMAINU_AGAIN)
        return 1;
    return failed || check(code) != 0 ? -1 : 0;
}

static int send_trailers(Call *self, PyObject *message) {
    PyObject *headers = PyDict_GetItemWithError(message, keys[HEADERS]);
    PyObject *more = PyDict_GetItemWithError(message, keys[MORE_TRAILERS]);
    struct head head;
    int failed, code = KOMAINU_OK, has_more = more ? PyObject_IsTrue(more) : 0;
    head_begin(&head);
    failed = has_more < 0 || (headers && fill_head(&head, headers) != 0);
    if (!failed)
        code = komainu_try_head(self->request, 0, head.at, head.count);
    head_end(&head);
    if (code == KOMAINU_AGAIN)
        return 1;
    if (failed || check(code) != 0)
        return -1;
    return has_more ? 0 : call_end(self);
}

/* Called when the server has taken the whole last piece of the body. */
static int after_last(Call *self) {
    if (!self->trailers)
        return call_end(self);
    self->stage = BODY_WRITTEN;
    return 0;
}

int send_rest(Call *self) {
    PyObject *rest = self->rest;
    Py_ssize_t len = PyBytes_Size(rest) - self->rest_at;
    int64_t taken = komainu_try_write(self->request, PyBytes_AsString(rest) + self->rest_at, (size_t)len);
    if (taken == KOMAINU_AGAIN)
        return 1;
    if (check(taken) != 0) {
        Py_CLEAR(self->rest);
        return -1;
    }
    self->rest_at += (Py_ssize_t)taken;
    if (taken < len)
        return 1;
    Py_CLEAR(self->rest);
    return self->rest_last ? after_last(self) : 0;
}

/* Sends a piece of the body. Returns 1 if some of it is left. */
static int send_body(Call *self, PyObject *message) {
    PyObject *body = PyDict_GetItemWithError(message, keys[BODY]);
    PyObject *more = PyDict_GetItemWithError(message, keys[MORE_BODY]);
    int last = more ? !PyObject_IsTrue(more) : 1;
    Py_ssize_t len;
    body = body ? PyBytes_Check(body) ? known(body) : PyBytes_FromObject(body) : known(empty_bytes);
    if (!body)
        return -1;
    len = PyBytes_Size(body);
    if (last && len <= UNWAITED_BYTES_MAX) {
        int64_t taken = len ? komainu_try_write_later(self->request, PyBytes_AsString(body), (size_t)len) : 0;
        if (taken == KOMAINU_AGAIN)
            taken = 0;
        if (check(taken) == 0 && taken < len) {
            self->rest = body;
            self->rest_at = (Py_ssize_t)taken;
            self->rest_last = 1;
            return 1;
        }
        Py_DECREF(body);
        return taken < 0 ? -1 : after_last(self);
    }
    if (len == 0) {
        /* An empty piece sends the head. */
        Py_DECREF(body);
        komainu_flush(self->request);
        return 0;
    }
    self->rest = body;
    self->rest_at = 0;
    self->rest_last = last;
    return send_rest(self);
}

static int is_type(PyObject *type, PyObject *text) {
    return type == text || (PyUnicode_Check(type) && PyUnicode_Compare(type, text) == 0);
}

/* Sends a message as far as possible. Returns 1 if some of it is left. */
static int send_message(Call *self, PyObject *message, PyObject *type) {
    if (is_type(type, start_type))
        return self->stage == NO_HEAD ? send_start(self, message) : out_of_order(type);
    if (is_type(type, body_type))
        return self->stage == HEAD_WRITTEN ? send_body(self, message) : out_of_order(type);
    if (is_type(type, trailers_type))
        return self->stage == BODY_WRITTEN ? send_trailers(self, message) : out_of_order(type);
    if (is_type(type, hint_type))
        return self->stage == NO_HEAD ? send_hint(self, message) : out_of_order(type);
    PyErr_Format(PyExc_RuntimeError, "%R is no message that a server knows", type);
    return -1;
}

/* send(message) */
static PyObject *call_send(Call *self, PyObject *message) {
    PyObject *type = PyDict_Check(message) ? PyDict_GetItemWithError(message, keys[TYPE]) : NULL;
    int left;
    if (!type) {
        PyErr_SetString(PyExc_TypeError, "a message is a dict with a type");
        return NULL;
    }
    if (self->stage == OVER) {
        out_of_order(type);
        return NULL;
    }
    if (!self->request || is_copy) {
        check(KOMAINU_CANCELLED);
        return NULL;
    }
    if (self->rest || self->again) {
        PyErr_SetString(PyExc_RuntimeError, "the send before this one has not been awaited");
        return NULL;
    }
    left = send_message(self, message, type);
    if (left < 0) {
        self->disconnected |= self->request && komainu_cancelled(self->request) != 0;
        return NULL;
    }
    if (left == 0)
        return known(done_ready);
    if (!self->rest)
        self->again = known(message);
    return PyObject_CallFunctionObjArgs(wait_to_send, (PyObject *)self, NULL);
}

/* Sends the message that had no room. Returns 1 if some of it is left. */
static int send_again(Call *self) {
    PyObject *message = self->again, *type = PyDict_GetItemWithError(message, keys[TYPE]);
    int left = type ? send_message(self, message, type) : -1;
    if (!type && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a message is a dict with a type");
    if (left <= 0 || self->rest)
        Py_CLEAR(self->again);
    return left;
}

/* For the Python half: sends the rest of a message. Returns whether some of it is still left. */
static PyObject *call_push(Call *self, PyObject *unused) {
    int left;
    (void)unused;
    if ((!self->rest && !self->again) || !self->request || is_copy)
        return known(Py_False);
    left = self->rest ? send_rest(self) : send_again(self);
    return left < 0 ? NULL : PyBool_FromLong(left);
}

/* ---- the call ---- */

/* For the Python half: adds a waiter, which is woken when there is news. */
static PyObject *call_read_by(Call *self, PyObject *future) { return wait_in(&self->readers, future); }

static PyObject *call_written_by(Call *self, PyObject *future) { return wait_in(&self->writers, future); }

/* For the Python half: wakes the waiters that can continue. Returns whether there are others. */
static PyObject *call_look(Call *self, PyObject *unused) {
    (void)unused;
    if (self->request && !is_copy) {
        uint32_t news = komainu_news(self->request);
        int reads = news & CLIENT_LEFT || (news & KOMAINU_READABLE && !self->body_ended);
        if (reads && wake(&self->readers) != 0)
            return NULL;
        if (news & (KOMAINU_WRITABLE | KOMAINU_GONE) && wake(&self->writers) != 0)
            return NULL;
    } else if (wake(&self->readers) != 0 || wake(&self->writers) != 0) {
        return NULL;
    }
    return PyBool_FromLong(self->readers || self->writers);
}

/* For the Python half: wakes the waiters in receive. */
static PyObject *call_wake(Call *self, PyObject *unused) {
    (void)unused;
    return wake(&self->readers) == 0 ? known(Py_None) : NULL;
}

/* For the Python half: returns the server's reason for cancelling the request, or 0. */
static PyObject *call_cancelled(Call *self, PyObject *unused) {
    (void)unused;
    return PyLong_FromLong(self->request && !is_copy ? (long)komainu_cancelled(self->request) : 0);
}

/* For the Python half: returns whether the application was notified that its client has disconnected. */
static PyObject *call_knows_end(Call *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(self->disconnected);
}

/* For the Python half: the application has returned. Returns whether its response was complete or cancelled. */
static PyObject *finish(Call *self, int ends_worker) {
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
    if (wake(&self->readers) != 0 || wake(&self->writers) != 0)
        return NULL;
    return PyBool_FromLong(whole);
}

static PyObject *call_finish(Call *self, PyObject *unused) {
    (void)unused;
    return finish(self, 0);
}

/* For the Python half: the application ends its worker. */
static PyObject *call_end_worker(Call *self, PyObject *unused) {
    (void)unused;
    return finish(self, 1);
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
    task = scope ? PyObject_CallFunctionObjArgs(begin, scope, (PyObject *)call, NULL) : NULL;
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
            return known(Py_None);
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
    {"finish", (PyCFunction)call_finish, METH_NOARGS, "The application has returned; whether its response was complete."},
    {"end_worker", (PyCFunction)call_end_worker, METH_NOARGS, "As finish, if the application ends its worker."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot call_slots[] = {{Py_tp_dealloc, call_dealloc}, {Py_tp_methods, call_methods}, {0, NULL}};

static PyType_Spec call_spec = {"komainu.Call", sizeof(Call), 0, Py_TPFLAGS_DEFAULT, call_slots};

PyObject *asgi_prepare(PyObject *module, PyObject *arguments) {
    PyObject *constants;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!O!O!OOO", &PyDict_Type, &constants, &PyDict_Type, &scope_state, &PyDict_Type,
                          &http_extensions, &PyDict_Type, &socket_extensions, &begin, &wait_to_receive, &wait_to_send))
        return NULL;
    Py_INCREF(scope_state);
    Py_INCREF(http_extensions);
    Py_INCREF(socket_extensions);
    Py_INCREF(begin);
    Py_INCREF(wait_to_receive);
    Py_INCREF(wait_to_send);
    return scope_prepare(constants) == 0 ? known(Py_None) : NULL;
}

int asgi_init(PyObject *module) {
    int at;
    for (at = 0; at < KEYS; at++)
        if (!(keys[at] = intern(key_texts[at])))
            return -1;
    return (empty_bytes = PyBytes_FromStringAndSize("", 0)) && scope_init() == 0 && ready_init(module) == 0 &&
                   (request_type = intern("http.request")) && (start_type = intern("http.response.start")) &&
                   (body_type = intern("http.response.body")) && (trailers_type = intern("http.response.trailers")) &&
                   (hint_type = intern("http.response.early_hint")) && (set_result_text = intern("set_result")) &&
                   (done_text = intern("done")) && (disconnect = Py_BuildValue("{ss}", "type", "http.disconnect")) &&
                   (call_type = make_type(module, "Call", &call_spec))
               ? 0
               : -1;
}

/* send of ASGI: the messages of an HTTP response. */
#include "asgi_send.h"
#include "ready.h"

static PyObject *start_type, *body_type, *trailers_type, *hint_type;
/* The function of the Python half that waits until a message is sent. */
static PyObject *wait_to_send;

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
static int end_body(Call *self) {
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
    return self->rest_last ? end_body(self) : 0;
}

/* Sends a piece of the body. Returns 1 if some of it is left. */
static int send_body(Call *self, PyObject *message) {
    PyObject *body = PyDict_GetItemWithError(message, keys[BODY]);
    PyObject *more = PyDict_GetItemWithError(message, keys[MORE_BODY]);
    int last = more ? !PyObject_IsTrue(more) : 1;
    Py_ssize_t len;
    body = body ? PyBytes_Check(body) ? new_ref(body) : PyBytes_FromObject(body) : new_ref(empty_bytes);
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
        return taken < 0 ? -1 : end_body(self);
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
    PyErr_Format(PyExc_RuntimeError, "%R is not a message that a server knows", type);
    return -1;
}

PyObject *call_send(Call *self, PyObject *message) {
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
        return new_ref(done_ready);
    if (!self->rest)
        self->again = new_ref(message);
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

PyObject *call_push(Call *self, PyObject *unused) {
    int left;
    (void)unused;
    if ((!self->rest && !self->again) || !self->request || is_copy)
        return new_ref(Py_False);
    left = self->rest ? send_rest(self) : send_again(self);
    return left < 0 ? NULL : PyBool_FromLong(left);
}

void send_prepare(PyObject *wait) { wait_to_send = new_ref(wait); }

int send_init(void) {
    return (start_type = intern("http.response.start")) && (body_type = intern("http.response.body")) &&
                   (trailers_type = intern("http.response.trailers")) &&
                   (hint_type = intern("http.response.early_hint"))
               ? 0
               : -1;
}

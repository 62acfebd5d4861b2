/* ASGI 3, HTTP: a request's scope, receive and send. Nothing here waits: what would is left to the Python half. */
#include "native.h"

#include <string.h>

/* Bytes of a body given to the application at once, at most. */
#define PIECE_BYTES (64 * 1024)
/* A longer name of an unknown header field is not looked for. */
#define NAME_BYTES_MAX 256

enum stage { NO_HEAD, HEAD_WRITTEN, BODY_WRITTEN, OVER };

/* One request, from its claim to its end: what receive and send are methods of. */
typedef struct {
    PyObject_HEAD
    komainu_request *request; /* NULL once it is over */
    enum stage stage;
    int trailers;    /* promised */
    int body_ended;  /* all of the request's body was received */
    int told;        /* and the application knows */
    int64_t left;    /* bytes of it that are still to come, or -1 where nobody knows */
    PyObject *rest;  /* what of a piece the server did not take yet, or NULL */
    Py_ssize_t rest_at;
    int rest_last;   /* the response ends with it */
    PyObject *readers, *writers; /* lists of the futures of who waits in receive and send, or NULL */
} Call;

/* What is awaited where nothing has to be waited for. */
typedef struct {
    PyObject_HEAD
    PyObject *value; /* NULL for None */
} Ready;

enum {
    TYPE, HTTP_VERSION, METHOD, SCHEME, PATH, RAW_PATH, QUERY, ROOT_PATH, HEADERS, CLIENT, SERVER, STATE, EXTENSIONS,
    BODY, MORE_BODY, STATUS, TRAILERS, MORE_TRAILERS, LINKS, KEYS
};

static const char *const key_texts[KEYS] = {
    "type",    "http_version", "method", "scheme", "path",       "raw_path", "query_string", "root_path", "headers",
    "client",  "server",       "state",  "extensions", "body",   "more_body", "status",      "trailers",  "more_trailers",
    "links",
};

static PyTypeObject *call_type, *ready_type;
static PyObject *keys[KEYS];
static PyObject *header_names[256];
static unsigned length_id, coding_id;
static PyObject *get_text, *http_text, *one_one_text, *one_zero_text, *empty_text, *slash_text, *empty_bytes;
static PyObject *done_ready, *request_type, *disconnect;
static PyObject *start_type, *body_type, *trailers_type, *hint_type;
static PyObject *set_result_text, *done_text;
/* What is in every scope of this process; what is copied for each; the Python half. */
static PyObject *template, *state, *extensions, *begin, *wait_to_receive, *wait_to_send;

static PyObject *known(PyObject *object) {
    Py_INCREF(object);
    return object;
}

/* ---- awaitables ---- */

static PyObject *ready_new(PyObject *value) {
    Ready *self = value ? PyObject_New(Ready, ready_type) : NULL;
    if (!self) {
        Py_XDECREF(value);
        return NULL;
    }
    self->value = value;
    return (PyObject *)self;
}

static PyObject *ready_next(Ready *self) {
    if (self->value)
        PyErr_SetObject(PyExc_StopIteration, self->value);
    return NULL;
}

/* Tasks want something that looks like a coroutine: with send, throw and close. */
static PyObject *ready_send(Ready *self, PyObject *unused) {
    (void)unused;
    PyErr_SetObject(PyExc_StopIteration, self->value ? self->value : Py_None);
    return NULL;
}

static PyObject *ready_throw(PyObject *self, PyObject *arguments) {
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "O|OO", &type, &value, &trace))
        return NULL;
    if (PyExceptionInstance_Check(type))
        PyErr_SetObject((PyObject *)Py_TYPE(type), type);
    else
        PyErr_SetObject(type, value == Py_None ? NULL : value);
    return NULL;
}

static PyObject *ready_close(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    return known(Py_None);
}

static PyObject *ready_await(PyObject *self) { return known(self); }

static void ready_dealloc(Ready *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->value);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef ready_methods[] = {
    {"send", (PyCFunction)ready_send, METH_O, "Ends at once."},
    {"throw", ready_throw, METH_VARARGS, "Raises the exception."},
    {"close", ready_close, METH_NOARGS, "Does nothing."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ready_slots[] = {
    {Py_tp_dealloc, ready_dealloc}, {Py_am_await, ready_await},     {Py_tp_iter, ready_await},
    {Py_tp_iternext, ready_next},   {Py_tp_methods, ready_methods}, {0, NULL},
};

static PyType_Spec ready_spec = {"komainu.Ready", sizeof(Ready), 0, Py_TPFLAGS_DEFAULT, ready_slots};

/* ---- scope ---- */

/* Takes the value over. */
static int put(PyObject *dict, int key, PyObject *value) {
    int failed = value ? PyDict_SetItem(dict, keys[key], value) : -1;
    Py_XDECREF(value);
    return failed;
}

static PyObject *bytes_of(const char *bytes, size_t len) {
    return len ? PyBytes_FromStringAndSize(bytes, (Py_ssize_t)len) : known(empty_bytes);
}

static PyObject *header_name(const komainu_field *field) {
    char name[NAME_BYTES_MAX];
    uint32_t at;
    if (field->id)
        return known(header_names[field->id]);
    for (at = 0; at < field->name_len; at++) {
        char byte = field->name[at];
        name[at] = byte >= 'A' && byte <= 'Z' ? (char)(byte + 32) : byte;
    }
    return PyBytes_FromStringAndSize(name, field->name_len);
}

static int add_header(PyObject *headers, const komainu_field *field) {
    PyObject *name, *value, *pair;
    int failed;
    if (field->id > 255 || (field->id && !header_names[field->id]) || field->name_len > NAME_BYTES_MAX)
        return 0;
    name = header_name(field);
    value = bytes_of(field->value, field->value_len);
    pair = name && value ? PyTuple_Pack(2, name, value) : NULL;
    Py_XDECREF(name);
    Py_XDECREF(value);
    failed = pair ? PyList_Append(headers, pair) : -1;
    Py_XDECREF(pair);
    return failed;
}

static int64_t number(const komainu_field *field) {
    int64_t sum = 0;
    uint32_t at;
    for (at = 0; at < field->value_len && at < 18; at++)
        sum = sum * 10 + (field->value[at] - '0');
    return sum;
}

/* (host, port) */
static PyObject *address(const komainu_field *host, const komainu_field *port) {
    if (!host)
        return known(Py_None);
    return Py_BuildValue("(s#i)", host->value, (Py_ssize_t)host->value_len, port ? (int)number(port) : 0);
}

static PyObject *decoded(const komainu_field *root, const komainu_field *path) {
    PyObject *below, *whole;
    if (!path || (!root && (path->value_len == 1 || path->value[0] != '/')))
        return known(slash_text);
    below = PyUnicode_DecodeUTF8(path->value, path->value_len, "replace");
    if (!root || !below)
        return below;
    whole = PyUnicode_FromFormat("%.*s%U", (int)root->value_len, root->value, below);
    Py_DECREF(below);
    return whole;
}

/* The path as it was sent. */
static PyObject *raw_path(const komainu_field *target) {
    const char *query;
    if (!target)
        return known(empty_bytes);
    query = memchr(target->value, '?', target->value_len);
    return bytes_of(target->value, query ? (size_t)(query - target->value) : target->value_len);
}

static PyObject *version_of(const komainu_field *field) {
    if (!field || field_is(field, "HTTP/1.1"))
        return known(one_one_text);
    if (field_is(field, "HTTP/1.0"))
        return known(one_zero_text);
    return field->value_len > 5 ? latin1(field->value + 5, field->value_len - 5) : known(one_one_text);
}

/* Fills a scope, and tells how much of a body is to be expected. */
static int fill_scope(PyObject *scope, PyObject *headers, Call *call) {
    const komainu_field *parts[16] = {NULL}, *fields, *field;
    size_t count = komainu_fields(call->request, &fields);
    call->body_ended = 1;
    for (field = fields; field < fields + count; field++) {
        if (field->id > 0 && field->id < 16) {
            parts[field->id] = field;
            continue;
        }
        if (field->id && (field->id == coding_id || (field->id == length_id && !field_is(field, "0")))) {
            call->body_ended = 0;
            call->left = field->id == length_id ? number(field) : -1;
        }
        if (add_header(headers, field) != 0)
            return -1;
    }
    field = parts[KOMAINU_METHOD];
    if (put(scope, METHOD, !field || field_is(field, "GET") ? known(get_text) : field_text(field)) != 0 ||
        put(scope, HTTP_VERSION, version_of(parts[KOMAINU_PROTOCOL])) != 0 ||
        put(scope, PATH, decoded(parts[KOMAINU_SCRIPT_NAME], parts[KOMAINU_PATH])) != 0 ||
        put(scope, RAW_PATH, raw_path(parts[KOMAINU_TARGET])) != 0 ||
        put(scope, CLIENT, address(parts[KOMAINU_REMOTE_ADDR], parts[KOMAINU_REMOTE_PORT])) != 0 ||
        put(scope, SERVER, address(parts[KOMAINU_SERVER_NAME], parts[KOMAINU_SERVER_PORT])) != 0)
        return -1;
    field = parts[KOMAINU_SCHEME];
    if (field && !field_is(field, "http") && put(scope, SCHEME, field_text(field)) != 0)
        return -1;
    field = parts[KOMAINU_QUERY];
    if (field && put(scope, QUERY, bytes_of(field->value, field->value_len)) != 0)
        return -1;
    field = parts[KOMAINU_SCRIPT_NAME];
    if (field && put(scope, ROOT_PATH, PyUnicode_DecodeUTF8(field->value, field->value_len, "replace")) != 0)
        return -1;
    return 0;
}

static PyObject *scope_new(Call *call) {
    PyObject *scope = PyDict_Copy(template), *headers = PyList_New(0);
    int failed = !scope || !headers || fill_scope(scope, headers, call) != 0 ||
                 PyDict_SetItem(scope, keys[HEADERS], headers) != 0 || put(scope, STATE, PyDict_Copy(state)) != 0 ||
                 put(scope, EXTENSIONS, PyDict_Copy(extensions)) != 0;
    Py_XDECREF(headers);
    if (failed)
        Py_CLEAR(scope);
    return scope;
}

/* ---- receive ---- */

/* Wakes one who waits, unless he has given up. */
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

/* The next piece of the body: an event, NULL without an exception where there is none yet. */
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
    self->body_ended = self->told = got == 0 || self->left == 0;
    if (len < room && bytes_resize(&body, len, len) != 0)
        return NULL;
    return request_event(body, !self->body_ended);
}

/* The next event, or NULL without an exception where there is none yet. */
static PyObject *next_event(Call *self) {
    if (!self->request || is_copy)
        return PyDict_Copy(disconnect);
    if (!self->body_ended)
        return receive_body(self);
    if (!self->told) {
        self->told = 1;
        return request_event(known(empty_bytes), 0);
    }
    return komainu_cancelled(self->request) ? PyDict_Copy(disconnect) : NULL;
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

/* For the Python half: the next event, or None. */
static PyObject *call_take(Call *self, PyObject *unused) {
    PyObject *event = next_event(self);
    (void)unused;
    return event || PyErr_Occurred() ? event : known(Py_None);
}

/* ---- send ---- */

static int end(Call *self) {
    komainu_request *request = self->request;
    self->request = NULL;
    self->stage = OVER;
    if (request && !is_copy)
        komainu_end(request);
    return wake(&self->readers);
}

static int out_of_order(PyObject *type) {
    PyErr_Format(PyExc_RuntimeError, "%R is not what is to be sent now", type);
    return -1;
}

/* Fields from an iterable of pairs. */
static int fill_head(struct head *head, PyObject *headers) {
    PyObject *pairs = PyObject_GetIter(headers), *pair;
    int failed = pairs ? 0 : -1;
    while (!failed && (pair = PyIter_Next(pairs))) {
        PyObject *name = PySequence_GetItem(pair, 0), *value = name ? PySequence_GetItem(pair, 1) : NULL;
        /* The texts live in the pair's objects, which the application's headers hold; others are kept. */
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
    int failed;
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
    failed = failed || check(komainu_head(self->request, (uint16_t)number, head.at, head.count)) != 0;
    head_end(&head);
    self->trailers = trailers ? PyObject_IsTrue(trailers) : 0;
    self->stage = HEAD_WRITTEN;
    return failed ? -1 : 0;
}

static int send_hint(Call *self, PyObject *message) {
    PyObject *links = PyDict_GetItemWithError(message, keys[LINKS]), *each, *link;
    struct head head;
    int failed = 0;
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
    failed = failed || PyErr_Occurred() || check(komainu_interim(self->request, 103, head.at, head.count)) != 0;
    head_end(&head);
    return failed ? -1 : 0;
}

static int send_trailers(Call *self, PyObject *message) {
    PyObject *headers = PyDict_GetItemWithError(message, keys[HEADERS]);
    PyObject *more = PyDict_GetItemWithError(message, keys[MORE_TRAILERS]);
    struct head head;
    int failed, goes_on = more ? PyObject_IsTrue(more) : 0;
    head_begin(&head);
    failed = goes_on < 0 || (headers && fill_head(&head, headers) != 0);
    failed = failed || check(komainu_trailers(self->request, head.at, head.count)) != 0;
    head_end(&head);
    if (failed)
        return -1;
    return goes_on ? 0 : end(self);
}

/* All of a body's last piece was taken. */
static int after_last(Call *self) {
    if (!self->trailers)
        return end(self);
    self->stage = BODY_WRITTEN;
    return 0;
}

/* Sends what is left of a piece, as far as it goes. 1 where some of it is still left. */
static int send_rest(Call *self) {
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

/* A piece of the body. 1 where some of it is left. */
static int send_body(Call *self, PyObject *message) {
    PyObject *body = PyDict_GetItemWithError(message, keys[BODY]);
    PyObject *more = PyDict_GetItemWithError(message, keys[MORE_BODY]);
    int last = more ? !PyObject_IsTrue(more) : 1;
    Py_ssize_t len;
    if (self->rest) {
        PyErr_SetString(PyExc_RuntimeError, "the send before this one has not been awaited");
        return -1;
    }
    body = body ? PyBytes_Check(body) ? known(body) : PyBytes_FromObject(body) : known(empty_bytes);
    if (!body)
        return -1;
    len = PyBytes_Size(body);
    if (last && len <= UNWAITED_BYTES_MAX) {
        int64_t code = len ? komainu_write(self->request, PyBytes_AsString(body), (size_t)len, KOMAINU_MORE) : 0;
        Py_DECREF(body);
        return check(code) != 0 ? -1 : after_last(self);
    }
    if (len == 0) {
        /* Somebody wants the head to leave. */
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
    left = send_message(self, message, type);
    if (left < 0)
        return NULL;
    if (left == 0)
        return known(done_ready);
    return PyObject_CallFunctionObjArgs(wait_to_send, (PyObject *)self, NULL);
}

/* For the Python half: goes on with a piece; whether some of it is still left. */
static PyObject *call_push(Call *self, PyObject *unused) {
    int left;
    (void)unused;
    if (!self->rest || !self->request || is_copy)
        return known(Py_False);
    left = send_rest(self);
    return left < 0 ? NULL : PyBool_FromLong(left);
}

/* ---- the whole ---- */

/* For the Python half: who waits until there is news. */
static PyObject *call_read_by(Call *self, PyObject *future) { return wait_in(&self->readers, future); }

static PyObject *call_written_by(Call *self, PyObject *future) { return wait_in(&self->writers, future); }

/* For the Python half: wakes who waits for what has come; whether somebody still waits. */
static PyObject *call_look(Call *self, PyObject *unused) {
    (void)unused;
    if (self->request && !is_copy) {
        uint32_t news = komainu_news(self->request);
        int reads = news & KOMAINU_GONE || (news & KOMAINU_READABLE && !self->body_ended);
        if (reads && wake(&self->readers) != 0)
            return NULL;
        if (news & (KOMAINU_WRITABLE | KOMAINU_GONE) && wake(&self->writers) != 0)
            return NULL;
    } else if (wake(&self->readers) != 0 || wake(&self->writers) != 0) {
        return NULL;
    }
    return PyBool_FromLong(self->readers || self->writers);
}

/* For the Python half: why the server lost interest, or 0. */
static PyObject *call_cancelled(Call *self, PyObject *unused) {
    (void)unused;
    return PyLong_FromLong(self->request && !is_copy ? (long)komainu_cancelled(self->request) : 0);
}

/* For the Python half: the application has returned; whether its answer was whole (or nobody waits for it). */
static PyObject *call_finish(Call *self, PyObject *unused) {
    static const char text[] = "Internal Server Error\n";
    static const komainu_field field = {"content-type", "text/plain", 12, 10, 0};
    komainu_request *request = self->request;
    int whole = !request || komainu_cancelled(request) != 0;
    (void)unused;
    self->request = NULL;
    if (request && !is_copy) {
        if (self->stage == NO_HEAD && komainu_head(request, 500, &field, 1) == KOMAINU_OK) {
            komainu_write(request, text, sizeof text - 1, KOMAINU_MORE);
            komainu_end(request);
        } else {
            komainu_abort(request, APPLICATION_FAILED);
        }
    }
    self->stage = OVER;
    Py_CLEAR(self->rest);
    if (wake(&self->readers) != 0 || wake(&self->writers) != 0)
        return NULL;
    return PyBool_FromLong(whole);
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
    call->trailers = call->told = 0;
    call->left = 0;
    call->rest = call->readers = call->writers = NULL;
    scope = scope_new(call);
    task = scope ? PyObject_CallFunctionObjArgs(begin, scope, (PyObject *)call, NULL) : NULL;
    Py_XDECREF(scope);
    Py_XDECREF(task);
    Py_DECREF(call);
    return task ? 0 : -1;
}

PyObject *asgi_claim(Seat *seat, PyObject *most) {
    long room = PyLong_AsLong(most), at;
    if (room == -1 && PyErr_Occurred())
        return NULL;
    for (at = 0; at < room; at++) {
        komainu_request *request;
        int code = komainu_next(seat->worker, 0, &request);
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
    Py_XDECREF(self->readers);
    Py_XDECREF(self->writers);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef call_methods[] = {
    {"receive", (PyCFunction)call_receive, METH_NOARGS, "The next event."},
    {"send", (PyCFunction)call_send, METH_O, "Sends a message."},
    {"take", (PyCFunction)call_take, METH_NOARGS, "The next event, or None where there is none yet."},
    {"push", (PyCFunction)call_push, METH_NOARGS, "Goes on with what was not taken; whether some of it still was not."},
    {"read_by", (PyCFunction)call_read_by, METH_O, "The future of who waits to receive."},
    {"written_by", (PyCFunction)call_written_by, METH_O, "The future of who waits to send."},
    {"look", (PyCFunction)call_look, METH_NOARGS, "Wakes who waits for what has come; whether somebody still waits."},
    {"cancelled", (PyCFunction)call_cancelled, METH_NOARGS, "Why the server lost interest, or 0."},
    {"finish", (PyCFunction)call_finish, METH_NOARGS, "The application has returned; whether its answer was whole."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot call_slots[] = {{Py_tp_dealloc, call_dealloc}, {Py_tp_methods, call_methods}, {0, NULL}};

static PyType_Spec call_spec = {"komainu.Call", sizeof(Call), 0, Py_TPFLAGS_DEFAULT, call_slots};

PyObject *asgi_prepare(PyObject *module, PyObject *arguments) {
    PyObject *constants;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!O!OOO", &PyDict_Type, &constants, &PyDict_Type, &state, &PyDict_Type,
                          &extensions, &begin, &wait_to_receive, &wait_to_send))
        return NULL;
    Py_INCREF(state);
    Py_INCREF(extensions);
    Py_INCREF(begin);
    Py_INCREF(wait_to_receive);
    Py_INCREF(wait_to_send);
    if (!(template = PyDict_Copy(constants)) || PyDict_SetItem(template, keys[SCHEME], http_text) != 0 ||
        PyDict_SetItem(template, keys[QUERY], empty_bytes) != 0 ||
        PyDict_SetItem(template, keys[ROOT_PATH], empty_text) != 0)
        return NULL;
    return known(Py_None);
}

static int init_names(void) {
    unsigned id;
    for (id = 32; id < 256; id++) {
        size_t len;
        const char *name = komainu_name(id, &len);
        if (!name)
            continue;
        if (!(header_names[id] = PyBytes_FromStringAndSize(name, (Py_ssize_t)len)))
            return -1;
        if (len == 14 && memcmp(name, "content-length", len) == 0)
            length_id = id;
        if (len == 17 && memcmp(name, "transfer-encoding", len) == 0)
            coding_id = id;
    }
    return 0;
}

int asgi_init(PyObject *module) {
    int at;
    for (at = 0; at < KEYS; at++)
        if (!(keys[at] = intern(key_texts[at])))
            return -1;
    if (init_names() != 0 || !(get_text = intern("GET")) || !(http_text = intern("http")) ||
        !(one_one_text = intern("1.1")) || !(one_zero_text = intern("1.0")) || !(empty_text = intern("")) ||
        !(slash_text = intern("/")) || !(empty_bytes = PyBytes_FromStringAndSize("", 0)) ||
        !(request_type = intern("http.request")) || !(start_type = intern("http.response.start")) ||
        !(body_type = intern("http.response.body")) || !(trailers_type = intern("http.response.trailers")) ||
        !(hint_type = intern("http.response.early_hint")) || !(set_result_text = intern("set_result")) ||
        !(done_text = intern("done")) || !(disconnect = Py_BuildValue("{ss}", "type", "http.disconnect")) ||
        !(call_type = make_type(module, "Call", &call_spec)) ||
        !(ready_type = make_type(module, "Ready", &ready_spec)))
        return -1;
    done_ready = (PyObject *)PyObject_New(Ready, ready_type);
    if (!done_ready)
        return -1;
    ((Ready *)done_ready)->value = NULL;
    return 0;
}

/* WSGI (PEP 3333): environ, start_response, the application's response, and its failures. */
#include "native.h"

#include <string.h>

/* Longer names of unknown header fields are not cached. */
#define NAME_BYTES_MAX 256

/* The start_response callable of one request. */
typedef struct {
    PyObject_HEAD
    komainu_request *request; /* NULL after the end of the request */
    PyObject *status, *headers; /* arguments of start_response, until the head is written */
    int head_written;
    int64_t length; /* the Content-Length, or -1 */
    int64_t written;
    size_t unwaited; /* number of bytes written so far without waiting */
} Call;

enum { METHOD, SCRIPT, PATH, QUERY, URI, RAW_URI, SERVER, PORT, PROTOCOL, ADDRESS, PEER, SCHEME, INPUT, TARGET, KEYS };

static const char *const key_texts[KEYS] = {
    "REQUEST_METHOD", "SCRIPT_NAME", "PATH_INFO",       "QUERY_STRING", "REQUEST_URI", "RAW_URI",         "SERVER_NAME",
    "SERVER_PORT",    "SERVER_PROTOCOL", "REMOTE_ADDR", "REMOTE_PORT",  "wsgi.url_scheme", "wsgi.input",
    "komainu.target",
};

static PyTypeObject *call_type;
static PyObject *keys[KEYS];
static PyObject *header_keys[256];
static unsigned length_id, coding_id, cookie_id;
/* Values that are equal in most requests. */
static PyObject *empty_text, *get_text, *http_text, *https_text, *one_one_text, *slash_text, *close_text, *empty_input;
/* The constant entries of every environ, and the functions of the Python half. */
static PyObject *template, *wrapper_class, *file_part, *failed;
/* Whether the server can receive descriptors from this process. */
static int sends_files;
/* Number of requests that the threads of this process are answering. */
static int held_requests;

/* ---- environ ---- */

/* HTTP_ACCEPT for accept. */
static PyObject *header_key(const char *name, size_t len) {
    char text[5 + NAME_BYTES_MAX] = "HTTP_";
    size_t at;
    for (at = 0; at < len; at++) {
        char byte = name[at];
        text[5 + at] = byte == '-' ? '_' : byte >= 'a' && byte <= 'z' ? (char)(byte - 32) : byte;
    }
    if ((len == 12 && memcmp(text + 5, "CONTENT_TYPE", 12) == 0) ||
        (len == 14 && memcmp(text + 5, "CONTENT_LENGTH", 14) == 0))
        return latin1(text + 5, len);
    return latin1(text, 5 + len);
}

/* Steals the reference to the value. */
static int put(PyObject *environ, PyObject *key, PyObject *value) {
    int failed = value ? PyDict_SetItem(environ, key, value) : -1;
    Py_XDECREF(value);
    return failed;
}

/* Joins repeated fields into one variable. */
static int put_header(PyObject *environ, PyObject *key, const komainu_field *field, int seen) {
    PyObject *before = seen ? PyDict_GetItemWithError(environ, key) : NULL;
    if (before) {
        PyObject *value = field_text(field), *both;
        both = value ? PyUnicode_FromFormat(field->id == cookie_id ? "%U; %U" : "%U,%U", before, value) : NULL;
        Py_XDECREF(value);
        return put(environ, key, both);
    }
    return seen && PyErr_Occurred() ? -1 : put(environ, key, field_text_kept(field));
}

static int put_unknown(PyObject *environ, const komainu_field *field) {
    PyObject *key;
    int failed;
    if (field->name_len > NAME_BYTES_MAX)
        return 0;
    if (!(key = header_key(field->name, field->name_len)))
        return -1;
    failed = put_header(environ, key, field, 1);
    Py_DECREF(key);
    return failed;
}

/* Adds a variable such as HTTPS=on. */
static int put_variable(PyObject *environ, const komainu_field *field) {
    const char *sign = memchr(field->value, '=', field->value_len);
    size_t len = sign ? (size_t)(sign - field->value) : 0;
    PyObject *key;
    int failed;
    if (!sign)
        return 0;
    if (!(key = latin1(field->value, len)))
        return -1;
    failed = put(environ, key, latin1(sign + 1, field->value_len - len - 1));
    Py_DECREF(key);
    return failed;
}

/* The target of `OPTIONS *` is not a path; REQUEST_URI has it. */
static PyObject *path_of(const komainu_field *field) {
    int is_root = field->value_len == 1 || (field->value_len && field->value[0] != '/');
    return is_root ? known(slash_text) : field_text_kept(field);
}

static int put_target(PyObject *environ, const komainu_field *field) {
    PyObject *text = field_text_kept(field);
    if (!text)
        return -1;
    if (PyDict_SetItem(environ, keys[RAW_URI], text) != 0) {
        Py_DECREF(text);
        return -1;
    }
    return put(environ, keys[URI], text);
}

static int put_field(PyObject *environ, const komainu_field *field, uint64_t *seen, int *has_body) {
    unsigned id = field->id;
    switch (id) {
    case KOMAINU_METHOD:
        return put(environ, keys[METHOD], field_is(field, "GET") ? known(get_text) : field_text_kept(field));
    case KOMAINU_TARGET: return put_target(environ, field);
    case KOMAINU_SCRIPT_NAME: return put(environ, keys[SCRIPT], field_text_kept(field));
    case KOMAINU_PATH: return put(environ, keys[PATH], path_of(field));
    case KOMAINU_QUERY: return put(environ, keys[QUERY], field_text_kept(field));
    case KOMAINU_PROTOCOL:
        return put(environ, keys[PROTOCOL], field_is(field, "HTTP/1.1") ? known(one_one_text) : field_text_kept(field));
    case KOMAINU_SCHEME:
        return put(environ, keys[SCHEME], known(field_is(field, "https") ? https_text : http_text));
    case KOMAINU_REMOTE_ADDR: return put(environ, keys[ADDRESS], field_text_kept(field));
    case KOMAINU_REMOTE_PORT: return put(environ, keys[PEER], field_text(field));
    case KOMAINU_SERVER_NAME: return put(environ, keys[SERVER], field_text_kept(field));
    case KOMAINU_SERVER_PORT: return put(environ, keys[PORT], field_text_kept(field));
    case KOMAINU_APP_TARGET: return put(environ, keys[TARGET], field_text_kept(field));
    case KOMAINU_VARIABLE: return put_variable(environ, field);
    case 0: return put_unknown(environ, field);
    default: break;
    }
    if (id > 255 || !header_keys[id])
        return 0;
    if (id == coding_id) { /* the server has removed the coding */
        *has_body = 1;
        return 0;
    }
    if (id == length_id && !field_is(field, "0"))
        *has_body = 1;
    id = (unsigned)(seen[id / 64] >> (id % 64)) & 1;
    seen[field->id / 64] |= (uint64_t)1 << (field->id % 64);
    return put_header(environ, header_keys[field->id], field, (int)id);
}

static PyObject *environ_new(komainu_request *request, PyObject **input) {
    PyObject *environ = PyDict_Copy(template);
    const komainu_field *fields, *field;
    size_t count = komainu_fields(request, &fields);
    uint64_t seen[4] = {0, 0, 0, 0};
    int has_body = 0, failed = environ ? 0 : -1;
    for (field = fields; !failed && field < fields + count; field++)
        failed = put_field(environ, field, seen, &has_body);
    if (!failed) {
        *input = has_body ? input_new(request) : known(empty_input);
        failed = *input ? PyDict_SetItem(environ, keys[INPUT], *input) : -1;
    }
    if (failed)
        Py_CLEAR(environ);
    return environ;
}

/* ---- start_response ---- */

static int must_be_free(const Call *self) {
    if (self->request && !is_copy)
        return 0;
    PyErr_SetString(PyExc_RuntimeError, "the request is over");
    return -1;
}

static PyObject *call_write(Call *self, PyObject *piece);

static PyMethodDef call_methods[] = {
    {"write", (PyCFunction)call_write, METH_O, "Sends a piece of the body at once."},
    {NULL, NULL, 0, NULL},
};

/* start_response(status, headers, exc_info) of PEP 3333. */
static PyObject *start_response(Call *self, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"status", "headers", "exc_info", NULL};
    PyObject *status, *headers, *error = Py_None;
    if (!keywords && PyTuple_Size(arguments) == 2) {
        status = PyTuple_GetItem(arguments, 0);
        headers = PyTuple_GetItem(arguments, 1);
    } else if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO|O", names, &status, &headers, &error)) {
        return NULL;
    }
    if (must_be_free(self) != 0)
        return NULL;
    if (error != Py_None) {
        if (self->head_written) {
            PyObject *type = NULL, *value = NULL, *trace = NULL;
            if (!PyArg_ParseTuple(error, "OOO;exc_info is what sys.exc_info() returns", &type, &value, &trace))
                return NULL;
            PyErr_Restore(known(type), known(value), trace == Py_None ? NULL : known(trace));
            return NULL;
        }
    } else if (self->status) {
        PyErr_SetString(PyExc_AssertionError, "start_response was called before, and exc_info is not given");
        return NULL;
    }
    if (!PyUnicode_Check(status) || !PyList_Check(headers)) {
        PyErr_SetString(PyExc_TypeError, "start_response wants a str and a list of tuples");
        return NULL;
    }
    Py_XDECREF(self->status);
    Py_XDECREF(self->headers);
    self->status = known(status);
    self->headers = known(headers);
    return PyCFunction_NewEx(call_methods, (PyObject *)self, NULL);
}

static int status_of(PyObject *text) {
    Py_ssize_t len;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &len);
    int status = 0, at;
    if (!bytes)
        return -1;
    for (at = 0; at < 3 && at < len && bytes[at] >= '0' && bytes[at] <= '9'; at++)
        status = status * 10 + (bytes[at] - '0');
    if (at == 3 && (len == 3 || bytes[3] == ' ') && status >= 200)
        return status;
    PyErr_Format(PyExc_ValueError, "%R is not the status of a response, such as '200 OK'", text);
    return -1;
}

/* Writes the head. `length` is the length of the whole body, or -1 if it is not known. */
static int write_head(Call *self, int64_t length) {
    struct head head;
    char digits[24];
    int status, failed = 0;
    Py_ssize_t at, count;
    if (!self->status) {
        PyErr_SetString(PyExc_AssertionError, "start_response was not called before the first bytes of the body");
        return -1;
    }
    if ((status = status_of(self->status)) < 0)
        return -1;
    head_begin(&head);
    count = PyList_Size(self->headers);
    for (at = 0; !failed && at < count; at++) {
        PyObject *pair = PyList_GetItem(self->headers, at);
        if (PyTuple_Check(pair) && PyTuple_Size(pair) == 2) {
            failed = head_pair(&head, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1), 0);
        } else {
            PyErr_Format(PyExc_TypeError, "a header is a tuple of a name and a value, not %R", pair);
            failed = -1;
        }
    }
    if (!failed && length >= LENGTH_FROM_BYTES && head.length < 0 && status != 204 && status != 304) {
        int len = snprintf(digits, sizeof digits, "%lld", (long long)length);
        failed = head_add(&head, "content-length", 14, digits, (size_t)len);
    }
    if (!failed)
        failed = check(komainu_head(self->request, (uint16_t)status, head.at, head.count));
    self->head_written = !failed;
    self->length = head.length;
    head_end(&head);
    return failed;
}

/* ---- bodies ---- */

/* Writes a piece of the body; with `more`, it need not be sent yet. */
static int write_bytes(Call *self, const char *bytes, size_t len, int more) {
    int64_t taken;
    if (len == 0)
        return 0;
    if (more && self->unwaited + len <= UNWAITED_BYTES_MAX) {
        self->unwaited += len;
        return check(komainu_write(self->request, bytes, len, KOMAINU_MORE));
    }
    self->unwaited = UNWAITED_BYTES_MAX;
    taken = komainu_try_write(self->request, bytes, len);
    if (taken == KOMAINU_AGAIN)
        taken = 0;
    if (check(taken) != 0)
        return -1;
    if ((size_t)taken < len) {
        int code;
        Py_BEGIN_ALLOW_THREADS
        code = komainu_write(self->request, bytes + taken, len - (size_t)taken, more ? KOMAINU_MORE : 0);
        Py_END_ALLOW_THREADS
        return check(code);
    }
    return 0;
}

/* Writes a piece, after the head; the server drops bytes beyond the Content-Length. Returns 1 once it is reached. */
static int write_piece(Call *self, PyObject *piece, int more) {
    int64_t len, left;
    if (!PyBytes_Check(piece)) {
        PyErr_Format(PyExc_TypeError, "a body is made of bytes, not of %R", Py_TYPE(piece));
        return -1;
    }
    len = PyBytes_Size(piece);
    if (len == 0)
        return 0;
    if (must_be_free(self) != 0 || (!self->head_written && write_head(self, -1) != 0))
        return -1;
    left = self->length >= 0 ? self->length - self->written : INT64_MAX;
    self->written += len;
    if (left >= 0 && write_bytes(self, PyBytes_AsString(piece), (size_t)len, more || len >= left) != 0)
        return -1;
    return len >= left;
}

/* The write() that start_response returns. */
static PyObject *call_write(Call *self, PyObject *piece) {
    return write_piece(self, piece, 0) < 0 ? NULL : known(Py_None);
}

static void end_request(Call *self) {
    komainu_request *request = self->request;
    self->request = NULL;
    /* A process that the application has forked from this worker ends here. */
    if (request)
        komainu_end(request);
}

/* Sends a list or tuple, whose length is known. Other threads may change a list while a piece waits for its client. */
static int write_list(Call *self, PyObject *list) {
    PyObject *body = PySequence_Tuple(list);
    Py_ssize_t at, count = body ? PyTuple_Size(body) : 0;
    int64_t sum = 0;
    int failed = body ? 0 : -1;
    for (at = 0; at < count; at++) {
        PyObject *piece = PyTuple_GetItem(body, at);
        sum += PyBytes_Check(piece) ? PyBytes_Size(piece) : 0;
    }
    if (!failed && !self->head_written)
        failed = write_head(self, sum);
    for (at = 0; !failed && at < count; at++)
        failed = write_piece(self, PyTuple_GetItem(body, at), 1) < 0 ? -1 : 0;
    Py_XDECREF(body);
    return failed;
}

/* Returns 1 if the object passed to wsgi.file_wrapper is a file that the server can send. */
static int write_file(Call *self, PyObject *body) {
    PyObject *part;
    long long offset, len, left;
    int fd, code;
    if (!sends_files)
        return 0;
    if (!(part = PyObject_CallFunctionObjArgs(file_part, body, NULL)))
        return -1;
    if (part == Py_None) {
        Py_DECREF(part);
        return 0;
    }
    code = PyArg_ParseTuple(part, "iLL", &fd, &offset, &len);
    Py_DECREF(part);
    if (!code || (!self->head_written && write_head(self, len) != 0))
        return -1;
    left = self->length >= 0 && self->length - self->written < len ? self->length - self->written : len;
    if (left > 0) {
        Py_BEGIN_ALLOW_THREADS
        code = komainu_file(self->request, fd, (uint64_t)offset, (uint64_t)left);
        Py_END_ALLOW_THREADS
        if (check(code) != 0)
            return -1;
    }
    return 1;
}

/* Sends any other body. Each piece is sent immediately, because the next one may be late. */
static int write_each(Call *self, PyObject *body) {
    PyObject *pieces = PyObject_GetIter(body), *piece;
    int done = pieces ? 0 : -1;
    while (done >= 0 && (piece = PyIter_Next(pieces))) {
        /* Bytes beyond the Content-Length are read and dropped. */
        if (done == 0)
            done = write_piece(self, piece, 0);
        else if (!PyBytes_Check(piece))
            done = write_piece(self, piece, 0);
        Py_DECREF(piece);
        /* The response is complete: it is sent before the application's `close` runs. */
        if (done > 0)
            end_request(self);
    }
    Py_XDECREF(pieces);
    if (done < 0 || PyErr_Occurred())
        return -1;
    return self->head_written || done > 0 ? 0 : write_head(self, -1);
}

static int write_body(Call *self, PyObject *body) {
    int done;
    if (PyList_CheckExact(body) || PyTuple_CheckExact(body))
        return write_list(self, body);
    if ((PyObject *)Py_TYPE(body) == wrapper_class && (done = write_file(self, body)) != 0)
        return done < 0 ? -1 : 0;
    return write_each(self, body);
}

/* ---- the request ---- */

/* Whether the exception that is set ends the worker rather than the request. */
static int ends_worker(void) {
    return PyErr_ExceptionMatches(PyExc_SystemExit) || PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
}

/* Logs the exception that is set. */
static void report(PyObject *environ) {
    PyObject *type, *value, *trace, *done;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace)
        PyException_SetTraceback(value, trace);
    if (!PyErr_GivenExceptionMatches(type, gone_class)) {
        done = PyObject_CallFunctionObjArgs(failed, value, environ ? environ : Py_None, NULL);
        if (!done)
            PyErr_WriteUnraisable(failed);
        Py_XDECREF(done);
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* Ends the request of an application that failed. */
static void end_failed(Call *self, int ends) {
    static const char text[] = "Internal Server Error\n";
    static const komainu_field field = {"content-type", "text/plain", 12, 10, 0};
    komainu_request *request = self->request;
    self->request = NULL;
    if (!request || is_copy)
        return;
    if (ends) {
        komainu_abort(request, WORKER_ENDED);
    } else if (!self->head_written && komainu_head(request, 500, &field, 1) == KOMAINU_OK) {
        komainu_write(request, text, sizeof text - 1, KOMAINU_MORE);
        komainu_end(request);
    } else {
        komainu_abort(request, APPLICATION_FAILED);
    }
}

static int close_body(PyObject *body) {
    PyObject *close, *done;
    if (PyList_CheckExact(body) || PyTuple_CheckExact(body))
        return 0;
    if (!(close = PyObject_GetAttr(body, close_text))) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    done = PyObject_CallFunctionObjArgs(close, NULL);
    Py_DECREF(close);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Calls the application and sends the response. Returns -1 with an exception if the worker must exit. */
static int answer(PyObject *app, komainu_request *request) {
    PyObject *environ = NULL, *input = NULL, *body = NULL;
    int ends = 0;
    Call *call = PyObject_New(Call, call_type);
    if (!call) {
        komainu_abort(request, APPLICATION_FAILED);
        return -1;
    }
    call->request = request;
    call->status = call->headers = NULL;
    call->head_written = 0;
    call->length = -1;
    call->written = 0;
    call->unwaited = 0;
    environ = environ_new(request, &input);
    if (environ)
        body = PyObject_CallFunctionObjArgs(app, environ, (PyObject *)call, NULL);
    if (body && write_body(call, body) == 0) {
        end_request(call);
    } else {
        ends = ends_worker();
        if (!ends)
            report(environ);
        end_failed(call, ends);
    }
    if (input && input != empty_input)
        input_close(input);
    if (body) {
        PyObject *type = NULL, *value = NULL, *trace = NULL;
        if (ends)
            PyErr_Fetch(&type, &value, &trace);
        /* The response is complete; the client does not wait for the rest. */
        if (close_body(body) != 0 && !(ends |= ends_worker()))
            report(environ);
        if (type)
            PyErr_Restore(type, value, trace);
    }
    Py_CLEAR(call->status);
    Py_CLEAR(call->headers);
    Py_DECREF(call);
    Py_XDECREF(body);
    Py_XDECREF(input);
    Py_XDECREF(environ);
    return ends ? -1 : 0;
}

/* Answers in a separate context, so that context variables set by the application do not leak into the next request. */
static int answer_in_context(PyObject *app, komainu_request *request) {
    PyObject *context = PyContext_CopyCurrent();
    int failed;
    if (!context || PyContext_Enter(context) != 0) {
        komainu_abort(request, APPLICATION_FAILED);
        Py_XDECREF(context);
        return -1;
    }
    failed = answer(app, request);
    if (PyContext_Exit(context) != 0)
        failed = -1;
    Py_DECREF(context);
    return failed;
}

/* Keeps the interpreter's lock if a request is waiting, so that under load no thread has to reacquire it. */
static int next_request(komainu_worker *worker, komainu_request **request) {
    for (;;) {
        int code;
        if (PyErr_CheckSignals() != 0)
            return -1;
        /* A process that the application has forked from this worker ends in komainu_next. */
        if (leaving && !is_copy)
            return 0;
        /* Lets other threads run between two requests, as reading from a socket would. */
        if (__atomic_load_n(&held_requests, __ATOMIC_RELAXED) > 0) {
            Py_BEGIN_ALLOW_THREADS
            Py_END_ALLOW_THREADS
        }
        code = komainu_next(worker, 0, request);
        if (code == KOMAINU_AGAIN) {
            Py_BEGIN_ALLOW_THREADS
            code = komainu_next(worker, -1, request);
            Py_END_ALLOW_THREADS
        }
        if (code != KOMAINU_AGAIN)
            return code == KOMAINU_OK;
    }
}

PyObject *wsgi_serve(Seat *seat, PyObject *app) {
    komainu_request *request = NULL;
    komainu_worker *worker = seat->worker;
    int more, failed = 0;
    while (!failed && (more = next_request(worker, &request)) != 0) {
        if (more < 0) {
            failed = -1;
            break;
        }
        __atomic_add_fetch(&held_requests, 1, __ATOMIC_RELAXED);
        failed = answer_in_context(app, request);
        __atomic_sub_fetch(&held_requests, 1, __ATOMIC_RELAXED);
    }
    seat->worker = NULL;
    if (!is_copy)
        komainu_detach(worker);
    return failed ? NULL : known(Py_None);
}

static void call_dealloc(Call *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->status);
    Py_XDECREF(self->headers);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot call_slots[] = {
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_call, start_response},
    {Py_tp_methods, call_methods},
    {Py_tp_doc, "start_response of one request."},
    {0, NULL},
};

static PyType_Spec call_spec = {"komainu.StartResponse", sizeof(Call), 0, Py_TPFLAGS_DEFAULT, call_slots};

PyObject *wsgi_prepare(PyObject *module, PyObject *arguments) {
    PyObject *constants;
    int at;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!OOO", &PyDict_Type, &constants, &wrapper_class, &file_part, &failed))
        return NULL;
    Py_INCREF(wrapper_class);
    Py_INCREF(file_part);
    Py_INCREF(failed);
    if (!(template = PyDict_Copy(constants)))
        return NULL;
    /* Sized for all entries, so that copies of it need not grow. */
    for (at = 0; at < KEYS; at++)
        if (PyDict_SetItem(template, keys[at], empty_text) != 0)
            return NULL;
    if (PyDict_DelItem(template, keys[PEER]) != 0 || PyDict_DelItem(template, keys[TARGET]) != 0)
        return NULL;
    return known(Py_None);
}

int wsgi_init(PyObject *module) {
    unsigned id;
    for (id = 0; id < KEYS; id++)
        if (!(keys[id] = intern(key_texts[id])))
            return -1;
    for (id = 32; id < 256; id++) {
        size_t len;
        const char *name = komainu_name(id, &len);
        if (!name)
            continue;
        if (!(header_keys[id] = header_key(name, len)))
            return -1;
        PyUnicode_InternInPlace(&header_keys[id]);
        if (len == 14 && memcmp(name, "content-length", len) == 0)
            length_id = id;
        if (len == 17 && memcmp(name, "transfer-encoding", len) == 0)
            coding_id = id;
        if (len == 6 && memcmp(name, "cookie", len) == 0)
            cookie_id = id;
    }
    sends_files = !getenv("KOMAINU_NO_FILES");
    return (empty_text = intern("")) && (get_text = intern("GET")) && (http_text = intern("http")) &&
                   (https_text = intern("https")) && (one_one_text = intern("HTTP/1.1")) &&
                   (slash_text = intern("/")) && (close_text = intern("close")) && (empty_input = input_new(NULL)) &&
                   (call_type = make_type(module, "StartResponse", &call_spec))
               ? 0
               : -1;
}

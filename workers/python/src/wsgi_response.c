/* start_response of PEP 3333, and the response that an application sends. */
#include "wsgi_response.h"
#include "head.h"

/* Minimum size for which the worker adds a missing Content-Length; for smaller bodies the server adds it. */
#define LENGTH_FROM_BYTES (32 * 1024)

struct response {
    PyObject_HEAD
    komainu_request *request; /* NULL after the end of the request */
    PyObject *status, *headers; /* arguments of start_response, until the head is written */
    int head_written;
    int64_t length; /* the Content-Length, or -1 */
    int64_t written;
    size_t unwaited; /* number of bytes written so far without waiting */
};

static PyTypeObject *response_type;
/* The class wsgi.file_wrapper, and the function that finds the file in an object of it. */
static PyObject *wrapper_class, *file_part;
/* Whether the server can receive descriptors from this process. */
static int sends_files;

static int must_be_free(const Response *self) {
    if (self->request && !is_copy)
        return 0;
    PyErr_SetString(PyExc_RuntimeError, "the request is over");
    return -1;
}

static PyObject *write_method(Response *self, PyObject *piece);

static PyMethodDef response_methods[] = {
    {"write", (PyCFunction)write_method, METH_O, "Sends a piece of the body at once."},
    {NULL, NULL, 0, NULL},
};

/* start_response(status, headers, exc_info) of PEP 3333. */
static PyObject *start_response(Response *self, PyObject *arguments, PyObject *keywords) {
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
            PyErr_Restore(new_ref(type), new_ref(value), trace == Py_None ? NULL : new_ref(trace));
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
    self->status = new_ref(status);
    self->headers = new_ref(headers);
    return PyCFunction_NewEx(response_methods, (PyObject *)self, NULL);
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
static int write_head(Response *self, int64_t length) {
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
static int write_bytes(Response *self, const char *bytes, size_t len, int more) {
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
static int write_piece(Response *self, PyObject *piece, int more) {
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
static PyObject *write_method(Response *self, PyObject *piece) {
    return write_piece(self, piece, 0) < 0 ? NULL : new_ref(Py_None);
}

void response_end(Response *self) {
    komainu_request *request = self->request;
    self->request = NULL;
    /* A process that the application has forked from this worker ends here. */
    if (request)
        komainu_end(request);
}

/* Sends a list or tuple, whose length is known. Other threads may change a list while a piece waits for its client. */
static int write_list(Response *self, PyObject *list) {
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
static int write_file(Response *self, PyObject *body) {
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
static int write_each(Response *self, PyObject *body) {
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
            response_end(self);
    }
    Py_XDECREF(pieces);
    if (done < 0 || PyErr_Occurred())
        return -1;
    return self->head_written || done > 0 ? 0 : write_head(self, -1);
}

int response_write(Response *self, PyObject *body) {
    int done;
    if (PyList_CheckExact(body) || PyTuple_CheckExact(body))
        return write_list(self, body);
    if ((PyObject *)Py_TYPE(body) == wrapper_class && (done = write_file(self, body)) != 0)
        return done < 0 ? -1 : 0;
    return write_each(self, body);
}

/* ---- the life of a response ---- */

Response *response_new(komainu_request *request) {
    Response *self = PyObject_New(Response, response_type);
    if (!self)
        return NULL;
    self->request = request;
    self->status = self->headers = NULL;
    self->head_written = 0;
    self->length = -1;
    self->written = 0;
    self->unwaited = 0;
    return self;
}

void response_fail(Response *self, int ends_worker) {
    static const char text[] = "Internal Server Error\n";
    static const komainu_field field = {"content-type", "text/plain", 12, 10, 0};
    komainu_request *request = self->request;
    self->request = NULL;
    if (!request || is_copy)
        return;
    if (ends_worker) {
        komainu_abort(request, WORKER_ENDED);
    } else if (!self->head_written && komainu_head(request, 500, &field, 1) == KOMAINU_OK) {
        komainu_write(request, text, sizeof text - 1, KOMAINU_MORE);
        komainu_end(request);
    } else {
        komainu_abort(request, APPLICATION_FAILED);
    }
}

void response_release(Response *self) {
    Py_CLEAR(self->status);
    Py_CLEAR(self->headers);
    Py_DECREF(self);
}

static void response_dealloc(Response *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->status);
    Py_XDECREF(self->headers);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot response_slots[] = {
    {Py_tp_dealloc, response_dealloc},
    {Py_tp_call, start_response},
    {Py_tp_methods, response_methods},
    {Py_tp_doc, "start_response of one request."},
    {0, NULL},
};

static PyType_Spec response_spec = {"komainu.StartResponse", sizeof(Response), 0, Py_TPFLAGS_DEFAULT, response_slots};

void response_prepare(PyObject *wrapper, PyObject *part) {
    wrapper_class = new_ref(wrapper);
    file_part = new_ref(part);
}

int response_init(PyObject *module) {
    sends_files = !getenv("KOMAINU_NO_FILES");
    return (response_type = make_type(module, "StartResponse", &response_spec)) ? 0 : -1;
}

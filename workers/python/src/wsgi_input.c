/* wsgi.input: a request's body as a file. The server has removed the framing. */
#include "wsgi_input.h"

#include <string.h>

/* Number of bytes read ahead for reading lines. */
#define AHEAD_BYTES (16 * 1024)
/* Initial buffer size for a body of unknown length. */
#define GUESS_BYTES (16 * 1024)

typedef struct {
    PyObject_HEAD
    komainu_request *request; /* NULL after the end of the request */
    char *ahead;              /* bytes read from the request and not yet returned, of AHEAD_BYTES */
    Py_ssize_t at, end;
    int ended;
} Input;

static PyTypeObject *input_type;

/* Reads some of a body, and waits without the interpreter's lock. Returns 0 at the end, -1 with an exception. */
static Py_ssize_t body_read(komainu_request *request, char *into, Py_ssize_t size) {
    int64_t len = komainu_try_read(request, into, (size_t)size);
    if (len == KOMAINU_AGAIN) {
        Py_BEGIN_ALLOW_THREADS
        len = komainu_read(request, into, (size_t)size);
        Py_END_ALLOW_THREADS
    }
    return check(len) == 0 ? (Py_ssize_t)len : -1;
}

/* Reads some bytes, first those read ahead. Returns 0 at the end, -1 with an exception. */
static Py_ssize_t read_some(Input *self, char *into, Py_ssize_t size) {
    Py_ssize_t len = self->end - self->at;
    if (len > 0) {
        len = len < size ? len : size;
        memcpy(into, self->ahead + self->at, (size_t)len);
        self->at += len;
        return len;
    }
    if (self->ended || size == 0)
        return 0;
    if (!self->request || is_copy) {
        PyErr_SetString(PyExc_ValueError, "the request is over, and its body with it");
        return -1;
    }
    len = body_read(self->request, into, size);
    self->ended = len == 0;
    return len;
}

/* Reads ahead if nothing is buffered. Returns 0 at the end, -1 with an exception. */
static Py_ssize_t read_ahead(Input *self) {
    Py_ssize_t len;
    if (self->at < self->end)
        return self->end - self->at;
    if (!self->ahead && !(self->ahead = PyMem_Malloc(AHEAD_BYTES))) {
        PyErr_NoMemory();
        return -1;
    }
    self->at = self->end = 0;
    len = read_some(self, self->ahead, AHEAD_BYTES);
    self->end = len > 0 ? len : 0;
    return len;
}

/* Reads up to `most` bytes (if negative, up to the end), or with `line` up to the end of a line. */
static PyObject *read_bytes(Input *self, Py_ssize_t most, int line) {
    Py_ssize_t room = most >= 0 && most < GUESS_BYTES ? most : GUESS_BYTES, len = 0;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, line && room > 256 ? room = 256 : room);
    while (bytes && (most < 0 || len < most)) {
        char *into;
        Py_ssize_t got, want;
        if (len == room) {
            room = most >= 0 && most < room * 2 ? most : room * 2;
            if (bytes_resize(&bytes, len, room) != 0)
                return NULL;
        }
        into = PyBytes_AsString(bytes) + len;
        want = room - len;
        if (line) {
            char *end;
            got = read_ahead(self);
            if (got > 0) {
                want = want < got ? want : got;
                end = memchr(self->ahead + self->at, '\n', (size_t)want);
                got = read_some(self, into, end ? end - (self->ahead + self->at) + 1 : want);
            }
        } else {
            got = read_some(self, into, want);
        }
        if (got < 0)
            Py_CLEAR(bytes);
        if (got <= 0)
            break;
        len += got;
        if (line && into[got - 1] == '\n')
            break;
    }
    if (bytes && len < room)
        bytes_resize(&bytes, len, len);
    return bytes;
}

/* Parses the optional argument, a number or None. Returns -2 with an exception. */
static Py_ssize_t parse_size(PyObject *arguments) {
    PyObject *size = NULL;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(arguments, "|O", &size))
        return -2;
    if (!size || size == Py_None)
        return -1;
    most = PyNumber_AsSsize_t(size, PyExc_OverflowError);
    if (most == -1 && PyErr_Occurred())
        return -2;
    return most < 0 ? -1 : most;
}

static PyObject *input_read(Input *self, PyObject *arguments) {
    Py_ssize_t most = parse_size(arguments);
    return most == -2 ? NULL : read_bytes(self, most, 0);
}

static PyObject *input_readline(Input *self, PyObject *arguments) {
    Py_ssize_t most = parse_size(arguments);
    return most == -2 ? NULL : read_bytes(self, most, 1);
}

static PyObject *input_next(Input *self) {
    PyObject *line = read_bytes(self, -1, 1);
    if (line && PyBytes_Size(line) == 0)
        Py_CLEAR(line);
    return line;
}

static PyObject *input_readlines(Input *self, PyObject *arguments) {
    Py_ssize_t hint = parse_size(arguments), sum = 0;
    PyObject *lines, *line = NULL;
    if (hint == -2 || !(lines = PyList_New(0)))
        return NULL;
    while ((hint <= 0 || sum < hint) && (line = input_next(self))) {
        sum += PyBytes_Size(line);
        if (PyList_Append(lines, line) != 0)
            break;
        Py_CLEAR(line);
    }
    Py_XDECREF(line);
    if (PyErr_Occurred())
        Py_CLEAR(lines);
    return lines;
}

static PyObject *input_iter(PyObject *self) {
    Py_INCREF(self);
    return self;
}

static void input_dealloc(Input *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->ahead);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef input_methods[] = {
    {"read", (PyCFunction)input_read, METH_VARARGS, "Reads this number of bytes, or all of them."},
    {"readline", (PyCFunction)input_readline, METH_VARARGS, "The next line."},
    {"readlines", (PyCFunction)input_readlines, METH_VARARGS, "The lines that are left."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot input_slots[] = {
    {Py_tp_dealloc, input_dealloc}, {Py_tp_iter, input_iter},    {Py_tp_iternext, input_next},
    {Py_tp_methods, input_methods}, {Py_tp_doc, "A request's body."}, {0, NULL},
};

static PyType_Spec input_spec = {"komainu.Input", sizeof(Input), 0, Py_TPFLAGS_DEFAULT, input_slots};

int input_init(PyObject *module) {
    input_type = make_type(module, "Input", &input_spec);
    return input_type ? 0 : -1;
}

PyObject *input_new(komainu_request *request) {
    Input *self = PyObject_New(Input, input_type);
    if (!self)
        return NULL;
    self->request = request;
    self->ahead = NULL;
    self->at = self->end = 0;
    self->ended = request == NULL;
    return (PyObject *)self;
}

void input_close(PyObject *input) { ((Input *)input)->request = NULL; }

/* An awaitable whose value is ready. */
#include "ready.h"

typedef struct {
    PyObject_HEAD
    PyObject *value; /* NULL for None */
} Ready;

static PyTypeObject *ready_type;
PyObject *done_ready;

PyObject *ready_new(PyObject *value) {
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

/* asyncio's tasks need the methods of a coroutine: send, throw and close. */
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
    return new_ref(Py_None);
}

static PyObject *ready_await(PyObject *self) { return new_ref(self); }

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

int ready_init(PyObject *module) {
    if (!(ready_type = make_type(module, "Ready", &ready_spec)) ||
        !(done_ready = (PyObject *)PyObject_New(Ready, ready_type)))
        return -1;
    ((Ready *)done_ready)->value = NULL;
    return 0;
}

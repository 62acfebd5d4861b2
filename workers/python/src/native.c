/* The native module of the Python worker: seats, and the life cycle of the process. */
#include "asgi.h"
#include "wsgi.h"

#include <pthread.h>

static PyObject *raise_error(const char *error) {
    PyErr_SetString(PyExc_RuntimeError, error);
    return NULL;
}

/* ---- seats ---- */

/* A seat: one for each thread, or one for an event loop. */
typedef struct {
    PyObject_HEAD
    komainu_worker *worker; /* NULL after it was released */
} Seat;

static PyTypeObject *seat_type;

/* take_seat(index of the seat in this process, from 0) */
static PyObject *take_seat(PyObject *module, PyObject *index) {
    char error[512];
    long at = PyLong_AsLong(index);
    Seat *seat;
    (void)module;
    if (at == -1 && PyErr_Occurred())
        return NULL;
    if (!(seat = PyObject_New(Seat, seat_type)))
        return NULL;
    seat->worker = komainu_attach(KOMAINU_ABI, komainu_seat() + (int)at, error, sizeof error);
    if (!seat->worker) {
        Py_DECREF(seat);
        return raise_error(error);
    }
    is_copy = 0;
    return (PyObject *)seat;
}

static int must_be_held(const Seat *seat) {
    if (seat->worker && !is_copy)
        return 0;
    raise_error("the seat was released");
    return -1;
}

static PyObject *seat_serve(Seat *self, PyObject *app) {
    return must_be_held(self) ? NULL : wsgi_serve(&self->worker, app);
}

static PyObject *seat_claim(Seat *self, PyObject *most) {
    return must_be_held(self) ? NULL : asgi_claim(self->worker, most);
}

static PyObject *seat_fileno(Seat *self, PyObject *unused) {
    (void)unused;
    return must_be_held(self) ? NULL : PyLong_FromLong(komainu_fd(self->worker));
}

static PyObject *seat_arm(Seat *self, PyObject *wanted) {
    int wants = PyObject_IsTrue(wanted);
    return wants < 0 || must_be_held(self) ? NULL : PyBool_FromLong(komainu_arm(self->worker, wants));
}

static PyObject *seat_disarm(Seat *self, PyObject *unused) {
    (void)unused;
    if (must_be_held(self))
        return NULL;
    komainu_disarm(self->worker);
    return new_ref(Py_None);
}

static PyObject *seat_quiet(Seat *self, PyObject *unused) {
    (void)unused;
    if (must_be_held(self))
        return NULL;
    komainu_quiet(self->worker);
    return new_ref(Py_None);
}

static PyObject *seat_leave(Seat *self, PyObject *unused) {
    (void)unused;
    if (must_be_held(self))
        return NULL;
    komainu_detach(self->worker);
    self->worker = NULL;
    return new_ref(Py_None);
}

static PyMethodDef seat_methods[] = {
    {"serve", (PyCFunction)seat_serve, METH_O, "Answers requests with a WSGI application until the worker must leave."},
    {"claim", (PyCFunction)seat_claim, METH_O, "Claims up to this number of requests; None if the worker must leave."},
    {"fileno", (PyCFunction)seat_fileno, METH_NOARGS, "The descriptor that is readable when the server has news."},
    {"arm", (PyCFunction)seat_arm, METH_O, "Before sleeping: False without arming if there is a request to claim."},
    {"disarm", (PyCFunction)seat_disarm, METH_NOARGS, "After sleeping; call claim() next."},
    {"quiet", (PyCFunction)seat_quiet, METH_NOARGS, "Makes fileno() unreadable again."},
    {"leave", (PyCFunction)seat_leave, METH_NOARGS, "Releases the seat, which holds no request."},
    {NULL, NULL, 0, NULL},
};

static void seat_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot seat_slots[] = {{Py_tp_dealloc, seat_dealloc}, {Py_tp_methods, seat_methods}, {0, NULL}};

static PyType_Spec seat_spec = {"komainu.Seat", sizeof(Seat), 0, Py_TPFLAGS_DEFAULT, seat_slots};

/* ---- the life cycle of the process ---- */

/* begin() -> "prototype" or "worker" */
static PyObject *life_begin(PyObject *module, PyObject *unused) {
    char error[512];
    (void)module;
    (void)unused;
    switch (komainu_begin(error, sizeof error)) {
    case KOMAINU_PROTOTYPE: return PyUnicode_FromString("prototype");
    case KOMAINU_WORKER: return PyUnicode_FromString("worker");
    default: return raise_error(error);
    }
}

static PyObject *life_loaded(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return komainu_loaded() == 0 ? new_ref(Py_None) : raise_error("the server has closed the control socket");
}

static PyObject *life_single(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    komainu_single();
    return new_ref(Py_None);
}

static PyObject *report(PyObject *text, void (*listener)(const char *, size_t)) {
    PyObject *bytes = PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace");
    if (!bytes)
        return NULL;
    listener(PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes));
    Py_DECREF(bytes);
    return new_ref(Py_None);
}

static PyObject *life_not_loaded(PyObject *module, PyObject *text) {
    (void)module;
    return report(text, komainu_not_loaded);
}

static PyObject *life_not_forked(PyObject *module, PyObject *text) {
    (void)module;
    return report(text, komainu_not_forked);
}

static PyObject *life_ending(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    komainu_leaving();
    return new_ref(Py_None);
}

/* order() -> True to fork, False to exit */
static PyObject *life_order(PyObject *module, PyObject *unused) {
    int order;
    (void)module;
    (void)unused;
    do {
        if (PyErr_CheckSignals() != 0)
            return NULL;
        Py_BEGIN_ALLOW_THREADS
        order = komainu_order();
        Py_END_ALLOW_THREADS
    } while (order == KOMAINU_SIGNAL);
    return PyBool_FromLong(order == KOMAINU_FORK);
}

static PyObject *life_born(PyObject *module, PyObject *unused) {
    char error[512];
    (void)module;
    (void)unused;
    return komainu_born(error, sizeof error) == 0 ? new_ref(Py_None) : raise_error(error);
}

static PyObject *life_seats(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromLong(komainu_seats());
}

static PyObject *life_leave(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leaving = 1;
    return new_ref(Py_None);
}

static PyObject *life_leaving(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyBool_FromLong(leaving);
}

static PyMethodDef functions[] = {
    {"begin", life_begin, METH_NOARGS, "The role of this process: \"prototype\" or \"worker\"."},
    {"loaded", life_loaded, METH_NOARGS, "Reports that the application is loaded, or that the worker is ready."},
    {"ending", life_ending, METH_NOARGS, "Reports that this worker takes no more requests."},
    {"single", life_single, METH_NOARGS, "Reports that each thread of this worker has one request at a time."},
    {"not_loaded", life_not_loaded, METH_O, "Reports why the application cannot be loaded."},
    {"order", life_order, METH_NOARGS, "Waits for a command: True to fork a worker, False to leave."},
    {"not_forked", life_not_forked, METH_O, "Reports why there is no worker."},
    {"born", life_born, METH_NOARGS, "Prepares a forked worker."},
    {"seats", life_seats, METH_NOARGS, "The number of seats of this worker."},
    {"take_seat", take_seat, METH_O, "Takes one of the seats."},
    {"leave", life_leave, METH_NOARGS, "Stops claiming requests."},
    {"leaving", life_leaving, METH_NOARGS, "Whether leave() was called."},
    {"prepare_wsgi", wsgi_prepare, METH_VARARGS, "Sets the constant entries of environ, and the Python half of WSGI."},
    {"prepare_asgi", asgi_prepare, METH_VARARGS, "Sets the constant entries of scopes, and the Python half of ASGI."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "komainu._native", "The native half of Komainu's Python worker.", -1, functions, NULL, NULL,
    NULL, NULL,
};

static void mark_copy(void) { is_copy = 1; }

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    gone_class = PyErr_NewExceptionWithDoc("komainu.Gone", "Nobody waits for the answer any more.",
                                           PyExc_ConnectionAbortedError, NULL);
    if (!gone_class || !(seat_type = make_type(module, "Seat", &seat_spec)))
        return NULL;
    Py_INCREF(gone_class);
    if (PyModule_AddObject(module, "Gone", gone_class) != 0 || wsgi_init(module) != 0 || asgi_init(module) != 0)
        return NULL;
    pthread_atfork(NULL, NULL, mark_copy);
    return module;
}

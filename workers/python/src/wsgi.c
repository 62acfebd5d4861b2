/* WSGI (PEP 3333): claims requests, calls the application, and handles its failures. */
#include "wsgi.h"
#include "wsgi_environ.h"
#include "wsgi_input.h"
#include "wsgi_response.h"

static PyObject *close_text;
/* The function of the Python half that logs an exception. */
static PyObject *log_failure;
/* Number of requests that the threads of this process are answering. */
static int held_requests;

/* Whether the exception that is set ends the worker rather than the request. */
static int ends_worker(void) {
    return PyErr_ExceptionMatches(PyExc_SystemExit) || PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
}

/* Logs the exception that is set. */
static void log_exception(PyObject *environ) {
    PyObject *type, *value, *trace, *done;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace)
        PyException_SetTraceback(value, trace);
    if (!PyErr_GivenExceptionMatches(type, gone_class)) {
        done = PyObject_CallFunctionObjArgs(log_failure, value, environ ? environ : Py_None, NULL);
        if (!done)
            PyErr_WriteUnraisable(log_failure);
        Py_XDECREF(done);
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
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
static int answer_request(PyObject *app, komainu_request *request) {
    PyObject *environ = NULL, *input = NULL, *body = NULL;
    int ends = 0;
    Response *response = response_new(request);
    if (!response) {
        komainu_abort(request, APPLICATION_FAILED);
        return -1;
    }
    environ = environ_new(request, &input);
    if (environ)
        body = PyObject_CallFunctionObjArgs(app, environ, (PyObject *)response, NULL);
    if (body && response_write(response, body) == 0) {
        response_end(response);
    } else {
        ends = ends_worker();
        if (!ends)
            log_exception(environ);
        response_fail(response, ends);
    }
    if (input)
        input_close(input);
    if (body) {
        PyObject *type = NULL, *value = NULL, *trace = NULL;
        if (ends)
            PyErr_Fetch(&type, &value, &trace);
        /* The response is complete; the client does not wait for the rest. */
        if (close_body(body) != 0 && !(ends |= ends_worker()))
            log_exception(environ);
        if (type)
            PyErr_Restore(type, value, trace);
    }
    response_release(response);
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
    failed = answer_request(app, request);
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

PyObject *wsgi_serve(komainu_worker **seat, PyObject *app) {
    komainu_request *request = NULL;
    komainu_worker *worker = *seat;
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
    *seat = NULL;
    if (!is_copy)
        komainu_detach(worker);
    return failed ? NULL : new_ref(Py_None);
}

PyObject *wsgi_prepare(PyObject *module, PyObject *arguments) {
    PyObject *constants, *wrapper, *part;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!OOO", &PyDict_Type, &constants, &wrapper, &part, &log_failure))
        return NULL;
    Py_INCREF(log_failure);
    response_prepare(wrapper, part);
    return environ_prepare(constants) == 0 ? new_ref(Py_None) : NULL;
}

int wsgi_init(PyObject *module) {
    close_text = intern("close");
    return close_text && input_init(module) == 0 && environ_init() == 0 && response_init(module) == 0 ? 0 : -1;
}

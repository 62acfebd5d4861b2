/* One request of ASGI, and the futures that wait for it. */
#include "asgi_call.h"

static const char *const key_texts[KEYS] = {
    "type",      "http_version", "method",   "scheme",        "path",  "raw_path",     "query_string",
    "root_path", "headers",      "client",   "server",        "state", "extensions",   "body",
    "more_body", "status",       "trailers", "more_trailers", "links", "subprotocols", "komainu.target",
};

PyObject *keys[KEYS];
PyObject *empty_bytes;
static PyObject *set_result_text, *done_text;

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

int wake_waiters(PyObject **waiters) {
    PyObject *futures = *waiters;
    Py_ssize_t at;
    int failed = 0;
    *waiters = NULL;
    for (at = 0; futures && !failed && at < PyList_Size(futures); at++)
        failed = wake_one(PyList_GetItem(futures, at));
    Py_XDECREF(futures);
    return failed;
}

PyObject *add_waiter(PyObject **waiters, PyObject *future) {
    if ((!*waiters && !(*waiters = PyList_New(0))) || PyList_Append(*waiters, future) != 0)
        return NULL;
    return new_ref(Py_None);
}

int call_end(Call *self) {
    komainu_request *request = self->request;
    self->request = NULL;
    self->stage = OVER;
    if (request)
        komainu_end(request);
    return wake_waiters(&self->readers);
}

int call_init(void) {
    int at;
    for (at = 0; at < KEYS; at++)
        if (!(keys[at] = intern(key_texts[at])))
            return -1;
    return (empty_bytes = PyBytes_FromStringAndSize("", 0)) && (set_result_text = intern("set_result")) &&
                   (done_text = intern("done"))
               ? 0
               : -1;
}

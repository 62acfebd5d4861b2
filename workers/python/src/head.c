/* Heads of responses. */
#include "head.h"

#include <string.h>
#include <strings.h>

void head_begin(struct head *head) {
    head->at = head->fields;
    head->count = 0;
    head->room = FIELDS_INLINE;
    head->kept = NULL;
    head->length = -1;
}

void head_end(struct head *head) {
    if (head->at != head->fields)
        PyMem_Free(head->at);
    Py_CLEAR(head->kept);
}

int head_add(struct head *head, const char *name, size_t name_len, const char *value, size_t value_len) {
    komainu_field *field;
    if (name_len > UINT32_MAX || value_len > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a header longer than any client would read");
        return -1;
    }
    if (head->count == head->room) {
        size_t bytes = head->room * sizeof *head->at;
        komainu_field *more = PyMem_Malloc(bytes * 4);
        if (!more) {
            PyErr_NoMemory();
            return -1;
        }
        memcpy(more, head->at, bytes);
        if (head->at != head->fields)
            PyMem_Free(head->at);
        head->at = more;
        head->room *= 4;
    }
    field = &head->at[head->count++];
    field->name = name;
    field->name_len = (uint32_t)name_len;
    field->value = value;
    field->value_len = (uint32_t)value_len;
    field->id = 0;
    return 0;
}

static int keep_object(struct head *head, PyObject *object) {
    int failed;
    if (!head->kept && !(head->kept = PyList_New(0)))
        return -1;
    failed = PyList_Append(head->kept, object);
    Py_DECREF(object);
    return failed;
}

static int is_ascii(const char *text, Py_ssize_t len) {
    Py_ssize_t at;
    unsigned char bits = 0;
    for (at = 0; at < len; at++)
        bits |= (unsigned char)text[at];
    return bits < 0x80;
}

int head_text(struct head *head, PyObject *object, int bytes, const char **text, size_t *len) {
    Py_ssize_t size;
    if (bytes && PyBytes_Check(object)) {
        *text = PyBytes_AsString(object);
        *len = (size_t)PyBytes_Size(object);
        return 0;
    }
    if (PyUnicode_Check(object) && !bytes) {
        *text = PyUnicode_AsUTF8AndSize(object, &size);
        if (*text && is_ascii(*text, size)) {
            *len = (size_t)size;
            return 0;
        }
        PyErr_Clear();
        object = PyUnicode_AsLatin1String(object);
    } else if (bytes && !PyUnicode_Check(object)) {
        object = PyBytes_FromObject(object);
    } else {
        PyErr_Format(PyExc_TypeError, "a header is made of %s, not of %R", bytes ? "bytes" : "str", Py_TYPE(object));
        return -1;
    }
    if (!object || keep_object(head, object) != 0)
        return -1;
    *text = PyBytes_AsString(object);
    *len = (size_t)PyBytes_Size(object);
    return 0;
}

/* Parses a decimal number; returns -1 if it is invalid. */
static int64_t parse_number(const char *text, size_t len) {
    int64_t sum = 0;
    size_t at;
    if (len == 0 || len > 18)
        return -1;
    for (at = 0; at < len; at++) {
        if (text[at] < '0' || text[at] > '9')
            return -1;
        sum = sum * 10 + (text[at] - '0');
    }
    return sum;
}

int head_pair(struct head *head, PyObject *name, PyObject *value, int bytes) {
    const char *name_text, *value_text;
    size_t name_len, value_len;
    if (head_text(head, name, bytes, &name_text, &name_len) != 0 ||
        head_text(head, value, bytes, &value_text, &value_len) != 0)
        return -1;
    if (name_len == 14 && strncasecmp(name_text, "content-length", 14) == 0)
        head->length = parse_number(value_text, value_len);
    return head_add(head, name_text, name_len, value_text, value_len);
}

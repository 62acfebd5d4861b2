/* Conversions between bytes and strings, and heads. */
#include "native.h"

#include <string.h>
#include <strings.h>

PyObject *latin1(const char *bytes, size_t len) { return PyUnicode_DecodeLatin1(bytes, (Py_ssize_t)len, NULL); }

PyObject *field_text(const komainu_field *field) { return latin1(field->value, field->value_len); }

static unsigned cookie_id, authorization_id;

int is_secret(unsigned id) {
    if (!cookie_id)
        for (unsigned at = 32; at < 256; at++) {
            size_t len;
            const char *name = komainu_name(at, &len);
            if (name && len == 6 && memcmp(name, "cookie", len) == 0)
                cookie_id = at;
            if (name && len == 13 && memcmp(name, "authorization", len) == 0)
                authorization_id = at;
        }
    return id == cookie_id || id == authorization_id;
}

#ifdef KOMAINU_WHOLE_API
/* Not for free-threaded interpreters: threads would need a lock for it. */
PyObject *field_text_kept(const komainu_field *field) { return field_text(field); }
#else
/* The last value of each field. */
static PyObject *kept_texts[256];

PyObject *field_text_kept(const komainu_field *field) {
    PyObject **kept = &kept_texts[field->id & 255], *text = *kept;
    Py_ssize_t len;
    const char *bytes;
    if (text) {
        if (!(bytes = PyUnicode_AsUTF8AndSize(text, &len)))
            return NULL;
        if ((size_t)len == field->value_len && memcmp(bytes, field->value, (size_t)len) == 0) {
            Py_INCREF(text);
            return text;
        }
    }
    text = field_text(field);
    if (!text || field->id == 0 || field->id > 255 || field->value_len > KEPT_BYTES_MAX || is_secret(field->id))
        return text;
    /* Only ASCII, because then the UTF-8 form equals the bytes and can be compared with the next value. */
    for (len = 0; len < (Py_ssize_t)field->value_len; len++)
        if ((unsigned char)field->value[len] >= 0x80)
            return text;
    Py_XDECREF(*kept);
    Py_INCREF(text);
    *kept = text;
    return text;
}
#endif

int bytes_resize(PyObject **bytes, Py_ssize_t used, Py_ssize_t size) {
    PyObject *before = *bytes;
    *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (*bytes)
        memcpy(PyBytes_AsString(*bytes), PyBytes_AsString(before), (size_t)used);
    Py_DECREF(before);
    return *bytes ? 0 : -1;
}

int field_is(const komainu_field *field, const char *text) {
    return field->value_len == strlen(text) && memcmp(field->value, text, field->value_len) == 0;
}

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

static int keep(struct head *head, PyObject *object) {
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
    if (!object || keep(head, object) != 0)
        return -1;
    *text = PyBytes_AsString(object);
    *len = (size_t)PyBytes_Size(object);
    return 0;
}

/* Parses a decimal number; returns -1 if it is invalid. */
static int64_t number(const char *text, size_t len) {
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
        head->length = number(value_text, value_len);
    return head_add(head, name_text, name_len, value_text, value_len);
}

/* Conversions between bytes and strings. */
#include "text.h"

#include <string.h>

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
/* Free-threaded interpreters keep no texts: threads would need a lock for it. */
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

int field_is(const komainu_field *field, const char *text) {
    return field->value_len == strlen(text) && memcmp(field->value, text, field->value_len) == 0;
}

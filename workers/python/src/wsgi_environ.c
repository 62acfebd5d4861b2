/* environ of PEP 3333. */
#include "wsgi_environ.h"
#include "text.h"
#include "wsgi_input.h"

#include <string.h>

/* Longer names of unknown header fields are not cached. */
#define NAME_BYTES_MAX 256

enum { METHOD, SCRIPT, PATH, QUERY, URI, RAW_URI, SERVER, PORT, PROTOCOL, ADDRESS, PEER, SCHEME, INPUT, TARGET, KEYS };

static const char *const key_texts[KEYS] = {
    "REQUEST_METHOD", "SCRIPT_NAME", "PATH_INFO",       "QUERY_STRING", "REQUEST_URI", "RAW_URI",         "SERVER_NAME",
    "SERVER_PORT",    "SERVER_PROTOCOL", "REMOTE_ADDR", "REMOTE_PORT",  "wsgi.url_scheme", "wsgi.input",
    "komainu.target",
};

static PyObject *keys[KEYS];
static PyObject *header_keys[256];
static unsigned length_id, coding_id, cookie_id;
/* Values that are equal in most requests. */
static PyObject *empty_text, *get_text, *http_text, *https_text, *one_one_text, *slash_text, *empty_input;
/* The constant entries of every environ. */
static PyObject *template;

/* Returns the key of a header field: HTTP_ACCEPT for accept. */
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

/* Sets an entry; steals the reference to the value. */
static int put(PyObject *environ, PyObject *key, PyObject *value) {
    int failed = value ? PyDict_SetItem(environ, key, value) : -1;
    Py_XDECREF(value);
    return failed;
}

/* Sets the variable of a field; joins repeated fields. */
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

/* Returns the path; `/` for the target of `OPTIONS *`, which is in REQUEST_URI. */
static PyObject *path_of(const komainu_field *field) {
    int is_root = field->value_len == 1 || (field->value_len && field->value[0] != '/');
    return is_root ? new_ref(slash_text) : field_text_kept(field);
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
        return put(environ, keys[METHOD], field_is(field, "GET") ? new_ref(get_text) : field_text_kept(field));
    case KOMAINU_TARGET: return put_target(environ, field);
    case KOMAINU_SCRIPT_NAME: return put(environ, keys[SCRIPT], field_text_kept(field));
    case KOMAINU_PATH: return put(environ, keys[PATH], path_of(field));
    case KOMAINU_QUERY: return put(environ, keys[QUERY], field_text_kept(field));
    case KOMAINU_PROTOCOL:
        return put(environ, keys[PROTOCOL],
                   field_is(field, "HTTP/1.1") ? new_ref(one_one_text) : field_text_kept(field));
    case KOMAINU_SCHEME:
        return put(environ, keys[SCHEME], new_ref(field_is(field, "https") ? https_text : http_text));
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

PyObject *environ_new(komainu_request *request, PyObject **input) {
    PyObject *environ = PyDict_Copy(template);
    const komainu_field *fields, *field;
    size_t count = komainu_fields(request, &fields);
    uint64_t seen[4] = {0, 0, 0, 0};
    int has_body = 0, failed = environ ? 0 : -1;
    *input = NULL;
    for (field = fields; !failed && field < fields + count; field++)
        failed = put_field(environ, field, seen, &has_body);
    if (!failed) {
        PyObject *body = has_body ? (*input = input_new(request)) : empty_input;
        failed = body ? PyDict_SetItem(environ, keys[INPUT], body) : -1;
    }
    if (failed)
        Py_CLEAR(environ);
    return environ;
}

int environ_prepare(PyObject *constants) {
    int at;
    if (!(template = PyDict_Copy(constants)))
        return -1;
    /* Sized for all entries, so that copies of it need not grow. */
    for (at = 0; at < KEYS; at++)
        if (PyDict_SetItem(template, keys[at], empty_text) != 0)
            return -1;
    return PyDict_DelItem(template, keys[PEER]) != 0 || PyDict_DelItem(template, keys[TARGET]) != 0 ? -1 : 0;
}

int environ_init(void) {
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
    return (empty_text = intern("")) && (get_text = intern("GET")) && (http_text = intern("http")) &&
                   (https_text = intern("https")) && (one_one_text = intern("HTTP/1.1")) &&
                   (slash_text = intern("/")) && (empty_input = input_new(NULL))
               ? 0
               : -1;
}

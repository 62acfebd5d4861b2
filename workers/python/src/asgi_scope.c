/* scope of ASGI. */
#include "asgi_scope.h"
#include "text.h"

#include <string.h>

/* Longer names of unknown header fields are not cached. */
#define NAME_BYTES_MAX 256

static PyObject *header_names[256];
static unsigned length_id, coding_id;
static PyObject *get_text, *http_text, *one_one_text, *one_zero_text, *two_text, *three_text, *slash_text, *empty_text;
static PyObject *websocket_text, *ws_text, *wss_text;
/* Copied for each scope. */
static PyObject *scope_template, *scope_state, *http_extensions, *socket_extensions;

/* Sets an entry; steals the reference to the value. */
static int put(PyObject *dict, int key, PyObject *value) {
    int failed = value ? PyDict_SetItem(dict, keys[key], value) : -1;
    Py_XDECREF(value);
    return failed;
}

static PyObject *bytes_of(const char *bytes, size_t len) {
    return len ? PyBytes_FromStringAndSize(bytes, (Py_ssize_t)len) : new_ref(empty_bytes);
}

static PyObject *header_name(const komainu_field *field) {
    char name[NAME_BYTES_MAX];
    uint32_t at;
    if (field->id)
        return new_ref(header_names[field->id]);
    for (at = 0; at < field->name_len; at++) {
        char byte = field->name[at];
        name[at] = byte >= 'A' && byte <= 'Z' ? (char)(byte + 32) : byte;
    }
    return PyBytes_FromStringAndSize(name, field->name_len);
}

static PyObject *header_pair(const komainu_field *field) {
    PyObject *name = header_name(field), *value = bytes_of(field->value, field->value_len), *pair;
    pair = name && value ? PyTuple_Pack(2, name, value) : NULL;
    Py_XDECREF(name);
    Py_XDECREF(value);
    return pair;
}

#ifdef KOMAINU_WHOLE_API
/* Free-threaded interpreters keep no pairs: threads would need a lock for it. */
static PyObject *header_pair_kept(const komainu_field *field) { return header_pair(field); }
#else
/* Returns the last pair of the field again if the value is the same. */
static PyObject *header_pair_kept(const komainu_field *field) {
    static PyObject *kept[256];
    PyObject *pair = kept[field->id], *value;
    if (pair) {
        value = PyTuple_GetItem(pair, 1);
        if (PyBytes_Size(value) == field->value_len &&
            memcmp(PyBytes_AsString(value), field->value, field->value_len) == 0)
            return new_ref(pair);
    }
    pair = header_pair(field);
    if (pair && field->id && field->value_len <= KEPT_BYTES_MAX && !is_secret(field->id)) {
        Py_XDECREF(kept[field->id]);
        kept[field->id] = new_ref(pair);
    }
    return pair;
}
#endif

static int add_header(PyObject *headers, const komainu_field *field) {
    PyObject *pair;
    int failed;
    if (field->id > 255 || (field->id && !header_names[field->id]) || field->name_len > NAME_BYTES_MAX)
        return 0;
    pair = header_pair_kept(field);
    failed = pair ? PyList_Append(headers, pair) : -1;
    Py_XDECREF(pair);
    return failed;
}

static int64_t parse_number(const komainu_field *field) {
    int64_t sum = 0;
    uint32_t at;
    for (at = 0; at < field->value_len && at < 18; at++)
        sum = sum * 10 + (field->value[at] - '0');
    return sum;
}

/* Returns (host, port), or None. */
static PyObject *address_pair(const komainu_field *host, const komainu_field *port) {
    if (!host)
        return new_ref(Py_None);
    return Py_BuildValue("(s#i)", host->value, (Py_ssize_t)host->value_len, port ? (int)parse_number(port) : 0);
}

static PyObject *decode_path(const komainu_field *root, const komainu_field *path) {
    PyObject *above, *below, *whole;
    if (!path || (!root && (path->value_len == 1 || path->value[0] != '/')))
        return new_ref(slash_text);
    below = PyUnicode_DecodeUTF8(path->value, path->value_len, "replace");
    if (!root || !below)
        return below;
    above = PyUnicode_DecodeUTF8(root->value, root->value_len, "replace");
    whole = above ? PyUnicode_Concat(above, below) : NULL;
    Py_XDECREF(above);
    Py_DECREF(below);
    return whole;
}

/* The whole path, percent-encoded. */
static PyObject *raw_path(const komainu_field *target) {
    const char *query;
    if (!target)
        return new_ref(empty_bytes);
    query = memchr(target->value, '?', target->value_len);
    return bytes_of(target->value, query ? (size_t)(query - target->value) : target->value_len);
}

static PyObject *http_version(const komainu_field *field) {
    if (!field || field_is(field, "HTTP/1.1"))
        return new_ref(one_one_text);
    if (field_is(field, "HTTP/1.0"))
        return new_ref(one_zero_text);
    /* ASGI has no minor number here. */
    if (field_is(field, "HTTP/2.0"))
        return new_ref(two_text);
    if (field_is(field, "HTTP/3.0"))
        return new_ref(three_text);
    return field->value_len > 5 ? latin1(field->value + 5, field->value_len - 5) : new_ref(one_one_text);
}

/* The list of subprotocols, such as ["chat", "superchat"]. */
static PyObject *subprotocol_list(const komainu_field *field) {
    PyObject *list = PyList_New(0), *text;
    const char *at = field->value, *end = at + field->value_len;
    int failed = list ? 0 : -1;
    while (!failed && at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at)), *last = comma ? comma : end;
        while (at < last && *at == ' ')
            at++;
        while (last > at && last[-1] == ' ')
            last--;
        text = latin1(at, (size_t)(last - at));
        failed = !text || (last > at && PyList_Append(list, text) != 0);
        Py_XDECREF(text);
        at = comma ? comma + 1 : end;
    }
    if (failed)
        Py_CLEAR(list);
    return list;
}

/* Adds the keys of a WebSocket's scope. */
static int fill_socket(PyObject *scope, const komainu_field *protocols, const komainu_field *scheme) {
    return put(scope, TYPE, new_ref(websocket_text)) != 0 ||
                   put(scope, SUBPROTOCOLS, subprotocol_list(protocols)) != 0 ||
                   put(scope, SCHEME, new_ref(scheme && field_is(scheme, "https") ? wss_text : ws_text)) != 0
               ? -1
               : 0;
}

/* Adds the keys of a request's scope. */
static int fill_request(PyObject *scope, const komainu_field *method, const komainu_field *scheme) {
    if (put(scope, METHOD, !method || field_is(method, "GET") ? new_ref(get_text) : field_text(method)) != 0)
        return -1;
    return scheme && !field_is(scheme, "http") ? put(scope, SCHEME, field_text(scheme)) : 0;
}

/* ---- the extension tls ---- */

/* The server's cipher suites: their OpenSSL names, and their numbers in the protocol. */
static const struct {
    const char *name;
    long number;
} ciphers[] = {
    {"TLS_AES_128_GCM_SHA256", 0x1301},        {"TLS_AES_256_GCM_SHA384", 0x1302},
    {"TLS_CHACHA20_POLY1305_SHA256", 0x1303},  {"ECDHE-ECDSA-AES128-GCM-SHA256", 0xc02b},
    {"ECDHE-ECDSA-AES256-GCM-SHA384", 0xc02c}, {"ECDHE-RSA-AES128-GCM-SHA256", 0xc02f},
    {"ECDHE-RSA-AES256-GCM-SHA384", 0xc030},   {"ECDHE-ECDSA-CHACHA20-POLY1305", 0xcca9},
    {"ECDHE-RSA-CHACHA20-POLY1305", 0xcca8},
};

static PyObject *cipher_number(const char *name, size_t len) {
    size_t i;
    for (i = 0; i < sizeof ciphers / sizeof *ciphers; i++)
        if (strlen(ciphers[i].name) == len && memcmp(ciphers[i].name, name, len) == 0)
            return PyLong_FromLong(ciphers[i].number);
    return new_ref(Py_None);
}

/* Returns the field's value if it is the variable `name`, which ends with `=`. */
static const char *variable_value(const komainu_field *field, const char *name, size_t *len) {
    size_t name_len = strlen(name);
    if (field->id != KOMAINU_VARIABLE || field->value_len < name_len || memcmp(field->value, name, name_len) != 0)
        return NULL;
    *len = field->value_len - name_len;
    return field->value + name_len;
}

static int put_text(PyObject *dict, const char *key, PyObject *value) {
    int failed = !value || PyDict_SetItemString(dict, key, value) != 0;
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

/* Adds the entry of a variable, if it has one. */
static int put_tls_variable(PyObject *tls, const komainu_field *field) {
    const char *value;
    size_t len;
    if ((value = variable_value(field, "SSL_PROTOCOL=", &len))) {
        int is_13 = len == 7 && memcmp(value, "TLSv1.3", 7) == 0;
        return put_text(tls, "tls_version", PyLong_FromLong(is_13 ? 0x0304 : 0x0303));
    }
    if ((value = variable_value(field, "SSL_CIPHER=", &len)))
        return put_text(tls, "cipher_suite", cipher_number(value, len));
    if ((value = variable_value(field, "SSL_CLIENT_S_DN=", &len)))
        return put_text(tls, "client_cert_name", PyUnicode_DecodeUTF8(value, (Py_ssize_t)len, "replace"));
    if ((value = variable_value(field, "SSL_CLIENT_CERT=", &len))) {
        PyObject *pem = latin1(value, len), *chain = pem ? PyTuple_Pack(1, pem) : NULL;
        Py_XDECREF(pem);
        return put_text(tls, "client_cert_chain", chain);
    }
    return 0;
}

/*
 * The tls extension of ASGI, from the variables of a connection whose site requests client certificates. Only the leaf
 * certificate of the client's chain is available, and the server's certificate is not.
 */
static PyObject *tls_new(Call *call) {
    const komainu_field *fields, *field;
    size_t count = komainu_fields(call->request, &fields);
    PyObject *tls = PyDict_New();
    int failed = !tls || put_text(tls, "server_cert", new_ref(Py_None)) != 0 ||
                 put_text(tls, "client_cert_chain", PyTuple_New(0)) != 0 ||
                 put_text(tls, "client_cert_name", new_ref(Py_None)) != 0 ||
                 put_text(tls, "client_cert_error", new_ref(Py_None)) != 0 ||
                 put_text(tls, "tls_version", new_ref(Py_None)) != 0 ||
                 put_text(tls, "cipher_suite", new_ref(Py_None)) != 0;
    for (field = fields; !failed && field < fields + count; field++)
        failed = put_tls_variable(tls, field) != 0;
    if (failed)
        Py_CLEAR(tls);
    return tls;
}

/* The extensions that a scope offers. */
static PyObject *extensions_new(Call *call) {
    PyObject *extensions = PyDict_Copy(call->is_socket ? socket_extensions : http_extensions);
    if (extensions && call->has_tls && put_text(extensions, "tls", tls_new(call)) != 0)
        Py_CLEAR(extensions);
    return extensions;
}

/* Fills a scope, and sets the expected length of the body. */
static int fill_scope(PyObject *scope, PyObject *headers, Call *call) {
    const komainu_field *parts[17] = {NULL}, *fields, *field;
    size_t count = komainu_fields(call->request, &fields);
    call->body_ended = 1;
    call->has_tls = 0;
    for (field = fields; field < fields + count; field++) {
        if (field->id > 0 && field->id < 17) {
            parts[field->id] = field;
            continue;
        }
        if (field->id > 0 && field->id < 32) {
            size_t len;
            /* Variables are not part of a scope; SSL_PROTOCOL shows that the TLS variables were sent. */
            call->has_tls |= variable_value(field, "SSL_PROTOCOL=", &len) != NULL;
            continue;
        }
        if (field->id && (field->id == coding_id || (field->id == length_id && !field_is(field, "0")))) {
            call->body_ended = 0;
            call->left = field->id == length_id ? parse_number(field) : -1;
        }
        if (add_header(headers, field) != 0)
            return -1;
    }
    call->is_socket = parts[KOMAINU_WEBSOCKET] != NULL;
    if ((call->is_socket ? fill_socket(scope, parts[KOMAINU_WEBSOCKET], parts[KOMAINU_SCHEME])
                         : fill_request(scope, parts[KOMAINU_METHOD], parts[KOMAINU_SCHEME])) != 0 ||
        put(scope, HTTP_VERSION, http_version(parts[KOMAINU_PROTOCOL])) != 0 ||
        put(scope, PATH, decode_path(parts[KOMAINU_SCRIPT_NAME], parts[KOMAINU_PATH])) != 0 ||
        put(scope, RAW_PATH, raw_path(parts[KOMAINU_TARGET])) != 0 ||
        put(scope, CLIENT, address_pair(parts[KOMAINU_REMOTE_ADDR], parts[KOMAINU_REMOTE_PORT])) != 0 ||
        put(scope, SERVER, address_pair(parts[KOMAINU_SERVER_NAME], parts[KOMAINU_SERVER_PORT])) != 0)
        return -1;
    field = parts[KOMAINU_APP_TARGET];
    if (field && put(scope, TARGET, field_text(field)) != 0)
        return -1;
    field = parts[KOMAINU_QUERY];
    if (field && put(scope, QUERY, bytes_of(field->value, field->value_len)) != 0)
        return -1;
    field = parts[KOMAINU_SCRIPT_NAME];
    if (field && put(scope, ROOT_PATH, PyUnicode_DecodeUTF8(field->value, field->value_len, "replace")) != 0)
        return -1;
    return 0;
}

PyObject *scope_new(Call *call) {
    PyObject *scope = PyDict_Copy(scope_template), *headers = PyList_New(0);
    int failed = !scope || !headers || fill_scope(scope, headers, call) != 0 ||
                 PyDict_SetItem(scope, keys[HEADERS], headers) != 0 ||
                 put(scope, STATE, PyDict_Copy(scope_state)) != 0 || put(scope, EXTENSIONS, extensions_new(call)) != 0;
    Py_XDECREF(headers);
    if (failed)
        Py_CLEAR(scope);
    return scope;
}

int scope_prepare(PyObject *constants, PyObject *state, PyObject *http, PyObject *socket) {
    scope_state = new_ref(state);
    http_extensions = new_ref(http);
    socket_extensions = new_ref(socket);
    return (scope_template = PyDict_Copy(constants)) && PyDict_SetItem(scope_template, keys[SCHEME], http_text) == 0 &&
                   PyDict_SetItem(scope_template, keys[QUERY], empty_bytes) == 0 &&
                   PyDict_SetItem(scope_template, keys[ROOT_PATH], empty_text) == 0
               ? 0
               : -1;
}

static int init_names(void) {
    unsigned id;
    for (id = 32; id < 256; id++) {
        size_t len;
        const char *name = komainu_name(id, &len);
        if (!name)
            continue;
        if (!(header_names[id] = PyBytes_FromStringAndSize(name, (Py_ssize_t)len)))
            return -1;
        if (len == 14 && memcmp(name, "content-length", len) == 0)
            length_id = id;
        if (len == 17 && memcmp(name, "transfer-encoding", len) == 0)
            coding_id = id;
    }
    return 0;
}

int scope_init(void) {
    return init_names() == 0 && (get_text = intern("GET")) && (http_text = intern("http")) &&
                   (one_one_text = intern("1.1")) && (one_zero_text = intern("1.0")) && (two_text = intern("2")) &&
                   (three_text = intern("3")) && (slash_text = intern("/")) && (empty_text = intern("")) &&
                   (websocket_text = intern("websocket")) && (ws_text = intern("ws")) && (wss_text = intern("wss"))
               ? 0
               : -1;
}

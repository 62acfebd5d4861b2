/* The variables of a request, named as web servers pass them to PHP-FPM. */
#include "variables.h"

#include <strings.h>

/* Maximum number of environment variables of this process in `$_SERVER`. */
#define SHARED_MAX 256
/* Maximum number of variables in addition to those of fields. */
#define OWN_MAX 16
/* The smallest id of a header field. */
#define HEADER_ID_MIN 32

static Variable *variables;
static size_t variable_count, variable_room;
/* The buffer with the texts of the variables. */
static char *texts;
static size_t text_len, text_room;

static const char *shared_names[SHARED_MAX];
static size_t shared_count;

void share_environment(const char *name) {
    if (shared_count < SHARED_MAX)
        shared_names[shared_count++] = name;
}

/* ---- texts ---- */

static char *text_at(void) { return texts + text_len; }

static void add_bytes(const char *bytes, size_t len) {
    if (len)
        memcpy(texts + text_len, bytes, len);
    text_len += len;
}

static void end_text(void) { texts[text_len++] = '\0'; }

static void add(const char *name, size_t name_len, const char *value, size_t value_len) {
    Variable *variable = &variables[variable_count++];
    variable->name = name;
    variable->name_len = name_len;
    variable->value = value;
    variable->value_len = value_len;
}

/* Adds a variable with a constant name and a copy of the value. */
static void put(const char *name, const char *value, size_t len) {
    char *copy = text_at();
    add_bytes(value, len);
    end_text();
    add(name, strlen(name), copy, len);
}

/* ---- the parts of a request ---- */

/* The name of a request part's variable; NULL if it has none, or is handled separately. */
static const char *name_of_part(uint32_t id) {
    switch (id) {
    case KOMAINU_METHOD: return "REQUEST_METHOD";
    case KOMAINU_TARGET: return "REQUEST_URI";
    case KOMAINU_SCRIPT_NAME: return "SCRIPT_NAME";
    case KOMAINU_PATH: return "PATH_INFO";
    case KOMAINU_QUERY: return "QUERY_STRING";
    case KOMAINU_PROTOCOL: return "SERVER_PROTOCOL";
    case KOMAINU_SCHEME: return "REQUEST_SCHEME";
    case KOMAINU_REMOTE_ADDR: return "REMOTE_ADDR";
    case KOMAINU_REMOTE_PORT: return "REMOTE_PORT";
    case KOMAINU_SERVER_NAME: return "SERVER_NAME";
    case KOMAINU_SERVER_PORT: return "SERVER_PORT";
    case KOMAINU_SERVER_ADDR: return "SERVER_ADDR";
    default: return NULL;
    }
}

static int is_header(const komainu_field *field) { return field->id == 0 || field->id >= HEADER_ID_MIN; }

static int is_named(const komainu_field *field, const char *name, size_t len) {
    return field->name_len == len && strncasecmp(field->name, name, len) == 0;
}

static int is_same(const komainu_field *one, const komainu_field *other) {
    return one->id == other->id && (one->id || is_named(one, other->name, other->name_len));
}

/* Writes the name of a field's variable; returns 0 for a field whose variable could be confused with another one's. */
static int add_name(const komainu_field *field) {
    uint32_t at;
    if (is_named(field, "content-type", 12)) {
        add_bytes("CONTENT_TYPE", 12);
        return 1;
    }
    if (is_named(field, "content-length", 14)) {
        add_bytes("CONTENT_LENGTH", 14);
        return 1;
    }
    for (at = 0; at < field->name_len; at++) {
        unsigned char byte = (unsigned char)field->name[at];
        if (!((byte >= '0' && byte <= '9') || ((byte | 32) >= 'a' && (byte | 32) <= 'z') || byte == '-'))
            return 0;
    }
    add_bytes("HTTP_", 5);
    for (at = 0; at < field->name_len; at++) {
        char byte = field->name[at];
        texts[text_len++] = byte == '-' ? '_' : (char)(byte >= 'a' && byte <= 'z' ? byte - 32 : byte);
    }
    return 1;
}

/* Adds the variable of a field, joined with the values of later fields of the same name. */
static void put_header(const komainu_field *fields, size_t count, size_t index) {
    const komainu_field *field = &fields[index];
    const char *separator = is_named(field, "cookie", 6) ? "; " : ", ";
    char *name = text_at(), *value;
    size_t at, name_len;
    for (at = 0; at < index; at++)
        if (is_header(&fields[at]) && is_same(&fields[at], field))
            return;
    if (!add_name(field))
        return;
    name_len = (size_t)(text_at() - name);
    end_text();
    value = text_at();
    add_bytes(field->value, field->value_len);
    for (at = index + 1; at < count; at++)
        if (is_header(&fields[at]) && is_same(&fields[at], field)) {
            add_bytes(separator, 2);
            add_bytes(fields[at].value, fields[at].value_len);
        }
    add(name, name_len, value, (size_t)(text_at() - value));
    end_text();
}

/* Adds a variable NAME=VALUE sent by the server. */
static void put_variable(const komainu_field *field) {
    char *name = text_at(), *value;
    const char *sign = memchr(field->value, '=', field->value_len);
    size_t name_len;
    if (!sign)
        return;
    name_len = (size_t)(sign - field->value);
    add_bytes(field->value, name_len);
    end_text();
    value = text_at();
    add_bytes(sign + 1, field->value_len - name_len - 1);
    end_text();
    add(name, name_len, value, field->value_len - name_len - 1);
}

static int has(const char *name) { return variable_of(name) != NULL; }

/* Concatenates two texts. */
static void put_joined(const char *name, const char *first, const char *second) {
    const Variable *one = variable_of(first), *two = variable_of(second);
    char *value = text_at();
    if (one)
        add_bytes(one->value, one->value_len);
    if (two)
        add_bytes(two->value, two->value_len);
    add(name, strlen(name), value, (size_t)(text_at() - value));
    end_text();
}

/* Reserves memory for all variables and their texts. */
static int make_room(const komainu_field *fields, size_t count) {
    size_t at, bytes = 1024;
    for (at = 0; at < count; at++)
        bytes += fields[at].name_len + 4 * (size_t)fields[at].value_len + 16;
    if (bytes > text_room) {
        char *room = malloc(bytes);
        if (!room)
            return 0;
        free(texts);
        texts = room;
        text_room = bytes;
    }
    if (count + OWN_MAX > variable_room) {
        Variable *room = malloc((count + OWN_MAX) * sizeof *room);
        if (!room)
            return 0;
        free(variables);
        variables = room;
        variable_room = count + OWN_MAX;
    }
    variable_count = text_len = 0;
    return 1;
}

int make_variables(komainu_request *request) {
    const komainu_field *fields;
    size_t count = komainu_fields(request, &fields), at;
    if (!make_room(fields, count))
        return 0;
    for (at = 0; at < count; at++) {
        const char *name = name_of_part(fields[at].id);
        if (name)
            put(name, fields[at].value, fields[at].value_len);
        else if (fields[at].id == KOMAINU_VARIABLE)
            put_variable(&fields[at]);
        else if (is_header(&fields[at]))
            put_header(fields, count, at);
    }
    put("GATEWAY_INTERFACE", "CGI/1.1", 7);
    put("REDIRECT_STATUS", "200", 3);
    if (!has("QUERY_STRING"))
        put("QUERY_STRING", "", 0);
    if (!has("CONTENT_TYPE"))
        put("CONTENT_TYPE", "", 0);
    if (!has("CONTENT_LENGTH"))
        put("CONTENT_LENGTH", "", 0);
    if (!has("SCRIPT_NAME"))
        put("SCRIPT_NAME", "", 0);
    put_joined("PHP_SELF", "SCRIPT_NAME", "PATH_INFO");
    put_joined("DOCUMENT_URI", "SCRIPT_NAME", "PATH_INFO");
    if (has("PATH_INFO") && variable_of("PATH_INFO")->value_len)
        put_joined("PATH_TRANSLATED", "DOCUMENT_ROOT", "PATH_INFO");
    return 1;
}

const Variable *variable_of(const char *name) {
    size_t at, len = strlen(name);
    for (at = 0; at < variable_count; at++)
        if (variables[at].name_len == len && memcmp(variables[at].name, name, len) == 0)
            return &variables[at];
    return NULL;
}

size_t all_variables(const Variable **all) {
    *all = variables;
    return variable_count;
}

/* ---- $_SERVER ---- */

static void register_one(const char *name, const char *text, size_t len, zval *array) {
    char *value = (char *)text;
    size_t new_len;
    /* The filter may register it by itself. */
    if (sapi_module.input_filter(PARSE_SERVER, name, &value, len, &new_len))
        php_register_variable_safe(name, value, new_len, array);
}

void register_variables(zval *array) {
    size_t at;
    for (at = 0; at < shared_count; at++) {
        const char *value = getenv(shared_names[at]);
        if (value)
            register_one(shared_names[at], value, strlen(value), array);
    }
    for (at = 0; at < variable_count; at++)
        register_one(variables[at].name, variables[at].value, variables[at].value_len, array);
}

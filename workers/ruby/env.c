/*
 * A request's environment. Its keys are the same frozen strings as literals of the same text in an application, so that
 * a lookup compares addresses.
 */
#include "env.h"

#include <string.h>

/* Longer names of unknown header fields are not cached. */
#define NAME_BYTES_MAX 256
/* The largest length of a small body, as a header field has it: RewindableInput::MEMORY_BYTES_MAX. */
#define SMALL_BYTES "131072"

enum {
    METHOD, SCRIPT, PATH, QUERY, URI, SERVER, PORT, PROTOCOL, VERSION, ADDRESS, PEER, SCHEME, INPUT, HINTS, HIJACK,
    MAY_HIJACK, FINISHED, REPLIED, KEYS
};

static const char *const key_texts[KEYS] = {
    "REQUEST_METHOD", "SCRIPT_NAME",     "PATH_INFO",    "QUERY_STRING",    "REQUEST_URI",
    "SERVER_NAME",    "SERVER_PORT",     "SERVER_PROTOCOL", "HTTP_VERSION", "REMOTE_ADDR",
    "REMOTE_PORT",    "rack.url_scheme", "rack.input",   "rack.early_hints", "rack.hijack",
    "rack.hijack?", "rack.response_finished", "rack.after_reply",
};

static VALUE keys[KEYS];
static VALUE header_keys[256];
static unsigned length_id, coding_id, cookie_id;

/* Values that are equal in most requests; frozen, like literals in an application that freezes its own. */
static VALUE get_text, http_text, https_text, one_one_text, one_zero_text;

/*
 * The constant entries of every environment, the input of requests without a body, and the classes of other inputs:
 * bodies of a known small length have a class of their own.
 */
static VALUE template, empty_input, input_class, small_input_class;

static VALUE interned(const char *text, size_t len) {
    return rb_enc_interned_str(text, (long)len, rb_utf8_encoding());
}

static VALUE interned_text(const char *text) { return interned(text, strlen(text)); }

static int field_is(const komainu_field *field, const char *text) {
    return field->value_len == strlen(text) && memcmp(field->value, text, field->value_len) == 0;
}

static VALUE text_of(const komainu_field *field) { return rb_str_new(field->value, field->value_len); }

/* Returns the key of a header field: HTTP_ACCEPT for accept. */
static VALUE header_key(const char *name, size_t len) {
    char text[5 + NAME_BYTES_MAX] = "HTTP_";
    size_t at;
    for (at = 0; at < len; at++) {
        char byte = name[at];
        text[5 + at] = byte == '-' ? '_' : byte >= 'a' && byte <= 'z' ? (char)(byte - 32) : byte;
    }
    if (len == 12 && memcmp(text + 5, "CONTENT_TYPE", 12) == 0)
        return interned(text + 5, len);
    if (len == 14 && memcmp(text + 5, "CONTENT_LENGTH", 14) == 0)
        return interned(text + 5, len);
    return interned(text, 5 + len);
}

/* Whether a body of that Content-Length is small. */
static int is_small(const komainu_field *length) {
    return length->value_len < sizeof(SMALL_BYTES) - 1 ||
           (length->value_len == sizeof(SMALL_BYTES) - 1 && memcmp(length->value, SMALL_BYTES, length->value_len) <= 0);
}

static VALUE method_of(const komainu_field *field) { return field_is(field, "GET") ? get_text : text_of(field); }

static VALUE protocol_of(const komainu_field *field) {
    return field_is(field, "HTTP/1.1") ? one_one_text : field_is(field, "HTTP/1.0") ? one_zero_text : text_of(field);
}

/* Sets the variable of a field; joins repeated fields. */
static void put_header(VALUE env, VALUE key, const komainu_field *field, int seen) {
    VALUE before = seen ? rb_hash_lookup2(env, key, Qundef) : Qundef;
    if (before == Qundef) {
        rb_hash_aset(env, key, text_of(field));
        return;
    }
    before = rb_str_dup(before);
    rb_str_cat(before, field->id == cookie_id ? "; " : ", ", 2);
    rb_hash_aset(env, key, rb_str_cat(before, field->value, field->value_len));
}

/* Returns the value of a hexadecimal digit, or -1. */
static int hex_digit(char byte) {
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    return (byte | 32) >= 'a' && (byte | 32) <= 'f' ? (byte | 32) - 'a' + 10 : -1;
}

/* Returns the encoded path after the decoded `prefix`; the whole path if it does not begin with it. */
static const char *path_after(const char *at, const char *end, const komainu_field *prefix) {
    const char *want = prefix->value, *want_end = want + prefix->value_len, *start = at;
    for (; want < want_end; want++) {
        char byte;
        if (at == end)
            return start;
        byte = *at++;
        if (byte == '%' && end - at >= 2 && hex_digit(at[0]) >= 0 && hex_digit(at[1]) >= 0) {
            byte = (char)(hex_digit(at[0]) << 4 | hex_digit(at[1]));
            at += 2;
            /* %2F and %5C stay encoded, in `prefix` too. */
            if (byte == '/' || byte == '\\') {
                if (want_end - want < 3 || memcmp(want, byte == '/' ? "%2F" : "%5C", 3) != 0)
                    return start;
                want += 2;
                continue;
            }
        }
        if (byte != *want)
            return start;
    }
    return at;
}

/* The path below the mount, encoded as in the target: Rack applications decode it themselves. */
static VALUE path_of(const komainu_field *target, const komainu_field *script) {
    const char *at = target->value, *end = at + target->value_len, *query;
    /* The target of `OPTIONS *` is not a path; REQUEST_URI has it. */
    if (at == end || *at != '/')
        return rb_str_new("/", 1);
    query = memchr(at, '?', (size_t)(end - at));
    if (query)
        end = query;
    if (script)
        at = path_after(at, end, script);
    return rb_str_new(at, end - at);
}

static const komainu_field no_field = {"", "", 0, 0, 0};

static void put(VALUE env, int key, VALUE value) { rb_hash_aset(env, keys[key], value); }

VALUE env_new(VALUE call, struct call *held, VALUE replied, VALUE *input) {
    VALUE env = rb_hash_dup(template);
    const komainu_field *fields, *field, *target = &no_field, *script = NULL, *query = &no_field;
    size_t count = komainu_fields(held->request, &fields);
    uint64_t seen[4] = {0, 0, 0, 0};
    int has_body = 0, small = 0, is_shared = 0;
    for (field = fields; field < fields + count; field++) {
        unsigned id = field->id;
        switch (id) {
        case KOMAINU_METHOD: put(env, METHOD, method_of(field)); break;
        case KOMAINU_TARGET: target = field; break;
        case KOMAINU_SCRIPT_NAME: script = field; break;
        case KOMAINU_PATH: break;
        case KOMAINU_QUERY: query = field; break;
        case KOMAINU_SCHEME: put(env, SCHEME, field_is(field, "https") ? https_text : http_text); break;
        case KOMAINU_REMOTE_ADDR: put(env, ADDRESS, text_of(field)); break;
        case KOMAINU_REMOTE_PORT: put(env, PEER, text_of(field)); break;
        case KOMAINU_SERVER_NAME: put(env, SERVER, text_of(field)); break;
        case KOMAINU_SERVER_PORT: put(env, PORT, text_of(field)); break;
        case KOMAINU_PROTOCOL: {
            VALUE protocol = protocol_of(field);
            held->informs = protocol != one_zero_text;
            is_shared = protocol != one_zero_text && protocol != one_one_text;
            put(env, PROTOCOL, protocol);
            put(env, VERSION, protocol);
            break;
        }
        case KOMAINU_VARIABLE: {
            const char *sign = memchr(field->value, '=', field->value_len);
            size_t len = sign ? (size_t)(sign - field->value) : 0;
            if (sign)
                rb_hash_aset(env, interned(field->value, len),
                             rb_str_new(sign + 1, (long)(field->value_len - len - 1)));
            break;
        }
        case 0:
            if (field->name_len <= NAME_BYTES_MAX)
                put_header(env, header_key(field->name, field->name_len), field, 1);
            break;
        default:
            if (id > 255 || !header_keys[id])
                break;
            if (id == coding_id) { /* the server has removed the coding */
                has_body = 1;
                break;
            }
            if (id == length_id && !field_is(field, "0")) {
                has_body = 1;
                small = is_small(field);
            }
            put_header(env, header_keys[id], field, seen[id / 64] >> (id % 64) & 1);
            seen[id / 64] |= (uint64_t)1 << (id % 64);
        }
    }
    put(env, SCRIPT, script ? text_of(script) : rb_str_new(NULL, 0));
    put(env, PATH, path_of(target, script));
    put(env, QUERY, text_of(query));
    put(env, URI, text_of(target));
    *input = has_body ? rb_class_new_instance(1, &call, small ? small_input_class : input_class) : empty_input;
    put(env, INPUT, *input);
    put(env, HINTS, call);
    if (is_shared) /* an HTTP/2 connection is shared with other requests, so it cannot be hijacked */
        put(env, MAY_HIJACK, Qfalse);
    else
        put(env, HIJACK, call);
    held->env = env;
    put(env, FINISHED, rb_ary_new());
    put(env, REPLIED, replied);
    return env;
}

VALUE env_finished(VALUE env) { return rb_hash_lookup(env, keys[FINISHED]); }

VALUE env_replied(VALUE env) { return rb_hash_lookup(env, keys[REPLIED]); }

/* Komainu.prepare(constants, empty input, class of inputs, class of inputs of a small length) */
static VALUE prepare(VALUE self, VALUE constants, VALUE empty, VALUE class, VALUE small_class) {
    (void)self;
    template = rb_hash_dup(constants);
    empty_input = empty;
    input_class = class;
    small_input_class = small_class;
    return Qnil;
}

void init_env(void) {
    unsigned id;
    for (id = 0; id < KEYS; id++) {
        keys[id] = interned_text(key_texts[id]);
        rb_gc_register_mark_object(keys[id]);
    }
    for (id = 32; id < 256; id++) {
        size_t len;
        const char *name = komainu_name(id, &len);
        if (!name)
            continue;
        header_keys[id] = header_key(name, len);
        rb_gc_register_mark_object(header_keys[id]);
        if (len == 14 && memcmp(name, "content-length", len) == 0)
            length_id = id;
        if (len == 17 && memcmp(name, "transfer-encoding", len) == 0)
            coding_id = id;
        if (len == 6 && memcmp(name, "cookie", len) == 0)
            cookie_id = id;
    }
    rb_gc_register_mark_object(get_text = interned_text("GET"));
    rb_gc_register_mark_object(http_text = interned_text("http"));
    rb_gc_register_mark_object(https_text = interned_text("https"));
    rb_gc_register_mark_object(one_one_text = interned_text("HTTP/1.1"));
    rb_gc_register_mark_object(one_zero_text = interned_text("HTTP/1.0"));
    template = empty_input = input_class = small_input_class = Qnil;
    rb_gc_register_address(&template);
    rb_gc_register_address(&empty_input);
    rb_gc_register_address(&input_class);
    rb_gc_register_address(&small_input_class);
    rb_define_module_function(komainu_module, "prepare", prepare, 4);
}

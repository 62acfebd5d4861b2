/* Heads of responses. */
#include "head.h"

#include <string.h>

static ID id_fields;
static VALUE length_name;

static void head_begin(struct head *head, komainu_field *at, size_t room) {
    head->at = at;
    head->count = 0;
    head->room = room;
    head->hijack = head->length = Qnil;
    head->odd = 0;
}

static void add_field(struct head *head, VALUE name, const char *value, size_t len) {
    komainu_field *field;
    /* Fields that do not fit are only counted: see head_fill. */
    if (head->count++ >= head->room)
        return;
    field = &head->at[head->count - 1];
    field->name = RSTRING_PTR(name);
    field->name_len = (uint32_t)RSTRING_LEN(name);
    field->value = value;
    field->value_len = (uint32_t)len;
    field->id = 0;
}

/* Before Rack 3, several fields of one name were lines of one string. */
static void add_lines(struct head *head, VALUE name, VALUE value) {
    const char *at = RSTRING_PTR(value), *end = at + RSTRING_LEN(value), *line;
    while ((line = memchr(at, '\n', (size_t)(end - at)))) {
        if (line > at)
            add_field(head, name, at, (size_t)(line - at));
        at = line + 1;
    }
    if (at < end || RSTRING_LEN(value) == 0)
        add_field(head, name, at, (size_t)(end - at));
}

static int is_named(VALUE name, const char *text, size_t len) {
    return (size_t)RSTRING_LEN(name) == len && strncasecmp(RSTRING_PTR(name), text, len) == 0;
}

static int add_header(VALUE name, VALUE value, VALUE data) {
    struct head *head = (struct head *)data;
    long at;
    if (RB_TYPE_P(name, T_STRING)) {
        if (RSTRING_LEN(name) > 5 && memcmp(RSTRING_PTR(name), "rack.", 5) == 0) {
            if (is_named(name, "rack.hijack", 11))
                head->hijack = value;
            return ST_CONTINUE;
        }
        if (RB_TYPE_P(value, T_STRING)) {
            if (is_named(name, "content-length", 14))
                head->length = value;
            add_lines(head, name, value);
            return ST_CONTINUE;
        }
        if (RB_TYPE_P(value, T_ARRAY)) {
            for (at = 0; at < RARRAY_LEN(value); at++)
                head->odd |= !RB_TYPE_P(RARRAY_AREF(value, at), T_STRING);
            for (at = 0; !head->odd && at < RARRAY_LEN(value); at++)
                add_lines(head, name, RARRAY_AREF(value, at));
            if (!head->odd)
                return ST_CONTINUE;
        }
    }
    head->odd = 1;
    return ST_STOP;
}

VALUE head_fill(struct head *head, VALUE headers) {
    head->storage = Qnil;
    head_begin(head, head->fields, FIELDS_INLINE);
    if (RB_TYPE_P(headers, T_HASH))
        rb_hash_foreach(headers, add_header, (VALUE)head);
    else
        head->odd = 1;
    if (head->odd) {
        headers = rb_funcallv(komainu_module, id_fields, 1, &headers);
        head_begin(head, head->fields, FIELDS_INLINE);
        rb_hash_foreach(headers, add_header, (VALUE)head);
    }
    /* One more, for a Content-Length. */
    if (head->count >= head->room) {
        size_t room = head->count + 1;
        head->storage = rb_str_buf_new((long)(room * sizeof *head->at));
        head_begin(head, (komainu_field *)RSTRING_PTR(head->storage), room);
        rb_hash_foreach(headers, add_header, (VALUE)head);
    }
    return headers;
}

void head_add_length(struct head *head, uint64_t len, char *digits, size_t size) {
    add_field(head, length_name, digits, (size_t)snprintf(digits, size, "%llu", (unsigned long long)len));
}

void init_head(void) {
    id_fields = rb_intern("fields");
    rb_gc_register_mark_object(length_name = rb_enc_interned_str_cstr("content-length", rb_utf8_encoding()));
}

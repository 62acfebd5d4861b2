/* An application's response: head, body, end, and failures. */
#include "native.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Fields that need no allocation. */
#define FIELDS_INLINE 32
/* Minimum size for which the worker adds a missing Content-Length; for smaller bodies the server adds it. */
#define LENGTH_FROM_BYTES (32 * 1024)
/* The abort reason that is sent to the server if the application fails. */
#define APPLICATION_FAILED 16
/* The abort reason if the application ends the worker. */
#define WORKER_ENDED 17

static ID id_call, id_close, id_each, id_to_path, id_fields, id_failed, id_serve, id_finished, id_replied;
static VALUE stream_class, length_name;
/* Whether the server can receive descriptors from this process. */
int sends_files;

/*
 * ---- heads ----
 *
 * Fields point into Ruby's strings, which the garbage collector moves when it compacts. So nothing runs or allocates in
 * Ruby between head_fill and the write of the head.
 */

struct head {
    komainu_field fields[FIELDS_INLINE];
    komainu_field *at;
    size_t count, room;
    VALUE storage; /* holds the fields if there are many */
    VALUE hijack;  /* the value of rack.hijack */
    VALUE length;  /* the value of Content-Length */
    int odd;       /* not only strings: conversion is needed first */
};

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

/* Returns the object that keeps the fields' texts alive. */
static VALUE head_fill(struct head *head, VALUE headers) {
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

/* ---- bodies ---- */

/* Opens the file of a body, unless the response is a part of it. Returns its size; x->file is the descriptor. */
static uint64_t open_file(struct exchange *x, VALUE length) {
    struct stat status;
    VALUE path;
    if (!sends_files || !rb_respond_to(x->body, id_to_path))
        return 0;
    path = rb_funcallv(x->body, id_to_path, 0, NULL);
    if (NIL_P(path))
        return 0;
    FilePathValue(path);
    /* O_NONBLOCK, because the file may be a pipe. */
    x->file = rb_cloexec_open(StringValueCStr(path), O_RDONLY | O_NONBLOCK, 0);
    if (x->file < 0)
        return 0;
    rb_update_max_fd(x->file);
    if (fstat(x->file, &status) == 0 && S_ISREG(status.st_mode)) {
        uint64_t len = (uint64_t)status.st_size;
        if (NIL_P(length) || RTEST(rb_equal(rb_str_to_inum(length, 10, 0), ULL2NUM(len)))) {
            RB_GC_GUARD(path);
            return len;
        }
    }
    close(x->file);
    x->file = -1;
    return 0;
}

static void write_array(struct call *held, VALUE body) {
    long at;
    for (at = 0; at < RARRAY_LEN(body); at++) {
        VALUE piece = RARRAY_AREF(body, at);
        if (!RB_TYPE_P(piece, T_STRING))
            piece = rb_obj_as_string(piece);
        call_must_be_free(held);
        call_write(held, piece, 1);
    }
}

/* Each piece is sent at once, because the next one may be late. */
static VALUE write_piece(RB_BLOCK_CALL_FUNC_ARGLIST(piece, data)) {
    struct call *held = call_of(data);
    call_must_be_free(held);
    call_write(held, rb_obj_as_string(piece), 0);
    return Qnil;
}

static uint64_t bytes_of(VALUE body) {
    uint64_t sum = 0;
    long at;
    for (at = 0; at < RARRAY_LEN(body); at++) {
        VALUE piece = RARRAY_AREF(body, at);
        if (!RB_TYPE_P(piece, T_STRING))
            return 0;
        sum += (uint64_t)RSTRING_LEN(piece);
    }
    return sum;
}

static int status_of(VALUE status) {
    int number = NUM2INT(RB_TYPE_P(status, T_STRING) ? rb_str_to_inum(status, 10, 1) : rb_to_int(status));
    if (number < 200 || number > 999)
        rb_raise(rb_eArgError, "a response cannot have the status %d", number);
    return number;
}

static void add_length(struct head *head, uint64_t len, char *digits, size_t size) {
    add_field(head, length_name, digits, (size_t)snprintf(digits, size, "%llu", (unsigned long long)len));
}

static void stream(struct exchange *x, VALUE callee) {
    VALUE arguments[] = {x->call, x->input, callee};
    rb_funcallv(stream_class, id_serve, 3, arguments);
}

static void respond(struct exchange *x) {
    struct head head;
    char digits[24];
    uint64_t len = 0;
    int status = status_of(x->status);
    VALUE kept = head_fill(&head, x->headers), body = x->body;
    int is_array = RB_TYPE_P(body, T_ARRAY), is_whole = NIL_P(head.hijack);
    if (is_whole && is_array)
        len = bytes_of(body);
    else if (is_whole)
        len = open_file(x, head.length);
    if (is_whole && !is_array && x->file < 0 && !rb_respond_to(body, id_each) && !rb_respond_to(body, id_call))
        rb_raise(rb_eTypeError, "the body responds to neither each nor call: %" PRIsVALUE, rb_obj_class(body));
    call_must_be_free(x->held);
    /* The body's methods may have moved what the fields point to. */
    if (!is_array)
        kept = head_fill(&head, kept);
    if (len >= LENGTH_FROM_BYTES && NIL_P(head.length) && status != 204 && status != 304)
        add_length(&head, len, digits, sizeof digits);
    call_check(komainu_head(x->held->request, (uint16_t)status, head.at, head.count));
    x->held->stage = HEAD_SENT;
    RB_GC_GUARD(kept);
    RB_GC_GUARD(head.storage);
    if (!is_whole)
        stream(x, head.hijack);
    else if (is_array)
        write_array(x->held, body);
    else if (x->file >= 0)
        call_file(x->held, x->file, len);
    else if (rb_respond_to(body, id_each))
        rb_block_call(body, id_each, 0, NULL, write_piece, x->call);
    else
        stream(x, body);
}

/* ---- the request ---- */

static VALUE call_application(VALUE data) {
    struct exchange *x = (struct exchange *)data;
    VALUE answer;
    x->env = env_new(x);
    answer = rb_check_array_type(rb_funcallv(x->app, id_call, 1, &x->env));
    if (x->held->hijacked)
        return Qnil;
    if (NIL_P(answer) || RARRAY_LEN(answer) != 3)
        rb_raise(rb_eTypeError, "the application's answer is not [status, headers, body]");
    x->status = RARRAY_AREF(answer, 0);
    x->headers = RARRAY_AREF(answer, 1);
    x->body = RARRAY_AREF(answer, 2);
    respond(x);
    return Qnil;
}

static VALUE close_body(VALUE data) {
    struct exchange *x = (struct exchange *)data;
    if (rb_respond_to(x->body, id_close))
        rb_funcallv(x->body, id_close, 0, NULL);
    return Qnil;
}

/* Removes the body's temporary file immediately rather than at the next garbage collection. */
static VALUE close_input(VALUE data) {
    struct exchange *x = (struct exchange *)data;
    return rb_funcallv(x->input, id_close, 0, NULL);
}

static VALUE report_end(VALUE data) {
    struct exchange *x = (struct exchange *)data;
    VALUE arguments[] = {NIL_P(x->env) ? Qnil : env_finished(x->env), x->env, x->status, x->headers, x->error};
    if (RB_TYPE_P(arguments[0], T_ARRAY) && RARRAY_LEN(arguments[0]) > 0)
        rb_funcallv(komainu_module, id_finished, 5, arguments);
    return Qnil;
}

/* Runs the callbacks in rack.after_reply, as Puma does. */
static VALUE report_reply(VALUE data) {
    struct exchange *x = (struct exchange *)data;
    VALUE arguments[] = {NIL_P(x->env) ? Qnil : env_replied(x->env), x->env};
    if (arguments[0] == x->replied && RARRAY_LEN(x->replied) == 0 && !OBJ_FROZEN(x->replied))
        return Qnil;
    x->replied = rb_ary_new();
    if (RB_TYPE_P(arguments[0], T_ARRAY))
        rb_funcallv(komainu_module, id_replied, 2, arguments);
    return Qnil;
}

static VALUE report(VALUE data) {
    VALUE *arguments = (VALUE *)data;
    return rb_funcallv(komainu_module, id_failed, 2, arguments);
}

/*
 * Runs a step. An exception of the application is logged and returned; what must end the thread or the process
 * (exit, a signal, Thread#kill) is returned in `state`.
 */
static VALUE attempt(VALUE (*step)(VALUE), struct exchange *x, int *state) {
    VALUE error, arguments[2];
    int failed;
    rb_protect(step, (VALUE)x, &failed);
    if (!failed)
        return Qnil;
    error = rb_errinfo();
    if (!rb_obj_is_kind_of(error, rb_eException) || rb_obj_is_kind_of(error, rb_eSystemExit) ||
        rb_obj_is_kind_of(error, rb_eSignal) || rb_obj_is_kind_of(error, rb_eFatal)) {
        *state = failed;
        return error;
    }
    rb_set_errinfo(Qnil);
    if (!rb_obj_is_kind_of(error, gone_class)) {
        arguments[0] = error;
        arguments[1] = x->env;
        rb_protect(report, (VALUE)arguments, &failed);
        if (failed)
            rb_set_errinfo(Qnil);
    }
    return error;
}

/* Ends or aborts the request. */
static void end(struct exchange *x, int state) {
    static const char text[] = "Internal Server Error\n";
    static const komainu_field field = {"content-type", "text/plain", 12, 10, 0};
    komainu_request *request = x->held->request;
    enum stage stage = x->held->stage;
    x->held->request = NULL;
    x->held->stage = OVER;
    if (x->held->hijacked || (is_copy && state))
        return;
    /* A process that the application has forked from this worker ends here. */
    if (is_copy)
        komainu_end(request);
    if (NIL_P(x->error)) {
        komainu_end(request);
    } else if (stage == NO_HEAD && !state && komainu_head(request, 500, &field, 1) == KOMAINU_OK) {
        komainu_write(request, text, sizeof text - 1, KOMAINU_MORE);
        komainu_end(request);
    } else {
        komainu_abort(request, state ? WORKER_ENDED : APPLICATION_FAILED);
    }
}

int answer(struct exchange *x) {
    int state = 0;
    VALUE failure;
    x->env = x->input = x->status = x->headers = x->body = Qnil;
    x->file = -1;
    x->error = attempt(call_application, x, &state);
    end(x, state);
    if (x->file >= 0)
        close(x->file);
    /* The response is complete; the client does not wait for the rest. */
    if (!NIL_P(x->body) && !RB_TYPE_P(x->body, T_ARRAY)) {
        failure = attempt(close_body, x, &state);
        if (NIL_P(x->error))
            x->error = failure;
    }
    attempt(report_end, x, &state);
    attempt(report_reply, x, &state);
    if (!NIL_P(x->input) && !x->held->hijacked)
        attempt(close_input, x, &state);
    return state;
}

VALUE answer_early(VALUE self, VALUE headers) {
    struct call *held = call_of(self);
    struct head head;
    VALUE kept;
    call_must_be_free(held);
    if (held->stage != NO_HEAD || !held->informs)
        return Qnil;
    kept = head_fill(&head, headers);
    call_check(komainu_interim(held->request, 103, head.at, head.count));
    RB_GC_GUARD(kept);
    RB_GC_GUARD(head.storage);
    return Qnil;
}

/* Komainu.stream_with(class): sets the class that streams a response */
static VALUE stream_with(VALUE self, VALUE class) {
    (void)self;
    stream_class = class;
    return Qnil;
}

void init_answer(void) {
    id_call = rb_intern("call");
    id_close = rb_intern("close");
    id_each = rb_intern("each");
    id_to_path = rb_intern("to_path");
    id_fields = rb_intern("fields");
    id_failed = rb_intern("failed");
    id_serve = rb_intern("serve");
    id_finished = rb_intern("finished");
    id_replied = rb_intern("replied");
    rb_gc_register_mark_object(length_name = rb_enc_interned_str_cstr("content-length", rb_utf8_encoding()));
    sends_files = !getenv("KOMAINU_NO_FILES");
    stream_class = Qnil;
    rb_gc_register_address(&stream_class);
    rb_define_module_function(komainu_module, "stream_with", stream_with, 1);
}

/* One exchange: calls the application, sends its response, and handles its failures. */
#include "exchange.h"
#include "env.h"
#include "head.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Minimum size for which the worker adds a missing Content-Length; for smaller bodies the server adds it. */
#define LENGTH_FROM_BYTES (32 * 1024)
/* The abort reason that is sent to the server if the application fails. */
#define APPLICATION_FAILED 16
/* The abort reason if the application ends the worker. */
#define WORKER_ENDED 17

static ID id_call, id_close, id_each, id_to_path, id_failed, id_serve, id_finished, id_replied;
/* The class that streams a response. */
static VALUE stream_class;

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

/* Sends a piece at once, because the next one may be late. */
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

static void run_stream(struct exchange *x, VALUE callee) {
    VALUE arguments[] = {x->call, x->input, callee};
    rb_funcallv(stream_class, id_serve, 3, arguments);
}

static void send_response(struct exchange *x) {
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
        head_add_length(&head, len, digits, sizeof digits);
    call_check(komainu_head(x->held->request, (uint16_t)status, head.at, head.count));
    x->held->stage = HEAD_SENT;
    RB_GC_GUARD(kept);
    RB_GC_GUARD(head.storage);
    if (!is_whole)
        run_stream(x, head.hijack);
    else if (is_array)
        write_array(x->held, body);
    else if (x->file >= 0)
        call_send_file(x->held, x->file, len);
    else if (rb_respond_to(body, id_each))
        rb_block_call(body, id_each, 0, NULL, write_piece, x->call);
    else
        run_stream(x, body);
}

/* ---- the request ---- */

static VALUE call_application(VALUE data) {
    struct exchange *x = (struct exchange *)data;
    VALUE response;
    x->env = env_new(x->call, x->held, x->replied, &x->input);
    response = rb_check_array_type(rb_funcallv(x->app, id_call, 1, &x->env));
    if (x->held->hijacked)
        return Qnil;
    if (NIL_P(response) || RARRAY_LEN(response) != 3)
        rb_raise(rb_eTypeError, "the application's answer is not [status, headers, body]");
    x->status = RARRAY_AREF(response, 0);
    x->headers = RARRAY_AREF(response, 1);
    x->body = RARRAY_AREF(response, 2);
    send_response(x);
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

static VALUE log_failure(VALUE data) {
    VALUE *arguments = (VALUE *)data;
    return rb_funcallv(komainu_module, id_failed, 2, arguments);
}

/*
 * Runs a step. An exception of the application is logged and returned; what must end the thread or the process
 * (exit, a signal, Thread#kill) is returned in `state`.
 */
static VALUE run_step(VALUE (*step)(VALUE), struct exchange *x, int *state) {
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
        rb_protect(log_failure, (VALUE)arguments, &failed);
        if (failed)
            rb_set_errinfo(Qnil);
    }
    return error;
}

/* Ends or aborts the request. */
static void end_request(struct exchange *x, int state) {
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

int run_exchange(struct exchange *x) {
    int state = 0;
    VALUE failure;
    x->env = x->input = x->status = x->headers = x->body = Qnil;
    x->file = -1;
    x->error = run_step(call_application, x, &state);
    end_request(x, state);
    if (x->file >= 0)
        close(x->file);
    /* The response is complete; the client does not wait for the rest. */
    if (!NIL_P(x->body) && !RB_TYPE_P(x->body, T_ARRAY)) {
        failure = run_step(close_body, x, &state);
        if (NIL_P(x->error))
            x->error = failure;
    }
    run_step(report_end, x, &state);
    run_step(report_reply, x, &state);
    if (!NIL_P(x->input) && !x->held->hijacked)
        run_step(close_input, x, &state);
    return state;
}

/* Komainu.stream_with(class): sets the class that streams a response */
static VALUE stream_with(VALUE self, VALUE class) {
    (void)self;
    stream_class = class;
    return Qnil;
}

void init_exchange(void) {
    id_call = rb_intern("call");
    id_close = rb_intern("close");
    id_each = rb_intern("each");
    id_to_path = rb_intern("to_path");
    id_failed = rb_intern("failed");
    id_serve = rb_intern("serve");
    id_finished = rb_intern("finished");
    id_replied = rb_intern("replied");
    stream_class = Qnil;
    rb_gc_register_address(&stream_class);
    rb_define_module_function(komainu_module, "stream_with", stream_with, 1);
}

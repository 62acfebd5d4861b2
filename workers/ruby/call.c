/*
 * Komainu::Call: one request for the Ruby half. It is also the value of env["rack.early_hints"], where it is called
 * with headers, and of env["rack.hijack"], where it is called without arguments.
 */
#include "call.h"
#include "head.h"

/*
 * Number of bytes of a response that fit into its slot, so that writing them does not block. If the channel is
 * smaller, the other threads of the process have to wait too.
 */
#define UNWAITED_BYTES_MAX (16 * 1024)

VALUE gone_class;
int sends_files;

static size_t call_size(const void *held) {
    (void)held;
    return sizeof(struct call);
}

static const rb_data_type_t call_type = {
    .wrap_struct_name = "Komainu::Call",
    .function = {.dfree = RUBY_DEFAULT_FREE, .dsize = call_size},
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

static VALUE call_class;

VALUE call_new(komainu_request *request, struct call **held) {
    VALUE self = TypedData_Make_Struct(call_class, struct call, &call_type, *held);
    (*held)->request = request;
    return self;
}

struct call *call_of(VALUE self) { return rb_check_typeddata(self, &call_type); }

void call_check(int64_t code) {
    if (code >= 0)
        return;
    if (code == KOMAINU_CANCELLED)
        rb_raise(gone_class, "nobody waits for this answer any more");
    rb_raise(rb_eIOError, "%s", komainu_error((int)code));
}

void call_must_be_free(const struct call *held) {
    if (!held->request)
        rb_raise(rb_eIOError, "the request is over");
    if (is_copy)
        rb_raise(rb_eIOError, "the request is the parent process's");
    if (held->waiting)
        rb_raise(rb_eIOError, "another thread is at work on this request");
}

/* ---- calls that may wait, during which they release the interpreter's lock ---- */

enum operation { READ, WRITE, SEND_FILE, HAND_OVER };

struct wait {
    struct call *held;
    enum operation operation;
    char *bytes;
    size_t len;
    int fd;
    int64_t result;
    int done;
};

static void *run_wait(void *data) {
    struct wait *wait = data;
    komainu_request *request = wait->held->request;
    switch (wait->operation) {
    case READ:
        wait->result = komainu_read(request, wait->bytes, wait->len);
        break;
    case WRITE:
        wait->result = komainu_write(request, wait->bytes, wait->len, 0);
        break;
    case SEND_FILE:
        wait->result = komainu_file(request, wait->fd, 0, wait->len);
        break;
    case HAND_OVER:
        wait->result = komainu_hijack(request, wait->fd);
        break;
    }
    wait->done = 1;
    return NULL;
}

/* There is no unblocking function, because the server bounds every wait. */
static int64_t run_unlocked(struct wait *wait) {
    for (;;) {
        wait->held->waiting = 1;
        rb_thread_call_without_gvl2(run_wait, wait, NULL, NULL);
        wait->held->waiting = 0;
        if (wait->done)
            return wait->result;
        /* The call was not started, because an interrupt is pending. */
        rb_thread_check_ints();
        call_must_be_free(wait->held);
    }
}

void call_write(struct call *held, VALUE piece, int more) {
    size_t len = (size_t)RSTRING_LEN(piece);
    int64_t taken;
    if (len == 0)
        return;
    if (more && held->unsent + len <= UNWAITED_BYTES_MAX) {
        held->unsent += len;
        call_check(komainu_write(held->request, RSTRING_PTR(piece), len, KOMAINU_MORE));
        return;
    }
    taken = komainu_try_write(held->request, RSTRING_PTR(piece), len);
    if (taken == KOMAINU_AGAIN)
        taken = 0;
    call_check(taken);
    held->unsent = UNWAITED_BYTES_MAX;
    if ((size_t)taken < len) {
        /* Other threads may change the string while this one waits. */
        VALUE frozen = rb_str_new_frozen(piece);
        struct wait wait = {held, WRITE, RSTRING_PTR(frozen) + taken, len - (size_t)taken, -1, 0, 0};
        call_check(run_unlocked(&wait));
        RB_GC_GUARD(frozen);
    }
    RB_GC_GUARD(piece);
}

void call_send_file(struct call *held, int fd, uint64_t len) {
    struct wait wait = {held, SEND_FILE, NULL, len, fd, 0, 0};
    call_check(run_unlocked(&wait));
}

/* Appends up to `max` bytes of the body; KOMAINU_AGAIN if there are none and it must not wait. */
static int64_t read_onto(VALUE self, VALUE onto, VALUE max, int waits) {
    struct call *held = call_of(self);
    char bytes[32 * 1024];
    size_t size = NUM2SIZET(max);
    int64_t len;
    StringValue(onto);
    call_must_be_free(held);
    if (size > sizeof bytes)
        size = sizeof bytes;
    len = komainu_try_read(held->request, bytes, size);
    if (len == KOMAINU_AGAIN && waits) {
        struct wait wait = {held, READ, bytes, size, -1, 0, 0};
        len = run_unlocked(&wait);
    }
    if (len > 0)
        rb_str_cat(onto, bytes, (long)len);
    return len;
}

static VALUE count_of(int64_t len) {
    call_check(len);
    return len == 0 ? Qnil : LL2NUM(len);
}

/* call.read(onto, max): appends some bytes of the body, and waits for them. Returns their number; nil at the end */
static VALUE call_read(VALUE self, VALUE onto, VALUE max) { return count_of(read_onto(self, onto, max, 1)); }

/* call.read_now(onto, max): like read without waiting; false if no bytes are available */
static VALUE call_read_now(VALUE self, VALUE onto, VALUE max) {
    int64_t len = read_onto(self, onto, max, 0);
    return len == KOMAINU_AGAIN ? Qfalse : count_of(len);
}

/* call.write_now(text) -> the number of bytes that fitted, and were sent */
static VALUE call_write_now(VALUE self, VALUE text) {
    struct call *held = call_of(self);
    int64_t taken;
    StringValue(text);
    call_must_be_free(held);
    taken = komainu_try_write(held->request, RSTRING_PTR(text), (size_t)RSTRING_LEN(text));
    RB_GC_GUARD(text);
    if (taken == KOMAINU_AGAIN)
        return INT2FIX(0);
    call_check(taken);
    held->unsent = UNWAITED_BYTES_MAX;
    return LL2NUM(taken);
}

/* call.write(text): sends it, and waits while the client is too slow */
static VALUE call_write_method(VALUE self, VALUE text) {
    struct call *held = call_of(self);
    StringValue(text);
    call_must_be_free(held);
    call_write(held, text, 0);
    return Qnil;
}

/* call.gone? -> whether the request was cancelled */
static VALUE call_gone(VALUE self) {
    struct call *held = call_of(self);
    if (!held->request)
        return Qtrue;
    call_must_be_free(held);
    return komainu_cancelled(held->request) ? Qtrue : Qfalse;
}

/*
 * Hijacks the connection: returns a socket that the server relays to the client. This ends the request, and the thread
 * can answer others as soon as the application returns.
 */
static VALUE hijack(VALUE self) {
    struct call *held = call_of(self);
    struct wait wait = {held, HAND_OVER, NULL, 0, -1, 0, 0};
    komainu_request *request;
    VALUE pair, ours, theirs;
    call_must_be_free(held);
    if (held->stage != NO_HEAD)
        rb_raise(rb_eIOError, "the response has begun");
    if (!sends_files)
        rb_raise(rb_eNotImpError, "the server cannot take descriptors of this process: "
                                  "rack.hijack works in the response's headers only");
    pair = rb_funcall(komainu_module, rb_intern("socket_pair"), 0);
    ours = rb_ary_entry(pair, 0);
    theirs = rb_ary_entry(pair, 1);
    wait.fd = NUM2INT(rb_funcall(theirs, rb_intern("fileno"), 0));
    call_check(run_unlocked(&wait));
    rb_hash_aset(held->env, rb_str_new_cstr("rack.hijack_io"), ours);
    request = held->request;
    held->request = NULL;
    held->stage = OVER;
    held->hijacked = 1;
    komainu_end(request);
    rb_funcall(theirs, rb_intern("close"), 0);
    RB_GC_GUARD(pair);
    return ours;
}

/* Sends early hints, unless the client does not understand interim heads or the response has begun. */
static VALUE send_early_hints(VALUE self, VALUE headers) {
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

static VALUE call_call(int argc, VALUE *argv, VALUE self) {
    rb_check_arity(argc, 0, 1);
    return argc == 0 ? hijack(self) : send_early_hints(self, argv[0]);
}

void init_call(void) {
    gone_class = rb_define_class_under(komainu_module, "Gone", rb_eIOError);
    call_class = rb_define_class_under(komainu_module, "Call", rb_cObject);
    rb_undef_alloc_func(call_class);
    rb_define_method(call_class, "read", call_read, 2);
    rb_define_method(call_class, "read_now", call_read_now, 2);
    rb_define_method(call_class, "write", call_write_method, 1);
    rb_define_method(call_class, "write_now", call_write_now, 1);
    rb_define_method(call_class, "gone?", call_gone, 0);
    rb_define_method(call_class, "call", call_call, -1);
    sends_files = !getenv("KOMAINU_NO_FILES");
    rb_gc_register_address(&gone_class);
    rb_gc_register_address(&call_class);
}

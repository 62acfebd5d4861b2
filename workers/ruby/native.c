/* The native module of the Ruby worker: seats, the loop over requests, and the life cycle of the process. */
#include "call.h"
#include "env.h"
#include "exchange.h"
#include "head.h"

#include <pthread.h>

/* Number of requests that the threads of this process are answering. */
static int held_requests;

/* ---- seats ---- */

struct seat {
    komainu_worker *worker; /* NULL after it was released */
};

static const rb_data_type_t seat_type = {
    .wrap_struct_name = "Komainu::Seat",
    .function = {.dfree = RUBY_DEFAULT_FREE},
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

static VALUE seat_alloc(VALUE class) {
    struct seat *seat;
    return TypedData_Make_Struct(class, struct seat, &seat_type, seat);
}

/* Seat.new(index of the seat in this process, from 0) */
static VALUE seat_initialize(VALUE self, VALUE index) {
    struct seat *seat = rb_check_typeddata(self, &seat_type);
    char error[512];
    seat->worker = komainu_attach(KOMAINU_ABI, komainu_seat() + NUM2INT(index), error, sizeof error);
    if (!seat->worker)
        rb_raise(rb_eRuntimeError, "%s", error);
    is_copy = 0;
    return self;
}

struct claim {
    komainu_worker *worker;
    komainu_request *request;
    int code;
};

static void *wait_for_request(void *data) {
    struct claim *claim = data;
    claim->code = komainu_next(claim->worker, -1, &claim->request);
    return NULL;
}

/* Keeps the interpreter's lock if a request is waiting, so that under load no thread has to reacquire it. */
static int next_request(struct claim *claim) {
    for (;;) {
        /* Lets other threads run between two requests, as reading from a socket would. */
        if (held_requests > 0)
            rb_thread_schedule();
        rb_thread_check_ints();
        if (is_copy)
            return 0;
        claim->code = komainu_next(claim->worker, 0, &claim->request);
        if (claim->code == KOMAINU_AGAIN)
            rb_thread_call_without_gvl2(wait_for_request, claim, RUBY_UBF_IO, NULL);
        if (claim->code != KOMAINU_AGAIN)
            return claim->code == KOMAINU_OK;
    }
}

struct service {
    VALUE app;
    struct seat *seat;
};

static VALUE serve(VALUE data) {
    struct service *service = (struct service *)data;
    struct claim claim = {service->seat->worker, NULL, KOMAINU_AGAIN};
    VALUE replied = rb_ary_new();
    while (next_request(&claim)) {
        struct exchange x = {.app = service->app, .replied = replied};
        int state;
        x.call = call_new(claim.request, &x.held);
        held_requests++;
        state = run_exchange(&x);
        held_requests--;
        if (state)
            rb_jump_tag(state);
        replied = x.replied;
        RB_GC_GUARD(x.call);
    }
    RB_GC_GUARD(replied);
    return Qnil;
}

static VALUE detach(VALUE data) {
    struct service *service = (struct service *)data;
    komainu_worker *worker = service->seat->worker;
    service->seat->worker = NULL;
    if (!is_copy)
        komainu_detach(worker);
    return Qnil;
}

/* seat.serve(app): runs until the worker must exit */
static VALUE seat_serve(VALUE self, VALUE app) {
    struct service service = {app, rb_check_typeddata(self, &seat_type)};
    if (!service.seat->worker)
        rb_raise(rb_eRuntimeError, "the seat is given up");
    return rb_ensure(serve, (VALUE)&service, detach, (VALUE)&service);
}

/* ---- the life cycle of the process ---- */

/* Komainu.begin -> :prototype or :worker */
static VALUE life_begin(VALUE self) {
    char error[512];
    (void)self;
    switch (komainu_begin(error, sizeof error)) {
    case KOMAINU_PROTOTYPE:
        return ID2SYM(rb_intern("prototype"));
    case KOMAINU_WORKER:
        return ID2SYM(rb_intern("worker"));
    default:
        rb_raise(rb_eRuntimeError, "%s", error);
    }
}

/* Komainu.loaded */
static VALUE life_loaded(VALUE self) {
    (void)self;
    if (komainu_loaded() != 0)
        rb_raise(rb_eRuntimeError, "the server does not listen");
    return Qnil;
}

/* Komainu.ending: reports that this worker accepts no more requests */
static VALUE life_ending(VALUE self) {
    (void)self;
    komainu_leaving();
    return Qnil;
}

/* Komainu.not_loaded(text) */
static VALUE life_not_loaded(VALUE self, VALUE text) {
    (void)self;
    StringValue(text);
    komainu_not_loaded(RSTRING_PTR(text), (size_t)RSTRING_LEN(text));
    return Qnil;
}

static void *wait_for_order(void *data) {
    *(int *)data = komainu_order();
    return NULL;
}

/* Komainu.order -> :fork or nil */
static VALUE life_order(VALUE self) {
    int order = KOMAINU_SIGNAL;
    (void)self;
    while (order == KOMAINU_SIGNAL) {
        rb_thread_check_ints();
        rb_thread_call_without_gvl2(wait_for_order, &order, RUBY_UBF_IO, NULL);
    }
    return order == KOMAINU_FORK ? ID2SYM(rb_intern("fork")) : Qnil;
}

/* Komainu.not_forked(text) */
static VALUE life_not_forked(VALUE self, VALUE text) {
    (void)self;
    StringValue(text);
    komainu_not_forked(RSTRING_PTR(text), (size_t)RSTRING_LEN(text));
    return Qnil;
}

/* Komainu.born */
static VALUE life_born(VALUE self) {
    char error[512];
    (void)self;
    if (komainu_born(error, sizeof error) != 0)
        rb_raise(rb_eRuntimeError, "%s", error);
    return Qnil;
}

/* Komainu.seats -> the number of threads that answer requests */
static VALUE life_seats(VALUE self) {
    (void)self;
    return INT2NUM(komainu_seats());
}

static void mark_copy(void) { is_copy = 1; }

RUBY_FUNC_EXPORTED void Init_komainu(void) {
    VALUE seat_class;
    komainu_module = rb_define_module("Komainu");
    seat_class = rb_define_class_under(komainu_module, "Seat", rb_cObject);
    rb_define_alloc_func(seat_class, seat_alloc);
    rb_define_method(seat_class, "initialize", seat_initialize, 1);
    rb_define_method(seat_class, "serve", seat_serve, 1);
    rb_define_module_function(komainu_module, "begin", life_begin, 0);
    rb_define_module_function(komainu_module, "loaded", life_loaded, 0);
    rb_define_module_function(komainu_module, "ending", life_ending, 0);
    rb_define_module_function(komainu_module, "not_loaded", life_not_loaded, 1);
    rb_define_module_function(komainu_module, "order", life_order, 0);
    rb_define_module_function(komainu_module, "not_forked", life_not_forked, 1);
    rb_define_module_function(komainu_module, "born", life_born, 0);
    rb_define_module_function(komainu_module, "seats", life_seats, 0);
    pthread_atfork(NULL, NULL, mark_copy);
    init_head();
    init_call();
    init_env();
    init_exchange();
}

/*
 * The worker of native handlers: loads a shared object and answers requests with it. workers/include/komainu_handler.h
 * defines a handler, workers/README.md describes the life cycle of a worker process.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __has_include
#if __has_include(<execinfo.h>)
#include <execinfo.h>
#define HAS_BACKTRACE
#endif
#endif

#include "komainu_handler.h"
#include "komainu_life.h"

#define ERROR_BYTES 1024
/* The abort reason that is sent to the server. */
#define HANDLER_FAILED 16
/* Maximum number of frames written per thread; number and length of the waits for a thread to write them. */
#define FRAMES_MAX 64
#define STACK_POLLS_MAX 200
#define STACK_POLL_NS (1000 * 1000)

/* The handler; one that was built with an older header has fewer members, and the others are NULL. */
static komainu_handler handler;
static void *process;

/* A thread and its seat. */
typedef struct {
    pthread_t id;
    int seat;
    int ended; /* atomic */
    int failed;
    void *state;
    komainu_worker *worker;
} Thread;

/* All threads, and their number. */
static Thread *threads;
static int thread_count;

static void say(const char *text) { fprintf(stderr, "%s\n", text); }

/* ---- the handler ---- */

__attribute__((noreturn)) static void give_up(const char *text) {
    komainu_not_loaded(text, strlen(text));
    exit(KOMAINU_EXIT_NOT_LOADED);
}

static void load(const char *path) {
    char error[ERROR_BYTES] = "it could not be loaded";
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const komainu_handler *entry = object ? dlsym(object, "komainu_entry") : NULL;
    if (!object)
        give_up(dlerror());
    if (!entry) {
        snprintf(error, sizeof error, "%s is not a handler: it has no komainu_entry (see komainu_handler.h)", path);
        give_up(error);
    }
    if (entry->abi != KOMAINU_HANDLER_ABI) {
        snprintf(error, sizeof error, "%s is made for version %u of komainu_handler.h, this is %u: build it again", path,
                 entry->abi, KOMAINU_HANDLER_ABI);
        give_up(error);
    }
    memcpy(&handler, entry, entry->size < sizeof handler ? entry->size : sizeof handler);
    if (!handler.handle)
        give_up("its komainu_entry has no `handle`");
    if (handler.load && handler.load(&process, error, sizeof error) != 0)
        give_up(error);
}

/* ---- requests ---- */

/* Sends an error response instead of the handler, or aborts the request. */
static void answer_instead(komainu_request *request, int status) {
    static const komainu_field type = {"content-type", "text/plain", 12, 10, 0};
    char text[32];
    int len = snprintf(text, sizeof text, "Error %d\n", status);
    if (komainu_head(request, (uint16_t)status, &type, 1) == KOMAINU_OK) {
        komainu_write(request, text, (size_t)len, KOMAINU_MORE);
        komainu_end(request);
    } else {
        komainu_abort(request, HANDLER_FAILED);
    }
}

static void answer(komainu_request *request, void *state) {
    int code = handler.handle(request, process, state);
    if (code == KOMAINU_OK) {
        code = komainu_end(request);
        if (code == KOMAINU_ORDER)
            say("the handler returned before its response was complete");
    } else if (code >= 400 && code <= 599) {
        answer_instead(request, code);
    } else if (code == KOMAINU_CANCELLED) {
        komainu_abort(request, HANDLER_FAILED);
    } else {
        fprintf(stderr, "the handler failed: %d (%s)\n", code, komainu_error(code));
        answer_instead(request, 500);
    }
}

static void serve(Thread *thread) {
    komainu_request *request;
    for (;;) {
        int code = komainu_next(thread->worker, -1, &request);
        if (code == KOMAINU_OK)
            answer(request, thread->state);
        else if (code != KOMAINU_AGAIN)
            return;
    }
}

static void *live(void *argument) {
    Thread *thread = argument;
    char error[ERROR_BYTES] = "a thread could not begin";
    if (handler.begin && handler.begin(process, &thread->state, error, sizeof error) != 0) {
        say(error);
        thread->failed = 1;
    } else {
        serve(thread);
        if (handler.end)
            handler.end(process, thread->state);
    }
    komainu_detach(thread->worker);
    __atomic_store_n(&thread->ended, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* ---- the life of the process ---- */

#ifdef HAS_BACKTRACE
static int stacks_written; /* atomic */
static int is_writing_stacks; /* atomic */

static void write_frames(void) {
    void *frames[FRAMES_MAX];
    int len = backtrace(frames, FRAMES_MAX);
    static const char head[] = "a thread of this worker is here:\n";
    if (write(STDERR_FILENO, head, sizeof head - 1) > 0)
        backtrace_symbols_fd(frames, len, STDERR_FILENO);
    __atomic_add_fetch(&stacks_written, 1, __ATOMIC_RELEASE);
}

/* The server requests stacks before it kills a process. The receiving thread signals the others in turn. */
static void write_stacks(int number) {
    const struct timespec pause = {0, STACK_POLL_NS};
    int at, polls;
    if (__atomic_exchange_n(&is_writing_stacks, 1, __ATOMIC_ACQ_REL)) {
        write_frames();
        return;
    }
    write_frames();
    for (at = 0; at < thread_count; at++) {
        int before = __atomic_load_n(&stacks_written, __ATOMIC_ACQUIRE);
        if (pthread_equal(threads[at].id, pthread_self()) || __atomic_load_n(&threads[at].ended, __ATOMIC_ACQUIRE))
            continue;
        pthread_kill(threads[at].id, number);
        for (polls = 0; polls < STACK_POLLS_MAX && __atomic_load_n(&stacks_written, __ATOMIC_ACQUIRE) == before; polls++)
            nanosleep(&pause, NULL);
    }
    kill(getpid(), SIGKILL);
}

static void prepare_stacks(void) {
    struct sigaction action = {.sa_handler = write_stacks, .sa_flags = SA_RESTART};
    void *frame;
    /* The first call loads a library, which a signal handler must not do. */
    backtrace(&frame, 1);
    sigaction(KOMAINU_SIGNAL_WHERE, &action, NULL);
}
#else
static void prepare_stacks(void) {}
#endif

static void start_thread(Thread *thread) {
    int code = pthread_create(&thread->id, NULL, live, thread);
    if (code != 0) {
        fprintf(stderr, "no thread: %s\n", strerror(code));
        exit(1);
    }
}

static int work(void) {
    char error[ERROR_BYTES] = "the worker could not start";
    int count = komainu_seats(), at, failed = 0;
    threads = calloc((size_t)count, sizeof *threads);
    if (!threads || (handler.start && handler.start(&process, error, sizeof error) != 0)) {
        say(error);
        return 1;
    }
    for (at = 0; at < count; at++) {
        threads[at].worker = komainu_attach(KOMAINU_ABI, komainu_seat() + at, error, sizeof error);
        if (!threads[at].worker) {
            say(error);
            return 1;
        }
    }
    komainu_loaded();
    threads[0].id = pthread_self();
    for (at = 1; at < count; at++)
        start_thread(&threads[at]);
    thread_count = count;
    live(&threads[0]);
    komainu_leaving();
    for (at = 1; at < count; at++)
        pthread_join(threads[at].id, NULL);
    if (handler.stop)
        handler.stop(process);
    for (at = 0; at < count; at++)
        failed |= threads[at].failed;
    /* `threads` is not freed: the handler of KOMAINU_SIGNAL_WHERE may still use it. */
    return failed;
}

/* Forks twice, so that the worker becomes a child of the server. Returns 1 in the worker, 0 in the prototype. */
static int fork_worker(void) {
    char error[ERROR_BYTES];
    pid_t child = fork();
    if (child > 0) {
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
        return 0;
    }
    if (child == 0) {
        pid_t worker = fork();
        if (worker > 0)
            _exit(0);
        if (worker == 0) {
            if (komainu_born(error, sizeof error) == 0)
                return 1;
            say(error);
            _exit(1);
        }
    }
    komainu_not_forked(strerror(errno), strlen(strerror(errno)));
    if (child == 0)
        _exit(1);
    return 0;
}

/* Returns 1 in each worker, and 0 in the prototype at its end. */
static int prototype(void) {
    int order;
    komainu_loaded();
    while ((order = komainu_order()) != KOMAINU_LEAVE)
        if (order == KOMAINU_FORK && fork_worker())
            return 1;
    return 0;
}

int main(int count, char **arguments) {
    char error[ERROR_BYTES];
    int role = komainu_begin(error, sizeof error);
    if (role == KOMAINU_FAILED || count != 2) {
        say(count != 2 ? "usage: worker HANDLER.so" : error);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    prepare_stacks();
    load(arguments[1]);
    if (role == KOMAINU_PROTOTYPE && !prototype())
        return 0;
    return work();
}

/*
 * komainu_handler.h: a handler, which is a shared object that answers requests in a worker process.
 *
 *     #include <komainu_handler.h>
 *
 *     static int handle(komainu_request *request, void *process, void *thread) {
 *         return komainu_reply(request, 200, "text/plain", "OK", 2);
 *     }
 *
 *     KOMAINU_HANDLER(.handle = handle)
 *
 *     cc -O2 -fPIC -shared -I workers/include -o ok.so ok.c
 *     komainu run ./ok.so
 *
 * It links no library: the worker has the functions of komainu.h. A handler uses those that take a request, except
 * komainu_end and komainu_abort, which the worker calls according to the result of `handle`.
 *
 * Rules
 * - A handler has no socket, and may block: other workers answer other requests.
 * - A crash loses the requests of its process: one for each of the worker's threads.
 * - With `threads` above 1 in the configuration, `handle` runs in several threads of one process at once.
 * - Standard output and error go to the server's log.
 */
#ifndef KOMAINU_HANDLER_H
#define KOMAINU_HANDLER_H

#include <string.h>

#include "komainu.h"

/* The version of `komainu_handler`; increased when the meaning of a member changes. */
#define KOMAINU_HANDLER_ABI 1

/*
 * The functions of a handler. All except `handle` may be NULL. Those that return an int return 0 for success; on failure
 * they write a text into `error`, and the application is not loaded, or the worker ends.
 */
typedef struct komainu_handler {
    uint32_t abi;  /* KOMAINU_HANDLER_ABI */
    uint32_t size; /* sizeof(komainu_handler) when the handler was built: later members are absent */

    /*
     * Answers a request. Returns
     *   KOMAINU_OK           the response is complete
     *   400 to 599           no response was sent: the client gets this status
     *   any other code       failure: the client gets 500, or a truncated response; KOMAINU_CANCELLED is not logged
     */
    int (*handle)(komainu_request *request, void *process, void *thread);

    /* Called once, in the process from which workers are forked: loads shared data. No threads or connections here. */
    int (*load)(void **process, char *error, size_t error_size);

    /* Called in each worker process before its first request: `*process` is the value that `load` stored. */
    int (*start)(void **process, char *error, size_t error_size);

    /* Called in each thread of a worker before its first request. */
    int (*begin)(void *process, void **thread, char *error, size_t error_size);

    /* Called in each thread after its last request. */
    void (*end)(void *process, void *thread);

    /* Called in each worker process after the last request of all its threads. */
    void (*stop)(void *process);
} komainu_handler;

#ifdef __cplusplus
extern "C" {
#endif

/* The symbol that the worker looks up in the shared object. */
extern __attribute__((visibility("default"))) const komainu_handler komainu_entry;

#ifdef __cplusplus
}
#endif

/* Defines `komainu_entry` from designated initializers; omitted members are NULL. */
#define KOMAINU_HANDLER(...)                                                                                              \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wmissing-field-initializers\"")                     \
    const komainu_handler komainu_entry = {.abi = KOMAINU_HANDLER_ABI, .size = sizeof(komainu_handler), __VA_ARGS__};     \
    _Pragma("GCC diagnostic pop")

/* A text with its length. */
typedef struct komainu_text {
    const char *text; /* NULL if there is none */
    size_t len;
} komainu_text;

/* A part of the request by its id, such as KOMAINU_PATH. */
static inline komainu_text komainu_part(const komainu_request *request, uint32_t id) {
    const komainu_field *fields;
    size_t count = komainu_fields(request, &fields), at;
    komainu_text none = {NULL, 0};
    for (at = 0; at < count; at++)
        if (fields[at].id == id) {
            komainu_text found = {fields[at].value, fields[at].value_len};
            return found;
        }
    return none;
}

/* The first header field of a name; `name` is in lower case. */
static inline komainu_text komainu_header(const komainu_request *request, const char *name) {
    const komainu_field *fields;
    size_t count = komainu_fields(request, &fields), len = strlen(name), at, byte;
    komainu_text none = {NULL, 0};
    for (at = 0; at < count; at++) {
        const komainu_field *field = &fields[at];
        if (field->name_len != len || (field->id && field->id < 32))
            continue;
        for (byte = 0; byte < len; byte++) {
            char sent = field->name[byte];
            if ((sent >= 'A' && sent <= 'Z' ? sent + 32 : sent) != name[byte])
                break;
        }
        if (byte == len) {
            komainu_text found = {field->value, field->value_len};
            return found;
        }
    }
    return none;
}

/* Sends a complete response; `handle` returns the result. `type` is a Content-Type, or NULL for none. */
static inline int komainu_reply(komainu_request *request, uint16_t status, const char *type, const char *body,
                                size_t len) {
    komainu_field field = {"content-type", type, 12, 0, 0};
    int code;
    if (type)
        field.value_len = (uint32_t)strlen(type);
    code = komainu_head(request, status, &field, type ? 1 : 0);
    return code == KOMAINU_OK && len ? komainu_write(request, body, len, KOMAINU_MORE) : code;
}

#endif

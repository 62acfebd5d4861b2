/*
 * komainu_life.h: the life cycle of a worker process. workers/README.md describes the protocol.
 *
 *     switch (komainu_begin(error, sizeof error)) {
 *     case KOMAINU_PROTOTYPE:
 *         load the application, or komainu_not_loaded(text, len) and exit(KOMAINU_EXIT_NOT_LOADED)
 *         komainu_loaded();
 *         while ((order = komainu_order()) != KOMAINU_LEAVE) {
 *             if (order == KOMAINU_SIGNAL) continue;
 *             fork; in the child: fork again and _exit(0); the grandchild: komainu_born, then as a worker
 *             in the parent: waitpid for the child
 *         }
 *         exit(0);
 *     case KOMAINU_WORKER:
 *         load the application, or komainu_not_loaded and exit
 *     }
 *     worker: for each of its threads
 *         komainu_attach(KOMAINU_ABI, komainu_seat() + thread, error, sizeof error);
 *     komainu_loaded();
 *     answer requests until komainu_next returns KOMAINU_RETIRED
 *     komainu_leaving();
 *     run the language's exit handlers; exit(0);
 *
 * Call all of these from the process's first thread.
 */
#ifndef KOMAINU_LIFE_H
#define KOMAINU_LIFE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The server sends this to a process that takes too long, before it kills it: write a short stack of each thread to
 * standard error, and exit. The server kills the process two seconds later. (SIGSTKFLT, which no other program sends.)
 */
#define KOMAINU_SIGNAL_WHERE 16

/* The roles of a process. */
#define KOMAINU_PROTOTYPE 1
#define KOMAINU_WORKER 2

/* The results of komainu_order. */
#define KOMAINU_LEAVE 0
#define KOMAINU_FORK 1
#define KOMAINU_SIGNAL 2 /* a signal arrived: handle it and call again */

#define KOMAINU_FAILED (-1)

/* The exit status of a process that could not load its application and has called komainu_not_loaded. */
#define KOMAINU_EXIT_NOT_LOADED 3

/*
 * Call this first: it reads the environment. From here on the process ends with the server, and TERM, INT, HUP, QUIT, USR1
 * and USR2, which are meant for the server, do not end it, unless it has or installs a handler of its own. Returns
 * KOMAINU_PROTOTYPE, KOMAINU_WORKER, or KOMAINU_FAILED with a terminated text in `error`.
 */
int komainu_begin(char *error, size_t error_size);

/* Reports that the application is loaded (a prototype), or that the worker has attached. 0 or KOMAINU_FAILED. */
int komainu_loaded(void);

/*
 * Before komainu_loaded, for languages that also have event loops: reports that this worker has none. Each of its threads
 * has one request at a time, so a request that takes too long means that its thread hangs.
 */
void komainu_single(void);

/* Reports that the worker accepts no more requests, for any reason: `timeouts.stop` begins now. */
void komainu_leaving(void);

/* Reports the reason that the application cannot be loaded. Exit with KOMAINU_EXIT_NOT_LOADED afterwards. */
void komainu_not_loaded(const char *text, size_t len);

/* Waits for a command to the prototype. Signal handlers run while it waits. */
int komainu_order(void);

/* Reports the reason that no worker could be forked. */
void komainu_not_forked(const char *text, size_t len);

/*
 * Call it in the grandchild: from now on its output is logged under its own process id, and it ends with the server,
 * whose child it has become. Returns 0, or KOMAINU_FAILED with a text in `error`; then exit.
 */
int komainu_born(char *error, size_t error_size);

/* A worker's first seat, and its number of seats: one for each of its threads, in sequence. */
int komainu_seat(void);
int komainu_seats(void);

#ifdef __cplusplus
}
#endif

#endif

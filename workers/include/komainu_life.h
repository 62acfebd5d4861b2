/*
 * komainu_life.h: the life of a worker process. The protocol behind it stands in workers/README.md.
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
 *     answer requests until komainu_next says KOMAINU_RETIRED
 *     komainu_leaving();
 *     end as programs of the language end; exit(0);
 *
 * All of these are called from the process's first thread.
 */
#ifndef KOMAINU_LIFE_H
#define KOMAINU_LIFE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The server sends this to a process that it is about to kill as it takes too long: say on standard error where each
 * thread is, briefly, and end. Who does not end is killed two seconds later. (SIGSTKFLT, which nobody else sends.)
 */
#define KOMAINU_SIGNAL_WHERE 16

/* What a process is for. */
#define KOMAINU_PROTOTYPE 1
#define KOMAINU_WORKER 2

/* What a prototype is told. */
#define KOMAINU_LEAVE 0
#define KOMAINU_FORK 1
#define KOMAINU_SIGNAL 2 /* a signal came: look after it and ask again */

#define KOMAINU_FAILED (-1)

/* The status of a process that could not load its application and has said so. */
#define KOMAINU_EXIT_NOT_LOADED 3

/*
 * First of all: takes up what the environment says. From here on the process ends with the server, and TERM, INT, HUP,
 * QUIT, USR1 and USR2 do not end it, where they have no handler by now and get none: they are meant for the server. What
 * it is for, or KOMAINU_FAILED with a terminated text in `error`.
 */
int komainu_begin(char *error, size_t error_size);

/* The application is loaded (a prototype), or requests may come (a worker, once it has attached). 0 or KOMAINU_FAILED. */
int komainu_loaded(void);

/*
 * Before komainu_loaded, in a worker of a language that knows event loops too: this one is none. Each of its threads has one
 * request at a time, and is stuck where that takes too long.
 */
void komainu_single(void);

/* A worker takes no more requests, whoever wanted that: from now on it has the time that a worker has for leaving. */
void komainu_leaving(void);

/* The application cannot be loaded: its own words. Exit with KOMAINU_EXIT_NOT_LOADED next. */
void komainu_not_loaded(const char *text, size_t len);

/* Waits for an order to the prototype. Handlers of signals run while it waits. */
int komainu_order(void);

/* Instead of a child: why there is none. */
void komainu_not_forked(const char *text, size_t len);

/*
 * In the grandchild: its output goes to the log as its own from here on, and it ends with the server, whose child it has
 * become. 0, or KOMAINU_FAILED with a text; exit then.
 */
int komainu_born(char *error, size_t error_size);

/* A worker's first seat, and how many it has: one for each of its threads, numbered on from the first. */
int komainu_seat(void);
int komainu_seats(void);

#ifdef __cplusplus
}
#endif

#endif

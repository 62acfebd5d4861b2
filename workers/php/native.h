/* Shared by the files of the PHP worker. */
#ifndef NATIVE_H
#define NATIVE_H

#include <main/php.h>
#include <main/SAPI.h>
#include <main/php_ini.h>
#include <main/php_main.h>
#include <main/php_output.h>
#include <main/php_variables.h>

#include "komainu.h"
#include "komainu_life.h"

/* The request that is being answered. */
typedef struct {
    komainu_request *handle; /* NULL between requests, and in processes that a script has forked */
    int has_head;            /* whether the response's head was written */
    int failed;              /* whether the response cannot be continued */
    int ended_body;          /* whether all of the request's body was read */
    size_t output_len;       /* bytes in `output` */
    char output[16 * 1024];  /* response bytes not yet written */
} Request;

extern Request current;

/* ---- request.c: the variables of a request ---- */

/* A variable of a request's CGI-like environment. Both texts are terminated. */
typedef struct {
    const char *name;
    const char *value;
    size_t name_len;
    size_t value_len;
} Variable;

/* Creates the variables of the current request, valid until the next one. Returns 0 if out of memory. */
int make_variables(void);
/* The value of a variable, or NULL. */
const Variable *variable_of(const char *name);
/* Stores all variables; returns their number. */
size_t all_variables(const Variable **variables);
/* Fills `$_SERVER`. */
void register_variables(zval *array);
/* Adds an environment variable of this process to `$_SERVER`. */
void share_environment(const char *name);

/* ---- response.c: output, header fields, and log lines ---- */

size_t write_output(const char *text, size_t len);
void flush_output(void *context);
int send_headers(sapi_headers_struct *headers);
size_t read_body(char *buffer, size_t size);
void log_message(const char *text, int level);
/* Ends the response, successfully or with an error. */
void end_response(void);

/* ---- ini.c: settings ---- */

/* Adds a setting in php.ini syntax; `is_locked` if scripts may not change it. Returns 0 if out of memory. */
int add_setting(const char *text, int is_locked);
/* Makes OPcache use the temporary directory. Returns 0 if out of memory. */
int add_temporary_folder(void);

/* The settings, for `sapi_module_struct.ini_entries`. */
char *settings_text(void);
/* Called after PHP has started: locks settings, and reports names unknown to PHP. */
void finish_settings(void);
/* Applies the `.user.ini` files from the root to the script's directory. */
void apply_user_settings(void);

/* ---- where.c: the position of a script ---- */

/* Handles KOMAINU_SIGNAL_WHERE: writes the script's stack to standard error and ends the process. */
void prepare_stack(void);

#endif

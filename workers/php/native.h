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
    komainu_request *handle; /* NULL before and after its time, and in processes that a script has forked */
    int has_head;            /* whether the response's head was written */
    int failed;              /* whether the response cannot be continued */
    int ended_body;          /* whether all of the request's body was read */
    size_t output_len;       /* bytes in `output` */
    char output[16 * 1024];  /* of the response, not written yet */
} Request;

extern Request current;

/* ---- request.c: the variables of a request ---- */

/* One of the environment of a request as CGI has it. Both texts are terminated. */
typedef struct {
    const char *name;
    const char *value;
    size_t name_len;
    size_t value_len;
} Variable;

/* Makes the variables of the current request. They stay until the next one. 0 if memory is short. */
int make_variables(void);
/* The value of a variable, or NULL. */
const Variable *variable_of(const char *name);
/* All of them; returns their number. */
size_t all_variables(const Variable **variables);
/* Fills `$_SERVER`. */
void register_variables(zval *array);
/* Names of environment variables of this process that are in `$_SERVER`. */
void share_environment(const char *name);

/* ---- response.c: output, header fields, and log lines ---- */

size_t write_output(const char *text, size_t len);
void flush_output(void *context);
int send_headers(sapi_headers_struct *headers);
size_t read_body(char *buffer, size_t size);
void log_message(const char *text, int level);
/* Ends the response, whole or with an error. */
void end_response(void);

/* ---- ini.c: settings ---- */

/* A setting in php.ini's form; `is_locked` if scripts may not change it. 0 if memory is short. */
int add_setting(const char *text, int is_locked);
/* Has OPcache use the temporary folder. Returns 0 without memory. */
int add_temporary_folder(void);

/* The settings, for `sapi_module_struct.ini_entries`. */
char *settings_text(void);
/* After PHP has started: locks what is to be locked, and reports names that PHP does not know. */
void finish_settings(void);
/* The settings in the files `.user.ini` from the root to the folder of the script. */
void apply_user_settings(void);

/* ---- where.c: where a script is ---- */

/* From here on KOMAINU_SIGNAL_WHERE writes the script's stack to standard error and ends the process. */
void prepare_stack(void);

#endif

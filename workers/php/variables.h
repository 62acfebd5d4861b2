/* The variables of a request, named as web servers pass them to PHP-FPM. */
#ifndef KOMAINU_VARIABLES_H
#define KOMAINU_VARIABLES_H

#include "common.h"

/* A variable of a request's CGI-like environment. Both texts are terminated. */
typedef struct {
    const char *name;
    const char *value;
    size_t name_len;
    size_t value_len;
} Variable;

/* Creates the variables of a request, valid until the next one. Returns 0 if out of memory. */
int make_variables(komainu_request *request);
/* The value of a variable, or NULL. */
const Variable *variable_of(const char *name);
/* Stores all variables; returns their number. */
size_t all_variables(const Variable **variables);
/* Fills `$_SERVER`. */
void register_variables(zval *array);
/* Adds an environment variable of this process to `$_SERVER`. */
void share_environment(const char *name);

#endif

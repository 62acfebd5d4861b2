/* Output of a script: body, header fields, and log lines; and reading the request's body. */
#ifndef KOMAINU_RESPONSE_H
#define KOMAINU_RESPONSE_H

#include "common.h"

/* Levels of log lines, as in syslog. */
#define LEVEL_ERROR 3
#define LEVEL_WARNING 4

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

size_t write_output(const char *text, size_t len);
void flush_output(void *context);
int send_headers(sapi_headers_struct *headers);
/* Fills the whole buffer, because PHP treats a short read as the end of the body. */
size_t read_body(char *buffer, size_t size);
/* Logs each line of a text separately. */
void log_message(const char *text, int level);
/* Ends the response, successfully or with an error. */
void end_response(void);

#endif

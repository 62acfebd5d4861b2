/* Output of a script: body, header fields, and log lines; and reading the request's body. */
#include "response.h"

#include <main/rfc1867.h>
#include <strings.h>

/* Maximum number of header fields of a response. */
#define FIELDS_MAX 256
/* Maximum length of a log line in bytes; longer ones are split. */
#define LINE_BYTES_MAX (16 * 1024)
/* The abort reason that is sent to the server. */
#define SCRIPT_FAILED 17

Request current;

/* ---- the log ---- */

void log_message(const char *text, int level) {
    while (*text) {
        size_t len = strcspn(text, "\n"), cut = len < LINE_BYTES_MAX ? len : LINE_BYTES_MAX;
        if (cut && komainu_log(current.handle, (uint8_t)level, text, cut) != KOMAINU_OK && current.handle)
            komainu_log(NULL, (uint8_t)level, text, cut);
        text += len + (text[len] == '\n');
    }
    /* Messages of a hanging script must arrive before it is killed; after the head they are sent with the body. */
    if (current.handle && !current.has_head)
        komainu_flush(current.handle);
}

/* ---- the head ---- */

static int is_token(const char *text, size_t len) {
    size_t at;
    for (at = 0; at < len; at++) {
        unsigned char byte = (unsigned char)text[at];
        if (byte <= ' ' || byte >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", byte))
            return 0;
    }
    return len > 0;
}

static int is_value(const char *text, size_t len) {
    size_t at;
    for (at = 0; at < len; at++) {
        unsigned char byte = (unsigned char)text[at];
        if ((byte < ' ' && byte != '\t') || byte == 0x7f)
            return 0;
    }
    return 1;
}

/* Parses a header line of a script into a field; returns 0 if it is invalid. */
static int read_field(const sapi_header_struct *header, komainu_field *field) {
    const char *line = header->header, *end = line + header->header_len;
    const char *colon = memchr(line, ':', header->header_len), *value;
    if (!colon || !is_token(line, (size_t)(colon - line)))
        return 0;
    for (value = colon + 1; value < end && (*value == ' ' || *value == '\t'); value++)
        ;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    field->id = 0;
    field->name = line;
    field->name_len = (uint32_t)(colon - line);
    field->value = value;
    field->value_len = (uint32_t)(end - value);
    return is_value(value, field->value_len);
}

static int is_status(const komainu_field *field) {
    return field->name_len == 6 && strncasecmp(field->name, "status", 6) == 0;
}

/* The status in a line such as `Status: 404 Not Found`, or 0. */
static int status_in(const komainu_field *field) {
    const char *text = field->value;
    int status = 0, at;
    if (field->value_len < 3 || (field->value_len > 3 && text[3] != ' '))
        return 0;
    for (at = 0; at < 3; at++) {
        if (text[at] < '0' || text[at] > '9')
            return 0;
        status = status * 10 + text[at] - '0';
    }
    return status >= 200 && status <= 599 ? status : 0;
}

static void skip_field(const sapi_header_struct *header) {
    char text[256];
    snprintf(text, sizeof text, "this is not a header field and was left out: %.*s",
             (int)(header->header_len < 100 ? header->header_len : 100), header->header);
    log_message(text, LEVEL_WARNING);
}

/* Handles a client that has disconnected: ends the script unless it asked to continue (`ignore_user_abort`). */
static void handle_code(int code) {
    if (code == KOMAINU_OK)
        return;
    current.failed = 1;
    if (code == KOMAINU_CANCELLED) {
        php_handle_aborted_connection();
        return;
    }
    log_message(komainu_error(code), LEVEL_ERROR);
    php_handle_aborted_connection();
}

int send_headers(sapi_headers_struct *headers) {
    komainu_field fields[FIELDS_MAX];
    size_t count = 0;
    int status = headers->http_response_code ? headers->http_response_code : 200, code;
    zend_llist_position position;
    const sapi_header_struct *header;
    if (!current.handle || current.has_head || current.failed)
        return SAPI_HEADER_SENT_SUCCESSFULLY;
    header = zend_llist_get_first_ex(&headers->headers, &position);
    for (; header; header = zend_llist_get_next_ex(&headers->headers, &position)) {
        if (count == FIELDS_MAX) {
            log_message("the response has more than 256 header fields: the others were left out", LEVEL_ERROR);
            break;
        }
        if (!read_field(header, &fields[count])) {
            skip_field(header);
        } else if (is_status(&fields[count])) {
            /* CGI programs send this field in place of a status line. */
            if (status == 200 && status_in(&fields[count]))
                status = status_in(&fields[count]);
        } else {
            count++;
        }
    }
    if (status < 200 || status > 999) {
        log_message("the status of the response has to be of 200 to 999", LEVEL_ERROR);
        status = 500;
    }
    code = komainu_head(current.handle, (uint16_t)status, fields, count);
    if (code == KOMAINU_OK)
        current.has_head = 1;
    handle_code(code);
    return SAPI_HEADER_SENT_SUCCESSFULLY;
}

/* ---- the body ---- */

static int write_piece(const char *text, size_t len, uint32_t flags) {
    return komainu_write(current.handle, text, len, flags);
}

/* Writes the buffered output. */
static int write_collected(uint32_t flags) {
    size_t len = current.output_len;
    current.output_len = 0;
    return len ? write_piece(current.output, len, flags) : KOMAINU_OK;
}

size_t write_output(const char *text, size_t len) {
    int code = KOMAINU_OK;
    if (!current.handle || current.failed || !current.has_head)
        return len;
    if (len > sizeof current.output - current.output_len)
        code = write_collected(KOMAINU_MORE);
    if (code == KOMAINU_OK && len >= sizeof current.output) {
        code = write_piece(text, len, KOMAINU_MORE);
    } else if (code == KOMAINU_OK) {
        memcpy(current.output + current.output_len, text, len);
        current.output_len += len;
    }
    handle_code(code);
    return len;
}

void flush_output(void *context) {
    int code;
    (void)context;
    if (!current.handle || current.failed || !current.has_head)
        return;
    code = write_collected(KOMAINU_MORE);
    if (code == KOMAINU_OK) {
        komainu_flush(current.handle);
        if (komainu_cancelled(current.handle))
            code = KOMAINU_CANCELLED;
    }
    handle_code(code);
}

size_t read_body(char *buffer, size_t size) {
    size_t len = 0;
    while (len < size && current.handle && !current.ended_body) {
        int64_t got = komainu_read(current.handle, buffer + len, size - len);
        if (got <= 0) {
            current.ended_body = 1;
            /* Scripts must not process an incomplete body. */
            if (got < 0)
                current.failed = 1;
            break;
        }
        len += (size_t)got;
    }
    return len;
}

/* ---- the end ---- */

static void send_error(void) {
    static const komainu_field type = {"content-type", "text/plain", 12, 10, 0};
    if (komainu_head(current.handle, 500, &type, 1) == KOMAINU_OK) {
        write_piece("Internal Server Error\n", 22, KOMAINU_MORE);
        komainu_end(current.handle);
    } else {
        komainu_abort(current.handle, SCRIPT_FAILED);
    }
}

void end_response(void) {
    if (!current.handle)
        return;
    if (current.failed || (current.has_head && write_collected(KOMAINU_MORE) != KOMAINU_OK))
        komainu_abort(current.handle, SCRIPT_FAILED);
    else if (!current.has_head)
        send_error();
    else
        komainu_end(current.handle);
    current.handle = NULL;
}

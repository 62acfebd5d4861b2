/* Answers "OK" and writes a line to syslog for each request. */
#include <komainu_handler.h>
#include <syslog.h>

static int start(void **process, char *error, size_t error_size) {
    (void)process, (void)error, (void)error_size;
    openlog("handler", LOG_NDELAY, LOG_USER);
    return 0;
}

static int handle(komainu_request *request, void *process, void *thread) {
    komainu_text path = komainu_part(request, KOMAINU_PATH);
    (void)process, (void)thread;
    syslog(LOG_INFO, "%.*s", (int)path.len, path.text);
    return komainu_reply(request, 200, "text/plain", "OK", 2);
}

KOMAINU_HANDLER(.handle = handle, .start = start)

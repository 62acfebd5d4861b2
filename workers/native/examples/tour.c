/* Demonstrates each feature of a handler, selected by path. */
#include <komainu_handler.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* State shared by all workers, created before they are forked; and state of each thread. */
struct shared { char greeting[32]; };
struct count { unsigned requests; };

static int load(void **process, char *error, size_t error_size) {
    struct shared *shared = malloc(sizeof *shared);
    const char *name = getenv("GREETING");
    if (name && strlen(name) >= sizeof shared->greeting) {
        snprintf(error, error_size, "GREETING is too long: %s", name);
        return -1;
    }
    strcpy(shared->greeting, name ? name : "hello");
    *process = shared;
    return 0;
}

static int begin(void *process, void **thread, char *error, size_t error_size) {
    (void)process, (void)error, (void)error_size;
    *thread = calloc(1, sizeof(struct count));
    return *thread ? 0 : -1;
}

static void end(void *process, void *thread) {
    struct count *count = thread;
    (void)process;
    printf("%u requests\n", count->requests);
    free(count);
}

static int text(komainu_request *request, const char *words, size_t len) {
    return komainu_reply(request, 200, "text/plain", words, len);
}

/* Sends the body back piece by piece, as it arrives. */
static int echo(komainu_request *request) {
    char piece[16 * 1024];
    int64_t len;
    int code = komainu_head(request, 200, NULL, 0);
    while (code == KOMAINU_OK && (len = komainu_read(request, piece, sizeof piece)) != 0)
        code = len < 0 ? (int)len : komainu_write(request, piece, (size_t)len, 0);
    return code;
}

/* Texts have a length and are not NUL-terminated. */
static long number(komainu_text text) {
    long value = 0;
    for (size_t at = 0; at < text.len && text.text[at] >= '0' && text.text[at] <= '9' && value < 1000000; at++)
        value = value * 10 + (text.text[at] - '0');
    return value;
}

/* Streams a response that is too large to be held in memory. */
static int many(komainu_request *request, long lines) {
    char line[32];
    int code = komainu_head(request, 200, NULL, 0);
    for (long at = 0; at < lines && code == KOMAINU_OK; at++) {
        int len = snprintf(line, sizeof line, "line %ld\n", at);
        code = komainu_write(request, line, (size_t)len, KOMAINU_MORE);
    }
    return code;
}

/* Passes a file to the server, which sends it. */
static int file(komainu_request *request, const char *path) {
    struct stat status;
    int code, fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 404;
    code = fstat(fd, &status) == 0 ? komainu_head(request, 200, NULL, 0) : 500;
    if (code == KOMAINU_OK)
        code = komainu_file(request, fd, 0, (uint64_t)status.st_size);
    close(fd);
    return code;
}

static int is(komainu_text found, const char *wanted) {
    return found.len == strlen(wanted) && memcmp(found.text, wanted, found.len) == 0;
}

static int handle(komainu_request *request, void *process, void *thread) {
    const struct shared *shared = process;
    komainu_text path = komainu_part(request, KOMAINU_PATH), agent = komainu_header(request, "user-agent");
    komainu_text query = komainu_part(request, KOMAINU_QUERY);
    ((struct count *)thread)->requests++;
    if (is(path, "/"))
        return text(request, shared->greeting, strlen(shared->greeting));
    if (is(path, "/agent"))
        return text(request, agent.text, agent.len);
    if (is(path, "/echo"))
        return echo(request);
    if (is(path, "/many"))
        return many(request, query.len ? number(query) : 10);
    if (is(path, "/file"))
        return file(request, "/proc/self/exe");
    if (is(path, "/log")) {
        komainu_log(request, 6, "a line of the handler's", 23);
        return text(request, "logged", 6);
    }
    if (is(path, "/crash"))
        abort();
    if (is(path, "/nothing"))
        return KOMAINU_OK;
    if (is(path, "/fail"))
        return -99;
    return 404;
}

KOMAINU_HANDLER(.handle = handle, .load = load, .begin = begin, .end = end)

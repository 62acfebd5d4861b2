/* As stress.psgi, as a native handler. */
#include <komainu_handler.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The value of a key in the query, copied to `value`. */
static void query(const komainu_request *request, const char *key, char *value, size_t size) {
    komainu_text text = komainu_part(request, KOMAINU_QUERY);
    size_t len = strlen(key), at = 0, to = 0;
    while (at + len < text.len && (strncmp(text.text + at, key, len) || text.text[at + len] != '='))
        at++;
    for (at += len + 1; at < text.len && text.text[at] != '&' && to + 1 < size; at++)
        value[to++] = text.text[at];
    value[to] = 0;
}

static int upload(komainu_request *request, const char *line, size_t len, const komainu_field *id) {
    char piece[4096], count[32];
    int count_len, code;
    size_t total = 0;
    int foreign = 0;
    int64_t got;
    while ((got = komainu_read(request, piece, sizeof piece)) > 0)
        for (int64_t at = 0; at < got; at++, total++)
            foreign |= piece[at] != line[total % len];
    if (got < 0)
        return (int)got;
    count_len = snprintf(count, sizeof count, "%zu", total);
    code = komainu_head(request, foreign ? 409 : 200, id, 1);
    return code == KOMAINU_OK ? komainu_write(request, count, (size_t)count_len, 0) : code;
}

static int handle(komainu_request *request, void *process, void *thread) {
    char id[64], size_text[16], chunks_text[16], length[32];
    (void)process, (void)thread;
    query(request, "id", id, sizeof id - 1);
    query(request, "size", size_text, sizeof size_text);
    query(request, "chunks", chunks_text, sizeof chunks_text);
    komainu_field fields[] = {{"x-id", id, 4, (uint32_t)strlen(id), 0}, {"content-length", length, 14, 0, 0}};
    strcat(id, "\n");
    size_t len = strlen(id), size = strtoul(size_text, NULL, 10), chunks = strtoul(chunks_text, NULL, 10);
    komainu_text method = komainu_part(request, KOMAINU_METHOD);
    if (method.len == 4 && !memcmp(method.text, "POST", 4))
        return upload(request, id, len, fields);
    fields[1].value_len = (uint32_t)snprintf(length, sizeof length, "%zu", size);
    int code = komainu_head(request, 200, fields, chunks > 1 ? 1 : 2);
    char *content = malloc(size + 1);
    for (size_t at = 0; at < size; at++)
        content[at] = id[at % len];
    size_t step = chunks > 1 ? size / chunks + 1 : size + 1;
    for (size_t at = 0; at < size && code == KOMAINU_OK; at += step) {
        code = komainu_write(request, content + at, at + step > size ? size - at : step, 0);
        if (chunks > 1)
            usleep(1000);
    }
    free(content);
    return code;
}

KOMAINU_HANDLER(.handle = handle)

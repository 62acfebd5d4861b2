/*
 * The endpoints of HttpArena that need code, as a native handler (docs/native.md):
 *
 *     GET  /baseline11?a=1&b=2, /baseline2?a=1&b=2     the sum of the parameters
 *     POST /baseline11?a=1&b=2 with a number           the sum of all three
 *     GET  /json/{count}?m=3                           the first items of the data set, with totals
 *     POST /upload                                     the number of bytes
 *
 * The data set is read from $ARENA_DATASET once. Each response is computed and serialized for its request.
 */
#include <komainu_handler.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { ITEMS_MAX = 4096, TAGS_MAX = 16, DATASET_BYTES_MAX = 16 << 20, NUMBER_CHARS_MAX = 20, NESTING_MAX = 32 };

struct string { char *bytes; size_t len; };

struct item {
    long long id, price, quantity, score, count;
    struct string name, category, tags[TAGS_MAX];
    size_t tag_count;
    int active;
};

struct dataset {
    struct item *items;
    size_t count;
    size_t bytes_max; /* of a response with all items */
    int h2c_port;     /* where HTTP/1 is refused, as the profiles of HTTP/2 in the clear demand; 0 for nowhere */
};

/* ---- Reading the data set ---- */

struct reader { const char *at, *end; const char *error; };

static int fail(struct reader *reader, const char *what) {
    if (!reader->error)
        reader->error = what;
    return 0;
}

static char peek(struct reader *reader) {
    while (reader->at < reader->end && strchr(" \t\r\n", *reader->at) && *reader->at)
        reader->at++;
    return reader->at < reader->end ? *reader->at : '\0';
}

static int take(struct reader *reader, char wanted) {
    if (reader->error || peek(reader) != wanted || !wanted)
        return 0;
    reader->at++;
    return 1;
}

static int expect(struct reader *reader, char wanted) {
    return take(reader, wanted) ? 1 : fail(reader, "a bracket, colon or comma is missing");
}

static int hex(struct reader *reader, unsigned *code) {
    *code = 0;
    for (int digit = 0; digit < 4; digit++, reader->at++) {
        const char *digits = "0123456789abcdef", *found = NULL;
        if (reader->at < reader->end && *reader->at)
            found = strchr(digits, *reader->at | (*reader->at >= 'A' && *reader->at <= 'F' ? 32 : 0));
        if (!found)
            return fail(reader, "\\u needs four digits");
        *code = *code * 16 + (unsigned)(found - digits);
    }
    return 1;
}

static void put_utf8(struct string *text, unsigned code) {
    unsigned char *out = (unsigned char *)text->bytes + text->len;
    if (code < 0x80) {
        out[0] = (unsigned char)code, text->len += 1;
    } else if (code < 0x800) {
        out[0] = (unsigned char)(0xC0 | code >> 6), out[1] = (unsigned char)(0x80 | (code & 63)), text->len += 2;
    } else if (code < 0x10000) {
        out[0] = (unsigned char)(0xE0 | code >> 12), out[1] = (unsigned char)(0x80 | (code >> 6 & 63));
        out[2] = (unsigned char)(0x80 | (code & 63)), text->len += 3;
    } else {
        out[0] = (unsigned char)(0xF0 | code >> 18), out[1] = (unsigned char)(0x80 | (code >> 12 & 63));
        out[2] = (unsigned char)(0x80 | (code >> 6 & 63)), out[3] = (unsigned char)(0x80 | (code & 63)), text->len += 4;
    }
}

static int escape(struct reader *reader, struct string *text) {
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char name = reader->at < reader->end ? *reader->at++ : '\0';
    unsigned code, low;
    if (name == 'u') {
        if (!hex(reader, &code))
            return 0;
        if (code >= 0xD800 && code < 0xDC00) {
            if (reader->end - reader->at < 6 || reader->at[0] != '\\' || reader->at[1] != 'u')
                return fail(reader, "half of a surrogate pair is missing");
            reader->at += 2;
            if (!hex(reader, &low) || low < 0xDC00 || low > 0xDFFF)
                return fail(reader, "half of a surrogate pair is missing");
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        put_utf8(text, code);
        return 1;
    }
    const char *found = name ? strchr(names, name) : NULL;
    if (!found)
        return fail(reader, "an unknown escape");
    text->bytes[text->len++] = meanings[found - names];
    return 1;
}

/* Reads a string into memory of its own. */
static int string(struct reader *reader, struct string *text) {
    if (!expect(reader, '"'))
        return 0;
    text->len = 0;
    text->bytes = malloc((size_t)(reader->end - reader->at) + 4);
    if (!text->bytes)
        return fail(reader, "no memory");
    while (reader->at < reader->end && *reader->at != '"') {
        if ((unsigned char)*reader->at < 0x20)
            return fail(reader, "a control character in a string");
        if (*reader->at != '\\')
            text->bytes[text->len++] = *reader->at++;
        else if (reader->at++, !escape(reader, text))
            return 0;
    }
    if (reader->at >= reader->end)
        return fail(reader, "a string without an end");
    reader->at++;
    char *fitted = realloc(text->bytes, text->len + 1);
    if (fitted)
        text->bytes = fitted;
    return 1;
}

static int integer(struct reader *reader, long long *value) {
    int negative = take(reader, '-');
    if (peek(reader) < '0' || peek(reader) > '9')
        return fail(reader, "an integer is needed");
    for (*value = 0; reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9'; reader->at++)
        if (__builtin_mul_overflow(*value, 10LL, value) || __builtin_add_overflow(*value, *reader->at - '0', value))
            return fail(reader, "a number is too large");
    if (negative)
        *value = -*value;
    return 1;
}

static int word(struct reader *reader, const char *wanted) {
    size_t len = strlen(wanted);
    if ((size_t)(reader->end - reader->at) < len || memcmp(reader->at, wanted, len))
        return 0;
    reader->at += len;
    return 1;
}

/* Skips a value of a key that is not used. */
static int skip(struct reader *reader, int depth) {
    struct string text = {NULL, 0};
    char first = peek(reader);
    if (depth > NESTING_MAX)
        return fail(reader, "too many levels");
    if (first == '"') {
        int read = string(reader, &text);
        free(text.bytes);
        return read;
    }
    if (take(reader, '{') || take(reader, '[')) {
        char last = first == '{' ? '}' : ']';
        if (take(reader, last))
            return 1;
        do {
            if (first == '{' && (!skip(reader, depth + 1) || !expect(reader, ':')))
                return 0;
            if (!skip(reader, depth + 1))
                return 0;
        } while (take(reader, ','));
        return expect(reader, last);
    }
    const char *began = reader->at;
    while (reader->at < reader->end && !strchr(",]} \t\r\n", *reader->at))
        reader->at++;
    return reader->at > began ? 1 : fail(reader, "a value is missing");
}

static int is_key(const struct string *key, const char *name) {
    return key->len == strlen(name) && !memcmp(key->bytes, name, key->len);
}

static int tags(struct reader *reader, struct item *item) {
    if (!expect(reader, '['))
        return 0;
    if (take(reader, ']'))
        return 1;
    do {
        if (item->tag_count == TAGS_MAX)
            return fail(reader, "an item has more than 16 tags");
        if (!string(reader, &item->tags[item->tag_count++]))
            return 0;
    } while (take(reader, ','));
    return expect(reader, ']');
}

/* Reads an item, or with `rating` the object in it. */
static int item_members(struct reader *reader, struct item *item, int rating) {
    if (!expect(reader, '{'))
        return 0;
    if (take(reader, '}'))
        return 1;
    do {
        struct string key = {NULL, 0};
        int read = string(reader, &key) && expect(reader, ':');
        if (read && rating)
            read = is_key(&key, "score")   ? integer(reader, &item->score)
                   : is_key(&key, "count") ? integer(reader, &item->count)
                                           : skip(reader, 0);
        else if (read && is_key(&key, "active"))
            read = peek(reader), item->active = word(reader, "true"),
            read = item->active || word(reader, "false") || fail(reader, "active is true or false");
        else if (read)
            read = is_key(&key, "id")         ? integer(reader, &item->id)
                   : is_key(&key, "price")    ? integer(reader, &item->price)
                   : is_key(&key, "quantity") ? integer(reader, &item->quantity)
                   : is_key(&key, "name")     ? string(reader, &item->name)
                   : is_key(&key, "category") ? string(reader, &item->category)
                   : is_key(&key, "tags")     ? tags(reader, item)
                   : is_key(&key, "rating")   ? item_members(reader, item, 1)
                                              : skip(reader, 0);
        free(key.bytes);
        if (!read)
            return 0;
    } while (take(reader, ','));
    return expect(reader, '}');
}

static int items(struct reader *reader, struct dataset *dataset) {
    if (!expect(reader, '['))
        return 0;
    if (take(reader, ']'))
        return 1;
    do {
        if (dataset->count == ITEMS_MAX)
            return fail(reader, "more than 4096 items");
        if (!item_members(reader, &dataset->items[dataset->count++], 0))
            return 0;
    } while (take(reader, ','));
    return expect(reader, ']');
}

static size_t written_max(const struct string *text) { return text->len * 6 + 4; }

static int load(void **process, char *error, size_t error_size) {
    const char *path = getenv("ARENA_DATASET"), *port = getenv("ARENA_H2C_PORT");
    struct dataset *dataset = calloc(1, sizeof *dataset);
    char *text = malloc(DATASET_BYTES_MAX);
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!dataset || !text || !(dataset->items = calloc(ITEMS_MAX, sizeof *dataset->items))) {
        snprintf(error, error_size, "no memory");
        return -1;
    }
    if (!file) {
        snprintf(error, error_size, "ARENA_DATASET: cannot read %s: %s", path ? path : "a file, because it is not set",
                 path ? strerror(errno) : "name one");
        return -1;
    }
    size_t len = fread(text, 1, DATASET_BYTES_MAX, file);
    fclose(file);
    struct reader reader = {text, text + len, NULL};
    if (len == DATASET_BYTES_MAX || !items(&reader, dataset) || peek(&reader)) {
        snprintf(error, error_size, "ARENA_DATASET: %s, byte %zu: %s", path, (size_t)(reader.at - text),
                 reader.error ? reader.error : "larger than 16 MiB, or more than a list");
        return -1;
    }
    free(text);
    dataset->bytes_max = 64;
    for (size_t at = 0; at < dataset->count; at++) {
        const struct item *item = &dataset->items[at];
        dataset->bytes_max += 200 + 6 * NUMBER_CHARS_MAX + written_max(&item->name) + written_max(&item->category);
        for (size_t tag = 0; tag < item->tag_count; tag++)
            dataset->bytes_max += written_max(&item->tags[tag]);
    }
    dataset->h2c_port = port ? atoi(port) : 0;
    *process = dataset;
    return 0;
}

static int begin(void *process, void **thread, char *error, size_t error_size) {
    *thread = malloc(((const struct dataset *)process)->bytes_max);
    if (!*thread)
        snprintf(error, error_size, "no memory");
    return *thread ? 0 : -1;
}

static void end(void *process, void *thread) {
    (void)process;
    free(thread);
}

/* ---- Writing a response ---- */

#define PUT(out, literal) (memcpy(out, literal, sizeof(literal) - 1), (out) + sizeof(literal) - 1)

static char *put_number(char *out, long long value) {
    char digits[NUMBER_CHARS_MAX + 1], *first = digits + sizeof digits;
    unsigned long long left = value < 0 ? 0ULL - (unsigned long long)value : (unsigned long long)value;
    do
        *--first = (char)('0' + left % 10);
    while (left /= 10);
    if (value < 0)
        *out++ = '-';
    size_t len = (size_t)(digits + sizeof digits - first);
    memcpy(out, first, len);
    return out + len;
}

static char *put_string(char *out, const struct string *text) {
    *out++ = '"';
    for (size_t at = 0; at < text->len; at++) {
        unsigned char byte = (unsigned char)text->bytes[at];
        if (byte == '"' || byte == '\\')
            *out++ = '\\', *out++ = (char)byte;
        else if (byte < 0x20)
            out += sprintf(out, "\\u%04x", byte);
        else
            *out++ = (char)byte;
    }
    *out++ = '"';
    return out;
}

static char *put_item(char *out, const struct item *item, long long factor) {
    long long total;
    if (__builtin_mul_overflow(item->price, item->quantity, &total) || __builtin_mul_overflow(total, factor, &total))
        total = 0;
    out = put_number(PUT(out, "{\"id\":"), item->id);
    out = put_string(PUT(out, ",\"name\":"), &item->name);
    out = put_string(PUT(out, ",\"category\":"), &item->category);
    out = put_number(PUT(out, ",\"price\":"), item->price);
    out = put_number(PUT(out, ",\"quantity\":"), item->quantity);
    out = item->active ? PUT(out, ",\"active\":true,\"tags\":[") : PUT(out, ",\"active\":false,\"tags\":[");
    for (size_t at = 0; at < item->tag_count; at++) {
        if (at)
            *out++ = ',';
        out = put_string(out, &item->tags[at]);
    }
    out = put_number(PUT(out, "],\"rating\":{\"score\":"), item->score);
    out = put_number(PUT(out, ",\"count\":"), item->count);
    out = put_number(PUT(out, "},\"total\":"), total);
    *out++ = '}';
    return out;
}

/* ---- Answering ---- */

/* Reads an integer from a text; 0 if it begins with none. A number that is too large for the sum stays at the limit. */
static long long number(const char *text, size_t len) {
    long long value = 0;
    size_t at = len && text[0] == '-';
    int negative = (int)at;
    for (; at < len && text[at] >= '0' && text[at] <= '9'; at++)
        if (value < LLONG_MAX / 100)
            value = value * 10 + (text[at] - '0');
    return negative ? -value : value;
}

/* Returns the value of a parameter of one letter; `none` if it is not there. */
static long long parameter(komainu_text query, char name, long long none) {
    for (size_t at = 0; at + 1 < query.len; at++)
        if (query.text[at] == name && query.text[at + 1] == '=' && (at == 0 || query.text[at - 1] == '&'))
            return number(query.text + at + 2, query.len - at - 2);
    return none;
}

/* Reads at most `size` bytes of the body, and skips the rest. Returns the length of all, or the code of a failure. */
static int64_t read_body(komainu_request *request, char *body, size_t size, size_t *kept) {
    char rest[16384];
    int64_t all = 0;
    *kept = 0;
    for (;;) {
        int64_t len = *kept < size ? komainu_read(request, body + *kept, size - *kept) : komainu_read(request, rest, sizeof rest);
        if (len <= 0)
            return len < 0 ? len : all;
        *kept += *kept < size ? (size_t)len : 0;
        all += len;
    }
}

static int reply_number(komainu_request *request, long long value) {
    char digits[NUMBER_CHARS_MAX + 1];
    return komainu_reply(request, 200, "text/plain", digits, (size_t)(put_number(digits, value) - digits));
}

static int baseline(komainu_request *request) {
    komainu_text query = komainu_part(request, KOMAINU_QUERY), method = komainu_part(request, KOMAINU_METHOD);
    long long sum = parameter(query, 'a', 0) + parameter(query, 'b', 0);
    if (method.len == 4 && !memcmp(method.text, "POST", 4)) {
        char body[64];
        size_t kept;
        int64_t len = read_body(request, body, sizeof body, &kept);
        if (len < 0)
            return (int)len;
        sum += number(body, kept);
    }
    return reply_number(request, sum);
}

static int json(komainu_request *request, const struct dataset *dataset, char *buffer, komainu_text path) {
    long long wanted = number(path.text + 6, path.len - 6);
    long long factor = parameter(komainu_part(request, KOMAINU_QUERY), 'm', 1);
    size_t count = wanted < 0 ? 0 : (size_t)wanted > dataset->count ? dataset->count : (size_t)wanted;
    char *out = PUT(buffer, "{\"items\":[");
    for (size_t at = 0; at < count; at++) {
        if (at)
            *out++ = ',';
        out = put_item(out, &dataset->items[at], factor);
    }
    out = put_number(PUT(out, "],\"count\":"), (long long)count);
    *out++ = '}';
    return komainu_reply(request, 200, "application/json", buffer, (size_t)(out - buffer));
}

static int upload(komainu_request *request) {
    size_t kept;
    int64_t len = read_body(request, NULL, 0, &kept);
    return len < 0 ? (int)len : reply_number(request, len);
}

static int is(komainu_text found, const char *wanted) {
    return found.len == strlen(wanted) && !memcmp(found.text, wanted, found.len);
}

static int handle(komainu_request *request, void *process, void *thread) {
    const struct dataset *dataset = process;
    komainu_text path = komainu_part(request, KOMAINU_PATH);
    if (dataset->h2c_port) {
        komainu_text port = komainu_part(request, KOMAINU_SERVER_PORT), protocol = komainu_part(request, KOMAINU_PROTOCOL);
        if (number(port.text, port.len) == dataset->h2c_port && protocol.len > 6 && protocol.text[5] == '1')
            return 505;
    }
    if (is(path, "/baseline11") || is(path, "/baseline2"))
        return baseline(request);
    if (path.len > 6 && !memcmp(path.text, "/json/", 6))
        return json(request, dataset, thread, path);
    return is(path, "/upload") ? upload(request) : 404;
}

KOMAINU_HANDLER(.handle = handle, .load = load, .begin = begin, .end = end)

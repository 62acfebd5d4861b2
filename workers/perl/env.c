/* A request from the channel as a PSGI environment. */
#include "env.h"
#include "response.h"

/* Bodies up to this size are read before the application is called, and support seeking. */
#define BUFFERED_BYTES_MAX (64 * 1024)
/* Cached names of unknown header fields; limited, because clients can send new ones without end. */
#define NAMES_MAX 512

/* A key of the environment; all hashes share the string. */
static SV *method_key, *script_key, *path_key, *uri_key, *query_key, *protocol_key, *addr_key, *port_key;
static SV *name_key, *server_port_key, *scheme_key, *input_key, *buffered_key, *commit_key;
static SV *known_keys[256];
static HV *other_keys;
static U32 seen[256];
static U32 round_number;
static unsigned length_id, coding_id;

/*
 * Values that are equal in every environment. Requests share them; if an application has changed or kept one, the next
 * request gets a new one.
 */
typedef struct {
    SV *key;
    SV *value;
    SV *referent; /* if it is a reference */
    IV number;
} constant;
static constant constants[16];
static size_t constants_count;
static SV *cleanup_key, *cleanup_value;
static AV *cleanup_handlers;
static CV *inform;
static constant *inform_constant;

/* An empty body, shared in the same way. */
static SV *empty_input;
static SV *empty_text;

static SV *shared_key(pTHX_ const char *text) { return newSVpvn_share(text, strlen(text), 0); }

static void put(pTHX_ HV *env, SV *key, SV *value) {
    if (!hv_store_ent(env, key, value, SvSHARED_HASH(key)))
        SvREFCNT_dec(value);
}

static void put_text(pTHX_ HV *env, SV *key, const char *text, STRLEN len) {
    put(aTHX_ env, key, newSVpvn(text, len));
}

/* ---- the constants ---- */

static SV *make_constant(pTHX_ const constant *one) {
    return one->referent ? newRV_inc(one->referent) : newSViv(one->number);
}

static void add_constant(pTHX_ const char *key, SV *referent, IV number) {
    constant *one = &constants[constants_count++];
    one->key = shared_key(aTHX_ key);
    one->referent = referent;
    one->number = number;
    one->value = make_constant(aTHX_ one);
}

static int is_untouched(const constant *one) {
    SV *value = one->value;
    if (SvREFCNT(value) != 1 || SvMAGICAL(value) || SvREADONLY(value))
        return 0;
    if (one->referent)
        return SvROK(value) && SvRV(value) == one->referent;
    return SvTYPE(value) == SVt_IV && SvIOK(value) && !SvIsUV(value) && SvIVX(value) == one->number;
}

/* Replaces the shared function if an application has kept it, so that a kept one stays bound to its request. */
static void renew_inform(pTHX) {
    if (is_untouched(inform_constant) && SvREFCNT(inform) == 2)
        return;
    SvREFCNT_dec(inform_constant->value);
    SvREFCNT_dec(inform);
    inform = newXS(NULL, komainu_xs_inform, __FILE__);
    inform_constant->referent = (SV *)inform;
    inform_constant->value = make_constant(aTHX_ inform_constant);
}

static void make_clean_up(pTHX) {
    cleanup_handlers = newAV();
    cleanup_value = newRV_inc((SV *)cleanup_handlers);
}

void renew_constants(pTHX) {
    size_t at;
    renew_inform(aTHX);
    for (at = 0; at < constants_count; at++) {
        constant *one = &constants[at];
        if (!is_untouched(one)) {
            SvREFCNT_dec(one->value);
            one->value = make_constant(aTHX_ one);
        }
    }
    if (SvREFCNT(cleanup_value) != 1 || !SvROK(cleanup_value) || SvRV(cleanup_value) != (SV *)cleanup_handlers ||
        SvREFCNT(cleanup_handlers) != 2 || AvFILLp(cleanup_handlers) >= 0 || SvMAGICAL(cleanup_handlers)) {
        SvREFCNT_dec(cleanup_value);
        SvREFCNT_dec((SV *)cleanup_handlers);
        make_clean_up(aTHX);
    }
}

/* ---- the body ---- */

static SV *handle_of(pTHX_ SV *text) {
    SV *arguments = sv_2mortal(newRV_inc(text));
    GV *gv = (GV *)newSV(0);
    PerlIO *file = PerlIO_openn(aTHX_ "scalar", "r", -1, 0, 0, NULL, 1, &arguments);
    IO *io;
    gv_init_pvn(gv, gv_stashpvs("Komainu", GV_ADD), "input", 5, 0);
    io = GvIOn(gv);
    IoIFP(io) = file;
    IoTYPE(io) = IoTYPE_RDONLY;
    return newRV_noinc((SV *)gv);
}

/* Returns the handle of an empty body: the last one unless it was changed. */
static SV *empty_handle(pTHX) {
    GV *gv = empty_input && SvREFCNT(empty_input) == 1 && SvROK(empty_input) ? (GV *)SvRV(empty_input) : NULL;
    if (!gv || SvREFCNT((SV *)gv) != 1 || SvOBJECT((SV *)gv) || SvMAGICAL((SV *)gv) || SvTYPE((SV *)gv) != SVt_PVGV ||
        !GvIOp(gv) || !IoIFP(GvIOp(gv)) || SvREFCNT(GvIOp(gv)) != 1 || PerlIO_error(IoIFP(GvIOp(gv)))) {
        SvREFCNT_dec(empty_input);
        SvREFCNT_dec(empty_text);
        empty_text = newSVpvs("");
        empty_input = handle_of(aTHX_ empty_text);
    } else {
        IO *io = GvIOp(gv);
        if (PerlIO_eof(IoIFP(io)))
            PerlIO_clearerr(IoIFP(io));
        IoLINES(io) = 0;
    }
    return SvREFCNT_inc_simple_NN(empty_input);
}

/* Reads a small body of known length. If the rest of it does not arrive, the client has disconnected. */
static SV *read_whole(pTHX_ STRLEN length) {
    SV *text = newSV(length + 1);
    STRLEN filled = 0;
    SvPOK_only(text);
    while (filled < length) {
        int64_t got = komainu_read(current, SvPVX(text) + filled, length - filled);
        if (got <= 0) {
            current_gone = 1;
            break;
        }
        filled += (STRLEN)got;
    }
    SvCUR_set(text, filled);
    *SvEND(text) = '\0';
    return text;
}

static SV *make_input(pTHX_ STRLEN length, int is_known, int *is_buffered) {
    SV *input;
    *is_buffered = 1;
    if (is_known && length == 0)
        return empty_handle(aTHX);
    if (is_known && length <= BUFFERED_BYTES_MAX) {
        SV *text = sv_2mortal(read_whole(aTHX_ length));
        return handle_of(aTHX_ text);
    }
    {
        dSP;
        int count;
        ENTER;
        PUSHMARK(SP);
        count = call_pv("Komainu::_stream", G_SCALAR | G_NOARGS);
        SPAGAIN;
        input = count == 1 ? SvREFCNT_inc(POPs) : newSV(0);
        PUTBACK;
        LEAVE;
    }
    *is_buffered = 0;
    return input;
}

/* ---- the environment ---- */

static SV *key_of_header(pTHX_ const char *name, STRLEN len) {
    SV *text = sv_2mortal(newSVpvs("HTTP_"));
    char *at, *end;
    sv_catpvn(text, name, len);
    for (at = SvPVX(text) + 5, end = SvEND(text); at < end; at++)
        *at = *at == '-' ? '_' : toUPPER_A(*at);
    return newSVpvn_share(SvPVX(text), SvCUR(text), 0);
}

/* Returns the key of an unknown name; cached, because there are usually few of them. */
static SV *key_of_other(pTHX_ const komainu_field *field) {
    SV **found = hv_fetch(other_keys, field->name, (I32)field->name_len, 0);
    SV *key;
    if (found)
        return *found;
    key = key_of_header(aTHX_ field->name, field->name_len);
    if (HvUSEDKEYS(other_keys) < NAMES_MAX)
        (void)hv_store(other_keys, field->name, (I32)field->name_len, key, 0);
    else
        sv_2mortal(key);
    return key;
}

/* Joins repeated fields into one value, as if the client had sent them in one line. */
static void put_repeated(pTHX_ HV *env, SV *key, const komainu_field *field) {
    HE *entry = hv_fetch_ent(env, key, 0, SvSHARED_HASH(key));
    if (!entry) {
        put_text(aTHX_ env, key, field->value, field->value_len);
        return;
    }
    if (strEQ(SvPVX(key), "HTTP_COOKIE"))
        sv_catpvs(HeVAL(entry), "; ");
    else
        sv_catpvs(HeVAL(entry), ", ");
    sv_catpvn(HeVAL(entry), field->value, field->value_len);
}

static void put_header(pTHX_ HV *env, const komainu_field *field) {
    SV *key;
    if (field->id == 0) {
        put_repeated(aTHX_ env, key_of_other(aTHX_ field), field);
        return;
    }
    key = known_keys[field->id];
    if (seen[field->id] == round_number) {
        put_repeated(aTHX_ env, key, field);
        return;
    }
    seen[field->id] = round_number;
    put_text(aTHX_ env, key, field->value, field->value_len);
}

/* Parses a decimal number, which the server has validated. The text is not terminated. */
static STRLEN number_of(const komainu_field *field) {
    STRLEN number = 0;
    uint32_t at;
    for (at = 0; at < field->value_len; at++)
        number = number * 10 + (STRLEN)(field->value[at] - '0');
    return number;
}

HV *make_env(pTHX) {
    const komainu_field *fields;
    size_t count = komainu_fields(current, &fields), at;
    HV *env = newHV();
    STRLEN length = 0;
    int is_known = 1, is_buffered, has_script = 0, has_query = 0, is_chunked = 0;
    SV *input;

    round_number++;
    CvXSUBANY(inform).any_uv = current_number;
    hv_ksplit(env, 40);
    for (at = 0; at < constants_count; at++)
        put(aTHX_ env, constants[at].key, SvREFCNT_inc_simple_NN(constants[at].value));
    put(aTHX_ env, cleanup_key, SvREFCNT_inc_simple_NN(cleanup_value));
    for (at = 0; at < count; at++) {
        const komainu_field *field = &fields[at];
        SV *key;
        switch (field->id) {
        case KOMAINU_METHOD: key = method_key; break;
        case KOMAINU_TARGET: key = uri_key; break;
        case KOMAINU_SCRIPT_NAME: key = script_key; has_script = 1; break;
        case KOMAINU_PATH: key = path_key; break;
        case KOMAINU_QUERY: key = query_key; has_query = 1; break;
        case KOMAINU_PROTOCOL: key = protocol_key; break;
        case KOMAINU_SCHEME: key = scheme_key; break;
        case KOMAINU_REMOTE_ADDR: key = addr_key; break;
        case KOMAINU_REMOTE_PORT: key = port_key; break;
        case KOMAINU_SERVER_NAME: key = name_key; break;
        case KOMAINU_SERVER_PORT: key = server_port_key; break;
        case KOMAINU_VARIABLE: {
            const char *sign = memchr(field->value, '=', field->value_len);
            STRLEN len = sign ? (STRLEN)(sign - field->value) : 0;
            if (sign) {
                SV *name = newSVpvn_share(field->value, len, 0);
                put_text(aTHX_ env, name, sign + 1, field->value_len - len - 1);
                SvREFCNT_dec(name);
            }
            continue;
        }
        default:
            if (field->id == coding_id) { /* the server has removed the coding */
                is_chunked = 1;
                continue;
            }
            if (field->id == 0 || field->id >= 32)
                put_header(aTHX_ env, field);
            if (field->id == length_id)
                length = number_of(field);
            continue;
        }
        put_text(aTHX_ env, key, field->value, field->value_len);
    }
    if (!has_script)
        put_text(aTHX_ env, script_key, "", 0);
    if (!has_query)
        put_text(aTHX_ env, query_key, "", 0);
    if (is_chunked)
        is_known = 0;
    input = make_input(aTHX_ length, is_known, &is_buffered);
    put(aTHX_ env, input_key, input);
    put(aTHX_ env, buffered_key, newSViv(is_buffered));
    return env;
}

/* ---- initialization ---- */

static void make_keys(pTHX) {
    unsigned id;
    method_key = shared_key(aTHX_ "REQUEST_METHOD");
    script_key = shared_key(aTHX_ "SCRIPT_NAME");
    path_key = shared_key(aTHX_ "PATH_INFO");
    uri_key = shared_key(aTHX_ "REQUEST_URI");
    query_key = shared_key(aTHX_ "QUERY_STRING");
    protocol_key = shared_key(aTHX_ "SERVER_PROTOCOL");
    addr_key = shared_key(aTHX_ "REMOTE_ADDR");
    port_key = shared_key(aTHX_ "REMOTE_PORT");
    name_key = shared_key(aTHX_ "SERVER_NAME");
    server_port_key = shared_key(aTHX_ "SERVER_PORT");
    scheme_key = shared_key(aTHX_ "psgi.url_scheme");
    input_key = shared_key(aTHX_ "psgi.input");
    buffered_key = shared_key(aTHX_ "psgix.input.buffered");
    commit_key = shared_key(aTHX_ "psgix.harakiri.commit");
    cleanup_key = shared_key(aTHX_ "psgix.cleanup.handlers");
    for (id = 32; id < 256; id++) {
        size_t len;
        const char *name = komainu_name(id, &len);
        if (!name)
            continue;
        known_keys[id] = key_of_header(aTHX_ name, len);
        if (len == 12 && memEQ(name, "content-type", 12))
            known_keys[id] = shared_key(aTHX_ "CONTENT_TYPE");
        else if (len == 14 && memEQ(name, "content-length", 14)) {
            known_keys[id] = shared_key(aTHX_ "CONTENT_LENGTH");
            length_id = id;
        } else if (len == 17 && memEQ(name, "transfer-encoding", 17))
            coding_id = id;
    }
    other_keys = newHV();
}

static void make_constants(pTHX) {
    AV *version = newAV();
    av_push(version, newSViv(1));
    av_push(version, newSViv(1));
    add_constant(aTHX_ "psgi.version", (SV *)version, 0);
    add_constant(aTHX_ "psgi.errors", (SV *)gv_fetchpvs("main::STDERR", GV_ADD, SVt_PVIO), 0);
    add_constant(aTHX_ "psgi.multithread", NULL, 0);
    add_constant(aTHX_ "psgi.multiprocess", NULL, 1);
    add_constant(aTHX_ "psgi.run_once", NULL, 0);
    add_constant(aTHX_ "psgi.nonblocking", NULL, 0);
    add_constant(aTHX_ "psgi.streaming", NULL, 1);
    add_constant(aTHX_ "psgix.harakiri", NULL, 1);
    add_constant(aTHX_ "psgix.cleanup", NULL, 1);
    /* The server removes the body's framing, so reading to the end is safe. */
    add_constant(aTHX_ "psgix.input.terminated", NULL, 1);
    inform = newXS(NULL, komainu_xs_inform, __FILE__);
    inform_constant = &constants[constants_count];
    add_constant(aTHX_ "psgix.informational", (SV *)inform, 0);
    make_clean_up(aTHX);
}

void prepare_env(pTHX) {
    make_keys(aTHX);
    make_constants(aTHX);
}

int wants_to_leave(pTHX_ HV *env) {
    HE *commit = hv_fetch_ent(env, commit_key, 0, SvSHARED_HASH(commit_key));
    return commit && SvTRUE(HeVAL(commit));
}

int has_clean_up(pTHX) {
    return AvFILLp(cleanup_handlers) >= 0 || SvREFCNT(cleanup_value) != 2 || !SvROK(cleanup_value) ||
           SvRV(cleanup_value) != (SV *)cleanup_handlers;
}

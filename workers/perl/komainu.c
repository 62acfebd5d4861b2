/*
 * The Perl worker's native half: a request from the channel becomes a PSGI environment, the application is called, and
 * its answer goes back. What is not on the path of every request is in Komainu.pm.
 */
#define PERL_NO_GET_CONTEXT
#include "EXTERN.h"
#include "perl.h"
#include "XSUB.h"
#include "perliol.h"

#include <string.h>
#include <sys/stat.h>

#include "komainu.h"
#include "komainu_life.h"

/* Bodies up to this size are read before the application is called, and can be sought in. */
#define BUFFERED_BYTES_MAX (64 * 1024)
/* An answer from this size on is told the server with its length; of a smaller one it sees the whole at once. */
#define LENGTH_FROM_BYTES (32 * 1024)
/* Names of unknown header fields that are remembered; clients could send ever new ones. */
#define NAMES_MAX 512
#define HEADERS_MAX 256

typedef enum { NO_HEAD, HEAD_SENT, OVER } stage;

static komainu_worker *worker;
/* The request that is being answered. */
static komainu_request *current;
static stage current_stage;
static int current_gone;

/* A key of the environment, shared with every hash that has it. */
static SV *method_key, *script_key, *path_key, *uri_key, *query_key, *protocol_key, *addr_key, *port_key;
static SV *name_key, *server_port_key, *scheme_key, *input_key, *buffered_key, *commit_key;
static SV *known_keys[256];
static HV *other_keys;
static U32 seen[256];
static U32 round_number;
static unsigned length_id, coding_id;

/*
 * Values that are the same in every environment. They are shared between requests as long as nobody has changed or kept
 * them; then the next request gets fresh ones.
 */
typedef struct {
    SV *key;
    SV *value;
    SV *referent; /* of a reference */
    IV number;
} constant;
static constant constants[16];
static size_t constants_count;
static SV *cleanup_key, *cleanup_value;
static AV *cleanup_handlers;

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

/* After a request: what its environment has left of the shared values is used again. */
static void renew_constants(pTHX) {
    size_t at;
    for (at = 0; at < constants_count; at++) {
        constant *one = &constants[at];
        if (!is_untouched(one)) {
            SvREFCNT_dec(one->value);
            one->value = make_constant(aTHX_ one);
        }
    }
    if (SvREFCNT(cleanup_value) != 1 || !SvROK(cleanup_value) || SvRV(cleanup_value) != (SV *)cleanup_handlers ||
        SvREFCNT(cleanup_handlers) != 1 || AvFILLp(cleanup_handlers) >= 0 || SvMAGICAL(cleanup_handlers)) {
        SvREFCNT_dec(cleanup_value);
        cleanup_handlers = newAV();
        cleanup_value = newRV_noinc((SV *)cleanup_handlers);
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

/* The handle of an empty body: the one used before if it is as it was. */
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

/* Reads a body of known length that is small, or what came of it. */
static SV *read_whole(pTHX_ STRLEN length) {
    SV *text = newSV(length + 1);
    STRLEN filled = 0;
    SvPOK_only(text);
    while (filled < length) {
        int64_t got = komainu_read(current, SvPVX(text) + filled, length - filled);
        if (got <= 0)
            break;
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

/* The key of a name that is not well known; remembered, for there are rarely many of them. */
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

/* A field that comes more than once is one value, as if the client had written it in one line. */
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

static HV *make_env(pTHX) {
    const komainu_field *fields;
    size_t count = komainu_fields(current, &fields), at;
    HV *env = newHV();
    STRLEN length = 0;
    int is_known = 1, is_buffered, has_script = 0, has_query = 0, is_chunked = 0;
    SV *input;

    round_number++;
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
        default:
            if (field->id == 0 || field->id >= 32)
                put_header(aTHX_ env, field);
            if (field->id == length_id) /* decimal, as the server has checked */
                length = (STRLEN)strtoull(field->value, NULL, 10);
            else if (field->id == coding_id)
                is_chunked = 1;
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

/* ---- the answer ---- */

/* Bytes of a value; croaks where they are characters. */
static const char *bytes_of(pTHX_ SV *value, STRLEN *len, const char *what) {
    if (SvGMAGICAL(value) || SvROK(value))
        value = sv_2mortal(newSVsv(value));
    if (SvUTF8(value) && !sv_utf8_downgrade(value, TRUE))
        croak("Wide character in the %s: it has to be bytes, so encode it", what);
    return SvPV_nomg(value, *len);
}

static void check(pTHX_ int code) {
    if (code == KOMAINU_OK)
        return;
    if (code == KOMAINU_CANCELLED) {
        current_gone = 1;
        croak("the client is gone");
    }
    croak("%s", komainu_error(code));
}

static void must_be_current(pTHX) {
    if (!current)
        croak("the request is over");
}

/* Status and headers into fields; `extra` free ones are left at the end. */
static size_t make_fields(pTHX_ AV *headers, komainu_field *fields, size_t room) {
    SSize_t count = av_count(headers), at;
    if (count % 2)
        croak("the headers are no list of pairs");
    if ((size_t)count / 2 > room)
        croak("more than %d headers", HEADERS_MAX);
    for (at = 0; at < count; at += 2) {
        SV **name = av_fetch(headers, at, 0), **value = av_fetch(headers, at + 1, 0);
        komainu_field *field = &fields[at / 2];
        STRLEN len;
        if (!name || !SvOK(*name))
            croak("a header without a name");
        field->id = 0;
        field->name = bytes_of(aTHX_ *name, &len, "name of a header");
        field->name_len = (uint32_t)len;
        field->value = "";
        len = 0;
        if (value && SvOK(*value))
            field->value = bytes_of(aTHX_ *value, &len, "value of a header");
        field->value_len = (uint32_t)len;
    }
    return (size_t)count / 2;
}

static int has_length(const komainu_field *fields, size_t count) {
    size_t at;
    for (at = 0; at < count; at++)
        if (fields[at].name_len == 14 && foldEQ(fields[at].name, "content-length", 14))
            return 1;
    return 0;
}

static uint16_t status_of(pTHX_ SV *value) {
    IV status = SvIV(value);
    if (status < 100 || status > 999)
        croak("the status is not one of three digits: %" SVf, SVfARG(value));
    return (uint16_t)status;
}

/* Sends the head; `length` is that of the body, if it is to be told. */
static void send_head(pTHX_ SV *status, SV *headers, int64_t length) {
    komainu_field fields[HEADERS_MAX + 1];
    size_t count;
    uint16_t code;
    char digits[24];
    must_be_current(aTHX);
    if (current_stage != NO_HEAD)
        croak("the answer has begun already");
    if (!SvROK(headers) || SvTYPE(SvRV(headers)) != SVt_PVAV)
        croak("the headers are no array");
    code = status_of(aTHX_ status);
    count = make_fields(aTHX_ (AV *)SvRV(headers), fields, HEADERS_MAX);
    if (length >= 0 && code != 204 && code != 304 && !has_length(fields, count)) {
        int len = my_snprintf(digits, sizeof digits, "%lld", (long long)length);
        komainu_field field = {"content-length", digits, 14, (uint32_t)len, 0};
        fields[count++] = field;
    }
    check(aTHX_ komainu_head(current, code, fields, count));
    current_stage = HEAD_SENT;
}

static void send_array(pTHX_ SV *status, SV *headers, AV *body) {
    SSize_t count = av_count(body), at;
    STRLEN total = 0, len;
    /* What cannot be sent is found before the head is. */
    for (at = 0; at < count; at++) {
        SV **piece = av_fetch(body, at, 0);
        if (piece && SvOK(*piece)) {
            (void)bytes_of(aTHX_ *piece, &len, "body");
            total += len;
        }
    }
    send_head(aTHX_ status, headers, total >= LENGTH_FROM_BYTES ? (int64_t)total : -1);
    for (at = 0; at < count; at++) {
        SV **piece = av_fetch(body, at, 0);
        const char *bytes;
        if (!piece || !SvOK(*piece))
            continue;
        bytes = bytes_of(aTHX_ *piece, &len, "body");
        check(aTHX_ komainu_write(current, bytes, len, KOMAINU_MORE));
    }
}

static void call_with(pTHX_ const char *name, SV *argument) {
    dSP;
    PUSHMARK(SP);
    XPUSHs(argument);
    PUTBACK;
    call_pv(name, G_VOID | G_DISCARD);
}

/* A triple of status, headers and body. */
static void respond(pTHX_ SV *answer) {
    AV *triple;
    SV **status, **headers, **body;
    if (!SvROK(answer) || SvTYPE(SvRV(answer)) != SVt_PVAV)
        croak("the application's answer is neither an array nor code");
    triple = (AV *)SvRV(answer);
    status = av_fetch(triple, 0, 0);
    headers = av_fetch(triple, 1, 0);
    body = av_fetch(triple, 2, 0);
    if (!status || !headers || !body || !SvOK(*status))
        croak("the application's answer lacks a status, headers or a body");
    if (SvROK(*body) && SvTYPE(SvRV(*body)) == SVt_PVAV && !SvOBJECT(SvRV(*body)))
        send_array(aTHX_ *status, *headers, (AV *)SvRV(*body));
    else
        call_with(aTHX_ "Komainu::_send_handle", answer);
}

/* ---- one request ---- */

static void call_app(pTHX_ SV *app, HV *env) {
    dSP;
    SV *answer;
    int count;
    PUSHMARK(SP);
    XPUSHs(sv_2mortal(newRV_inc((SV *)env)));
    PUTBACK;
    count = call_sv(app, G_SCALAR);
    SPAGAIN;
    answer = count == 1 ? POPs : &PL_sv_undef;
    PUTBACK;
    if (SvROK(answer) && SvTYPE(SvRV(answer)) == SVt_PVCV)
        call_with(aTHX_ "Komainu::_delayed", answer);
    else
        respond(aTHX_ answer);
}

/* The same as a function that `call_sv` can guard: application and environment are on the stack. */
XS(komainu_guarded_call) {
    dXSARGS;
    PERL_UNUSED_VAR(items);
    call_app(aTHX_ ST(0), (HV *)SvRV(ST(1)));
    XSRETURN_EMPTY;
}

static CV *guarded_call;

static void fail(pTHX) {
    SV *error = ERRSV;
    if (!current_gone)
        PerlIO_printf(PerlIO_stderr(), "%" SVf "%s", SVfARG(error),
                      SvPOK(error) && SvCUR(error) && *(SvEND(error) - 1) == '\n' ? "" : "\n");
    if (current_stage == NO_HEAD && !current_gone) {
        komainu_field field = {"content-type", "text/plain", 12, 10, 0};
        komainu_head(current, 500, &field, 1);
        komainu_write(current, "Internal Server Error", 21, KOMAINU_MORE);
        komainu_end(current);
    } else {
        komainu_abort(current, 1);
    }
}

/* Answers one request; whether the worker shall go on. */
static int answer(pTHX_ SV *app, komainu_request *request) {
    HV *env;
    HE *commit;
    int goes_on = 1;
    dSP;
    current = request;
    current_stage = NO_HEAD;
    current_gone = 0;
    ENTER;
    SAVETMPS;
    env = make_env(aTHX);
    SPAGAIN;
    PUSHMARK(SP);
    XPUSHs(app);
    XPUSHs(sv_2mortal(newRV_inc((SV *)env)));
    PUTBACK;
    call_sv((SV *)guarded_call, G_VOID | G_DISCARD | G_EVAL);
    if (SvTRUE(ERRSV))
        fail(aTHX);
    else if (current_stage == NO_HEAD) {
        sv_setpvs(ERRSV, "the application has returned without an answer");
        fail(aTHX);
    } else
        komainu_end(current);
    current = NULL;
    current_stage = OVER;
    commit = hv_fetch_ent(env, commit_key, 0, SvSHARED_HASH(commit_key));
    if (commit && SvTRUE(HeVAL(commit)))
        goes_on = 0;
    if (AvFILLp(cleanup_handlers) >= 0 || SvREFCNT(cleanup_value) != 2 || !SvROK(cleanup_value))
        call_with(aTHX_ "Komainu::_clean_up", sv_2mortal(newRV_inc((SV *)env)));
    SvREFCNT_dec((SV *)env);
    FREETMPS;
    LEAVE;
    renew_constants(aTHX);
    return goes_on;
}

/* ---- what Perl calls ---- */

/* begin() -> role */
XS(komainu_xs_begin) {
    dXSARGS;
    char error[512];
    int role;
    PERL_UNUSED_VAR(items);
    role = komainu_begin(error, sizeof error);
    if (role == KOMAINU_FAILED)
        croak("%s\n", error);
    XSRETURN_IV(role);
}

/* loaded() */
XS(komainu_xs_loaded) {
    dXSARGS;
    PERL_UNUSED_VAR(items);
    XSRETURN_IV(komainu_loaded());
}

/* not_loaded(text) */
XS(komainu_xs_not_loaded) {
    dXSARGS;
    STRLEN len;
    const char *text = SvPV(ST(0), len);
    PERL_UNUSED_VAR(items);
    komainu_not_loaded(text, len);
    XSRETURN_EMPTY;
}

/* not_forked(text) */
XS(komainu_xs_not_forked) {
    dXSARGS;
    STRLEN len;
    const char *text = SvPV(ST(0), len);
    PERL_UNUSED_VAR(items);
    komainu_not_forked(text, len);
    XSRETURN_EMPTY;
}

/* order() -> what to do */
XS(komainu_xs_order) {
    dXSARGS;
    PERL_UNUSED_VAR(items);
    XSRETURN_IV(komainu_order());
}

/* born() */
XS(komainu_xs_born) {
    dXSARGS;
    char error[512];
    PERL_UNUSED_VAR(items);
    if (komainu_born(error, sizeof error) == KOMAINU_FAILED)
        croak("%s\n", error);
    XSRETURN_EMPTY;
}

/* serve(app): until the worker shall leave */
XS(komainu_xs_serve) {
    dXSARGS;
    SV *app = ST(0);
    char error[512];
    PERL_UNUSED_VAR(items);
    worker = komainu_attach(KOMAINU_ABI, komainu_seat(), error, sizeof error);
    if (!worker)
        croak("%s\n", error);
    komainu_loaded();
    for (;;) {
        komainu_request *request;
        int next = komainu_next(worker, -1, &request);
        PERL_ASYNC_CHECK();
        if (next == KOMAINU_AGAIN)
            continue;
        if (next != KOMAINU_OK || !answer(aTHX_ app, request))
            break;
    }
    komainu_detach(worker);
    XSRETURN_EMPTY;
}

/* respond(answer) */
XS(komainu_xs_respond) {
    dXSARGS;
    PERL_UNUSED_VAR(items);
    must_be_current(aTHX);
    respond(aTHX_ ST(0));
    XSRETURN_EMPTY;
}

/* head(status, headers, length or undef) */
XS(komainu_xs_head) {
    dXSARGS;
    int64_t length = items > 2 && SvOK(ST(2)) ? (int64_t)SvIV(ST(2)) : -1;
    send_head(aTHX_ ST(0), ST(1), length);
    XSRETURN_EMPTY;
}

/* write(bytes, more) */
XS(komainu_xs_write) {
    dXSARGS;
    STRLEN len;
    const char *bytes;
    must_be_current(aTHX);
    if (SvOK(ST(0))) {
        bytes = bytes_of(aTHX_ ST(0), &len, "body");
        check(aTHX_ komainu_write(current, bytes, len, items > 1 && SvTRUE(ST(1)) ? KOMAINU_MORE : 0));
    }
    XSRETURN_EMPTY;
}

/* flush() */
XS(komainu_xs_flush) {
    dXSARGS;
    PERL_UNUSED_VAR(items);
    must_be_current(aTHX);
    komainu_flush(current);
    XSRETURN_EMPTY;
}

/* file(handle) -> descriptor, offset, length, if the handle's bytes are just those of a file */
XS(komainu_xs_file) {
    dXSARGS;
    IO *io = sv_2io(ST(0));
    PerlIO *file = IoIFP(io);
    struct stat status;
    Off_t at;
    PERL_UNUSED_VAR(items);
    SP -= items;
    if (!file || SvRMAGICAL(io) || PerlIO_fileno(file) < 0 || fstat(PerlIO_fileno(file), &status) != 0 ||
        !S_ISREG(status.st_mode))
        XSRETURN_EMPTY;
    /* Layers that change what is read. */
    {
        PerlIOl *layer;
        for (layer = *file; layer; layer = layer->next)
            if (layer->tab && strNE(layer->tab->name, "unix") && strNE(layer->tab->name, "perlio"))
                XSRETURN_EMPTY;
        if (PerlIOBase(file)->flags & (PERLIO_F_CRLF | PERLIO_F_UTF8))
            XSRETURN_EMPTY;
    }
    at = PerlIO_tell(file);
    if (at < 0 || at > status.st_size)
        XSRETURN_EMPTY;
    EXTEND(SP, 3);
    mPUSHi(PerlIO_fileno(file));
    mPUSHi((IV)at);
    mPUSHi((IV)(status.st_size - at));
    XSRETURN(3);
}

/* send_file(descriptor, offset, length) */
XS(komainu_xs_send_file) {
    dXSARGS;
    PERL_UNUSED_VAR(items);
    must_be_current(aTHX);
    check(aTHX_ komainu_file(current, (int)SvIV(ST(0)), (uint64_t)SvUV(ST(1)), (uint64_t)SvUV(ST(2))));
    XSRETURN_EMPTY;
}

/* read(length) -> bytes, empty at the end */
XS(komainu_xs_read) {
    dXSARGS;
    STRLEN length = (STRLEN)SvUV(ST(0));
    SV *text;
    int64_t got;
    PERL_UNUSED_VAR(items);
    must_be_current(aTHX);
    text = sv_2mortal(newSV(length + 1));
    SvPOK_only(text);
    got = komainu_read(current, SvPVX(text), length);
    if (got < 0)
        check(aTHX_(int) got);
    SvCUR_set(text, (STRLEN)got);
    *SvEND(text) = '\0';
    ST(0) = text;
    XSRETURN(1);
}

/* inform(status, headers): an interim answer */
XS(komainu_xs_inform) {
    dXSARGS;
    komainu_field fields[HEADERS_MAX];
    size_t count;
    PERL_UNUSED_VAR(items);
    must_be_current(aTHX);
    if (!SvROK(ST(1)) || SvTYPE(SvRV(ST(1))) != SVt_PVAV)
        croak("the headers are no array");
    count = make_fields(aTHX_ (AV *)SvRV(ST(1)), fields, HEADERS_MAX);
    check(aTHX_ komainu_interim(current, status_of(aTHX_ ST(0)), fields, count));
    XSRETURN_EMPTY;
}

/* ---- the beginning ---- */

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
    add_constant(aTHX_ "psgix.informational", (SV *)get_cv("Komainu::inform", 0), 0);
    cleanup_handlers = newAV();
    cleanup_value = newRV_noinc((SV *)cleanup_handlers);
}

XS(boot_Komainu) {
    dXSARGS;
    static const struct {
        const char *name;
        XSUBADDR_t function;
    } functions[] = {
        {"Komainu::begin", komainu_xs_begin},
        {"Komainu::loaded", komainu_xs_loaded},
        {"Komainu::not_loaded", komainu_xs_not_loaded},
        {"Komainu::not_forked", komainu_xs_not_forked},
        {"Komainu::order", komainu_xs_order},
        {"Komainu::born", komainu_xs_born},
        {"Komainu::serve", komainu_xs_serve},
        {"Komainu::respond", komainu_xs_respond},
        {"Komainu::head", komainu_xs_head},
        {"Komainu::write", komainu_xs_write},
        {"Komainu::flush", komainu_xs_flush},
        {"Komainu::file", komainu_xs_file},
        {"Komainu::send_file", komainu_xs_send_file},
        {"Komainu::read", komainu_xs_read},
        {"Komainu::inform", komainu_xs_inform},
    };
    size_t at;
    PERL_UNUSED_VAR(items);
    for (at = 0; at < sizeof functions / sizeof *functions; at++)
        newXS(functions[at].name, functions[at].function, __FILE__);
    guarded_call = newXS(NULL, komainu_guarded_call, __FILE__);
    make_keys(aTHX);
    make_constants(aTHX);
    XSRETURN_YES;
}

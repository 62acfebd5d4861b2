/*
 * The native module of the Perl worker: the loop over requests, and the functions that Komainu.pm calls. Code that does
 * not run for every request is in Komainu.pm.
 */
#include "env.h"
#include "response.h"

#include <sys/stat.h>

/* Maximum length of a request's path in a log line, in bytes. */
#define PATH_BYTES_MAX 200

static komainu_worker *worker;

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

/* Calls the application as a function for `call_sv`: application and environment are on the stack. */
XS(komainu_guarded_call) {
    dXSARGS;
    PERL_UNUSED_VAR(items);
    call_app(aTHX_ ST(0), (HV *)SvRV(ST(1)));
    XSRETURN_EMPTY;
}

static CV *guarded_call;

static const komainu_field *request_part(uint32_t id) {
    static const komainu_field none = {"", "", 0, 0, 0};
    const komainu_field *fields;
    size_t count = komainu_fields(current, &fields), at;
    for (at = 0; at < count; at++)
        if (fields[at].id == id)
            return &fields[at];
    return &none;
}

/* The length of the path in a target: the query must not be logged. */
static size_t path_len(const komainu_field *target) {
    const char *query = memchr(target->value, '?', target->value_len);
    size_t len = query ? (size_t)(query - target->value) : target->value_len;
    return len < PATH_BYTES_MAX ? len : PATH_BYTES_MAX;
}

/* Returns a copy of an exception's text for the log, or the exception itself if it cannot be converted. */
static SV *error_text(pTHX_ SV *error) {
    dSP;
    SV *text = NULL;
    ENTER;
    SAVETMPS;
    PUSHMARK(SP);
    XPUSHs(error);
    PUTBACK;
    if (call_pv("Komainu::_shown", G_SCALAR | G_EVAL | G_KEEPERR) == 1) {
        SPAGAIN;
        SV *result = POPs;
        if (SvPOK(result))
            text = newSVsv(result);
        PUTBACK;
    }
    FREETMPS;
    LEAVE;
    return text ? text : newSVsv(error);
}

/* Logs the exception with its request, and aborts the request. */
static void fail_request(pTHX) {
    SV *error = error_text(aTHX_ ERRSV);
    const komainu_field *method, *target;
    if (!current) { /* the response is complete */
        PerlIO_printf(PerlIO_stderr(), "%" SVf, SVfARG(error));
        SvREFCNT_dec(error);
        return;
    }
    method = request_part(KOMAINU_METHOD);
    target = request_part(KOMAINU_TARGET);
    if (!current_gone)
        PerlIO_printf(PerlIO_stderr(), "%.*s %.*s: %" SVf "%s", (int)method->value_len, method->value,
                      (int)path_len(target), target->value, SVfARG(error),
                      SvPOK(error) && SvCUR(error) && *(SvEND(error) - 1) == '\n' ? "" : "\n");
    if (current_stage == NO_HEAD && !current_gone) {
        komainu_field field = {"content-type", "text/plain", 12, 10, 0};
        komainu_head(current, 500, &field, 1);
        komainu_write(current, "Internal Server Error", 21, KOMAINU_MORE);
        komainu_end(current);
    } else {
        komainu_abort(current, 1);
    }
    SvREFCNT_dec(error);
}

/* Answers one request. Returns whether the worker continues. */
static int answer_request(pTHX_ SV *app, komainu_request *request) {
    HV *env;
    int continues;
    dSP;
    current = request;
    current_number++;
    current_stage = NO_HEAD;
    current_gone = 0;
    ENTER;
    SAVETMPS;
    env = make_env(aTHX);
    SPAGAIN;
    /* The body is incomplete: the application is not called. */
    if (!current_gone) {
        PUSHMARK(SP);
        XPUSHs(app);
        XPUSHs(sv_2mortal(newRV_inc((SV *)env)));
        PUTBACK;
        call_sv((SV *)guarded_call, G_VOID | G_DISCARD | G_EVAL);
    }
    if (current_gone || SvTRUE(ERRSV))
        fail_request(aTHX);
    else if (current && current_stage == NO_HEAD) {
        sv_setpvs(ERRSV, "the application has returned without an answer");
        fail_request(aTHX);
    } else if (current)
        komainu_end(current);
    current = NULL;
    current_stage = OVER;
    continues = !wants_to_leave(aTHX_ env);
    if (has_clean_up(aTHX))
        call_with(aTHX_ "Komainu::_clean_up", sv_2mortal(newRV_inc((SV *)env)));
    SvREFCNT_dec((SV *)env);
    FREETMPS;
    LEAVE;
    renew_constants(aTHX);
    return continues;
}

/* ---- functions for Perl ---- */

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

/* order() -> KOMAINU_FORK, KOMAINU_LEAVE or KOMAINU_SIGNAL */
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

/* serve(app): runs until the worker must exit */
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
        /* The server ends the wait every few seconds, because a signal may arrive between the check and the wait. */
        int next = komainu_next(worker, -1, &request);
        PERL_ASYNC_CHECK();
        if (next == KOMAINU_AGAIN)
            continue;
        if (next != KOMAINU_OK || !answer_request(aTHX_ app, request))
            break;
    }
    komainu_leaving();
    komainu_detach(worker);
    XSRETURN_EMPTY;
}

/* request() -> the number of the current request */
XS(komainu_xs_request) {
    dXSARGS;
    PERL_UNUSED_VAR(items);
    must_be_current(aTHX);
    XSRETURN_UV(current_number);
}

/* must_be(request): dies if `request` is not the current one */
XS(komainu_xs_must_be) {
    dXSARGS;
    PERL_UNUSED_VAR(items);
    must_be_request(aTHX_ SvUV(ST(0)));
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

/* end(): completes the response; the client does not wait for further work of the application */
XS(komainu_xs_end) {
    dXSARGS;
    PERL_UNUSED_VAR(items);
    must_be_current(aTHX);
    komainu_end(current);
    current = NULL;
    current_stage = OVER;
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

/* file(handle) -> descriptor, offset, length, if the handle reads the plain bytes of a file */
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
    /* Other layers change the bytes. */
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

/* ---- initialization ---- */

__attribute__((visibility("default"))) XS(boot_Komainu) {
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
        {"Komainu::request", komainu_xs_request},
        {"Komainu::must_be", komainu_xs_must_be},
        {"Komainu::respond", komainu_xs_respond},
        {"Komainu::end", komainu_xs_end},
        {"Komainu::head", komainu_xs_head},
        {"Komainu::write", komainu_xs_write},
        {"Komainu::flush", komainu_xs_flush},
        {"Komainu::file", komainu_xs_file},
        {"Komainu::send_file", komainu_xs_send_file},
        {"Komainu::read", komainu_xs_read},
    };
    size_t at;
    PERL_UNUSED_VAR(items);
    for (at = 0; at < sizeof functions / sizeof *functions; at++)
        newXS(functions[at].name, functions[at].function, __FILE__);
    guarded_call = newXS(NULL, komainu_guarded_call, __FILE__);
    prepare_env(aTHX);
    XSRETURN_YES;
}

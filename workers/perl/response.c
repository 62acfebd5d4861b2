/* Sends an application's response, and its interim heads. */
#include "response.h"

/* Maximum number of header fields of a response. */
#define HEADERS_MAX 256
/* Minimum size for which the worker adds a missing Content-Length; for smaller bodies the server adds it. */
#define LENGTH_FROM_BYTES (32 * 1024)

const char *bytes_of(pTHX_ SV *value, STRLEN *len, const char *what) {
    if (SvGMAGICAL(value) || SvROK(value)) {
        const char *text;
        value = sv_2mortal(newSVsv(value));
        /* For an object with overloading, wide characters can be detected only after conversion to a string. */
        text = SvPV_nomg(value, *len);
        value = newSVpvn_flags(text, *len, SVs_TEMP | (SvUTF8(value) ? SVf_UTF8 : 0));
    }
    if (SvUTF8(value) && !sv_utf8_downgrade(value, TRUE))
        croak("Wide character in the %s: it has to be bytes, so encode it", what);
    return SvPV_nomg(value, *len);
}

/* Stores headers as fields; there must be `room` for them. Returns their number. */
static size_t make_fields(pTHX_ AV *headers, komainu_field *fields, size_t room) {
    SSize_t count = av_count(headers), at;
    if (count % 2)
        croak("the headers are no list of pairs");
    if ((size_t)count / 2 > room)
        croak("%ld header fields are more than %d", (long)count / 2, HEADERS_MAX);
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
    IV status;
    if (SvPOK(value)) {
        STRLEN len, at;
        const char *text = SvPV(value, len);
        for (at = 0; at < len; at++)
            if ((unsigned char)text[at] < ' ' || text[at] == 0x7f)
                croak("the status is not one of three digits: it has control bytes");
    }
    status = SvIV(value);
    if (status < 100 || status > 999)
        croak("the status is not one of three digits: %" SVf, SVfARG(value));
    return (uint16_t)status;
}

void send_head(pTHX_ SV *status, SV *headers, int64_t length) {
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
    /* Bodies that cannot be sent are refused before the head is written. */
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

void respond(pTHX_ SV *answer) {
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

XS(komainu_xs_inform) {
    dXSARGS;
    komainu_field fields[HEADERS_MAX];
    size_t count;
    PERL_UNUSED_VAR(items);
    must_be_request(aTHX_ CvXSUBANY(cv).any_uv);
    if (!SvROK(ST(1)) || SvTYPE(SvRV(ST(1))) != SVt_PVAV)
        croak("the headers are no array");
    count = make_fields(aTHX_ (AV *)SvRV(ST(1)), fields, HEADERS_MAX);
    check(aTHX_ komainu_interim(current, status_of(aTHX_ ST(0)), fields, count));
    XSRETURN_EMPTY;
}

/* The current request, and errors of the channel. */
#include "common.h"

komainu_request *current;
stage current_stage;
int current_gone;
UV current_number;

void check(pTHX_ int code) {
    if (code == KOMAINU_OK)
        return;
    if (code == KOMAINU_CANCELLED) {
        current_gone = 1;
        croak("the client is gone");
    }
    croak("%s", komainu_error(code));
}

void must_be_current(pTHX) {
    if (!current)
        croak("the request is over");
}

void must_be_request(pTHX_ UV number) {
    if (!current || number != current_number)
        croak("the request is over");
}

void call_with(pTHX_ const char *name, SV *argument) {
    dSP;
    PUSHMARK(SP);
    XPUSHs(argument);
    PUTBACK;
    call_pv(name, G_VOID | G_DISCARD);
}

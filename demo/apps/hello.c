#include <komainu_handler.h>

static int handle(komainu_request *request, void *process, void *thread) {
    (void)process, (void)thread;
    static const char text[] = "Hello from C\n";
    return komainu_reply(request, 200, "text/plain", text, sizeof text - 1);
}

KOMAINU_HANDLER(.handle = handle)

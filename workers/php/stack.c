/* The stack of a script that takes too long. */
#include "stack.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

/* Maximum number of stack frames that are written. */
#define FRAMES_MAX 64
/* Time allowed for PHP to check for interrupts, which happens at every backward jump and function call. */
#define INTERRUPT_US 300000

static volatile sig_atomic_t is_requested;
static void (*next_interrupt)(zend_execute_data *);

static void write_error(const char *text, int len) {
    if (len > 0 && write(STDERR_FILENO, text, (size_t)len) < 0)
        return;
}

static void write_frame(const zend_execute_data *frame) {
    char text[1024];
    const zend_function *function = frame->func;
    const char *name = function->common.function_name ? ZSTR_VAL(function->common.function_name) : NULL;
    const zend_class_entry *scope = function->common.scope;
    const char *class = name && scope ? ZSTR_VAL(scope->name) : "", *sign = name && scope ? "::" : "";
    int len;
    if (ZEND_USER_CODE(function->type))
        len = snprintf(text, sizeof text, "  %.700s:%u%s%.100s%s%.100s\n", ZSTR_VAL(function->op_array.filename),
                       frame->opline ? frame->opline->lineno : 0, name ? " in " : "", class, sign, name ? name : "");
    else
        len = snprintf(text, sizeof text, "  in %.100s%s%.100s\n", class, sign, name ? name : "");
    write_error(text, len < (int)sizeof text ? len : (int)sizeof text - 1);
}

/* Reads data that the script may be modifying: a crash is acceptable, because the process is about to end. */
static void write_stack(void) {
    const zend_execute_data *frame = EG(current_execute_data);
    char text[64];
    int count = 0;
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    write_error(text, snprintf(text, sizeof text, "process %d is here:\n", (int)getpid()));
    for (; frame && count < FRAMES_MAX; frame = frame->prev_execute_data)
        if (frame->func) {
            write_frame(frame);
            count++;
        }
    if (!count)
        write_error("  no script\n", 12);
    kill(getpid(), SIGKILL);
}

/* Called by PHP between two instructions, when the current line is known. */
static void handle_interrupt(zend_execute_data *frame) {
    if (is_requested)
        write_stack();
    if (next_interrupt)
        next_interrupt(frame);
}

/* Called if PHP does not return from an internal function. */
static void handle_alarm(int number) {
    (void)number;
    write_stack();
}

static void handle_signal(int number) {
    struct itimerval soon = {.it_value = {.tv_usec = INTERRUPT_US}};
    (void)number;
    is_requested = 1;
    signal(SIGALRM, handle_alarm);
    setitimer(ITIMER_REAL, &soon, NULL);
#if PHP_VERSION_ID >= 80200
    zend_atomic_bool_store_ex(&EG(vm_interrupt), true);
#else
    EG(vm_interrupt) = 1;
#endif
}

void install_stack_handler(void) {
    struct sigaction action = {.sa_handler = handle_signal, .sa_flags = SA_RESTART};
    next_interrupt = zend_interrupt_function;
    zend_interrupt_function = handle_interrupt;
    sigaction(KOMAINU_SIGNAL_WHERE, &action, NULL);
}

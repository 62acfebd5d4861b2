/*
 * The PHP worker: a PHP server module (SAPI) in a process started by the server. workers/README.md describes the
 * worker's life cycle.
 *
 *     worker [--ini NAME=VALUE]… [--admin-ini NAME=VALUE]… [--variable NAME]…
 */
#include "response.h"
#include "settings.h"
#include "stack.h"
#include "variables.h"

#include <errno.h>
#include <fcntl.h>
#include <main/php_ini.h>
#include <ext/standard/head.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zend_signal.h>

#define ERROR_BYTES 1024

/*
 * OPcache supports only known names of server modules, and libraries decide by the name whether there is a request and
 * fastcgi_finish_request(). Therefore this is the name of the module with the same behaviour.
 */
#define NAME "fpm-fcgi"

static komainu_worker *worker;

/* ---- functions for scripts ---- */

ZEND_BEGIN_ARG_WITH_RETURN_TYPE_INFO_EX(takes_nothing_returns_bool, 0, 0, _IS_BOOL, 0)
ZEND_END_ARG_INFO()

ZEND_BEGIN_ARG_WITH_RETURN_TYPE_INFO_EX(takes_nothing_returns_array, 0, 0, IS_ARRAY, 0)
ZEND_END_ARG_INFO()

/* Ends the response; the script continues. */
PHP_FUNCTION(fastcgi_finish_request) {
    ZEND_PARSE_PARAMETERS_NONE();
    if (!current.handle)
        RETURN_FALSE;
    php_output_end_all();
    php_header();
    end_response();
    RETURN_TRUE;
}

/* Converts HTTP_ACCEPT_LANGUAGE to Accept-Language; `name` is without the prefix. */
static void write_header_name(char *into, const char *name, size_t len) {
    size_t at;
    int is_first = 1;
    for (at = 0; at < len; at++) {
        char byte = name[at] == '_' ? '-' : name[at];
        into[at] = is_first || byte < 'A' || byte > 'Z' ? byte : (char)(byte + 32);
        is_first = byte == '-';
    }
    into[len] = '\0';
}

PHP_FUNCTION(apache_request_headers) {
    const Variable *variables;
    size_t count = all_variables(&variables), at;
    ZEND_PARSE_PARAMETERS_NONE();
    array_init(return_value);
    for (at = 0; at < count; at++) {
        const Variable *one = &variables[at];
        int is_header = one->name_len > 5 && memcmp(one->name, "HTTP_", 5) == 0;
        const char *rest = one->name + (is_header ? 5 : 0);
        size_t len = one->name_len - (is_header ? 5 : 0);
        char *name;
        if (!is_header && (!one->value_len || memcmp(one->name, "CONTENT_", len < 8 ? len : 8) != 0))
            continue;
        name = emalloc(len + 1);
        write_header_name(name, rest, len);
        add_assoc_stringl_ex(return_value, name, len, one->value, one->value_len);
        efree(name);
    }
}

static const zend_function_entry functions[] = {
    PHP_FE(fastcgi_finish_request, takes_nothing_returns_bool)
    PHP_FE(apache_request_headers, takes_nothing_returns_array)
    PHP_FALIAS(getallheaders, apache_request_headers, takes_nothing_returns_array)
    PHP_FE_END
};

/* ---- the server module ---- */

static int start_module(sapi_module_struct *module) {
#if PHP_VERSION_ID >= 80200
    return php_module_startup(module, NULL);
#else
    return php_module_startup(module, NULL, 0);
#endif
}

static int activate(void) {
    if (current.handle)
        apply_user_settings();
    return SUCCESS;
}

static int deactivate(void) {
    return SUCCESS;
}

static char *read_cookies(void) {
    const Variable *cookies = variable_of("HTTP_COOKIE");
    return current.handle && cookies ? (char *)cookies->value : NULL;
}

static char *get_variable(const char *name, size_t len) {
    const Variable *found = variable_of(name);
    (void)len;
    return found ? (char *)found->value : NULL;
}

static sapi_module_struct module = {
    .name = NAME,
    .pretty_name = "Komainu",
    .startup = start_module,
    .shutdown = php_module_shutdown_wrapper,
    .activate = activate,
    .deactivate = deactivate,
    .ub_write = write_output,
    .flush = flush_output,
    .getenv = get_variable,
    .sapi_error = php_error,
    .send_headers = send_headers,
    .read_post = read_body,
    .read_cookies = read_cookies,
    .register_server_variables = register_variables,
    .log_message = log_message,
    .php_ini_ignore_cwd = 1,
    .additional_functions = functions,
};

/* ---- one request ---- */

static const char *text_of(const char *name) {
    const Variable *variable = variable_of(name);
    return variable ? variable->value : "";
}

/* Sets the properties of a request that PHP needs before it starts one. */
static void describe_request(void) {
    const Variable *authorization = variable_of("HTTP_AUTHORIZATION"), *script = variable_of("SCRIPT_FILENAME");
    SG(server_context) = &current;
    SG(sapi_headers).http_response_code = 200;
    SG(request_info).request_method = text_of("REQUEST_METHOD");
    SG(request_info).query_string = (char *)text_of("QUERY_STRING");
    SG(request_info).request_uri = (char *)text_of("DOCUMENT_URI");
    SG(request_info).content_type = text_of("CONTENT_TYPE");
    SG(request_info).content_length = strtoll(text_of("CONTENT_LENGTH"), NULL, 10);
    SG(request_info).path_translated = script ? estrdup(script->value) : NULL;
    php_handle_auth_data(authorization ? authorization->value : NULL);
}

/* Sends an error response if the script cannot be opened. */
static void send_refusal(int error) {
    SG(sapi_headers).http_response_code = error == EACCES ? 403 : 404;
    log_message(error == EACCES ? "the script may not be read" : "there is no such script", LEVEL_ERROR);
    PUTS(error == EACCES ? "Access denied.\n" : "File not found.\n");
}

static void run_script(void) {
    zend_file_handle file;
    errno = 0;
    if (!SG(request_info).path_translated || php_fopen_primary_script(&file) == FAILURE) {
        send_refusal(errno);
        return;
    }
    php_execute_script(&file);
}

static void answer_request(komainu_request *request) {
    current.handle = request;
    current.has_head = current.failed = current.ended_body = 0;
    current.output_len = 0;
    if (!make_variables(request)) {
        log_message("there is no memory for the request", LEVEL_ERROR);
        end_response();
        return;
    }
    zend_first_try {
        describe_request();
        if (php_request_startup() == FAILURE)
            log_message("PHP could not start the request", LEVEL_ERROR);
        else if (!current.failed) /* scripts must not process an incomplete form */
            run_script();
    }
    zend_end_try();
    php_request_shutdown(NULL);
    SG(server_context) = NULL;
    SG(request_info).path_translated = NULL;
    end_response();
}

/* ---- the life of the process ---- */

/* Called in a process that a script has forked: it must not answer the request, and ends with its script. */
static int is_fork;

static void after_fork(void) {
    is_fork = 1;
    current.handle = NULL;
}

__attribute__((noreturn)) static void exit_not_loaded(const char *text) {
    komainu_not_loaded(text, strlen(text));
    exit(KOMAINU_EXIT_NOT_LOADED);
}

static void read_arguments(int count, char **arguments) {
    int at;
    for (at = 1; at + 1 < count; at += 2) {
        const char *option = arguments[at], *value = strdup(arguments[at + 1]);
        if (!value)
            exit_not_loaded("no memory");
        if (strcmp(option, "--ini") == 0 || strcmp(option, "--admin-ini") == 0) {
            if (!add_setting(value, option[2] == 'a'))
                exit_not_loaded("there are more than 256 settings");
        } else if (strcmp(option, "--variable") == 0) {
            share_environment(value);
        } else {
            exit_not_loaded("usage: worker [--ini NAME=VALUE]... [--admin-ini NAME=VALUE]... [--variable NAME]...");
        }
    }
}

/* Sets the process title shown by `ps`. */
static void set_title(int count, char **arguments, const char *role) {
    const char *app = getenv("KOMAINU_APP");
    char *end = arguments[count - 1] + strlen(arguments[count - 1]);
    size_t room = (size_t)(end - arguments[0]);
    memset(arguments[0], 0, room);
    snprintf(arguments[0], room, "komainu %s: %s", app ? app : "php", role);
}

/* Extracts "4.2" from "Zend Engine v4.2.36, ...": equal versions have the same interface. */
static int is_other_version(void) {
    const char *loaded = strstr(get_zend_version(), " v");
    const char *dot = strchr(ZEND_VERSION, '.');
    size_t len = (size_t)(strchr(dot + 1, '.') - ZEND_VERSION) + 1;
    return !loaded || strncmp(loaded + 2, ZEND_VERSION, len) != 0;
}

static void start_php(void) {
    signal(SIGPIPE, SIG_IGN);
#ifdef ZEND_SIGNALS
    zend_signal_startup();
#endif
    sapi_startup(&module);
    if (!add_temporary_folder())
        exit_not_loaded("there is no memory for PHP's settings");
    module.ini_entries = settings_text();
    if (module.startup(&module) == FAILURE)
        exit_not_loaded("PHP did not start; its error is in the log");
    if (is_other_version())
        exit_not_loaded("libphp.so is of another version of PHP than the worker was built for: build it again");
#ifdef ZEND_SIGNALS
    /* Signals are not reset at each request: scripts that need them install their own handlers. */
    SIGG(reset) = 0;
#endif
    finish_settings();
    install_stack_handler();
    pthread_atfork(NULL, NULL, after_fork);
}

static int run_worker(void) {
    char error[ERROR_BYTES] = "the worker could not start";
    komainu_request *request;
    int code;
    worker = komainu_attach(KOMAINU_ABI, komainu_seat(), error, sizeof error);
    if (!worker) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    komainu_loaded();
    for (;;) {
        code = komainu_next(worker, -1, &request);
        if (code == KOMAINU_OK)
            answer_request(request);
        else if (code != KOMAINU_AGAIN)
            break;
        if (is_fork)
            _exit(EG(exit_status));
    }
    komainu_leaving();
    komainu_detach(worker);
    php_module_shutdown();
    sapi_shutdown();
    return 0;
}

/* Forks twice, so that the worker becomes a child of the server. Returns 1 in the worker, 0 in the prototype. */
static int fork_worker(void) {
    char error[ERROR_BYTES];
    pid_t child = fork();
    if (child > 0) {
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
        return 0;
    }
    if (child == 0) {
        pid_t born = fork();
        if (born > 0)
            _exit(0);
        if (born == 0) {
            if (komainu_born(error, sizeof error) == 0)
                return 1;
            fprintf(stderr, "%s\n", error);
            _exit(1);
        }
    }
    komainu_not_forked(strerror(errno), strlen(strerror(errno)));
    if (child == 0)
        _exit(1);
    return 0;
}

/* Returns 1 in each worker, and 0 in the prototype at its end. */
static int run_prototype(void) {
    int order;
    komainu_loaded();
    while ((order = komainu_order()) != KOMAINU_LEAVE)
        if (order == KOMAINU_FORK && fork_worker())
            return 1;
    return 0;
}

int main(int count, char **arguments) {
    char error[ERROR_BYTES];
    int role = komainu_begin(error, sizeof error);
    if (role == KOMAINU_FAILED) {
        fprintf(stderr, "%s\n", error);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    read_arguments(count, arguments);
    start_php();
    set_title(count, arguments, role == KOMAINU_PROTOTYPE ? "prototype" : "worker");
    if (role == KOMAINU_PROTOTYPE) {
        if (!run_prototype())
            return 0;
        set_title(count, arguments, "worker");
    }
    is_fork = 0;
    return run_worker();
}

"""The life of a worker process: begin, load, fork on demand, answer, leave."""

import faulthandler
import functools
import gc
import os
import random
import signal
import sys

import komainu
from komainu import _native
from komainu.load import NotFound, load, prepare, several, shown

NOT_LOADED = 3
# The environment before the application is loaded, because the application may clear it.
GIVEN = dict(os.environ)
# KOMAINU_SIGNAL_WHERE: the server requests the stacks of the threads before it kills this process.
WHERE = 16
# Signals that reach the whole process group but are meant for the server.
SHARED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# The number of threads that a warning names.
NAMED_MAX = 4
# The id of the process that ignores these signals; forks of it do not.
staying = None


def run(interface, target, *more):
    """The whole life of the process. ``interface`` is ``wsgi``, ``asgi`` or ``auto``; ``more`` are ``NAME=TARGET``."""
    for stream in (sys.stdout, sys.stderr):  # pipes to the log
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    stay()
    replace_default()
    os.register_at_fork(after_in_child=do_not_stay)
    role = _native.begin()
    # After writing the stacks the process ends by the signal's default action.
    faulthandler.register(WHERE, file=sys.stderr, all_threads=True, chain=True)
    app, interface = load_or_leave(interface, target, more)
    status = work(app, interface) if role == "worker" or prototype() else 0
    # Objects that were frozen are collected at the end, like all others.
    gc.unfreeze()
    sys.exit(status)


def stay():
    """Makes the shared signals end nothing. The handlers are Python's own, because an application that borrows such a
    signal restores what ``signal.signal`` has returned."""
    global staying
    staying = os.getpid()
    for number in SHARED:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, stays)
            signal.siginterrupt(number, False)


def stays(number, frame):
    """Handles a signal that is meant for the server."""


def replace_default():
    """Makes ``signal.signal`` restore these handlers for SIG_DFL: an event loop sets that when it removes a handler."""
    install = signal.signal

    @functools.wraps(install)
    def install_or_stay(number, handler):
        is_default = handler is signal.SIG_DFL and number in SHARED and os.getpid() == staying
        before = install(number, stays if is_default else handler)
        if is_default:
            signal.siginterrupt(number, False)
        return before

    signal.signal = install_or_stay


def do_not_stay():
    """A process that the application has forked ends by these signals, at once and wherever it waits."""
    for number in SHARED:
        if signal.getsignal(number) is stays:
            signal.signal(number, signal.SIG_DFL)


def load_or_leave(interface, target, more):
    try:
        app, interface = prepare(load(target), interface)
        if more:
            named = (text.partition("=") for text in more)
            app = several(app, {name: prepare(load(target), "auto")[0] for name, _, target in named}, interface)
        run_hooks("on_load")
        return app, interface
    except NotFound as error:
        give_up(str(error))
    except BaseException as error:  # the server waits for the reason in any case
        give_up(shown(error))


def give_up(reason):
    _native.not_loaded(reason)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(NOT_LOADED)  # the partially loaded application may have started threads



def prototype():
    """Forks workers when the server asks for them. True in each worker, and False at the end."""
    # Freezes all objects: the collector then does not touch, and so copy, the memory that all workers share.
    warn_of_threads()
    gc.collect()
    gc.freeze()
    _native.loaded()
    while _native.order():
        run_hooks("before_fork")
        if fork_worker():
            return True
    return False


def warn_of_threads():
    """Names the threads that were started while the application was loaded: a fork has only the thread that forks."""
    threading = sys.modules.get("threading")
    if threading is None or komainu.hooks["after_fork"]:
        return
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if names:
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        print(
            f"warning: threads that were started while the application was loaded do not run in its workers: "
            f"{', '.join(names[:NAMED_MAX])}{more}. Start them in a function with @komainu.after_fork, or load the "
            f"application in each worker: preload = false, komainu run --no-preload",
            file=sys.stderr)


def fork_worker():
    """Whether this is the worker. Forked twice, so that it becomes the server's own child."""
    try:
        between = os.fork()
        if between:
            try:
                os.waitpid(between, 0)
            except ChildProcessError:
                pass  # the application ignores SIGCHLD: the kernel has reaped it
            return False
    except OSError as error:
        _native.not_forked(str(error))
        return False
    # The intermediate process must never continue as a second prototype.
    try:
        worker = os.fork()
    except OSError as error:
        _native.not_forked(str(error))
        os._exit(1)
    if worker:
        os._exit(0)
    stay()
    _native.born()
    random.seed()
    return True


def work(app, interface):
    count = _native.seats()
    if interface == "asgi":
        from komainu import asgi as server
    else:
        from komainu import wsgi as server
    server.prepare(count)
    seats = [_native.take_seat(at) for at in range(count)]
    run_hooks("after_fork")
    if interface == "wsgi":
        _native.single()
        _native.loaded()
    status = 0
    try:
        server.serve(app, seats)
    except NotFound as error:
        give_up(str(error))
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if status == 1 and error.code != 1:
            print(error.code, file=sys.stderr)
    except BaseException as error:
        sys.stderr.write(shown(error))
        status = 1
    # `timeouts.stop` begins here: for the hooks, threads, executors, and functions registered with atexit.
    _native.ending()
    run_hooks("on_exit")
    return status


def run_hooks(name):
    for hook in komainu.hooks[name]:
        hook()

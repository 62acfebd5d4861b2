"""The life of a worker process: begin, load, fork on demand, answer, leave."""

import gc
import os
import random
import signal
import sys
import traceback

import komainu
from komainu import _native
from komainu.load import NotFound, load, prepare, several

NOT_LOADED = 3


def run(interface, target, *more):
    """The whole life of the process. ``interface`` is ``wsgi``, ``asgi`` or ``auto``; ``more`` are ``NAME=TARGET``."""
    for stream in (sys.stdout, sys.stderr):  # pipes to the log
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    role = _native.begin()
    app, interface = load_or_leave(interface, target, more)
    if role == "prototype" and not prototype():
        leave(0)
    work(app, interface)


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
    except BaseException:  # whatever it is, somebody waits for the reason
        give_up(traceback.format_exc())


def give_up(reason):
    _native.not_loaded(reason)
    leave(NOT_LOADED)


def leave(status):
    """Ends the process without what the interpreter does at its end: that is its parent's, or was done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def prototype():
    """Forks workers as long as the server asks for them. True in each worker, and False at the end."""
    # What is there stays there: the collector need not touch, and so copy, the memory that all workers share.
    gc.collect()
    gc.freeze()
    _native.loaded()
    while _native.order():
        run_hooks("before_fork")
        if fork_worker():
            return True
    return False


def fork_worker():
    """Whether this is the worker. Forked twice, so that it becomes the server's own child."""
    try:
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            return False
    except OSError as error:
        _native.not_forked(str(error))
        return False
    # In between: whatever happens, this is no second prototype.
    try:
        worker = os.fork()
    except OSError as error:
        _native.not_forked(str(error))
        os._exit(1)
    if worker:
        os._exit(0)
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
        trap(signal.SIGTERM)
        _native.loaded()
    status = 0
    try:
        server.serve(app, seats)
    except NotFound as error:
        give_up(str(error))
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    run_hooks("on_exit")
    leave(status)


def trap(number):
    """Finishes what is under way, unless the application has its own plans for this signal."""
    if signal.getsignal(number) is signal.SIG_DFL:
        signal.signal(number, lambda *_: _native.leave())


def run_hooks(name):
    for hook in komainu.hooks[name]:
        hook()

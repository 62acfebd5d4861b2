"""WSGI (PEP 3333): what does not run for every request."""

import os
import signal
import stat
import sys
import threading

from komainu import _native
from komainu.load import shown


class FileWrapper:
    """``wsgi.file_wrapper``: a file that the server sends itself if it can."""

    def __init__(self, file, block_size=64 * 1024):
        self.file = file
        self.block_size = block_size
        if hasattr(file, "close"):
            self.close = file.close

    def __iter__(self):
        return self

    def __next__(self):
        block = self.file.read(self.block_size)
        if not block:
            raise StopIteration
        return block


def file_part(wrapper):
    """Descriptor, offset and length of the rest of a plain file; ``None`` for anything else."""
    file = wrapper.file
    try:
        # Reading a file in text mode, or one that decompresses, gives other bytes than its descriptor.
        if not isinstance(file.read(0), bytes) or not hasattr(file, "fileno"):
            return None
        descriptor, offset = file.fileno(), file.tell()
        status = os.fstat(descriptor)
    except (OSError, AttributeError, TypeError, ValueError):
        return None
    raw = getattr(file, "raw", file)
    if type(raw).__module__ not in ("_io", "io") or not stat.S_ISREG(status.st_mode):
        return None
    return descriptor, offset, max(0, status.st_size - offset)


def failed(error, environ):
    """Logs an exception of the application."""
    text = shown(error)
    if environ is not None:
        text = f"{environ.get('REQUEST_METHOD')} {environ.get('REQUEST_URI')}: {text}"
    sys.stderr.write(text)


def prepare(threads):
    constants = {
        "wsgi.version": (1, 0),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": threads > 1,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        "wsgi.file_wrapper": FileWrapper,
        # The server removes the body's framing, so reading to the end is safe.
        "wsgi.input_terminated": True,
        "SERVER_SOFTWARE": "komainu",
    }
    _native.prepare_wsgi(constants, FileWrapper, file_part, failed)


def serve(app, seats):
    """Answers requests until the worker must leave."""
    if len(seats) == 1:
        seats[0].serve(app)
        return
    ends = []

    def work(seat):
        try:
            seat.serve(app)
        except BaseException as error:  # an exit in a thread ends the process
            ends.append(error)
            _native.leave()

    if signal.getsignal(signal.SIGCONT) is signal.SIG_DFL:
        # Only a signal with a handler ends a wait.
        signal.signal(signal.SIGCONT, lambda *_: None)
    threads = [threading.Thread(target=work, args=(seat,), name=f"komainu-{at}") for at, seat in enumerate(seats)]
    for thread in threads:
        thread.start()
    has_reported = False
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)
            if _native.leaving():
                wake(threads)
                if not has_reported:
                    has_reported = True
                    _native.ending()
    if ends:
        raise ends[0]


def wake(threads):
    """A signal ends the wait for a request."""
    for thread in threads:
        if thread.is_alive():
            signal.pthread_kill(thread.ident, signal.SIGCONT)

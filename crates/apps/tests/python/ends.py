"""A WSGI application that leaves something to do at its end, or does not come to one."""

import atexit
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

executor = ThreadPoolExecutor(1)
worker = None


@atexit.register
def farewell():
    print("atexit in", "worker" if os.getpid() == worker else "prototype")


def later(text):
    time.sleep(0.3)
    print(text)


class Finalized:
    def __del__(self):
        sys.stdout.write("finalized\n")


def stands_still():
    time.sleep(3600)


def generator():
    try:
        while True:
            yield
    finally:
        print("the generator was finalized")


kept = generator()
next(kept)


def app(environ, start_response):
    global worker
    worker = os.getpid()
    path = environ["PATH_INFO"]
    if path == "/leave-work":
        threading.Thread(target=later, args=("the thread is done",)).start()
        executor.submit(later, "the executor is done")
    if path == "/leave-a-thread-that-stays":
        threading.Thread(target=stands_still).start()
    if path == "/stuck":
        stands_still()
    if path == "/exit":
        raise SystemExit(0)
    if path == "/halves":
        sys.stdout.write("half of a line of output")
        sys.stderr.write("half of a line of errors")
        sys.stdout.flush()
        sys.stderr.flush()
    if path == "/fork":
        runs, says = os.pipe()
        child = os.fork()
        if not child:
            os.write(says, b"x")
            time.sleep(3600)
        # The child ignores the signal until it runs, because it inherits this from its parent.
        os.read(runs, 1)
        os.kill(child, signal.SIGTERM)
        start_response("200 OK", [])
        return [b"%d" % os.waitpid(child, 0)[1]]
    if path == "/fork-and-exit":
        child = os.fork()
        if not child:
            raise SystemExit(0)
        os.waitpid(child, 0)
    if path == "/own":
        # Runs in the main thread, which is the current one.
        signal.signal(signal.SIGTERM, lambda *_: print("the application's own handler"))
    start_response("200 OK", [])
    if path == "/pause":
        return pauses(float(environ["QUERY_STRING"]))
    return [b"%d" % os.getpid()]


def pauses(seconds):
    yield b"first "
    time.sleep(seconds)
    yield b"second"


async def events(scope, receive, send):
    import asyncio

    if scope["type"] == "lifespan":
        raise NotImplementedError
    loop = asyncio.get_running_loop()
    if scope["path"] == "/stuck":
        await asyncio.sleep(3600)
    if scope["path"] == "/blocked":
        stands_still()
    if scope["path"] == "/leave-work":
        loop.run_in_executor(None, later, "the executor is done")
        scope["state"]["task"] = loop.create_task(cancelled_at_the_end())
        await asyncio.sleep(0)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


async def cancelled_at_the_end():
    import asyncio

    try:
        await asyncio.sleep(3600)
    finally:
        print("the task is cancelled")

"""ASGI: the event loop of a worker, the lifespan, and calls that wait."""

import asyncio
import contextvars
import sys
import traceback

from komainu import _native
from komainu._native import Gone
from komainu.life import GIVEN
from komainu.load import NotFound, shown
from komainu.loop import end_loop
from komainu.websocket import Socket

VERSION = {"version": "3.0", "spec_version": "2.5"}
# Maximum number of requests claimed per iteration of the loop, so that other workers and other tasks get their share.
CLAIMED_MAX = 16
# Interval between checks for cancelled requests, in seconds.
SWEEP_S = 0.25
# The number of sweeps after which the task of a cancelled request is cancelled: if the application neither waits in
# receive nor sends, and if it knows that its client has left and may be cleaning up.
UNAWARE_SWEEPS, AWARE_SWEEPS = 2, 20
# The result of komainu_cancelled for a timeout.
LATE = 2
EAGER = sys.version_info >= (3, 12)


def ends_worker(error):
    """Whether an exception ends the worker, not only its request."""
    return isinstance(error, (SystemExit, KeyboardInterrupt))


class NotStarted(Exception):
    """The application's lifespan failed at startup."""


class Lifespan:
    """The application's lifespan; with ``required`` it must support one."""

    def __init__(self, app, state, required):
        self.app = app
        self.required = required
        self.scope = {"type": "lifespan", "asgi": VERSION, "state": state}
        self.events = asyncio.Queue()
        self.began, self.ended = asyncio.Event(), asyncio.Event()
        self.failure = None
        self.supported = True
        # The application has received the first event.
        self.entered = False
        # Its startup is complete, and its shutdown has not begun.
        self.serves = False

    async def receive(self):
        event = await self.events.get()
        self.entered = True
        return event

    async def send(self, message):
        kind = message["type"]
        if kind.endswith(".failed"):
            self.failure = message.get("message") or "the application's lifespan failed to begin"
        if kind.startswith("lifespan.startup."):
            self.serves = self.failure is None
            self.began.set()
        elif kind.startswith("lifespan.shutdown."):
            self.ended.set()
        else:
            raise RuntimeError(f"{kind!r} is not a message of a lifespan")

    async def run(self):
        try:
            await self.app(self.scope, self.receive, self.send)
        except BaseException as error:
            self.raised(error)
            self.supported = False
        else:
            if self.serves:
                print("lifespan: the application returned while serving: its shutdown does not run", file=sys.stderr)
        finally:
            self.began.set()
            self.ended.set()

    def raised(self, error):
        """Adds the exception to the failure, or logs it."""
        trace = shown(error)
        if self.failure is not None:
            self.failure += "\n" + trace
        elif self.serves:
            sys.stderr.write(f"lifespan: the application failed while serving: its shutdown does not run\n{trace}")
        elif self.began.is_set():
            sys.stderr.write(trace)
        elif self.required:
            self.failure = f"the application's lifespan ended before it had begun, and is required (lifespan = \"on\"):\n{trace}"
        elif self.entered:
            sys.stderr.write(f"lifespan: the application failed before its startup was complete, and is served without a lifespan:\n{trace}")
        else:
            # Most applications without lifespan support raise an exception.
            said = traceback.format_exception_only(type(error), error)[-1].strip()
            print(f"lifespan: not supported by the application: {said}", file=sys.stderr)

    async def begin(self):
        self.task = asyncio.ensure_future(self.run())
        await self.events.put({"type": "lifespan.startup"})
        await self.began.wait()
        if self.failure is not None:
            # An exception right after the message belongs to the failure.
            await asyncio.wait([self.task], timeout=1)
            raise NotStarted(self.failure)

    async def end(self):
        self.serves = False
        if self.supported and not self.task.done():
            await self.events.put({"type": "lifespan.shutdown"})
            await self.ended.wait()
            if self.failure is not None:
                print(self.failure, file=sys.stderr)


class Worker:
    """One seat, and the requests that it holds."""

    def __init__(self, app, seat, concurrency, loop):
        self.app = app
        self.seat = seat
        self.concurrency = concurrency
        self.loop = loop
        self.held = {}
        self.waiting = set()
        self.sockets = set()
        # Set while the worker is full: it claims no requests until one is finished.
        self.full = False
        # The cancelled requests, with the sweeps that have found them.
        self.gone = {}
        self.left = loop.create_future()
        self.context = contextvars.copy_context()

    # ---- requests ----

    def begin(self, scope, call):
        """Starts a request that was claimed."""
        if scope["type"] == "websocket":
            task = self.loop.create_task(self.run_socket(scope, call))
        elif self.loop.get_task_factory() is not None:
            task = self.loop.create_task(self.run(scope, call))
        elif EAGER:
            task = asyncio.Task(self.run(scope, call), loop=self.loop, name="request", eager_start=True)
            if task.done():
                return
        else:
            task = asyncio.Task(self.run(scope, call), loop=self.loop, name="request")
        self.held[call] = task

    async def run(self, scope, call):
        try:
            await self.app(scope, call.receive, call.send)
        except BaseException as error:
            self.failed(scope, call, error)
        else:
            if not call.finish():
                print(f"{scope['method']} {scope['raw_path'].decode()}: the application returned before its response was complete", file=sys.stderr)
        self.release(call)

    async def run_socket(self, scope, call):
        socket = Socket(call, self)
        self.sockets.add(socket)
        error = None
        try:
            await self.app(scope, socket.receive, socket.send)
        except BaseException as raised:
            error = raised
        whole = await socket.finish(error is not None, ends_worker(error))
        if error is not None:
            self.report(scope, error, whole)
        elif not whole:
            print(f"{scope['raw_path'].decode()}: the application returned before it accepted or refused the WebSocket", file=sys.stderr)
        self.sockets.discard(socket)
        self.release(call)

    def release(self, call):
        self.held.pop(call, None)
        if self.full:
            self.full = False
            # Requests claimed in the same iteration must not inherit the context of this one.
            self.loop.call_soon(self.turn, context=self.context)

    def failed(self, scope, call, error):
        self.report(scope, error, call.end_worker() if ends_worker(error) else call.finish())

    def report(self, scope, error, gone):
        """Logs an exception of the application, unless the request was cancelled."""
        cause = error
        while cause is not None and not isinstance(cause, Gone):
            cause = cause.__cause__ or cause.__context__
        if ends_worker(error):
            if not self.left.done():
                self.left.set_exception(error)
        elif cause is None and not (gone and isinstance(error, asyncio.CancelledError)):
            text = shown(error)
            sys.stderr.write(f"{scope.get('method', 'WebSocket')} {scope['raw_path'].decode()}: {text}")

    async def wait_to_receive(self, call):
        while True:
            event = call.take()
            if event is not None:
                return event
            await self.readable(call)

    async def readable(self, call):
        future = self.loop.create_future()
        call.read_by(future)
        self.waiting.add(call)
        await future

    async def wait_to_send(self, call):
        while call.push():
            future = self.loop.create_future()
            call.written_by(future)
            self.waiting.add(call)
            await future

    # ---- the loop ----

    def rung(self):
        self.seat.quiet()
        self.turn()

    def turn(self):
        """Handles all that has arrived, and arms the wake-up when there is nothing left."""
        if self.left.done():
            return
        seat = self.seat
        seat.disarm()
        room = self.concurrency - len(self.held)
        claimed = seat.claim(min(room, CLAIMED_MAX))
        self.full = room <= 0
        if claimed is None:
            self.left.set_result(None)
            return
        if self.waiting:
            self.look()
        if claimed or _native.leaving() or not seat.arm(room > 0):
            # If no request is wanted, arming fails only because the worker must exit.
            if _native.leaving() or (room <= 0 and not claimed):
                self.left.set_result(None)
            else:
                self.loop.call_soon(self.turn)
        elif self.waiting:
            # There is no wake-up for events that arrived before arming.
            self.look()

    def look(self):
        self.waiting.difference_update([call for call in self.waiting if not call.look()])

    def sweep(self):
        """Cancels the tasks of requests that timed out, and of those whose clients have left, after a grace."""
        gone = {}
        for call, task in tuple(self.held.items()):
            reason = call.cancelled()
            if reason:
                gone[call] = sweeps = self.gone.get(call, 0) + 1
                if reason == LATE and sweeps % 4 == 1 or sweeps == (AWARE_SWEEPS if call.knows_end() else UNAWARE_SWEEPS):
                    task.cancel()
        self.gone = gone
        self.loop.call_later(SWEEP_S, self.sweep)

    async def serve(self):
        self.loop.add_reader(self.seat.fileno(), self.rung)
        self.turn()
        self.sweep()
        try:
            await self.left
        finally:
            self.loop.remove_reader(self.seat.fileno())

    async def finish(self):
        """Waits for running requests. WebSockets are closed, because they might never end."""
        for socket in self.sockets:
            socket.leave()
        while self.held:
            self.seat.arm(False)
            if self.waiting:
                self.look()
            await asyncio.wait(tuple(self.held.values()), timeout=0.05)
        self.seat.disarm()
        self.seat.leave()


def prepare(seats):
    if seats > 1:
        raise SystemExit("an ASGI application has one event loop in each worker, and no threads: ask for more workers")


def new_loop():
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def serve(app, seats):
    """Answers requests until the worker must leave."""
    loop = new_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(live(app, seats[0], loop))
    finally:
        end_loop(loop)


async def live(app, seat, loop):
    state = {}
    # Each target has its own lifespan; they share the state.
    asked = GIVEN.get("KOMAINU_LIFESPAN", "auto")
    targets = getattr(app, "targets", [app]) if asked != "off" else []
    lifespans = [Lifespan(target, state, asked == "on") for target in targets]
    try:
        for lifespan in lifespans:
            await lifespan.begin()
    except NotStarted as error:
        raise NotFound(str(error)) from None
    worker = Worker(app, seat, int(GIVEN.get("KOMAINU_CONCURRENCY", "1000")), loop)
    constants = {"type": "http", "asgi": VERSION}
    extensions = {"http.response.trailers": {}, "http.response.early_hint": {}}
    socket_extensions = {"websocket.http.response": {}}
    _native.prepare_asgi(constants, state, extensions, socket_extensions, worker.begin, worker.wait_to_receive, worker.wait_to_send)
    _native.loaded()
    try:
        await worker.serve()
    finally:
        _native.ending()
        await worker.finish()
        for lifespan in reversed(lifespans):
            await lifespan.end()

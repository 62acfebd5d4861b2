"""A gRPC server and a client that calls it, without generated code: `serve` prints its port, `call ADDRESS` makes the calls."""

import sys
import threading
import time
from concurrent import futures

import grpc

CANCELLED = threading.Event()


def unary(request, context):
    got = dict(context.invocation_metadata())
    context.send_initial_metadata((("x-begin", got.get("x-mine", "")),))
    context.set_trailing_metadata((("x-end", "2"), ("x-end-bin", b"\x00\xff")))
    return request


def count(requests, context):
    return str(sum(len(request) for request in requests)).encode()


def repeat(request, context):
    yield from (request + str(n).encode() for n in range(100))


def echo(requests, context):
    yield from requests


def fail(request, context):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now: 50 % done")


def slow(request, context):
    context.add_callback(CANCELLED.set)
    CANCELLED.wait(20)
    return b"late"


def cancelled(request, context):
    return b"yes" if CANCELLED.wait(20) else b"no"


HANDLERS = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Count": grpc.stream_unary_rpc_method_handler(count),
    "Repeat": grpc.unary_stream_rpc_method_handler(repeat),
    "Echo": grpc.stream_stream_rpc_method_handler(echo),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "Slow": grpc.unary_unary_rpc_method_handler(slow),
    "Cancelled": grpc.unary_unary_rpc_method_handler(cancelled),
}


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return HANDLERS.get(details.method.removeprefix("/echo.Echo/"))


def serve():
    server = grpc.server(futures.ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers((Echo(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()  # until the test ends


def status_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("no error")


def call(address):
    channel = grpc.insecure_channel(address)
    unary = channel.unary_unary("/echo.Echo/Unary")
    body, made = unary.with_call(b"hello", metadata=(("x-mine", "1"),), timeout=20)
    assert body == b"hello" and ("x-begin", "1") in made.initial_metadata(), made.initial_metadata()
    assert {("x-end", "2"), ("x-end-bin", b"\x00\xff")} <= set(made.trailing_metadata()), made.trailing_metadata()
    large = bytes(range(256)) * 12_000
    assert unary(large, timeout=20) == large
    assert channel.stream_unary("/echo.Echo/Count")((b"x" * n for n in range(200)), timeout=20) == b"19900"
    repeated = list(channel.unary_stream("/echo.Echo/Repeat")(b"a", timeout=20))
    assert repeated == [b"a%d" % n for n in range(100)], repeated

    # Bidirectional streaming: each message is sent after the answer to the previous one.
    turn, answers = threading.Semaphore(1), []

    def ask():
        for n in range(50):
            assert turn.acquire(timeout=20)
            yield b"%d" % n

    for answer in channel.stream_stream("/echo.Echo/Echo")(ask(), timeout=20):
        answers.append(answer)
        turn.release()
    assert answers == [b"%d" % n for n in range(50)], answers

    many = [unary.future(b"%d" % n, timeout=20) for n in range(200)]
    assert [one.result() for one in many] == [b"%d" % n for n in range(200)]
    code = grpc.StatusCode
    failed = status_of(lambda: channel.unary_unary("/echo.Echo/Fail")(b"", timeout=20))
    assert failed == (code.FAILED_PRECONDITION, "not now: 50 % done"), failed
    unknown = status_of(lambda: channel.unary_unary("/echo.Echo/None")(b"", timeout=20))
    assert unknown[0] == code.UNIMPLEMENTED, unknown
    late = status_of(lambda: channel.unary_unary("/echo.Echo/Slow")(b"", timeout=0.3))
    assert late[0] == code.DEADLINE_EXCEEDED, late
    assert channel.unary_unary("/echo.Echo/Cancelled")(b"", timeout=20) == b"yes"

    # Errors reported by the proxy itself.
    down = status_of(lambda: channel.unary_unary("/down.Down/Any")(b"", timeout=20))
    assert down[0] == code.UNAVAILABLE, down
    nowhere = status_of(lambda: channel.unary_unary("/nowhere.Nowhere/Any")(b"", timeout=20))
    assert nowhere[0] == code.UNIMPLEMENTED, nowhere
    print("all calls are as they should be")


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else call(sys.argv[2])

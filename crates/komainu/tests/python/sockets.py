"""The client of the tests of WebSockets: the `websockets` library against the server of an URL."""

import asyncio
import functools
import os
import sys

import websockets
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

# On a busy machine, 200 concurrent handshakes take longer than the library's timeout of 10 s.
connect = functools.partial(websockets.connect, open_timeout=60)


async def main(url):
    async with connect(url + "/echo", subprotocols=["other", "chat"], max_size=None) as socket:
        assert socket.subprotocol == "chat", socket.subprotocol
        agreed = socket.response.headers["Sec-WebSocket-Extensions"]
        assert "permessage-deflate; server_no_context_takeover; client_no_context_takeover" in agreed, agreed
        for message in ("grüß", "", b"", bytes(range(256)), "x" * 1_000_000, b"y" * 1_000_000, os.urandom(300_000), "ein Satz. " * 100_000):
            await socket.send(message)
            assert await socket.recv() == message
        await (await socket.ping())
        await socket.send(["in ", "three ", "pieces"])
        assert await socket.recv() == "in three pieces"
        # Many messages in flight, in both directions.
        receiver = asyncio.ensure_future(receive(socket, 2000))
        for at in range(2000):
            await socket.send(f"{at} " + "z" * (at % 300))
        await receiver
    # With several window sizes of permessage-deflate, and without compression.
    for window in (None, 9, 10, 12, 15):
        factory = ClientPerMessageDeflateFactory(server_max_window_bits=window, client_max_window_bits=window or True)
        async with connect(url + "/echo", compression=None, extensions=[factory], max_size=None) as socket:
            await echo(socket)
    async with connect(url + "/echo", compression=None, max_size=None) as socket:
        assert "Sec-WebSocket-Extensions" not in socket.response.headers
        await echo(socket)
        # The longest message allowed.
        longest = os.urandom(16 << 20)
        await socket.send(longest)
        assert await socket.recv() == longest
    # One byte more than the limit of 16 MiB, uncompressed and compressed to a few bytes.
    for compression in (None, "deflate"):
        try:
            async with connect(url + "/echo", compression=compression) as socket:
                await socket.send("x" * ((16 << 20) + 1))
                await socket.recv()
            raise SystemExit("a message too long went through")
        except websockets.ConnectionClosed as closed:
            assert closed.rcvd.code == 1009, closed
    try:
        async with connect(url + "/private"):
            raise SystemExit("it was not refused")
    except websockets.InvalidStatus as refused:
        assert refused.response.status_code == 403, refused
    sockets = await asyncio.gather(*(connect(url + "/echo") for _ in range(200)))
    for at, socket in enumerate(sockets):
        await socket.send(str(at))
    for at, socket in enumerate(sockets):
        assert await socket.recv() == str(at)
        await socket.close(code=3000)
    print("all well")


async def echo(socket):
    for message in ("", "short", "line of a text " * 10_000, os.urandom(100_000), b"0123456789" * 50_000):
        await socket.send(message)
        assert await socket.recv() == message
    await socket.send(["in ", "three ", "pieces" * 1000])
    assert await socket.recv() == "in three " + "pieces" * 1000


async def receive(socket, count):
    for at in range(count):
        message = await socket.recv()
        assert message == f"{at} " + "z" * (at % 300), message


asyncio.run(main(sys.argv[1]))

"""The client of the tests of WebSockets: the `websockets` library against the server of an URL."""

import asyncio
import sys

import websockets


async def main(url):
    async with websockets.connect(url + "/echo", subprotocols=["other", "chat"], max_size=None) as socket:
        assert socket.subprotocol == "chat", socket.subprotocol
        for message in ("grüß", "", b"", bytes(range(256)), "x" * 1_000_000, b"y" * 1_000_000):
            await socket.send(message)
            assert await socket.recv() == message
        await (await socket.ping())
        await socket.send(["in ", "three ", "pieces"])
        assert await socket.recv() == "in three pieces"
        # Many at once, in both directions.
        receiver = asyncio.ensure_future(receive(socket, 2000))
        for at in range(2000):
            await socket.send(f"{at} " + "z" * (at % 300))
        await receiver
    try:
        async with websockets.connect(url + "/echo") as socket:
            await socket.send("x" * 2_000_000)
            await socket.recv()
        raise SystemExit("a message too long went through")
    except websockets.ConnectionClosed as closed:
        assert closed.rcvd.code == 1009, closed
    try:
        async with websockets.connect(url + "/private"):
            raise SystemExit("it was not refused")
    except websockets.InvalidStatus as refused:
        assert refused.response.status_code == 403, refused
    sockets = await asyncio.gather(*(websockets.connect(url + "/echo") for _ in range(200)))
    for at, socket in enumerate(sockets):
        await socket.send(str(at))
    for at, socket in enumerate(sockets):
        assert await socket.recv() == str(at)
        await socket.close(code=3000)
    print("all well")


async def receive(socket, count):
    for at in range(count):
        message = await socket.recv()
        assert message == f"{at} " + "z" * (at % 300), message


asyncio.run(main(sys.argv[1]))

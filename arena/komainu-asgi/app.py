"""The endpoints of HttpArena as an ASGI application."""

import json
import os
from urllib.parse import parse_qs

try:
    from orjson import dumps
except ImportError:

    def dumps(value):
        return json.dumps(value, separators=(",", ":")).encode()


with open(os.environ["ARENA_DATASET"], "rb") as file:
    ITEMS = json.load(file)
H2C_PORT = int(os.environ.get("ARENA_H2C_PORT", "0"))


def integer(text, otherwise=0):
    try:
        return int(text)
    except ValueError:
        return otherwise


def parameter(query, name, otherwise=0):
    return integer(query.get(name, [b""])[0], otherwise)


async def pieces(receive):
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def baseline(scope, receive, query):
    total = parameter(query, b"a") + parameter(query, b"b")
    if scope["method"] == "POST":
        body = b""
        async for piece in pieces(receive):
            body = (body + piece)[:64]
        total += integer(body)
    return b"%d" % total


def items(wanted, factor):
    chosen = ITEMS[: max(wanted, 0)]
    rows = [{**item, "total": item["price"] * item["quantity"] * factor} for item in chosen]
    return dumps({"items": rows, "count": len(rows)})


async def upload(receive):
    size = 0
    async for piece in pieces(receive):
        size += len(piece)
    return b"%d" % size


async def lifespan(receive, send):
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    path, kind, status = scope["path"], b"text/plain", 200
    if scope["server"][1] == H2C_PORT and scope["http_version"].startswith("1"):
        status, body = 505, b"HTTP/2 only\n"
    elif path in ("/baseline11", "/baseline2"):
        body = await baseline(scope, receive, parse_qs(scope["query_string"]))
    elif path.startswith("/json/"):
        factor = parameter(parse_qs(scope["query_string"]), b"m", 1)
        body, kind = items(integer(path[6:]), factor), b"application/json"
    elif path == "/upload":
        body = await upload(receive)
    else:
        status, body = 404, b"not found\n"
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

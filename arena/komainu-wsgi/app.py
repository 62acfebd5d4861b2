"""The endpoints of HttpArena as a WSGI application."""

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
H2C_PORT = os.environ.get("ARENA_H2C_PORT")
TEXT = "text/plain"


def integer(text, otherwise=0):
    try:
        return int(text)
    except ValueError:
        return otherwise


def parameter(query, name, otherwise=0):
    return integer(query.get(name, [""])[0], otherwise)


def baseline(environ, query):
    total = parameter(query, "a") + parameter(query, "b")
    if environ["REQUEST_METHOD"] == "POST":
        total += integer(environ["wsgi.input"].read(64))
    return b"%d" % total


def items(wanted, factor):
    chosen = ITEMS[: max(wanted, 0)]
    rows = [{**item, "total": item["price"] * item["quantity"] * factor} for item in chosen]
    return dumps({"items": rows, "count": len(rows)})


def upload(environ):
    body, size = environ["wsgi.input"], 0
    while piece := body.read(65536):
        size += len(piece)
    return b"%d" % size


def app(environ, start_response):
    path, kind, status = environ["PATH_INFO"], TEXT, "200 OK"
    if environ["SERVER_PORT"] == H2C_PORT and environ["SERVER_PROTOCOL"].startswith("HTTP/1"):
        status, body = "505 HTTP Version Not Supported", b"HTTP/2 only\n"
    elif path in ("/baseline11", "/baseline2"):
        body = baseline(environ, parse_qs(environ["QUERY_STRING"]))
    elif path.startswith("/json/"):
        factor = parameter(parse_qs(environ["QUERY_STRING"]), "m", 1)
        body, kind = items(integer(path[6:]), factor), "application/json"
    elif path == "/upload":
        body = upload(environ)
    else:
        status, body = "404 Not Found", b"not found\n"
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]

"""What a WSGI application may do, behind the validator of the standard library."""

import os
from wsgiref.validate import validator


def answer(environ, start_response):
    path = environ["PATH_INFO"]
    plain = [("Content-Type", "text/plain")]
    if path == "/echo":
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        start_response("200 OK", plain)
        return [body]
    if path == "/lines":
        start_response("200 OK", plain)
        return [b"|".join(line for line in environ["wsgi.input"])]
    if path == "/write":
        write = start_response("200 OK", plain)
        write(b"written ")
        return [b"and returned"]
    if path == "/each":
        start_response("200 OK", plain)
        return Each()
    if path == "/late":
        start_response("200 OK", plain)
        try:
            raise ValueError("changed its mind")
        except ValueError:
            import sys

            start_response("404 Not Found", plain, sys.exc_info())
        return [b"not here"]
    start_response("200 OK", plain)
    return [f"{path} {environ['QUERY_STRING']}".encode()]


class Each:
    def __iter__(self):
        yield b"one "
        yield b""
        yield b"two"

    def close(self):
        print("closed", os.getpid())


application = validator(answer)

"""What an application may do that the validator of the standard library would not let through."""

import os


def create_app(name="made"):
    def app(environ, start_response):
        path = environ["PATH_INFO"]
        if path == "/file":
            file = open(__file__, "rb")
            file.seek(3)
            start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "4")])
            return environ["wsgi.file_wrapper"](file)
        if path == "/fail":
            raise ValueError("on purpose")
        if path == "/twice":
            start_response("200 OK", [])
            start_response("200 OK", [])
        if path == "/silent":
            return [b"without a head"]
        if path == "/long":
            start_response("200 OK", [("Content-Length", "3")])
            return iter([b"ab", b"cd", b"ef"])
        if path == "/long-list":
            start_response("200 OK", [("Content-Length", "3")])
            return [b"abc", b"d", b"e"]
        if path == "/large":
            start_response("200 OK", [])
            return (b"x" * 100_000 for _ in range(50))
        if path == "/exit":
            raise SystemExit(0)
        if path == "/die":
            os._exit(9)
        start_response("200 OK", [])
        return [name.encode()]

    return app

"""A Flask application, and a factory of one."""

from flask import Flask, Response, abort, jsonify, request, send_file, session


def create_app(name="made"):
    app = Flask(name)
    app.secret_key = "only for tests"

    @app.get("/hello/<who>")
    def hello(who):
        return f"{name} {who} {request.args.get('a', '')} {request.url}"

    @app.post("/upload")
    def upload():
        file = request.files["file"]
        return jsonify(name=file.filename, size=len(file.read()), note=request.form["note"])

    @app.get("/count")
    def count():
        session["count"] = session.get("count", 0) + 1
        return str(session["count"])

    @app.get("/stream")
    def stream():
        return Response((f"line {at}\n" for at in range(1000)), mimetype="text/plain")

    @app.get("/file")
    def file():
        return send_file(__file__, mimetype="text/x-python", conditional=True)

    @app.get("/absent")
    def absent():
        abort(404)

    @app.get("/fail")
    def fail():
        raise ValueError("on purpose")

    return app


application = create_app("flask")

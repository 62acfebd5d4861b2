"""ASGI 2: applications that are called twice, as classes and as functions; and what lifespans do."""


class app:
    def __init__(self, scope):
        self.scope = scope

    async def __call__(self, receive, send):
        if self.scope["type"] == "lifespan":
            raise ValueError("no lifespans here")
        await answer(send, f"class {self.scope['path']} {self.scope['asgi']['version']}")


def function(scope):
    async def instance(receive, send):
        await answer(send, f"function {scope['path']} {scope['asgi']['version']}")

    return instance


async def fails(scope, receive, send):
    """Its lifespan takes part, and fails."""
    if scope["type"] == "lifespan":
        await receive()
        raise KeyError("no database")
    await answer(send, "served all the same")


async def silent(scope, receive, send):
    if scope["type"] == "lifespan":
        print("was asked", flush=True)
        return
    await answer(send, "silent")


async def answer(send, text):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": text.encode()})

"""A WebSocket of ASGI: its states. The server handles frames, pings and limits."""

import asyncio

from komainu._native import Gone

TEXT, BINARY, CLOSE = 1, 2, 8
NORMAL, FAILED, RESTART = 1000, 1011, 1012
REASON_BYTES_MAX = 123


class Socket:
    """``receive`` and ``send`` of one WebSocket."""

    def __init__(self, call, worker):
        self.call = call
        self.worker = worker
        # "new", "connecting", "open", "refusing", "closed"
        self.state = "new"
        # The event that receive returns from now on.
        self.ended = None
        self.sending = asyncio.Lock()

    async def receive(self):
        if self.state == "new":
            self.state = "connecting"
            return {"type": "websocket.connect"}
        while self.ended is None:
            record = self.call.take_record()
            if record is None:
                await self.worker.readable(self.call)
                continue
            kind, payload, reason = record
            if kind == CLOSE:
                self.end(payload, reason)
            else:
                return {"type": "websocket.receive", "text" if kind == TEXT else "bytes": payload}
        return dict(self.ended)

    def end(self, code, reason):
        """Marks the WebSocket as closed by the client."""
        self.ended = {"type": "websocket.disconnect", "code": code, "reason": reason}

    async def send(self, message):
        kind = message["type"]
        if self.state == "closed":
            raise RuntimeError(f"{kind!r} after the end of the WebSocket")
        if self.ended is not None:
            raise Gone("the client has disconnected")
        if self.state == "open":
            if kind == "websocket.send":
                await self.send_data(message)
            elif kind == "websocket.close":
                await self.close(message.get("code") or NORMAL, message.get("reason") or "")
            else:
                raise RuntimeError(f"{kind!r} cannot be sent in this state")
        elif kind.startswith("websocket.http.response."):
            await self.refuse(message)
        elif kind == "websocket.close" and self.state != "refusing":
            await self.refuse({"type": "websocket.http.response.start", "status": 403})
            await self.refuse({"type": "websocket.http.response.body"})
        elif kind == "websocket.accept" and self.state != "refusing":
            self.state = "open"
            self.call.accept(message.get("subprotocol"), message.get("headers") or ())
        else:
            raise RuntimeError(f"{kind!r} cannot be sent in this state")

    async def send_data(self, message):
        text, data = message.get("text"), message.get("bytes")
        if text is None and data is None:
            raise ValueError("a message has `text` or `bytes`")
        await self.put(*((BINARY, data) if text is None else (TEXT, text.encode())))

    async def put(self, kind, payload):
        async with self.sending:
            if self.call.put_record(kind, payload):
                await self.worker.wait_to_send(self.call)

    async def close(self, code, reason):
        self.state = "closed"
        if self.ended is None:
            self.end(code, reason)
        # The reason, truncated at a character boundary to fit into a frame.
        reason = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore").encode()
        await self.put(CLOSE, code.to_bytes(2, "little") + reason)

    async def refuse(self, message):
        self.state = "refusing"
        await self.call.send({**message, "type": message["type"].removeprefix("websocket.")})
        if message["type"].endswith(".body") and not message.get("more_body"):
            self.state = "closed"
            self.end(1006, "")

    def leave(self):
        """The worker leaves: the application gets a disconnect; the client a close when the application has returned."""
        if self.ended is None:
            self.end(RESTART, "")
            self.call.wake()

    async def finish(self, failed, ends_worker):
        """The application has returned; whether its response was complete."""
        if self.state == "open":
            ours = self.ended is not None and self.ended["code"] == RESTART
            try:
                await self.close(FAILED if failed else RESTART if ours else NORMAL, "")
            except (Gone, OSError):
                pass
        return self.call.end_worker() if ends_worker else self.call.finish()

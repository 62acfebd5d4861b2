"""A FastAPI application: lifespan, validation, streams, WebSockets, work after the answer; and a Starlette one."""

import asyncio
import contextlib

from fastapi import BackgroundTasks, FastAPI, File, Form, Request, UploadFile, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route


@contextlib.asynccontextmanager
async def lifespan(app):
    yield {"greeting": "began"}
    print("lifespan ended", flush=True)


app = FastAPI(lifespan=lifespan)


class Item(BaseModel):
    name: str
    price: float


@app.get("/hello/{who}")
async def hello(request: Request, who: str, a: int = 0):
    return {"who": who, "a": a, "state": request.state.greeting, "url": str(request.url)}


@app.post("/items")
def make(item: Item):  # in a thread of the pool
    return item


@app.post("/upload")
async def upload(file: UploadFile = File(), note: str = Form()):
    return {"name": file.filename, "size": len(await file.read()), "note": note}


@app.get("/stream")
async def stream():
    async def lines():
        for at in range(1000):
            yield f"line {at}\n"

    return StreamingResponse(lines(), media_type="text/plain")


@app.get("/events")
async def events():
    async def each():
        at = 0
        while True:
            yield f"data: {at}\n\n"
            at += 1
            await asyncio.sleep(0.01)

    return StreamingResponse(each(), media_type="text/event-stream")


@app.get("/later")
async def later(tasks: BackgroundTasks):
    tasks.add_task(print, "after the answer", flush=True)
    return "now"


@app.get("/fail")
async def fail():
    raise ValueError("on purpose")


@app.websocket("/echo")
async def echo(socket: WebSocket):
    await socket.accept(subprotocol="chat" if "chat" in socket.scope["subprotocols"] else None)
    try:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message["code"])
            if message.get("text") is not None:
                await socket.send_text(message["text"])
            else:
                await socket.send_bytes(message["bytes"])
    except WebSocketDisconnect as gone:
        print(f"disconnected {gone.code}", flush=True)


@app.websocket("/private")
async def private(socket: WebSocket):
    await socket.close()


starlette = Starlette(routes=[Route("/", lambda request: PlainTextResponse("starlette"))])

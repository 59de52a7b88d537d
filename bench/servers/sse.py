"""An event stream as a Starlette application sends it, with nothing checked."""

import asyncio
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from bench.servers.settings import Settings, serve
from bench.workload import TEXT

waiting: set[asyncio.Queue[bytes]] = set()


async def events() -> AsyncIterator[bytes]:
    """Yield one event at once, and one for each announcement."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    waiting.add(queue)
    try:
        yield b"event: message\ndata: acknowledged\n\n"
        while True:
            yield await queue.get()
    finally:
        waiting.discard(queue)


async def listen(request: Request) -> StreamingResponse:
    return StreamingResponse(events(), media_type="text/event-stream")


async def announce(request: Request) -> PlainTextResponse:
    for queue in tuple(waiting):
        queue.put_nowait(b"event: message\ndata: list_changed\n\n")
    return PlainTextResponse("announced")


async def call(request: Request) -> PlainTextResponse:
    await request.body()
    return PlainTextResponse(TEXT)


routes = [
    Route("/listen", listen, methods=["POST"]),
    Route("/announce", announce, methods=["POST"]),
    Route("/call", call, methods=["POST"]),
]

if __name__ == "__main__":
    serve(Starlette(routes=routes), Settings.read(), lifespan="off")

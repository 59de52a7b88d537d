"""An agent at the official Python client, in a thread of its own."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

START_S, ANSWER_S = 10, 30


class Heard:
    """What came of a call, as the model reads it."""

    def __init__(self, text: str, *, is_error: bool) -> None:
        self.text, self.is_error = text, is_error


class Agent:
    """One connected client; several calls may be under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: Client) -> None:
        self._loop, self._client = loop, client

    def call(self, tool: str, arguments: Mapping[str, Any]) -> "Future[Heard]":
        """Begin a call; its result comes once somebody has decided."""
        return asyncio.run_coroutine_threadsafe(self._call(tool, arguments), self._loop)

    async def _call(self, tool: str, arguments: Mapping[str, Any]) -> Heard:
        result = await self._client.call_tool(tool, dict(arguments))
        text = "\n".join(getattr(block, "text", "") for block in result.content)
        return Heard(text, is_error=bool(result.is_error))


@contextmanager
def agent(url: str, token: str) -> Iterator[Agent]:
    """An agent of a revision with sessions: its calls are held open while people decide."""
    ready: Future[Agent] = Future()
    stop: list[asyncio.Event] = []

    async def live() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        stop.append(over)
        headers = {"authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(url, http_client=http), mode="legacy") as client,
        ):
            ready.set_result(Agent(loop, client))
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
    thread.start()
    connected = ready.result(START_S)
    try:
        yield connected
    finally:
        connected._loop.call_soon_threadsafe(stop[0].set)
        thread.join(START_S)
        assert not thread.is_alive(), "the agent did not stop in time"

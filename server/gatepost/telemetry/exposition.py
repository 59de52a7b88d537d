"""`GET /metrics` as an ASGI app: no gate before it, so it has an address of its own."""

import asyncio
import time
from collections.abc import Callable

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import CollectorRegistry
from starlette.types import Receive, Scope, Send

from gatepost.telemetry.access import GATHERED_S

FRESH_S = 0.2
"""How long an answer counts: whoever asks all the time costs no more than five answers a second."""
OWN_VISIT = b"none"
"""`Sec-Fetch-Site` of somebody who typed the address."""

OPEN, PLAIN = "application/openmetrics-text", "text/plain"
FORMATS: dict[str, tuple[str, Callable[[CollectorRegistry], bytes]]] = {
    OPEN: (
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        openmetrics.generate_latest,
    ),
    PLAIN: (CONTENT_TYPE_PLAIN_0_0_4, generate_latest),
}

Headers = tuple[tuple[bytes, bytes], ...]


class Exposition:
    """
    Answers `GET /metrics` in the format that is asked for, and `GET /health`.

    A page of another site that makes a browser ask is refused: the address may be one that only
    the browser's machine reaches.
    """

    def __init__(
        self, registry: CollectorRegistry, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._made: dict[str, tuple[float, bytes]] = {}
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, body, headers = await self._answer(scope)
        start: list[tuple[bytes, bytes]] = [
            *headers,
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": start})
        body = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope) -> tuple[int, bytes, Headers]:
        headers = dict(scope["headers"])
        if b"origin" in headers or headers.get(b"sec-fetch-site", OWN_VISIT) != OWN_VISIT:
            return 403, b"Pages of other sites may not read this.\n", TEXT
        if scope["path"] not in ("/metrics", "/health"):
            return 404, b"Only /metrics and /health are served here.\n", TEXT
        if scope["method"] not in ("GET", "HEAD"):
            return 405, b"Only GET and HEAD are served here.\n", ((b"allow", b"GET, HEAD"), *TEXT)
        if scope["path"] == "/health":
            return 200, b"ok\n", TEXT
        return 200, *await self._metrics(headers.get(b"accept", b"").decode("latin-1"))

    async def _metrics(self, accept: str) -> tuple[bytes, Headers]:
        # Not the library's own choice, which repeats what the client wrote and may fail at it.
        kind = OPEN if OPEN in accept else PLAIN
        async with self._making:
            made = self._made.get(kind)
            if made is None or self._clock() - made[0] >= FRESH_S:
                # What ended before somebody asked is in the answer, whichever worker has it still.
                await asyncio.sleep(2 * GATHERED_S)
                made = self._made[kind] = self._clock(), FORMATS[kind][1](self._registry)
        return made[1], ((b"content-type", FORMATS[kind][0].encode()),)


TEXT: Headers = ((b"content-type", b"text/plain; charset=utf-8"),)

"""Receive the answer of a sign-in on a port of this machine (RFC 8252 section 7.3)."""

import asyncio
import hmac
from collections.abc import Mapping
from types import TracebackType
from urllib.parse import parse_qsl, urlsplit

HOST = "127.0.0.1"
PATH = "/callback"
WITHIN_S = 300.0
"""How long a person may take to sign in."""
HEAD_S = 5.0
MAX_HEAD_BYTES = 16_384
CLOSING_PAGE = (
    b"<!doctype html><meta charset=utf-8><title>Gatepost</title><p>You can close this page."
)


class CallbackReceiver:
    """Listens on a free port; `answer` returns the parameters of the redirect."""

    _server: asyncio.Server

    def __init__(self) -> None:
        self._answers: asyncio.Queue[Mapping[str, str]] = asyncio.Queue(16)

    async def __aenter__(self) -> "CallbackReceiver":
        self._server = await asyncio.start_server(self._serve, HOST, 0, limit=MAX_HEAD_BYTES)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    @property
    def redirect_uri(self) -> str:
        """Return the redirect address."""
        return f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}{PATH}"

    async def answer(self, state: str) -> Mapping[str, str]:
        """
        Return the parameters of the redirect with this *state*; TimeoutError after five minutes.

        Any program and web page of this machine can send others, which are ignored.
        """
        async with asyncio.timeout(WITHIN_S):
            while True:
                callback = await self._answers.get()
                if hmac.compare_digest(callback.get("state", "").encode(), state.encode()):
                    return callback

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.decode("latin-1").split("\r\n")[0].split(" ")
            url = urlsplit(target)
            status, page = "404 Not Found", b""
            if method == "GET" and url.path == PATH and not self._answers.full():
                self._answers.put_nowait(dict(parse_qsl(url.query)))
                status, page = "200 OK", CLOSING_PAGE
            fields = "content-type: text/html\r\ncache-control: no-store\r\nconnection: close"
            answer = f"HTTP/1.1 {status}\r\n{fields}\r\ncontent-length: {len(page)}\r\n\r\n"
            writer.write(answer.encode() + page)
            await writer.drain()
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError):
            pass  # TimeoutError is an OSError; invalid requests get no answer
        finally:
            writer.close()

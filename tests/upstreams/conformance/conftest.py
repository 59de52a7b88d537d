"""What passes only the suite's own names to a gate that has the fixture server as an upstream."""

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.support.issuers import serving
from tests.support.processes import free_port
from tests.support.proxies import TokenProxy

NAME = "suite"
PREFIX = f"mcp_{NAME}__"
NAMING = {"tools/call", "prompts/get"}
"""The methods whose `name` the gate has changed."""
ENCODED = "=?base64?", "?="


class SuiteNames:
    """
    Stands before a gate and adds its prefix to the names of tools and prompts in requests.

    The prefix is removed from answers. The suite knows its tools by fixed names, and the gate adds
    the upstream's name to each. Nothing else of a request or an answer is changed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await body_of(receive)
        renamed, method = request_renamed(body)
        headers = [
            (name, header_renamed(value) if name == b"mcp-name" and method in NAMING else value)
            for name, value in scope["headers"]
        ]
        pending = [renamed]

        async def received() -> Message:
            if pending:
                return {"type": "http.request", "body": pending.pop(), "more_body": False}
            return await receive()

        await self._app({**scope, "headers": headers}, received, AnswerRenamer(send))


class AnswerRenamer:
    """Removes the prefix from an answer, also where it is split between two chunks."""

    def __init__(self, send: Send) -> None:
        self._send, self._held = send, b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [one for one in message["headers"] if one[0] != b"content-length"]
            await self._send({**message, "headers": kept})
            return
        data = (self._held + message.get("body", b"")).replace(PREFIX.encode(), b"")
        self._held = b""
        if message.get("more_body"):
            data, self._held = divided(data, PREFIX.encode())
        await self._send({**message, "body": data})


def divided(data: bytes, word: bytes) -> tuple[bytes, bytes]:
    """What can be sent on, and the end of *data* that may be the beginning of *word*."""
    for length in range(min(len(word) - 1, len(data)), 0, -1):
        if word.startswith(data[-length:]):
            return data[:-length], data[-length:]
    return data, b""


def request_renamed(body: bytes) -> tuple[bytes, str]:
    """A request with the gate's names, and its method; anything else stays as it is."""
    try:
        message: Any = json.loads(body)
        method, params = message["method"], message["params"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return body, ""
    if not isinstance(params, dict):
        return body, str(method)
    named = params if method in NAMING else params.get("ref")
    if not isinstance(named, dict) or not isinstance(named.get("name"), str):
        return body, str(method)
    named["name"] = PREFIX + named["name"]
    return json.dumps(message).encode(), str(method)


def header_renamed(value: bytes) -> bytes:
    """An `Mcp-Name` with the gate's name, in the encoding that it had."""
    text = value.decode("latin-1")
    if not (text.startswith(ENCODED[0]) and text.endswith(ENCODED[1])):
        return PREFIX.encode() + value
    try:
        plain = b64decode(text.removeprefix(ENCODED[0]).removesuffix(ENCODED[1]), validate=True)
    except binascii.Error:
        return value
    return f"{ENCODED[0]}{b64encode(PREFIX.encode() + plain).decode()}{ENCODED[1]}".encode()


async def body_of(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


@contextmanager
def with_suite_names(endpoint: str, token: str) -> Iterator[str]:
    """Run both proxies in front of a gate; yields the endpoint for the suite, on `localhost`."""
    port = free_port()
    own, parts = f"http://localhost:{port}", urlsplit(endpoint)
    upstream = f"{parts.scheme}://{parts.netloc}"
    app = SuiteNames(TokenProxy(own=own, upstream=upstream, token=token))
    with serving(app, port=port, lifespan="on"):
        yield f"{own}{parts.path}"

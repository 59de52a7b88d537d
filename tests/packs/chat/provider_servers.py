"""Providers of chat as small servers: webhooks that remember, and a real SMTP server."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope

from tests.support.asgi_server import AsgiServer
from tests.support.processes import free_port


class WebhookServer:
    """Answers 200, or what a test put at a path; remembers what came."""

    def __init__(self) -> None:
        self.came: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: dict[str, int] = {}
        self.gone = 0
        """Connections that were closed while they waited for an answer."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        self.came.append((scope["path"], read(body)))
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        if scope["path"].startswith("/slow"):
            async with asyncio.timeout(20):
                while (await receive())["type"] != "http.disconnect":
                    continue
            self.gone += 1
            return
        status = self.answers.get(scope["path"], 200)
        headers = [(b"location", b"http://127.0.0.1:1/")] if 300 <= status < 400 else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


def read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


@contextmanager
def webhook_server() -> Iterator[tuple[WebhookServer, str]]:
    """Listening; with `host:port`."""
    app = WebhookServer()
    server = AsgiServer(app).start()
    try:
        yield app, server.url.removeprefix("http://")
    finally:
        server.stop()


class MailServer:
    """Takes every mail."""

    def __init__(self) -> None:
        self.mails: list[tuple[Envelope, Message]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        self.mails.append((envelope, message_from_bytes(envelope.content)))
        return "250 taken"


@contextmanager
def mail_server() -> Iterator[tuple[MailServer, str]]:
    """A real SMTP server on loopback; with `host:port`."""
    server = MailServer()
    port = free_port()
    controller = Controller(server, hostname="127.0.0.1", port=port, ready_timeout=10)
    controller.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        controller.stop()

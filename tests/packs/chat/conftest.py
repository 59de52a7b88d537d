"""Providers of chat as small servers, and a Gatepost whose channels lead to them."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from typing import Any, NamedTuple

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope

from tests.packs.conftest import PackCaller, PackServer, SecretWriter, open_server
from tests.support.issuers import AsgiServer
from tests.support.processes import free_port


class WebhookServer:
    """Answers 200, or what a test put at a path; records the requests."""

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
    controller = Controller(server, hostname="127.0.0.1", port=port, ready_timeout=60)
    controller.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        controller.stop()


class ChatServers(NamedTuple):
    """The webhooks, the mail server and the Gatepost of these tests."""

    server: PackServer
    secrets: SecretWriter
    webhook_server: WebhookServer
    web: str
    """`host:port` of the webhooks."""
    mail_server: MailServer
    smtp: str

    def agent(self, protocol: Any, url: str = "") -> PackCaller:
        """Return an agent of a new tenant, whose channel `team` has that URL."""
        url = url or f"json://{self.web}/hook/t0ken-9f2c"
        return self.secrets.agent(self.server, protocol, TEAM_CHAT_URL=url)


CHANNELS = {
    "team": "secret:TEAM_CHAT_URL",
    "everybody": ["secret:TEAM_CHAT_URL", "secret:OTHER_CHAT_URL"],
}


@pytest.fixture(scope="module")
def chat_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServers]:
    """Running as long as the tests of a module do."""
    secrets = SecretWriter()
    with (
        webhook_server() as (web, web_host),
        mail_server() as (mail, smtp_host),
        open_server(
            tmp_path_factory.mktemp("chat"),
            ["chat"],
            network={"allow_hosts": [web_host, smtp_host]},
            packs={"chat": {"channels": CHANNELS, "timeout_s": 20, "max_parts": 3}},
            prepare=secrets.begin,
        ) as server,
    ):
        yield ChatServers(server, secrets, web, web_host, mail, smtp_host)

"""Messages reach people over both protocols, and a failure says what would work."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope

from gatepost_packs.chat import tools
from tests.packs.conftest import (
    HttpServer,
    PackCaller,
    PackServer,
    RecordedRequest,
    StubResponse,
    open_server,
)
from tests.support.client import request
from tests.support.measuring import each, eventually
from tests.support.processes import free_port


class WebhookServer(HttpServer):
    """Answers 200, or with the status that a test put at a path; `/slow…` is left open."""

    def __init__(self) -> None:
        super().__init__(self._answered)
        self.statuses: dict[str, int] = {}

    @property
    def received_requests(self) -> list[tuple[str, Any]]:
        """Return the path and the JSON of each request."""
        return [(request.path, request.json) for request in self.asked]

    def _answered(self, request: RecordedRequest) -> StubResponse | None:
        if request.path.startswith("/slow"):
            return None
        status = self.statuses.get(request.path, 200)
        headers = {"location": "http://127.0.0.1:1/"} if 300 <= status < 400 else {}
        return StubResponse(status, b"ok", headers)


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
    """Run a real SMTP server on loopback; yield it and its `host:port`."""
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
    web: WebhookServer
    mail_server: MailServer
    smtp: str

    def agent(self, protocol: Any, url: str = "") -> PackCaller:
        """Return an agent of a new tenant, whose channel `team` has that URL."""
        url = url or f"json://{self.web.place}/hook/t0ken-9f2c"
        return self.server.agent_with(protocol, TEAM_CHAT_URL=url)


CHANNELS = {
    "team": "secret:TEAM_CHAT_URL",
    "everybody": ["secret:TEAM_CHAT_URL", "secret:OTHER_CHAT_URL"],
}


@pytest.fixture(scope="module")
def chat_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServers]:
    """Yield the servers, which run until the tests of a module end."""
    with (
        WebhookServer() as web,
        mail_server() as (mail, smtp_host),
        open_server(
            tmp_path_factory.mktemp("chat"),
            ["chat"],
            network={"allow_hosts": [web.place, smtp_host]},
            packs={"chat": {"channels": CHANNELS, "timeout_s": 20, "max_parts": 3}},
        ) as server,
    ):
        yield ChatServers(server, web, mail, smtp_host)


pytestmark = pytest.mark.requirement("P6")


def test_a_provider_that_does_not_answer_ends_the_call(
    chat_servers: ChatServers, tmp_path: Path
) -> None:
    """The call ends after the timeout of the configuration."""
    with open_server(
        tmp_path,
        ["chat"],
        network={"allow_hosts": [chat_servers.web.place]},
        packs={"chat": {"channels": {"team": "secret:TEAM_CHAT_URL"}, "timeout_s": 1.5}},
    ) as server:
        url = f"json://{chat_servers.web.place}/slow?rto=60"
        agent = server.agent_with("rest", TEAM_CHAT_URL=url)
        reply = agent.call("chat_send", channel="team", message="x")

    assert reply.kind == "timeout"
    assert "did not answer within 1.5 seconds; it may have received the message" in (
        reply.failure or ""
    )


@each("result", ["['x']", "None", "{'parts': '1', 'of': '1'}", "{'problem': 'no'}"])
def test_a_worker_that_answers_a_value_of_another_type_has_failed(
    chat_servers: ChatServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: str
) -> None:
    """A message or a provider's response may have broken a library."""
    program = tmp_path / "worker.py"
    program.write_text(f"def answer(request):\n    return {result}\n", encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setattr(tools, "WORKER", program)
        reply = chat_servers.agent("rest").call("chat_send", channel="team", message="x")

    assert reply.kind == "timeout"
    assert "sending to it broke off; it may have received the message" in (reply.failure or "")


def test_a_cancelled_call_ends_the_worker(chat_servers: ChatServers) -> None:
    """The connection to the provider is closed, and nothing more is sent."""
    gone = chat_servers.web.abandoned
    agent = chat_servers.agent("rest", f"json://{chat_servers.web.place}/slow-one?rto=60")
    body = json.dumps({"channel": "team", "message": "x"}).encode()
    client = agent.gatepost.client
    head = [
        ("Host", client.authority),
        ("Authorization", f"Bearer {agent.token}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
    ]
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as caller:
        caller.sendall(request("POST", "/tool/chat_send/call", head, body))
        eventually(
            lambda: (
                chat_servers.web.received_requests[-1:]
                and chat_servers.web.received_requests[-1][0] == "/slow-one"
            ),
            within=20,
        )

    eventually(lambda: chat_servers.web.abandoned > gone, within=10)


@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_a_message_reaches_a_webhook(chat_servers: ChatServers, protocol: Any) -> None:
    """The webhook gets the text unchanged, and the answer names the channel's provider."""
    text = "Deploy *done* <@U1> :smile: \\n @everyone &amp; ü"
    reply = chat_servers.agent(protocol).call(
        "chat_send", channel="team", message=text, title="News"
    )

    path, received_requests = chat_servers.web.received_requests[-1]
    assert reply.failure is None, reply.failure
    assert reply.value == {
        "channel": "team",
        "delivered": [{"service": "JSON", "parts": 1}],
        "failed": [],
    }
    assert (path, received_requests["message"], received_requests["title"]) == (
        "/hook/t0ken-9f2c",
        text,
        "News",
    )


def test_a_message_reaches_a_mailbox(chat_servers: ChatServers) -> None:
    """Gatepost sends it over SMTP: HTML in it stays text, and a title adds no header."""
    url = f"mailto://{chat_servers.smtp}/?mode=insecure&from=agent@example.com&to=ada@example.com"
    agent = chat_servers.agent("rest", url)

    reply = agent.call(
        "chat_send", channel="team", message="<b>1 < 2</b>", title="Hi\r\nBcc: eve@example.com"
    )

    assert reply.failure is None, reply.failure
    envelope, mail = chat_servers.mail_server.mails[-1]
    texts = [part.get_payload(decode=True) for part in mail.walk() if not part.is_multipart()]
    assert (envelope.rcpt_tos, mail["bcc"]) == (["ada@example.com"], None)
    assert (mail.get_content_type(), mail["subject"]) == ("text/plain", "Hi Bcc: eve@example.com")
    assert [text.strip() for text in texts] == [b"<b>1 < 2</b>"]


def test_a_slack_compatible_webhook_gets_text(chat_servers: ChatServers) -> None:
    """The Mattermost plugin posts to a self-hosted server under our name, without a picture."""
    agent = chat_servers.agent(
        "mcp", f"mmost://{chat_servers.web.place}/3ccdd113474722377935511fc85d3dd4"
    )

    reply = agent.call("chat_send", channel="team", message="Up *again*")

    path, received_requests = chat_servers.web.received_requests[-1]
    assert reply.value["delivered"] == [{"service": "Mattermost", "parts": 1}]
    assert (path, received_requests["text"]) == (
        "/hooks/3ccdd113474722377935511fc85d3dd4",
        "Up *again*",
    )
    assert "github" not in str(received_requests)


def test_a_long_message_is_sent_in_several_parts(chat_servers: ChatServers) -> None:
    """If a provider takes only short messages, Gatepost sends several or refuses the call."""
    chat_servers.web.asked.clear()
    agent = chat_servers.agent(
        "rest", f"mmost://{chat_servers.web.place}/3ccdd113474722377935511fc85d3dd4"
    )
    text = "0123456789 " * 900

    reply = agent.call("chat_send", channel="team", message=text)
    longer = agent.call("chat_send", channel="team", message=text * 2)

    assert reply.value["delivered"] == [{"service": "Mattermost", "parts": 3}]
    received_requests = " ".join(
        received_requests["text"] for _, received_requests in chat_servers.web.received_requests
    )
    assert received_requests.replace(" ", "") == text.replace(" ", "")
    assert longer.kind == "validation"
    assert re.search("would become [5-6] messages there, and at most 3", longer.failure or "")


def test_a_channel_with_several_addresses_reaches_all_it_can(chat_servers: ChatServers) -> None:
    """The answer names each address that refused the message; the others get it."""
    url = f"json://{chat_servers.web.place}/one"
    agent = chat_servers.agent("mcp", url)
    chat_servers.server.put_secrets(
        agent.tenant, OTHER_CHAT_URL=f"json://{chat_servers.web.place}/broken"
    )
    chat_servers.web.statuses["/broken"] = 503

    value = agent.call("chat_send", channel="everybody", message="x").value

    assert value["delivered"] == [{"service": "JSON", "parts": 1}]
    assert value["failed"] == [{"service": "JSON", "reason": "it fails at the moment (HTTP 503)"}]


def test_a_channel_that_is_bound_to_hosts_is_refused(chat_servers: ChatServers) -> None:
    """Its hosts are only known by opening it, so Gatepost sends nothing."""
    agent = chat_servers.agent("rest", f"json://{chat_servers.web.place}/one")
    chat_servers.server.put_secrets(
        agent.tenant, "example.com", TEAM_CHAT_URL=f"json://{chat_servers.web.place}/one"
    )
    chat_servers.web.asked.clear()

    reply = agent.call("chat_send", channel="team", message="x")

    assert reply.kind == "denied"
    assert "is bound to example.com, and it cannot be told where" in str(reply.failure)
    assert chat_servers.web.received_requests == []


# What the channel's secret holds ({web} and {smtp} are allowed), what the provider answers, and
# what is heard of it.
FAILING_CALLS: list[tuple[str, int, str, str]] = [
    ("json://{web}/a/t0ken-9f2c", 413, "validation", "refuses this message .HTTP 413"),
    ("json://{web}/a/t0ken-9f2c", 429, "rate_limit", "no more messages for now .HTTP 429"),
    ("json://{web}/a/t0ken-9f2c", 302, "denied", "it refuses the request .HTTP 302"),
    (
        "jsons://[::ffff:127.0.0.1]/t0ken-9f2c",
        200,
        "denied",
        "messages may not be sent to its server",
    ),
    (
        "slack://t0ken-9f2c",
        200,
        "denied",
        "Apprise cannot use the URL of the channel; an operator can correct",
    ),
    ("t0ken-9f2c without a scheme", 200, "denied", "it is not an Apprise URL"),
    ("dbus://t0ken-9f2c", 200, "denied", "dbus:// shows messages on the server itself"),
    ("syslog://t0ken-9f2c", 200, "denied", "syslog:// shows messages on the server"),
    ("irc://{web}/t0ken-9f2c", 200, "denied", "irc:// opens connections that the rules"),
    ("jsons://{web}/t0ken-9f2c?verify=no", 200, "denied", "turns off certificate checks"),
    ("discord://t0ken-9f2c/x?template=/etc/passwd", 200, "denied", "template names a file"),
]


@each(
    ("url", "status", "kind", "expected_text"),
    FAILING_CALLS,
    ids=[f"{url} {status}" for url, status, *_ in FAILING_CALLS],
)
def test_a_failure_explains_the_problem_without_the_url(
    chat_servers: ChatServers, url: str, status: int, kind: str, expected_text: str
) -> None:
    """It names the channel; the URL is a secret."""
    chat_servers.web.statuses["/a/t0ken-9f2c"] = status
    agent = chat_servers.agent(
        "rest", url.format(web=chat_servers.web.place, smtp=chat_servers.smtp)
    )

    reply = agent.call("chat_send", channel="team", message="x")

    assert reply.failure is not None
    assert re.search(expected_text, reply.failure), reply.failure
    assert reply.kind == kind
    assert "9f2c" not in reply.failure


def test_a_failure_is_a_tool_result_over_mcp(chat_servers: ChatServers) -> None:
    """The failure is a tool result, so that the model reads it."""
    chat_servers.web.statuses["/a"] = 503

    reply = chat_servers.agent("mcp", f"json://{chat_servers.web.place}/a").call(
        "chat_send", channel="team", message="x"
    )

    assert reply.failure == "Nothing was sent to team. JSON: it fails at the moment (HTTP 503)."


@each("protocol", ["mcp", "rest"])
@each(
    ("arguments", "kind", "expected_text"),
    [
        ({"channel": "taem"}, "not_found", "no channel 'taem'. There are: team, everybody"),
        ({"channel": "everybody"}, "not_found", "no secret OTHER_CHAT_URL"),
        ({"message": ""}, "validation", "message"),
        ({"message": " \n"}, "validation", "`message` is empty"),
        ({"message": "x" * 20_001}, "validation", "message"),
        ({"title": "x" * 251}, "validation", "title"),
    ],
)
def test_a_wrong_argument_is_named(
    chat_servers: ChatServers,
    protocol: Any,
    arguments: dict[str, str],
    kind: str,
    expected_text: str,
) -> None:
    """So is a missing secret; nothing is sent before both are checked."""
    chat_servers.web.asked.clear()
    usual = {"channel": "team", "message": "x"}

    reply = chat_servers.agent(protocol).call("chat_send", **(usual | arguments))

    assert re.search(expected_text, reply.failure or ""), reply.failure
    assert reply.kind in (None, kind)
    assert chat_servers.web.received_requests == []


def test_tenants_with_the_same_channel_name_are_isolated(chat_servers: ChatServers) -> None:
    """Each has its own URL under the same name."""
    chat_servers.web.asked.clear()
    workers = [
        chat_servers.agent("rest", f"json://{chat_servers.web.place}/of-{name}")
        for name in ("one", "two")
    ]

    for name, agent in zip(("one", "two"), workers, strict=True):
        assert agent.call("chat_send", channel="team", message=name).failure is None

    assert [
        (path, received_requests["message"])
        for path, received_requests in chat_servers.web.received_requests
    ] == [
        ("/of-one", "one"),
        ("/of-two", "two"),
    ]

"""A call does not wait for a provider that does not answer, and no worker outlives its call."""

import json
import socket
from pathlib import Path

import pytest

from tests.packs.chat.conftest import ChatServers
from tests.packs.conftest import SecretWriter, open_server
from tests.support.client import request
from tests.support.measuring import eventually

pytestmark = pytest.mark.requirement("P6")


def test_a_provider_that_does_not_answer_ends_the_call(
    chat_servers: ChatServers, tmp_path: Path
) -> None:
    """The call ends after the timeout of the configuration."""
    secrets = SecretWriter()
    with open_server(
        tmp_path,
        ["chat"],
        network={"allow_hosts": [chat_servers.web]},
        packs={"chat": {"channels": {"team": "secret:TEAM_CHAT_URL"}, "timeout_s": 1.5}},
        prepare=secrets.begin,
    ) as server:
        url = f"json://{chat_servers.web}/slow?rto=60"
        agent = secrets.agent(server, "rest", TEAM_CHAT_URL=url)
        reply = agent.call("chat_send", channel="team", message="x")

    assert reply.kind == "timeout"
    assert "did not answer within 1.5 seconds; it may have received the message" in (
        reply.failure or ""
    )


def test_a_caller_that_leaves_ends_the_worker(chat_servers: ChatServers) -> None:
    """Its connection to the provider is closed, and nothing more is sent."""
    gone = chat_servers.webhook_server.gone
    agent = chat_servers.agent("rest", f"json://{chat_servers.web}/slow-one?rto=60")
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
                chat_servers.webhook_server.came[-1:]
                and chat_servers.webhook_server.came[-1][0] == "/slow-one"
            ),
            within=20,
        )

    eventually(lambda: chat_servers.webhook_server.gone > gone, within=10)

"""An upstream repeats what it was sent to sign in with, in every place that it can write to."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from gatepost.telemetry.exposition import registry_of
from tests.attacks.upstreams.conftest import (
    META,
    UpstreamDeployment,
    UpstreamUser,
    deployment_of,
    text_result,
    tool,
)
from tests.support.internet import (
    EVENTS,
    Posted,
    ScriptedServer,
    begin_answer,
    error_answer,
    event_bytes,
    finish_answer,
    result_answer,
    send_final_event,
    send_more,
)
from tests.support.issuers import AsgiServer, Idp, Receive, Send
from tests.support.issuers import Scope as AsgiScope

SECRET = "client-secret-0123456789-abcdef"
TOKEN = "access-token-9876543210-fedcba"
HEADER = "header-value-5432109876-abcdef"
SECRETS = (SECRET, TOKEN, HEADER)
ECHOED_TEXT = f"I was sent {TOKEN} and {HEADER}, and I guess {SECRET}"
FORM = {"type": "object", "properties": {"ok": {"type": "boolean", "description": ECHOED_TEXT}}}
QUESTION = {"message": ECHOED_TEXT, "requestedSchema": FORM}


async def login(scope: AsgiScope, receive: Receive, send: Send) -> None:
    """Serve a token endpoint."""
    body = {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}
    await begin_answer(send)
    await finish_answer(send, json.dumps(body).encode())


@pytest.fixture
def deployment(
    idp: Idp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[UpstreamDeployment]:
    """Serve a gate that signs in at its upstream with a token and a header, and stores in files."""
    monkeypatch.setenv("ECHO_SECRET", SECRET)
    monkeypatch.setenv("ECHO_HEADER", HEADER)
    issuer = AsgiServer(login).start()
    credential = {
        "type": "client",
        "tenants": ["*"],
        "token_endpoint": f"{issuer.url}/token",
        "client_id": "gatepost",
        "client_secret": "env:ECHO_SECRET",
    }
    try:
        with deployment_of(
            idp,
            good={
                "credential": "echo",
                "headers": {"X-Team": "env:ECHO_HEADER"},
                "allow": ["elicitation", "logging"],
                "pin": "off",
                "idle_s": 5,
            },
            hosts=[issuer.url.split("/")[2]],
            credentials={"echo": credential},
            storage={"database": f"sqlite:///{tmp_path}/gatepost.db"},
        ) as scene:
            yield scene
    finally:
        issuer.stop()


def refresh_upstream(deployment: UpstreamDeployment, person: UpstreamUser) -> None:
    (upstream,) = person.ask("GET", "/v1/mcp-servers").json["data"]
    assert person.refresh(upstream["id"]).status == 200


def assert_secrets_hidden(deployment: UpstreamDeployment, folder: Path, *answers: Any) -> None:
    """Assert that no secret is in an answer, the log, the metrics, or a file of the database."""
    metrics = generate_latest(registry_of(deployment.gate.shared_metrics, version="1")).decode()
    texts = [*(str(answer) for answer in answers), deployment.gate.log(), metrics]
    for number, text in enumerate(texts):
        for secret in SECRETS:
            assert secret not in text, (number, text[max(text.index(secret) - 200, 0) :][:400])
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for file in files:
        content = file.read_bytes()
        for secret in SECRETS:
            at = content.find(secret.encode())
            assert at < 0, (file.name, content[max(at - 200, 0) : at + 100])


def assert_secrets_sent(upstream: ScriptedServer) -> None:
    """Assert that the upstream was sent the secrets, so it can repeat them."""
    headers = upstream.of("tools/list")[-1].headers
    assert headers["authorization"] == f"Bearer {TOKEN}"
    assert headers["x-team"] == HEADER


async def answer_after_messages(posted: Posted, send: Send) -> None:
    """Send progress and log messages, then an answer."""
    await begin_answer(send, kind=EVENTS)
    token = posted.body["params"]["_meta"].get("progressToken")
    progress = {"progressToken": token, "progress": 1, "message": ECHOED_TEXT}
    logged = {
        "level": "error",
        "logger": ECHOED_TEXT,
        "data": {"said": ECHOED_TEXT, ECHOED_TEXT: [ECHOED_TEXT]},
    }
    for method, params in (("progress", progress), ("message", logged)):
        note = {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}
        await send_more(send, event_bytes(note))
    await finish_answer(
        send,
        event_bytes(
            send_final_event(
                posted, text_result(ECHOED_TEXT) | {"structuredContent": {ECHOED_TEXT: ECHOED_TEXT}}
            )
        ),
    )


def test_secrets_echoed_in_answers_progress_and_logs_are_redacted(
    deployment: UpstreamDeployment, tmp_path: Path
) -> None:
    """The caller gets each message of the upstream without the secret."""
    upstream, user = deployment.upstream_app.upstreams["good"], deployment.of("acme")
    assert_secrets_sent(upstream)
    upstream.answers["tools/call"] = answer_after_messages
    meta = {
        META + "clientCapabilities": {},
        META + "logLevel": "debug",
        "progressToken": "mine",
    }
    call = {"name": "mcp_good__act", "arguments": {}, "_meta": meta}
    raw = deployment.gate.client.ask(user.token, "tools/call", call).body.decode()
    for part in ("notifications/progress", "notifications/message", "structuredContent"):
        assert part in raw
    assert raw.count("REDACTED") >= 6
    heard = [raw, user.call("mcp_good__act").raw.body]
    upstream.answers["tools/call"] = error_answer(
        -32603, ECHOED_TEXT, data={ECHOED_TEXT: ECHOED_TEXT}
    )
    heard += [user.run("mcp_good__act"), user.call("mcp_good__act").raw.body]
    upstream.answers["tools/call"] = result_answer(text_result(ECHOED_TEXT) | {"isError": True})
    heard += [user.run("mcp_good__act"), user.call("mcp_good__act").raw.body]
    link = {"type": "resource_link", "uri": f"x://{TOKEN}", "name": ECHOED_TEXT}
    upstream.answers["tools/call"] = result_answer({"content": [link, {"type": ECHOED_TEXT}]})
    heard += [user.run("mcp_good__act")]
    key = ("Idempotency-Key", "the-same-key-every-time")
    heard += [user.call("mcp_good__act", {}, key).raw.body for _ in range(2)]
    assert_secrets_hidden(deployment, tmp_path, *heard)


@pytest.mark.parametrize("era", ["modern", "session"])
def test_secrets_echoed_in_client_requests_are_redacted(
    deployment: UpstreamDeployment, tmp_path: Path, era: str
) -> None:
    """The caller gets the client request without the secret; the upstream's state is sealed."""
    upstream, user = deployment.upstream_app.upstreams["good"], deployment.of("acme")
    if era == "modern":
        request = {"method": "elicitation/create", "params": QUESTION}
        upstream.answers["tools/call"] = result_answer(
            {
                "resultType": "input_required",
                "inputRequests": {TOKEN: request},
                "requestState": ECHOED_TEXT,
            }
        )
    else:
        upstream.has_sessions("one", "two", "three")

        async def ask(posted: Posted, send: Send) -> None:
            if "mcp-session-id" not in posted.headers:
                await error_answer(-32022, "unsupported", 400)(posted, send)
                return
            params = {"jsonrpc": "2.0", "id": 7, "method": "elicitation/create"}
            await begin_answer(send, kind=EVENTS)
            await send_more(send, event_bytes(params | {"params": QUESTION}))
            while (await posted.receive())["type"] != "http.disconnect":
                pass

        upstream.answers["tools/call"] = ask
        upstream.answers["logging/setLevel"] = result_answer({})
        user.run("mcp_good__act")  # finds out that the server speaks another revision by now
    heard = user.run("mcp_good__act")
    assert heard["result"]["resultType"] == "input_required", heard
    assert "REDACTED" in str(heard)
    assert_secrets_hidden(deployment, tmp_path, heard, user.call("mcp_good__act").raw.body)


def test_secrets_echoed_in_catalogues_are_redacted(
    deployment: UpstreamDeployment, tmp_path: Path
) -> None:
    """A definition whose name contains a secret is left out."""
    upstream, user = deployment.upstream_app.upstreams["good"], deployment.of("acme")
    upstream.answers["server/discover"] = result_answer(
        {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}, "prompts": {}, "resources": {}, ECHOED_TEXT: {}},
            "instructions": ECHOED_TEXT,
            "resultType": "complete",
            "serverInfo": {"name": ECHOED_TEXT, "version": ECHOED_TEXT},
        }
    )
    upstream.answers["tools/list"] = result_answer(
        {
            "tools": [
                tool(TOKEN),
                tool("b", description=ECHOED_TEXT, title=ECHOED_TEXT, _meta={"ui": ECHOED_TEXT}),
                tool(),
            ]
        }
    )
    upstream.answers["prompts/list"] = result_answer(
        {"prompts": [{"name": "p", "description": ECHOED_TEXT, "arguments": [{"name": HEADER}]}]}
    )
    upstream.answers["resources/list"] = result_answer(
        {"resources": [{"uri": f"x://{HEADER}", "name": "r"}]}
    )
    refresh_upstream(deployment, user)
    deployment.offered(user, "mcp_good__b")
    heard: list[Any] = [user.rpc(f"{kind}/list", {}) for kind in ("tools", "prompts", "resources")]
    heard += [user.ask("GET", "/v1/mcp-servers").raw.body, user.tools().raw.body]
    upstream.answers["tools/list"] = error_answer(-32603, ECHOED_TEXT, data=ECHOED_TEXT)
    (registered_server,) = user.ask("GET", "/v1/mcp-servers").json["data"]
    heard += [user.refresh(registered_server["id"]).raw.body]
    heard += [user.ask("GET", f"/v1/mcp-servers/{registered_server['id']}").raw.body]
    assert "REDACTED" in str(heard)
    assert_secrets_hidden(deployment, tmp_path, *heard)

"""The official clients wait for a decision without any code for it."""

import json
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from gatepost import CallContext, Pack
from gatepost.policy.approvals.approval_request import ApprovalRequest, Operator
from tests.clients.conftest import Tasks
from tests.support.client import RestClient
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.programs import BrowserUser, run_typescript_client
from tests.support.server import Server, issuer_settings, running_server

pack = Pack("signing")


@pack.tool()
async def sign(ctx: CallContext, label: str) -> str:
    """Sign something, once a person has approved it."""
    SignedLabels.labels[label] += 1
    return f"signed {label}"


class SignedLabels:
    """The labels that were signed, and how often."""

    labels: Counter[str] = Counter()


WITHIN_S = 30
APPROVER = Operator("nobody in particular")


class ApprovalServer:
    """The server, a token for it, and its approvers."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.token = server.token()
        self.url = server.client.resource

    def waits(self, label: str) -> ApprovalRequest | None:
        """Return the request for this label, if it waits."""
        service = self.server.services.approvals
        for request in self.server.run(service.waiting("acme")):
            if json.loads(request.arguments)["label"] == label:
                return request
        return None

    def decide(self, label: str) -> None:
        """Wait until a call asks for it; then approve it, or reject what is called so."""
        eventually(lambda: self.waits(label), within=WITHIN_S)
        request, service = self.waits(label), self.server.services.approvals
        assert request is not None
        if label.startswith("bad"):
            self.server.run(service.reject("acme", request.id, APPROVER, "It is bad."))
        else:
            self.server.run(service.approve("acme", request.id, APPROVER))

    def streams(self) -> int:
        """Return how many answers are open streams."""
        return len(self.server.services.streams)

    @contextmanager
    def deciding(
        self, *labels: str, once: Callable[[int], object] = lambda decided: True
    ) -> Iterator[None]:
        """
        Decide about these requests in a thread, one after the other, during the block.

        Each as soon as it waits, and *once* holds for how many were decided before.
        """
        failed: list[BaseException] = []

        def decide() -> None:
            try:
                for decided, label in enumerate(labels):
                    eventually(partial(once, decided), within=WITHIN_S)
                    self.decide(label)
            except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
                failed.append(error)

        approver = threading.Thread(target=decide, daemon=True)
        approver.start()
        yield
        approver.join(WITHIN_S)
        assert not approver.is_alive()
        assert not failed, failed


@contextmanager
def open_approval_server(folder: Path, **settings: Any) -> Iterator[ApprovalServer]:
    """Serve the tool that needs approval, and a dashboard, which is where pages are."""
    (folder / "secret").write_text("a-secret-of-the-dashboard", encoding="utf-8")
    page = {"client_id": "gatepost-dashboard", "client_secret": f"file:{folder / 'secret'}"}
    roles = {"approver": {"claim": "roles", "value": "approver"}}
    usual: dict[str, Any] = {
        "tools": {"load": [__name__]},
        "tenancy": {"create_on_first_use": True},
        "approvals": {"require": ["sign"]},
    }
    with (
        Idp() as idp,
        running_server(
            idp, [issuer_settings(idp, dashboard=page, roles=roles)], **(usual | settings)
        ) as server,
    ):
        yield ApprovalServer(server)


@pytest.fixture(scope="module")
def server(
    working_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApprovalServer]:
    with open_approval_server(tmp_path_factory.mktemp("server")) as server:
        yield server


class ApprovingUser:
    """The person at a Python client, who opens every page that it is shown."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.told: list[str | None] = []

    async def open_page(
        self, context: object, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams)
        self.pages.append(params.url)
        return types.ElicitResult(action="accept")

    async def within_task(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.pages.append(params["url"])
        return {"action": "accept"}

    async def hear(self, progress: float, total: float | None, message: str | None) -> None:
        self.told.append(message)


@asynccontextmanager
async def connected(server: ApprovalServer, mode: str, **options: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {server.token}"}
    with anyio.fail_after(WITHIN_S):
        async with (
            httpx2.AsyncClient(headers=headers, timeout=WITHIN_S, trust_env=False) as http,
            Client(
                streamable_http_client(server.url, http_client=http), mode=mode, **options
            ) as client,
        ):
            yield client


def outcome_of(result: types.CallToolResult) -> tuple[bool, str]:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return result.is_error, block.text


def labels() -> list[str]:
    """Return one label to approve and one to reject, new in every test."""
    return [f"good-{uuid.uuid4()}", f"bad-{uuid.uuid4()}"]


@pytest.mark.requirement("A7", "A8")
@pytest.mark.parametrize("way", ["pages", "tasks", "tasks and pages", "nothing"])
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a7_the_python_client_waits_and_gets_the_decision(
    server: ApprovalServer, mode: str, way: str
) -> None:
    """With pages, tasks, both or neither, the client makes one call and gets the outcome."""
    person = ApprovingUser()
    options: dict[str, Any] = {}
    if "pages" in way:
        options["elicitation_callback"] = person.open_page
    if "tasks" in way:
        options["extensions"] = [Tasks(person.within_task)]
    approved, bad = labels()
    opens = "pages" in way

    def is_shown(decided: int) -> bool:
        return not opens or len(person.pages) > decided

    with server.deciding(approved, bad, once=is_shown):
        async with connected(server, mode, **options) as client:
            signed, refused = [
                outcome_of(
                    await client.call_tool("sign", {"label": label}, progress_callback=person.hear)
                )
                for label in (approved, bad)
            ]

    assert signed == (False, f"signed {approved}")
    assert refused[0]
    assert "It is bad." in refused[1]
    assert (len(person.pages) >= 2) is opens
    assert all(page.startswith(server.url.removesuffix("/mcp")) for page in person.pages)
    if way == "nothing":
        assert "approval" in str(person.told[0])


@pytest.mark.slow
@pytest.mark.requirement("A7", "A8")
@pytest.mark.parametrize("pages", [True, False])
@pytest.mark.parametrize("mode", ["1.x", "2.x legacy", "2.x auto"])
def test_a7_the_typescript_clients_wait_and_get_the_decision(
    server: ApprovalServer, mode: str, *, pages: bool
) -> None:
    """Both major versions, for clients that open pages and clients that do not."""
    approved, bad = labels()
    is_held = mode != "2.x auto"
    with server.deciding(approved, bad, once=lambda decided: server.streams() or not is_held):
        report = run_typescript_client(
            "waiting.mjs",
            BrowserUser(),
            url=server.url,
            token=server.token,
            mode=mode,
            labels=[approved, bad],
            pages=pages,
        )

    (first, text), (second, why) = report["said"]
    assert (first, text, second) == (False, f"signed {approved}", True)
    assert "It is bad." in why
    assert (len(report["asked"]) >= 2) is pages


@pytest.mark.requirement("A7", "A8", "O5", "O12")
def test_a7_rest_answers_a_waiting_call_with_a_retry_time(server: ApprovalServer) -> None:
    """The retry time is in body and header; the key stays unused, and the approved call runs."""
    rest_client, (approved, bad) = RestClient(server.server, server.token), labels()
    key = ("Idempotency-Key", str(uuid.uuid4()))
    waits = [rest_client.call("sign", {"label": approved}, key) for _ in range(2)]
    server.decide(approved)
    signed = [rest_client.call("sign", {"label": approved}, key) for _ in range(2)]
    rest_client.call("sign", {"label": bad})
    server.decide(bad)
    refused = rest_client.call("sign", {"label": bad})

    for wait in waits:
        assert wait.error == (503, "approval_pending")
        assert wait.raw.field("Retry-After") == str(wait.json["retry_after"])
        assert "/dashboard/approvals/" in wait.json["message"]
    assert [answer.json for answer in signed] == [{"result": f"signed {approved}"}] * 2
    assert refused.error == (403, "denied")
    assert "It is bad." in refused.json["message"]


@pytest.mark.requirement("A7")
def test_a7_a_machines_call_waits_for_a_person_too(server: ApprovalServer) -> None:
    """The call has a token of client credentials, whose subject is the client."""
    [label] = labels()[:1]
    token = server.server.token(sub="agents", client_id="agents")
    rest_client = RestClient(server.server, token)
    waits = rest_client.call("sign", {"label": label})
    wait = server.waits(label)
    server.decide(label)

    assert waits.error == (503, "approval_pending")
    assert wait is not None
    assert (wait.caller.kind, wait.by) == ("client", (("role:approver",),))
    assert rest_client.call("sign", {"label": label}).json == {"result": f"signed {label}"}

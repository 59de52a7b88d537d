"""The official clients wait until somebody has decided, with nothing written for it."""

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp import types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.clients.sdk_clients import Tasks
from tests.policy.waiting.site import Site, open_site
from tests.rest.clients import Octopus
from tests.support.browser import Person
from tests.support.node import walk_typescript

WITHIN_S = 30


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


class Visitor:
    """The person at a Python client, who opens every page that it is shown."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.told: list[str | None] = []

    async def visit(self, context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams)
        self.pages.append(params.url)
        return types.ElicitResult(action="accept")

    async def within_task(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.pages.append(params["url"])
        return {"action": "accept"}

    async def hear(self, progress: float, total: float | None, message: str | None) -> None:
        self.told.append(message)


@asynccontextmanager
async def connected(site: Site, mode: str, **options: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {site.token}"}
    with anyio.fail_after(WITHIN_S):
        async with (
            httpx2.AsyncClient(headers=headers, timeout=WITHIN_S, trust_env=False) as http,
            Client(
                streamable_http_client(site.url, http_client=http), mode=mode, **options
            ) as client,
        ):
            yield client


def said(result: types.CallToolResult) -> tuple[bool, str]:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return result.is_error, block.text


def labels() -> list[str]:
    """One to be approved and one to be rejected, new in every test."""
    return [f"good-{uuid.uuid4()}", f"bad-{uuid.uuid4()}"]


@pytest.mark.requirement("A7", "A8")
@pytest.mark.parametrize("way", ["pages", "tasks", "tasks and pages", "nothing"])
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a7_the_python_client_waits_and_gets_what_was_decided(
    site: Site, mode: str, way: str
) -> None:
    """Whatever it declares: it makes one call, and shows its person where it is decided."""
    person = Visitor()
    options: dict[str, Any] = {}
    if "pages" in way:
        options["elicitation_callback"] = person.visit
    if "tasks" in way:
        options["extensions"] = [Tasks(person.within_task)]
    good, bad = labels()
    opens = "pages" in way

    def shown(decided: int) -> bool:
        return not opens or len(person.pages) > decided

    with site.deciding(good, bad, once=shown):
        async with connected(site, mode, **options) as client:
            signed, refused = [
                said(await client.call_tool("sign", {"label": one}, progress_callback=person.hear))
                for one in (good, bad)
            ]

    assert signed == (False, f"signed {good}")
    assert refused[0]
    assert "It is bad." in refused[1]
    assert (len(person.pages) >= 2) is opens
    assert all(page.startswith(site.url.removesuffix("/mcp")) for page in person.pages)
    if way == "nothing":
        assert "approval" in str(person.told[0])


@pytest.mark.slow
@pytest.mark.requirement("A7", "A8")
@pytest.mark.parametrize("pages", [True, False])
@pytest.mark.parametrize("mode", ["1.x", "2.x legacy", "2.x auto"])
def test_a7_the_typescript_clients_wait_and_get_what_was_decided(
    site: Site, mode: str, *, pages: bool
) -> None:
    """Both generations, with pages to open and without."""
    good, bad = labels()
    held = mode != "2.x auto"
    with site.deciding(good, bad, once=lambda decided: site.streams() or not held):
        report = walk_typescript(
            "waiting.mjs",
            Person(),
            url=site.url,
            token=site.token,
            mode=mode,
            labels=[good, bad],
            pages=pages,
        )

    (first, text), (second, why) = report["said"]
    assert (first, text, second) == (False, f"signed {good}", True)
    assert "It is bad." in why
    assert (len(report["asked"]) >= 2) is pages


@pytest.mark.requirement("A7", "A8", "O5", "O12")
def test_a7_rest_says_when_to_come_back(site: Site) -> None:
    """At once, in the body and in a header; the key is not spent, and what is approved is done."""
    octopus, (good, bad) = Octopus(site.house, site.token), labels()
    key = ("Idempotency-Key", str(uuid.uuid4()))
    waits = [octopus.call("sign", {"label": good}, key) for _ in range(2)]
    site.decide(good)
    signed = [octopus.call("sign", {"label": good}, key) for _ in range(2)]
    octopus.call("sign", {"label": bad})
    site.decide(bad)
    refused = octopus.call("sign", {"label": bad})

    for one in waits:
        assert one.error == (503, "approval_pending")
        assert one.raw.field("Retry-After") == str(one.json["retry_after"])
        assert "/dashboard/approvals/" in one.json["message"]
    assert [one.json for one in signed] == [{"result": f"signed {good}"}] * 2
    assert refused.error == (403, "denied")
    assert "It is bad." in refused.json["message"]


@pytest.mark.requirement("A7")
def test_a7_a_machines_call_waits_for_a_person_too(site: Site) -> None:
    """With a token of client credentials, whose subject is its client."""
    [good] = labels()[:1]
    token = site.house.token(sub="agents", client_id="agents")
    octopus = Octopus(site.house, token)
    waits = octopus.call("sign", {"label": good})
    asked = site.waits(good)
    site.decide(good)

    assert waits.error == (503, "approval_pending")
    assert asked is not None
    assert (asked.caller.kind, asked.by) == ("client", (("role:approver",),))
    assert octopus.call("sign", {"label": good}).json == {"result": f"signed {good}"}

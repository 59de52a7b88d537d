"""Batches and tasks stop when their caller loses its authorization."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost import CallContext, Pack
from gatepost.check.pack_loading import load
from gatepost.config.settings import Config
from gatepost.mcp.sessions.batch import BATCH_S
from gatepost.runtime.startup import opened
from gatepost.secrets.keyring import KeyRing
from gatepost_authz.caller import TenantContext
from tests.support.endpoint import JSON, EndpointClient, a_caller, message
from tests.support.issuers import Idp
from tests.support.server import configuration, issuer_settings

WITHIN_S = 10
NUMBERS = range(1, 6)


class ActingServer:
    """A server whose tool `act` notes its argument, and at the second waits for ``go_on``."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.second, self.go_on = asyncio.Event(), asyncio.Event()
        pack = Pack("acts")

        @pack.tool()
        async def act(ctx: CallContext, number: int) -> str:
            """Have an effect."""
            self.ran.append(number)
            if number == 2:
                self.second.set()
                await self.go_on.wait()
            return "done"

        self.client = EndpointClient(pack.tools.values())

    async def batch(self, session: str) -> list[Any]:
        """Return the answers to five calls."""
        calls = [
            json.loads(
                message("tools/call", {"name": "act", "arguments": {"number": n}}, identity=n)
            )
            for n in NUMBERS
        ]
        answered = await self.client.within(session, json.dumps(calls).encode())
        assert answered.status == 200
        parts: list[Any] = answered.json
        return parts


async def token_expires(server: ActingServer, session: str) -> None:
    server.client.clock.now += 60


async def time_passes(server: ActingServer, session: str) -> None:
    server.client.clock.now += BATCH_S


async def tenant_goes(server: ActingServer, session: str) -> None:
    server.client.task_runner.is_out = lambda caller: caller.tenant_id == "acme"


async def session_ends(server: ActingServer, session: str) -> None:
    ended = await server.client.send(b"", [JSON, ("mcp-session-id", session)], verb="DELETE")
    assert ended.status == 204


LOSSES_OF_ACCESS = [token_expires, time_passes, tenant_goes, session_ends]


@pytest.mark.parametrize("happens", LOSSES_OF_ACCESS)
async def test_a_batch_stops_when_its_caller_loses_authorization(happens: Any) -> None:
    """Expiry, the end of the session and a suspension stop the calls that have not begun."""
    server = ActingServer()
    server.client.caller = a_caller(expires_at=int(server.client.clock.now) + 10)
    session = await server.client.open("2025-03-26")
    async with asyncio.timeout(WITHIN_S):
        batch = asyncio.create_task(server.batch(session))
        await server.second.wait()
        await happens(server, session)
        server.go_on.set()
        answers = await batch

    assert server.ran == [1, 2]
    refused = [answer["id"] for answer in answers if "error" in answer]
    assert refused == [3, 4, 5]


async def test_a_batch_is_served_whole_within_the_leeway_of_its_token() -> None:
    """The token has expired five seconds before."""
    server = ActingServer()
    server.client.caller = a_caller(expires_at=int(server.client.clock.now) - 5)
    session = await server.client.open("2025-03-26")
    server.go_on.set()
    answers = await server.batch(session)

    assert [answer["id"] for answer in answers if "result" in answer] == [*NUMBERS]


def main_issuer(idp: Idp, **settings: Any) -> dict[str, Any]:
    return issuer_settings(idp, tenants={"acme": "acme", "globex": "globex"}, **settings)


CHANGES = [
    ("nothing", lambda idp: {"issuers": [main_issuer(idp)]}, False),
    ("suspended", lambda idp: {"tenancy": {"suspended": ["acme"]}}, True),
    ("another suspended", lambda idp: {"tenancy": {"suspended": ["globex"]}}, False),
    ("issuer removed", lambda idp: {"issuers": [issuer_settings(idp, "other")]}, True),
    ("issuer disabled", lambda idp: {"issuers": [main_issuer(idp, enabled=False)]}, True),
    (
        "tenant removed",
        lambda idp: {"issuers": [issuer_settings(idp, tenants={"globex": "globex"})]},
        True,
    ),
]


@pytest.mark.parametrize(("_", "change", "is_out"), CHANGES)
async def test_tasks_end_when_a_reload_removes_trust_in_their_caller(
    tmp_path: Path, _: str, change: Any, is_out: bool
) -> None:
    """Tasks of an issuer that is no longer trusted ran for hours, also after a restart."""
    with Idp() as idp:
        settings = {"tools": {}, "workspace": {"root": str(tmp_path)}}
        before = configuration(8000, [main_issuer(idp)], **settings)
        loaded_packs = load(msgspec.convert(before, Config).tools)
        caller: TenantContext = a_caller(issuer=idp.issuer("main"))
        stranger = a_caller(issuer="https://never.example.com")
        async with opened(
            msgspec.convert(before, Config), loaded_packs, KeyRing.ephemeral()
        ) as services:
            assert not services.task_runner.is_out(caller)
            assert services.task_runner.is_out(stranger)
            services.apply(msgspec.convert(before | change(idp), Config), loaded_packs)
            assert services.task_runner.is_out(caller) is is_out

"""A caller that is refused over and over fills no disk: few records count all refusals."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost import CallContext, Pack
from gatepost.audit import events
from gatepost.audit.events import MAX_KINDS, RECORDED_PER_CALLER, RECORDED_PER_KIND
from gatepost.audit.record import AuditRecord, read, search
from gatepost.storage.audit import AuditQuery
from gatepost.storage.backends import open_records
from gatepost.tools.calls.registry import Registry, Unknown
from gatepost.tools.calls.runner import Runner
from gatepost.tools.offers.offer import Call, Failure, Outcome
from gatepost_authz.errors import InsufficientScope
from tests.audit.conftest import AuditLog, audit_log, person
from tests.audit.test_outage import call_context
from tests.support.client import RestClient
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server

CALLS = 60
WITHIN_S = 20.0


def a_call(caller: str = "alice", name: str = "deploy", **more: Any) -> Call:
    return Call(caller=person(caller), name=name, arguments=b"{}", request_id="r", **more)


async def refuse(log: AuditLog, call: Call, ending: BaseException | Failure, times: int) -> None:
    """Refuse *times* calls, one after another: each would be a batch of its own."""
    for _ in range(times):
        await log.writer.record_end(call, 0.0, [], ending)


async def records_of(log: AuditLog) -> list[AuditRecord]:
    """Return all records, once the writer has written all that it counts."""
    await log.writer.aclose()
    return list(await search(log.store, "acme", AuditQuery(limit=1000)))


@pytest.mark.parametrize(
    ("ending", "tool"),
    [
        (Unknown("none"), ""),
        (InsufficientScope(("a",)), "deploy"),
        (Failure("rate_limit", "Later.", limit="caller"), ""),
    ],
    ids=["unknown", "scopes", "limit"],
)
async def test_repeated_refusals_are_counted_in_one_record(
    url: str, ending: BaseException | Failure, tool: str
) -> None:
    """The first refusals have records; another record has the number of further ones."""
    async with audit_log(url) as log:
        await refuse(log, a_call(), ending, CALLS)
        counts = await log.store.tenant_log("acme").count(0, 86_400_000)
        records = await records_of(log)
        all_counts = await log.store.tenant_log("acme").count(0, 86_400_000)
        assert (await log.verify()).bad_number is None

    together = [record for record in records if record.times > 1]
    assert [record.times for record in together] == [CALLS - RECORDED_PER_KIND]
    assert len(records) == RECORDED_PER_KIND + 1
    assert (together[0].kind, together[0].tool) == ("refusal", tool)
    assert together[0].caller is not None
    assert together[0].caller.subject == "alice"
    assert 0 < together[0].first <= together[0].at
    assert sum(count.number for count in counts) == RECORDED_PER_KIND
    assert sum(count.number for count in all_counts) == CALLS


async def test_refusals_are_counted_separately_for_each_caller_and_kind(url: str) -> None:
    """A flood hides neither another caller's refusals nor successful calls."""
    async with audit_log(url) as log:
        for name in ("deploy", "pay"):
            await refuse(log, a_call(name=name), InsufficientScope(("a",)), RECORDED_PER_KIND + 2)
        await refuse(log, a_call("bob"), InsufficientScope(("a",)), 2)
        await log.writer.record_end(a_call(), 0.0, [], None)
        records = await records_of(log)

    counted = sorted((record.tool, record.times) for record in records if record.times > 1)
    assert counted == [("deploy", 2), ("pay", 2)]
    subjects = [record.caller.subject for record in records if record.caller is not None]
    assert subjects.count("bob") == 2
    assert [record.outcome for record in records].count("success") == 1


async def test_refusals_of_many_tool_names_and_addresses_make_few_records(url: str) -> None:
    """A caller cannot multiply records with made-up tool names or IPv6 addresses."""
    async with audit_log(url) as log:
        for number in range(MAX_KINDS * 3):
            call = a_call(name=f"tool-{number}", peer=f"2001:db8::{number:x}")
            await refuse(log, call, InsufficientScope(("a",)), 1)
            await refuse(log, a_call(peer=f"2001:db8::{number:x}"), Unknown("none"), 1)
        records = await records_of(log)

    assert len(records) <= RECORDED_PER_CALLER + MAX_KINDS + 2
    assert sum(record.times for record in records) == MAX_KINDS * 6


async def test_failures_of_a_tool_are_recorded_one_by_one(url: str) -> None:
    """The tool ran each time."""
    async with audit_log(url) as log:
        await refuse(log, a_call(), Failure("denied", "No."), CALLS)
        assert len(await records_of(log)) == CALLS


async def test_calls_that_ran_are_recorded_one_by_one(url: str) -> None:
    """A call may also end like a refusal because a nested call was refused."""
    pack = Pack("halves")

    @pack.tool()
    async def half(ctx: CallContext) -> str:
        """Do something, then need a scope."""
        ctx.caller.require(frozenset({"more"}))
        return ""

    @pack.tool()
    async def limited(ctx: CallContext) -> Outcome:
        """Do something, then meet a limit."""
        return Outcome(failure=Failure("rate_limit", "Later.", limit="tool"))

    async with audit_log(url) as log:
        runner = Runner(
            Registry([*pack.tools.values()]), context_for=call_context, recorder=log.writer
        )
        for _ in range(RECORDED_PER_KIND * 2):
            with pytest.raises(InsufficientScope):
                await runner.run(a_call(name="half"))
            await runner.run(a_call(name="limited"))
        records = await records_of(log)

    assert len({record.number for record in records}) == RECORDED_PER_KIND * 4
    assert all(record.first == 0 for record in records)


@pytest.fixture
def server(
    idp: Idp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Server, str]]:
    monkeypatch.setattr(events, "GATHERED_S", 0.5)
    url = f"sqlite:///{tmp_path}/records.db"
    settings: dict[str, Any] = {
        "storage": {"database": url},
        "tenancy": {"create_on_first_use": True},
        "scopes": {"obtainable": ["files:read"]},
        "limits": {"burst": 10},
    }
    with running_server(idp, [issuer_settings(idp)], **settings) as server:
        yield server, url


async def rows(url: str) -> list[AuditRecord]:
    records = await open_records(url)
    rows = await records.open_audit(None).tenant_log("acme").chain(1).rows(0, 1000)
    await records.aclose()
    return [read(row) for row in rows]


def test_refused_calls_of_a_token_without_scopes_make_few_records(
    server: tuple[Server, str],
) -> None:
    """A hundred refused calls over MCP and REST make at most thirty records."""
    running, url = server
    token = running.token(org_id="acme")
    for _ in range(CALLS):
        running.client.call(token, "record_read")
        RestClient(running, token).call("record_read")
    until = time.monotonic() + WITHIN_S
    records = asyncio.run(rows(url))
    while sum(record.times for record in records) < 2 * CALLS:
        assert time.monotonic() < until, [msgspec.structs.asdict(record) for record in records]
        records = asyncio.run(rows(url))

    assert len(records) <= 30
    assert {record.outcome for record in records} == {"insufficient_scope", "rate_limit"}


def test_requests_for_another_tenant_are_counted(server: tuple[Server, str]) -> None:
    """The first ones have records; another record has the number and the last tenant claim."""
    running, url = server
    agent = RestClient(running, running.token(org_id="acme"))
    for number in range(9):
        refused = agent.call("open", {}, ("X-Octopus-Tenant-Id", f"globex-{number}"))
        assert refused.status == 403
    until = time.monotonic() + WITHIN_S
    records = asyncio.run(rows(url))
    while sum(record.times for record in records) < 9:
        assert time.monotonic() < until, [msgspec.structs.asdict(record) for record in records]
        records = asyncio.run(rows(url))

    assert {(record.kind, record.outcome) for record in records} == {("tenant_mismatch", "refused")}
    assert [record.times for record in records] == [1] * RECORDED_PER_KIND + [9 - RECORDED_PER_KIND]
    assert records[-1].private["claimed"] == "globex-8"
    assert records[-1].caller is not None
    assert 0 < records[-1].first <= records[-1].at

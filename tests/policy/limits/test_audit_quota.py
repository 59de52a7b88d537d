"""The audit records that callers and tenants cause are bounded, and none of a call is lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gatepost import CallContext, Outcome, Pack
from gatepost.audit import events
from gatepost.audit.record import read
from gatepost.audit.writer import AuditWriter
from gatepost.config.audit import AuditSettings
from gatepost.policy.limits.call_limits import TOLD_PART
from gatepost.policy.limits.request_limits import AuditedRetries
from gatepost.policy.limits.rules import DAY_S, Bound, LimitRules
from gatepost.policy.limits.stage import LimitStage
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import RECORD_BYTES, AuditRow
from gatepost.storage.backends import open_records, open_shared_store
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import SharedStore
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.runner import Runner
from gatepost.tools.offers.offer import Call
from tests.support.client import RestClient, failure, result
from tests.support.endpoint import a_caller
from tests.support.issuers import Idp
from tests.support.runners import context
from tests.support.server import Server, issuer_settings, running_server

pytestmark = pytest.mark.requirement("P12")
MAX_BYTES = 20_000
TEXT = {"text": "x" * 2_000}
RECORD = 2_000 + 700
"""More than the record of a call with that text takes."""
WITHIN_S = 20.0

pack = Pack("notebook")


@pack.tool(idempotent=True)
async def write(ctx: CallContext, text: str) -> str:
    """Write a text."""
    return f"wrote {len(text)}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/records.db"


@contextmanager
def server(idp: Idp, url: str, **limits: Any) -> Iterator[Server]:
    """Run a server with these limits only."""
    settings: dict[str, Any] = {
        "storage": {"database": url},
        "tenancy": {"create_on_first_use": True},
        "tools": {"packs": ["demo"], "load": [__name__]},
        "limits": {"failures_per_second": 0, "requests_per_second": 0, **limits},
    }
    with running_server(idp, [issuer_settings(idp)], **settings) as running:
        yield running


def audit_rows(url: str, tenant: str = "acme") -> list[AuditRow]:
    async def read_rows() -> list[AuditRow]:
        records = await open_records(url)
        every = await records.open_audit(None).tenant_log(tenant).chain(1).rows(0, 1000)
        await records.aclose()
        return list(every)

    return asyncio.run(read_rows())


def record_size(row: AuditRow) -> int:
    return RECORD_BYTES + len(row.body) + len(row.side or "")


def fill(target: Server, token: str) -> tuple[int, Any]:
    """Call until a call is refused; how many ran, and what the refused one was told."""
    for ran in range(100):
        answer = target.client.call(token, "echo", TEXT)
        assert answer.status == 200
        if b'"error"' in answer.body:
            return ran, failure(answer)
        result(answer)
    raise AssertionError("no call was refused")


def test_a_caller_that_fills_its_quota_is_refused(idp: Idp, url: str) -> None:
    """Both protocols name the quota; other callers continue, and earlier calls are recorded."""
    with server(idp, url, audit_bytes_per_day=MAX_BYTES) as running:
        token = running.token(org_id="acme")
        ran, error = fill(running, token)
        by_rest = RestClient(running, token).call("echo", TEXT)
        neighbour = running.client.call(running.token(org_id="globex"), "echo", TEXT)
        colleague = running.client.call(running.token(org_id="acme", sub="bob"), "echo", TEXT)
        listed = running.client.listed(token)
    stored = audit_rows(url)
    successes = [row for row in stored if row.outcome == "success" and "alice" in str(row.side)]

    assert error["code"] == -32000
    assert error["data"]["limit"] == "caller_audit"
    assert error["data"]["retryAfter"] > 0
    assert "`limits.audit_bytes_per_day`" in error["message"]
    assert by_rest.error == (429, "rate_limited")
    assert "echo" in listed
    assert "x" in str(result(neighbour))
    assert "x" in str(result(colleague))
    assert ran >= MAX_BYTES // RECORD
    assert len(successes) == ran
    assert MAX_BYTES <= sum(map(record_size, successes)) <= MAX_BYTES + RECORD


def test_all_callers_of_a_tenant_share_a_quota(idp: Idp, url: str) -> None:
    """A caller that fills the quota blocks its own tenant and no other tenant."""
    with server(idp, url, tenant={"audit_bytes_per_day": MAX_BYTES}) as running:
        _, error = fill(running, running.token(org_id="acme"))
        colleague = running.client.call(running.token(org_id="acme", sub="bob"), "echo", TEXT)
        neighbour = running.client.call(running.token(org_id="globex"), "echo", TEXT)

    assert error["data"]["limit"] == "tenant_audit"
    assert "`limits.tenant.audit_bytes_per_day`" in error["message"]
    assert failure(colleague)["data"]["limit"] == "tenant_audit"
    assert "x" in str(result(neighbour))


def test_refusals_by_a_full_quota_share_one_audit_record(
    idp: Idp, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts them all, whatever tools and clients they name."""
    monkeypatch.setattr(events, "GATHERED_S", 2 * WITHIN_S)
    with server(idp, url, audit_bytes_per_day=MAX_BYTES) as running:
        ran, _ = fill(running, running.token(org_id="acme"))
        for number in range(10):
            token = running.token(org_id="acme", client_id=f"client-{number}")
            for tool in ("echo", "whoami", "no-such-tool"):
                assert failure(running.client.call(token, tool, TEXT))["code"] == -32000
    records = [read(row) for row in audit_rows(url)]
    refused = [record for record in records if record.outcome == "rate_limit"]

    assert len(records) == ran + 1
    assert [(record.times, record.limit, record.tool) for record in refused] == [
        (31, "caller_audit", "")
    ]


def test_replays_count_against_the_audit_quota(idp: Idp, url: str) -> None:
    """Each replay is an audit record, although its tool does not run again."""
    with server(idp, url, audit_bytes_per_day=MAX_BYTES) as running:
        agent = RestClient(running, running.token(org_id="acme"))
        heard = [
            agent.call("write", TEXT, ("Idempotency-Key", "same")) for _ in range(MAX_BYTES // 1000)
        ]
    statuses = [response.status for response in heard]
    records = [read(row) for row in audit_rows(url)]

    ran = statuses.count(200)
    assert statuses == [200] * ran + [429] * (len(statuses) - ran)
    assert MAX_BYTES // RECORD <= ran < len(statuses)
    assert [record.outcome for record in records].count("success") == ran
    assert [record.replayed for record in records].count(True) == ran - 1


def test_refused_calls_count_against_the_audit_quota(idp: Idp, url: str) -> None:
    """Calls of unknown tools make audit records, too."""
    with server(idp, url, audit_bytes_per_day=2_000) as running:
        token = running.token(org_id="acme")
        answers = [failure(running.client.call(token, "no-such-tool")) for _ in range(10)]

    limits = [answer.get("data", {}).get("limit") for answer in answers]
    assert limits[0] is None
    assert limits[-1] == "caller_audit"


class QuotaReplica:
    """One process, whose tool `echo` has records of its arguments' size."""

    def __init__(
        self, records: MemoryRecords, shared_store: SharedStore, rules: LimitRules
    ) -> None:
        self.limits = LimitStage(shared_store)
        self.limits.apply(rules)
        self.writer = AuditWriter(
            records,
            KeyRing.ephemeral(),
            Redaction(),
            AuditSettings(batch_ms=0),
            charge=self.limits.charge_record,
        )
        pack = Pack("works")

        @pack.tool()
        async def echo(ctx: CallContext, text: str) -> str:
            """Answer."""
            return "done"

        self.again = AuditedRetries(self.limits)
        self.runner = Runner(
            Registry(pack.tools.values()),
            context_for=context,
            stages=(self.limits,),
            recorder=self.writer,
        )

    async def call(self, subject: str = "alice", tenant: str = "acme") -> str | None:
        """Make a call; return the limit that refused it, if any."""
        outcome = await self.runner.run(a_call(subject, tenant))
        return None if outcome.failure is None else outcome.failure.limit

    async def replay(self) -> str | None:
        """Make a call that is replayed and recorded; return the limit that refused it, if any."""

        async def stored_outcome(call: Call, offer: Any, arguments: Any) -> Outcome:
            self.limits.charge_record(call.caller, RECORD)
            return Outcome()

        outcome = await self.again(a_call("alice", "acme"), None, None, stored_outcome)  # type: ignore[arg-type]  # not looked at
        return None if outcome.failure is None else outcome.failure.limit


def a_call(subject: str, tenant: str) -> Call:
    caller = a_caller(subject=subject, tenant_id=tenant)
    arguments = b'{"text": "%s"}' % (b"x" * 2_000)
    return Call(caller=caller, name="echo", arguments=arguments, request_id="r")


@asynccontextmanager
async def replicas(url: str, rules: LimitRules) -> AsyncIterator[list[QuotaReplica]]:
    """Run two replicas on one Valkey."""
    shared_stores = [await open_shared_store(url) for _ in range(2)]
    replicas = [
        QuotaReplica(MemoryRecords(), shared_store, rules) for shared_store in shared_stores
    ]
    yield replicas
    for replica, shared_store in zip(replicas, shared_stores, strict=True):
        await replica.writer.aclose()
        await shared_store.aclose()


def a_day(most: int) -> Bound:
    return Bound(most / DAY_S, most)


@pytest.mark.parametrize("limit", ["caller_audit", "tenant_audit"])
async def test_two_replicas_share_the_audit_quota(valkey: str, limit: str) -> None:
    """The bytes that a caller records at one replica count at the other, too."""
    async with replicas(valkey, LimitRules(**{limit: a_day(MAX_BYTES)})) as (first, other):
        refusals: list[str | None] = []
        for replica in (first, other) * (MAX_BYTES // 1000):
            refusals.append(await replica.call())
            if refusals[-1] is not None:
                break
        ran = refusals.count(None)

        # Each tells with its next call what its last one has cost.
        assert MAX_BYTES // RECORD <= ran <= MAX_BYTES // 2_000 + 2
        assert refusals[-1] == limit
        assert [await first.call(), await other.call()] == [limit, limit]
        assert await first.call(tenant="globex") is None
        assert first.writer.written + other.writer.written == ran + 1


async def test_replays_at_two_replicas_share_the_audit_quota(valkey: str) -> None:
    """Replays check the shared count only now and then, and are still refused."""
    most = RECORD * TOLD_PART // 10
    async with replicas(valkey, LimitRules(caller_audit=a_day(most))) as (first, other):
        ran = 0
        while await first.replay() is None and await other.replay() is None:
            ran += 2
            assert ran < 2 * TOLD_PART

        assert TOLD_PART // 10 - 2 <= ran <= TOLD_PART // 10 + 4

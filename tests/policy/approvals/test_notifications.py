"""People hear of requests that wait through a tool, such as that of a chat channel."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gatepost import CallContext, Pack, ToolFailure
from gatepost.audit.record import search
from gatepost.check.approvals import problems
from gatepost.check.pack_loading import load
from gatepost.config.approvals import ApprovalsSettings, NotificationSettings
from gatepost.config.settings import Config, StorageSettings, ToolsSettings
from gatepost.policy.approvals import notifications
from gatepost.runtime.services import Services
from gatepost.runtime.startup import opened
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import AuditQuery
from gatepost.tools.offers.offer import Call
from tests.support.endpoint import a_caller
from tests.support.measuring import eventually

pack = Pack("notifications")
NOTIFIED_CALLS: list[tuple[str, str, str]] = []
NOTIFICATION_ENDED = asyncio.Event()
WITHIN_S = 60


@pack.tool(scopes={"chat:send"}, read_only=False, destructive=False)
async def tell(ctx: CallContext, channel: str, message: str) -> str:
    """Tell people."""
    NOTIFIED_CALLS.append((ctx.caller.tenant_id, channel, message))
    if channel == "broken":
        raise ToolFailure("upstream_unavailable", "It is away.")
    return "told"


@pack.tool(read_only=False, destructive=True)
async def pay(ctx: CallContext, amount: int) -> str:
    """Pay an amount."""
    return "paid"


@pack.tool(read_only=False, destructive=False)
async def post(ctx: CallContext, message: str) -> str:
    """Tell people through a tool that needs approval, with other arguments each time."""
    NOTIFIED_CALLS.append((ctx.caller.tenant_id, "", message))
    outcome = await ctx.call("pay", {"amount": len(NOTIFIED_CALLS)})
    return "told" if outcome.failure is None else outcome.failure.kind


@pack.tool(read_only=False, destructive=False)
async def hang(ctx: CallContext, message: str) -> str:
    """Take until the test is over."""
    NOTIFIED_CALLS.append((ctx.caller.tenant_id, "", message))
    await NOTIFICATION_ENDED.wait()
    return "told"


NOTIFICATION = NotificationSettings(tool="tell", arguments={"channel": "approvals"})


def config(**approvals: Any) -> Config:
    return Config(
        resource="http://127.0.0.1:1/mcp",
        mode="development",
        tools=ToolsSettings(load=(__name__,)),
        approvals=ApprovalsSettings(**approvals),
        storage=StorageSettings(database="memory:"),
    )


@asynccontextmanager
async def serving(**approvals: Any) -> AsyncIterator[Services]:
    configuration = config(**approvals)
    loaded_packs = load(configuration.tools, configuration.packs, configuration.network)
    NOTIFIED_CALLS.clear()
    async with opened(configuration, loaded_packs, KeyRing.ephemeral()) as services:
        yield services


async def request_approval(
    services: Services, tool: str = "pay", tenant: str = "acme", **arguments: Any
) -> str:
    encoded = msgspec.json.encode(arguments)
    caller = a_caller(tenant_id=tenant, scopes=frozenset({"chat:send"}))
    outcome = await services.runner.run(
        Call(caller=caller, name=tool, arguments=encoded, request_id="r")
    )
    return "" if outcome.failure is None else outcome.failure.kind


async def wait_for_notifications(number: int) -> None:
    """Wait until so many notifications have arrived."""
    await asyncio.to_thread(eventually, lambda: len(NOTIFIED_CALLS) >= number, within=WITHIN_S)


async def test_a_new_request_is_notified_once() -> None:
    """The tenant gets one message without arguments; polls of the waiting call send no other."""
    async with serving(notification=NOTIFICATION) as services:
        assert [await request_approval(services, amount=1_234) for _ in range(3)] == [
            "approval_pending"
        ] * 3
        await wait_for_notifications(1)
        assert await request_approval(services, amount=5) == "approval_pending"
        await wait_for_notifications(2)
        (record,) = await search(
            services.audit_writer.store, "acme", AuditQuery(tool="tell", limit=1)
        )

    assert [(tenant, channel) for tenant, channel, _ in NOTIFIED_CALLS] == [
        ("acme", "approvals")
    ] * 2
    assert NOTIFIED_CALLS[0][2].startswith("A call of pay waits for approval until ")
    assert "1234" not in NOTIFIED_CALLS[0][2]
    assert record.caller is not None
    assert (record.caller.subject, record.outcome) == ("gatepost", "success")


async def test_a_failing_notification_does_not_affect_the_call() -> None:
    """The request still waits, and the next one is announced."""
    notification = NotificationSettings(tool="tell", arguments={"channel": "broken"})
    async with serving(notification=notification) as services:
        assert [await request_approval(services, amount=amount) for amount in (1, 2)] == [
            "approval_pending"
        ] * 2
        await wait_for_notifications(2)
        assert len(await services.approvals.waiting("acme")) == 2


async def test_a_notification_tool_does_not_announce_its_own_request() -> None:
    """Its own request would otherwise cause the next one, and so on."""
    async with serving(notification=NOTIFICATION, require=("tell",)) as services:
        assert (
            await request_approval(services, "tell", channel="team", message="x")
            == "approval_pending"
        )
        assert await request_approval(services, amount=1) == "approval_pending"
        waiting: list[str] = []
        for _ in range(1_000):
            waiting = [request.tool for request in await services.approvals.waiting("acme")]
            await asyncio.sleep(0)

    assert sorted(waiting) == ["pay", "tell", "tell"]
    assert NOTIFIED_CALLS == []


async def test_no_notification_for_approvals_of_the_notification_tool() -> None:
    """Each such call has other arguments, so each would be a new request."""
    async with serving(notification=NotificationSettings(tool="post")) as services:
        assert await request_approval(services, amount=1_000) == "approval_pending"
        await wait_for_notifications(1)
        waiting = 0
        for _ in range(1_000):
            waiting = len(await services.approvals.waiting("acme"))
            await asyncio.sleep(0)

    assert (waiting, len(NOTIFIED_CALLS)) == (2, 1)


async def test_a_slow_channel_of_one_tenant_does_not_delay_other_tenants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One tenant's channel hangs and has many requests; another tenant still gets its message."""
    NOTIFICATION_ENDED.clear()
    monkeypatch.setattr(notifications, "MAX_OF_TENANT", 2)
    monkeypatch.setattr(notifications, "MAX_AT_ONCE", 3)
    async with serving(notification=NotificationSettings(tool="hang")) as services:
        for amount in range(4):
            await request_approval(services, amount=amount)
        await request_approval(services, tenant="globex", amount=1)
        await wait_for_notifications(3)
        NOTIFICATION_ENDED.set()

    assert [tenant for tenant, _, _ in NOTIFIED_CALLS] == ["acme", "acme", "globex"]


@pytest.mark.parametrize(
    ("approvals", "expected"),
    [
        ({"notification": NOTIFICATION}, []),
        ({"notification": NotificationSettings(tool="chat_send")}, ["config.E086"]),
        ({"notification": NOTIFICATION, "require": ("tell",)}, ["config.E086"]),
    ],
)
def test_check_refuses_an_unusable_notification_tool(
    approvals: dict[str, Any], expected: list[str]
) -> None:
    """The tool must exist and need no approval."""
    configuration = config(**approvals)
    loaded_packs = load(configuration.tools, configuration.packs, configuration.network)

    assert [
        problem.id
        for problem in problems(configuration, loaded_packs)
        if problem.id == "config.E086"
    ] == expected

"""The webhook of a running server: a reload turns it on and off."""

import base64
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from gatepost.audit.writer import AuditWriter
from gatepost.config.approvals import ApprovalsSettings, WebhookSettings
from gatepost.config.audit import AuditSettings
from gatepost.config.settings import Config
from gatepost.outbound.http_client import OutboundClient
from gatepost.policy.idempotency.execution import RunningCalls
from gatepost.runtime.approvals import ApprovalServices
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.runner import Runner
from gatepost.tools.context.client import NO_CLIENT
from gatepost.tools.offers.offer import Call
from gatepost_authz.caller import TenantContext
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.support.runners import ACME, ALICE, ApprovalDeployment, context, failure_kind

SECRET = f"whsec_{base64.b64encode(bytes(32)).decode()}"
CONFIG_WITHOUT_WEBHOOK = Config(resource="https://mcp.example.com/mcp", issuers=[])
WEBHOOK_SETTINGS = WebhookSettings(url="https://hooks.example.com/x", secret="env:HOOK_SECRET")
CONFIG_WITH_WEBHOOK = replace(
    CONFIG_WITHOUT_WEBHOOK, approvals=ApprovalsSettings(webhook=WEBHOOK_SETTINGS)
)
LIMITS = {"timeout_s": 30.0, "max_result_bytes": 1_000_000}


async def ignore_denial(caller: TenantContext) -> None:
    """Ignore that a call was denied."""


async def test_a_reload_turns_the_webhook_on_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is kept for requests that are made while the webhook is on."""
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    records, shared_store, keyring = MemoryRecords(), MemorySharedStore(), KeyRing.ephemeral()
    redaction, tools = Redaction(), ApprovalDeployment().pack.tools
    outbound = OutboundClient(Network(), tls=Fetcher(development=True).tls)
    outbox_counts = []
    async with (
        aclosing(outbound),
        aclosing(AuditWriter(records, keyring, redaction, AuditSettings())) as writer,
    ):
        services = ApprovalServices(
            records,
            shared_store,
            keyring,
            redaction=redaction,
            writer=writer,
            outbound=outbound,
        )
        for number, config in enumerate(
            (CONFIG_WITHOUT_WEBHOOK, CONFIG_WITH_WEBHOOK, CONFIG_WITHOUT_WEBHOOK)
        ):
            services.apply(config, tools.values())
            runner = Runner(
                Registry(tools.values()),
                context_for=context,
                stages=services.stages(config, RunningCalls(records, shared_store), ignore_denial),
                **LIMITS,
            )
            arguments = b'{"amount":%d}' % number
            call = Call(
                caller=ALICE, name="sign", arguments=arguments, request_id="r", client=NO_CLIENT
            )
            assert failure_kind(await runner.run(call)) == "approval_pending"
            outbox_counts.append((await records.tenant_data.count(ACME)).get("outbox_messages", 0))

    assert outbox_counts == [0, 1, 1]

"""Calls within calls, and protocols that cannot wait: who is asked, and whose clock stops."""

import ssl
from typing import Any

import pytest

from gatepost.config.packs import Packs
from gatepost.credentials.tenant_credentials import CredentialRegistry
from gatepost.credentials.token_client import CredentialServices
from gatepost.outbound.http_client import OutboundClient
from gatepost.runtime.tool_services import TenantToolServices
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.store import SecretStore
from gatepost.tools.context.client import NO_CLIENT
from gatepost.tools.offers.offer import Call
from gatepost_authz.config import Network
from tests.mcp.conftest import (
    MESSAGE,
    PAGE,
    RETRY_AFTER_S,
    DecisionStage,
    Paid,
    with_decision_stage,
)
from tests.support.endpoint import EndpointClient, EndpointTaskClient, a_caller
from tests.support.endpoint_clients import EndpointPair


def enable_nested_calls(client: EndpointClient) -> None:
    """Let the tools of *client* call other tools."""
    services = CredentialServices(
        records=client.records,
        shared_store=client.shared_store,
        secrets=SecretCache(SecretStore(client.records, client.keyring)),
        keyring=client.keyring,
        outbound=OutboundClient(Network(), tls=ssl.create_default_context),
    )
    client.tool_services = TenantToolServices(
        Packs(),
        records=services.records,
        secrets=services.secrets,
        outbound=services.outbound,
        credentials=CredentialRegistry(services),
        run=client.runner.run,
    )


@pytest.mark.requirement("A7", "O8")
async def test_o8_the_timeouts_of_both_tools_pause_while_an_approver_decides(
    decision_stage: DecisionStage,
) -> None:
    """A tool that calls another has its own time before and after, without the approver's."""
    pair = await with_decision_stage(decision_stage, EndpointPair).open()
    enable_nested_calls(pair.one)
    live = pair.call(pair.one, "spend")
    await live.wait_for_sends(6)  # longer than `spend` may take: they tell of tenths of a second
    (await decision_stage.only()).decide("approved")
    *notifications, answer = await live.rest()
    steps = [notification["params"]["progress"] for notification in notifications]

    assert answer["result"]["content"][0]["text"] == "paid 2"
    assert steps == sorted(set(steps))
    assert notifications[-1]["params"]["message"] == "after"


@pytest.mark.requirement("A7", "K-10")
async def test_k_10_a_task_whose_nested_call_waits_counts_as_started(
    decision_stage: DecisionStage,
) -> None:
    """A replica that takes the task up must not run the whole tool again."""
    client = with_decision_stage(decision_stage, EndpointTaskClient)
    enable_nested_calls(client)
    client.server.lengthy |= {"spend"}
    task_id = (await client.start("spend"))["taskId"]
    await client.when(task_id, lambda task: task.get("statusMessage") == f"{MESSAGE} {PAGE}")
    record = await client.records.of("acme").tasks.get(task_id)
    assert record is not None
    assert b'"unstarted":true' not in record.call
    (await decision_stage.only()).decide("approved")

    ended = await client.until(task_id)
    assert ended["result"]["content"][0]["text"] == "paid 2"
    await client.task_runner.aclose()


@pytest.mark.requirement("A7")
async def test_a7_a_call_without_a_client_connection_gets_retry_after(
    decision_stage: DecisionStage,
) -> None:
    """The call is answered at once; the same call made again finds the same request."""
    client = with_decision_stage(decision_stage, EndpointClient)
    call = Call(caller=a_caller(), name="pay", arguments=b"{}", request_id="1", client=NO_CLIENT)
    waits: Any = (await client.runner.run(call)).failure
    (await decision_stage.only()).decide("approved")
    await client.runner.run(call)

    assert (waits.kind, waits.retry_after) == ("approval_pending", RETRY_AFTER_S)
    assert waits.message == f"{MESSAGE} {PAGE}"
    assert Paid.amounts == [1]

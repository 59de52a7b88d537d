"""What stands between a plain call and its tool, counted in calls of Python."""

import asyncio

import pytest

from gatepost.policy.idempotency.execution import RunningCalls
from gatepost.policy.idempotency.stage import IdempotencyStage
from gatepost.policy.limits.rules import LimitRules
from gatepost.policy.limits.stage import LimitStage
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.runner import Runner
from gatepost.tools.offers.offer import Call
from tests.support.endpoint import a_caller
from tests.support.measuring import functions_called
from tests.support.runners import IdempotencyDeployment, context
from tests.support.server import bucket

CALL = Call(caller=a_caller(), name="act", arguments=b"{}", request_id="request-1")


async def test_a_call_without_a_key_skips_the_idempotency_code() -> None:
    """A call without an idempotency key runs neither the code for retries nor that for secrets."""
    deployment, limits = IdempotencyDeployment(), LimitStage()
    limits.apply(LimitRules(bucket(1_000)), max_running=10)
    once = IdempotencyStage(
        RunningCalls(deployment.records, deployment.shared_store),
        timeout_s=9,
        max_result_bytes=10_000,
    )
    runner = Runner(
        Registry(deployment.pack.tools.values()), context_for=context, stages=(once, limits)
    )

    def through() -> None:
        with pytest.raises(StopIteration):
            runner.run(CALL).send(None)

    through()
    names = functions_called(through)

    assert [name for name in names if name.startswith(("IdempotencyStage.", "RunningCalls."))] == []
    assert (
        sum(
            name.startswith(("LimitStage.", "LocalLimits.", "leave", "LocalCounters.", "Buckets."))
            for name in names
        )
        <= 4
    )
    assert sum(name.endswith(".perform") for name in names) == 1
    await asyncio.sleep(0)

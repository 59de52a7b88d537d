"""What limits cost a call that they let through."""

from typing import Any

import pytest

from gatepost.policy.limits.rules import Bound, LimitRules
from gatepost.policy.limits.stage import LimitStage
from gatepost.tools.offers.offer import Call, Offer, Outcome
from tests.support.endpoint import a_caller
from tests.support.measuring import functions_called
from tests.support.server import bucket

CALL = Call(caller=a_caller(), name="look", arguments=b"{}", request_id="request-1")
EMPTY_OUTCOME = Outcome()
LARGE_BUCKET = bucket(1_000)
ALL_LIMITS = LimitRules(
    LARGE_BUCKET,
    Bound(LARGE_BUCKET.rate, LARGE_BUCKET.burst, 10),
    Bound(LARGE_BUCKET.rate, LARGE_BUCKET.burst, 10),
)


def pass_limits(limits: LimitStage) -> None:
    """Pass one call through the limits."""

    async def proceed(call: Call, offer: Offer, arguments: Any) -> Outcome:
        return EMPTY_OUTCOME

    offer: Any = None
    passing = limits(CALL, offer, None, proceed)
    with pytest.raises(StopIteration):
        passing.send(None)  # it has no reason to wait for anything


@pytest.mark.requirement("P12")
@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(ALL_LIMITS, id="every limit there is"),
        pytest.param(LimitRules(LARGE_BUCKET), id="the caller's alone"),
    ],
)
def test_a_call_within_its_limits_costs_three_calls_of_python(rules: LimitRules) -> None:
    """
    Three buckets, two concurrency limits and the admission queue cost one call, take and leave.
    """
    limits = LimitStage()
    limits.apply(rules, max_running=10)
    pass_limits(limits)
    names = [
        name
        for name in functions_called(lambda: pass_limits(limits))
        if name.startswith(LIMIT_CLASSES)
    ]

    assert len(names) <= 3, names


LIMIT_CLASSES = (
    "LimitStage.",
    "CallLimits.",
    "LocalCounters.",
    "AdmissionQueue.",
    "AdmittedCall.",
    "LocalLimits.",
    "Bucket",
    "leave",
)

"""What limits cost a call that they let through."""

from typing import Any

import pytest

from gatepost.policy.limits.rules import Bound, LimitRules
from gatepost.policy.limits.stage import LimitStage
from gatepost.tools.api import Call, Offer, Outcome
from tests.support.endpoint import a_caller
from tests.support.measuring import calls
from tests.support.server import bucket

CALL = Call(caller=a_caller(), name="look", arguments=b"{}", request_id="request-1")
DONE = Outcome()
PLENTY = bucket(1_000)
EVERYTHING = LimitRules(
    PLENTY,
    Bound(PLENTY.rate, PLENTY.burst, 10),
    Bound(PLENTY.rate, PLENTY.burst, 10),
)


def through(limits: LimitStage) -> None:
    """Pass one call through the limits."""

    async def proceed(call: Call, offer: Offer, arguments: Any) -> Outcome:
        return DONE

    offer: Any = None
    passing = limits(CALL, offer, None, proceed)
    with pytest.raises(StopIteration):
        passing.send(None)  # it has no reason to wait for anything


@pytest.mark.requirement("P12")
@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(EVERYTHING, id="every limit there is"),
        pytest.param(LimitRules(PLENTY), id="the caller's alone"),
    ],
)
def test_a_call_within_its_limits_costs_three_calls_of_python(rules: LimitRules) -> None:
    """
    Three buckets, two concurrency limits and the admission queue cost one call, take and leave.
    """
    limits = LimitStage()
    limits.apply(rules, most=10)
    through(limits)
    made = [name for name in calls(lambda: through(limits)) if name.startswith(HERE)]

    assert len(made) <= 3, made


HERE = (
    "LimitStage.",
    "CallLimits.",
    "LocalCounters.",
    "AdmissionQueue.",
    "AdmittedCall.",
    "LocalLimits.",
    "Bucket",
    "leave",
)

"""The older revisions without a session: a call waits although its client cannot be asked."""

import pytest

from tests.mcp.conftest import MESSAGE, DecisionStage, Paid, with_decisions
from tests.support.endpoint import JSON, EndpointClient, message
from tests.support.endpoint_clients import OpenExchange

pytestmark = pytest.mark.requirement("A7", "DE-25")

CALL = message("tools/call", {"name": "pay", "arguments": {}})


async def test_a_client_of_events_waits_with_signs_of_life(decisions: DecisionStage) -> None:
    """The stream opens at once, and the decision's outcome comes on it."""
    client = with_decisions(decisions, EndpointClient)
    events = ("accept", "application/json, text/event-stream")
    live = await OpenExchange(client, "POST", CALL, [JSON, events], slow=False).opened()
    (await decisions.only()).decide("approved")
    *_, answer = await live.rest()

    assert answer["result"]["content"][0]["text"] == "paid 1"
    assert Paid.amounts == [1]


@pytest.mark.usefixtures("hasty")
async def test_any_other_client_waits_for_a_moment_and_calls_again(
    decisions: DecisionStage,
) -> None:
    """The answer says what waits; the same call later meets the same request."""
    client = with_decisions(decisions, EndpointClient)
    waits = (await client.send(CALL)).json["result"]
    (await decisions.only()).decide("approved")
    paid = (await client.send(CALL)).json["result"]

    assert waits["isError"] is True
    assert MESSAGE in waits["content"][0]["text"]
    assert paid["content"][0]["text"] == "paid 1"
    assert Paid.amounts == [1]

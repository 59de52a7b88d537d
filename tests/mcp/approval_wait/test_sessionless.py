"""The older revisions without a session: a call waits although its client cannot be asked."""

import pytest

from tests.mcp.conftest import MESSAGE, DecisionStage, Paid, with_decision_stage
from tests.support.endpoint import JSON, EndpointClient, message
from tests.support.endpoint_clients import OpenExchange

pytestmark = pytest.mark.requirement("A7", "DE-25")

CALL = message("tools/call", {"name": "pay", "arguments": {}})


async def test_a_client_of_event_streams_waits_on_an_open_stream(
    decision_stage: DecisionStage,
) -> None:
    """The stream opens at once and ends with the outcome of the decision."""
    client = with_decision_stage(decision_stage, EndpointClient)
    events = ("accept", "application/json, text/event-stream")
    live = await OpenExchange(client, "POST", CALL, [JSON, events], slow=False).opened()
    (await decision_stage.only()).decide("approved")
    *_, answer = await live.rest()

    assert answer["result"]["content"][0]["text"] == "paid 1"
    assert Paid.amounts == [1]


@pytest.mark.usefixtures("short_wait")
async def test_any_other_client_waits_only_briefly_and_calls_again(
    decision_stage: DecisionStage,
) -> None:
    """The answer names the pending approval; the same call finds the same request later."""
    client = with_decision_stage(decision_stage, EndpointClient)
    waits = (await client.send(CALL)).json["result"]
    (await decision_stage.only()).decide("approved")
    paid = (await client.send(CALL)).json["result"]

    assert waits["isError"] is True
    assert MESSAGE in waits["content"][0]["text"]
    assert paid["content"][0]["text"] == "paid 1"
    assert Paid.amounts == [1]

"""The long bodies of one caller cost neither another caller its turn nor the server much time."""

import asyncio
import json

import pytest

from gatepost.tools.cpu_thread import MOST_WAITING
from gatepost_packs import demo
from tests.rest.clients import RestEndpoint
from tests.support.endpoint import EndpointClient, a_caller

BOB = a_caller(tenant_id="globex", subject="bob")
LONG = json.dumps({"zz": '\\"' * 300_000}).encode()
"""What `whoami` does not take, and what takes long to redact."""
ECHO = json.dumps({"text": "x" * 300_000}).encode()


def _rest() -> RestEndpoint:
    client = EndpointClient(demo.pack.tools.values())
    return RestEndpoint(client.runner, client.registry)


async def test_long_bodies_of_one_tenant_do_not_stand_in_the_way_of_another() -> None:
    """A caller that sends one waits for no answers to a neighbour that came with many before."""
    rest, ended = _rest(), list[str]()

    async def post(who: str) -> None:
        if who == "bob":
            answer = await rest.post(BOB, "echo", ECHO)
            assert answer.status == 200
        else:
            answer = await rest.post(a_caller(), "whoami", LONG)
            assert answer.status == 422
        ended.append(who)

    await asyncio.gather(*(post("alice") for _ in range(12)), post("bob"))
    assert ended.index("bob") <= 2, ended


@pytest.mark.requirement("P12")
async def test_too_many_long_bodies_at_once_are_refused_as_by_a_rate_limit() -> None:
    """Over REST; those that wait already are answered, and so is everybody else."""
    rest = _rest()
    many = [rest.post(a_caller(), "whoami", LONG) for _ in range(MOST_WAITING + 10)]
    *answers, other = await asyncio.gather(*many, rest.post(BOB, "echo", ECHO))
    refused = [one for one in answers if one.status == 429]
    # One runs; what the first ones still need finds the queue full, too.
    assert 9 <= len(refused) <= 20
    assert {one.status for one in answers} == {422, 429}
    assert refused[0].json["error"] == "rate_limited"
    assert refused[0].json["retry_after"] == 1
    assert "retry-after" in refused[0].headers
    assert other.status == 200

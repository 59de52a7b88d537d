"""The four cells: callers and upstreams of both eras, through the endpoint."""

from gatepost.secrets.keyring import KeyRing
from gatepost.storage.relay import MemoryRelay
from tests.support.asking_tools import accept, ask_again, go_on, questions, said
from tests.upstreams.calls.conftest import Gate, ScriptedUpstream, asks_in_rounds, asks_once

TOOL = "mcp_crm__act"


async def test_modern_caller_and_modern_upstream() -> None:
    upstream = ScriptedUpstream(asks_in_rounds)
    gate = Gate(upstream)

    first = await ask_again(gate.client, TOOL)
    (key, asked), *_ = questions(first).items()
    second = await go_on(gate.client, TOOL, first, {key: accept(ok=True)})

    assert asked["params"]["message"] == "crm: Sure?"
    assert "their-state" not in first.body.decode()
    assert said(second) == "{'ok': True}"
    assert upstream.ran() == 2


async def test_modern_caller_and_session_upstream() -> None:
    upstream = ScriptedUpstream(asks_once, era="session")
    gate = Gate(upstream)

    first = await ask_again(gate.client, TOOL)
    (key, _), *_ = questions(first).items()
    second = await go_on(gate.client, TOOL, first, {key: accept(ok=True)})

    assert said(second) == "{'ok': True}"
    assert upstream.ran() == 1


async def test_a_repeated_round_answers_once_and_gets_the_same_step() -> None:
    upstream = ScriptedUpstream(asks_once, era="session")
    gate = Gate(upstream)

    first = await ask_again(gate.client, TOOL)
    (key, _), *_ = questions(first).items()
    answers = [await go_on(gate.client, TOOL, first, {key: accept(ok=True)}) for _ in range(3)]

    assert {said(one) for one in answers} == {"{'ok': True}"}
    assert upstream.ran() == 1
    assert len(upstream.exchanges[0].heard) == 1


async def test_any_replica_reaches_the_one_that_holds_a_call() -> None:
    upstream = ScriptedUpstream(asks_once, era="session")
    relay, keyring = MemoryRelay(), KeyRing.ephemeral()
    here, there = (Gate(upstream, relay=relay, keyring=keyring) for _ in range(2))

    first = await ask_again(here.client, TOOL)
    (key, _), *_ = questions(first).items()
    second = await go_on(there.client, TOOL, first, {key: accept(ok=False)})

    assert said(second) == "{'ok': False}"
    assert upstream.ran() == 1

"""Caching hints are on every result that a client may cache, and always `private`."""

import asyncio
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.mcp.request import NO_PARAMS
from gatepost_authz.caller import TenantContext
from tests.mcp.conftest import pack
from tests.support.endpoint import META, VERSION, EndpointClient, a_caller
from tests.support.endpoint_clients import REVISIONS, ask
from tests.support.measuring import count_lines

READ_PARAMS = {"uri": "library://rules"}
CACHEABLE_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("server/discover", {}),
    ("tools/list", {}),
    ("prompts/list", {}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", READ_PARAMS),
]
NOT_KEPT: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "stamp"}),
    ("prompts/get", {"name": "illustrated"}),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/prompt", "name": "summarise"},
            "argument": {"name": "quarter", "value": ""},
        },
    ),
]


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient(pack.offers, obtainable=frozenset())


@pytest.mark.requirement("C-01", "C-02", "C-03", "C-06", "C-05")
@pytest.mark.parametrize(
    ("method", "params"), CACHEABLE_REQUESTS, ids=[method for method, _ in CACHEABLE_REQUESTS]
)
async def test_c_01_c_02_c_06_cacheable_results_have_ttl_ms_and_cache_scope(
    client: EndpointClient, method: str, params: dict[str, Any]
) -> None:
    """The scope is always `private`, because each of these results depends on the caller."""
    result = (await client.ask(method, params)).json["result"]

    assert result["resultType"] == "complete"
    assert type(result["ttlMs"]) is int
    assert result["ttlMs"] >= 0
    assert result["cacheScope"] == "private"


@pytest.mark.requirement("C-01")
@pytest.mark.parametrize(("method", "params"), NOT_KEPT, ids=[method for method, _ in NOT_KEPT])
async def test_c_01_other_results_have_no_hints(
    client: EndpointClient, method: str, params: dict[str, Any]
) -> None:
    """A result with an effect, or an answer to one question, must not be cached."""
    result = (await client.ask(method, params)).json["result"]

    assert not {"ttlMs", "cacheScope"} & set(result)


@pytest.mark.requirement("C-01")
@pytest.mark.parametrize("revision", [revision for revision in REVISIONS if revision != VERSION])
@pytest.mark.parametrize(
    ("method", "params"),
    CACHEABLE_REQUESTS[1:],
    ids=[method for method, _ in CACHEABLE_REQUESTS[1:]],
)
async def test_c_01_older_revisions_get_no_caching_hints(
    client: EndpointClient, revision: str, method: str, params: dict[str, Any]
) -> None:
    """They get no member that came with 2026-07-28."""
    result = (await ask(client, revision, method, **params)).json["result"]

    assert not {"ttlMs", "cacheScope", "resultType", "_meta"} & set(result)


@pytest.mark.requirement("C-02")
async def test_c_02_a_read_result_has_the_lifetime_that_its_author_set(
    client: EndpointClient,
) -> None:
    """Without one, the result must not be cached."""
    answer = await client.ask("resources/read", READ_PARAMS)
    fresh = await client.ask("resources/read", {"uri": "library://index"})

    assert answer.json["result"]["ttlMs"] == 60_000
    assert fresh.json["result"]["ttlMs"] == 0


@pytest.mark.requirement("C-04")
@pytest.mark.parametrize("round_trip", [{"inputResponses": {}}, {"requestState": ""}])
async def test_c_04_a_result_of_a_round_trip_is_not_cacheable(
    client: EndpointClient, round_trip: dict[str, Any]
) -> None:
    """It contains the answers of one user."""
    response = await client.ask("resources/read", {**READ_PARAMS, **round_trip})

    assert response.status != 200 or response.json["result"]["ttlMs"] == 0


@pytest.mark.requirement("C-02")
async def test_c_02_a_list_made_by_a_lister_is_not_cacheable(client: EndpointClient) -> None:
    """Files come and go without a change of the configuration."""
    fixed = EndpointClient([pack.documents["library://rules"]])

    assert (await client.ask("resources/list")).json["result"]["ttlMs"] == 0
    assert (await fixed.ask("resources/list")).json["result"]["ttlMs"] > 0


@pytest.mark.requirement("C-05")
async def test_c_05_access_is_decided_at_each_use(client: EndpointClient) -> None:
    """A caller that knows another caller's list cannot read its entries."""
    client.caller = a_caller(scopes=frozenset({"hidden"}))
    listed = (await client.ask("resources/list")).json["result"]["resources"]
    client.caller = a_caller(scopes=frozenset())

    assert "library://hidden" in {resource["uri"] for resource in listed}
    response = await client.ask("resources/read", {"uri": "library://hidden"})
    assert response.error == (400, -32602)


@pytest.mark.requirement("C-08", "TL-03")
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "resources/list"])
async def test_c_08_tl_03_lists_are_the_same_on_every_connection(
    client: EndpointClient, revision: str, method: str
) -> None:
    """Earlier calls, the connection and the process do not matter."""
    before = (await ask(client, revision, method)).body
    await client.call("stamp")
    await client.ask("prompts/get", {"name": "illustrated"})
    after = (await ask(client, revision, method)).body
    elsewhere = await ask(
        EndpointClient(reversed(pack.offers), obtainable=frozenset()), revision, method
    )

    assert before == after == elsewhere.body


@pytest.mark.requirement("C-08")
def test_c_08_a_list_is_encoded_once_per_permission_set() -> None:
    """A thousand tools cost the second caller no more than one tool would."""
    many_tools = Pack("many")
    for number in range(200):

        @many_tools.tool(name=f"tool_{number}")
        async def tool(ctx: CallContext) -> None:
            """Do nothing."""

    small, large = EndpointClient([pack.tools["stamp"]]), EndpointClient(many_tools.offers)

    def second(client: EndpointClient) -> int:
        def list_for(caller: TenantContext) -> None:
            asyncio.run(client.server.listing.page("tools", caller, NO_PARAMS, VERSION))

        list_for(a_caller())
        bob = a_caller(subject="bob", scopes=frozenset({"x"}))
        return count_lines(lambda: list_for(bob))

    assert second(large) == second(small)


@pytest.mark.requirement("R-08", "P-07", "M-01", "C-04")
@pytest.mark.parametrize(
    ("method", "params"),
    [("resources/read", {"uri": "ask://x"}), ("prompts/get", {"name": "greet_caller"})],
)
async def test_r_08_p_07_a_read_or_a_prompt_may_ask(method: str, params: dict[str, str]) -> None:
    """The newest revision asks in the answer; no shared cache may store such an answer."""
    curious = Pack("curious")

    async def name(ctx: CallContext) -> str:
        form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        answered = await ctx.ask("Who are you?", form, key="who")
        return f"Hello {answered.content and answered.content['name']}"

    @curious.resource("ask://x", ttl_s=60)
    async def greeting(ctx: CallContext) -> str:
        """Greet the reader."""
        return await name(ctx)

    @curious.prompt()
    async def greet_caller(ctx: CallContext) -> str:
        """Greet the caller."""
        return await name(ctx)

    client, form = (
        EndpointClient(curious.offers),
        {META + "clientCapabilities": {"elicitation": {}}},
    )
    first = (await client.ask(method, params, meta=form)).json["result"]
    again = {
        **params,
        "requestState": first["requestState"],
        "inputResponses": {"who": {"action": "accept", "content": {"name": "Alice"}}},
    }
    second = (await client.ask(method, again, meta=form)).json["result"]

    assert first["resultType"] == "input_required"
    assert not {"ttlMs", "cacheScope"} & set(first)
    assert second["resultType"] == "complete"
    assert "Hello Alice" in str(second)
    assert second.get("ttlMs", 0) == 0
    assert (await client.ask(method, params)).error == (400, -32021)

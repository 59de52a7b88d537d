"""Both protocols decide alike who sees a tool, who may call it, and who is challenged."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gatepost.tools.authoring.pack import Pack
from gatepost.tools.calls.registry import Registry
from gatepost.tools.offers.offer import Tool
from gatepost_authz.caller import TenantContext
from tests.support.endpoint import EndpointClient, Response, a_caller
from tests.support.endpoint_clients import RestEndpoint

SCOPES = st.frozensets(st.sampled_from("abcd"))
CALLERS = st.builds(
    a_caller,
    tenant_id=st.sampled_from(["acme", "globex"]),
    scopes=SCOPES,
    subject_kind=st.sampled_from(["user", "client"]),
    acr=st.sampled_from([None, "phr"]),
)


def tool(name: str, scopes: frozenset[str], *, strong: bool) -> Tool:
    pack = Pack("p")

    @pack.tool(name=name, scopes=scopes, acr_values=("phr",) if strong else ())
    async def run(ctx: Any) -> str:
        """Say who called."""
        return str(ctx.caller.tenant_id)

    return pack.tools[name]


@st.composite
def registries(draw: st.DrawFn) -> tuple[list[Tool], frozenset[str] | None]:
    drawn = draw(st.lists(st.tuples(SCOPES, st.booleans()), min_size=1, max_size=6))
    tools = [tool(f"tool_{n}", scopes, strong=strong) for n, (scopes, strong) in enumerate(drawn)]
    return tools, draw(st.none() | SCOPES)


def decision(answer: Response) -> tuple[str, str]:
    """Return the decision that an answer of either protocol shows, and its challenge."""
    body = answer.json
    challenge = answer.headers.get("www-authenticate", "")
    if challenge:
        return f"challenged {answer.status}", challenge
    if answer.status == 200 and "error" not in body:
        return "ran", ""
    unknown = body.get("error") == "not_found" or "Unknown tool" in str(body["error"])
    return ("unknown", "") if unknown else (f"else {answer.status}", "")


async def assert_protocols_agree(
    tools: list[Tool], obtainable: frozenset[str] | None, caller: TenantContext
) -> None:
    client = EndpointClient(tools, obtainable=obtainable)
    client.caller = caller
    rest = RestEndpoint(client.runner, client.registry)
    listed = [tool["name"] for tool in (await client.ask("tools/list")).json["result"]["tools"]]
    names = [tool["name"] for tool in (await rest.tools(caller)).json]
    ran = []
    for name in [*client.registry.tools, "tool_99"]:
        over_mcp, over_rest = await client.call(name), await rest.call(caller, name)
        assert decision(over_rest) == decision(over_mcp)
        assert (decision(over_rest)[0] == "unknown") == (name not in listed)
        if decision(over_rest)[0] == "ran":
            ran.append(name)
            assert over_rest.json == {"result": caller.tenant_id}
    # This protocol has no step-up: what it lists can be called.
    assert names == ran == [name for name in listed if name in ran]


@given(registries(), CALLERS)
def test_rest_and_mcp_agree_for_any_caller(
    offered: tuple[list[Tool], frozenset[str] | None], caller: TenantContext
) -> None:
    """Both hide, run and challenge the same tools (12); REST lists those that run."""
    asyncio.run(assert_protocols_agree(*offered, caller))


def test_a_list_is_encoded_once_for_each_permission_set() -> None:
    """The number of callers and unrelated scopes do not matter."""
    tools = [tool("one", frozenset("a"), strong=False), tool("two", frozenset(), strong=False)]
    registry = Registry(tools, obtainable=frozenset())
    descriptors = RestEndpoint(EndpointClient(tools).runner, registry).routes._descriptors
    first = descriptors.describe_for(a_caller(scopes=frozenset("a")))
    again = descriptors.describe_for(a_caller(scopes=frozenset("az"), tenant_id="globex"))
    fewer = descriptors.describe_for(a_caller(scopes=frozenset("z")))

    assert first is again
    assert first != fewer

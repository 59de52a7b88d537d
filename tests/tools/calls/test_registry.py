"""One decision about who sees which tool, for the list and for the call."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost import ListedResource
from gatepost.tools.authoring.pack import Pack
from gatepost.tools.calls.registry import REMEMBERED_SETS, Registry, UnknownTool
from gatepost.tools.offers.offer import CallContext, Offer, Tool
from tests.support.endpoint import EndpointClient, a_caller
from tests.support.endpoint_clients import REVISIONS, ask, result_of

SCOPES = st.frozensets(st.sampled_from(["a", "b", "c", "d"]))


def tools_needing(*needed: frozenset[str]) -> list[Tool]:
    pack = Pack("many")
    for number, scopes in enumerate(needed):

        @pack.tool(name=f"tool_{number}", scopes=scopes)
        async def tool(ctx: CallContext) -> None:
            """Do nothing."""

    return list(pack.tools.values())


@pytest.mark.requirement("TL-02")
@given(needed=st.lists(SCOPES, max_size=6), granted=SCOPES, obtainable=st.none() | SCOPES)
def test_a_tool_is_listed_when_the_caller_can_obtain_every_missing_scope(
    needed: list[frozenset[str]], granted: frozenset[str], obtainable: frozenset[str] | None
) -> None:
    """A call finds exactly the listed tools; all others are unknown."""
    registry = Registry(tools_needing(*needed), obtainable=obtainable)
    caller = a_caller(scopes=granted)
    reachable = frozenset().union(*needed) if obtainable is None else obtainable
    expected = sorted(
        f"tool_{number}" for number, scopes in enumerate(needed) if scopes - granted <= reachable
    )

    assert [tool.name for tool in registry.visible(caller).tools] == expected
    for number in range(len(needed)):
        name = f"tool_{number}"
        if name in expected:
            assert registry.find(caller, name).name == name
        else:
            with pytest.raises(UnknownTool):
                registry.find(caller, name)


METHODS_BY_KIND = {
    "tool": ("tools/list", "tools", "name", "tools/call"),
    "prompt": ("prompts/list", "prompts", "name", "prompts/get"),
    "resource": ("resources/list", "resources", "uri", "resources/read"),
    "template": ("resources/list", "resources", "uri", "resources/read"),
}


def offers_needing(*needed: frozenset[str]) -> list[Offer]:
    """Return one offer of each kind for every set of scopes; the template lists one resource."""
    pack = Pack("many")

    def add(number: int, scopes: frozenset[str]) -> None:
        @pack.tool(name=f"tool_{number}", scopes=scopes)
        async def tool(ctx: CallContext) -> str:
            """Answer."""
            return "used"

        @pack.prompt(name=f"prompt_{number}", scopes=scopes)
        async def prompt(ctx: CallContext) -> str:
            """Answer."""
            return "used"

        @pack.resource(f"resource:{number}", name=f"resource_{number}", scopes=scopes)
        async def resource(ctx: CallContext) -> str:
            """Answer."""
            return "used"

        @pack.resource(f"template:{number}/{{x}}", name=f"template_{number}", scopes=scopes)
        async def template(ctx: CallContext, x: str) -> str:
            """Answer."""
            return "used"

        @template.list
        async def entries(ctx: CallContext) -> list[ListedResource]:
            """List one resource."""
            return [ListedResource(variables={"x": "x"})]

    for number, scopes in enumerate(needed):
        add(number, scopes)
    return list(pack.offers)


@pytest.mark.requirement("TL-02", "R-02", "P-02")
@given(
    needed=st.lists(SCOPES, min_size=1, max_size=3),
    granted=SCOPES,
    obtainable=st.none() | SCOPES,
    revision=st.sampled_from(REVISIONS),
    kind=st.sampled_from(sorted(METHODS_BY_KIND)),
)
def test_list_and_use_agree_for_any_scopes_and_revision(
    needed: list[frozenset[str]],
    granted: frozenset[str],
    obtainable: frozenset[str] | None,
    revision: str,
    kind: str,
) -> None:
    """Design, decision 12: listed is usable or challenged with all scopes; the rest is unknown."""
    client = EndpointClient(offers_needing(*needed), obtainable=obtainable)
    client.caller = a_caller(scopes=granted)
    reachable = frozenset[str]().union(*needed) if obtainable is None else obtainable
    asyncio.run(agree(client, needed, reachable, revision, kind))


async def agree(
    client: EndpointClient,
    needed: list[frozenset[str]],
    reachable: frozenset[str],
    revision: str,
    kind: str,
) -> None:
    method, member, key, use = METHODS_BY_KIND[kind]
    granted = client.caller.scopes
    listed = {offer[key] for offer in (await result_of(client, revision, method))[member]}
    for number, scopes in enumerate(needed):
        name = f"{kind}_{number}" if key == "name" else f"{kind}:{number}"
        name += "/x" if kind == "template" else ""
        used = await ask(client, revision, use, **{key: name})
        if scopes <= granted:
            assert name in listed
            assert used.status == 200
            assert b"used" in used.body
        elif scopes - granted <= reachable:
            # What a lister names is not listed before the lister may run; its template is.
            assert name in listed or kind == "template"
            assert used.status == 403
            assert used.json["error"]["data"] == {"scopes": sorted(scopes)}
        else:
            assert name not in listed
            unheard = name.replace(f"{number}", "9")
            never = await ask(client, revision, use, **{key: unheard})
            assert never.body.replace(unheard.encode(), name.encode()) == used.body
            assert never.status == used.status


def test_callers_with_equal_permissions_share_one_list() -> None:
    """Gatepost encodes it once, for any number of callers and scopes."""
    registry = Registry(tools_needing(frozenset({"a"})), obtainable=frozenset())
    first = registry.visible(a_caller(scopes=frozenset({"a", "x"})))

    assert registry.visible(a_caller(subject="bob", scopes=frozenset({"a", "y"}))) is first
    assert registry.visible(a_caller(scopes=frozenset())) is not first


def test_the_number_of_cached_permission_sets_is_bounded() -> None:
    """Callers with ever new scopes make the registry drop older sets."""
    names = [f"s{number}" for number in range(12)]
    registry = Registry(tools_needing(*(frozenset({n}) for n in names)), obtainable=frozenset())
    for number in range(REMEMBERED_SETS + 50):
        held_names = frozenset(name for bit, name in enumerate(names) if number >> bit & 1)
        registry.visible(a_caller(scopes=held_names))

    assert len(registry._visible) == REMEMBERED_SETS


@pytest.mark.requirement("O11")
def test_duplicate_and_invalid_names_are_reported() -> None:
    """The operator reads which tools collide."""
    first, two = tools_needing(frozenset()), tools_needing(frozenset())

    with pytest.raises(ValueError, match="tool_0"):
        Registry([*first, *two])
    for name in ("", "Upper", "a-b", "a b", "ü", "x" * 65):
        with pytest.raises(ValueError, match="tool name"):
            Pack("p").add(name, description="…", input_schema={"type": "object"}, invoke=None)  # type: ignore[arg-type]


def test_a_pack_refuses_an_invalid_tool() -> None:
    """Such is one without docstring, with a taken name, or with a schema that is no object."""
    pack = Pack("p")

    with pytest.raises(TypeError, match="docstring"):

        @pack.tool()
        async def silent(ctx: CallContext) -> None: ...

    pack.add("one", description="…", input_schema={"type": "object"}, invoke=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two tools named one"):
        pack.add("one", description="…", input_schema={"type": "object"}, invoke=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="object"):
        pack.add("two", description="…", input_schema={"type": "string"}, invoke=None)  # type: ignore[arg-type]

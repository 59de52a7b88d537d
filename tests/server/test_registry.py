"""One decision about who sees which tool, for the list and for the call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.tools.api import CallContext, Tool
from gatepost.tools.pack import Pack
from gatepost.tools.registry import REMEMBERED_SETS, Registry, UnknownTool
from tests.support.mcp import a_caller

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
def test_a_tool_is_seen_when_nothing_it_lacks_is_out_of_reach(
    needed: list[frozenset[str]], granted: frozenset[str], obtainable: frozenset[str] | None
) -> None:
    """Listed is exactly what a call finds; everything else is unknown."""
    registry = Registry(tools_needing(*needed), obtainable=obtainable)
    caller = a_caller(scopes=granted)
    reach = frozenset().union(*needed) if obtainable is None else obtainable
    expected = sorted(
        f"tool_{number}" for number, scopes in enumerate(needed) if scopes - granted <= reach
    )

    assert [tool.name for tool in registry.visible(caller).tools] == expected
    for number in range(len(needed)):
        name = f"tool_{number}"
        if name in expected:
            assert registry.find(caller, name).name == name
        else:
            with pytest.raises(UnknownTool):
                registry.find(caller, name)


def test_one_permission_set_has_one_list() -> None:
    """So that it is encoded once, however many callers and scopes there are."""
    registry = Registry(tools_needing(frozenset({"a"})), obtainable=frozenset())
    first = registry.visible(a_caller(scopes=frozenset({"a", "x"})))

    assert registry.visible(a_caller(subject="bob", scopes=frozenset({"a", "y"}))) is first
    assert registry.visible(a_caller(scopes=frozenset())) is not first


def test_what_is_remembered_is_bounded() -> None:
    """Callers with ever new scopes make it forget, not grow."""
    names = [f"s{number}" for number in range(12)]
    registry = Registry(tools_needing(*(frozenset({n}) for n in names)), obtainable=frozenset())
    for number in range(REMEMBERED_SETS + 50):
        held = frozenset(name for bit, name in enumerate(names) if number >> bit & 1)
        registry.visible(a_caller(scopes=held))

    assert len(registry._visible) == REMEMBERED_SETS


@pytest.mark.requirement("O11")
def test_doubled_and_bad_names_are_named() -> None:
    """The operator reads which tools collide."""
    one, two = tools_needing(frozenset()), tools_needing(frozenset())

    with pytest.raises(ValueError, match="tool_0"):
        Registry([*one, *two])
    for name in ("", "Upper", "a-b", "a b", "ü", "x" * 65):
        with pytest.raises(ValueError, match="tool name"):
            Pack("p").add(name, description="…", input_schema={"type": "object"}, invoke=None)  # type: ignore[arg-type]


def test_a_pack_refuses_what_cannot_be_a_tool() -> None:
    """No docstring for the model to read, two of one name, a schema that is no object's."""
    pack = Pack("p")

    with pytest.raises(TypeError, match="docstring"):

        @pack.tool()
        async def silent(ctx: CallContext) -> None: ...

    pack.add("one", description="…", input_schema={"type": "object"}, invoke=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two tools named one"):
        pack.add("one", description="…", input_schema={"type": "object"}, invoke=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="object"):
        pack.add("two", description="…", input_schema={"type": "string"}, invoke=None)  # type: ignore[arg-type]

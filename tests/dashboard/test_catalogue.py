"""What the page of tools says of a caller is what a call of theirs would meet."""

from typing import Any

import pytest

from gatepost.dashboard.catalogue import standing
from gatepost.tools.api import Call, CallContext
from gatepost.tools.pack import Pack
from gatepost.tools.registry import Registry
from gatepost.tools.runner import Runner
from tests.support.mcp import a_caller

NOW = 2_000_000.0
pack = Pack("vaults")


@pack.tool(acr_values=("phr",), max_age_s=300)
async def unlock(ctx: CallContext) -> str:
    """Open the vault."""
    return ""


@pack.tool(scopes={"vault:read", "vault:open"})
async def peek(ctx: CallContext) -> str:
    """Look into the vault."""
    return ""


STANDINGS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "strong and fresh": (
        "unlock",
        {"acr": "phr", "auth_time": int(NOW) - 10},
        "may",
        "Has every scope; nobody is asked.",
    ),
    "stale": (
        "unlock",
        {"acr": "phr", "auth_time": int(NOW) - 1_000},
        "steps_up",
        "Needs a sign-in of the strength phr and not older than 300 seconds.",
    ),
    "weak": (
        "unlock",
        {"acr": "pwd", "auth_time": int(NOW) - 10},
        "steps_up",
        "Needs a sign-in of the strength phr and not older than 300 seconds.",
    ),
    "only scopes": (
        "unlock",
        {},
        "steps_up",
        "Needs a sign-in of the strength phr and not older than 300 seconds.",
    ),
    "may ask for more": (
        "peek",
        {"scopes": frozenset({"base", "vault:read"})},
        "steps_up",
        "Lacks vault:open, which its client may ask for.",
    ),
    "out of reach": (
        "peek",
        {"scopes": frozenset({"base", "vault:open"})},
        "may_not",
        "Lacks vault:read: the tool is unknown to it.",
    ),
    "not let in": (
        "peek",
        {"scopes": frozenset({"vault:read", "vault:open"})},
        "may_not",
        "Every request needs base.",
    ),
}


@pytest.mark.parametrize("name", STANDINGS)
def test_a_caller_is_judged_as_a_call_would_be(name: str) -> None:
    """By the runner itself: whoever may call is not told otherwise, nor the other way round."""
    tool, known, level, sentence = STANDINGS[name]
    registry = Registry(pack.offers, obtainable=frozenset({"vault:open"}))
    runner = Runner(registry, context_for=never, clock=lambda: NOW)
    caller = a_caller(**{"scopes": frozenset({"base"}), **known})
    found = standing(registry.tools[tool], caller, runner, {}, baseline=frozenset({"base"}))

    assert (found.level, found.sentence) == (level, sentence)


def never(call: Call) -> CallContext:
    """Nothing is called."""
    raise AssertionError(call.name)

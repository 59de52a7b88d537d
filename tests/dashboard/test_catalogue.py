"""What the page of tools says of a caller is what a call of theirs would meet."""

from typing import Any

import pytest

from gatepost.dashboard.catalogue import Somebody, standing
from gatepost.tools.api import Tool
from gatepost.tools.pack import Pack
from tests.support.mcp import a_caller

NOW = 2_000_000.0
pack = Pack("vaults")


@pack.tool(acr_values=("phr",), max_age_s=300)
async def unlock() -> str:
    """Open the vault."""
    return ""


@pytest.mark.parametrize(
    ("known", "level"),
    [
        ({"acr": "phr", "auth_time": int(NOW) - 10}, "may"),
        ({"acr": "phr", "auth_time": int(NOW) - 1_000}, "steps_up"),
        ({"acr": "pwd", "auth_time": int(NOW) - 10}, "steps_up"),
        (None, "steps_up"),
    ],
    ids=["strong and fresh", "stale", "weak", "only scopes"],
)
def test_a_sign_in_is_judged_as_a_call_would_be(known: dict[str, Any] | None, level: str) -> None:
    """Whoever signed in well enough is not told to do so again."""
    [tool] = [one for one in pack.offers if isinstance(one, Tool)]
    caller = None if known is None else a_caller(**known)
    somebody = Somebody(scopes=frozenset(), caller=caller)
    found = standing(tool, somebody, frozenset(), frozenset(), {}, now=NOW)

    assert found.level == level

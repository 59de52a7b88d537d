"""What a reload means for who is connected: who loses something, and which lists look different."""

from typing import Any

import msgspec
import pytest

from gatepost import CallContext, Pack
from gatepost.config.settings import Config
from gatepost.runtime.reload import affected_callers, lists_changed
from gatepost.tools.calls.registry import Registry
from tests.support.endpoint import a_caller
from tests.support.measuring import each

MAIN_ISSUER = {"issuer": "https://id.example.com", "tenants": {"acme": "acme", "globex": "globex"}}
MAIN_ISSUER["tenant"] = {"claim": "org_id"}  # type: ignore[assignment]
OTHER_ISSUER = {"issuer": "https://other.example.com", "tenant": {"value": "initech"}}
FREE_ISSUER = {"issuer": "https://id.example.com", "tenant": {"claim": "org_id"}}
TREE: dict[str, Any] = {
    "resource": "https://mcp.example.com/mcp",
    "issuers": [MAIN_ISSUER, OTHER_ISSUER],
}


def config(**changes: Any) -> Config:
    return msgspec.convert({**TREE, **changes}, Config)


@pytest.mark.requirement("SU-10")
@each(
    ("before", "after", "loses"),
    [
        ({}, {}, False),
        ({}, {"log": {"level": "debug"}, "tools": {"timeout_s": 5.0}}, False),
        ({}, {"issuers": [MAIN_ISSUER]}, False),
        ({"issuers": [MAIN_ISSUER]}, {}, False),
        ({}, {"tenancy": {"suspended": ["globex"]}}, False),
        ({}, {"tenancy": {"suspended": ["acme"]}}, True),
        ({}, {"issuers": [OTHER_ISSUER]}, True),
        ({}, {"issuers": [{**MAIN_ISSUER, "enabled": False}, OTHER_ISSUER]}, True),
        ({}, {"issuers": [{**MAIN_ISSUER, "algorithms": ["ES256"]}, OTHER_ISSUER]}, True),
        ({}, {"issuers": [{**MAIN_ISSUER, "tenants": {"globex": "globex"}}, OTHER_ISSUER]}, True),
        ({}, {"resource": "https://mcp.example.com/other"}, True),
        ({}, {"mode": "development"}, True),
        ({}, {"scopes": {"implied": {"files:write": ["files:read"]}}}, True),
        ({}, {"scopes": {"baseline": ["files:write"]}}, False),
        ({}, {"scopes": {"baseline": ["files:read"]}}, True),
        (
            {"issuers": [FREE_ISSUER], "tenancy": {"create_on_first_use": True}},
            {"issuers": [FREE_ISSUER], "tenancy": {"create_on_first_use": False}},
            True,
        ),
        (
            {"issuers": [FREE_ISSUER], "tenancy": {"create_on_first_use": True}},
            {
                "issuers": [FREE_ISSUER],
                "tenancy": {"tenants": ["acme"], "create_on_first_use": False},
            },
            False,
        ),
        (
            {"issuers": [FREE_ISSUER], "tenancy": {"create_on_first_use": True}},
            {
                "issuers": [FREE_ISSUER, {**OTHER_ISSUER, "tenant": {"value": "acme"}}],
                "tenancy": {"create_on_first_use": True},
            },
            True,
        ),
    ],
)
def test_a_reload_ends_the_streams_of_callers_that_it_may_affect(
    before: Any, after: Any, loses: bool
) -> None:
    """Each case has a configuration before and after the reload."""
    assert affected_callers(config(**before), config(**after))(a_caller()) is loses


def a_registry(*, obtainable: frozenset[str] | None = None, **changes: Any) -> Registry:
    """Return the registry of a pack, as its file would be loaded again."""
    pack = Pack("again")

    async def note(ctx: CallContext) -> str:
        """Say something."""
        return "something"

    pack.tool(**{"name": "note", **changes.get("tool", {})})(note)
    pack.prompt(**{"name": "note", **changes.get("prompt", {})})(note)
    document = {"mime_type": "text/plain", **changes.get("document", {})}
    pack.resource("notes://one", **document)(note)
    if "added" in changes:
        pack.resource(changes["added"])(note)
    return Registry(pack.offers, obtainable=obtainable)


@pytest.mark.requirement("TL-16", "P-08")
@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({}, ()),
        ({"tool": {"title": "Note"}}, ("tools",)),
        ({"tool": {"scopes": {"notes"}}, "obtainable": frozenset()}, ("tools",)),
        ({"prompt": {"title": "Note"}}, ("prompts",)),
        ({"document": {"mime_type": "text/html"}}, ("resources",)),
        ({"added": "notes://two"}, ("resources",)),
        ({"obtainable": frozenset({"notes"})}, ("tools", "prompts", "resources")),
    ],
)
def test_a_list_change_is_announced_only_if_the_list_differs(changes: Any, changed: Any) -> None:
    """Loading the same pack again is no change, even with new function objects."""
    before = a_registry(obtainable=frozenset())

    assert lists_changed(before, a_registry(**{"obtainable": frozenset(), **changes})) == changed

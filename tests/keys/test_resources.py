"""Which resources the issuer serves, under which names."""

import pytest

from gatepost_keys.issuer.resource_indicators import Resources
from tests.support.measuring import each

MCP = "http://127.0.0.1:8000/mcp"
TEMPLATE = "http://127.0.0.1:8000/t/{tenant}/mcp"

RESOURCE_CASES = [
    (MCP, MCP),
    ("http://localhost:8000/mcp", MCP),
    ("http://[::1]:8000/mcp", MCP),
    ("http://127.0.0.1:8000/t/acme/mcp", "http://127.0.0.1:8000/t/acme/mcp"),
    ("http://127.0.0.1:8000/t/ACME/mcp", None),
    ("http://127.0.0.1:8000/t/acme/mcp/", None),
    ("http://127.0.0.1:8001/mcp", None),
    ("http://127.0.0.1/mcp", None),
    ("https://127.0.0.1:8000/mcp", None),
    ("HTTP://127.0.0.1:8000/mcp", None),
    ("http://user@127.0.0.1:8000/mcp", None),
    ("http://127.0.0.1:08000/mcp", None),
    ("http://127.0.0.1:8000/mcp/", None),
    ("http://127.0.0.1:8000/mcp?x", None),
    ("http://127.0.0.1:8000/mcp#", None),
    ("http://127.0.0.1:8000/mcp\n", None),
    ("http://127.0.0.1:8000/./mcp", None),
    ("http://127.0.0.1.evil.example:8000/mcp", None),
    ("http://[", None),
    ("http://127.0.0.1:port/mcp", None),
    ("mcp", None),
    ("", None),
]


@each(("requested", "expected"), RESOURCE_CASES)
def test_resources_match_exactly_except_for_loopback_host_names(
    requested: str, expected: str | None
) -> None:
    """A person may type localhost or 127.0.0.1; the audience has the configured form."""
    assert Resources((MCP, TEMPLATE)).find(requested) == expected


@pytest.mark.parametrize(
    ("resources", "default"),
    [
        ((MCP,), MCP),
        ((MCP, "http://localhost:8000/mcp"), MCP),
        ((MCP, "http://127.0.0.1:8000/other"), None),
        ((MCP, TEMPLATE), None),
        ((TEMPLATE,), None),
        ((), None),
    ],
)
def test_the_only_resource_is_the_default(resources: tuple[str, ...], default: str | None) -> None:
    """Two names of one resource count as one; with two resources there is no default."""
    assert Resources(resources).default == default

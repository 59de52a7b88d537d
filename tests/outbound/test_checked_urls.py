"""URLs that were checked once are remembered, but not those that may hold secrets."""

import pytest

from gatepost.outbound.http_request import outbound_request
from gatepost_authz import address_policy
from gatepost_authz.address_policy import ToolAddressPolicy

URL = "https://mcp.example.com/mcp"


def test_a_checked_url_is_parsed_once() -> None:
    """A call of an upstream goes to the same URL each time."""
    first, second = (outbound_request("POST", URL, {"content": b"{}"}) for _ in range(2))
    assert first.parsed is second.parsed
    assert str(first.where) == URL


def test_a_url_with_a_query_is_not_remembered() -> None:
    """A key in a query does not stay in memory."""
    url = f"{URL}?key=secret"
    first, second = (outbound_request("GET", url, {}) for _ in range(2))
    assert first.parsed is not second.parsed


def test_a_refused_url_stays_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only URLs without a problem are remembered, and no more than a bounded number."""
    monkeypatch.setattr(address_policy, "REMEMBERED_URLS", 2)
    policy = ToolAddressPolicy()
    for _ in range(2):
        assert policy.problem("ftp://mcp.example.com/") == "it must be an http or https URL"
        assert policy.problem("https://user@mcp.example.com/") is not None
        assert policy.problem("https://mcp.example.com:22/") is not None
        for number in range(5):
            assert policy.problem(f"{URL}/{number}") is None


def test_a_new_address_policy_does_not_reuse_old_checks() -> None:
    """A host that is no longer allowed is refused, although its URL was checked before."""
    url = "https://crm.internal:22/mcp"
    assert ToolAddressPolicy(["crm.internal:22"]).problem(url) is None
    assert ToolAddressPolicy().problem(url) == "port 22 belongs to another service"

"""The official Python client against `gatepost dev`: a person signs in, a program calls."""

import pytest

from tests.clients import sdk_clients
from tests.clients.sdk_clients import CSV, expect_all
from tests.support.browser import BrowserUser
from tests.support.commands import Gatepost


@pytest.mark.parametrize(
    ("mode", "protocol"),
    [("legacy", "2025-11-25"), ("auto", "2026-07-28"), ("2026-07-28", "2026-07-28")],
)
async def test_the_python_client_goes_all_the_way(dev: Gatepost, mode: str, protocol: str) -> None:
    """Discovery, registration, sign-in, tools and refresh work in both eras."""
    person = BrowserUser("alice")

    report = await sdk_clients.walk_python(dev.url, person, mode=mode, csv=CSV)

    assert report["protocol"] == protocol
    # Where the resource names no scopes, this SDK asks for all that the issuer has.
    expect_all(report, person, dev.url, tenant="acme", steps_up=False)

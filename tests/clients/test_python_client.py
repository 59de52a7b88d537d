"""The official Python client against `gatepost dev`: a person signs in, a program calls."""

import pytest

from tests.clients.journey import CSV, expect_all
from tests.support import python_client
from tests.support.browser import Person
from tests.support.gatepost import Gatepost

NARROW = frozenset({"files:read"})


@pytest.mark.parametrize(
    ("mode", "protocol"),
    [("legacy", "2025-11-25"), ("auto", "2026-07-28"), ("2026-07-28", "2026-07-28")],
)
async def test_the_python_client_goes_all_the_way(dev: Gatepost, mode: str, protocol: str) -> None:
    """Discovery, registration, sign-in, tools, step-up and refresh work in both eras."""
    person = Person("alice", only=NARROW)

    report = await python_client.walk(dev.url, person, mode=mode, csv=CSV)

    assert report["protocol"] == protocol
    expect_all(report, person, dev.url, tenant="acme")

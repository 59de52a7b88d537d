"""`gatepost dev` is no other place: what is too fast in production is too fast there."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gatepost.config.settings import Config, LimitsSettings
from gatepost.dev.composition import dev_config, limits_of
from tests.support import commands
from tests.support.commands import Gatepost


@pytest.mark.requirement("P12")
def test_dev_has_productions_limits(tmp_path: Path) -> None:
    """The defaults, and what the environment sets over them; nothing else of it is heeded."""
    named = {
        "GATEPOST_LIMITS__BURST": "7",
        "GATEPOST_LIMITS__TENANT__CONCURRENCY": "3",
        "GATEPOST_MODE": "production",
    }
    usual, none = limits_of({})
    changed, found = limits_of(named)
    _, wrong = limits_of({"GATEPOST_LIMITS__BURST": "many"})

    assert dev_config(8000, tools=(), state=tmp_path).limits == LimitsSettings()
    assert (usual, none, found) == (Config(resource="").limits, [], [])
    assert (changed.burst, changed.tenant.concurrency) == (7, 3)
    assert changed.requests_per_second == usual.requests_per_second
    assert [one.id for one in wrong] == ["config.E004"]


def status(running: Gatepost, token: str) -> int:
    """Of one call of a tool."""
    request = urllib.request.Request(  # noqa: S310
        f"{running.origin}/tool/echo/call",
        json.dumps({"text": "x"}).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


@pytest.mark.requirement("P12")
def test_the_environment_sets_them(tmp_path: Path) -> None:
    """As for a server with a configuration file."""
    slow = {"GATEPOST_LIMITS__REQUESTS_PER_SECOND": "0.001", "GATEPOST_LIMITS__BURST": "2"}
    with commands.dev(tmp_path, env=slow) as running:
        token = commands.token(tmp_path, "--tenant", "acme")
        answers = [status(running, token) for _ in range(3)]

    assert answers == [200, 200, 429]

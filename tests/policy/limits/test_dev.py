"""`gatepost dev` has the limits of production."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gatepost.config.limits import LimitsSettings
from gatepost.dev.composition import dev_config
from gatepost.dev.given_settings import given_settings
from tests.support import commands
from tests.support.commands import Gatepost


@pytest.mark.requirement("P12")
def test_dev_has_productions_limits(tmp_path: Path) -> None:
    """The defaults are those of production, and the environment can change them."""
    named = {"GATEPOST_LIMITS__BURST": "7", "GATEPOST_LIMITS__TENANT__CONCURRENCY": "3"}
    usual, changed, wrong = (
        given_settings(None, environ, "http://127.0.0.1:8000/mcp")
        for environ in ({}, named, {"GATEPOST_LIMITS__BURST": "many"})
    )
    limit_settings = dev_config(8000, tools=(), state=tmp_path, user_config=changed.config).limits

    assert dev_config(8000, tools=(), state=tmp_path).limits == LimitsSettings()
    assert usual.config is not None
    assert (usual.config.limits, usual.problems, changed.problems) == (LimitsSettings(), (), ())
    assert (limit_settings.burst, limit_settings.tenant.concurrency) == (7, 3)
    assert limit_settings.requests_per_second == LimitsSettings().requests_per_second
    assert [problem.id for problem in wrong.problems] == ["config.E004"]


def status(running: Gatepost, token: str) -> int:
    """Make one call of a tool; return its status."""
    request = urllib.request.Request(  # noqa: S310
        f"{running.origin}/tool/echo/call",
        json.dumps({"text": "x"}).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


@pytest.mark.requirement("P12")
def test_the_environment_sets_the_limits(tmp_path: Path) -> None:
    """The variables are those of a server with a configuration file."""
    slow = {"GATEPOST_LIMITS__REQUESTS_PER_SECOND": "0.001", "GATEPOST_LIMITS__BURST": "2"}
    with commands.dev(tmp_path, env=slow) as running:
        token = commands.token(tmp_path, "--tenant", "acme")
        answers = [status(running, token) for _ in range(3)]

    assert answers == [200, 200, 429]

"""What `gatepost check` says of `[audit]`."""

from typing import Any

import pytest

from tests.support.issuers import Idp
from tests.support.server import check_problems, issuer_settings

SETTINGS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "defaults": ({}, []),
    "no arguments": ({"arguments": "none", "max_argument_bytes": 0}, []),
    "negative": ({"max_argument_bytes": -1}, ["config.E085"]),
    "too slow": ({"batch_ms": 5_000.0}, ["config.E085"]),
    "never signed": ({"checkpoint_s": 0.0}, []),
    "no records at all": ({"checkpoint_records": 0}, ["config.E085"]),
    "negative days": ({"retention_days": -1}, ["config.E085"]),
    "off in development": ({"enabled": False}, []),
}


@pytest.fixture(scope="module")
def trusted() -> Any:
    with Idp() as idp:
        yield [issuer_settings(idp)]


@pytest.mark.parametrize("name", SETTINGS)
def test_each_problem_of_audit_settings_is_reported_with_its_id(trusted: Any, name: str) -> None:
    """Good settings have no problem."""
    settings, expected_ids = SETTINGS[name]

    assert [
        problem.id for problem in check_problems(trusted, audit=settings) if "E08" in problem.id
    ] == expected_ids


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"enabled": False}, "config.W085"),
        ({"durability": "relaxed"}, "config.W123"),
    ],
)
@pytest.mark.parametrize("mode", ["production", "development"])
def test_production_without_durable_records_is_a_warning(
    trusted: Any, mode: str, settings: dict[str, Any], problem: str
) -> None:
    """It is no error, since another system may keep a log."""
    reported_problems = check_problems(trusted, mode=mode, audit=settings)

    assert (problem in [problem.id for problem in reported_problems]) == (mode == "production")

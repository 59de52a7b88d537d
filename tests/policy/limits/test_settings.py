"""`[limits.tenant]`, `[limits.tool]` and `[limits.tools.NAME]`, as an operator writes them."""

from collections.abc import Iterator
from typing import Any

import pytest

from gatepost.config.limits import LimitsSettings, NamedToolLimitSettings, ToolLimitSettings
from gatepost.policy.limits.rules import ANY, Bound, rules_of
from tests.support.client import failure, result
from tests.support.issuers import Idp
from tests.support.server import (
    Server,
    check_errors,
    check_problems,
    issuer_settings,
    running_server,
)

WRONG_SETTINGS: list[tuple[dict[str, Any], str, str]] = [
    ({"concurrency": -1}, "config.E088", "limits.concurrency"),
    ({"queue": -1}, "config.E088", "limits.queue"),
    ({"queue_s": float("inf")}, "config.E088", "limits.queue_s"),
    ({"tenant": {"requests_per_second": -0.5}}, "config.E088", "limits.tenant.requests_per_second"),
    ({"tool": {"burst": -2}}, "config.E088", "limits.tool.burst"),
    (
        {"tools": {"echo": {"requests_per_second": float("nan")}}},
        "config.E088",
        "limits.tools.echo.requests_per_second",
    ),
    ({"tools": {"ecko": {"concurrency": 1}}}, "config.E089", "limits.tools.ecko"),
]


@pytest.mark.parametrize(
    ("limits", "problem", "setting"), WRONG_SETTINGS, ids=lambda value: str(value)[:40]
)
def test_a_limit_without_effect_is_reported(
    idp: Idp, limits: dict[str, Any], problem: str, setting: str
) -> None:
    """The problem names the setting and the nearest tool name."""
    reported_problems = [
        problem
        for problem in check_problems([issuer_settings(idp)], limits=limits)
        if problem.level == "error"
    ]

    assert [
        (reported.id, reported.setting) for reported in reported_problems if reported.id == problem
    ] == [(problem, setting)]
    if problem == "config.E089":
        assert "'echo'" in reported_problems[0].hint


def test_zero_turns_off_a_limit(idp: Idp) -> None:
    """Zero turns off every limit."""
    none = {"requests_per_second": 0, "burst": 0, "concurrency": 0}
    limits = {"requests_per_second": 0, "concurrency": 0, "tenant": none, "tool": none}
    limits |= {"tools": {"echo": none}, "failures_per_second": 0}
    assert "config.E088" not in check_errors([issuer_settings(idp)], limits=limits)


def test_no_caller_is_limited_by_default() -> None:
    """Out of the box: the caller's bucket, and generous numbers of calls at once."""
    rules = rules_of(LimitsSettings())

    assert (rules.caller.rate, rules.caller.burst) == (10, 20)
    assert (rules.tenant.rate, rules.tenant.concurrency) == (0, 200)
    assert (rules.tool.rate, rules.tool.concurrency) == (0, ANY)


def test_the_audit_quota_does_not_apply_without_an_audit_log() -> None:
    """A server without limits and audit log then looks up no limit for a call."""
    quotas = LimitsSettings(audit_bytes_per_day=1_000)
    with_audit, without = rules_of(quotas), rules_of(quotas, audits=False)

    assert (with_audit.caller_audit.burst, without.caller_audit) == (1_000, Bound())
    assert without.tenant_audit == Bound()


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    """Yield a server where a tenant may call three times, and `whoami` once."""
    limits = {
        "requests_per_second": 0,
        "tenant": {"requests_per_second": 1 / 60, "burst": 3},
        "tools": {"whoami": {"requests_per_second": 1 / 120, "burst": 1}},
    }
    with running_server(
        idp, [issuer_settings(idp)], tenancy={"create_on_first_use": True}, limits=limits
    ) as server:
        yield server


@pytest.mark.requirement("P12")
def test_a_refused_call_says_which_limit_and_when(server: Server) -> None:
    """The text is the documented one, and `data` has the same for programs."""
    token = server.token(org_id="acme")
    result(server.client.call(token, "whoami"))
    for tool, limit, most_s in (("whoami", "tool", 120), ("record_call", "tenant", 60)):
        for _ in range(2 if limit == "tenant" else 0):
            result(server.client.call(token, "record_call"))
        answer = server.client.call(token, tool)
        refused = failure(answer)

        assert (answer.status, refused["code"]) == (200, -32000)
        assert refused["message"] == "Rate limit exceeded. Please try again later."
        assert refused["data"]["limit"] == limit
        assert 0 < refused["data"]["retryAfter"] <= most_s
        assert answer.field("retry-after") == str(refused["data"]["retryAfter"])

    result(server.client.call(server.token(org_id="globex"), "whoami"))


def test_a_tools_own_table_overrides_the_table_of_all_tools() -> None:
    """Keys that it does not set come from the table of all tools."""
    rules = rules_of(
        LimitsSettings(
            tool=ToolLimitSettings(requests_per_second=2.0, concurrency=7),
            tools={"echo": NamedToolLimitSettings(concurrency=0)},
        )
    )

    assert (rules.tool.rate, rules.tool.burst, rules.tool.concurrency) == (2, 4, 7)
    assert (rules.tools["echo"].rate, rules.tools["echo"].concurrency) == (2, ANY)

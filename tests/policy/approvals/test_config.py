"""What `gatepost check` finds in `[approvals]`."""

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.support.issuers import Idp
from tests.support.server import check_problems, issuer_settings

SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()
ROLES = {
    "approver": {"claim": "roles", "value": "approver"},
    "boss": {"claim": "roles", "value": "boss"},
}
HOOK_URL = "https://hooks.example.com/gatepost"


def rule(**settings: Any) -> dict[str, Any]:
    return {"rules": [{"tools": ["whoami"], **settings}]}


CONFIG_CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing": ({}, []),
    "what is right": (
        {
            "require": ["whoami", "pack:demo", "*"],
            "rules": [
                {
                    "tools": ["whoami"],
                    "when": "caller.kind == 'client'",
                    "by": ["role:boss", "subject:https://id.example.com dan"],
                    "approvals": 2,
                    "timeout_s": 60,
                }
            ],
            "webhook": {"url": HOOK_URL, "secret": "file:hook"},
        },
        [],
    ),
    "a condition that is none": (rule(when="arguments."), ["config.E080"]),
    "loops in loops": (rule(when="[1].all(x, [1].all(y, x == y))"), ["config.E080"]),
    "nobody": (rule(by=["boss"]), ["config.E081"]),
    "no role": (rule(by=["role:"]), ["config.E081"]),
    "a subject without its issuer": (rule(by=["subject:dan"]), ["config.E081"]),
    "three people": (rule(approvals=3), ["config.E082"]),
    "nobody at all": (rule(approvals=0), ["config.E082"]),
    "two people of whom one is named": (
        rule(approvals=2, by=["subject:https://id.example.com dan"]),
        ["config.E082"],
    ),
    "no time": ({"timeout_s": 0}, ["config.E016"]),
    "more than half a day": (rule(timeout_s=50_000), ["config.E016"]),
    "nobody may wait": ({"max_waiting_per_caller": 0}, ["config.E016"]),
    "no grant": ({"max_grants_per_tenant": 0}, ["config.E016"]),
    "a history of less than nothing": ({"keep_s": -1}, ["config.E016"]),
    "a hook that is no URL": ({"webhook": {"url": "x", "secret": "file:hook"}}, ["config.E083"]),
    "a hook without a secret": ({"webhook": {"url": HOOK_URL}}, ["config.E083"]),
    "a secret in the file": ({"webhook": {"url": HOOK_URL, "secret": SECRET}}, ["config.E083"]),
    "a secret that is not there": (
        {"webhook": {"url": HOOK_URL, "secret": "file:nowhere"}},
        ["config.E083"],
    ),
    "a secret of another kind": (
        {"webhook": {"url": HOOK_URL, "secret": "file:odd"}},
        ["config.E083"],
    ),
    "an unknown tool": ({"require": ["who_am_i"]}, ["config.W080"]),
    "an unknown pack": (rule(tools=["pack:demos"]), ["config.W080"]),
    "required and freed": (
        {"require": ["whoami"], "auto_approve": ["pack:demo"]},
        ["config.W081"],
    ),
    "a role that nobody has": (rule(by=["role:chief"]), ["config.W082"]),
}


@pytest.fixture(autouse=True)
def secrets() -> None:
    """Write the secrets that the configuration names."""
    Path("hook").write_text(SECRET, encoding="utf-8")
    Path("odd").write_text("hunter2", encoding="utf-8")


@pytest.mark.requirement("A7")
@pytest.mark.parametrize(("settings", "ids"), CONFIG_CASES.values(), ids=CONFIG_CASES)
def test_check_reports_invalid_approval_settings(
    idp: Idp, settings: dict[str, Any], ids: list[str]
) -> None:
    """Each problem is reported once, and no text has a secret."""
    problems = check_problems([issuer_settings(idp, roles=ROLES)], approvals=settings)

    assert [problem.id for problem in problems if "approvals" in (problem.setting or "")] == ids
    text = " ".join(f"{problem.message} {problem.hint}" for problem in problems)
    assert "hunter2" not in text
    assert SECRET not in text


def test_check_warns_if_only_the_command_line_can_approve(idp: Idp) -> None:
    """No issuer maps the approver role, so no person could decide in the dashboard."""
    settings = {"require": ["whoami"]}

    [problem] = [
        problem
        for problem in check_problems([issuer_settings(idp)], approvals=settings)
        if problem.setting == "approvals"
    ]

    assert problem.id == "config.W082"
    assert "whoami" in problem.message

"""What is told of limits, of people who decide, and of the record."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rest.octopus import Octopus
from tests.support.idp import Idp
from tests.support.waiting import eventually
from tests.telemetry.page import Page, gathered
from tests.tenancy.house import House, house, issuer

pytestmark = pytest.mark.requirement("P16")


def settings(**changes: Any) -> dict[str, Any]:
    usual = {
        "tenancy": {"create_on_first_use": True},
        "limits": {"requests_per_second": 0.01, "burst": 3, "failures_per_second": 0},
        "approvals": {"require": ["whoami"], "timeout_s": 1.0},
    }
    return usual | changes


@pytest.fixture(scope="module")
def site() -> Iterator[House]:
    with Idp() as idp, house(idp, [issuer(idp)], **settings()) as site:
        yield site


def page(site: House) -> Page:
    return gathered(site.inside.board)


def test_what_a_limit_refuses_is_counted_under_it(site: House) -> None:
    """And as a call that ended so."""
    token = site.token(org_id="flood")
    for _ in range(5):
        site.door.call(token, "echo", {"text": "x"})
    refused = {"tool": "echo", "outcome": "rate_limit"}
    eventually(lambda: page(site).value("gatepost_tool_calls_total", **refused), within=20)
    told = page(site)

    assert told.value("gatepost_rate_limited_total", limit="caller") == 2
    assert told.value("gatepost_tool_calls_total", **refused) == 2


def test_approvals_are_counted_by_how_they_end(site: House) -> None:
    """One that nobody decided expires; the call that brought it was answered as pending."""
    Octopus(site, site.token(org_id="patient")).call("whoami", {})
    eventually(
        lambda: page(site).value("gatepost_approvals_total", result="expired") == 1, within=15
    )
    told = page(site)

    assert told.value("gatepost_tool_calls_total", tool="whoami", outcome="approval_pending") == 1
    assert told.value("gatepost_approvals_waiting") == 0


def test_commits_of_the_record_are_timed(site: House) -> None:
    """Each call waited for one of them."""
    site.door.call(site.token(org_id="recorded"), "echo", {"text": "x"})
    told = page(site)

    assert told.value("gatepost_audit_commit_seconds_count") >= 1
    assert told.value("gatepost_audit_queue_length") == 0

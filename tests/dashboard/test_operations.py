"""The operators' page: what all processes and tenants do, and who may see it."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.config.settings import Config
from gatepost.dashboard.operations import issuers_of, slow_tools
from gatepost.runtime import process_reports
from gatepost.runtime.process_reports import (
    BOUNDS_S,
    DEPLOYMENT,
    KEPT_S,
    OUTDATED_S,
    SUBJECT,
    ProcessReport,
    ProcessReporter,
    ReportedKeys,
    ToolTimes,
)
from tests.dashboard.billing_server import BillingServer, open_billing_server
from tests.dashboard.conftest import HttpBrowser, open_dashboard_server

OTHER_PAGES = ("/history", "/grants", "/audit", "/tools", "/usage", "/live", "/upstreams")


@pytest.fixture(scope="module")
def billing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BillingServer]:
    with open_billing_server(tmp_path_factory.mktemp("operations")) as running:
        running.call("find_customer", {"name": "Mueller"})
        running.call("refund", {"customer": "C-1"})
        running.call("whoami", {}, "bob", tenant="globex")
        running.server.client.call("not-a-token", "whoami")
        yield running


@pytest.fixture(scope="module")
def olga(billing: BillingServer) -> Iterator[HttpBrowser]:
    """Yield the browser of an operator who is no approver."""
    with billing.server.user_browser("olga") as user_browser:
        yield user_browser


def reporter(billing: BillingServer, *, ago_s: float = 0.0) -> ProcessReporter:
    """Return the reporter of a process whose clock is *ago_s* behind."""
    now = billing.now
    return ProcessReporter(billing.server.services, clock=lambda: now() - ago_s)


def text_of(user_browser: HttpBrowser) -> str:
    answer = user_browser.get("/operations")
    assert answer.status_code == 200
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


def test_an_operator_sees_all_tenants_and_processes(
    billing: BillingServer, olga: HttpBrowser, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The page has callers, refusals by reason, issuers with key ages, tools and processes.

    The server log has the operator's visit, because no tenant's audit log has it.
    """
    caplog.set_level("INFO", "gatepost.dashboard")
    current, other = reporter(billing), reporter(billing, ago_s=OUTDATED_S + 1)
    for process in (current, other):
        billing.server.run(process.write())
    page = text_of(olga)
    billing.server.run(current.remove())
    after = text_of(olga)
    billing.server.run(other.remove())

    looks = [record for record in caplog.records if record.message == "operations_shown"]
    assert {vars(record)["subject"] for record in looks} == {"olga"}
    assert "`" not in page
    assert "<code>" in olga.get("/operations").text
    assert "Erin Ek acme" in page
    assert "Bob Bright globex" in page
    assert re.search(r"Requests by reason .*invalid token \d", page)
    assert re.search(r"/dev-as ready 2 of 2 (just now|\d+ s ago|\d+ min ago)", page)
    assert re.search(r"find_customer \S+ s \S+ s 2\b", page)
    assert (page.count("Ready"), page.count("No report")) == (1, 1)
    assert (after.count("Ready"), after.count("No report")) == (0, 1)
    assert "No process has reported yet" in text_of(olga)


@pytest.mark.parametrize("subject", ["alice", "dave", "erin"])
def test_the_operations_page_is_refused_to_other_roles(
    billing: BillingServer, subject: str
) -> None:
    """An administrator of a tenant cannot open it and gets no link to it."""
    with billing.server.user_browser(subject) as user_browser:
        refused, first = user_browser.get("/operations"), user_browser.get("")

    assert refused.status_code == 403
    assert "not an operator" in unescape(refused.text)
    assert "globex" not in refused.text
    assert "/operations" not in first.text


def test_an_operator_can_open_only_the_operations_page(
    billing: BillingServer, olga: HttpBrowser
) -> None:
    """Requests and audit records belong to the tenants."""
    first = olga.get("")

    assert (first.status_code, first.headers["location"]) == (303, "/dashboard/operations")
    assert {olga.get(below).status_code for below in OTHER_PAGES} == {403}
    assert 'href="/dashboard/history"' not in olga.get("/operations").text


def test_without_an_operator_there_is_no_page_and_no_report(tmp_path: Path) -> None:
    """No process stores a report that cannot be read."""

    def change(config: Config) -> Config:
        (issuer,) = config.issuers
        roles = {name: rule for name, rule in issuer.roles.items() if name != "operator"}
        return msgspec.structs.replace(
            config, issuers=(msgspec.structs.replace(issuer, roles=roles),)
        )

    with open_dashboard_server(tmp_path, change=change) as server:
        server.run(ProcessReporter(server.services).write())
        with server.user_browser("alice") as alice:
            assert alice.get("/operations").status_code == 404
        entries = server.services.records.for_tenant(DEPLOYMENT).entries(SUBJECT)
        assert server.run(entries.all()) == []


def test_reports_of_other_versions_are_shown_or_skipped(
    billing: BillingServer, olga: HttpBrowser
) -> None:
    """An unreadable or expired report is skipped, because versions run side by side."""
    entries, now = (
        billing.server.services.records.for_tenant(DEPLOYMENT).entries(SUBJECT),
        billing.now(),
    )
    newer = ProcessReport(
        process="p", host="<b>h", pid=1, version="9.9", started_at=now, written_at=now
    )
    for key, value, expires_at in (
        ("odd", b"\x00", now + KEPT_S),
        ("old", msgspec.msgpack.encode(newer), now - 1),
        ("new", msgspec.msgpack.encode(newer), now + KEPT_S),
    ):
        billing.server.run(entries.put(key, value, now=now, expires_at=expires_at))
    billing.server.run(reporter(billing).write())
    page = text_of(olga)
    for key in (entry.key for entry in billing.server.run(entries.all())):
        billing.server.run(entries.delete(key))

    assert page.count("9.9") == 2  # in its row and in the notification
    assert "Several versions are running" in page
    assert "<b>h 1" in page


def test_reports_of_ended_processes_do_not_hide_running_ones(
    billing: BillingServer, olga: HttpBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expired and outdated reports come before the running process in the store."""
    monkeypatch.setattr(process_reports, "MAX_REPORTS", 2)
    entries, now = (
        billing.server.services.records.for_tenant(DEPLOYMENT).entries(SUBJECT),
        billing.now(),
    )
    for key, age_s in (("a", KEPT_S + 1), ("b", KEPT_S + 1), ("c", 99.0), ("d", 99.0), ("e", 0.0)):
        report = ProcessReport(
            process=key, host=f"host-{key}", pid=1, version="1", started_at=0, written_at=now
        )
        value = msgspec.msgpack.encode(report)
        expires_at = now - age_s + KEPT_S
        billing.server.run(entries.put(key, value, now=now, expires_at=expires_at))
    page = text_of(olga)
    for key in "abcde":
        billing.server.run(entries.delete(key))

    assert re.findall(r"host-\w", page) in (["host-c", "host-e"], ["host-d", "host-e"])


def tool_times(tool: str, seconds: float, **calls: int) -> ToolTimes:
    """Return the times of a tool with the number of calls in each bucket."""
    counts = [0] * (len(BOUNDS_S) + 1)
    for bucket, number in calls.items():
        counts[int(bucket[1:])] = number
    return ToolTimes(tool, tuple(counts), seconds)


SLOW_TOOLS: list[tuple[list[ToolTimes], list[tuple[str, int, float, float | None]]]] = [
    ([], []),
    ([tool_times("a", 1.0, _0=2)], [("a", 2, 0.5, BOUNDS_S[0])]),
    ([tool_times("a", 1.0, _0=95, _3=5)], [("a", 100, 0.01, BOUNDS_S[0])]),
    ([tool_times("a", 1.0, _0=94, _3=6)], [("a", 100, 0.01, BOUNDS_S[3])]),
    ([tool_times("a", 400.0, _16=1)], [("a", 1, 400.0, None)]),
    # Another version, with other buckets.
    ([ToolTimes("a", (1, 2), 9.0), tool_times("a", 1.0, _0=2)], [("a", 2, 0.5, BOUNDS_S[0])]),
    (
        [tool_times("a", 1.0, _2=1), tool_times("b", 4.0, _5=1), tool_times("a", 1.0, _2=1)],
        [("b", 1, 4.0, BOUNDS_S[5]), ("a", 2, 1.0, BOUNDS_S[2])],
    ),
]


@pytest.mark.parametrize(("tool_times", "expected"), SLOW_TOOLS)
def test_tools_of_all_processes_are_added_up(tool_times: list[ToolTimes], expected: Any) -> None:
    """The duration shown is the one below which 95 percent of the calls ended."""
    totals = [(tool.tool, tool.calls, tool.mean_s, tool.most_s) for tool in slow_tools(tool_times)]

    assert totals == [
        (tool, calls, pytest.approx(mean), most) for tool, calls, mean, most in expected
    ]


def test_issuers_with_missing_or_old_keys_are_listed_first() -> None:
    """A problem at one process is enough."""
    issuers = issuers_of(
        [
            [ReportedKeys("https://a", "ready", 5.0), ReportedKeys("https://b", "ready", 5.0)],
            [
                ReportedKeys("https://a", "ready", 7_300.0),
                ReportedKeys("https://b", "connect", None),
            ],
            [ReportedKeys("https://c", "template", None)],
        ]
    )

    assert [
        (issuer.issuer, issuer.usable, issuer.total, issuer.oldest_s, issuer.is_old)
        for issuer in issuers
    ] == [
        ("https://b", 1, 2, 5.0, False),
        ("https://a", 2, 2, 7_300.0, True),
        ("https://c", 1, 1, None, False),
    ]

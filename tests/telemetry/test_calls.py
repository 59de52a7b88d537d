"""What a running server counts of what its callers do."""

from collections.abc import Callable, Iterator

import pytest

from tests.rest.octopus import Octopus
from tests.support.door import MODERN
from tests.support.idp import Idp
from tests.support.waiting import eventually
from tests.telemetry.page import Page, gathered, page_of
from tests.tenancy.house import House, house, issuer

pytestmark = pytest.mark.requirement("P16")
SECRET = "s3cret-of-acme-0001"


@pytest.fixture(scope="module")
def site() -> Iterator[House]:
    with (
        Idp() as idp,
        house(
            idp,
            [issuer(idp, tenants={"acme": "acme"})],
            tools={"packs": ["demo", "filesystem"]},
            telemetry={"tenant_label": True},
        ) as site,
    ):
        yield site


def page(site: House) -> Page:
    return page_of(site.inside.board)


def grows(site: House, by: float, work: Callable[[], object], name: str, **labels: str) -> None:
    """That sample grows by so much through *work*; a request counts when its answer is out."""
    # Another test's calls, that were answered a moment ago, are in it.
    before = gathered(site.inside.board).value(name, **labels)
    work()
    eventually(lambda: page(site).value(name, **labels) >= before + by, within=20)
    assert page(site).value(name, **labels) == before + by


CALLS = {
    "done": ("echo", {"text": "hello"}, {"tool": "echo", "outcome": "success"}),
    "failed": (
        "fs_read_text",
        {"path": "none.txt"},
        {"tool": "fs_read_text", "outcome": "not_found"},
    ),
    "wrong": ("echo", {"txt": "hello"}, {"tool": "echo", "outcome": "validation"}),
    "unknown": ("ecko", {}, {"tool": "unknown", "outcome": "unknown"}),
    "hostile": ('x"} 1\nforged{', {}, {"tool": "unknown", "outcome": "unknown"}),
    "lacking": (
        "fs_write_text",
        {"path": "a", "content": "b"},
        {"tool": "fs_write_text", "outcome": "insufficient_scope"},
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_is_counted_however_it_ends(site: House, case: str) -> None:
    """Whichever protocol brought it, by the tool's own name."""
    tool, arguments, labels = CALLS[case]
    token = site.token(org_id="acme", scope="files:read")

    def both() -> None:
        site.door.call(token, tool, arguments)
        if case != "hostile":  # no path can hold it
            Octopus(site, token).call(tool, arguments)

    times = 1 if case == "hostile" else 2
    grows(site, times, both, "gatepost_tool_calls_total", **labels)
    seconds = page(site).value("gatepost_tool_call_seconds_sum", tool=labels["tool"])
    assert seconds > 0
    assert page(site).labels("tool") <= {"echo", "fs_read_text", "fs_write_text", "unknown"}


def test_calls_are_told_by_tenant_where_that_is_asked_for(site: House) -> None:
    """With the id that the configuration gives it."""
    token = site.token(org_id="acme")
    labels = {"tenant": "acme", "outcome": "success"}

    grows(site, 1, lambda: site.door.call(token, "echo", {"text": "x"}), TENANTS, **labels)
    assert page(site).labels("tenant") == {"acme"}


TENANTS = "gatepost_tenant_calls_total"

REFUSALS: dict[str, tuple[str | None, dict[str, str]]] = {
    "no_credentials": (None, {}),
    "invalid_token": ("nonsense", {}),
    "expired_token": ("", {"exp": "past"}),
    "wrong_audience": ("", {"aud": "https://elsewhere.example/mcp"}),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_the_gate_refuses_is_counted_by_its_reason(site: House, reason: str) -> None:
    """The reason is one of ours; what the token says is nowhere."""
    token, claims = REFUSALS[reason]
    if claims:
        told = {"exp": 1_000} if "exp" in claims else claims
        token = site.token(org_id="acme", **told)

    def call() -> None:
        assert site.door.call(token).status == 401

    grows(site, 1, call, "gatepost_refusals_total", reason=reason)


def test_what_the_edge_refuses_is_counted_by_its_code(site: House) -> None:
    """A foreign origin, for one."""

    def call() -> None:
        fields = [("Origin", "https://evil.example")]
        assert site.door.call(site.token(), fields=fields).status == 403

    grows(site, 1, call, "gatepost_refusals_total", reason="forbidden_origin")


ROUTES = {
    "mcp": ("POST", "/mcp", "4xx"),
    "probe": ("GET", "/health", "2xx"),
    "page": ("GET", "/openapi.json", "2xx"),
    "metadata": ("GET", "/mcp/.well-known/oauth-protected-resource", "2xx"),
    "rest": ("GET", "/tools", "4xx"),
    "other": ("GET", "/wp-login.php?x=/tools", "4xx"),
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_request_is_counted_under_its_route(site: House, route: str) -> None:
    """Its path, which a stranger may have made up, is no label."""
    method, path, status = ROUTES[route]

    def ask() -> None:
        site.door.send(method, path)

    name = "gatepost_http_requests_total"
    grows(site, 1, ask, name, route=route, status=status)
    assert page(site).value("gatepost_http_request_seconds_count", route=route) >= 1
    assert "wp-login" not in page(site).text


def test_a_thousand_made_up_names_add_no_label(site: House) -> None:
    """Neither of tools, nor of paths, methods, revisions or tenants."""
    token = site.token(org_id="acme")
    before = set(page(site).samples)
    for number in range(100):
        site.door.call(token, f"no_such_{number}")
        site.door.send("GET", f"/made-up/{number}", token=token)
        site.door.ask(token, f"made/up-{number}")
        Octopus(site, token).call(f"no_such_{number}", {})
    told = gathered(site.inside.board)
    text = told.text

    assert "no_such" not in text
    assert "made-up" not in text
    assert "made/up" not in text
    assert len(set(told.samples) - before) < 200


def test_nothing_of_a_caller_is_on_the_page(site: House) -> None:
    """No subject, no token, no argument, and no tenant that the configuration does not name."""
    token = site.token(org_id="acme", sub="alice-4711")
    site.door.call(token, "echo", {"text": SECRET})
    text = gathered(site.inside.board).text

    assert not any(word in text for word in ("alice-4711", SECRET, token, MODERN))


def test_what_is_looked_at_now_and_then_is_told(site: House) -> None:
    """Stores, issuers, keys and the process itself, a moment after the start."""
    site.door.call(site.token(org_id="acme"))
    eventually(lambda: page(site).value("gatepost_loop_lag_seconds_count") >= 1, within=20)
    eventually(lambda: page(site).value("gatepost_key_fetches_total", result="fetched"), within=20)
    told = page(site)

    assert told.value("gatepost_store_up", store="database") == 1
    assert told.value("gatepost_workers") == 1
    assert told.value("gatepost_issuers", state="ready") + told.value(
        "gatepost_issuers", state="waiting"
    )
    assert told.value("process_cpu_seconds_total") > 0
    assert told.value("process_resident_memory_bytes") > 1e6
    assert told.value("process_open_fds") > 3

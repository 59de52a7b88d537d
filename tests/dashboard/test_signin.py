"""How people get in through their identity provider, and who does not."""

import json
import re
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import httpx2
import pytest
from msgspec.structs import replace

from gatepost.config.limits import LimitsSettings
from gatepost.dashboard.location import valid_page_path
from gatepost.runtime import refused_tokens
from gatepost.storage.audit import AuditQuery
from gatepost_authz.config import DashboardClient, Issuer, TenantRule
from tests.dashboard.conftest import (
    CLIENT,
    DashboardServer,
    HttpBrowser,
    open_dashboard_server,
    query_of,
)
from tests.support.measuring import each, formatted_logs
from tests.support.processes import free_port
from tests.support.programs import BrowserUser


def test_a_user_signs_in_and_out(shared_dashboard: DashboardServer) -> None:
    """The sign-in returns to the requested page, and the sign-out ends the session."""
    with shared_dashboard.user_browser() as user_browser:
        response = user_browser.get("/test/echo/seven?q=1")
        assert response.status_code == 303
        assert response.headers["location"] == "/dashboard/sign-in?next=/test/echo/seven%3Fq%3D1"
        assert (
            'href="/dashboard/sign-in/start?'
            in user_browser.http.get(response.headers["location"]).text
        )

        back = user_browser.sign_in("alice", "/test/echo/seven?q=1")
        assert back.headers["location"] == "/dashboard/test/echo/seven?q=1"
        assert (
            '["acme","alice",{"one":"seven"},{"q":"1"}'
            in user_browser.get("/test/echo/seven?q=1").text
        )

        stolen = user_browser.cookie()
        texts = user_browser.post("/sign-out")
        assert texts.headers["location"] == "/dashboard/signed-out"
        assert "signed out" in user_browser.get("/signed-out").text
        assert user_browser.cookie() == ""
        user_browser.http.cookies.set(session_name(shared_dashboard), stolen)
        assert user_browser.get("/test/echo").status_code == 303
    tenant_log = shared_dashboard.services.audit_writer.store.tenant_log("acme")
    rows = shared_dashboard.run(tenant_log.find(AuditQuery(kind="signin", limit=2)))
    assert [(row.outcome, row.subject) for row in rows] == [
        ("signed_out", "alice"),
        ("signed_in", "alice"),
    ]


def session_name(server: DashboardServer) -> str:
    return f"gatepost{urlsplit(server.origin).port}-session"


def test_each_sign_in_request_has_its_own_pkce_state_and_nonce(
    shared_dashboard: DashboardServer,
) -> None:
    """It uses S256 and names our resource."""
    with shared_dashboard.user_browser() as user_browser:
        first, second = (query_of(user_browser.start().headers["location"]) for _ in range(2))

    assert first["response_type"] == "code"
    assert first["code_challenge_method"] == "S256"
    assert first["resource"] == shared_dashboard.services._config.resource
    assert first["redirect_uri"] == f"{shared_dashboard.home}/callback"
    assert first["client_id"] == CLIENT
    assert "openid" in first["scope"].split()
    for name in ("state", "nonce", "code_challenge"):
        assert len(first[name]) >= 43
        assert first[name] != second[name]


def test_no_token_or_secret_is_in_cookies_pages_or_logs(shared_dashboard: DashboardServer) -> None:
    """This includes the code and the PKCE verifier."""
    with shared_dashboard.user_browser() as user_browser:
        back = BrowserUser("alice").follow(user_browser.start().headers["location"])
        answer = user_browser.http.get(back)
        texts = [user_browser.get("").text, str(answer.headers), shared_dashboard.log()]

    assert not any(re.search(r"eyJ[\w-]{20,}\.eyJ|dev-rt-", text) for text in texts)
    assert query_of(back)["code"] not in "".join(texts)


def finish(user_browser: HttpBrowser, callback_url: str) -> httpx2.Response:
    return user_browser.http.get(callback_url)


def changed_callback(callback_url: str, **changes: str | None) -> str:
    """Return the callback address with other parameters; None omits one."""
    values = query_of(callback_url) | changes
    present = {name: value for name, value in values.items() if value is not None}
    return f"{callback_url.partition('?')[0]}?{urlencode(present)}"


REFUSED_RETURNS = [
    # what is different            status
    ({"state": "x" * 43}, 400),
    ({"state": None}, 400),
    ({"state": "\u00e9"}, 400),
    ({"iss": "http://127.0.0.1:1/dev-as"}, 403),
    ({"iss": None}, 403),
    ({"code": "made-up"}, 403),
    ({"code": None}, 400),
    ({"code": "a b"}, 400),
    ({"code": "\u0000"}, 400),
    ({"code": None, "error": "access_denied"}, 403),
    ({"error": "<script>"}, 403),
]


@each(("changes", "status"), REFUSED_RETURNS, ids=str)
def test_forged_sign_in_callbacks_are_refused(
    shared_dashboard: DashboardServer, changes: dict[str, str | None], status: int
) -> None:
    """The page repeats no parameter, and no session is created."""
    with shared_dashboard.user_browser() as user_browser:
        back = BrowserUser("alice").follow(user_browser.start().headers["location"])
        answer = finish(user_browser, changed_callback(back, **changes))

        assert answer.status_code == status
        assert user_browser.cookie() == ""
        assert "<script>" not in answer.text
        assert user_browser.get("/test/echo").status_code == 303


def test_a_callback_is_accepted_once_and_in_its_own_browser(
    shared_dashboard: DashboardServer,
) -> None:
    """A replayed callback and one taken to another browser are refused."""
    with shared_dashboard.user_browser() as user_browser, shared_dashboard.user_browser() as thief:
        back = BrowserUser("alice").follow(user_browser.start().headers["location"])
        taken = finish(thief, back)
        first, again = finish(user_browser, back), finish(user_browser, back)

        assert (taken.status_code, first.status_code, again.status_code) == (400, 303, 400)
        assert thief.cookie() == ""


def test_a_code_of_another_persons_sign_in_is_refused(shared_dashboard: DashboardServer) -> None:
    """A stolen code fails by its PKCE challenge and its nonce."""
    with shared_dashboard.user_browser() as victim, shared_dashboard.user_browser() as attacker:
        stolen = query_of(BrowserUser("alice").follow(victim.start().headers["location"]))["code"]
        own = BrowserUser("eve").follow(attacker.start().headers["location"])
        answer = finish(attacker, changed_callback(own, code=stolen))

        assert answer.status_code == 403
        assert attacker.cookie() == ""


def test_a_refused_sign_in_is_logged_like_a_refused_token(
    shared_dashboard: DashboardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event has the reason and the issuer, but not the code."""
    monkeypatch.setattr(refused_tokens, "MAX_PER_PEER", 10**6)
    with (
        shared_dashboard.user_browser() as victim,
        shared_dashboard.user_browser() as attacker,
        formatted_logs("json") as log,
    ):
        stolen = query_of(BrowserUser("alice").follow(victim.start().headers["location"]))["code"]
        own = BrowserUser("eve").follow(attacker.start().headers["location"])
        finish(attacker, changed_callback(own, code=stolen))

    events = [json.loads(line) for line in log.getvalue().splitlines() if line.startswith("{")]
    [event] = [event for event in events if event["event"] == "token_refused"]
    assert (event["at"], event["reason"]) == ("sign_in", "bad_code")
    assert event["issuer"] == shared_dashboard.services._config.issuers[0].issuer
    assert stolen not in json.dumps(event)


def test_an_attackers_sign_in_cannot_be_finished_by_a_victim(
    shared_dashboard: DashboardServer,
) -> None:
    """The victim's browser has no pending sign-in, or another one (login CSRF)."""
    with shared_dashboard.user_browser() as victim, shared_dashboard.user_browser() as attacker:
        back = BrowserUser("eve").follow(attacker.start().headers["location"])
        without = finish(victim, back)
        victim.start()
        during = finish(victim, back)

        assert (without.status_code, during.status_code) == (400, 400)
        assert victim.cookie() == ""


def test_a_new_sign_in_ends_the_session_before(shared_dashboard: DashboardServer) -> None:
    """A cookie that was planted before the sign-in becomes invalid (session fixation)."""
    with (
        shared_dashboard.user_browser("eve", fresh=True) as user_browser,
        shared_dashboard.user_browser() as other,
    ):
        before = user_browser.cookie()
        user_browser.sign_in("alice")
        assert user_browser.cookie() not in {"", before}

        other.http.cookies.set(session_name(shared_dashboard), before)
        assert other.get("/test/open").status_code == 303
        assert '"alice"' in user_browser.get("/test/open").text


HOSTILE_URLS = [
    "https://evil.example/",
    "//evil.example",
    "///evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "/%2f%2fevil.example",
    "/%5cevil.example",
    "/..//evil.example",
    "/../../evil",
    "/.",
    "/./x",
    "/.evil.example",
    "javascript:alert(1)",
    "data:text/html,x",
    "/x\r\nset-cookie: a=b",
    "/x\nlocation: //evil.example",
    "/x y",
    "/x#//evil.example",
    "/x?next=https://evil.example",
    "/x@evil.example",
    "@evil.example",
    ".evil.example",
    ":80/x",
    "x",
    "/\u2215evil.example",
    "/" + "x" * 129,
    "/x" * 9,
    "/x?" + "y" * 513,
]


@each("path", HOSTILE_URLS, ids=ascii)
def test_return_paths_to_other_sites_lead_to_the_first_page(path: str) -> None:
    """Only plain paths of the dashboard are accepted (open redirects)."""
    assert valid_page_path(path) == ""


@pytest.mark.parametrize("path", ["", "/requests/7", "/audit?q=a%20b&page=2", "/a/b-c_d.e~f"])
def test_return_paths_of_the_dashboard_are_kept(path: str) -> None:
    """The cases are paths that pages of the dashboard have."""
    assert valid_page_path(path) == path


@pytest.mark.parametrize("path", HOSTILE_URLS[:8], ids=ascii)
def test_a_sign_in_never_redirects_to_another_site(
    shared_dashboard: DashboardServer, path: str
) -> None:
    """The last redirect goes to the dashboard itself."""
    with shared_dashboard.user_browser() as user_browser:
        page = user_browser.http.get("/dashboard/sign-in", params={"next": path})
        assert "evil" not in page.text
        assert user_browser.sign_in("alice", path).headers["location"] == "/dashboard"


def test_redirects_of_pages_never_lead_to_another_site(shared_dashboard: DashboardServer) -> None:
    """They follow the rule of return paths."""
    with shared_dashboard.user_browser("alice") as user_browser:
        assert user_browser.post("/test/onward", {"to": "/history"}).headers["location"] == (
            "/dashboard/history"
        )
        for path in HOSTILE_URLS[:8]:
            answer = user_browser.post("/test/onward", {"to": path})
            assert answer.headers["location"] == "/dashboard"


def test_sign_ins_with_made_up_codes_are_rate_limited(tmp_path: Path) -> None:
    """Each code causes a request to the issuer, so a peer has to wait after several."""
    few = LimitsSettings(failures_per_second=3)
    changed = open_dashboard_server(tmp_path, change=lambda settings: replace(settings, limits=few))
    with changed as opened, opened.user_browser() as user_browser:
        state = query_of(user_browser.start().headers["location"])["state"]
        way = {"code": "made-up", "state": state, "iss": opened.config.issuers[0].issuer}
        answers = [user_browser.http.get("/dashboard/callback", params=way) for _ in range(5)]

    assert [answer.status_code for answer in answers] == [403, 403, 403, 429, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert "text/html" in answers[-1].headers["content-type"]


def test_an_unreachable_issuer_is_answered_with_503(tmp_path: Path) -> None:
    """The page says that the user is not at fault."""
    client = DashboardClient(client_id="x", client_secret=f"file:{__file__}")
    away = Issuer(
        issuer=f"http://127.0.0.1:{free_port()}/dev-as",
        tenant=TenantRule(claim="org_id"),
        dashboard=client,
    )
    changed = open_dashboard_server(
        tmp_path, change=lambda settings: replace(settings, issuers=(away,))
    )
    with changed as opened, opened.user_browser() as user_browser:
        answers = [user_browser.start() for _ in range(2)]

    assert [answer.status_code for answer in answers] == [503, 503]
    assert "could not be reached" in answers[0].text


def test_a_sign_in_can_use_only_listed_issuers(shared_dashboard: DashboardServer) -> None:
    """An unknown name is 404, and no parameter names an address."""
    with shared_dashboard.user_browser() as user_browser:
        for name in ("", "0" * 12, "https://evil.example"):
            answer = user_browser.http.get("/dashboard/sign-in/start", params={"issuer": name})
            assert answer.status_code == 404

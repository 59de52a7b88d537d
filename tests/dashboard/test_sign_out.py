"""Signing out at the issuer too, and what a user is told when the issuer refuses this server."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from msgspec.structs import replace
from playwright.sync_api import expect

from gatepost_authz.config import DashboardClient, Issuer, RoleRule, TenantRule
from tests.dashboard.conftest import (
    CLIENT,
    SECRET,
    DashboardServer,
    HttpBrowser,
    ProductionProvider,
    open_dashboard_server,
    query_of,
)
from tests.support.connections import WITHIN_S
from tests.support.issuers import Idp, Receive, Scope, Send, jwk, respond, rsa_key
from tests.support.measuring import each, formatted_logs
from tests.support.programs import chromium, in_a_browser


class ChangeableProvider(ProductionProvider):
    """
    Signs every browser in as `person`, and has a page to sign out.

    *refuses* is the status and error of its token endpoint, and *declines* the error of its
    sign-in, without `iss`. *audience* is the ID token's, and *metadata* are further members.
    Its page to sign out answers once *answers* is set.
    """

    def __init__(self) -> None:
        Idp.__init__(self)
        self.person, self.asked = "alice", list[dict[str, str]]()
        self._codes: dict[str, dict[str, str]] = {}
        self.refuses: tuple[int, str] | None = None
        self.declines = ""
        self.audience: str | list[str] = CLIENT
        self.metadata: dict[str, Any] = {}
        self.answers = threading.Event()
        self.keys["main"] = [jwk(rsa_key())]

    def _document(self, path: str) -> dict[str, Any] | None:
        document = super()._document(path)
        return document and (document if "keys" in document else document | self.metadata)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/main/token" and self.refuses:
            status, error = self.refuses
            await respond(send, status, json.dumps({"error": error}).encode())
        elif scope["path"] == "/main/authorize" and self.declines:
            query = dict(parse_qsl(scope["query_string"].decode()))
            back = f"{query['redirect_uri']}?error={self.declines}&state={query['state']}"
            await respond(send, 303, b"", ((b"location", back.encode()),))
        elif scope["path"] == "/main/end":
            await asyncio.to_thread(self.answers.wait, WITHIN_S)
            query = dict(parse_qsl(scope["query_string"].decode()))
            back = query["post_logout_redirect_uri"]
            await respond(send, 303, b"", ((b"location", back.encode()),))
        else:
            await super()._answer(scope, receive, send)

    def identity(self, claims: dict[str, Any]) -> dict[str, Any]:
        """Return the claims of the ID token."""
        return claims | {"aud": self.audience}


@contextmanager
def changeable_provider(
    folder: Path, **client: Any
) -> Iterator[tuple[DashboardServer, ChangeableProvider]]:
    """Run a dashboard whose people sign in there; *client* are settings of `issuers.dashboard`."""
    with ChangeableProvider() as provider:
        provider.metadata = {
            "end_session_endpoint": f"{provider.issuer('main')}/end",
            "prompt_values_supported": ["none", "login", "select_account"],
        }
        secret = f"file:{folder / 'secret'}"
        issuer = Issuer(
            issuer=provider.issuer("main"),
            tenant=TenantRule(claim="org_id"),
            roles={"approver": RoleRule(claim="roles", value="approver")},
            dashboard=DashboardClient(client_id=CLIENT, client_secret=secret, **client),
        )
        (folder / "secret").write_text(SECRET)
        changed = open_dashboard_server(
            folder, change=lambda settings: replace(settings, issuers=(issuer,))
        )
        with changed as server:
            yield server, provider


@pytest.fixture(scope="module")
def shared_provider(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[DashboardServer, ChangeableProvider]]:
    with changeable_provider(tmp_path_factory.mktemp("sign-out")) as pair:
        yield pair


@pytest.fixture
def server(shared_provider: tuple[DashboardServer, ChangeableProvider]) -> DashboardServer:
    return shared_provider[0]


@pytest.fixture
def provider(
    shared_provider: tuple[DashboardServer, ChangeableProvider],
) -> Iterator[ChangeableProvider]:
    """Yield the issuer, and undo the changes of the test."""
    provider = shared_provider[1]
    yield provider
    provider.refuses, provider.declines, provider.audience = None, "", CLIENT


def signed_in(user_browser: HttpBrowser) -> str:
    """Sign in as far as the issuer lets; return the page at the end."""
    back = user_browser.http.get(user_browser.start().headers["location"]).headers["location"]
    return user_browser.http.get(back).text


def test_signing_out_redirects_to_the_end_session_endpoint(
    server: DashboardServer, provider: ChangeableProvider
) -> None:
    """The request has the ID token of the session and the address to return to."""
    with server.user_browser() as user_browser:
        signed_in(user_browser)
        assert user_browser.get().status_code == 200
        response = user_browser.post("/sign-out")
        address = response.headers["location"]

        assert address.startswith(f"{provider.issuer('main')}/end?")
        query = query_of(address)
        assert query["client_id"] == CLIENT
        assert query["post_logout_redirect_uri"] == f"{server.home}/signed-out"
        assert query["id_token_hint"].count(".") == 2
        assert not list(user_browser.http.cookies.jar)
        assert user_browser.get().headers["location"] == "/dashboard/sign-in"


@in_a_browser[0]
@in_a_browser[1]
def test_the_end_of_the_stream_leaves_a_browser_on_its_way_to_the_issuer(
    server: DashboardServer, provider: ChangeableProvider
) -> None:
    """The session ends, and so the stream of the page, before a slow issuer has answered."""
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{server.home}/sign-in")
        with page.expect_request("**/live"):
            page.get_by_role("link", name="Continue").click()
        asked = list[str]()
        page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
        # The page asks for a stream once more, half a second after the end of the first.
        with page.expect_request("**/live"):
            page.get_by_role("button", name="Sign out").click(no_wait_after=True)
        assert f"GET {server.home}" not in asked
        provider.answers.set()
        expect(page).to_have_url(f"{server.home}/signed-out")


def test_the_sign_out_form_may_be_redirected_to_the_issuer_only(
    server: DashboardServer, provider: ChangeableProvider
) -> None:
    """Chromium applies `form-action` to redirects, so the policy names the issuer's host."""
    with server.user_browser() as user_browser:
        policy = user_browser.get("/sign-in").headers["content-security-policy"]

    assert policy.endswith(f"; form-action 'self' {provider.base}")


def test_the_sign_in_after_a_sign_out_asks_for_the_account(
    server: DashboardServer, provider: ChangeableProvider
) -> None:
    """This also holds after a refusal; otherwise the issuer signs the person in again."""
    with server.user_browser() as user_browser:
        signed_in(user_browser)
        page = user_browser.get("/signed-out").text
        again = re.search(r'href="(/dashboard/sign-in\?[^"]+)"', page)
        assert again is not None
        link = re.search(r'href="([^"]*/start\?[^"]+)"', user_browser.http.get(again[1]).text)
        assert link is not None
        location = user_browser.http.get(link[1].replace("&amp;", "&")).headers["location"]

    assert "prompt" not in provider.asked[-1]
    assert query_of(location)["prompt"] == "select_account"


def test_sign_out_false_ends_the_dashboard_session_only(tmp_path: Path) -> None:
    """No ID token is kept, and the policy allows no other host."""
    with (
        changeable_provider(tmp_path, sign_out=False) as (server, _),
        server.user_browser() as user_browser,
    ):
        signed_in(user_browser)
        assert {cookie.name.rpartition("-")[2] for cookie in user_browser.http.cookies.jar} == {
            "session"
        }
        response = user_browser.post("/sign-out")

    assert response.headers["location"] == "/dashboard/signed-out"
    assert response.headers["content-security-policy"].endswith("; form-action 'self'")


def test_without_issuer_metadata_the_sign_out_ends_the_session_locally(tmp_path: Path) -> None:
    """The browser is redirected to the dashboard's own page."""
    with changeable_provider(tmp_path) as (server, provider), server.user_browser() as user_browser:
        signed_in(user_browser)
        provider.metadata = {"end_session_endpoint": "https://elsewhere.example/end"}
        server.run(forget(server))
        response = user_browser.post("/sign-out")

        assert response.headers["location"] == "/dashboard/signed-out"
        assert user_browser.get().status_code == 303


async def forget(server: DashboardServer) -> None:
    """Have the server read the issuer's metadata anew."""
    server.services.keys.discovery.invalidate(server.config.issuers[0].issuer)


OWN_FAULTS = [
    # status and error of the token endpoint, the setting that the page names
    ((401, "invalid_client"), "issuers.dashboard.client_id, client_secret and method"),
    ((400, "invalid_client"), "issuers.dashboard.client_id, client_secret and method"),
    ((401, "made_up"), "issuers.dashboard.client_id, client_secret and method"),
    ((400, "unauthorized_client"), "issuers.dashboard.client_id"),
    ((400, "invalid_scope"), "issuers.dashboard.scopes and scopes.baseline"),
    ((400, "invalid_target"), "resource"),
]


@each(("refusal", "setting"), OWN_FAULTS, ids=str)
def test_a_refusal_of_the_client_by_the_issuer_names_the_setting(
    server: DashboardServer,
    provider: ChangeableProvider,
    refusal: tuple[int, str],
    setting: str,
) -> None:
    """The page tells the user that it is not their fault; text of the issuer is left out."""
    provider.refuses = refusal
    with server.user_browser() as user_browser, formatted_logs("json") as log:
        page = signed_in(user_browser)

    assert "refused this server, not you" in page
    assert setting in page
    lines = [line for line in log.getvalue().splitlines() if "sign_in_misconfigured" in line]
    assert [json.loads(line)["issuer"] for line in lines] == [provider.issuer("main")]
    assert setting in lines[0]
    assert "made_up" not in page + log.getvalue()


def test_invalid_grant_is_a_refused_sign_in_and_no_misconfiguration(
    server: DashboardServer, provider: ChangeableProvider
) -> None:
    """The error is about the code, which may be made up."""
    provider.refuses = (400, "invalid_grant")
    with server.user_browser() as user_browser:
        page = signed_in(user_browser)

    assert "Access denied" in page
    assert "misconfigured" not in page


def test_a_sign_in_error_without_iss_is_shown(
    server: DashboardServer, provider: ChangeableProvider
) -> None:
    """django-oauth-toolkit announces `iss` but leaves it out of errors."""
    provider.declines = "invalid_scope"
    with server.user_browser() as user_browser:
        page = signed_in(user_browser)

    assert "issuers.dashboard.scopes" in page
    assert user_browser.cookie() == ""


def test_an_id_token_may_name_our_resource_as_a_second_audience(
    server: DashboardServer, provider: ChangeableProvider
) -> None:
    """Canaille does so without `azp`; a foreign audience needs `azp`."""
    ours = server.config.resource
    provider.audience = [CLIENT, ours]
    with server.user_browser() as user_browser:
        signed_in(user_browser)
        assert user_browser.get().status_code == 200


@pytest.mark.parametrize("named", [["https://other.example"], [{"a": 1}], [None]], ids=str)
def test_an_id_token_with_a_foreign_audience_is_refused(
    server: DashboardServer, provider: ChangeableProvider, named: list[str]
) -> None:
    """The page names the claim and the setting."""
    provider.audience = [CLIENT, *named]
    with server.user_browser() as user_browser:
        page = signed_in(user_browser)

        assert "claim aud, setting issuers.dashboard.client_id" in page
        assert user_browser.get().status_code == 303

"""Several issuers and tenants: who may sign in where, and what the page says about it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from gatepost.config.settings import Config
from gatepost.dashboard.cookie import Cookies
from gatepost.dashboard.security_headers import security_headers_of
from gatepost_authz.config import Introspection, Issuer, TenantRule
from gatepost_authz.protected_resource import Resource
from gatepost_keys.issuer import DevelopmentIssuer as Provider
from tests.dashboard.conftest import (
    CLIENT,
    SECRET,
    DashboardServer,
    issuer_of,
    open_dashboard_server,
    query_of,
)
from tests.support.measuring import capture_logs
from tests.support.programs import BrowserUser
from tests.support.sign_in import RESOURCE_SERVER, TokenForm, authorization_server
from tests.support.sign_in import SECRET as OTHER_SECRET


@contextmanager
def two_issuers(root: Path, form: TokenForm = "jwt") -> Iterator[DashboardServer]:
    """Serve with the development issuer for acme and with oidc-provider for globex."""
    with ExitStack() as running:

        def add(config: Config) -> Config:
            home = config.resource.removesuffix("/mcp") + "/dashboard"
            client = {
                "client_id": CLIENT,
                "client_secret": SECRET,
                "redirect_uris": [f"{home}/callback"],
                "grant_types": ["authorization_code"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "client_secret_basic",
            }
            other = running.enter_context(
                authorization_server(
                    {config.resource: form},
                    scopes=["files:read"],
                    tenants={"alice": "globex"},
                    clients=[client],
                )
            )
            (root / "introspection").write_text(OTHER_SECRET)
            second = Issuer(
                issuer=other.issuer,
                preset="oidc-provider",
                tenant=TenantRule(claim="org_id"),
                tenants={"globex": "globex"},
                dashboard=issuer_of(other.issuer, root).dashboard,
                introspection=Introspection(
                    client_id=RESOURCE_SERVER, client_secret=f"file:{root / 'introspection'}"
                ),
            )
            first = msgspec.structs.replace(config.issuers[0], tenants={"acme": "acme"})
            return msgspec.structs.replace(config, issuers=(first, second))

        with open_dashboard_server(root, change=add) as opened:
            yield opened


@pytest.mark.parametrize("form", ["jwt", "opaque"])
def test_people_sign_in_with_oidc_provider(tmp_path: Path, form: TokenForm) -> None:
    """Access tokens are signed or opaque; the sign-in page offers both issuers."""
    with two_issuers(tmp_path, form) as opened, opened.user_browser() as user_browser:
        offered = user_browser.get("/sign-in").text
        issuers = [issuer.issuer for issuer in opened.config.issuers]
        assert [offered.index(issuer) for issuer in issuers] == sorted(map(offered.index, issuers))

        back = BrowserUser("alice").follow(user_browser.start(which=1).headers["location"])
        answer = user_browser.http.get(back)

        assert answer.status_code == 303, answer.text
        assert '["globex","alice"' in user_browser.get("/test/open").text
        assert user_browser.get("/test/echo").status_code == 403


def test_a_code_of_one_issuer_is_never_redeemed_at_another(tmp_path: Path) -> None:
    """The parameters of the callback do not matter."""
    with (
        two_issuers(tmp_path) as opened,
        opened.user_browser() as user_browser,
        opened.user_browser() as other,
    ):
        first, second = (issuer.issuer for issuer in opened.config.issuers)
        code = query_of(
            BrowserUser("alice").follow(user_browser.start(which=1).headers["location"])
        )["code"]
        query = query_of(other.start(which=0).headers["location"])

        for sender in (first, second, ""):
            way = {"code": code, "state": query["state"], "iss": sender}
            answer = other.http.get("/dashboard/callback", params=way)
            assert answer.status_code == 403
            assert other.cookie() == ""


@pytest.fixture(scope="module")
def dashboard_per_tenant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardServer]:
    """Yield a dashboard server where each tenant has a resource and a dashboard of its own."""
    with open_dashboard_server(tmp_path_factory.mktemp("apart"), path="/t/{tenant}/mcp") as opened:
        yield opened


def test_one_browser_can_use_the_dashboards_of_several_tenants(
    dashboard_per_tenant: DashboardServer,
) -> None:
    """Each dashboard has its own session and shows its own tenant."""
    with dashboard_per_tenant.user_browser("alice", fresh=True) as user_browser:
        assert '["acme","alice"' in user_browser.get("/test/open").text

        dashboard_per_tenant.base = "/t/globex/dashboard"
        try:
            assert (
                user_browser.get("/test/open")
                .headers["location"]
                .startswith("/t/globex/dashboard/")
            )
            user_browser.sign_in("bob")
            assert '["globex","bob"' in user_browser.get("/test/open").text
        finally:
            dashboard_per_tenant.base = "/t/acme/dashboard"
        assert '["acme","alice"' in user_browser.get("/test/open").text


def test_a_user_cannot_sign_in_to_another_tenants_dashboard(
    dashboard_per_tenant: DashboardServer,
) -> None:
    """The token names that resource, but the user is not of that tenant."""
    with dashboard_per_tenant.user_browser() as user_browser:
        back = BrowserUser("bob").follow(user_browser.start().headers["location"])
        answer = user_browser.http.get(back)

        assert answer.status_code == 403
        assert user_browser.cookie() == ""


def test_a_session_of_one_tenant_is_refused_at_another_tenant(
    dashboard_per_tenant: DashboardServer,
) -> None:
    """An attacker may rename the cookie."""
    with (
        dashboard_per_tenant.user_browser("alice", fresh=True) as user_browser,
        dashboard_per_tenant.user_browser() as thief,
    ):
        name = next(cookie.name for cookie in user_browser.http.cookies.jar)
        thief.http.cookies.set(name.replace("acme", "globex"), user_browser.cookie())

        answer = thief.http.get("/t/globex/dashboard/test/open")
        assert answer.status_code == 303


def test_a_dashboard_path_without_a_valid_tenant_is_not_found(
    dashboard_per_tenant: DashboardServer,
) -> None:
    """No cookie is set for such a path."""
    with dashboard_per_tenant.user_browser() as user_browser:
        for path in ("/t/A!/dashboard", "/t/%2e/dashboard/sign-in", "/t//dashboard"):
            assert user_browser.http.get(path).status_code in {401, 404}
            assert "set-cookie" not in user_browser.http.get(path).headers


def test_a_sign_in_whose_tokens_name_different_people_is_refused(
    dashboard_per_tenant: DashboardServer,
) -> None:
    """The ID token must match the access token; only the log has the reason."""
    provider: Provider = dashboard_per_tenant.provider
    with dashboard_per_tenant.user_browser() as user_browser:
        back = BrowserUser("alice").follow(user_browser.start().headers["location"])
        id_token = provider.id_token
        provider.id_token = lambda identity, access: id_token(  # type: ignore[method-assign]
            msgspec.structs.replace(
                identity, person=msgspec.structs.replace(identity.person, username="mallory")
            ),
            access,
        )
        try:
            with capture_logs() as logs:
                answer = user_browser.http.get(back)
        finally:
            provider.id_token = id_token  # type: ignore[method-assign]

        assert answer.status_code == 403
        assert "another_subject" not in answer.text
        assert "another_subject" in str(logs)


HTTPS = Resource("https://mcp.example.com/t/{tenant}/mcp")


def test_https_cookies_are_secure_and_bound_to_host_and_tenant() -> None:
    """Strict-Transport-Security is sent over https only."""
    cookies = Cookies(HTTPS)
    name, value = cookies.header("session", HTTPS.of_tenant("acme"), "abc")

    assert name == b"set-cookie"
    assert value == (b"__Host-gatepost-session-acme=abc; Path=/; HttpOnly; SameSite=Lax; Secure")
    assert cookies.name("sign-in", HTTPS.of_tenant("globex")) == "__Host-gatepost-sign-in-globex"
    assert (b"strict-transport-security", b"max-age=31536000") in security_headers_of(HTTPS)
    assert not any(
        name == b"strict-transport-security" for name, _ in security_headers_of(local_resource())
    )


def local_resource() -> Resource:
    return Resource("http://127.0.0.1:8000/mcp")

"""The dashboard, the Python SDK and the Inspector with every real provider."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp.shared.auth import OAuthClientInformationFull
from playwright.sync_api import expect
from pydantic import AnyUrl

from tests.providers.provider import AGENT, PASSWORD, READ_SCOPE, REDIRECT, Pairing, ProviderBrowser
from tests.support.processes import Process
from tests.support.programs import CHROMIUM, INSPECTOR, chromium, command, environment
from tests.support.sign_in import RecordedExchanges, Wallet, provider_for, sdk_client

pytestmark = pytest.mark.slow
WITHIN_S = 60
LINK = re.compile(r'href="([^"]*/sign-in/start\?[^"]*)"')
SIGN_IN_AGAIN = re.compile(r'href="([^"]*/sign-in\?[^"]*)"')
TOKEN = re.compile(r'name="csrf" value="([^"]+)"')


class DashboardUser(ProviderBrowser):
    """A person who uses the dashboard of a pair."""

    def __init__(self, pair: Pairing, name: str) -> None:
        super().__init__(pair.provider, name)
        self.site = pair.provider.site
        self.home = f"{self.site.origin}/dashboard"

    def enter(self, page: str = "") -> httpx2.Response:
        """Sign in from a page with the link to the provider; return the dashboard's answer."""
        match = LINK.search(page or self.get(f"{self.home}/sign-in").text)
        assert match is not None
        start = self.get(self.site.origin + match[1].replace("&amp;", "&"))
        assert start.status_code == 303, start.text
        return self.get(self.walk(start.headers["location"], self.site.callback))

    def leave(self) -> None:
        """Sign out, and go on as the provider asks, until it leads back."""
        token = TOKEN.search(self.get(self.home).text)
        assert token is not None
        response = self.http.post(
            f"{self.home}/sign-out", data={"csrf": token[1]}, headers={"origin": self.site.origin}
        )
        assert response.status_code == 303, response.text
        assert response.headers["location"].startswith(self.provider.origin)
        self.walk(response.headers["location"], self.site.signed_out)


def test_people_sign_in_to_the_dashboard(pair: Pairing) -> None:
    """An approver sees it; a person without the role is told so."""
    for name, status in (("alice", 200), ("bob", 403)):
        if "roles" in pair.provider.limits:
            status = 403
        with DashboardUser(pair, name) as user_browser:
            entered = user_browser.enter()
            assert entered.status_code == 303, entered.text
            assert entered.headers["location"] == "/dashboard"
            assert user_browser.get(user_browser.home).status_code == status


def test_signing_out_ends_the_session_at_the_provider(pair: Pairing) -> None:
    """The next sign-in asks for the password again."""
    with DashboardUser(pair, "alice") as user_browser:
        user_browser.enter()
        assert user_browser.passwords == 1
        user_browser.leave()
        assert user_browser.get(user_browser.home).status_code == 303
        again = SIGN_IN_AGAIN.search(user_browser.get(user_browser.site.signed_out).text)
        assert again is not None
        entered = user_browser.enter(user_browser.get(user_browser.site.origin + again[1]).text)

        assert entered.status_code == 303, entered.text
        assert user_browser.passwords == 2


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}")
@pytest.mark.parametrize("name", ["oidc-provider"])
def test_a_real_browser_follows_the_sign_out(pairings: Callable[[str], Pairing], name: str) -> None:
    """The content security policy allows the sign-out form to lead to the provider."""
    pair = pairings(name)
    site = pair.provider.site
    with chromium() as browser:
        page = browser.new_page(ignore_https_errors=True)
        page.goto(f"{site.origin}/dashboard/sign-in")
        page.get_by_role("link", name="Continue").click()
        page.locator("input[name=login]").fill("alice")
        page.locator("input[name=password]").fill(PASSWORD)
        page.get_by_role("button").click()
        expect(page).to_have_url(f"{site.origin}/dashboard")
        page.get_by_role("button", name="Sign out").click()
        # oidc-provider asks once more, on a page of its own.
        page.get_by_role("button", name="Yes, sign me out").click()
        expect(page).to_have_url(re.compile(re.escape(site.signed_out)))
        expect(page.get_by_role("heading", name="You are signed out")).to_be_visible()


def known_client(*redirects: str) -> OAuthClientInformationFull:
    """Return the client that the provider's administrator registered for agents."""
    return OAuthClientInformationFull(
        client_id=AGENT,
        redirect_uris=[AnyUrl(each) for each in redirects],
        grant_types=["authorization_code", "refresh_token"],
        token_endpoint_auth_method="none",
    )


async def test_the_python_sdk_signs_in_from_the_challenge(
    pair: Pairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Discovery, sign-in, token and call follow."""
    monkeypatch.setenv("SSL_CERT_FILE", str(pair.provider.site.company.bundle))
    wallet, wire = Wallet(), RecordedExchanges()
    wallet.client = known_client(REDIRECT)
    with ProviderBrowser(pair.provider, "alice") as person, anyio.fail_after(WITHIN_S):
        auth = provider_for(pair.client.resource, wallet, person)
        async with sdk_client(pair.client.resource, auth, "auto", wire) as client:
            caller = (await client.call_tool("whoami", {})).structured_content

    assert caller is not None
    assert (caller["subject_kind"], caller["client_id"]) == ("user", AGENT)
    assert READ_SCOPE in caller["scopes"]
    assert [each["resource"] for each in person.asked] == [pair.client.resource]


def test_the_inspector_signs_in_and_calls(pair: Pairing, tmp_path: Path) -> None:
    """Its command line prints the address of the sign-in and listens for the redirect."""
    site = pair.provider.site
    words = [
        *("--cli", site.resource, "--transport", "http", "--format", "json"),
        *("--client-id", AGENT, "--callback-url", site.inspector),
        *("--method", "tools/call", "--tool-name", "whoami"),
    ]
    variables = {
        **environment(),
        "HOME": str(tmp_path),
        "PATH": os.pathsep.join([str(no_browser(tmp_path)), environment()["PATH"]]),
        "MCP_INSPECTOR_SECRET_STORE": "memory",
        "MCP_AUTO_OPEN_ENABLED": "true",
        "NODE_EXTRA_CA_CERTS": str(site.company.bundle),
    }
    process = Process(command(INSPECTOR, *words), env=variables, cwd=tmp_path)
    try:
        address = process.wait_for(r"(https://\S+code_challenge\S+)", timeout_s=WITHIN_S)[1]
        with ProviderBrowser(pair.provider, "alice") as person:
            back = person.follow(address)
            assert person.get(back).status_code == 200
        process.process.wait(WITHIN_S)
        assert process.process.returncode == 0, process.output
        assert '"subject_kind": "user"' in process.stdout.replace('\\"', '"').replace('":"', '": "')
    finally:
        process.kill()


def no_browser(folder: Path) -> Path:
    """Return a folder whose `xdg-open` opens no page: the test's script is the browser."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "xdg-open").write_text("#!/bin/sh\n", encoding="ascii")
    (programs / "xdg-open").chmod(0o700)
    return programs

"""The sign-in and consent pages: what they show, and whom they serve."""

import re

import pytest

from tests.support.sign_in import (
    CALLBACK,
    ORIGIN,
    RESOURCE,
    CodeFlow,
    code_flow,
    named_cases,
    redirect_query,
)

__all__ = ["code_flow"]  # a fixture

POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
SCRIPT = '<script>alert("x")</script><img src=x onerror=alert(1)>{{ 7*7 }}'


async def test_the_sign_in_page_offers_the_three_users(code_flow: CodeFlow) -> None:
    """Two are at acme, one of them with both roles, and one is at globex."""
    await code_flow.register()
    page = await code_flow.authorize()

    users = re.findall(r'name="user" value="(\w+)"', page.text)
    assert users == ["alice", "dave", "bob"]
    assert "Test client" in page.text
    assert page.text.count(">acme<") == 2
    assert page.text.count(">globex<") == 1
    assert page.text.count(">approver<") == 2


async def test_the_consent_page_shows_client_redirect_scopes_resource_and_user(
    code_flow: CodeFlow,
) -> None:
    """Scopes that do not exist are shown as well."""
    await code_flow.register()
    page = await code_flow.sign_in("bob", scope="files:write made:up")

    for text in ("Test client", "127.0.0.1:41717 (this computer)", RESOURCE, "Bob Bright"):
        assert text in page.text
    assert "Create and change files of your workspace" in page.text
    assert "made:up" in page.text
    assert "files:read" not in re.sub(r'value="[^"]*"|href="[^"]*"', "", page.text)


async def test_markup_in_a_client_name_is_shown_as_text(code_flow: CodeFlow) -> None:
    """Any client may register any name (stored XSS, template injection)."""
    await code_flow.register(client_name=SCRIPT)
    pages = [await code_flow.authorize(), await code_flow.sign_in()]

    for page in pages:
        assert "<script" not in page.text
        assert "<img" not in page.text
        assert "&lt;script&gt;" in page.text
        assert "{{ 7*7 }}" in page.text


async def test_markup_in_request_parameters_is_shown_as_text(code_flow: CodeFlow) -> None:
    """State, scopes and hints are part of the page (reflected XSS)."""
    await code_flow.register()
    page = await code_flow.sign_in(scope=f"files:read {SCRIPT}", state=SCRIPT, login_hint=SCRIPT)

    assert "<script" not in page.text
    assert "<img" not in page.text


@pytest.mark.parametrize("step", ["front", "sign-in", "refusal", "consent"])
async def test_every_page_forbids_scripts_frames_and_caches(code_flow: CodeFlow, step: str) -> None:
    """`form-action` of the consent page includes the client's address, for Chromium."""
    await code_flow.register()
    page = {
        "front": lambda: code_flow.http.get("/dev-as"),
        "sign-in": code_flow.authorize,
        "refusal": lambda: code_flow.authorize(client_id="unknown"),
        "consent": code_flow.sign_in,
    }[step]
    answer = await page()
    expected = POLICY
    if step == "consent":
        expected = POLICY.replace("'self'; frame", "'self' http://127.0.0.1:41717; frame")

    assert answer.headers["content-security-policy"] == expected
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script|<style|\sstyle=|\son\w+=", answer.text)


async def test_the_stylesheet_is_served(code_flow: CodeFlow) -> None:
    """The pages load no other file."""
    page = await code_flow.http.get("/dev-as")
    address = re.findall(r'<link rel="stylesheet" href="([^"]+)"', page.text)
    style = await code_flow.http.get(address[0])

    assert style.headers["content-type"].startswith("text/css")
    assert "prefers-color-scheme: dark" in style.text


async def test_scripts_and_foreign_forms_cannot_use_the_cookie(code_flow: CodeFlow) -> None:
    """It is HttpOnly, SameSite, limited to the issuer's path, and named by port."""
    await code_flow.register()
    cookie = (await code_flow.authorize()).headers["set-cookie"]

    assert cookie.startswith("gatepost-dev-8000=")
    assert {"HttpOnly", "Path=/dev-as", "SameSite=lax"} <= set(cookie.split("; "))


async def test_signing_in_changes_the_session_id(code_flow: CodeFlow) -> None:
    """A planted session id must not become signed in (session fixation)."""
    await code_flow.register()
    before = (await code_flow.authorize()).cookies["gatepost-dev-8000"]
    await code_flow.sign_in()
    after = code_flow.http.cookies["gatepost-dev-8000"]
    code_flow.http.cookies.clear()
    code_flow.http.cookies.set("gatepost-dev-8000", before, domain="127.0.0.1", path="/dev-as")

    assert before != after
    assert 'name="user"' in (await code_flow.authorize()).text


FORGED_FORMS = [
    ("no seal", {"seal": ""}),
    ("made up", {"seal": "0" * 64}),
    ("not ascii", {"seal": "é"}),
    ("another request", {"query": "client_id=other"}),
]


@pytest.mark.parametrize("changes", named_cases(FORGED_FORMS))
@pytest.mark.parametrize("page", ["sign-in", "consent"])
async def test_a_changed_or_forged_form_is_refused(
    code_flow: CodeFlow, page: str, changes: dict[str, str]
) -> None:
    """A foreign page can neither send the form nor change its request (CSRF)."""
    await code_flow.register()
    first_page = await (code_flow.authorize() if page == "sign-in" else code_flow.sign_in())

    answer = await code_flow.submit(first_page, user="alice", decision="allow", **changes)

    assert answer.status_code == 403
    assert "location" not in answer.headers
    assert len(code_flow.issuer.codes) == 0


@pytest.mark.parametrize("page", ["sign-in", "consent"])
async def test_a_form_is_accepted_only_from_the_browser_that_got_it(
    code_flow: CodeFlow, page: str
) -> None:
    """An attacker's own form does not work in a victim's browser (login CSRF)."""
    await code_flow.register()
    first_page = await (code_flow.authorize() if page == "sign-in" else code_flow.sign_in())
    code_flow.http.cookies.clear()

    answer = await code_flow.submit(first_page, user="alice", decision="allow")

    assert answer.status_code == 403
    assert len(code_flow.issuer.codes) == 0


async def test_a_consent_page_of_another_user_is_refused(code_flow: CodeFlow) -> None:
    """After another user signs in, the previous user's page is no longer valid."""
    await code_flow.register()
    alices = await code_flow.sign_in("alice")
    other = await code_flow.authorize(prompt="select_account")
    await code_flow.submit(other, user="bob")

    assert (await code_flow.submit(alices, decision="allow")).status_code == 403


async def test_a_sign_in_cannot_be_turned_into_consent(code_flow: CodeFlow) -> None:
    """The seal names the form."""
    await code_flow.register()
    first_page = await code_flow.authorize()
    text = first_page.text.replace("/dev-as/sign-in", "/dev-as/consent")
    first_page._content = text.encode()
    del first_page._text

    assert (await code_flow.submit(first_page, decision="allow")).status_code == 403


async def test_every_decision_other_than_allow_is_a_denial(code_flow: CodeFlow) -> None:
    """A form without the button's value must not grant access."""
    await code_flow.register()
    page = await code_flow.sign_in()

    assert redirect_query(await code_flow.submit(page))["error"] == "access_denied"
    assert (
        redirect_query(await code_flow.submit(page, decision="Allow"))["error"] == "access_denied"
    )


async def test_a_signed_in_person_is_asked_for_consent_every_time(code_flow: CodeFlow) -> None:
    """A client may imitate one that was allowed before."""
    await code_flow.register()
    await code_flow.code()
    again = await code_flow.authorize()

    assert "/dev-as/consent" in again.text


@pytest.mark.parametrize("prompt", ["login", "select_account"])
async def test_a_client_may_ask_for_a_new_sign_in(code_flow: CodeFlow, prompt: str) -> None:
    """The sign-in is requested only once."""
    await code_flow.register()
    await code_flow.sign_in("alice")
    page = await code_flow.authorize(prompt=prompt)
    onward = await code_flow.submit(page, user="bob")

    assert 'name="user"' in page.text
    assert "Bob Bright" in (await code_flow.http.get(onward.headers["location"])).text


async def test_max_age_requires_a_new_sign_in_if_the_session_is_older(code_flow: CodeFlow) -> None:
    """RFC 9470 step-up; the new token has the new `auth_time`."""
    await code_flow.register()
    await code_flow.sign_in()
    code_flow.clock.now += 100
    fresh_enough = await code_flow.authorize(max_age="100")
    too_old = await code_flow.authorize(max_age="99")
    onward = await code_flow.submit(too_old, user="alice")
    consent = await code_flow.http.get(onward.headers["location"])
    code = redirect_query(await code_flow.submit(consent, decision="allow"))["code"]
    claims = await code_flow.introspect((await code_flow.exchange(code)).json()["access_token"])

    assert "/dev-as/consent" in fresh_enough.text
    assert 'name="user"' in too_old.text
    assert claims["auth_time"] == 1_800_000_100


async def test_acr_values_require_a_strong_sign_in(code_flow: CodeFlow) -> None:
    """RFC 9470 step-up; the token has the `acr`, and unknown values have no effect."""
    strong = "urn:gatepost:dev:strong"
    await code_flow.register()
    await code_flow.sign_in()
    unknown = await code_flow.authorize(acr_values="urn:other")
    page = await code_flow.authorize(acr_values=f"urn:other {strong}")
    onward = await code_flow.submit(page, user="alice")
    consent = await code_flow.http.get(onward.headers["location"])
    code = redirect_query(await code_flow.submit(consent, decision="allow"))["code"]
    claims = await code_flow.introspect((await code_flow.exchange(code)).json()["access_token"])

    assert "/dev-as/consent" in unknown.text
    assert "strong sign-in" in page.text
    assert claims["acr"] == strong


async def test_a_session_ends_after_eight_hours(code_flow: CodeFlow) -> None:
    """Its refresh tokens end at the same time."""
    await code_flow.register()
    await code_flow.sign_in()
    code_flow.clock.now += 8 * 3600

    assert 'name="user"' in (await code_flow.authorize()).text


@pytest.mark.parametrize(
    ("auto_user", "hint", "subject"),
    [("", None, "alice"), ("bob", None, "bob"), ("bob", "dave@acme", "dave")],
)
async def test_auto_approve_answers_without_pages(
    auto_user: str, hint: str | None, subject: str
) -> None:
    """The user is that of `login_hint` or of the settings."""
    walk = CodeFlow(auto_approve=True, auto_user=auto_user)
    await walk.register()
    code = redirect_query(await walk.authorize(login_hint=hint))["code"]
    claims = await walk.introspect((await walk.exchange(code)).json()["access_token"])

    assert claims["sub"] == subject


async def test_auto_approve_denies_an_unknown_user() -> None:
    """A misspelt name must not become the first user."""
    walk = CodeFlow(auto_approve=True)
    await walk.register()

    assert redirect_query(await walk.authorize(login_hint="eve"))["error"] == "access_denied"


async def test_consent_for_a_client_that_was_removed_meanwhile_is_refused(
    code_flow: CodeFlow,
) -> None:
    """The request is checked again when the form arrives."""
    await code_flow.register()
    page = await code_flow.sign_in()
    code_flow.issuer.clients.drop(code_flow.client_id)
    answer = await code_flow.submit(page, decision="allow")

    assert (answer.status_code, "location" in answer.headers) == (400, False)


async def test_the_front_page_shows_the_issuer_and_its_metadata(code_flow: CodeFlow) -> None:
    """It shows no address of a registered client."""
    page = await code_flow.http.get("/dev-as")

    assert f"{ORIGIN}/dev-as" in page.text
    assert "/.well-known/oauth-authorization-server/dev-as" in page.text
    assert CALLBACK not in page.text

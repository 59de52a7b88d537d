"""The sign-in and consent pages: what they show, and whom they serve."""

import re

import pytest

from tests.support.sign_in import CALLBACK, ORIGIN, RESOURCE, CodeFlow, query_of, table, walk

__all__ = ["walk"]  # a fixture

POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
SCRIPT = '<script>alert("x")</script><img src=x onerror=alert(1)>{{ 7*7 }}'


async def test_the_sign_in_page_offers_the_three_users(walk: CodeFlow) -> None:
    """Two at acme, one of them with both roles, one at globex."""
    await walk.register()
    page = await walk.authorize()

    users = re.findall(r'name="user" value="(\w+)"', page.text)
    assert users == ["alice", "dave", "bob"]
    assert "Test client" in page.text
    assert page.text.count(">acme<") == 2
    assert page.text.count(">globex<") == 1
    assert page.text.count(">approver<") == 2


async def test_the_consent_page_shows_what_a_person_needs_to_decide(walk: CodeFlow) -> None:
    """Who asks, where the answer goes, what for, where, and who is signed in."""
    await walk.register()
    page = await walk.sign_in("bob", scope="files:write made:up")

    for text in ("Test client", "127.0.0.1:41717 (this computer)", RESOURCE, "Bob Bright"):
        assert text in page.text
    assert "Create and change files of your workspace" in page.text
    assert "made:up" in page.text
    assert "files:read" not in re.sub(r'value="[^"]*"|href="[^"]*"', "", page.text)


async def test_a_clients_name_is_text_and_never_markup(walk: CodeFlow) -> None:
    """Any client may register any name (stored XSS, template injection)."""
    await walk.register(client_name=SCRIPT)
    pages = [await walk.authorize(), await walk.sign_in()]

    for page in pages:
        assert "<script" not in page.text
        assert "<img" not in page.text
        assert "&lt;script&gt;" in page.text
        assert "{{ 7*7 }}" in page.text


async def test_what_a_request_carries_is_text_and_never_markup(walk: CodeFlow) -> None:
    """State, scopes and hints travel through the page (reflected XSS)."""
    await walk.register()
    page = await walk.sign_in(scope=f"files:read {SCRIPT}", state=SCRIPT, login_hint=SCRIPT)

    assert "<script" not in page.text
    assert "<img" not in page.text


@pytest.mark.parametrize("step", ["front", "sign-in", "refusal", "consent"])
async def test_every_page_forbids_scripts_frames_and_caches(walk: CodeFlow, step: str) -> None:
    """The consent page's form may lead to the client's address too, or Chromium blocks it."""
    await walk.register()
    page = {
        "front": lambda: walk.http.get("/dev-as"),
        "sign-in": walk.authorize,
        "refusal": lambda: walk.authorize(client_id="unknown"),
        "consent": walk.sign_in,
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


async def test_the_stylesheet_is_served(walk: CodeFlow) -> None:
    """It is all that the pages load."""
    page = await walk.http.get("/dev-as")
    address = re.findall(r'<link rel="stylesheet" href="([^"]+)"', page.text)
    style = await walk.http.get(address[0])

    assert style.headers["content-type"].startswith("text/css")
    assert "prefers-color-scheme: dark" in style.text


async def test_scripts_and_foreign_forms_cannot_use_the_cookie(walk: CodeFlow) -> None:
    """HttpOnly, SameSite, limited to the issuer, and named by port: cookies know none."""
    await walk.register()
    cookie = (await walk.authorize()).headers["set-cookie"]

    assert cookie.startswith("gatepost-dev-8000=")
    assert {"HttpOnly", "Path=/dev-as", "SameSite=lax"} <= set(cookie.split("; "))


async def test_signing_in_changes_the_session_id(walk: CodeFlow) -> None:
    """An id planted before must not become signed in (session fixation)."""
    await walk.register()
    before = (await walk.authorize()).cookies["gatepost-dev-8000"]
    await walk.sign_in()
    after = walk.http.cookies["gatepost-dev-8000"]
    walk.http.cookies.clear()
    walk.http.cookies.set("gatepost-dev-8000", before, domain="127.0.0.1", path="/dev-as")

    assert before != after
    assert 'name="user"' in (await walk.authorize()).text


FORGED_FORMS = [
    ("no seal", {"seal": ""}),
    ("made up", {"seal": "0" * 64}),
    ("not ascii", {"seal": "é"}),
    ("another request", {"query": "client_id=other"}),
]


@pytest.mark.parametrize("changes", table(FORGED_FORMS))
@pytest.mark.parametrize("page", ["sign-in", "consent"])
async def test_a_form_works_only_as_it_was_shown(
    walk: CodeFlow, page: str, changes: dict[str, str]
) -> None:
    """A foreign page cannot press the button, nor swap what it was pressed for (CSRF)."""
    await walk.register()
    first_page = await (walk.authorize() if page == "sign-in" else walk.sign_in())

    answer = await walk.submit(first_page, user="alice", decision="allow", **changes)

    assert answer.status_code == 403
    assert "location" not in answer.headers
    assert len(walk.issuer.codes) == 0


@pytest.mark.parametrize("page", ["sign-in", "consent"])
async def test_a_form_works_only_in_the_browser_it_was_shown_in(walk: CodeFlow, page: str) -> None:
    """A seal that an attacker got for their own session is of no use elsewhere (login CSRF)."""
    await walk.register()
    first_page = await (walk.authorize() if page == "sign-in" else walk.sign_in())
    walk.http.cookies.clear()

    answer = await walk.submit(first_page, user="alice", decision="allow")

    assert answer.status_code == 403
    assert len(walk.issuer.codes) == 0


async def test_consent_is_the_persons_who_saw_the_page(walk: CodeFlow) -> None:
    """After another user signed in, the previous user's page is no longer valid."""
    await walk.register()
    alices = await walk.sign_in("alice")
    other = await walk.authorize(prompt="select_account")
    await walk.submit(other, user="bob")

    assert (await walk.submit(alices, decision="allow")).status_code == 403


async def test_a_sign_in_cannot_be_turned_into_consent(walk: CodeFlow) -> None:
    """The seal says which form it belongs to."""
    await walk.register()
    first_page = await walk.authorize()
    text = first_page.text.replace("/dev-as/sign-in", "/dev-as/consent")
    first_page._content = text.encode()
    del first_page._text

    assert (await walk.submit(first_page, decision="allow")).status_code == 403


async def test_anything_but_allow_is_denial(walk: CodeFlow) -> None:
    """A form without the button's value must not grant."""
    await walk.register()
    page = await walk.sign_in()

    assert query_of(await walk.submit(page))["error"] == "access_denied"
    assert query_of(await walk.submit(page, decision="Allow"))["error"] == "access_denied"


async def test_a_signed_in_person_is_asked_for_consent_every_time(walk: CodeFlow) -> None:
    """Any client may pretend to be one that was allowed before."""
    await walk.register()
    await walk.code()
    again = await walk.authorize()

    assert "/dev-as/consent" in again.text


@pytest.mark.parametrize("prompt", ["login", "select_account"])
async def test_a_client_may_ask_for_a_new_sign_in(walk: CodeFlow, prompt: str) -> None:
    """And it is asked for once, not for ever."""
    await walk.register()
    await walk.sign_in("alice")
    page = await walk.authorize(prompt=prompt)
    onward = await walk.submit(page, user="bob")

    assert 'name="user"' in page.text
    assert "Bob Bright" in (await walk.http.get(onward.headers["location"])).text


async def test_an_old_sign_in_is_renewed_when_the_client_says_how_old(walk: CodeFlow) -> None:
    """RFC 9470 step-up by `max_age`; the new token carries the new `auth_time`."""
    await walk.register()
    await walk.sign_in()
    walk.clock.now += 100
    fresh_enough = await walk.authorize(max_age="100")
    too_old = await walk.authorize(max_age="99")
    onward = await walk.submit(too_old, user="alice")
    consent = await walk.http.get(onward.headers["location"])
    code = query_of(await walk.submit(consent, decision="allow"))["code"]
    claims = await walk.introspect((await walk.exchange(code)).json()["access_token"])

    assert "/dev-as/consent" in fresh_enough.text
    assert 'name="user"' in too_old.text
    assert claims["auth_time"] == 1_800_000_100


async def test_a_stronger_sign_in_is_asked_for_and_told(walk: CodeFlow) -> None:
    """RFC 9470 step-up by `acr_values`; unknown values change nothing."""
    strong = "urn:gatepost:dev:strong"
    await walk.register()
    await walk.sign_in()
    unknown = await walk.authorize(acr_values="urn:other")
    page = await walk.authorize(acr_values=f"urn:other {strong}")
    onward = await walk.submit(page, user="alice")
    consent = await walk.http.get(onward.headers["location"])
    code = query_of(await walk.submit(consent, decision="allow"))["code"]
    claims = await walk.introspect((await walk.exchange(code)).json()["access_token"])

    assert "/dev-as/consent" in unknown.text
    assert "strong sign-in" in page.text
    assert claims["acr"] == strong


async def test_a_session_ends_after_eight_hours(walk: CodeFlow) -> None:
    """As its refresh tokens do."""
    await walk.register()
    await walk.sign_in()
    walk.clock.now += 8 * 3600

    assert 'name="user"' in (await walk.authorize()).text


@pytest.mark.parametrize(
    ("auto_user", "hint", "subject"),
    [("", None, "alice"), ("bob", None, "bob"), ("bob", "dave@acme", "dave")],
)
async def test_tests_may_do_without_pages(auto_user: str, hint: str | None, subject: str) -> None:
    """`auto_approve` answers at once, for the user of `login_hint` or of the settings."""
    walk = CodeFlow(auto_approve=True, auto_user=auto_user)
    await walk.register()
    code = query_of(await walk.authorize(login_hint=hint))["code"]
    claims = await walk.introspect((await walk.exchange(code)).json()["access_token"])

    assert claims["sub"] == subject


async def test_without_pages_an_unknown_user_is_denied() -> None:
    """A misspelt name must not become the first user."""
    walk = CodeFlow(auto_approve=True)
    await walk.register()

    assert query_of(await walk.authorize(login_hint="eve"))["error"] == "access_denied"


async def test_a_client_forgotten_between_page_and_button_gets_nothing(walk: CodeFlow) -> None:
    """The request is checked anew when the button is pressed."""
    await walk.register()
    page = await walk.sign_in()
    walk.issuer.clients.drop(walk.client_id)
    answer = await walk.submit(page, decision="allow")

    assert (answer.status_code, "location" in answer.headers) == (400, False)


async def test_the_front_page_says_what_this_is(walk: CodeFlow) -> None:
    """The issuer's URL shows who can sign in and where the documents are."""
    page = await walk.http.get("/dev-as")

    assert f"{ORIGIN}/dev-as" in page.text
    assert "/.well-known/oauth-authorization-server/dev-as" in page.text
    assert CALLBACK not in page.text

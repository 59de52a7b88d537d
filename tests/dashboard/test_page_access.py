"""The checks of every page: security headers, and forms that no other site can send."""

import hashlib
import re
from html.parser import HTMLParser
from importlib import resources

import httpx2
import pytest

from tests.dashboard.conftest import DashboardServer
from tests.support.measuring import each

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
ISSUER = r"http://127\.0\.0\.1:\d+"
SECURITY_HEADERS = {
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def has_security_headers(answer: httpx2.Response) -> bool:
    """Return whether each security header is there once; forms lead only here or to the issuer."""
    policy = answer.headers["content-security-policy"]
    return (
        re.fullmatch(f"{re.escape(POLICY)}(?: {ISSUER})?", policy) is not None
        and {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
        and "camera=()" in answer.headers["permissions-policy"]
        and "strict-transport-security" not in answer.headers
    )


PATHS = [
    # path below the base       status for alice, and signed out
    ("", 200, 303),
    ("/history", 200, 303),
    ("/tools", 200, 303),
    ("/sign-in", 200, 200),
    ("/signed-out", 200, 200),
    ("/sign-in/start", 404, 404),
    ("/callback", 400, 400),
    ("/nowhere", 404, 404),
    ("/static/0/htmx.js", 404, 404),
    ("/sign-out", 405, 405),
    ("/approvals/none", 404, 303),
    ("/test/echo?a=1&a=2", 400, 303),
    ("/test/echo?a=%ff", 400, 303),
    ("/test/echo?" + "a" * 9000, 414, 303),
    ("/test/echo/%00", 404, 303),
    ("/test/echo/%0a", 404, 303),
    ("/test/broken", 500, 303),
    ("/test/download", 200, 303),
]


@each(("path", "signed_in_status", "anonymous_status"), PATHS, ids=[case[0][:30] for case in PATHS])
def test_every_answer_carries_the_security_headers(
    shared_dashboard: DashboardServer, path: str, signed_in_status: int, anonymous_status: int
) -> None:
    """This includes redirects and refusals, and no answer may be cached."""
    with (
        shared_dashboard.user_browser("alice") as alice,
        shared_dashboard.user_browser() as anonymous,
    ):
        for user_browser, status in ((alice, signed_in_status), (anonymous, anonymous_status)):
            answer = user_browser.get(path)
            assert answer.status_code == status, answer.text
            assert has_security_headers(answer)
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["content-type"].partition(";")[0] != "application/json" or (
                "/static/" in path
            )


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"x": "y" * 40_000}, 431),
    ],
    ids=["host", "origin", "head"],
)
def test_refusals_at_the_edge_have_the_security_headers(
    shared_dashboard: DashboardServer, headers: dict[str, str], status: int
) -> None:
    """A request that never reaches the dashboard still gets one of its pages."""
    with shared_dashboard.user_browser() as user_browser:
        answer = user_browser.http.get("/dashboard", headers=headers)

    assert answer.status_code == status
    assert has_security_headers(answer)
    assert answer.headers["content-type"].startswith("text/html")


def test_an_unexpected_error_is_logged_and_not_shown_on_the_page(
    shared_dashboard: DashboardServer,
) -> None:
    """The page has the id of the request, and no detail of the error."""
    with shared_dashboard.user_browser("alice") as user_browser:
        answer = user_browser.get("/test/broken")

    assert answer.headers["x-request-id"] in answer.text
    assert "unforeseen" not in answer.text.lower().replace("something unforeseen", "")
    assert "RuntimeError" in shared_dashboard.log()


def test_static_files_can_be_cached_forever(shared_dashboard: DashboardServer) -> None:
    """Their URLs contain a digest, so the content of a URL never changes."""
    with shared_dashboard.user_browser("alice") as user_browser:
        page = user_browser.get().text
        links = re.findall(r'(?:href|src)="(/dashboard/static/[^"]+)"', page)
        answers = [user_browser.http.get(link) for link in links]
        posted = user_browser.http.post(links[0], headers={"origin": shared_dashboard.origin})

    assert {link.rpartition("/")[2] for link in links} >= {"htmx.js", "frame.css"}
    for answer in answers:
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert has_security_headers(answer)
        assert "set-cookie" not in answer.headers
    assert posted.status_code == 405


class ForbiddenMarkupParser(HTMLParser):
    """Gathers what a page must not have: inline script and style, and addresses elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag in {"style", "iframe", "object", "base"} or (
            tag == "script" and "src" not in attributes
        ):
            self.found.append(tag)
        for name, value in attributes.items():
            address = name in {"src", "href", "action", "formaction", "hx-get", "hx-post"}
            if name.startswith(("on", "hx-on")) or name == "style":
                self.found.append(f"{tag} {name}")
            if address and not re.fullmatch(r"(?:[/?#](?!/).*)?", value):
                self.found.append(f"{tag} {name}={value}")


def test_no_page_contains_inline_scripts_or_styles(shared_dashboard: DashboardServer) -> None:
    """The content security policy can therefore stay strict."""
    with shared_dashboard.user_browser("alice") as user_browser:
        for path in ("", "/history", "/grants", "/tools", "/sign-in"):
            parser = ForbiddenMarkupParser()
            parser.feed(user_browser.get(path).text)
            assert parser.found == [], path


def test_vendored_files_match_their_digests_and_have_licences() -> None:
    """VENDORED.md lists the files and their digests."""
    folder = resources.files("gatepost.dashboard").joinpath("static")
    text = folder.joinpath("VENDORED.md").read_text(encoding="utf-8")
    digests = dict(re.findall(r"^\| `([\w.]+)` \| `([0-9a-f]{64})` \|$", text, re.MULTILINE))

    assert set(digests) == {"htmx.js", "sse.js"}
    for name, digest in digests.items():
        assert hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest() == digest
        assert folder.joinpath(name.replace(".js", ".LICENSE")).is_file()


def test_no_template_turns_escaping_off() -> None:
    """`safe` and `autoescape false` would let stored scripts into pages."""
    folder = resources.files("gatepost.dashboard").joinpath("templates")
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}

    assert len(texts) > 5
    for name, text in texts.items():
        assert not re.search(r"\|\s*safe\b|autoescape", text), name


FORGED_FORMS = [
    # what is different about a form that alice's own page would have sent
    ("no token", {"csrf": ""}, {}),
    ("made-up token", {"csrf": "x.y"}, {}),
    ("cookie as token", {"csrf": "COOKIE"}, {}),
    ("another session's token", {"csrf": "OTHER"}, {}),
    ("no origin", {}, {"origin": ""}),
    ("no origin but same site", {}, {"origin": "", "sec_fetch_site": "same-origin"}),
    ("neighbouring port", {}, {"origin": "http://127.0.0.1:1"}),
    ("another name of this machine", {}, {"origin": "LOCALHOST"}),
    ("cross-site", {}, {"sec_fetch_site": "cross-site"}),
    ("same-site", {}, {"sec_fetch_site": "same-site"}),
    ("by hand", {}, {"sec_fetch_site": "none"}),
]


@each(("case", "form", "headers"), FORGED_FORMS, ids=[case[0] for case in FORGED_FORMS])
def test_forged_forms_are_refused(
    shared_dashboard: DashboardServer, case: str, form: dict[str, str], headers: dict[str, str]
) -> None:
    """A form needs the CSRF token of its session and the dashboard's own origin."""
    with (
        shared_dashboard.user_browser("alice") as alice,
        shared_dashboard.user_browser("dave") as dave,
    ):
        stand_ins = {
            "COOKIE": alice.cookie(),
            "OTHER": dave.token(),
            "LOCALHOST": shared_dashboard.origin.replace("127.0.0.1", "localhost"),
        }
        form = {name: stand_ins.get(value, value) for name, value in form.items()}
        headers = {name: stand_ins.get(value, value) for name, value in headers.items()}
        refused = alice.post("/sign-out", form, **headers)

        assert refused.status_code == 403, case
        assert alice.get("/test/echo").status_code == 200


def test_forms_are_accepted_with_the_csrf_token_in_a_field_or_header(
    shared_dashboard: DashboardServer,
) -> None:
    """Plain forms send a field, htmx sends a header; the handler gets the other fields."""
    with shared_dashboard.user_browser("alice") as user_browser:
        plain = user_browser.post("/test/echo", {"reason": "a\r\nb", "empty": ""})
        token = user_browser.token()
        headed = user_browser.post(
            "/test/echo", {"csrf": "", "x": "1"}, x_csrf_token=token, hx_request="true"
        )

    assert '{"reason":"a\\nb","empty":""}' in plain.text
    assert headed.text.endswith('{"x":"1"},true]')


BODIES = [
    ("text/plain", b"csrf=TOKEN", 415),
    ("multipart/form-data; boundary=x", b"--x\r\n\r\n--x--", 415),
    ("application/json", b'{"csrf":"TOKEN"}', 415),
    ("application/x-www-form-urlencoded", b"csrf=TOKEN&a=1&a=2", 400),
    ("application/x-www-form-urlencoded", b"csrf=TOKEN&a=%ff", 400),
    ("application/x-www-form-urlencoded", b"csrf=TOKEN&a=\xff", 400),
    ("application/x-www-form-urlencoded", b"csrf=TOKEN&&a", 400),
    ("application/x-www-form-urlencoded", b"csrf=TOKEN" + b"&a=1" * 201, 400),
    ("application/x-www-form-urlencoded", b"csrf=TOKEN&a=" + b"x" * 100_001, 413),
]


@pytest.mark.parametrize(("kind", "body", "status"), BODIES, ids=[str(n) for n in range(9)])
def test_malformed_form_bodies_are_refused(
    shared_dashboard: DashboardServer, kind: str, body: bytes, status: int
) -> None:
    """The cases are media types, duplicate fields, broken encodings and large bodies."""
    with shared_dashboard.user_browser("alice") as user_browser:
        content = body.replace(b"TOKEN", user_browser.token().encode())
        answer = user_browser.http.post(
            "/dashboard/test/echo",
            content=content,
            headers={"content-type": kind, "origin": shared_dashboard.origin},
        )

    assert answer.status_code == status
    assert has_security_headers(answer)


EMBEDDING_REQUESTS = [
    # site         mode        destination  status
    ("cross-site", "no-cors", "image", 403),
    ("cross-site", "cors", "empty", 403),
    ("same-site", "no-cors", "script", 403),
    ("cross-site", "navigate", "iframe", 403),
    ("cross-site", "navigate", "object", 403),
    ("cross-site", "navigate", "document", 200),
    ("none", "navigate", "document", 200),
    ("same-origin", "cors", "empty", 200),
]


@pytest.mark.parametrize(("path", "mode", "destination", "status"), EMBEDDING_REQUESTS)
def test_pages_cannot_be_embedded_or_fetched_by_other_sites(
    shared_dashboard: DashboardServer, path: str, mode: str, destination: str, status: int
) -> None:
    """From another site, only a link that a person follows works."""
    with shared_dashboard.user_browser("alice") as user_browser:
        answer = user_browser.get(
            "/test/echo", sec_fetch_site=path, sec_fetch_mode=mode, sec_fetch_dest=destination
        )
        assert answer.status_code == status


ROLES = [
    # who      echo  open  admin
    ("alice", [200, 200, 200]),
    ("dave", [200, 200, 403]),
    ("eve", [403, 200, 403]),
    ("bob", [200, 200, 403]),
]


@pytest.mark.parametrize(("subject", "statuses"), ROLES, ids=[case[0] for case in ROLES])
def test_pages_need_their_roles(
    shared_dashboard: DashboardServer, subject: str, statuses: list[int]
) -> None:
    """A user without the role gets a page that says so and can sign out."""
    with shared_dashboard.user_browser(subject, fresh=subject == "eve") as user_browser:
        answers = [user_browser.get(f"/test/{page}") for page in ("echo", "open", "admin")]
        assert [answer.status_code for answer in answers] == statuses
        if subject == "eve":
            assert "no role" in answers[0].text
            assert 'action="/dashboard/sign-out"' in answers[0].text
            assert user_browser.post("/sign-out").status_code == 303


def test_the_tenant_comes_from_the_session(shared_dashboard: DashboardServer) -> None:
    """No value that a user sends selects another tenant."""
    with shared_dashboard.user_browser("bob") as user_browser:
        seen = user_browser.get(
            "/test/echo?tenant=acme", x_octopus_tenant_id="acme", x_tenant="acme"
        ).text

    assert '["globex","bob"' in seen


def test_session_cookies_are_httponly_and_end_with_the_browser(
    shared_dashboard: DashboardServer,
) -> None:
    """The sign-in cookie lasts ten minutes; both are SameSite=Lax and for the whole host."""
    with shared_dashboard.user_browser() as user_browser:
        cookie = user_browser.start().headers["set-cookie"]
        opened = user_browser.sign_in("alice").headers.get_list("set-cookie")

    assert re.fullmatch(
        r"gatepost\d+-sign-in=[\w.-]+; Path=/; HttpOnly; SameSite=Lax; Max-Age=600", cookie
    )
    assert re.fullmatch(r"gatepost\d+-session=[\w.-]+; Path=/; HttpOnly; SameSite=Lax", opened[0])
    assert re.fullmatch(
        r"gatepost\d+-sign-in=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0", opened[1]
    )


def test_htmx_requests_without_a_session_load_the_sign_in_page(
    shared_dashboard: DashboardServer,
) -> None:
    """The whole page changes to the sign-in, and returns to the same page later."""
    with shared_dashboard.user_browser() as user_browser:
        url = f"{shared_dashboard.home}/history?page=2"
        answer = user_browser.get("/live", hx_request="true", hx_current_url=url)
        hostile = ("https://evil.example//x", "http://[", "//[::1", "javascript:1", "")
        others = [
            user_browser.get("/live", hx_request="true", hx_current_url=address)
            for address in hostile
        ]

    assert answer.status_code == 401
    assert answer.headers["hx-redirect"] == "/dashboard/sign-in?next=/history%3Fpage%3D2"
    for other in others:
        assert other.headers["hx-redirect"] == "/dashboard/sign-in"


def test_downloads_are_attachments_with_a_harmless_name(shared_dashboard: DashboardServer) -> None:
    """The browser never shows the content as a page."""
    with shared_dashboard.user_browser("alice") as user_browser:
        answer = user_browser.get("/test/download")

    assert answer.headers["content-disposition"] == 'attachment; filename="abx.jsonl"'


def test_localhost_redirects_to_the_address_of_the_dashboard(
    shared_dashboard: DashboardServer,
) -> None:
    """The cookies belong to 127.0.0.1, but in development `localhost` works too."""
    with shared_dashboard.user_browser("alice") as user_browser:
        host = shared_dashboard.origin.removeprefix("http://").replace("127.0.0.1", "localhost")
        answer = user_browser.get("/history?page=2", host=host)

    assert answer.status_code == 307
    assert answer.headers["location"] == f"{shared_dashboard.home}/history?page=2"


def test_live_pages_send_events_as_they_happen(shared_dashboard: DashboardServer) -> None:
    """Each event has its own lines."""
    with (
        shared_dashboard.user_browser("alice") as user_browser,
        user_browser.stream("/test/live") as lines,
    ):
        assert [next(lines) for _ in range(4)] == [
            "event: first",
            "data: <p>one</p>",
            "data: <p>two</p>",
            "",
        ]

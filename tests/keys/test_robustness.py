"""Whatever callers send, the issuer gives a documented answer and keeps its memory bounded."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_keys.issuer.bounded import BoundedDict
from gatepost_keys.issuer.wire import MalformedRequest, parameters
from tests.support.sign_in import CALLBACK, RESOURCE, CodeFlow

NAMES = [
    "response_type", "client_id", "redirect_uri", "scope", "state", "code_challenge",
    "code_challenge_method", "resource", "prompt", "max_age", "acr_values", "login_hint",
    "grant_type", "code", "code_verifier", "refresh_token", "client_secret", "token", "tenant",
    "subject", "response_mode", "query", "seal", "user", "decision",
]  # fmt: skip
PARAMETER_VALUES = [
    "code", "CLIENT", CALLBACK, "files:read", "a" * 43, "S256", RESOURCE, "none", "login", "0",
    "authorization_code", "refresh_token", "client_credentials", "alice", "acme", "gatepost-cli",
    "urn:gatepost:params:oauth:grant-type:development-token", "urn:gatepost:dev:strong",
]  # fmt: skip
FIELDS = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(st.sampled_from(PARAMETER_VALUES), st.text(max_size=20)),
    max_size=12,
)
DOCUMENTED_STATUSES = {200, 201, 302, 303, 400, 401, 403, 413, 414, 415}


@pytest.fixture(scope="module")
def one_walk() -> CodeFlow:
    walk = CodeFlow()
    anyio.run(walk.register)
    return walk


@given(
    path=st.sampled_from(["token", "revoke", "introspect", "rotate", "sign-in", "consent"]),
    fields=FIELDS,
    header=st.one_of(st.none(), st.binary(max_size=30), st.just(b"Basic cm9ib3Q6eA==")),
)
def test_arbitrary_forms_get_documented_answers(
    one_walk: CodeFlow, path: str, fields: dict[str, str], header: bytes | None
) -> None:
    """No form leads to a 500 or to a token."""
    data = {k: v.replace("CLIENT", one_walk.client_id) for k, v in fields.items()}
    data = {k: v.encode("utf-8", "replace").decode() for k, v in data.items()}
    clean = header.translate(None, b"\r\n\0").strip() if header else None
    headers = {"Authorization": clean} if clean is not None else {}

    async def send() -> tuple[int, str]:
        one_walk.http.cookies.clear()
        answer = await one_walk.http.post(f"/dev-as/{path}", data=data, headers=headers)
        return answer.status_code, answer.text

    status, text = anyio.run(send)

    assert status in DOCUMENTED_STATUSES
    assert "access_token" not in text


@given(fields=FIELDS)
def test_arbitrary_authorization_requests_get_documented_answers(
    one_walk: CodeFlow, fields: dict[str, str]
) -> None:
    """A browser is only redirected to the registered address."""
    query = {k: v.replace("CLIENT", one_walk.client_id) for k, v in fields.items()}
    query = {k: v.encode("utf-8", "replace").decode() for k, v in query.items()}

    async def send() -> tuple[int, str]:
        one_walk.http.cookies.clear()
        answer = await one_walk.http.get("/dev-as/authorize", params=query)
        return answer.status_code, answer.headers.get("location", CALLBACK + "?")

    status, location = anyio.run(send)

    assert status in DOCUMENTED_STATUSES
    assert location.startswith(CALLBACK + "?")


@given(body=st.binary(max_size=200))
def test_arbitrary_registration_bodies_are_refused_with_400(
    one_walk: CodeFlow, body: bytes
) -> None:
    """The error has a code of RFC 7591."""

    async def send() -> int:
        headers = {"Content-Type": "application/json"}
        answer = await one_walk.http.post("/dev-as/register", content=body, headers=headers)
        return answer.status_code

    assert anyio.run(send) == 400


@given(st.binary(max_size=100))
def test_arbitrary_query_bytes_give_parameters_or_a_refusal(encoded: bytes) -> None:
    """No other error is raised."""
    try:
        pairs = parameters(encoded)
    except MalformedRequest:
        return
    assert all(isinstance(text, str) for pair in pairs for text in pair)


def test_a_bounded_store_evicts_the_least_recently_used_entry() -> None:
    """A busy client stays during a flood of registrations."""
    memory: BoundedDict[int] = BoundedDict(3)
    for number in range(3):
        memory.put(str(number), number)
    memory.get("0")
    memory.put("3", 3)
    memory.drop("nothing")

    assert (memory.get("0"), memory.get("1"), len(memory)) == (0, None, 3)


async def test_codes_sessions_and_tokens_have_limits() -> None:
    """Unknown callers cannot fill the memory."""
    walk = CodeFlow()
    issuer = walk.issuer

    limits = [
        issuer.clients.limit,
        issuer.codes.limit,
        issuer.sessions.limit,
        issuer.access_tokens.limit,
        issuer.refresh_tokens.limit,
    ]

    assert all(0 < limit <= 10_000 for limit in limits)


@pytest.mark.parametrize("address", ["http://[", "http://[::1", "http://127.0.0.1:99999/"])
async def test_a_redirect_uri_that_is_no_url_is_answered_with_a_page(address: str) -> None:
    """A link with such an address to the development issuer ended in a traceback."""
    walk = CodeFlow()
    await walk.register()

    answer = await walk.authorize(redirect_uri=address)

    assert answer.status_code == 400
    assert "not registered" in answer.text


@pytest.mark.parametrize("seconds", ["9" * 5000, "0" * 5000])
async def test_a_max_age_of_thousands_of_digits_is_ignored(seconds: str) -> None:
    """Python refuses to parse such a number, so a signed-in user got a traceback."""
    walk = CodeFlow()
    await walk.register()
    await walk.sign_in()

    answer = await walk.authorize(max_age=seconds)

    assert answer.status_code == 200
    assert "/consent" in answer.text

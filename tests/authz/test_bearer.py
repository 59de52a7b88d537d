"""The credential in the raw headers: one field, one token, and the same answer everywhere."""

import h11
import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_authz.errors import AuthError, MalformedCredentials, MissingToken
from gatepost_authz.middleware import MAX_TOKEN, bearer_token
from tests.support.measuring import each

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodHRwczovL2EifQ.c2ln"
TOKEN_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/"

ACCEPTED_HEADERS = [
    (f"Bearer {TOKEN}", TOKEN),
    (f"bearer {TOKEN}", TOKEN),
    (f"BEARER {TOKEN}", TOKEN),
    (f"BeArEr {TOKEN}", TOKEN),
    (f"Bearer    {TOKEN}", TOKEN),
    (f"Bearer {TOKEN}  ", TOKEN),
    (f"Bearer {TOKEN}\t", TOKEN),
    ("Bearer opaque-~+/._token==", "opaque-~+/._token=="),
    (f"Bearer {'a' * MAX_TOKEN}", "a" * MAX_TOKEN),
]

MALFORMED_HEADERS = [
    "",
    "   ",
    "Bearer",
    "Bearer ",
    "Bearer     ",
    f"Bearer\t{TOKEN}",
    f"Bearer \t{TOKEN}",
    f"Bearer={TOKEN}",
    f"Bearer,{TOKEN}",
    "Bearer a, Bearer b",
    "Bearer a,Bearer b",
    "Bearer a b",
    "Bearer a=b",
    "Bearer ==",
    'Bearer "a"',
    "Bearer a\x00b",
    "Bearer a\x7fb",
    "Bearer a\xe9b",
    "Bearer \xe2\x80\x8btoken",
    f"Bearer {'a' * (MAX_TOKEN + 1)}",
    f"Basic {'a' * 60_000}",
    f"Bearer {'a' * 70_000}",
    '"Basic" a',
    ": a",
]

OTHER_SCHEMES = ["Basic YTpi", "Negotiate", "Token token=abc", "DPoP abc", "BearerX abc", "basic "]


def token_of(*values: str) -> str:
    fields = [(b"authorization", value.encode("latin-1")) for value in values]
    return bearer_token([(b"host", b"h"), *fields, (b"accept", b"*/*")])


@pytest.mark.requirement("W03", "W05", "W06")
@pytest.mark.parametrize(("value", "token"), ACCEPTED_HEADERS)
def test_a_well_formed_credential_is_read(value: str, token: str) -> None:
    """The scheme may have any case and is followed by spaces and one token."""
    assert token_of(value) == token


@pytest.mark.requirement("W02", "W04", "W06", "W07", "W08", "W09", "A-28")
@each("value", MALFORMED_HEADERS, ids=lambda value: repr(value[:24]))
def test_an_ambiguous_bearer_credential_is_malformed(value: str) -> None:
    """The gate refuses a credential that two parsers could read differently."""
    with pytest.raises(MalformedCredentials):
        token_of(value)


@pytest.mark.requirement("W11")
@pytest.mark.parametrize("value", OTHER_SCHEMES)
def test_another_authorization_scheme_counts_as_missing_credentials(value: str) -> None:
    """A client that sends Basic gets the Bearer challenge."""
    with pytest.raises(MissingToken):
        token_of(value)


@pytest.mark.requirement("A-10", "A-15")
def test_a_missing_header_is_a_missing_token() -> None:
    """A missing header is not a malformed header."""
    with pytest.raises(MissingToken):
        token_of()


@pytest.mark.requirement("W01")
@pytest.mark.parametrize(
    "values",
    [
        (f"Bearer {TOKEN}", "Bearer other"),
        ("Bearer other", f"Bearer {TOKEN}"),
        (f"Bearer {TOKEN}", f"Bearer {TOKEN}"),
        ("Basic YTpi", f"Bearer {TOKEN}"),
        (f"Bearer {TOKEN}", ""),
    ],
)
def test_two_authorization_fields_are_refused(values: tuple[str, str]) -> None:
    """A proxy in front may have checked the first field or the last."""
    with pytest.raises(MalformedCredentials):
        token_of(*values)


def through_h11(raw: bytes) -> list[tuple[bytes, bytes]] | None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=200_000)
    connection.receive_data(raw)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    assert isinstance(event, h11.Request)
    return list(event.headers)


class Headers:
    """Collects fields as uvicorn's httptools protocol does: names in lower case."""

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))


def through_httptools(raw: bytes) -> list[tuple[bytes, bytes]] | None:
    headers = Headers()
    try:
        httptools.HttpRequestParser(headers).feed_data(raw)
    except httptools.HttpParserError:
        return None
    return headers.fields


def answer(fields: list[tuple[bytes, bytes]] | None) -> object:
    """Return the token, the refusal's status, or the parser's own 400."""
    if fields is None:
        return 400
    try:
        return bearer_token(fields)
    except AuthError as error:
        return error.status


@pytest.mark.requirement("W06", "W08", "W09")
@each(
    "value",
    [value for value, _ in ACCEPTED_HEADERS]
    + [value for value in MALFORMED_HEADERS if value.strip()],
    ids=lambda value: repr(value[:24]),
)
def test_both_http_parsers_lead_to_the_same_result(value: str) -> None:
    """h11 strips spaces that httptools keeps, which must not change the result."""
    raw = b"POST /mcp HTTP/1.1\r\nHost: h\r\nAuthorization: %b\r\n\r\n" % value.encode("latin-1")

    assert answer(through_h11(raw)) == answer(through_httptools(raw))


@given(st.binary(max_size=64))
def test_arbitrary_bytes_give_a_token_or_a_refusal(value: bytes) -> None:
    """No other exception is raised."""
    try:
        token = bearer_token([(b"authorization", value)])
    except (MissingToken, MalformedCredentials):
        return

    assert token.rstrip("=")
    assert set(token.rstrip("=")) <= set(TOKEN_CHARACTERS)


@given(st.text(TOKEN_CHARACTERS, min_size=1), st.integers(0, 2), st.integers(1, 4))
def test_every_b64token_is_returned_unchanged(body: str, padding: int, spaces: int) -> None:
    """The fast path and the grammar agree on every token."""
    token = body + "=" * padding

    assert token_of(f"Bearer{' ' * spaces}{token}") == token

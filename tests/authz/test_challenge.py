"""Refusals as callers get them: exact strings, in an order that every known client can read."""

import json
import re
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from mcp.client.auth.utils import extract_field_from_www_auth
from starlette.types import Message

from gatepost_authz.challenge import Challenge
from gatepost_authz.errors import (
    AuthError,
    ExpiredToken,
    InsufficientAuthentication,
    InsufficientScope,
    InvalidToken,
    IssuerUnavailable,
    MalformedCredentials,
    MissingToken,
    NotYetValidToken,
    WrongAudience,
)
from gatepost_authz.middleware import OneStepSend, send_response
from gatepost_authz.protected_resource import Resource, Target
from tests.support.measuring import each

Read = Callable[[str, str], str | None]


def python_sdk(header: str, name: str) -> str | None:
    """Read as the official Python client does: it searches for `name=` anywhere in the header."""
    return extract_field_from_www_auth(
        httpx2.Response(401, headers={"WWW-Authenticate": header}), name
    )


def typescript_sdk(header: str, name: str) -> str | None:
    """Read as the official TypeScript client: search only if the first word is Bearer."""
    words = header.split(" ")
    if len(words) < 2 or words[0].lower() != "bearer" or not words[1]:
        return None
    match = re.search(rf'{name}=(?:"([^"]+)"|([^\s,]+))', header)
    return (match[1] or match[2]) if match else None


def vs_code(header: str, name: str) -> str | None:
    """Read as VS Code: it splits at commas outside quotes, every quote toggling."""
    pieces, quoted = [""], False
    for character in header:
        quoted ^= character == '"'
        if character == "," and not quoted:
            pieces.append("")
        else:
            pieces[-1] += character
    scheme, parameters = "", {}
    for piece in filter(None, map(str.strip, pieces)):
        before, space, after = piece.partition(" ")
        if "=" not in piece:
            scheme, parameters = piece, {}
            continue
        if space and "=" not in before:
            scheme, parameters, piece = before, {}, after
        key, _, value = piece.partition("=")
        parameters[key.strip()] = value.strip().strip('"')
    return parameters.get(name) if scheme == "Bearer" else None


def inspector(header: str, name: str) -> str | None:
    """Read as the Inspector: parameters of the whole header, the last of a name wins."""
    pairs = re.findall(r'([A-Za-z0-9_-]+)\s*=\s*(?:"([^"]*)"|([^\s,]+))', header)
    return {key: quoted or bare for key, quoted, bare in pairs}.get(name)


PARSERS: dict[str, Read] = {
    "python_sdk": python_sdk,
    "typescript_sdk": typescript_sdk,
    "vs_code": vs_code,
    "inspector": inspector,
}


METADATA_URL = "https://mcp.example.com/mcp/.well-known/oauth-protected-resource"
TARGET = Resource("https://mcp.example.com/mcp").of_tenant("")
CODE = f'Bearer resource_metadata="{METADATA_URL}", error="invalid_token", scope="mcp:read"'

STRINGS: list[tuple[AuthError, int, str]] = [
    (MissingToken(), 401, CODE),
    (
        MalformedCredentials("repeated_header"),
        400,
        f'Bearer resource_metadata="{METADATA_URL}", error="invalid_request", '
        'error_description="Malformed Authorization header"',
    ),
    (InvalidToken("x"), 401, f'{CODE}, error_description="The access token is invalid"'),
    (ExpiredToken(), 401, f'{CODE}, error_description="The access token expired"'),
    (NotYetValidToken(), 401, f'{CODE}, error_description="The access token is not yet valid"'),
    (
        WrongAudience(),
        401,
        f'{CODE}, error_description="The access token was not issued for this resource"',
    ),
    (
        InsufficientScope(("mcp:read", "mcp:write")),
        403,
        f'Bearer resource_metadata="{METADATA_URL}", error="insufficient_scope", '
        'scope="mcp:read mcp:write", error_description="More permissions are required"',
    ),
    (
        InsufficientAuthentication(("phrh",), 300),
        401,
        f'Bearer resource_metadata="{METADATA_URL}", error="insufficient_user_authentication", '
        'acr_values="phrh", max_age="300", '
        'error_description="A stronger or newer sign-in is required"',
    ),
]
NAMES = [type(error).__name__ for error, _, _ in STRINGS]


def a_challenge(*, error_without_credentials: bool = True) -> Challenge:
    return Challenge(baseline=("mcp:read",), error_without_credentials=error_without_credentials)


def fields(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    assert len({name for name, _ in headers}) == len(headers)
    return {name.decode(): value.decode() for name, value in headers}


@pytest.mark.requirement("A3", "A-02", "A-03", "A-21", "A-28")
@pytest.mark.parametrize(("error", "status", "header"), STRINGS, ids=NAMES)
def test_each_refusal_has_its_exact_challenge(error: AuthError, status: int, header: str) -> None:
    """Each refusal has one status and one string, without any part of the request."""
    answered, headers, body = a_challenge().response(error, TARGET)

    assert answered == status
    assert fields(headers)["www-authenticate"] == header
    assert fields(headers)["cache-control"] == "no-store"
    assert fields(headers)["content-type"] == "application/json"
    assert fields(headers)["content-length"] == str(len(body))
    assert {"error", "error_description", "message"} <= set(json.loads(body))


@pytest.mark.requirement("A3", "A-21")
def test_the_challenge_without_baseline_scopes_has_no_scope() -> None:
    """The string is the one that the product text quotes."""
    _, headers, body = Challenge().response(MissingToken(), TARGET)

    assert (
        fields(headers)["www-authenticate"]
        == f'Bearer resource_metadata="{METADATA_URL}", error="invalid_token"'
    )
    assert json.loads(body)["error"] == "invalid_token"


@pytest.mark.requirement("A-21")
def test_a_setting_omits_the_error_code_for_missing_credentials() -> None:
    """RFC 6750 section 3.1 recommends no error code without credentials."""
    challenge = a_challenge(error_without_credentials=False)
    missing = fields(challenge.response(MissingToken(), TARGET)[1])["www-authenticate"]
    invalid = fields(challenge.response(InvalidToken("x"), TARGET)[1])["www-authenticate"]

    assert missing == f'Bearer resource_metadata="{METADATA_URL}", scope="mcp:read"'
    assert 'error="invalid_token"' in invalid


@pytest.mark.requirement("A-03")
@each("client", PARSERS)
@each(("error", "status", "header"), STRINGS, ids=NAMES)
def test_every_known_client_parses_the_challenge_correctly(
    client: str, error: AuthError, status: int, header: str
) -> None:
    """Four parsers of clients find the same values."""
    read = PARSERS[client]
    sent = fields(a_challenge().response(error, TARGET)[1])["www-authenticate"]
    scopes = {"InsufficientScope": "mcp:read mcp:write"}.get(type(error).__name__)
    if status == 401 and not isinstance(error, InsufficientAuthentication):
        scopes = "mcp:read"

    assert read(sent, "resource_metadata") == METADATA_URL
    assert read(sent, "error") == (error.code or "invalid_token")
    assert read(sent, "scope") == scopes


def test_a_step_up_challenge_includes_the_baseline_scopes() -> None:
    """A client that requests only the named scopes must not lose the baseline."""
    _, headers, _ = a_challenge().response(InsufficientScope(("files:write", "mcp:read")), TARGET)

    assert 'scope="mcp:read files:write"' in fields(headers)["www-authenticate"]


def test_an_outage_is_answered_with_503_and_no_challenge() -> None:
    """A 401 would make clients throw good tokens away."""
    status, headers, body = a_challenge().response(IssuerUnavailable("down", retry_after=7), TARGET)

    assert status == 503
    assert fields(headers)["retry-after"] == "7"
    assert "www-authenticate" not in fields(headers)
    assert json.loads(body)["error"] == "temporarily_unavailable"


def test_a_challenge_for_a_path_without_tenant_names_no_metadata() -> None:
    """A metadata URL would tell which tenants exist."""
    for error in (MissingToken(), InvalidToken("no_resource_in_path")):
        _, headers, _ = a_challenge().response(error, None)

        assert "resource_metadata" not in fields(headers)["www-authenticate"]
        assert fields(headers)["www-authenticate"].startswith('Bearer error="invalid_token"')

    bare = Challenge(error_without_credentials=False).response(MissingToken(), None)
    assert fields(bare[1])["www-authenticate"] == "Bearer"


@pytest.mark.requirement("W21")
@pytest.mark.parametrize("value", ["a b", 'a"', "a\\b", "a\r\nX: y", "a\n", "é", "", "a\x7f"])
def test_scopes_and_urls_that_could_break_the_header_are_refused(value: str) -> None:
    """A scope or a URL of the configuration never adds a header of its own."""
    with pytest.raises(ValueError, match="cannot stand in a challenge"):
        Challenge(baseline=(value,))
    with pytest.raises(ValueError, match="cannot stand in a challenge"):
        a_challenge().response(InsufficientScope((value,)), TARGET)
    with pytest.raises(ValueError, match="cannot stand in a challenge"):
        a_challenge().response(InsufficientAuthentication((value,)), TARGET)
    if value:
        with pytest.raises(ValueError, match="cannot stand in a challenge"):
            a_challenge().response(InvalidToken("x"), Target("https://h", f"https://h/{value}"))


@pytest.mark.requirement("W26")
def test_the_internal_reason_is_never_sent() -> None:
    """The reason is for the log; an attacker could use it to improve a forged token."""
    for error in (InvalidToken("kid_of_tenant_acme"), IssuerUnavailable("https://inner.example")):
        _, headers, body = a_challenge().response(error, TARGET)

        assert error.reason not in repr(headers) + body.decode()


def test_headers_added_to_one_refusal_do_not_appear_on_the_next() -> None:
    """Each answer gets its own list of headers."""
    challenge = a_challenge()
    challenge.response(MissingToken(), TARGET)[1].append((b"x-request-id", b"1"))

    assert "x-request-id" not in fields(challenge.response(MissingToken(), TARGET)[1])


async def test_a_refusal_is_sent_as_one_start_and_one_body() -> None:
    """The body is not announced as a stream."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await send_response(send, *a_challenge().answer(MissingToken(), TARGET))

    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 401
    assert "more_body" not in sent[1]


class InOneStep(OneStepSend):
    """A server's way to send that takes whole answers, but for those to HEAD."""

    def __init__(self, *, head: bool = False) -> None:
        self.head = head
        self.answers: list[tuple[int, tuple[tuple[bytes, bytes], ...], bytes]] = []
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)

    def send_whole(self, status: int, fields: tuple[tuple[bytes, bytes], ...], body: bytes) -> bool:
        if not self.head:
            self.answers.append((status, fields, body))
        return not self.head


async def test_a_refusal_is_sent_in_one_step_if_the_server_supports_it() -> None:
    """Unauthenticated callers cause refusals, so their fields are encoded only once."""
    send, by_messages = InOneStep(), InOneStep(head=True)
    challenge = a_challenge()
    for _ in range(2):
        await send_response(send, *challenge.answer(InvalidToken("x"), TARGET))
        await send_response(by_messages, *challenge.answer(InvalidToken("x"), TARGET))

    [(status, headers, body), again] = send.answers
    assert (send.messages, again[1] is headers) == ([], True)
    begun, ended, *_ = by_messages.messages
    assert (begun["status"], ended["body"]) == (status, body)
    assert begun["headers"] == [*headers, (b"content-length", b"%d" % len(body))]

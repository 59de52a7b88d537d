"""Any request of a broken or hostile client gets a documented answer, never a 500."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attacks.conftest import AttackedServer
from tests.support.issuers import ABSENT, base64url_encoded, compact_jws, rsa_key, signer

SIGNER = signer(rsa_key(), "RS256")
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
FIELD_BYTES = st.binary(max_size=200).map(
    lambda data: bytes(byte for byte in data if byte >= 0x20 and byte != 0x7F)
)
SEGMENTS = st.binary(max_size=120).map(base64url_encoded) | st.text("aA0-_.=", max_size=20)
CLAIMS = (
    "iss", "aud", "exp", "iat", "nbf", "sub", "client_id", "jti", "scope", "org_id", "act", "cnf",
    "acr", "amr", "auth_time", "sid", "roles", "typ", "nonce", "_claim_names", "events", "dev",
)  # fmt: skip
# Not `kid`: an unknown one waits for the issuer's next key set (group H has it).
MEMBERS = ("alg", "typ", "crit", "b64", "zip", "enc", "cty", "jku", "jwk", "x5c", "x5u")
METHODS = ("initialize", "tools/call", "tools/list", "server/discover", "ping", "")
one_parser = pytest.mark.parametrize("server", ["httptools"], indirect=True)
"""The parser reads these requests alike, and what differs is behind it."""


def documented(answer: Any, *statuses: int) -> None:
    """Assert one of these statuses, JSON unless there is no body, and a challenge with 401."""
    assert answer.status in statuses, answer
    assert not answer.body or isinstance(json.loads(answer.body), dict | list)
    if answer.status == 401:
        assert (answer.field("www-authenticate") or "").startswith("Bearer resource_metadata=")


@given(value=FIELD_BYTES | FIELD_BYTES.map(lambda data: b"Bearer " + data))
def test_arbitrary_authorization_headers_get_documented_answers(
    server: AttackedServer, value: bytes
) -> None:
    """Bytes that are no credential are answered with 400 or 401."""
    with server.nothing_runs():
        documented(server.raw([("Authorization", value)]), 400, 401, 431)


@one_parser
@given(parts=st.lists(SEGMENTS, max_size=6))
def test_arbitrary_token_segments_are_refused(server: AttackedServer, parts: list[str]) -> None:
    """Arbitrary segments are never accepted as a token."""
    with server.nothing_runs():
        documented(server.call(".".join(parts)), 400, 401)


@one_parser
@given(member=st.sampled_from(MEMBERS), value=ANY_JSON)
def test_arbitrary_token_header_members_get_documented_answers(
    server: AttackedServer, member: str, value: Any
) -> None:
    """The gate refuses a signed token with an odd header, unless the odd value is harmless."""
    documented(server.call(server.tokens().token(header={member: value})), 200, 401, 503)


@one_parser
@given(claim=st.sampled_from(CLAIMS), value=ANY_JSON | st.just(ABSENT))
def test_arbitrary_claim_values_get_documented_answers(
    server: AttackedServer, claim: str, value: Any
) -> None:
    """The gate refuses a signed token with an odd claim, unless the odd value is harmless."""
    documented(server.call(server.tokens().token(**{claim: value})), 200, 401)


@one_parser
@given(payload=st.binary(max_size=200) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_arbitrary_signed_payloads_are_refused(server: AttackedServer, payload: bytes) -> None:
    """A payload that is not a set of claims is refused, although the key is right."""
    token = compact_jws(server.tokens().header(), payload, SIGNER)
    if not payload:
        return
    with server.nothing_runs():
        documented(server.call(token), 401)


@given(body=st.binary(max_size=200) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_arbitrary_request_bodies_get_documented_answers(
    server: AttackedServer, body: bytes
) -> None:
    """A caller with a good token gets JSON-RPC errors, and no tool runs."""
    credential = ("Authorization", f"Bearer {server.tokens().token()}")
    with server.nothing_runs():
        documented(server.raw([credential], body=body), 200, 202, 400, 404)


@one_parser
@given(
    method=st.sampled_from(
        ["initialize", "tools/call", "tools/list", "server/discover", "ping", ""]
    )
    | st.text(max_size=10),
    params=ANY_JSON,
    identity=ANY_JSON,
)
def test_arbitrary_json_rpc_messages_get_documented_answers(
    server: AttackedServer, method: str, params: Any, identity: Any
) -> None:
    """Known methods with parameters of any shape never cause a 500."""
    message = {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}
    credential = ("Authorization", f"Bearer {server.tokens().token()}")
    with server.nothing_runs():
        documented(server.raw([credential], body=json.dumps(message).encode()), 200, 202, 400, 404)

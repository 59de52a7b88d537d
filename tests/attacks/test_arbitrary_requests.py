"""Any request of a broken or hostile client gets a documented answer, never a 500."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attacks.conftest import AttackedServer
from tests.support.issuers import ABSENT, b64, compact, rsa_key, signer

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
SEGMENTS = st.binary(max_size=120).map(b64) | st.text("aA0-_.=", max_size=20)
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
    """One of these statuses, in JSON unless it has no body; a challenge where there should be."""
    assert answer.status in statuses, answer
    assert not answer.body or isinstance(json.loads(answer.body), dict | list)
    if answer.status == 401:
        assert (answer.field("www-authenticate") or "").startswith("Bearer resource_metadata=")


@given(value=FIELD_BYTES | FIELD_BYTES.map(lambda data: b"Bearer " + data))
def test_any_authorization_header(server: AttackedServer, value: bytes) -> None:
    """Bytes that are no credential are 400 or 401."""
    with server.nothing_runs():
        documented(server.raw([("Authorization", value)]), 400, 401, 431)


@one_parser
@given(
    parts=st.lists(st.binary(max_size=120).map(b64) | st.text("aA0-_.=", max_size=20), max_size=6)
)
def test_any_token(server: AttackedServer, parts: list[str]) -> None:
    """Segments of anything are no token."""
    with server.nothing_runs():
        documented(server.call(".".join(parts)), 400, 401)


@one_parser
@given(member=st.sampled_from(MEMBERS), value=ANY_JSON)
def test_any_value_of_a_header_member(server: AttackedServer, member: str, value: Any) -> None:
    """A signed token whose header says anything is refused, or was harmless."""
    documented(server.call(server.tokens().token(header={member: value})), 200, 401, 503)


@one_parser
@given(claim=st.sampled_from(CLAIMS), value=ANY_JSON | st.just(ABSENT))
def test_any_value_of_a_claim(server: AttackedServer, claim: str, value: Any) -> None:
    """A signed token that claims anything is refused, or was harmless."""
    documented(server.call(server.tokens().token(**{claim: value})), 200, 401)


@one_parser
@given(payload=st.binary(max_size=200) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_any_signed_payload(server: AttackedServer, payload: bytes) -> None:
    """Signed by the right key, and still not a set of claims."""
    token = compact(server.tokens().header(), payload, SIGNER)
    if not payload:
        return
    with server.nothing_runs():
        documented(server.call(token), 401)


@given(body=st.binary(max_size=200) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body(server: AttackedServer, body: bytes) -> None:
    """From a caller who may come in: JSON-RPC errors, or nothing to answer."""
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
def test_any_message(server: AttackedServer, method: str, params: Any, identity: Any) -> None:
    """Known methods with parameters of any shape, in either era."""
    message = {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}
    credential = ("Authorization", f"Bearer {server.tokens().token()}")
    with server.nothing_runs():
        documented(server.raw([credential], body=json.dumps(message).encode()), 200, 202, 400, 404)

"""How this server authenticates at an issuer: secrets, and assertions signed with its key."""

import base64
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from gatepost_authz import signature
from gatepost_authz.client_authentication import (
    ASSERTION_TYPE,
    authentication,
    credentials,
    signing_key,
)
from gatepost_authz.config import DashboardClient, Introspection
from tests.authz.conftest import ISSUER, NOW
from tests.support.measuring import each

KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


def pem(key: Any, encryption: Any = None) -> str:
    coded: bytes = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()
    )
    return coded.decode()


def settings(**changes: str) -> Introspection:
    usual: dict[str, Any] = {"client_id": "gate", "method": "private_key_jwt", "private_key": "f:"}
    return Introspection(**usual | changes)


@each("algorithm", KEYS)
def test_an_assertion_names_the_client_and_issuer_and_lasts_a_minute(algorithm: str) -> None:
    """RFC 7523 section 3; each request has a new assertion, since servers accept one once."""
    make = authentication(
        settings(key_id="k-1"), pem(KEYS[algorithm]), ISSUER, clock=lambda: float(NOW)
    )

    (headers, form), (_, again) = make(), make()
    parts = signature.split(form["client_assertion"])
    check = signature.CHECKS[algorithm]

    assert headers == {}
    assert (form["client_id"], form["client_assertion_type"]) == ("gate", ASSERTION_TYPE)
    assert (parts.header.algorithm, parts.header.kid) == (algorithm, "k-1")
    assert check.verify(parts.signed, KEYS[algorithm].public_key(), parts.signature)
    jti = parts.unverified.pop("jti")
    assert parts.unverified == {
        "iss": "gate", "sub": "gate", "aud": ISSUER, "iat": NOW, "exp": NOW + 60
    }  # fmt: skip
    assert jti != signature.split(again["client_assertion"]).unverified["jti"]


def test_the_audience_of_the_assertion_can_be_the_token_endpoint() -> None:
    """Some servers accept nothing else."""
    make = authentication(settings(assertion_audience="https://t"), pem(KEYS["ES256"]), ISSUER)

    parts = signature.split(make()[1]["client_assertion"])

    assert parts.unverified["aud"] == "https://t"
    assert parts.header.kid is None


@each(("encoding", "pair"), [("form", "gate+post:p%25s"), ("raw", "gate post:p%s")])
def test_the_dashboard_client_encodes_its_secret_like_introspection(
    encoding: Any, pair: str
) -> None:
    """The same servers answer at the token endpoint."""
    client = DashboardClient(client_id="gate post", client_secret="env:S", encoding=encoding)

    headers, form = credentials(client, "p%s")

    assert base64.b64decode(headers["authorization"].removeprefix("Basic ")).decode() == pair
    assert form == {}


UNUSABLE_KEYS = {
    "text": "not a key",
    "curve": pem(ec.generate_private_key(ec.SECP256K1())),
    "exchange": pem(x25519.X25519PrivateKey.generate()),
    "locked": pem(KEYS["ES256"], BestAvailableEncryption(b"hunter2")),
}


@each("name", UNUSABLE_KEYS)
def test_a_key_that_cannot_sign_is_reported_without_its_content(name: str) -> None:
    """`gatepost check` shows the message."""
    with pytest.raises(ValueError, match="the private key") as refusal:
        signing_key(UNUSABLE_KEYS[name])

    assert len(str(refusal.value)) < 100
    assert refusal.value.__cause__ is None

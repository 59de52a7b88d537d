"""Authenticate this server at an issuer's endpoints (RFC 6749 section 2.3, RFC 7523)."""

import secrets
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import TypeAlias
from urllib.parse import quote_plus

import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gatepost_authz.config import DashboardClient, Introspection
from gatepost_authz.signature import CHECKS

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ASSERTION_S = 60
"""The lifetime of an assertion in seconds; each request has a new one."""
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

Credentials: TypeAlias = tuple[Mapping[str, str], Mapping[str, str]]
"""Header fields and form members of one request."""
SigningKey: TypeAlias = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey


def reference_of(settings: Introspection) -> str:
    """Return the reference to the secret or the key with which the client authenticates."""
    by_key = settings.method == "private_key_jwt"
    return settings.private_key if by_key else settings.client_secret


def authentication(
    settings: Introspection, secret: str, issuer: str, *, clock: Callable[[], float] = time.time
) -> Callable[[], Credentials]:
    """
    Return a function that makes the credentials of one request.

    *secret* is the client secret, or the private key in PEM; ValueError if that cannot be used.
    """
    if settings.method != "private_key_jwt":
        fixed = credentials(settings, secret)
        return lambda: fixed
    key = signing_key(secret)
    audience = settings.assertion_audience or issuer

    def by_assertion() -> Credentials:
        claims = assertion_claims(settings.client_id, audience, now=int(clock()))
        token = signed(key, claims, settings.key_id)
        return {}, {
            "client_id": settings.client_id,
            "client_assertion_type": ASSERTION_TYPE,
            "client_assertion": token,
        }

    return by_assertion


def credentials(settings: Introspection | DashboardClient, secret: str) -> Credentials:
    """
    Return the server's credentials as header fields and form members (RFC 6749 section 2.3.1).

    Both halves of Basic are form-encoded first. Authlib, our OAuth client elsewhere, leaves that
    out, and a secret that holds ``%`` or ``:`` would then be another one. Some servers do not
    decode them; for these, ``encoding`` is ``raw``.
    """
    if settings.method == "client_secret_post":
        return {}, {"client_id": settings.client_id, "client_secret": secret}
    halves = (settings.client_id, secret)
    if settings.encoding == "form":
        halves = (quote_plus(settings.client_id), quote_plus(secret))
    return {"authorization": f"Basic {b64encode(':'.join(halves).encode()).decode()}"}, {}


def signing_key(pem: str) -> SigningKey:
    """Return the private key in *pem*; ValueError if it is none that can sign assertions."""
    try:
        key = load_pem_private_key(pem.encode(), None)
    except (TypeError, ValueError):
        # The library's error is not passed on, because it may quote the key.
        raise ValueError("the private key is not PEM without a password") from None
    algorithm_of(key)
    if not isinstance(key, SigningKey):
        raise ValueError("the private key is neither RSA, EC nor Ed25519")
    return key


def algorithm_of(key: object) -> str:
    """Return the algorithm for *key*; ValueError if there is none."""
    if isinstance(key, RSAPrivateKey) and key.key_size >= 2048:
        return "RS256"
    if isinstance(key, EllipticCurvePrivateKey) and key.curve.name in CURVES:
        return CURVES[key.curve.name]
    if isinstance(key, Ed25519PrivateKey):
        return "EdDSA"
    raise ValueError("the private key must be RSA from 2048 bits, EC on a NIST curve, or Ed25519")


def assertion_claims(client_id: str, audience: str, *, now: int) -> dict[str, object]:
    """Return the claims of an assertion (RFC 7523 section 3, OpenID Connect Core section 9)."""
    return {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "jti": secrets.token_urlsafe(24),
        "iat": now,
        "exp": now + ASSERTION_S,
    }


def signed(key: SigningKey, claims: Mapping[str, object], key_id: str) -> str:
    """Return the claims as a compact JWS."""
    algorithm = algorithm_of(key)
    header = {"alg": algorithm, "typ": "JWT", **({"kid": key_id} if key_id else {})}
    content = f"{_coded(header)}.{_coded(claims)}"
    signature = CHECKS[algorithm].sign(content.encode("ascii"), key)
    return f"{content}.{urlsafe_b64encode(signature).rstrip(b'=').decode('ascii')}"


def _coded(members: Mapping[str, object]) -> str:
    return urlsafe_b64encode(msgspec.json.encode(members)).rstrip(b"=").decode("ascii")

"""A signed development access token, in the RFC 9068 profile."""

import base64
import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from joserfc import jwt
from joserfc.errors import UnsupportedAlgorithmError
from joserfc.jwk import Key
from joserfc.jws import JWSRegistry

from gatepost_keys.generate import GenerationRefused
from gatepost_keys.jwks import ALGORITHMS

MAX_LIFETIME_S = 600
"""A development token that leaks is worthless ten minutes later."""


class TokenSubject(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a token is about: a development user, or a machine client."""

    username: str
    """Becomes `sub`; unique at this issuer."""
    tenant: str
    """Becomes `org_id`."""
    name: str = ""
    email: str = ""
    roles: tuple[str, ...] = ()


class AccessTokenClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What one access token says; times in seconds since the epoch."""

    issuer: str
    person: TokenSubject
    client_id: str
    resource: str
    """The only audience (RFC 8707)."""
    scopes: str = ""
    """Space-delimited; empty leaves the claim out."""
    auth_time: int | None = None
    acr: str | None = None

    def claims(self, *, now: float, lifetime_s: int) -> dict[str, object]:
        """
        Return the claims of a token issued *now*; Refused when it would live over ten minutes.
        """
        if not 0 < lifetime_s <= MAX_LIFETIME_S:
            raise GenerationRefused(f"a development token lives 1 to {MAX_LIFETIME_S} seconds")
        person = self.person
        claims: dict[str, object] = {
            "iss": self.issuer,
            "sub": person.username,
            "aud": self.resource,
            "exp": int(now) + lifetime_s,
            "iat": int(now),
            "jti": secrets.token_urlsafe(16),
            "client_id": self.client_id,
            "org_id": person.tenant,
            "dev": True,
        }
        optional: dict[str, object] = {
            "scope": self.scopes,
            "roles": list(person.roles),
            "email": person.email,
            "name": person.name,
            "auth_time": self.auth_time,
            "acr": self.acr,
        }
        return claims | {name: value for name, value in optional.items() if value}


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What one ID token says (OpenID Connect Core 1.0 section 2)."""

    issuer: str
    person: TokenSubject
    client_id: str
    """The audience."""
    nonce: str = ""
    auth_time: int | None = None
    acr: str | None = None

    def claims(self, *, now: float, lifetime_s: int, at_hash: str) -> dict[str, object]:
        """Return the claims of a token issued *now*; *at_hash* is of the access token beside it."""
        person = self.person
        claims: dict[str, object] = {
            "iss": self.issuer,
            "sub": person.username,
            "aud": self.client_id,
            "exp": int(now) + lifetime_s,
            "iat": int(now),
            "org_id": person.tenant,
            "dev": True,
        }
        optional: dict[str, object] = {
            "nonce": self.nonce,
            "at_hash": at_hash,
            "name": person.name,
            "email": person.email,
            "auth_time": self.auth_time,
            "acr": self.acr,
        }
        return claims | {name: value for name, value in optional.items() if value}


def half_hash(token: str, algorithm: str) -> str:
    """Return the first half of the digest of *token* (OpenID Connect Core 1.0 section 3.1.3.6)."""
    # Ed25519 and its older name EdDSA hash with SHA-512.
    size = algorithm[2:] if algorithm[2:] in {"256", "384"} else "512"
    whole = hashlib.new(f"sha{size}", token.encode("ascii")).digest()
    return base64.urlsafe_b64encode(whole[: len(whole) // 2]).rstrip(b"=").decode("ascii")


class Algorithms(JWSRegistry):
    """
    The algorithms of ``jwks.ALGORITHMS``, without a warning per token for `EdDSA`.

    RFC 9864 prefers the name `Ed25519`, which most verifiers in the field do not know yet.
    """

    def get_alg(self, name: str) -> Any:
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError(f"{name} does not sign development tokens")
        return self.algorithms[name]


def sign(claims: Mapping[str, object], key: Key, *, kind: str = "at+jwt") -> str:
    """
    Return a compact JWS of *claims* with *kind* as its `typ` and the key's own `kid` and `alg`.
    """
    header = {"typ": kind, "alg": str(key.alg), "kid": str(key.kid)}
    return jwt.encode(header, dict(claims), key, registry=Algorithms())

"""Sign a development access token, in the RFC 9068 profile."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from joserfc import jwt
from joserfc.errors import UnsupportedAlgorithmError
from joserfc.jwk import Key
from joserfc.jws import JWSRegistry

from gatepost_keys.generate import GenerationRefused
from gatepost_keys.imitation import DEVELOPMENT, Imitation
from gatepost_keys.imitation.facts import api_of, facts_of, filled, ids_of, lifetime
from gatepost_keys.public_keys import ALGORITHMS
from gatepost_keys.subject import TokenSubject

MAX_LIFETIME_S = 600
"""A development token that leaks is worthless ten minutes later."""


class AccessTokenClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of one access token; times in seconds since the epoch."""

    issuer: str
    person: TokenSubject
    client_id: str
    resource: str
    """The only audience (RFC 8707); empty: the token is for no resource of ours."""
    scopes: str = ""
    """Space-delimited; empty leaves the claim out."""
    auth_time: int | None = None
    acr: str | None = None
    imitation: Imitation = DEVELOPMENT
    """The identity provider whose form the claims have."""

    def facts(self, *, now: float, lifetime_s: int) -> dict[str, object]:
        """
        Return the facts for templates about a token issued *now*; GenerationRefused when it would
        live over ten minutes.
        """
        if not 0 < lifetime_s <= MAX_LIFETIME_S:
            raise GenerationRefused(f"a development token lives 1 to {MAX_LIFETIME_S} seconds")
        shape = self.imitation
        return {
            **facts_of(self.person, shape, self.client_id),
            **lifetime(now, lifetime_s),
            "iss": self.issuer,
            "resource": self.resource,
            "api": api_of(shape, self.resource) if self.resource else shape.other_api,
            "scope": self.scopes,
            "scopes": self.scopes.split(),
            "auth_time": self.auth_time or None,
            "acr": self.acr,
            "sid": session_id(self.person, self.auth_time),
        }

    def claims(self, *, now: float, lifetime_s: int) -> dict[str, object]:
        """
        Return the claims of a token issued *now*; GenerationRefused when it would live over ten
        minutes.
        """
        return self.claims_of(self.facts(now=now, lifetime_s=lifetime_s))

    def claims_of(self, facts: Mapping[str, object]) -> dict[str, object]:
        """Return the claims that *facts* give."""
        shape = self.imitation
        template = shape.machine if self.person.machine else shape.person
        return filled(template, facts) | {"dev": True}


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of one ID token (OpenID Connect Core 1.0 section 2)."""

    issuer: str
    person: TokenSubject
    client_id: str
    """The audience."""
    nonce: str = ""
    auth_time: int | None = None
    acr: str | None = None
    imitation: Imitation = DEVELOPMENT
    """The identity provider whose form the claims have."""

    def claims(self, *, now: float, lifetime_s: int, at_hash: str) -> dict[str, object]:
        """Return the claims of a token issued *now*; *at_hash* is of the access token beside it."""
        shape = self.imitation
        facts = {
            **facts_of(self.person, shape, self.client_id),
            **lifetime(now, lifetime_s),
            "iss": self.issuer,
            "api": api_of(shape, ""),
            "nonce": self.nonce,
            "at_hash": at_hash,
            "auth_time": self.auth_time or None,
            "acr": self.acr,
            "sid": session_id(self.person, self.auth_time),
        }
        return filled(shape.identity, facts) | {"dev": True}


def session_id(person: TokenSubject, auth_time: int | None) -> str:
    """Return the id of a person's sign-in, which is not secret."""
    return ids_of("session", f"{person.username} {auth_time}")["guid"]


def half_hash(token: str, algorithm: str) -> str:
    """Return the first half of the digest of *token* (OpenID Connect Core 1.0 section 3.1.3.6)."""
    # Ed25519 and its older name EdDSA hash with SHA-512.
    size = algorithm[2:] if algorithm[2:] in {"256", "384"} else "512"
    digest = hashlib.new(f"sha{size}", token.encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest[: len(digest) // 2]).rstrip(b"=").decode("ascii")


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
    Return a compact JWS of *claims* with *kind* as its `typ` (empty: none) and the key's own `kid`
    and `alg`.
    """
    header = {**({"typ": kind} if kind else {}), "alg": str(key.alg), "kid": str(key.kid)}
    return jwt.encode(header, dict(claims), key, registry=Algorithms(), default_type=None)

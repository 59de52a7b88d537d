"""
Split compact tokens and verify their claims with keys; the only user of the JWT library.

The library's own ``decode`` reads a token twice, keeps the last of two members with one name, and
turns strings into times. Here only its algorithm objects are used. The strict rules below split the
token (RFC 7515 section 7.1, RFC 8725 section 3).
"""

import functools
from collections.abc import Sequence
from typing import Protocol

import msgspec
from jwt.algorithms import Algorithm, ECAlgorithm, OKPAlgorithm, RSAAlgorithm, RSAPSSAlgorithm

from gatepost_authz import base64url
from gatepost_authz.errors import InvalidToken
from gatepost_authz.jwk import MAX_KID, VerificationKey
from gatepost_authz.strict_json import loads_object

MAX_TOKEN = 16 * 1024
MAX_HEADER = 4 * 1024
MAX_HEADER_DEPTH = 8
MAX_PAYLOAD_DEPTH = 16
REMEMBERED_HEADERS = 256
MAX_CANDIDATES = 4
"""The number of keys tried for one token."""

CHECKS: dict[str, Algorithm] = {
    "RS256": RSAAlgorithm(RSAAlgorithm.SHA256),
    "RS384": RSAAlgorithm(RSAAlgorithm.SHA384),
    "RS512": RSAAlgorithm(RSAAlgorithm.SHA512),
    "PS256": RSAPSSAlgorithm(RSAPSSAlgorithm.SHA256),
    "PS384": RSAPSSAlgorithm(RSAPSSAlgorithm.SHA384),
    "PS512": RSAPSSAlgorithm(RSAPSSAlgorithm.SHA512),
    "ES256": ECAlgorithm(ECAlgorithm.SHA256),
    "ES384": ECAlgorithm(ECAlgorithm.SHA384),
    "ES512": ECAlgorithm(ECAlgorithm.SHA512),
    "EdDSA": OKPAlgorithm(),
    "Ed25519": OKPAlgorithm(),
}
"""The allowed algorithms; ``none`` and ``HS*`` are not among them."""

# Header members that change what the signature covers or what the payload is. We understand no
# extension, so each of them is a refusal, also in the form that means nothing (`"b64": true`):
# RFC 7515 section 4.1.11, RFC 7797 section 6, RFC 7516 (encrypted tokens), RFC 7519 section 5.2
# (nested tokens). `jku`, `jwk`, `x5u`, `x5c` and `x5t` are never read: a key that a token brings
# along proves nothing.
REFUSED_MEMBERS = frozenset({"crit", "b64", "zip", "enc", "cty"})

# Other kinds of tokens that the same issuers sign with the same keys, whatever a preset accepts:
# proofs (RFC 9449), logout tokens, security events (RFC 8417), ID-JAG, introspection answers
# (RFC 9701), authorization requests (RFC 9101).
OTHER_TYPES = frozenset(
    {
        "dpop+jwt",
        "logout+jwt",
        "secevent+jwt",
        "oauth-id-jag+jwt",
        "token-introspection+jwt",
        "oauth-authz-req+jwt",
    }
)


class Header(msgspec.Struct, frozen=True, gc=False):
    """The header of a token, which selects the issuer's key."""

    algorithm: str
    type: str
    """``typ`` in lower case without one leading ``application/``; ``""`` when absent."""
    kid: str | None


class TokenParts(msgspec.Struct, frozen=True):
    """
    The parts of a token, not verified yet.

    ``unverified`` chooses the issuer and refuses early; it grants nothing. Claims to be believed
    come from ``verify``.
    """

    header: Header
    unverified: dict[str, object]
    signed: bytes
    signature: bytes


class VersionedKeys(Protocol):
    """The version of an issuer's keys, as the cache needs it."""

    @property
    def version(self) -> int:
        """Return a number that grows when a key is removed or replaced."""


class IssuerKeys(VersionedKeys, Protocol):
    """The keys of one issuer, as a verifier uses them."""

    def find(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        """Return the keys at hand that may check such a token; empty when none is known."""

    async def wait_for(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        """
        Return the same after asking the issuer; empty: it has no such key. May be unavailable.
        """

    async def after_bad_signature(self) -> bool:
        """Ask the issuer whether it replaced a key under the same id; True when keys changed."""


def split(token: str) -> TokenParts:
    """
    Split *token* under the limits of RFC 8725 section 3: 16 KiB, a header of 4 KiB.

    InvalidToken: it is no compact JWS, its JSON is not strict, or its header asks for something
    that is never granted here.
    """
    if len(token) > MAX_TOKEN:
        raise InvalidToken("token_too_large")
    try:
        raw = token.encode("ascii")
        head, body, tail = raw.split(b".")
        header = header_of(head)
        claims = loads_object(
            base64url.decode(body), max_depth=MAX_PAYLOAD_DEPTH, max_bytes=MAX_TOKEN
        )
        signature = base64url.decode(tail)
    except ValueError:
        raise InvalidToken("malformed_token") from None
    if not signature:
        raise InvalidToken("malformed_token")
    return TokenParts(header, claims, raw[: -1 - len(tail)], signature)


def verify(parts: TokenParts, key: VerificationKey) -> dict[str, object] | None:
    """Return the claims if *key* verifies the signature, otherwise None."""
    algorithm = parts.header.algorithm
    # The key says what it may check, never the token: RFC 8725 section 3.1.
    if algorithm not in key.algorithms:
        return None
    if CHECKS[algorithm].verify(parts.signed, key.public_key, parts.signature):
        return parts.unverified
    return None


async def proved(parts: TokenParts, keys: IssuerKeys) -> tuple[dict[str, object], int]:
    """
    Return the claims of *parts*, proved by one of *keys*, and the version of the keys it was.

    InvalidToken: the issuer has no such key, or none of them signed this.
    """
    kid, algorithm = parts.header.kid, parts.header.algorithm
    version, candidates = keys.version, keys.find(kid, algorithm)
    if not candidates:
        await keys.wait_for(kid, algorithm)
        # Look it up again, together with the version. The first result may be outdated by now, and
        # would be cached under a version that no longer has it.
        version, candidates = keys.version, keys.find(kid, algorithm)
        if not candidates:
            raise InvalidToken("unknown_key")
    claims = try_each(parts, candidates)
    if claims is None and await keys.after_bad_signature():
        # The issuer put another key under the same id (RFC 7517 section 4.5 asks it not to).
        version, candidates = keys.version, keys.find(kid, algorithm)
        claims = try_each(parts, candidates)
    if claims is None:
        raise InvalidToken("bad_signature")
    return claims, version


def try_each(parts: TokenParts, candidates: Sequence[VerificationKey]) -> dict[str, object] | None:
    for key in candidates[:MAX_CANDIDATES]:
        claims = verify(parts, key)
        if claims is not None:
            return claims
    return None


# An issuer writes the same header into all its tokens. Caching is safe, because a header's meaning
# depends on its bytes alone, and a refused header is not cached.
@functools.lru_cache(maxsize=REMEMBERED_HEADERS)
def header_of(segment: bytes) -> Header:
    """Parse and check the header in *segment*; raise InvalidToken or StrictJsonError."""
    members = loads_object(
        base64url.decode(segment), max_depth=MAX_HEADER_DEPTH, max_bytes=MAX_HEADER
    )
    if not REFUSED_MEMBERS.isdisjoint(members):
        raise InvalidToken("refused_header")
    algorithm = members.get("alg")
    if not isinstance(algorithm, str) or algorithm not in CHECKS:
        raise InvalidToken("refused_algorithm")
    return Header(algorithm, type_of(members), kid_of(members))


def type_of(members: dict[str, object]) -> str:
    """Return the media type without case and ``application/`` (RFC 7515 section 4.1.9)."""
    value = members.get("typ", "")
    if not isinstance(value, str) or ("typ" in members and not value):
        raise InvalidToken("refused_type")
    kind = value.lower().removeprefix("application/")
    if kind in OTHER_TYPES:
        raise InvalidToken("refused_type")
    return kind


def kid_of(members: dict[str, object]) -> str | None:
    """Return the key id; it is used only to look up a key."""
    if "kid" not in members:
        return None
    kid = members["kid"]
    if not isinstance(kid, str) or not 0 < len(kid) <= MAX_KID or not kid.isprintable():
        raise InvalidToken("refused_kid")
    return kid

"""Check an ID token of a sign-in (OpenID Connect Core 1.0 sections 2 and 3.1.3.7)."""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Set

import msgspec

from gatepost_authz import signature
from gatepost_authz.caller import TenantContext
from gatepost_authz.claim_values import line
from gatepost_authz.claims import check_times, registered
from gatepost_authz.errors import InvalidToken
from gatepost_authz.issuers import TrustedIssuer
from gatepost_authz.protected_resource import Target
from gatepost_authz.signature import proved
from gatepost_authz.verifier import DEVELOPMENT_KID, KeySource

TYPES = frozenset({"", "jwt"})
"""The accepted ``typ`` values of an ID token."""


class ExpectedSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """The expected values of one sign-in."""

    issuer: str
    """The issuer of the sign-in."""
    client_id: str
    """The client id of the dashboard."""
    nonce: str
    """The nonce of this sign-in."""
    access_token: str
    """The access token that came with the ID token."""
    caller: TenantContext
    """The caller that the access token identifies."""
    trusted: TrustedIssuer
    target: Target


async def check_identity(
    token: str,
    login: ExpectedSignIn,
    keys: KeySource,
    *,
    development: bool = False,
    clock: Callable[[], float] = time.time,
) -> None:
    """
    Check that the ID token belongs to *login*; raise InvalidToken or IssuerUnavailable.

    The same parser, keys and algorithms as for access tokens; nothing of it is kept.
    """
    parts = signature.split(token)
    if parts.header.type not in TYPES:
        raise InvalidToken("wrong_type")
    if parts.header.algorithm not in login.trusted.algorithms:
        raise InvalidToken("algorithm_not_allowed")
    if not development and (parts.header.kid or "").startswith(DEVELOPMENT_KID):
        raise InvalidToken("development_token")
    if parts.unverified.get("iss") != login.issuer:
        # Checked before its keys are fetched: those of another issuer prove nothing here.
        raise InvalidToken("wrong_issuer")
    claims, _ = await proved(parts, keys.keys_of(login.issuer, login.trusted))
    check_login(claims, login, now=clock())
    check_hash(claims, login.access_token, parts.header.algorithm)


def check_login(claims: Mapping[str, object], login: ExpectedSignIn, *, now: float) -> None:
    """Check the claims of an ID token against the sign-in."""
    if "events" in claims or not {"iss", "sub", "aud", "exp", "iat"} <= claims.keys():
        raise InvalidToken("missing_claim")
    # No decision uses the time of the sign-in, and glewlwyd writes 0 if it has none.
    registered_claims = registered(
        {name: value for name, value in claims.items() if name != "auth_time"}
    )
    if registered_claims.iss != login.issuer:
        raise InvalidToken("wrong_issuer")
    expected = login.trusted.expects(login.issuer, login.target)
    check_times(registered_claims, expected, now=now)
    check_party(claims, login.client_id, own_audiences=expected.audiences | {expected.resource})
    nonce = claims.get("nonce")
    if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), login.nonce.encode()):
        # If the code of another user's sign-in is injected into this one, it yields a token with
        # the nonce of that sign-in (RFC 9700 section 4.5.3).
        raise InvalidToken("wrong_nonce")
    check_person(claims, login)


def check_party(claims: Mapping[str, object], client_id: str, *, own_audiences: Set[str]) -> None:
    """
    Check that the token is for this client (section 3.1.3.7, 3-5).

    *own_audiences* are the audiences of this server. The provider may name them beside the client.
    If it names any other audience, `azp` must say that the token was issued to this client.
    """
    audience = claims["aud"]
    audiences = audience if isinstance(audience, list) else [audience]
    if client_id not in audiences or claims.get("azp", client_id) != client_id:
        raise InvalidToken("wrong_party")
    expected = own_audiences | {client_id}
    if "azp" not in claims and not all(
        isinstance(name, str) and name in expected for name in audiences
    ):
        raise InvalidToken("wrong_party")


def check_person(claims: Mapping[str, object], login: ExpectedSignIn) -> None:
    """
    Check that both tokens are about the same person.

    django-oauth-toolkit identifies people by `username` in one and by a number in the other. Then
    only the hash of the access token connects the two.
    """
    person = person_of(claims, login.trusted)
    if person is None and "at_hash" not in claims:
        raise InvalidToken("missing_claim").with_details(claim="at_hash")
    if person not in (None, login.caller.subject):
        raise InvalidToken("another_subject")


def person_of(claims: Mapping[str, object], trusted: TrustedIssuer) -> str | None:
    """
    Return the stable id in an ID token, for comparison with the access token, or None.

    Where the provider has one beside ``sub`` (Entra ``oid``) and the token names it, that one:
    Entra's ``sub`` differs from client to client. Okta's access tokens call ``uid`` what its ID
    tokens call ``sub``.
    """
    for name in trusted.preset.subject_claims:
        if name in claims:
            return line(claims[name], f"bad_{name}")
    return None


def check_hash(claims: Mapping[str, object], access_token: str, algorithm: str) -> None:
    """Check ``at_hash``, if present, which binds the two tokens (section 3.1.3.6)."""
    if "at_hash" not in claims:
        return
    # Ed25519 and its older name EdDSA hash with SHA-512.
    size = algorithm[2:] if algorithm[2:] in {"256", "384"} else "512"
    digest = hashlib.new(f"sha{size}", access_token.encode("ascii", "replace")).digest()
    half = base64.urlsafe_b64encode(digest[: len(digest) // 2]).rstrip(b"=").decode("ascii")
    token_hash = claims["at_hash"]
    if not isinstance(token_hash, str) or not hmac.compare_digest(
        token_hash.encode(), half.encode()
    ):
        raise InvalidToken("wrong_access_token")

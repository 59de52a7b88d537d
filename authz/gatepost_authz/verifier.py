"""Verifies tokens: the protocol, the verifier of signed tokens, and a combination of several."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gatepost_authz import signature
from gatepost_authz.caller import TenantContext
from gatepost_authz.claims import check_claims
from gatepost_authz.config import Target
from gatepost_authz.errors import AuthError, ExpiredToken, InvalidToken, IssuerUnavailable
from gatepost_authz.issuers import IssuerRegistry, TrustedIssuer
from gatepost_authz.jwk import VerificationKey
from gatepost_authz.tenant import Policy, caller_from, name_tenant
from gatepost_authz.verdict_cache import DecisionKey, VerdictCache, Versioned, key_of

MAX_CANDIDATES = 4
"""The number of keys tried for one token."""
DEVELOPMENT_KID = "dev-"


class TokenVerifier(Protocol):
    """Verifies tokens and returns the caller."""

    async def verify(self, token: str, target: Target, *, peer: str = "") -> TenantContext | None:
        """
        Return the caller that presented *token* to *target*, from the address *peer*.

        None: this verifier does not handle such tokens; the next one may.
        AuthError: it does, and the token is refused; no other verifier is tried.
        """

    def cached(self, token: str, target: Target) -> TenantContext | None:
        """
        Return the caller if that token was accepted at *target* moments ago, otherwise None.

        It never waits; after None, `verify` decides.
        """

    def knows(self, token: str, target: Target) -> bool:
        """Return whether that token was accepted at *target* before."""


class IssuerKeys(Versioned, Protocol):
    """The keys of one issuer, as a verifier uses them."""

    def find(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        """Return the keys at hand that may check such a token; empty when none is known."""

    async def wait_for(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        """
        Return the same after asking the issuer; empty: it has no such key. May be unavailable.
        """

    async def after_bad_signature(self) -> bool:
        """Ask the issuer whether it replaced a key under the same id; True when keys changed."""


class KeySource(Protocol):
    """The keys of all issuers."""

    def of(self, issuer: str, trusted: TrustedIssuer, *, peer: str = "") -> IssuerKeys:
        """
        Return the keys of this concrete issuer, which *peer* names; never shared with another.
        """


class Verifiers:
    """Several verifiers in turn; the first that handles a token decides."""

    def __init__(self, verifiers: Sequence[TokenVerifier]) -> None:
        self.verifiers = tuple(verifiers)

    async def verify(self, token: str, target: Target, *, peer: str = "") -> TenantContext:
        """Return the caller; InvalidToken("unknown_kind") when no verifier handles such tokens."""
        for verifier in self.verifiers:
            caller = await verifier.verify(token, target, peer=peer)
            if caller is not None:
                return caller
        raise InvalidToken("unknown_kind")

    def cached(self, token: str, target: Target) -> TenantContext | None:
        """Return the caller if one of the verifiers has cached the token."""
        for verifier in self.verifiers:
            caller = verifier.cached(token, target)
            if caller is not None:
                return caller
        return None

    def knows(self, token: str, target: Target) -> bool:
        """Return whether that token was accepted at *target* before."""
        return any(verifier.knows(token, target) for verifier in self.verifiers)


class JwtVerifier:
    """
    Checks signed access tokens (RFC 9068), cheap and local rules first.

    It asks an issuer for keys only if a token names that issuer, has the right type and algorithm,
    and has not expired, so an invalid token cannot cause requests. Assign ``registry`` to change
    the issuers.
    """

    def __init__(
        self,
        registry: IssuerRegistry,
        keys: KeySource,
        decisions: VerdictCache,
        *,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = registry
        self.keys = keys
        self.decisions = decisions
        self.policy = policy or Policy()
        self.clock = clock

    def cached(self, token: str, target: Target) -> TenantContext | None:
        """Return the caller if the token was accepted moments ago and nothing changed since."""
        if not looks_like_jwt(token):
            return None
        key = key_of(token, target.url, self.registry.generation)
        return self.decisions.get(key, now=self.clock())

    async def verify(self, token: str, target: Target, *, peer: str = "") -> TenantContext | None:
        """Return the caller, None for tokens of another shape, or AuthError with its reason."""
        if not looks_like_jwt(token):
            return None
        registry = self.registry
        key = key_of(token, target.url, registry.generation)
        known = self.decisions.get(key, now=self.clock())
        if known is not None:
            return known
        try:
            return await self._checked(token, target, registry, key, peer=peer)
        except ExpiredToken:
            raise
        except InvalidToken:
            self.decisions.accepted.drop(*key[:2])
            raise

    async def _checked(
        self, token: str, target: Target, registry: IssuerRegistry, key: DecisionKey, *, peer: str
    ) -> TenantContext:
        parts = signature.split(token)
        issuer = parts.unverified.get("iss")
        found = registry.find(issuer) if isinstance(issuer, str) else None
        if found is None:
            raise InvalidToken("unknown_issuer")
        trusted, captured = found
        # What a template leaves open the caller has chosen, until a key proves it.
        named = trusted.settings.issuer
        try:
            try:
                self.refuse_early(parts, trusted, captured, now=self.clock())
            except ExpiredToken as expired:
                expired.genuine = self._is_genuine(parts, found, key)
                raise
            keys = self.keys.of(str(issuer), trusted, peer=peer)
            claims, version = await proved(parts, keys)
            named, now = str(issuer), self.clock()
            caller = self._judged(claims, trusted, captured, target, now=now)
        except AuthError as refusal:
            refusal.about(issuer=named)
            raise
        self.decisions.put(key, caller, keys=keys, version=version, now=now)
        return caller

    def _judged(
        self,
        claims: dict[str, object],
        trusted: TrustedIssuer,
        captured: str | None,
        target: Target,
        *,
        now: float,
    ) -> TenantContext:
        """
        Return the caller that proved claims speak for; a refusal says whose tenant's token it was.
        """
        rules, policy = trusted.rules, self.policy
        try:
            accepted = check_claims(claims, trusted.expects(str(claims["iss"]), target), now=now)
        except AuthError as refusal:
            name_tenant(refusal, claims, rules, captured=captured, tenancy=policy.tenancy)
            raise
        return caller_from(claims, accepted, rules, captured=captured, target=target, policy=policy)

    def knows(self, token: str, target: Target) -> bool:
        """Return whether that token was accepted at *target* before."""
        digest, resource, _ = key_of(token, target.url, 0)
        return looks_like_jwt(token) and self.decisions.accepted.has(digest, resource)

    def _is_genuine(
        self, parts: signature.TokenParts, found: tuple[TrustedIssuer, str | None], key: DecisionKey
    ) -> bool:
        """
        Return whether the issuer signed an expired token, as far as its keys at hand can tell.
        """
        accepted = self.decisions.accepted
        if accepted.has(*key[:2]):
            return True
        trusted, captured = found
        if captured is not None and not trusted.settings.tenants:
            return False  # anybody invents such issuers, and each would be remembered
        header = parts.header
        try:
            keys = self.keys.of(str(parts.unverified["iss"]), trusted)
        except IssuerUnavailable:
            return False
        if try_each(parts, keys.find(header.kid, header.algorithm)) is None:
            return False
        accepted.add(*key[:2])  # its signature is checked once, however often it comes
        return True

    def refuse_early(
        self,
        parts: signature.TokenParts,
        trusted: TrustedIssuer,
        captured: str | None,
        *,
        now: float,
    ) -> None:
        """Refuse tokens that need no key to be refused, so that no issuer is contacted."""
        header, claims = parts.header, parts.unverified
        if header.type not in trusted.preset.types:
            raise InvalidToken("wrong_type")
        if header.algorithm not in trusted.algorithms:
            raise InvalidToken("algorithm_not_allowed")
        tenants = trusted.settings.tenants
        if captured is not None and tenants and captured not in tenants:
            # Strangers invent issuers of a template faster than their keys could be asked for.
            raise InvalidToken("unknown_tenant")
        if not self.policy.development and (
            trusted.loopback
            or claims.get("dev") is True
            or (header.kid or "").startswith(DEVELOPMENT_KID)
        ):
            # Anybody with a laptop can run the development issuer.
            raise InvalidToken("development_token")
        expires, past = claims.get("exp"), now - trusted.settings.leeway_s
        if isinstance(expires, int | float) and 0 < expires <= past:
            raise ExpiredToken


async def proved(parts: signature.TokenParts, keys: IssuerKeys) -> tuple[dict[str, object], int]:
    """
    Return the claims of *parts*, proved by one of *keys*, and the version of the keys it was.

    InvalidToken: the issuer has no such key, or none of them signed this.
    """
    kid, algorithm = parts.header.kid, parts.header.algorithm
    version, candidates = keys.version, keys.find(kid, algorithm)
    if not candidates:
        await keys.wait_for(kid, algorithm)
        # Looked up again, together with the version: what the wait answered may be gone by the
        # time this runs, and would be filed under a version that no longer has it.
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


def try_each(
    parts: signature.TokenParts, candidates: Sequence[VerificationKey]
) -> dict[str, object] | None:
    for key in candidates[:MAX_CANDIDATES]:
        claims = signature.verify(parts, key)
        if claims is not None:
            return claims
    return None


def looks_like_jwt(token: str) -> bool:
    """Return whether *token* has the shape of a signed compact token with a JSON header."""
    # Every base64url text of bytes that begin with `{` begins with "e"; opaque tokens with two
    # dots exist (Google's), so the dots alone do not tell.
    return token.startswith("e") and token.count(".") == 2

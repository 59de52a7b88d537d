"""Verify tokens."""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gatepost_authz import signature
from gatepost_authz.answer_cache import ACTIVE_S
from gatepost_authz.caller import TenantContext
from gatepost_authz.claims import check_claims
from gatepost_authz.errors import AuthError, ExpiredToken, InvalidToken, IssuerUnavailable
from gatepost_authz.issuers import IssuerRegistry, TrustedIssuer
from gatepost_authz.protected_resource import Target
from gatepost_authz.signature import IssuerKeys, proved, try_each
from gatepost_authz.signed_introspection import SignedTokenIntrospection, introspected_claims
from gatepost_authz.tenant import Policy, caller_from, name_tenant
from gatepost_authz.verdict_cache import LIFETIME, Verdict, VerdictCache, VerdictKey, verdict_on

DEVELOPMENT_KID = "dev-"
NUMBERS = (int, float)
# Creating a hash makes OpenSSL look up its algorithm; a copy costs half as much.
EMPTY_DIGEST = hashlib.sha256()


class TokenVerifier(Protocol):
    """Verifies tokens and returns the caller."""

    async def verify(self, token: str, target: Target, *, peer: str = "") -> TenantContext | None:
        """
        Return the caller that presented *token* to *target*, from the address *peer*.

        None: this verifier does not handle such tokens; the next one may.
        AuthError: it does, and the token is refused; no other verifier is tried.
        """

    def cached(self, token: bytes, target: Target) -> TenantContext | None:
        """
        Return the caller if that token was accepted at *target* moments ago, otherwise None.

        The token may be anything, as no form was checked yet. This never waits; after None,
        `verify` decides.
        """

    def has_accepted(self, token: str, target: Target) -> bool:
        """Return whether that token was accepted at *target* before."""


class KeySource(Protocol):
    """The keys of all issuers."""

    def keys_of(self, issuer: str, trusted: TrustedIssuer, *, peer: str = "") -> IssuerKeys:
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

    def cached(self, token: bytes, target: Target) -> TenantContext | None:
        """Return the caller if one of the verifiers has cached the token."""
        for verifier in self.verifiers:
            caller = verifier.cached(token, target)
            if caller is not None:
                return caller
        return None

    def has_accepted(self, token: str, target: Target) -> bool:
        """Return whether that token was accepted at *target* before."""
        return any(verifier.has_accepted(token, target) for verifier in self.verifiers)


class JwtVerifier:
    """
    Verifies signed access tokens (RFC 9068), with cheap and local rules first.

    It asks an issuer for keys only if a token names that issuer, has the right type and algorithm,
    and has not expired, so an invalid token cannot cause requests. For other issuers make a new
    verifier; it may have the same keys and verdicts, as a verdict counts for one registry only.
    """

    def __init__(
        self,
        registry: IssuerRegistry,
        keys: KeySource,
        verdicts: VerdictCache,
        *,
        policy: Policy | None = None,
        signed_introspection: SignedTokenIntrospection | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = registry
        self.keys = keys
        self.signed_introspection = signed_introspection
        self.verdicts = verdicts
        self.policy = policy or Policy()
        self.clock = clock

    def cached(self, token: bytes, target: Target) -> TenantContext | None:
        """Return the caller if the token was accepted moments ago and nothing changed since."""
        if token[:1] != b"e":  # no signed token; most invalid text needs no digest
            return None
        token_hash = EMPTY_DIGEST.copy()  # as in `key_of`
        token_hash.update(token)
        verdict = self.verdicts.entries.get(
            (token_hash.digest(), target.url, self.registry.generation)
        )
        # The same as `VerdictCache.get`, without the call that nearly every request would cost.
        if verdict is None or verdict.version != verdict.keys.version:
            return None
        return verdict.caller if verdict.made_at <= self.clock() < verdict.ends_at else None

    async def verify(self, token: str, target: Target, *, peer: str = "") -> TenantContext | None:
        """Return the caller, None for tokens of another shape, or AuthError with its reason."""
        if not looks_like_jwt(token):
            return None
        registry = self.registry
        key = key_of(token, target.url, registry.generation)
        expired = None
        if key in self.verdicts.entries:
            cached_caller = self.verdicts.get(key, now=self.clock())
            if cached_caller is not None:
                return cached_caller
            expired = self.verdicts.expired_verdict(key)
        try:
            if expired is not None and self._renewed(token, registry, key, expired, peer=peer):
                return expired.caller
            return await self._checked(token, target, registry, key, peer=peer)
        except ExpiredToken:
            raise
        except InvalidToken:
            self.verdicts.accepted.drop(*key[:2])
            raise

    def _renewed(
        self, token: str, registry: IssuerRegistry, key: VerdictKey, expired: Verdict, *, peer: str
    ) -> bool:
        """
        Cache a verdict for another while if the key that proved the token is still there.

        Raises InvalidToken if the policy no longer admits the caller. False: the token must be
        checked again.
        """
        caller = expired.caller
        match = registry.find(caller.issuer)
        if match is None or match[0].introspects_signed:
            return False
        header = signature.header_of(token.partition(".")[0].encode())
        keys = self.keys.keys_of(caller.issuer, match[0], peer=peer)
        if keys is not expired.keys or not keys.find(header.kid, header.algorithm):
            return False
        if keys.version != expired.version:
            return False
        try:
            self.policy.admit(caller)
        except AuthError as refusal:
            refusal.with_details(issuer=match[0].settings.issuer, tenant=caller.tenant_id)
            raise
        now = self.clock()
        self.verdicts.put(key, verdict_on(caller, keys=keys, version=expired.version, now=now))
        return True

    async def _checked(
        self, token: str, target: Target, registry: IssuerRegistry, key: VerdictKey, *, peer: str
    ) -> TenantContext:
        parts = signature.split(token)
        issuer = parts.unverified.get("iss")
        if not isinstance(issuer, str) or (match := registry.find(issuer)) is None:
            raise InvalidToken("unknown_issuer")
        trusted, captured = match
        # The caller has chosen the template's variable part, until a key proves it.
        shown_issuer = trusted.settings.issuer
        try:
            try:
                self.refuse_early(parts, trusted, captured, now=self.clock())
            except ExpiredToken as expired:
                expired.genuine = self._is_genuine(parts, match, key)
                raise
            keys = self.keys.keys_of(issuer, trusted, peer=peer)
            claims, version = await proved(parts, keys)
            if trusted.introspects_signed:
                claims = await introspected_claims(
                    self.signed_introspection, token, claims, trusted
                )
            shown_issuer, now = issuer, self.clock()
            caller = self._judged(claims, trusted, captured, target, now=now)
        except AuthError as refusal:
            refusal.with_details(issuer=shown_issuer)
            raise
        lifetime = ACTIVE_S if trusted.introspects_signed else LIFETIME
        verdict = verdict_on(caller, keys=keys, version=version, now=now, lifetime=lifetime)
        self.verdicts.put(key, verdict)
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

    def has_accepted(self, token: str, target: Target) -> bool:
        """Return whether that token was accepted at *target* before."""
        digest, resource, _ = key_of(token, target.url, 0)
        return looks_like_jwt(token) and self.verdicts.accepted.was_accepted(digest, resource)

    def _is_genuine(
        self, parts: signature.TokenParts, match: tuple[TrustedIssuer, str | None], key: VerdictKey
    ) -> bool:
        """
        Return whether the issuer signed an expired token, as far as its keys at hand can tell.
        """
        accepted = self.verdicts.accepted
        if accepted.was_accepted(*key[:2]):
            return True
        trusted, captured = match
        if captured is not None and not trusted.settings.tenants:
            return False  # callers can invent such issuers, and each would be remembered
        header = parts.header
        try:
            keys = self.keys.keys_of(str(parts.unverified["iss"]), trusted)
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
            # Attackers can invent issuers of a template faster than keys can be fetched.
            raise InvalidToken("unknown_tenant")
        if not self.policy.development and (
            trusted.loopback
            or claims.get("dev") is True
            or (header.kid or "").startswith(DEVELOPMENT_KID)
        ):
            # Any person with a laptop can run the development issuer.
            raise InvalidToken("development_token")
        expires, past = claims.get("exp"), now - trusted.settings.leeway_s
        if isinstance(expires, NUMBERS) and 0 < expires <= past:
            raise ExpiredToken


def looks_like_jwt(token: str) -> bool:
    """Return whether *token* has the shape of a signed compact token with a JSON header."""
    # The base64url text of bytes that begin with `{` begins with "e". There are opaque tokens with
    # two dots (Google's), so the dots alone are no proof.
    return token.startswith("e") and token.count(".") == 2


def key_of(token: str, resource: str, generation: int) -> VerdictKey:
    """
    Return the cache key: the digest of the whole token, the resource and the configuration.

    A prefix, a key id or an unverified ``jti`` would let one token answer for another.
    """
    token_hash = EMPTY_DIGEST.copy()
    token_hash.update(token.encode("utf-8", "surrogatepass"))
    return (token_hash.digest(), resource, generation)

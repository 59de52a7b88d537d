"""Verify opaque tokens by introspection, and cache the results."""

import time
from collections.abc import Callable, Sequence

from gatepost_authz.answer_cache import (
    ACTIVE_S,
    REFUSED_S,
    REMEMBERED,
    AnswerCache,
    AnswerKey,
    digest_of,
)
from gatepost_authz.caller import TenantContext
from gatepost_authz.claims import check_claims
from gatepost_authz.errors import AuthError, InvalidToken, IssuerUnavailable
from gatepost_authz.introspector import Introspectors
from gatepost_authz.issuer_key_sets import is_introspected
from gatepost_authz.issuers import (
    IssuerRegistry,
    TrustedIssuer,
    has_opaque_tokens,
    prefix_of,
)
from gatepost_authz.protected_resource import Target
from gatepost_authz.tenant import Policy, caller_from, name_tenant
from gatepost_authz.verdict_cache import DEFAULT_CAPACITY, AcceptedTokens
from gatepost_authz.verifier import looks_like_jwt

OWNER_S = 3600.0
"""How long the issuer that knows a token is remembered, if there are several."""
# The beginnings of base64url text for `{"`, or `{` and white space: a header, also that of an
# encrypted token, which has four dots.
JSON = ("ey", "ew")

CachedRefusal = tuple[type[InvalidToken], str, str | None, str | None]
"""A cached refusal: its kind, reason, claim and tenant."""


class IntrospectionVerifier:
    """
    Verifies opaque tokens by asking the issuer that can have issued them.

    It ignores tokens that look like signed ones, because a token of issuer A must never be shown to
    issuer B, which could use it. If several issuers have opaque tokens, the tenant in the
    resource's path or the token's prefix decides which one is asked. They are asked in turn only if
    the settings of each of them allow it. The callers of at most *capacity* tokens are cached.
    """

    def __init__(
        self,
        registry: IssuerRegistry,
        introspectors: Introspectors,
        *,
        policy: Policy | None = None,
        capacity: int = DEFAULT_CAPACITY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = registry
        self.introspectors = introspectors
        self.policy = policy or Policy()
        self.clock = clock
        self._possible: tuple[int, tuple[TrustedIssuer, ...]] = (0, ())
        self._cached_callers: AnswerCache[TenantContext] = AnswerCache(capacity)
        self._cached_refusals: AnswerCache[CachedRefusal] = AnswerCache()
        self._owners: AnswerCache[str] = AnswerCache(max(capacity, REMEMBERED))
        self._accepted = AcceptedTokens(capacity)

    async def verify(self, token: str, target: Target, *, peer: str = "") -> TenantContext | None:
        """
        Return the caller; None if no issuer here has such tokens.

        InvalidToken: it is refused, or several issuers could have made it. IssuerUnavailable:
        its issuer cannot be asked now.
        """
        if looks_like_jwt(token) or (token.startswith(JSON) and "." in token):
            return None
        registry = self.registry
        possible = self._issuers_for(registry, target, token)
        if not possible:
            return None
        digest, now = digest_of(token), self.clock()
        keys = [
            (digest, trusted.settings.issuer, target.url, registry.generation)
            for trusted in possible
        ]
        for key in keys:
            cached_caller = self._cached_callers.get(key, now)
            if cached_caller is not None:
                return cached_caller
        failed: AuthError | None = None
        for key, trusted in self._in_turn(keys, possible, now):
            try:
                return await self._answer(key, token, target, trusted)
            except InvalidToken as refusal:
                # Only an issuer that does not know the token leaves it to the next one.
                if refusal.reason != "inactive":
                    raise
                failed = failed or refusal
            except IssuerUnavailable as outage:
                failed = outage  # it may be this issuer's token, so that no refusal is sure
        raise failed or InvalidToken("inactive")

    def _in_turn(
        self, keys: Sequence[AnswerKey], possible: Sequence[TrustedIssuer], now: float
    ) -> Sequence[tuple[AnswerKey, TrustedIssuer]]:
        """Return the issuers to ask: the one that knew the token before, or each of them."""
        pairs = list(zip(keys, possible, strict=True))
        if len(pairs) > 1:
            owner = self._owners.get(owner_key(keys[0]), now)
            return [pair for pair in pairs if pair[0][1] == owner] or pairs
        return pairs

    def cached(self, token: bytes, target: Target) -> TenantContext | None:
        """Return None: `verify` reads the cache, once it knows which issuer to ask."""
        return None

    def has_accepted(self, token: str, target: Target) -> bool:
        """Return whether that token was accepted at *target* before."""
        return self._accepted.was_accepted(digest_of(token), target.url)

    def forget(self, predicate: Callable[[TenantContext], bool]) -> None:
        """Discard cached results of these callers, and all refusals."""
        self._cached_callers.forget(predicate)
        self._cached_refusals.forget(lambda refusal: True)

    async def aclose(self) -> None:
        """Cancel all introspection requests."""
        await self.introspectors.cancel()

    def _issuers_for(
        self, registry: IssuerRegistry, target: Target, token: str
    ) -> tuple[TrustedIssuer, ...]:
        """Return the issuers that may see this token; several are asked in turn."""
        possible = self._asked_issuers(registry)
        if possible and target.tenant is not None:
            issuer_names = registry.for_tenant(target.tenant)
            possible = tuple(
                trusted for trusted in possible if trusted.settings.issuer in issuer_names
            )
        owners = registry.owners_of(token)
        # Without a prefix it is a token of an issuer without prefix.
        possible = tuple(
            trusted
            for trusted in possible
            if (trusted.settings.issuer in owners if owners else not prefix_of(trusted.settings))
        )
        if len(possible) > 1 and not all(may_see_others(trusted) for trusted in possible):
            # Asking one issuer after the other shows each of them tokens of the others.
            raise InvalidToken("undecided_issuer")
        return possible

    def _asked_issuers(self, registry: IssuerRegistry) -> tuple[TrustedIssuer, ...]:
        """Return the issuers that can know opaque tokens; computed once per registry."""
        if self._possible[0] != registry.generation:
            introspecting = tuple(
                trusted
                for trusted in registry.issuers
                if is_introspected(trusted)
                and has_opaque_tokens(trusted.settings, trusted.preset)
                and trusted.template is None
                and (self.policy.development or not trusted.loopback)
            )
            self._possible = (registry.generation, introspecting)
        return self._possible[1]

    async def _answer(
        self, key: AnswerKey, token: str, target: Target, trusted: TrustedIssuer
    ) -> TenantContext:
        """Return the caller by a cached refusal or by the issuer's answer."""
        cached_refusal = self._cached_refusals.get(key, self.clock())
        if cached_refusal is not None:
            kind, reason, claim, tenant = cached_refusal
            raise kind(reason).with_details(claim=claim, issuer=key[1], tenant=tenant)
        try:
            claims = await self.introspectors.ask(token, trusted)
            caller = self._judge(claims, trusted, target)
        except InvalidToken as refusal:
            self._refused(key, refusal, target)
            raise
        except IssuerUnavailable as outage:
            outage.with_details(issuer=key[1])
            raise
        now = self.clock()
        self._accepted.add(key[0], target.url)
        self._owners.put(owner_key(key), key[1], now=now, until=now + OWNER_S)
        self._cached_callers.put(
            key, caller, now=now, until=min(now + ACTIVE_S, float(caller.expires_at))
        )
        return caller

    def _refused(self, key: AnswerKey, refusal: InvalidToken, target: Target) -> None:
        now = self.clock()
        # Do not raise the exception itself, because its traceback contains the token.
        cached_refusal = (type(refusal), refusal.reason, refusal.claim, refusal.tenant)
        self._cached_refusals.put(key, cached_refusal, now=now, until=now + REFUSED_S)
        self._accepted.drop(key[0], target.url)
        if refusal.reason != "inactive":
            self._owners.put(owner_key(key), key[1], now=now, until=now + OWNER_S)
        refusal.with_details(issuer=key[1])

    def _judge(
        self, claims: dict[str, object], trusted: TrustedIssuer, target: Target
    ) -> TenantContext:
        """
        Check the claims like those of signed tokens, except claims that RFC 7662 makes optional.
        """
        if claims.get("dev") is True and not self.policy.development:
            raise InvalidToken("development_token")
        expected = trusted.expects_of_answer(target)
        match = self.registry.find(trusted.settings.issuer)
        captured, rules, policy = match[1] if match else None, trusted.rules, self.policy
        try:
            accepted = check_claims(claims, expected, now=self.clock())
        except InvalidToken as refusal:
            name_tenant(refusal, claims, rules, captured=captured, tenancy=policy.tenancy)
            raise
        return caller_from(claims, accepted, rules, captured=captured, target=target, policy=policy)


def owner_key(key: AnswerKey) -> AnswerKey:
    """Return the key under which the issuer of a token is remembered."""
    return (key[0], "", key[2], key[3])


def may_see_others(trusted: TrustedIssuer) -> bool:
    """Return whether the operator lets this issuer see opaque tokens of others."""
    settings = trusted.settings.introspection
    return settings is not None and settings.ask_in_turn

"""Verifies opaque tokens by introspection, and caches the results."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from gatepost_authz.caller import TenantContext
from gatepost_authz.claims import check_claims
from gatepost_authz.config import Target
from gatepost_authz.errors import InvalidToken, IssuerUnavailable
from gatepost_authz.introspector import Introspector, Introspectors
from gatepost_authz.issuers import IssuerRegistry, TrustedIssuer
from gatepost_authz.jwks import asks
from gatepost_authz.tenant import Policy, caller_from, name_tenant
from gatepost_authz.verifier import AcceptedTokens, looks_like_jwt

GOOD_S = 30.0
"""The cache lifetime of an active token; a revoked token works no longer than this."""
BAD_S = 5.0
"""The cache lifetime of a refusal, which limits requests of a client in a loop."""
REMEMBERED = 10_000
# Every made-up text is a question to the issuer; they must not pile up while it is slow.
QUESTIONS = 256
# How base64url begins where the text is `{"` or `{` and white space: a header, also of an encrypted
# token, whose dots are four.
JSON = ("ey", "ew")

Key = tuple[bytes, str, str, int]
"""The cache key: the digest of the whole token, issuer, resource and registry generation."""
Kept = tuple[type[InvalidToken], str, str | None, str | None]
"""A cached refusal: its kind, reason, claim and tenant."""
T = TypeVar("T")


class CachedAnswer(msgspec.Struct, Generic[T], frozen=True):
    """A cache entry with start and end of its validity."""

    value: T
    since: float
    until: float


class Memory(Generic[T]):
    """A cache of at most *capacity* entries; the least recently used is evicted first."""

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self.capacity = capacity
        self._kept: OrderedDict[Key, CachedAnswer[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key, now: float) -> T | None:
        """Return the entry if it is valid at this time."""
        entry = self._kept.get(key)
        if entry is None:
            return None
        if not entry.since <= now < entry.until:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return entry.value

    def forget(self, which: Callable[[T], bool]) -> None:
        """Remove the entries of these callers."""
        for key in [key for key, entry in self._kept.items() if which(entry.value)]:
            del self._kept[key]

    def put(self, key: Key, value: T, *, now: float, until: float) -> None:
        """Store *value* until then, unless it has already expired."""
        if until > now:
            self._kept[key] = CachedAnswer(value, now, until)
            if len(self._kept) > self.capacity:
                self._kept.popitem(last=False)


def digest_of(token: str) -> bytes:
    """Return the digest that is stored instead of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class IntrospectionVerifier:
    """
    Verifies opaque tokens by asking the one issuer that can have issued them.

    Handles no token that looks like a signed one: a token of issuer A must never be shown to
    issuer B, who could use it. Where several issuers have opaque tokens, the tenant in the
    resource's path decides which is asked; they are never tried in turn.
    """

    def __init__(
        self,
        registry: IssuerRegistry,
        introspectors: Introspectors,
        *,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = registry
        self.introspectors = introspectors
        self.policy = policy or Policy()
        self.clock = clock
        self._possible: tuple[int, tuple[TrustedIssuer, ...]] = (0, ())
        self._good: Memory[TenantContext] = Memory()
        self._bad: Memory[Kept] = Memory()
        self._accepted = AcceptedTokens()
        self._running: dict[Key, asyncio.Task[TenantContext]] = {}

    async def verify(self, token: str, target: Target, *, peer: str = "") -> TenantContext | None:
        """
        Return the caller; None when no issuer here has such tokens.

        InvalidToken: it is refused, or several issuers could have made it. IssuerUnavailable:
        its issuer cannot be asked now.
        """
        if looks_like_jwt(token) or (token.startswith(JSON) and "." in token):
            return None
        registry = self.registry
        trusted = self._issuer_for(registry, target)
        if trusted is None:
            return None
        key = (digest_of(token), trusted.settings.issuer, target.url, registry.generation)
        now = self.clock()
        known = self._good.get(key, now)
        if known is not None:
            return known
        refusal = self._bad.get(key, now)
        if refusal is not None:
            kind, reason, claim, tenant = refusal
            raise kind(reason).about(claim=claim, issuer=trusted.settings.issuer, tenant=tenant)
        return await self._answer(key, token, target, trusted)

    def cached(self, token: str, target: Target) -> TenantContext | None:
        """Return None: `verify` reads the cache, once it knows which issuer to ask."""
        return None

    def knows(self, token: str, target: Target) -> bool:
        """Return whether that token was accepted at *target* before."""
        return self._accepted.has(digest_of(token), target.url)

    def forget(self, which: Callable[[TenantContext], bool]) -> None:
        """Discard cached results of these callers, and all refusals."""
        self._good.forget(which)
        self._bad.forget(lambda refusal: True)

    async def aclose(self) -> None:
        """Cancel all introspection requests."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _issuer_for(self, registry: IssuerRegistry, target: Target) -> TrustedIssuer | None:
        possible = self._asked_issuers(registry)
        if possible and target.tenant is not None:
            named = registry.for_tenant(target.tenant)
            possible = tuple(one for one in possible if one.settings.issuer in named)
        if len(possible) > 1:
            # Asking one issuer after the other would show them tokens of others.
            raise InvalidToken("undecided_issuer")
        return possible[0] if possible else None

    def _asked_issuers(self, registry: IssuerRegistry) -> tuple[TrustedIssuer, ...]:
        """Return the issuers with introspection; computed once per registry."""
        if self._possible[0] != registry.generation:
            found = tuple(
                trusted
                for trusted in registry.issuers
                if asks(trusted)
                and trusted.template is None
                and (self.policy.development or not trusted.loopback)
            )
            self._possible = (registry.generation, found)
        return self._possible[1]

    async def _answer(
        self, key: Key, token: str, target: Target, trusted: TrustedIssuer
    ) -> TenantContext:
        """Introspect the token; concurrent requests with the same token share the result."""
        task = self._running.get(key)
        if task is None:
            if sum(running[1] == key[1] for running in self._running) >= QUESTIONS:
                busy = IssuerUnavailable("introspection_too_many_questions")
                raise busy.about(issuer=trusted.settings.issuer)
            introspector = self.introspectors.of(trusted)
            task = asyncio.create_task(self._ask(key, token, target, introspector))
            self._running[key] = task
            task.add_done_callback(lambda done: self._settle(key, done))
        # A request that goes away must not take the answer from the others.
        caller = await asyncio.shield(task)
        # The answer has waited for its turn on the loop, and may be out of date by now.
        self.policy.admit(caller)
        return caller

    async def _ask(
        self, key: Key, token: str, target: Target, introspector: Introspector
    ) -> TenantContext:
        trusted = introspector.trusted
        try:
            claims = await introspector.ask(token)
            caller = self._judge(claims, trusted, target)
        except InvalidToken as refusal:
            now = self.clock()
            # Not the exception itself: its traceback holds the token.
            kept = (type(refusal), refusal.reason, refusal.claim, refusal.tenant)
            self._bad.put(key, kept, now=now, until=now + BAD_S)
            self._accepted.drop(key[0], target.url)
            refusal.about(issuer=trusted.settings.issuer)
            raise
        except IssuerUnavailable as outage:
            outage.about(issuer=trusted.settings.issuer)
            raise
        now = self.clock()
        self._accepted.add(key[0], target.url)
        self._good.put(key, caller, now=now, until=min(now + GOOD_S, float(caller.expires_at)))
        return caller

    def _judge(
        self, claims: dict[str, object], trusted: TrustedIssuer, target: Target
    ) -> TenantContext:
        """
        Check the claims like those of signed tokens, except claims that RFC 7662 makes optional.
        """
        if claims.get("dev") is True and not self.policy.development:
            raise InvalidToken("development_token")
        expected = msgspec.structs.replace(
            trusted.expects(trusted.settings.issuer, target),
            required=trusted.preset.answer_required,
        )
        found = self.registry.find(trusted.settings.issuer)
        captured, rules, policy = found[1] if found else None, trusted.rules, self.policy
        try:
            accepted = check_claims(claims, expected, now=self.clock())
        except InvalidToken as refusal:
            name_tenant(refusal, claims, rules, captured=captured, tenancy=policy.tenancy)
            raise
        return caller_from(claims, accepted, rules, captured=captured, target=target, policy=policy)

    def _settle(self, key: Key, task: asyncio.Task[TenantContext]) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved, also when all requests for it have gone

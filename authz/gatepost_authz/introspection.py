"""The verifier of opaque tokens: whose they can be, and what was answered about them lately."""

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
from gatepost_authz.signature import looks_like_one
from gatepost_authz.tenant import Policy, caller_from
from gatepost_authz.verifier import Recall

GOOD_S = 30.0
"""How long a good answer counts: a revoked token works no longer than this."""
BAD_S = 5.0
"""How long a refusal counts: a client in a loop is not the issuer's problem."""
REMEMBERED = 10_000
# Every made-up text is a question to the issuer; they must not pile up while it is slow.
QUESTIONS = 256
# How base64url begins where the text is `{"` or `{` and white space: a header, also of an encrypted
# token, whose dots are four.
JSON = ("ey", "ew")
SUBJECT, NOTHING = frozenset({"sub"}), frozenset[str]()

Key = tuple[bytes, str, str, int]
"""The whole token's digest, issuer, resource, and the registry's generation."""
T = TypeVar("T")


class Entry(msgspec.Struct, Generic[T], frozen=True):
    """Something that counts from one time until another."""

    value: T
    since: float
    until: float


class Memory(Generic[T]):
    """At most *capacity* entries, each for its time; the least used go first."""

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self.capacity = capacity
        self._kept: OrderedDict[Key, Entry[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key, now: float) -> T | None:
        """What was remembered, unless its time is over or the clock went back before it."""
        entry = self._kept.get(key)
        if entry is None:
            return None
        if not entry.since <= now < entry.until:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return entry.value

    def forget(self, which: Callable[[T], bool]) -> None:
        """Drop what is remembered of these."""
        for key in [key for key, entry in self._kept.items() if which(entry.value)]:
            del self._kept[key]

    def put(self, key: Key, value: T, *, now: float, until: float) -> None:
        """Remember *value* until then; of what was already over, nothing."""
        if until > now:
            self._kept[key] = Entry(value, now, until)
            if len(self._kept) > self.capacity:
                self._kept.popitem(last=False)


class IntrospectionVerifier:
    """
    Says who presented an opaque token, by asking the one issuer that it can be from.

    Handles no token that looks like a signed one: a token of issuer A must never be shown to
    issuer B, who could use it. Where several issuers have opaque tokens, the tenant in the
    resource's path decides which is asked; they are never tried in turn.
    """

    def __init__(
        self,
        registry: Callable[[], IssuerRegistry],
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
        self._bad: Memory[tuple[type[InvalidToken], str]] = Memory()
        self._running: dict[Key, asyncio.Task[TenantContext]] = {}

    async def verify(self, token: str, target: Target) -> TenantContext | None:
        """
        The caller; None when no issuer here has such tokens.

        InvalidToken: it is refused, or several issuers could have made it. IssuerUnavailable:
        its issuer cannot be asked now.
        """
        if looks_like_one(token) or (token.startswith(JSON) and "." in token):
            return None
        registry = self.registry()
        trusted = self._issuer_for(registry, target)
        if trusted is None:
            return None
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        key = (digest, trusted.settings.issuer, target.url, registry.generation)
        now = self.clock()
        known = self._good.get(key, now)
        if known is not None:
            return known
        refusal = self._bad.get(key, now)
        if refusal is not None:
            kind, reason = refusal
            raise kind(reason)
        return await self._answer(key, token, target, trusted)

    def recall(self, token: str, target: Target) -> Recall | None:
        """See `TokenVerifier`; answers about such tokens are short-lived, and filed elsewhere."""
        return None

    def forget(self, which: Callable[[TenantContext], bool]) -> None:
        """Ask again about the tokens of these callers, and about those that were refused."""
        self._good.forget(which)
        self._bad.forget(lambda refusal: True)

    async def aclose(self) -> None:
        """Stop asking."""
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
            # Asking one after the other would show a token to everybody but its issuer.
            raise InvalidToken("undecided_issuer")
        return possible[0] if possible else None

    def _asked_issuers(self, registry: IssuerRegistry) -> tuple[TrustedIssuer, ...]:
        """The issuers that are asked about tokens; found once per registry."""
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
        """One question for all who present the same token at the same time."""
        task = self._running.get(key)
        if task is None:
            if sum(running[1] == key[1] for running in self._running) >= QUESTIONS:
                raise IssuerUnavailable("introspection_too_many_questions")
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
            kept = (type(refusal), refusal.reason)
            self._bad.put(key, kept, now=now, until=now + BAD_S)
            raise
        now = self.clock()
        self._good.put(key, caller, now=now, until=min(now + GOOD_S, float(caller.expires_at)))
        return caller

    def _judge(
        self, claims: dict[str, object], trusted: TrustedIssuer, target: Target
    ) -> TenantContext:
        """The rules for signed tokens, but for the claims that RFC 7662 makes optional."""
        if claims.get("dev") is True and not self.policy.development:
            raise InvalidToken("development_token")
        # Without a subject everybody who came through one client would be the same caller.
        required = NOTHING if trusted.preset.clients_without_subject else SUBJECT
        expected = msgspec.structs.replace(
            trusted.expects(trusted.settings.issuer, target), required=required
        )
        found = self.registry().find(trusted.settings.issuer)
        return caller_from(
            claims,
            check_claims(claims, expected, now=self.clock()),
            trusted.rules,
            captured=found[1] if found else None,
            target=target,
            policy=self.policy,
        )

    def _settle(self, key: Key, task: asyncio.Task[TenantContext]) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # seen, also when everybody who asked has gone away

"""Verifiers of tokens without a network: clocks, key sets, and endpoints for opaque tokens."""

import asyncio
import heapq
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import pytest

from gatepost_authz import JwtVerifier, TrustedIssuer, VerdictCache
from gatepost_authz.caller import TenantContext
from gatepost_authz.config import Introspection, Issuer, TenantRule
from gatepost_authz.discovery import Discovery
from gatepost_authz.errors import AuthError, InvalidToken
from gatepost_authz.fetch import Fetcher, FetchError
from gatepost_authz.introspection import IntrospectionVerifier
from gatepost_authz.introspector import Introspectors
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.jwk import VerificationKey, import_set
from gatepost_authz.keyset import FetchedKeys, KeySet
from gatepost_authz.keyset import KeySetClock as Times
from gatepost_authz.protected_resource import Target
from gatepost_authz.scopes import Implications
from gatepost_authz.tenant import Policy, Tenancy
from tests.support.issuers import Idp, Receive, Scope, Send, TokenFactory, jwk, respond, rsa_key
from tests.support.measuring import ManualClock


class WaitingClock:
    """
    Seconds for a `KeySet` and other code that takes ``monotonic`` and ``sleep``.

    `advance` wakes sleepers in order and lets what they do run before going on.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        end = self.now + seconds
        await settled()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
                await settled()
        self.now = end
        await settled()


async def settled() -> None:
    """Let everything run that can run without time passing or the network answering."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Return once *condition* holds, for what another thread has to do; within ten seconds."""
    async with asyncio.timeout(10):
        while not condition():
            await settled()


ALLOWED_ALGORITHMS = frozenset({"RS256", "ES256"})


def key(kid: str | None = "main", name: str = "main") -> VerificationKey:
    return import_set({"keys": [jwk(rsa_key(name), kid)]}, allowed=ALLOWED_ALGORITHMS)[0]


class Publisher:
    """An issuer's key set document: what it holds, whether it can be had, who asked when."""

    def __init__(self, clock: WaitingClock, *keys: VerificationKey) -> None:
        self.clock = clock
        self.keys = keys
        self.max_age: float | None = None
        self.fault = ""
        self.begun: list[float] = []
        self.open = asyncio.Event()
        self.open.set()

    async def load(self) -> FetchedKeys:
        self.begun.append(self.clock.now)
        answer, fault = self.keys, self.fault
        await self.open.wait()
        if fault == "unforeseen":
            raise RuntimeError(fault)
        if fault:
            raise FetchError(fault)
        return FetchedKeys(answer, self.max_age)


class KeySetBench:
    """A key set, its publisher and the time."""

    def __init__(self, *, permanent: bool = True) -> None:
        self.clock = WaitingClock()
        self.publisher = Publisher(self.clock, key())
        self.keys = KeySet(
            self.publisher.load,
            name="https://id.example.com",
            versions=itertools.count(),
            clock=Times(self.clock.monotonic, self.clock.sleep, lambda: 0.0),
            permanent=permanent,
        )

    async def known(self) -> "KeySetBench":
        await self.keys.wait_for("main", "RS256")
        return self

    def ask(self, kid: str | None = "new") -> asyncio.Task[tuple[VerificationKey, ...]]:
        return asyncio.create_task(self.keys.wait_for(kid, "RS256"))


ISSUER = "https://id.example.com"


RIVAL_ISSUER = "https://rival.example.com"


RESOURCE = "https://mcp.example.com/mcp"


TARGET = Target(RESOURCE, f"{RESOURCE}/.well-known/oauth-protected-resource")


NOW = 1_900_000_000


class PublishedKeys:
    """One issuer's keys as a published document; what the issuer would answer next is ``next``."""

    def __init__(self, entries: Sequence[Any], allowed: frozenset[str]) -> None:
        self.version = 0
        self.asked = 0
        self.allowed = allowed
        self.next: Sequence[Any] | None = None
        self.keys: tuple[VerificationKey, ...] = ()
        self.publish(entries)

    def publish(self, entries: Sequence[Any]) -> None:
        """Put these entries in force at once."""
        self.keys = import_set({"keys": list(entries)}, allowed=self.allowed)
        self.version += 1

    def find(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        able = tuple(key for key in self.keys if algorithm in key.algorithms)
        if kid is None:
            return able if len(able) == 1 else ()
        return tuple(key for key in able if key.kid == kid)

    async def wait_for(self, kid: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        await self.after_bad_signature()
        return self.find(kid, algorithm)

    async def after_bad_signature(self) -> bool:
        self.asked += 1
        if self.next is None:
            return False
        self.publish(self.next)
        self.next = None
        return True


class AuthzKeys:
    """The key sets of all issuers; an issuer without entries publishes the main RSA key."""

    def __init__(self, entries: Mapping[str, Sequence[Any]] | None = None) -> None:
        self.entries = dict(entries or {})
        self.sets: dict[str, PublishedKeys] = {}

    def keys_of(self, issuer: str, trusted: TrustedIssuer, *, peer: str = "") -> PublishedKeys:
        if issuer not in self.sets:
            published = self.entries.get(issuer, [jwk(rsa_key())])
            self.sets[issuer] = PublishedKeys(published, trusted.algorithms)
        return self.sets[issuer]

    def __getitem__(self, issuer: str) -> PublishedKeys:
        return self.sets[issuer]


def issuer(name: str = ISSUER, **changes: Any) -> Issuer:
    """Return an issuer that maps ``org_id`` to acme and globex, unless *changes* say otherwise."""
    usual: dict[str, Any] = {
        "tenant": TenantRule(claim="org_id"),
        "tenants": {"acme": "acme", "globex": "globex"},
    }
    return Issuer(issuer=name, **usual | changes)


class VerifierGate:
    """A verifier with everything a test may want to move: issuers, keys, clock, verdicts."""

    def __init__(
        self,
        *issuers: Issuer,
        keys: Mapping[str, Sequence[Any]] | None = None,
        policy: Policy | None = None,
        capacity: int = 10_000,
    ) -> None:
        self.clock = ManualClock(NOW)
        self.keys = AuthzKeys(keys)
        self.verdicts = VerdictCache(capacity)
        self.policy = policy or Policy(
            tenancy=Tenancy(), implications=Implications({"files:write": ["files:read"]})
        )
        self.trust(*(issuers or (issuer(),)))

    def trust(self, *issuers: Issuer) -> None:
        """Reload with these issuers."""
        self.verifier = JwtVerifier(
            IssuerRegistry(issuers),
            self.keys,
            self.verdicts,
            policy=self.policy,
            clock=self.clock,
        )

    async def accepted(self, token: str, target: Target = TARGET) -> TenantContext:
        caller = await self.verifier.verify(token, target)
        assert caller is not None, "not mine"
        return caller

    async def refused(self, token: str, target: Target = TARGET) -> InvalidToken:
        """Return the refusal, with its reason; None ("not mine") counts as the one of Verifiers."""
        try:
            caller = await self.verifier.verify(token, target)
        except InvalidToken as refusal:
            return refusal
        assert caller is None, caller
        return InvalidToken("unknown_kind")


class FrozenForge(TokenFactory):
    """A forge whose tokens are made at the tests' own time."""

    def claims(self, **changes: Any) -> dict[str, Any]:
        return super().claims(iat=NOW, exp=NOW + 300) | changes


FORGE = FrozenForge(ISSUER, RESOURCE)


SECRET = "p%ss:w0rd+é"


OPAQUE_TOKEN = "opaque"


class ScriptedIntrospection:
    """An introspection endpoint: what it says about every token, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Mapping[str, Any] | None = None
        self.status = 200
        self.open = asyncio.Event()
        self.open.set()
        self.loop = asyncio.get_running_loop()
        self.names: list[str] = []
        self.judge: Callable[[str, str], bool] = lambda name, token: True
        """Whether the issuer of that name knows that token."""

    def good(self, **changes: Any) -> dict[str, Any]:
        claims = {
            "active": True,
            "token_type": "Bearer",
            "aud": RESOURCE,
            "sub": "alice",
            "client_id": "client-1",
            "org_id": "acme",
            "scope": "files:write",
            "iat": NOW - 10,
            "exp": NOW + 300,
        } | changes
        return {name: value for name, value in claims.items() if value is not None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (event := await receive())["type"] == "http.request":
            body += event["body"]
            if not event["more_body"]:
                break
        self.asked.append({name: value[0] for name, value in parse_qs(body.decode()).items()})
        self.headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
        waiting = asyncio.run_coroutine_threadsafe(self.open.wait(), self.loop)
        await asyncio.wrap_future(waiting)
        shown = self.good() if self.answer is None else self.answer
        self.names.append(scope["path"].split("/")[1])
        if not self.judge(self.names[-1], self.asked[-1].get("token", "")):
            shown = {"active": False}
        await respond(send, self.status, json.dumps(shown).encode())


class OpaqueTokenGate:
    """A verifier before issuers whose tokens are opaque."""

    def __init__(self, idp: Idp) -> None:
        self.idp = idp
        self.now = float(NOW)
        self.endpoint = ScriptedIntrospection()
        self.fetcher = Fetcher(development=True)
        self.introspectors = Introspectors(
            self.fetcher,
            Discovery(self.fetcher),
            secret_of={"env:S": SECRET}.__getitem__,
            monotonic=lambda: self.now,
        )
        self.trust(self.issuer("id"))

    def issuer(self, name: str, **changes: Any) -> Issuer:
        """Return an issuer whose endpoint is this endpoint, unless *changes* say otherwise."""
        self.idp.issuer(name, [])
        self.idp.replace(f"/{name}/introspect", self.endpoint)
        usual: dict[str, Any] = {
            "tenant": TenantRule(claim="org_id"),
            "tenants": {"acme": "acme", "globex": "globex"},
            "introspection": Introspection(
                client_id="gate post",
                client_secret="env:S",
                endpoint=f"{self.idp.base}/{name}/introspect",
            ),
        }
        return Issuer(issuer=self.idp.issuer(name), **usual | changes)

    def trust(self, *issuers: Issuer) -> None:
        """Reload with these issuers."""
        self.verifier = IntrospectionVerifier(
            IssuerRegistry(issuers),
            self.introspectors,
            policy=Policy(
                tenancy=Tenancy(),
                implications=Implications({"files:write": ["files:read"]}),
                development=True,
            ),
            clock=lambda: self.now,
        )

    async def verify(
        self, token: str = OPAQUE_TOKEN, target: Target = TARGET
    ) -> TenantContext | None:
        return await asyncio.wait_for(self.verifier.verify(token, target), 10)

    async def refused(
        self,
        kind: type[AuthError] = InvalidToken,
        token: str = OPAQUE_TOKEN,
        target: Target = TARGET,
    ) -> str:
        with pytest.raises(kind) as refusal:
            await self.verify(token, target)
        return refusal.value.reason


def tenant_target(tenant: str) -> Target:
    return Target(RESOURCE, TARGET.metadata_url, tenant)


@pytest.fixture
async def opaque_gate(idp: Idp) -> AsyncIterator[OpaqueTokenGate]:
    made = OpaqueTokenGate(idp)
    yield made
    made.endpoint.open.set()
    await made.verifier.aclose()
    await made.introspectors.aclose()
    await made.fetcher.aclose()

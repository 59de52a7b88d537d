"""A key set in memory and a verifier in front of it: the real thing without the network."""

from collections.abc import Mapping, Sequence
from typing import Any

from gatepost_authz import (
    Implications,
    Issuer,
    IssuerRegistry,
    JwtVerifier,
    Target,
    Tenancy,
    TenantContext,
    TenantRule,
    TrustedIssuer,
    VerdictCache,
    VerificationKey,
)
from gatepost_authz.errors import InvalidToken
from gatepost_authz.jwk import import_set
from gatepost_authz.tenant import Policy
from tests.support.tokens import TokenFactory, jwk, rsa_key

ISSUER = "https://id.example.com"
RIVAL = "https://rival.example.com"
RESOURCE = "https://mcp.example.com/mcp"
TARGET = Target(RESOURCE, f"{RESOURCE}/.well-known/oauth-protected-resource")
NOW = 1_900_000_000


class KeySet:
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


class Keys:
    """The key sets of all issuers; an issuer without entries publishes the main RSA key."""

    def __init__(self, entries: Mapping[str, Sequence[Any]] | None = None) -> None:
        self.entries = dict(entries or {})
        self.sets: dict[str, KeySet] = {}

    def of(self, issuer: str, trusted: TrustedIssuer, *, peer: str = "") -> KeySet:
        if issuer not in self.sets:
            published = self.entries.get(issuer, [jwk(rsa_key())])
            self.sets[issuer] = KeySet(published, trusted.algorithms)
        return self.sets[issuer]

    def __getitem__(self, issuer: str) -> KeySet:
        return self.sets[issuer]


class Clock:
    """Wall-clock time that a test sets."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def issuer(name: str = ISSUER, **changes: Any) -> Issuer:
    """An issuer that maps ``org_id`` to acme and globex, unless *changes* say otherwise."""
    usual: dict[str, Any] = {
        "tenant": TenantRule(claim="org_id"),
        "tenants": {"acme": "acme", "globex": "globex"},
    }
    return Issuer(issuer=name, **usual | changes)


class Gate:
    """A verifier with everything a test may want to move: issuers, keys, clock, verdicts."""

    def __init__(
        self,
        *issuers: Issuer,
        keys: Mapping[str, Sequence[Any]] | None = None,
        policy: Policy | None = None,
        capacity: int = 10_000,
    ) -> None:
        self.clock = Clock()
        self.keys = Keys(keys)
        self.decisions = VerdictCache(capacity)
        chosen = policy or Policy(
            tenancy=Tenancy(), implications=Implications({"files:write": ["files:read"]})
        )
        self.verifier = JwtVerifier(
            IssuerRegistry(issuers or (issuer(),)),
            self.keys,
            self.decisions,
            policy=chosen,
            clock=self.clock,
        )

    async def accepted(self, token: str, target: Target = TARGET) -> TenantContext:
        caller = await self.verifier.verify(token, target)
        assert caller is not None, "not mine"
        return caller

    async def refused(self, token: str, target: Target = TARGET) -> InvalidToken:
        """The refusal, with its reason; None ("not mine") counts as the one of Verifiers."""
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

"""A key set on a bench: its publisher, its faults and the time are the test's to move."""

import asyncio
import itertools

from gatepost_authz.fetch import FetchError
from gatepost_authz.jwk import VerificationKey, import_set
from gatepost_authz.keyset import FetchedKeys, KeySet
from gatepost_authz.keyset import KeySetClock as Times
from tests.authz.clock import Clock
from tests.support.tokens import jwk, rsa_key

ALLOWED = frozenset({"RS256", "ES256"})


def key(kid: str | None = "main", name: str = "main") -> VerificationKey:
    return import_set({"keys": [jwk(rsa_key(name), kid)]}, allowed=ALLOWED)[0]


class Publisher:
    """An issuer's key set document: what it holds, whether it can be had, who asked when."""

    def __init__(self, clock: Clock, *keys: VerificationKey) -> None:
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


class Bench:
    """A key set, its publisher and the time."""

    def __init__(self, *, permanent: bool = True) -> None:
        self.clock = Clock()
        self.publisher = Publisher(self.clock, key())
        self.keys = KeySet(
            self.publisher.load,
            name="https://id.example.com",
            versions=itertools.count(),
            clock=Times(self.clock.monotonic, self.clock.sleep, lambda: 0.0),
            permanent=permanent,
        )

    async def known(self) -> "Bench":
        await self.keys.wait_for("main", "RS256")
        return self

    def ask(self, kid: str | None = "new") -> asyncio.Task[tuple[VerificationKey, ...]]:
        return asyncio.create_task(self.keys.wait_for(kid, "RS256"))

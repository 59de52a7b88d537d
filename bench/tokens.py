"""The access tokens of a run, minted before it begins."""

import os
import random
import string
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from joserfc import jwk, jwt

LIFETIME_S = 6 * 3600
TENANTS = 50
KEY_BITS = 2048
BATCH = 500


@dataclass(frozen=True)
class Mint:
    """Signs RFC 9068 access tokens for one issuer and one resource with one key."""

    issuer: str
    resource: str
    key: jwk.RSAKey | jwk.ECKey
    tenants: int = TENANTS
    """Callers are spread over so many."""

    @classmethod
    def create(cls, issuer: str, resource: str, *, fast: bool = False) -> "Mint":
        """Create a mint with a new RSA key, or with a *fast* key, which signs six times as fast."""
        if fast:
            key = jwk.ECKey.generate_key("P-256", {"kid": "bench", "use": "sig", "alg": "ES256"})
            return cls(issuer, resource, key)
        rsa = jwk.RSAKey.generate_key(KEY_BITS, {"kid": "bench", "use": "sig", "alg": "RS256"})
        return cls(issuer, resource, rsa)

    @property
    def key_set(self) -> dict[str, object]:
        """Return the public half of the key, as the issuer publishes it."""
        return {"keys": [self.key.as_dict(private=False)]}

    def token(self, number: int) -> str:
        """Return the token of the *number*-th caller."""
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": self.resource,
            "sub": f"caller-{number}",
            "client_id": "bench",
            "org_id": f"tenant-{number % self.tenants}",
            "scope": "openid profile",
            "jti": f"{number:016x}",
            "iat": now,
            "exp": now + LIFETIME_S,
        }
        header = {"alg": str(self.key.get("alg")), "typ": "at+jwt", "kid": "bench"}
        return jwt.encode(header, claims, self.key)

    def pool(self, count: int, *, first: int = 0) -> list[str]:
        """Return *count* tokens, all different; signing takes most of a millisecond each."""
        if count <= BATCH:
            return [self.token(number) for number in range(first, first + count)]
        starts = range(first, first + count, BATCH)
        sizes = [min(BATCH, first + count - start) for start in starts]
        secret = (self.issuer, self.resource, self.key.as_dict(private=True), self.tenants)
        # Forking a process that already runs the issuer's thread could deadlock.
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as workers:
            batches = workers.map(mint_batch, [secret] * len(sizes), starts, sizes)
            return [token for batch in batches for token in batch]


def mint_batch(secret: tuple[str, str, Any, int], first: int, count: int) -> list[str]:
    """Mint a part of a pool, in a process of its own."""
    issuer, resource, key, tenants = secret
    mint = Mint(issuer, resource, jwk.import_key(key), tenants)
    return [mint.token(number) for number in range(first, first + count)]


def garbage(count: int, *, seed: int = 1) -> list[str]:
    """Return different strings of a token's alphabet that are no tokens."""
    source = random.Random(seed)
    alphabet = string.ascii_letters + string.digits + "-_"
    return ["".join(source.choices(alphabet, k=48)) for _ in range(count)]


@dataclass(frozen=True)
class Purse:
    """Files with one token a line, by the workloads' name for them; `none` has no file."""

    files: dict[str, Path]

    @classmethod
    def fill(cls, mint: Mint, folder: Path, *, fresh_tokens: int) -> "Purse":
        """
        Mint everything a run needs, *fresh_tokens* tokens for the workload of never-seen ones.
        """
        pools = {
            "one": mint.pool(1),
            "thousand": mint.pool(1000),
            "garbage": garbage(1000),
            # Numbers that no other pool has: a token of these was never shown to any server.
            "fresh": mint.pool(fresh_tokens, first=1_000_000) if fresh_tokens else [],
        }
        files = {}
        for name, pool in pools.items():
            files[name] = folder / f"tokens-{name}.txt"
            files[name].write_text("".join(f"{token}\n" for token in pool), encoding="ascii")
        return cls(files)

    def first(self, name: str) -> str | None:
        """Return the first token of a pool, for a probe; None where requests carry none."""
        if name not in self.files:
            return None
        with self.files[name].open(encoding="ascii") as lines:
            return lines.readline().strip() or None

    def take(self, name: str) -> str | None:
        """
        Return a token for a probe.

        From the fresh pool the last one, which wrk reaches only when the pool is used up.
        """
        if name != "fresh":
            return self.first(name)
        lines = self.files[name].read_text(encoding="ascii").split()
        return lines[-1] if lines else None

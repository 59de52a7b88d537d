"""A trail with everything in it, and whoever reaches into the database behind it."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from gatepost.audit.checkpoints import public_keys, sign
from gatepost.audit.erasure import DetailErasure
from gatepost.audit.retention import prune
from gatepost.audit.verify import VerificationResult, verify
from gatepost.audit.writer import AuditWriter
from gatepost.config.audit import AuditSettings
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import Checkpoint
from gatepost.storage.backends import open_records
from gatepost.storage.records import Records
from gatepost.tools.redaction import Redaction
from gatepost_authz.caller import TenantContext

ISSUER = "https://id.example.com"
NOW = 1_800_000_000.0


def person(subject: str, tenant: str = "acme", **more: Any) -> TenantContext:
    """Somebody of that tenant."""
    return TenantContext(
        tenant_id=tenant,
        issuer=ISSUER,
        subject=subject,
        subject_kind="user",
        resource="https://mcp.example.com/mcp",
        expires_at=int(NOW) + 3600,
        **more,
    )


class AuditLog:
    """Records of tenants, written as a server writes them, at a clock of its own."""

    def __init__(self, records: Records, keyring: KeyRing | None = None) -> None:
        self.records, self.keyring = records, keyring or KeyRing.ephemeral()
        self.now = NOW
        self.writer = self.process()
        self.erasure = DetailErasure(records, self.keyring, clock=lambda: self.now)

    def process(self, **settings: Any) -> AuditWriter:
        """Another process with the same key ring."""
        chosen = AuditSettings(batch_ms=0, **settings)
        clock = lambda: self.now  # noqa: E731
        return AuditWriter(self.records, self.keyring, Redaction(), chosen, clock=clock)

    async def note(self, count: int, tenant: str = "acme", subject: str = "alice") -> None:
        """So many records of one person, each durable before the next."""
        for _ in range(count):
            await self._note(tenant, subject)

    async def together(self, *subjects: str) -> None:
        """A record of acme for each of them, in one commit."""
        await asyncio.gather(*(self._note("acme", subject) for subject in subjects))

    async def _note(self, tenant: str, subject: str) -> None:
        self.now += 1
        await self.writer.note(
            tenant,
            "approval",
            outcome="approved",
            tool="deploy",
            caller=person(subject, tenant),
            details={"rule": "two people"},
            private={"reason": f"looked at {self.now:.0f}"},
        )

    async def sign(self, tenant: str = "acme") -> Checkpoint:
        """A checkpoint of what is there now; the newest."""
        await sign(self.records, self.keyring, tenant, lambda: self.now)
        return (await self.records.of(tenant).trail.checkpoints())[-1]

    async def prune(self, before: float, tenant: str = "acme") -> int:
        """Remove records from before a time; return the last removed one."""
        return await prune(self.records, self.keyring, tenant, before, lambda: self.now)

    async def fill(self) -> Checkpoint:
        """Twelve records of acme, checkpoints at 5 and 10; eight of globex; the newest of acme."""
        await self.note(2)
        await self.together("alice", "alice", "alice")
        await self.sign()
        await self.together("alice", "alice", "bob")
        await self.together("alice", "alice")
        newest = await self.sign()
        await self.note(2)
        await self.note(8, "globex")
        await self.sign("globex")
        return newest

    async def verify(self, tenant: str = "acme", *kept: Checkpoint) -> VerificationResult:
        """What an operator hears, who has the ring."""
        keys = public_keys(self.keyring)
        return await verify(self.records, tenant, keys, self.keyring, kept)


@asynccontextmanager
async def audit_log(url: str, keyring: KeyRing | None = None) -> AsyncIterator[AuditLog]:
    """A audit_log in that database, for the time of a block."""
    records = await open_records(url)
    try:
        one = AuditLog(records, keyring)
        yield one
        await one.writer.aclose()
    finally:
        await records.aclose()


async def tamper(url: str, *statements: str) -> None:
    """Somebody who can write to the database, and has no key."""
    if url.startswith("sqlite:"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()
        return
    remote = await asyncpg.connect(url)
    for statement in statements:
        await remote.execute(statement)
    await remote.close()


def changed(body: str, **fields: Any) -> str:
    """A body with other fields."""
    return msgspec.json.encode({**msgspec.json.decode(body), **fields}).decode()

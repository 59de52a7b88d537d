"""Tools whose calls end in every way, and where the records of these tests are kept."""

import asyncio
import hashlib
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from gatepost import CallContext, Pack, Secret, ToolFailure
from gatepost.audit.checkpoints import CheckpointSigner, public_keys
from gatepost.audit.retention import DetailErasure, prune
from gatepost.audit.verify import VerificationResult, verify
from gatepost.audit.writer import AuditWriter
from gatepost.config.audit import AuditSettings
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import AuditRow, AuditStore, ChainHead, Checkpoint, Segment
from gatepost.storage.audit_segments import compacted
from gatepost.storage.backends import open_records
from gatepost.storage.records import Records
from gatepost.tools.calls.redaction import Redaction
from gatepost_authz.caller import TenantContext
from tests.support.stores import sqlite_url

ISSUER = "https://id.example.com"
NOW = 1_800_000_000.0


def person(subject: str, tenant: str = "acme", **more: Any) -> TenantContext:
    """Return a caller of that tenant."""
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
        self.now, self._writers = NOW, list[AuditWriter]()
        self.writer = self.process()
        self.erasure = DetailErasure(self.store, self.keyring, clock=lambda: self.now)

    @property
    def store(self) -> AuditStore:
        """Return the audit store of the writer."""
        return self.writer.store

    def process(self, **settings: Any) -> AuditWriter:
        """Return the writer of another process with the same key ring."""
        chosen = AuditSettings(batch_ms=0, **settings)
        clock = lambda: self.now  # noqa: E731
        writer = AuditWriter(self.records, self.keyring, Redaction(), chosen, clock=clock)
        self._writers.append(writer)
        return writer

    async def aclose(self) -> None:
        """Close the writers of all processes."""
        for writer in self._writers:
            await writer.aclose()

    async def note(self, count: int, tenant: str = "acme", subject: str = "alice") -> None:
        """Add *count* records of one person, each in the tables before the next."""
        for _ in range(count):
            await self.note_unmerged(tenant, subject)
            await self.store.link_pending()

    async def note_together(self, *subjects: str) -> None:
        """Add a record of acme for each subject, in one commit."""
        await asyncio.gather(*(self.note_unmerged("acme", subject) for subject in subjects))
        await self.store.link_pending()

    async def note_unmerged(self, tenant: str = "acme", subject: str = "alice") -> None:
        """Add a record that is durable, and maybe only in a write-ahead log."""
        self.now += 1
        await self.writer.events.note(
            tenant,
            "approval",
            outcome="approved",
            tool="deploy",
            caller=person(subject, tenant),
            details={"rule": "two people"},
            private={"reason": f"looked at {self.now:.0f}"},
        )

    async def sign(self, tenant: str = "acme") -> Checkpoint:
        """Sign a checkpoint of the current records, and return the newest."""
        signer = CheckpointSigner(self.store, self.keyring, clock=lambda: self.now)
        await signer.sign_tenant(tenant)
        return (await self.store.tenant_log(tenant).checkpoints())[-1]

    async def prune(self, before: float, tenant: str = "acme") -> int:
        """Remove records from before a time; return the last removed one."""
        return await prune(self.store, self.keyring, tenant, before, lambda: self.now)

    async def fill(self) -> Checkpoint:
        """Add twelve records of acme and eight of globex; return acme's checkpoint at 10."""
        for subjects in ("a", "a", "aaa"):
            await self._note_segment(subjects)
        await self.sign()
        for subjects in ("aab", "aa"):
            await self._note_segment(subjects)
        newest = await self.sign()
        for subjects in ("a", "a"):
            await self._note_segment(subjects)
        await self.note(8, "globex")
        await self.sign("globex")
        return newest

    async def _note_segment(self, subjects: str) -> None:
        """Add records of Alice and Bob in a segment of their own."""
        names = {"a": "alice", "b": "bob"}
        await self.note_together(*(names[one] for one in subjects))

    async def verify(self, tenant: str = "acme", *kept: Checkpoint) -> VerificationResult:
        """Return what an operator reads, who has the ring."""
        keys = public_keys(self.keyring)
        return await verify(self.store, tenant, keys, self.keyring, kept)


@asynccontextmanager
async def audit_log(url: str, keyring: KeyRing | None = None) -> AsyncIterator[AuditLog]:
    """Yield an audit log in that database."""
    records = await open_records(url)
    try:
        one = AuditLog(records, keyring)
        yield one
        await one.aclose()
    finally:
        await records.aclose()


async def tamper(url: str, *statements: str) -> None:
    """Change the database as an attacker who has write access but no key."""
    if url.startswith("sqlite:"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        # At once: each statement for itself would wait for the disk.
        connection.execute("BEGIN")
        for statement in statements:
            connection.execute(statement)
        connection.execute("COMMIT")
        connection.close()
        return
    remote = await asyncpg.connect(url)
    await remote.execute("; ".join(statements))
    await remote.close()


def edited(body: str, **fields: Any) -> str:
    """Return a body with other fields."""
    return msgspec.json.encode({**msgspec.json.decode(body), **fields}).decode()


Value = bytes | str | int | float | None


class StolenData(msgspec.Struct):
    """
    What an attacker reads before it writes: acme's records, checkpoints 5 and 10, its end.

    There are 12 records, in the segments 1, 2, 3 to 5, 6 to 8, 9 to 10, 11, 12.
    """

    url: str
    rows: list[AuditRow]
    segments: list[Segment]
    signed: list[Checkpoint]
    ends: list[ChainHead]
    """Of the checkpoints, and of the records."""
    others: list[AuditRow]
    """Globex's."""

    def sql(self, value: Value) -> str:
        """Return a value as the database writes it."""
        if value is None:
            return "NULL"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, bytes):
            sqlite = self.url.startswith("sqlite:")
            return f"x'{value.hex()}'" if sqlite else f"'\\x{value.hex()}'::bytea"
        return "'" + value.replace("'", "''") + "'"

    def set(self, number: int, **columns: Value) -> str:
        """Return a statement that changes the segment that begins with that record."""
        return update("segments", f"first = {number}", self.assigned(columns))

    def set_head(self, **columns: Value) -> str:
        return update("heads", "writer = 1", self.assigned(columns))

    def set_signed(self, **columns: Value) -> str:
        """Return a statement that changes the end of the chain of checkpoints."""
        return update("heads", "writer = 0", self.assigned(columns))

    def set_checkpoint(self, number: int, **columns: Value) -> str:
        return update("checkpoints", f"number = {number}", self.assigned(columns))

    def assigned(self, columns: Mapping[str, Value]) -> str:
        return ", ".join(f"{name} = {self.sql(value)}" for name, value in columns.items())

    def row(self, table: str, *values: Value) -> str:
        """Return a statement that adds a row."""
        values_sql = ", ".join(map(self.sql, values))
        return f"INSERT INTO audit_{table} VALUES ({values_sql})"  # noqa: S608  # the attacker's

    def insert(self, segment: Segment) -> str:
        """Return a statement that adds a segment."""
        return self.row("segments", "acme", *msgspec.structs.astuple(segment))

    def segment_of(self, first: int, rows: Sequence[AuditRow]) -> Segment:
        """Return these records as a segment whose columns all fit."""
        return compacted(1, first, rows)[0]

    def replace_segment(self, first: int, rows: Sequence[AuditRow]) -> list[str]:
        """Return statements that put these records where a segment was."""
        return [delete("segments", f"first = {first}"), self.insert(self.segment_of(first, rows))]

    def change_record_7(self, **fields: Value) -> list[str]:
        """Return statements that change record 7, between two others in its segment."""
        row = msgspec.structs.replace(self.rows[6], **fields)
        if isinstance(body := fields.get("body"), str) and body.startswith("{"):
            said = msgspec.json.decode(body)
            columns = {name: said[name] for name in ("at", "kind", "tool", "outcome")}
            row = msgspec.structs.replace(row, **columns)
        return self.replace_segment(6, [self.rows[5], row, self.rows[7]])

    def edit_record_7(self, before: str, after: str) -> list[str]:
        """Return a statement that changes the text of record 7 in its segment, once."""
        text = self.segments[3].records
        at = text.index(before, text.index('{"number":7'))
        return [self.set(6, records=text[:at] + after + text[at + len(before) :])]

    def cut_record_7(self) -> str:
        """Return a statement that cuts record 7 out of a text, and changes nothing else."""
        left = self.segment_of(6, [self.rows[5], self.rows[7]])
        return self.set(6, records=left.records)

    def rechain(self, number: int) -> Iterable[str]:
        """Yield statements that change one record, and make all hashes behind it fit."""
        previous, rows = self.rows[number - 2].hash, {row.number: row for row in self.rows}
        for row in self.rows[number - 1 :]:
            body = edited(row.body, outcome="denied") if row.number == number else row.body
            outcome = "denied" if row.number == number else row.outcome
            previous = hashlib.sha256(previous + body.encode()).digest()
            fields = {"body": body, "outcome": outcome, "hash": previous}
            rows[row.number] = msgspec.structs.replace(row, **fields)
        for one in self.segments:
            yield from self.replace_segment(
                one.first, [rows[at] for at in range(one.first, one.last + 1)]
            )
        yield self.set_head(hash=previous)


def update(table: str, where: str, assignments: str) -> str:
    which = f"tenant = 'acme' AND {where}"
    return f"UPDATE audit_{table} SET {assignments} WHERE {which}"  # noqa: S608  # the attacker's


def delete(table: str, where: str) -> str:
    return f"DELETE FROM audit_{table} WHERE tenant = 'acme' AND {where}"  # noqa: S608  # the same


def move(first: int, by: int) -> str:
    """Return a statement that moves a segment, with all that says where it is."""
    return update("segments", f"first = {first}", f"first = first + {by}, last = last + {by}")


def edited_body(row: AuditRow, **fields: object) -> str:
    return edited(row.body, **fields)


def side_with(row: AuditRow, *names: str) -> str:
    """Return some parts of a side."""
    side = msgspec.json.decode(row.side or "{}")
    return msgspec.json.encode({name: side[name] for name in names}).decode()


async def stolen_data(one: AuditLog, url: str) -> StolenData:
    """Return the stored data of acme."""
    acme = one.store.tenant_log("acme")
    others = await one.store.tenant_log("globex").chain(1).rows(0, 99)
    rows, there = await acme.chain(1).rows(0, 99), await acme.chain(1).segments(0, 99)
    return StolenData(url, rows, there, await acme.checkpoints(), await acme.heads(), others)


def delete_all() -> list[str]:
    """Return statements that delete everything of acme."""
    columns = {"segments": "first", "checkpoints": "number", "heads": "number"}
    return [delete(table, f"{column} IS NOT NULL") for table, column in columns.items()]


def verified_by_hand(export: Path, key: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of docs/audit.md on an export."""
    page = (Path(__file__).parents[2] / "docs/audit.md").read_text()
    script = page.split("```python\n")[1].split("```")[0]
    assert "gatepost" not in script.replace("gatepost_audit", "")
    return subprocess.run(
        [sys.executable, "-", str(export), str(key)],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


AUDITED_TOOLS = "tests.audit.conftest"
pack = Pack("audited")


@pack.tool(idempotent=True)
async def write(ctx: CallContext, text: str) -> str:
    """Do something to the world."""
    return f"wrote {len(text)}"


@pack.tool(read_only=True)
async def look(ctx: CallContext) -> str:
    """Return how the world is."""
    return "fine"


@pack.tool()
async def refuse(ctx: CallContext, why: str) -> str:
    """Refuse for a reason."""
    raise ToolFailure("denied", f"Not today: {why}")


@pack.tool()
async def create(ctx: CallContext) -> str:
    """Fail, because there is one already."""
    raise ToolFailure("conflict", "There is one already.")


@pack.tool()
async def crash(ctx: CallContext) -> str:
    """Break."""
    raise RuntimeError("boom")


@pack.tool(timeout_s=0.05)
async def linger(ctx: CallContext) -> str:
    """Take too long."""
    await asyncio.Event().wait()
    return "never"


@pack.tool()
async def unlock(ctx: CallContext, token: Secret, safe: str) -> str:
    """Open a safe with a secret of one's own."""
    return f"{safe} is open: {await ctx.secret(token, field='token', literals=True)}"


@pack.tool(scopes={"files:write"})
async def scoped(ctx: CallContext) -> str:
    """Do what needs a permission."""
    return "done"


@pack.resource("audited://log/{day}")
async def log(ctx: CallContext, day: str) -> str:
    """Return what was done on a day."""
    return f"nothing on {day}"


@pack.tool()
async def both(ctx: CallContext) -> str:
    """Call another tool."""
    inner = await ctx.call("write", {"text": "from within"})
    return "failed" if inner.failure else "done"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database of this test's own, once for each kind."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    found: str = request.getfixturevalue("migrated_postgres")
    return found

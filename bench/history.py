"""A long audit log, and what the pages and commands that read it cost."""

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gatepost.audit.batches import RingLinker, WriteAttempt
from gatepost.audit.checkpoints import public_keys
from gatepost.audit.record import RecordBody
from gatepost.audit.record_builder import new_record
from gatepost.audit.verify import verify
from gatepost.dashboard.audit import search_back
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import AuditQuery, ChainHead, ChainKey, NewAuditRecord, Segment
from gatepost.storage.audit_segments import compacted, rows_of
from gatepost.storage.backends import open_records

BATCH = 1_000
TOGETHER = 25
"""Records of one segment: as many calls as end at about the same time."""
SPAN_S = 7 * 86_400
TOOLS = 20
TIMES = 5
PAGE_MS = 100.0
"""What a page may take at a million records."""


@dataclass(frozen=True)
class PageCost:
    """How long one page took, in milliseconds."""

    name: str
    records: int
    ms: float
    limited: bool
    """Whether it is held against `PAGE_MS`."""

    @property
    def line(self) -> str:
        """Return the cost as a line of the report."""
        text = f"{self.records:>15,} records {self.name:<32} {self.ms:10.1f}"
        if not self.limited:
            return text
        verdict = "met" if self.ms <= PAGE_MS else f"missed by {self.ms - PAGE_MS:.0f}"
        return f"{text}  {PAGE_MS:g}: {verdict}"


async def fill(folder: Path, tenant: str, count: int) -> None:
    """Add so many records of the last week to a tenant's chain."""
    records = await open_records(f"sqlite:///{folder / 'gatepost.db'}")
    audit_store = records.open_audit(None)  # written into the tables at once
    keyring = KeyRing.load(f"file:{folder / 'keyring.json'}")
    begin, step = (time.time() - SPAN_S) * 1000, SPAN_S * 1000 / count

    def link(
        chain: ChainKey, before: ChainHead | None, new_records: Sequence[NewAuditRecord]
    ) -> tuple[list[Segment], ChainHead]:
        records, head = WriteAttempt(keyring).link(chain, before, new_records)
        rows = [row for record in records for row in rows_of(record)]
        parts = [rows[at : at + TOGETHER] for at in range(0, len(rows), TOGETHER)]
        return [segment for part in parts for segment in compacted(1, part[0].number, part)], head

    for first in range(0, count, BATCH):
        new_records = [
            new_record(
                RecordBody(
                    at=int(begin + number * step),
                    kind="call",
                    tenant=tenant,
                    tool=f"tool-{number % TOOLS}",
                    outcome="success",
                ),
                {"arguments": '{"text":"Hello from the benchmark."}'},
            )
            for number in range(first, min(first + BATCH, count))
        ]
        await audit_store.write({(tenant, 1): new_records}, link)
    await records.aclose()


async def pages(database: Path, tenant: str, count: int) -> list[PageCost]:
    """Measure what reads the records of a tenant, which has about *count* of them."""
    records = await open_records(f"sqlite:///{database}")
    keyring = KeyRing.load(f"file:{database.parent / 'keyring.json'}")
    audit_store, hour = records.open_audit(RingLinker(keyring)), 3600
    tenant_log = audit_store.tenant_log(tenant)
    now = int(time.time() // hour) * hour
    page_calls: dict[str, Callable[[], Awaitable[object]]] = {
        "audit, newest": lambda: search_back(audit_store, tenant, AuditQuery()),
        "audit, one tool": lambda: search_back(audit_store, tenant, AuditQuery(tool="tool-3")),
        "usage, a day": lambda: tenant_log.count((now - 23 * hour) * 1000, hour * 1000),
        "usage, a week": lambda: tenant_log.count((now - 7 * 24 * hour) * 1000, 6 * hour * 1000),
    }
    costs = [
        PageCost(name, count, await _measured(page, TIMES), limited=True)
        for name, page in page_calls.items()
    ]
    absent = AuditQuery(tool="absent")
    costs.append(
        PageCost(
            "audit, a tool without records",
            count,
            await _measured(lambda: search_back(audit_store, tenant, absent), TIMES),
            limited=True,
        )
    )
    keys = public_keys(keyring)
    costs.append(
        PageCost(
            "audit verify",
            count,
            await _measured(lambda: verify(audit_store, tenant, keys, keyring), 1),
            limited=False,
        )
    )
    await records.aclose()
    return costs


async def _measured(page: Callable[[], Awaitable[object]], times: int) -> float:
    times_ms = []
    for _ in range(times):
        began = time.perf_counter()
        await page()
        times_ms.append((time.perf_counter() - began) * 1000)
    return statistics.median(times_ms)

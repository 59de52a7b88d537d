"""What recording a call costs, in steps that no machine changes."""

import asyncio
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import msgspec

from gatepost.audit.batches import RingLinker
from gatepost.audit.record import RecordBody, decode_side
from gatepost.audit.record_builder import RecordBuilder, new_record
from gatepost.audit.writer import AuditWriter
from gatepost.config.audit import AuditSettings
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import NewAuditRecord
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.sql.records import opened
from gatepost.storage.sql.sqlite_audit_merger import SqliteMerger
from gatepost.storage.sql.sqlite_audit_wal import WriteAheadLog
from gatepost.tools.calls.redacted_call import RedactedCall
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.offers.offer import Call
from tests.audit.conftest import NOW, pack, person
from tests.support.measuring import count_lines

MAX_STEPS = 5
RECORDS = 32
MAX_BUILDER_STEPS = 121
MAX_LINK_STEPS = 15


def a_call(size: int) -> Call:
    arguments = b'{"text": "%b"}' % (b"x" * size)
    return Call(caller=person("alice"), name="write", arguments=arguments, request_id="r")


async def test_recording_a_call_takes_a_fixed_number_of_steps() -> None:
    """The call itself formats, redacts, hashes and writes nothing."""
    redaction = Redaction()
    writer = AuditWriter(MemoryRecords(), KeyRing.ephemeral(), redaction, AuditSettings())
    short, long = (a_call(size) for size in (10, 1_000_000))
    guards = [RedactedCall(redaction, long, pack.tools["write"])]
    began = perf_counter()
    writer.record_end(short, began, guards, None)  # the first of a batch begins it
    taken = [
        count_lines(partial(writer.record_end, call, began, guards, None)) for call in (short, long)
    ]
    await writer.aclose()

    assert max(taken) <= MAX_STEPS


def test_building_a_record_takes_a_bounded_number_of_steps() -> None:
    """The builder shares its core with calls; each commitment still has a salt of its own."""
    redaction = Redaction()
    entries = []
    for _ in range(RECORDS):
        call = msgspec.structs.replace(a_call(10), peer="198.51.100.7")
        guard = RedactedCall(redaction, call, pack.tools["write"], checked=True)
        entries.append((call, 1.0, 2.0, [guard], None))
    builder, now = RecordBuilder(), (3.0, 3.0)
    records: list[NewAuditRecord] = []
    taken = count_lines(
        lambda: records.extend(*builder.new_records(entries, now, AuditSettings()).values())
    )
    sides = [decode_side(new_record.side or "") for new_record in records]
    salts = {salt for side in sides for salt, _ in side.values()}

    assert taken <= RECORDS * MAX_BUILDER_STEPS
    assert len(salts) == sum(map(len, sides)) == 2 * RECORDS


async def create_tables(path: Path) -> None:
    """Create the tables."""
    await (await opened(f"sqlite:///{path}")).aclose()


class BatchCost(NamedTuple):
    """Steps of a batch: to append it, and to merge it."""

    appended: int
    merged: int


MAX_APPENDED_STEPS = 75
MAX_TENANT_STEPS = BatchCost(4, 200)


def test_appending_and_merging_records_takes_a_bounded_number_of_steps(tmp_path: Path) -> None:
    """A call waits for the append; numbers, hashes and heads are written by the later merge."""
    path = str(tmp_path / "records.db")
    asyncio.run(create_tables(tmp_path / "records.db"))
    linker = RingLinker(KeyRing.ephemeral())
    wal, merger = WriteAheadLog(path, linker), SqliteMerger(path)
    merger.open_wal(wal, linker)
    body = RecordBody(at=int(NOW), kind="call", tenant="acme", tool="write", outcome="success")
    record = new_record(body, {"caller": "{}", "arguments": "{}"})

    def measured(tenants: int, records: int) -> BatchCost:
        batch = {(f"t{number}", 1): [record] * records for number in range(tenants)}
        appended = count_lines(lambda: wal.append(batch))
        return BatchCost(appended, count_lines(lambda: merger.merge(wal, linker)))

    measured(100, 1)
    single, records, tenants = measured(1, 1), measured(1, 101), measured(100, 1)
    merger.close()
    wal.close()

    assert single.appended <= MAX_APPENDED_STEPS
    assert (records.appended - single.appended) / 100 <= 1
    assert (tenants.appended - single.appended) / 99 <= MAX_TENANT_STEPS.appended
    assert (records.merged - single.merged) / 100 <= MAX_LINK_STEPS
    assert (tenants.merged - single.merged) / 99 <= MAX_TENANT_STEPS.merged

"""What recording a call costs, in steps that no machine changes."""

import asyncio
from pathlib import Path
from time import perf_counter

import msgspec

from gatepost.audit.chain import WriteAttempt
from gatepost.audit.record import RecordBody, decode_side
from gatepost.audit.record_builder import RecordBuilder, draft
from gatepost.audit.writer import AuditWriter
from gatepost.config.audit import AuditSettings
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import AuditDraft, ChainHead, ChainKey
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.sql.records import opened
from gatepost.storage.sql.sqlite_audit_writer import SqliteWriter
from gatepost.tools.api import Call
from gatepost.tools.redacted_call import RedactedCall
from gatepost.tools.redaction import Redaction
from tests.audit.conftest import NOW, pack, person
from tests.support.measuring import steps

MOST_STEPS = 5
RECORDS = 32
MOST_BUILDER_STEPS = 121
MOST_LINK_STEPS = 15
MOST_BATCH_STEPS = 140


def a_call(size: int) -> Call:
    arguments = b'{"text": "%b"}' % (b"x" * size)
    return Call(caller=person("alice"), name="write", arguments=arguments, request_id="r")


async def test_a_call_leaves_a_tuple_and_goes_on() -> None:
    """Nothing is formatted, searched, hashed or written there, whatever the call holds."""
    redaction = Redaction()
    writer = AuditWriter(MemoryRecords(), KeyRing.ephemeral(), redaction, AuditSettings())
    short, long = (a_call(size) for size in (10, 1_000_000))
    guards = [RedactedCall(redaction, long, pack.tools["write"])]
    began = perf_counter()
    writer.ended(short, began, guards, None)  # the first of a batch begins it
    taken = [steps(lambda: writer.ended(call, began, guards, None)) for call in (short, long)]  # noqa: B023  # at once
    await writer.aclose()

    assert max(taken) <= MOST_STEPS


def test_a_record_costs_the_builder_a_bounded_number_of_steps() -> None:
    """The builder shares its core with calls; each commitment still has a salt of its own."""
    redaction = Redaction()
    entries = []
    for _ in range(RECORDS):
        call = msgspec.structs.replace(a_call(10), peer="198.51.100.7")
        guard = RedactedCall(redaction, call, pack.tools["write"], checked=True)
        entries.append((call, 1.0, 2.0, [guard], None))
    builder, now = RecordBuilder(), (3.0, 3.0)
    made: list[AuditDraft] = []
    taken = steps(lambda: made.extend(*builder.drafts(entries, now, AuditSettings()).values()))
    sides = [decode_side(draft.side or "") for draft in made]
    salts = {salt for side in sides for salt, _ in side.values()}

    assert taken <= RECORDS * MOST_BUILDER_STEPS
    assert len(salts) == sum(map(len, sides)) == 2 * RECORDS


async def made(path: Path) -> None:
    """The tables."""
    await (await opened(f"sqlite:///{path}")).aclose()


def test_a_record_costs_a_dozen_steps_and_a_batch_a_hundred_more(tmp_path: Path) -> None:
    """From drafts to the disk: numbered, hashed, joined, and the head with its proof."""
    asyncio.run(made(tmp_path / "records.db"))
    writer, keyring = SqliteWriter(str(tmp_path / "records.db")), KeyRing.ephemeral()
    heads: dict[ChainKey, ChainHead] = {}
    body = RecordBody(at=int(NOW), kind="call", tenant="acme", tool="write", outcome="success")
    one = draft(body, {"caller": "{}", "arguments": "{}"})

    def written(number: int) -> int:
        attempt = WriteAttempt(keyring, heads)
        taken = steps(lambda: writer.write({("acme", 1): [one] * number}, attempt.link))
        heads.update(attempt.heads)
        return taken

    written(1)
    single, many = written(1), written(101)
    writer.close()

    assert (many - single) / 100 <= MOST_LINK_STEPS
    assert single <= MOST_BATCH_STEPS

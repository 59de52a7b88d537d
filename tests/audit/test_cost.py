"""What a call pays on its path for being on record, in steps that no machine changes."""

from time import perf_counter

import msgspec

from gatepost.audit.clerk import Clerk
from gatepost.audit.journal import Journal
from gatepost.audit.record import decode_side
from gatepost.audit.settings import AuditSettings
from gatepost.keyring import KeyRing
from gatepost.stores.audit import Draft
from gatepost.stores.memory.records import MemoryRecords
from gatepost.tools.api import Call
from gatepost.tools.redaction import Guard, Redaction
from tests.audit.shelf import person
from tests.audit.toolset import pack
from tests.support.steps import steps

MOST_STEPS = 5
RECORDS = 32
MOST_WRITER_STEPS = 112


def a_call(size: int) -> Call:
    arguments = b'{"text": "%b"}' % (b"x" * size)
    return Call(caller=person("alice"), name="write", arguments=arguments, request_id="r")


async def test_a_call_leaves_a_tuple_and_goes_on() -> None:
    """Nothing is formatted, searched, hashed or written there, whatever the call holds."""
    redaction = Redaction()
    journal = Journal(MemoryRecords(), KeyRing.ephemeral(), redaction, AuditSettings())
    short, long = (a_call(size) for size in (10, 1_000_000))
    guards = [Guard(redaction, long, pack.tools["write"])]
    began = perf_counter()
    journal.ended(short, began, guards, None)  # the first of a batch begins it
    taken = [steps(lambda: journal.ended(call, began, guards, None)) for call in (short, long)]  # noqa: B023  # at once
    await journal.aclose()

    assert max(taken) <= MOST_STEPS


def test_a_record_costs_the_writer_a_bounded_number_of_steps() -> None:
    """The writer shares its core with calls; each commitment has a salt of its own all the same."""
    redaction = Redaction()
    entries = []
    for _ in range(RECORDS):
        call = msgspec.structs.replace(a_call(10), peer="198.51.100.7")
        guard = Guard(redaction, call, pack.tools["write"], checked=True)
        entries.append((call, 1.0, 2.0, [guard], None))
    clerk, now = Clerk(), (3.0, 3.0)
    made: list[Draft] = []
    taken = steps(lambda: made.extend(*clerk.drafts(entries, now, AuditSettings()).values()))
    sides = [decode_side(draft.side or "") for draft in made]
    salts = {salt for side in sides for salt, _ in side.values()}

    assert taken <= RECORDS * MOST_WRITER_STEPS
    assert len(salts) == sum(map(len, sides)) == 2 * RECORDS

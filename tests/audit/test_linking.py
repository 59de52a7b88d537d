"""What the thread that writes records takes of the interpreter, which calls want as well."""

import asyncio
from pathlib import Path

from gatepost.audit.chain import Linker
from gatepost.audit.record import Body, draft
from gatepost.keyring import KeyRing
from gatepost.stores.sql.records import opened
from gatepost.stores.sql.scribe import Writer
from tests.audit.shelf import NOW
from tests.support.steps import steps

MOST_STEPS = 15
MOST_BATCH_STEPS = 140


async def made(path: Path) -> None:
    """The tables."""
    await (await opened(f"sqlite:///{path}")).aclose()


def test_a_record_costs_a_dozen_steps_and_a_batch_a_hundred_more(tmp_path: Path) -> None:
    """From drafts to the disk: numbered, hashed, joined, and the head with its proof."""
    asyncio.run(made(tmp_path / "records.db"))
    writer, linker = Writer(str(tmp_path / "records.db")), Linker(KeyRing.ephemeral())
    body = Body(at=int(NOW), kind="call", tenant="acme", tool="write", outcome="success")
    one = draft(body, {"caller": "{}", "arguments": "{}"})

    def written(number: int) -> int:
        taken = steps(lambda: writer.write(lambda: {"acme": [one] * number}, linker.link))
        linker.keep()
        return taken

    written(1)
    single, many = written(1), written(101)
    writer.close()

    assert (many - single) / 100 <= MOST_STEPS
    assert single <= MOST_BATCH_STEPS

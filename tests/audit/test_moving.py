"""A database that has a row for each record is brought up to date, and proves what it proved."""

import re
import shutil
from pathlib import Path

import pytest

from gatepost.keyring import KeyRing
from gatepost.stores.audit import Head
from gatepost.stores.sql import schema
from gatepost.stores.sql.records import database_of, migrate
from tests.audit.loot import Loot, loot
from tests.audit.shelf import ISSUER, shelf, tamper

REVISION = re.compile(r'^revision = "(\d+)"', re.MULTILINE)
COLUMNS = ("number", "at", "kind", "tool", "outcome", "subject", "body", "side", "hash")
"""Of the old table, behind the tenant."""
MANY = 450
"""More than are moved in two steps."""


@pytest.fixture(params=["sqlite", "postgresql"])
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database in which nothing is."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/records.db"
    url: str = request.getfixturevalue("postgres")
    return url


async def made_old(url: str, folder: Path) -> None:
    """Make the tables of the revision before."""
    before = folder / "migrations"
    shutil.copytree(schema.SCRIPTS, before, ignore=shutil.ignore_patterns("__pycache__"))
    for step in (before / "versions").glob("*.py"):
        if (number := REVISION.search(step.read_text())) is not None and number[1] > "0005":
            step.unlink()
    database = database_of(url)
    assert (await schema.migrate(database, before)).after == "0005"
    await database.aclose()


async def written(url: str, ring: KeyRing) -> Loot:
    """A trail with all that there may be: something pruned, somebody erased."""
    async with shelf("memory:", ring) as one:
        await one.fill()
        await one.erasure.erase_subject("acme", ISSUER, "bob")
        await one.erasure.prune("acme", one.now - 20 + 5.5)
        await one.note(2, subject="ünal\\")
        await one.sign()
        await one.note(1)
        await one.note(MANY, "globex")
        found = await loot(one, url)
        found.others = await one.records.of("globex").trail.rows(0, 2 * MANY)
        return found


def kept(at: Loot) -> list[str]:
    """Statements that put acme's trail, and globex's records, into the old tables."""
    owners = [("acme", row) for row in at.rows] + [("globex", row) for row in at.others]
    return [
        *(at.row("records", who, *(getattr(row, name) for name in COLUMNS)) for who, row in owners),
        *(
            at.row("checkpoints", "acme", one.number, one.statement, one.signature)
            for one in at.signed
        ),
        at.row("heads", *(getattr(at.end, name) for name in Head.__struct_fields__)),
    ]


@pytest.mark.requirement("AU1")
async def test_records_are_moved_as_they_are(old_url: str, tmp_path: Path) -> None:
    """The same numbers, bodies, sides and hashes, also behind a cut; the chain goes on."""
    ring = KeyRing.ephemeral()
    await made_old(old_url, tmp_path)
    before = await written(old_url, ring)
    await tamper(old_url, *kept(before))
    await migrate(old_url)
    async with shelf(old_url, ring) as one:
        after = await loot(one, old_url)
        others = await one.records.of("globex").trail.rows(0, 2 * MANY)
        seen = await one.verify()
        await one.note(1)
        later = await one.verify()

    assert after.rows == before.rows
    assert others == before.others
    assert (after.end, after.signed) == (before.end, before.signed)
    assert len(after.segments) < len(before.segments)
    assert (seen.bad, seen.erased, seen.last) == (None, 1, before.end.number)
    assert (later.bad, later.last) == (None, before.end.number + 1)


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize(
    ("change", "bad"),
    [
        ("UPDATE audit_records SET tool = 'x' WHERE tenant = 'acme' AND number = 9", 6),
        ("UPDATE audit_records SET body = 'none' WHERE tenant = 'acme' AND number = 9", 9),
        ("UPDATE audit_records SET side = 'none' WHERE tenant = 'acme' AND number = 9", 9),
        ("DELETE FROM audit_records WHERE tenant = 'acme' AND number = 9", 9),
    ],
    ids=["a column", "a body", "a side", "a record"],
)
async def test_what_was_tampered_with_is_moved_too(
    old_url: str, tmp_path: Path, change: str, bad: int
) -> None:
    """A migration must not be a way to wash a chain."""
    ring = KeyRing.ephemeral()
    await made_old(old_url, tmp_path)
    await tamper(old_url, *kept(await written(old_url, ring)), change)
    await migrate(old_url)
    async with shelf(old_url, ring) as one:
        seen = await one.verify()

    assert seen.bad == bad

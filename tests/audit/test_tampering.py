"""Whoever can write to the database but has no key is found out, and the first bad record named."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping

import msgspec
import pytest

from gatepost.stores.audit import Checkpoint, Head, Row
from tests.audit.shelf import Shelf, changed, shelf, tamper


class Loot(msgspec.Struct):
    """What an attacker reads before it writes: acme's 12 records, checkpoints 5 and 10, its end."""

    url: str
    rows: list[Row]
    signed: list[Checkpoint]
    end: Head
    others: list[Row]
    """Globex's."""

    def sql(self, value: bytes | str | int | None) -> str:
        """A value as the database writes it."""
        if value is None:
            return "NULL"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, bytes):
            sqlite = self.url.startswith("sqlite:")
            return f"x'{value.hex()}'" if sqlite else f"'\\x{value.hex()}'::bytea"
        return "'" + value.replace("'", "''") + "'"

    def set(self, number: int, **columns: bytes | str | int | None) -> str:
        """A statement that changes one of acme's records."""
        return update("records", f"number = {number}", self.assigned(columns))

    def set_head(self, **columns: bytes | str | int) -> str:
        return update("heads", "number > 0", self.assigned(columns))

    def set_checkpoint(self, number: int, **columns: str | int) -> str:
        return update("checkpoints", f"number = {number}", self.assigned(columns))

    def assigned(self, columns: Mapping[str, bytes | str | int | None]) -> str:
        return ", ".join(f"{name} = {self.sql(value)}" for name, value in columns.items())

    def row(self, table: str, *values: bytes | str | int | None) -> str:
        """A statement that adds a row."""
        told = ", ".join(map(self.sql, values))
        return f"INSERT INTO audit_{table} VALUES ({told})"  # noqa: S608  # the attacker's

    def insert(self, row: Row, number: int) -> str:
        """A statement that adds a record."""
        fields = [getattr(row, name) for name in Row.__struct_fields__[1:]]
        return self.row("records", "acme", number, *fields)

    def rechained(self, number: int) -> Iterable[str]:
        """Another reading of one record, and all hashes behind it made to fit."""
        previous = self.rows[number - 2].hash
        for row in self.rows[number - 1 :]:
            body = changed(row.body, outcome="denied") if row.number == number else row.body
            outcome = "denied" if row.number == number else row.outcome
            previous = hashlib.sha256(previous + body.encode()).digest()
            yield self.set(row.number, body=body, outcome=outcome, hash=previous)
        yield self.set_head(hash=previous)


def update(table: str, where: str, told: str) -> str:
    which = f"tenant = 'acme' AND {where}"
    return f"UPDATE audit_{table} SET {told} WHERE {which}"  # noqa: S608  # the attacker's


def drop(table: str, where: str) -> str:
    return f"DELETE FROM audit_{table} WHERE tenant = 'acme' AND {where}"  # noqa: S608  # the same


def move(table: str, before: int, after: int) -> str:
    return update(table, f"number = {before}", f"number = {after}")


def shifted(loot: Loot) -> list[str]:
    """A record between two others, and everything behind it moved along."""
    up = [move("records", number, number + 1) for number in range(12, 6, -1)]
    return [*up, loot.insert(loot.rows[6], 7)]


Act = Callable[[Loot], Iterable[str]]

TAMPERING: dict[str, tuple[Act, int]] = {
    # what is done                       and the record that is named
    "change number": (lambda at: [move("records", 12, 112)], 12),
    "change at": (lambda at: [at.set(7, at=1)], 7),
    "change kind": (lambda at: [at.set(7, kind="call")], 7),
    "change tool": (lambda at: [at.set(7, tool="x")], 7),
    "change outcome": (lambda at: [at.set(7, outcome="x")], 7),
    "change subject": (lambda at: [at.set(7, subject="x")], 7),
    "remove subject": (lambda at: [at.set(7, subject=None)], 7),
    "change body": (lambda at: [at.set(7, body=changed(at.rows[6].body, tool="x"))], 7),
    "respell body": (lambda at: [at.set(7, body=at.rows[6].body + " ")], 7),
    "empty body": (lambda at: [at.set(7, body="")], 7),
    "change hash": (lambda at: [at.set(7, hash=bytes(32))], 7),
    "change hash of the last": (lambda at: [at.set(12, hash=bytes(32))], 12),
    "change side": (lambda at: [at.set(7, side=at.rows[6].side.replace("alice", "mallo"))], 7),
    "replace side": (lambda at: [at.set(7, side=at.rows[5].side)], 7),
    "side that is none": (lambda at: [at.set(7, side="[1]")], 7),
    "remove side": (lambda at: [at.set(7, side=None, subject=None)], 7),
    "empty side": (lambda at: [at.set(7, side="{}", subject=None)], 7),
    "remove a part": (
        lambda at: [
            at.set(7, side=msgspec.json.encode({"caller": side_of(at.rows[6])["caller"]}).decode())
        ],
        7,
    ),
    "delete the first": (lambda at: [drop("records", "number = 1")], 1),
    "delete one": (lambda at: [drop("records", "number = 7")], 7),
    "delete one and close up": (
        lambda at: [
            drop("records", "number = 7"),
            *(move("records", number, number - 1) for number in range(8, 13)),
        ],
        7,
    ),
    "delete the last": (lambda at: [drop("records", "number = 12")], 12),
    "insert between": (shifted, 8),
    "insert behind": (lambda at: [at.insert(at.rows[11], 13)], 13),
    "reorder": (
        lambda at: [
            move("records", 6, 99),
            move("records", 7, 6),
            move("records", 99, 7),
        ],
        6,
    ),
    "swap between tenants": (
        lambda at: [
            drop("records", "number = 7"),
            at.insert(at.others[6], 7),
        ],
        7,
    ),
    "truncate": (lambda at: [drop("records", "number > 0")], 1),
    "truncate and forget the end": (
        lambda at: [drop("records", "number > 0"), drop("heads", "number > 0")],
        1,
    ),
    "cut before a checkpoint": (lambda at: [drop("records", "number > 8")], 9),
    "cut behind a checkpoint": (lambda at: [drop("records", "number > 10")], 11),
    "cut behind a checkpoint, with another end": (
        lambda at: [
            drop("records", "number > 10"),
            at.set_head(number=10, hash=at.rows[9].hash),
        ],
        10,
    ),
    "cut the last batch, with another end": (
        lambda at: [
            drop("records", "number > 11"),
            at.set_head(number=11, hash=at.rows[10].hash),
        ],
        11,
    ),
    "cut the first, as if their time was over": (
        lambda at: [
            drop("records", "number <= 5"),
            at.set_head(pruned=5),
        ],
        1,
    ),
    "re-chain without a key": (lambda at: at.rechained(7), 6),
    "re-chain behind the checkpoint": (lambda at: at.rechained(11), 11),
    "change a checkpoint's statement": (
        lambda at: [at.set_checkpoint(5, statement=changed(at.signed[0].statement, at=1))],
        5,
    ),
    "change a checkpoint's signature": (
        lambda at: [at.set_checkpoint(5, signature=at.signed[1].signature)],
        5,
    ),
    "signature that is none": (lambda at: [at.set_checkpoint(5, signature="ß")], 5),
    "checkpoint of an unknown key": (
        lambda at: [at.set_checkpoint(5, statement=changed(at.signed[0].statement, key="mine"))],
        10,
    ),
    "last checkpoint of an unknown key": (
        lambda at: [at.set_checkpoint(10, statement=changed(at.signed[1].statement, key="mine"))],
        10,
    ),
    "replace a checkpoint": (
        lambda at: [
            at.set_checkpoint(
                10, statement=at.signed[0].statement, signature=at.signed[0].signature
            )
        ],
        10,
    ),
    "move a checkpoint": (lambda at: [move("checkpoints", 10, 12)], 12),
    "delete the first checkpoint": (lambda at: [drop("checkpoints", "number = 5")], 10),
    "delete the last checkpoint": (lambda at: [drop("checkpoints", "number = 10")], 10),
    "delete all checkpoints": (lambda at: [drop("checkpoints", "number > 0")], 10),
    "change the end's number": (lambda at: [at.set_head(number=11)], 11),
    "change the end's hash": (lambda at: [at.set_head(hash=bytes(32))], 12),
    "change the end's cut": (lambda at: [at.set_head(pruned=5)], 1),
    "change the end's checkpoint": (lambda at: [at.set_head(checkpoint=5)], 5),
    "change the end's seal": (lambda at: [at.set_head(seal=bytes(32))], 10),
    "change the end's proof": (lambda at: [at.set_head(proof="mine.AAAA")], 11),
    "delete the end": (lambda at: [drop("heads", "number > 0")], 1),
}


def side_of(row: Row) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = msgspec.json.decode(row.side or "{}")
    return found


async def loot(one: Shelf, url: str) -> Loot:
    trail = one.records.of("acme").trail
    end = await trail.head()
    assert end is not None
    others = await one.records.of("globex").trail.rows(0, 99)
    return Loot(url, await trail.rows(0, 99), await trail.checkpoints(), end, others)


@pytest.mark.requirement("AU1")
async def test_every_tampering_is_found_and_the_first_bad_record_named(url: str) -> None:
    """The whole table on one trail, which is put back after each and then verifies."""
    async with shelf(url) as one:
        await one.fill()
        before = await loot(one, url)
        named, healed = {}, []
        for name, (act, _) in TAMPERING.items():
            await tamper(url, *act(before))
            named[name] = (await one.verify()).bad
            await tamper(url, *restored(before))
            healed.append((await one.verify()).bad)

    assert named == {name: number for name, (_, number) in TAMPERING.items()}
    assert set(healed) == {None}


def restored(at: Loot) -> list[str]:
    """Everything of acme as it was."""
    end = [getattr(at.end, name) for name in Head.__struct_fields__]
    return [
        *(drop(table, "number > 0") for table in ("records", "checkpoints", "heads")),
        *(at.insert(row, row.number) for row in at.rows),
        *(
            at.row("checkpoints", "acme", one.number, one.statement, one.signature)
            for one in at.signed
        ),
        at.row("heads", *end),
    ]


@pytest.mark.requirement("AU2")
async def test_a_rollback_of_everything_is_found_by_a_checkpoint_kept_elsewhere(url: str) -> None:
    """An older state is whole in itself; what was signed since then tells it."""
    async with shelf(url) as one:
        await one.note(3)
        await one.sign()
        await one.note(4)
        older = await loot(one, url)
        await one.note(3)
        kept = await one.sign()
        assert (await one.verify("acme", kept)).bad is None

        await tamper(url, *restored(older))
        alone, anchored = await one.verify(), await one.verify("acme", kept)
        await tamper(url, *(drop(t, "number > 0") for t in ("records", "checkpoints", "heads")))
        gone = await one.verify("acme", kept)

    assert (alone.bad, anchored.bad, gone.bad) == (None, 8, 1)


@pytest.mark.requirement("AU1")
async def test_a_server_does_not_cover_up_what_was_cut_off(url: str) -> None:
    """It goes on behind a shortened chain, and says there that something is missing."""
    async with shelf(url) as one:
        await one.fill()
        at = await loot(one, url)
        await tamper(
            url,
            drop("records", "number > 11"),
            at.set_head(number=11, hash=at.rows[10].hash),
        )
        await one.note(2)
        seen = await one.verify()
        await one.sign()
        later = await one.verify()

    assert (seen.bad, later.bad) == (12, 12)
    assert "the end of the chain is older than it was" in seen.problem


async def test_a_server_that_starts_anew_does_not_either(url: str) -> None:
    """It remembers nothing, and the end that it finds is not proven."""
    async with shelf(url) as one:
        await one.fill()
        at = await loot(one, url)
        await tamper(
            url,
            drop("records", "number > 11"),
            at.set_head(number=11, hash=at.rows[10].hash),
        )
        one.journal = one.process()
        await one.note(1)
        seen = await one.verify()

    assert seen.bad == 12
    assert "not by a key of the ring" in seen.problem


async def test_what_nobody_proves_is_not_signed(url: str) -> None:
    """A checkpoint of a forged end would vouch for it."""
    async with shelf(url) as one:
        await one.fill()
        at = await loot(one, url)
        await tamper(
            url,
            drop("records", "number > 11"),
            at.set_head(number=11, hash=at.rows[10].hash),
        )
        with pytest.raises(Exception, match="acme"):
            await one.sign()

        assert [found.number for found in await one.records.of("acme").trail.checkpoints()] == [
            5,
            10,
        ]


async def test_verify_may_look_while_servers_write(url: str) -> None:
    """What comes meanwhile is no tampering."""
    async with shelf(url) as one:
        await one.fill()
        writing = asyncio.ensure_future(one.note(40))
        seen = []
        while not writing.done():
            seen.append((await one.verify()).bad)
            await one.sign()
        await writing

    assert set(seen) == {None}

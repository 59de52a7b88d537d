"""Several writers of one tenant: a chain for each, which checkpoints tie together."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gatepost.audit.batches import RingLinker
from gatepost.audit.checkpoints import public_keys
from gatepost.audit.export import as_pem, exported, verify_lines
from gatepost.audit.record import read, search
from gatepost.audit.verify import VerificationResult, verify
from gatepost.cli.audit import verdict_text
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import AuditQuery
from gatepost.storage.backends import open_records
from gatepost.storage.leases import NUMBER_LEASE_S, NumberLease
from gatepost.storage.sql.postgresql import PostgresDatabase
from gatepost.storage.sql.records import SqlRecords
from tests.audit.conftest import ISSUER, AuditLog, audit_log, tamper, verified_by_hand
from tests.support import tools as process_tools
from tests.support.client import ResourceClient
from tests.support.issuers import Idp
from tests.support.processes import free_port
from tests.support.replicas import ReplicaProcesses


class ReplicaLog(AuditLog):
    """Records of several processes, which write in turn."""

    def use(self, number: int) -> None:
        """Let another process write from now on; its writer has that number."""
        self.writer = self.process()
        self.writer.number = number


@pytest.fixture
async def replicas(url: str) -> AsyncIterator[ReplicaLog]:
    """Yield three records of writer 1, three of writer 2 between them, and a checkpoint."""
    records = await open_records(url)
    log = ReplicaLog(records)
    for number in (1, 2) * 3:
        log.use(number)
        await log.note(1, subject=f"person{number}")
    await log.sign()
    yield log
    await log.aclose()
    await records.aclose()


def chain_ends(seen: VerificationResult) -> list[tuple[int, int, int, int]]:
    """Return writer, first, last and proven of each chain."""
    return [(chain.writer, chain.first, chain.last, chain.proven) for chain in seen.chains]


@pytest.mark.requirement("AU1")
async def test_each_writer_has_a_chain_and_pages_show_them_by_time(replicas: ReplicaLog) -> None:
    """One checkpoint covers both chains; a page continues where the one before ended."""
    await replicas.note(1)
    seen = await replicas.verify()
    ids, before = list[str](), None
    while page := await search(replicas.store, "acme", AuditQuery(limit=3, before=before)):
        ids += [record.id for record in page]
        before = page[-1].position
    (signed,) = await replicas.store.tenant_log("acme").checkpoints()
    (row,) = await replicas.store.tenant_log("acme").chain(2).rows(2, 1)

    assert (seen.bad_number, chain_ends(seen)) == (None, [(1, 1, 3, 3), (2, 1, 4, 3)])
    assert verdict_text(seen) == (
        "acme: 7 records are valid, 1 to 3; signed checkpoints cover records up to 3. "
        "Writer 2: 2-1 to 2-4; signed checkpoints cover records up to 2-3."
    )
    assert ids == ["2-4", "2-3", "3", "2-2", "2", "2-1", "1"]
    assert signed.number == 6
    assert read(row).id == "2-3"


@pytest.mark.requirement("AU6")
async def test_an_export_has_all_chains_and_verifies(replicas: ReplicaLog, tmp_path: Path) -> None:
    """The public key is enough; an export without one of the records does not verify."""
    await replicas.note(2)
    since = replicas.now
    await replicas.sign()
    await replicas.note(1)
    await replicas.sign()
    keys = public_keys(replicas.keyring)
    lines = [line async for line in exported(replicas.store, "acme")]
    later = [line async for line in exported(replicas.store, "acme", since=int(since * 1000) + 1)]
    seen, rest = verify_lines(lines, keys), verify_lines(later, keys)
    cut = verify_lines([line for line in lines if b'"number":2,"writer":2' not in line], keys)
    export, key = tmp_path / "acme.jsonl", tmp_path / "keys.pem"
    export.write_bytes(b"".join(lines))
    key.write_text(as_pem(keys))
    by_hand = verified_by_hand(export, key)

    assert (seen.bad_number, chain_ends(seen)) == (None, [(1, 1, 3, 3), (2, 1, 6, 6)])
    assert (rest.bad_number, chain_ends(rest)) == (None, [(2, 6, 6, 6)])
    assert (cut.bad_number, cut.writer) == (2, 2)
    assert (by_hand.stderr, by_hand.stdout) == ("", "9 records, 9 of them proven\n")

    await replicas.prune(replicas.now - 1)
    await replicas.sign()
    exported_lines = [line async for line in exported(replicas.store, "acme")]
    export.write_bytes(b"".join(exported_lines))
    pruned = verified_by_hand(export, key)
    export.write_bytes(b"".join(line for line in exported_lines if b'"number":7' not in line))
    shortened = verified_by_hand(export, key)

    assert (verify_lines(exported_lines, keys).bad_number, b'"after":6' in exported_lines[0]) == (
        None,
        True,
    )
    assert (pruned.stderr, pruned.stdout) == ("", "5 records, 5 of them proven\n")
    assert "AssertionError" in shortened.stderr


def delete_writer(number: int, *tables: str) -> list[str]:
    """Return statements that remove a writer from these tables."""
    return [f"DELETE FROM audit_{table} WHERE writer = {number}" for table in tables]  # noqa: S608  # the attacker's


UPDATE_OF_HEAD = "UPDATE audit_heads SET {} WHERE writer = 2"
WRITER_REMOVALS: dict[str, tuple[Iterable[str], tuple[int, int]]] = {
    "a writer": (delete_writer(2, "segments", "heads"), (2, 1)),
    "the first writer": (delete_writer(1, "segments", "heads"), (1, 1)),
    "its records": (delete_writer(2, "segments"), (2, 1)),
    "its end": (delete_writer(2, "heads"), (2, 1)),
    "its last record": (
        [
            "DELETE FROM audit_segments WHERE writer = 2 AND first = 3",
            UPDATE_OF_HEAD.format("number = 2"),
        ],
        (2, 3),
    ),
    "its end's number": ([UPDATE_OF_HEAD.format("number = 2")], (2, 3)),
    "its end's cut": ([UPDATE_OF_HEAD.format("pruned = 2")], (2, 1)),
    "its end's proof": ([UPDATE_OF_HEAD.format("proof = 'mine.AAAA'")], (2, 3)),
    "its number": (
        [
            f"UPDATE audit_{table} SET writer = 3 WHERE writer = 2 AND tenant = 'acme'"  # noqa: S608  # the attacker's
            for table in ("segments", "heads")
        ],
        (2, 1),
    ),
    "the ends of both": (
        [
            f"UPDATE audit_{table} SET writer = {after} WHERE writer = {before} AND tenant = 'acme'"  # noqa: S608  # the attacker's
            for table in ("segments", "heads")
            for before, after in ((2, 9), (1, 2), (9, 1))
        ],
        (1, 1),
    ),
    "the end of the checkpoints": (delete_writer(0, "heads"), (1, 3)),
}


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("name", WRITER_REMOVALS)
async def test_verify_finds_missing_records_of_any_writer(
    replicas: ReplicaLog, url: str, name: str
) -> None:
    """The result names the writer and the first missing number."""
    statements, bad = WRITER_REMOVALS[name]
    await tamper(url, *statements)
    seen = await replicas.verify()

    assert (seen.writer, seen.bad_number) == bad


@pytest.mark.requirement("AU2")
async def test_a_checkpoint_kept_elsewhere_shows_a_missing_writer(
    replicas: ReplicaLog, url: str
) -> None:
    """The attacker has removed every row that names the writer."""
    (checkpoint,) = await replicas.store.tenant_log("acme").checkpoints()
    gone = ["DELETE FROM audit_checkpoints", *delete_writer(0, "heads")]
    await tamper(url, *delete_writer(2, "segments", "heads"), *gone)
    alone, anchored = await replicas.verify(), await replicas.verify("acme", checkpoint)

    assert alone.bad_number is None
    assert (anchored.writer, anchored.bad_number) == (2, 1)


@pytest.mark.requirement("AU1")
async def test_a_chain_that_is_shorter_than_its_checkpoint_is_not_signed(
    replicas: ReplicaLog, url: str
) -> None:
    """New records of another writer do not hide the missing ones."""
    await tamper(url, *delete_writer(2, "segments", "heads"))
    replicas.use(1)
    await replicas.note(2)
    with pytest.raises(Exception, match="acme"):
        await replicas.sign()
    seen = await replicas.verify()

    assert (seen.writer, seen.bad_number) == (2, 1)


@pytest.mark.requirement("AU4", "AU5")
async def test_erasure_and_retention_apply_to_every_writer(replicas: ReplicaLog) -> None:
    """Each chain has a record of them, and verifies."""
    erased = await replicas.erasure.erase_tenant("acme")
    whole = await replicas.verify()
    await replicas.sign()
    removed = await replicas.prune(replicas.now + 1)
    await replicas.sign()
    seen = await replicas.verify()
    again = await replicas.prune(replicas.now + 1)
    records = await replicas.store.tenant_log("acme").find(AuditQuery())

    assert (erased, whole.bad_number, whole.erased) == (6, None, 6)
    assert (removed, seen.bad_number, chain_ends(seen)) == (8, None, [(1, 5, 5, 5), (2, 5, 5, 5)])
    assert again == 10
    assert [row.kind for row in records] == ["retention", "retention"]
    assert (await replicas.verify()).bad_number is None


@pytest.mark.requirement("AU4")
async def test_one_person_is_erased_in_every_chain(replicas: ReplicaLog) -> None:
    """Data of other persons stays."""
    erased = await replicas.erasure.erase_subject("acme", ISSUER, "person2")
    seen = await replicas.verify()

    assert (erased, seen.bad_number, seen.erased) == (3, None, 3)


@pytest.mark.requirement("AU1")
async def test_processes_with_the_same_writer_number_share_one_chain(url: str) -> None:
    """Every record is in the chain once."""
    async with audit_log(url) as one:
        others = [await open_records(url) for _ in range(2)]
        logs = [one, *(AuditLog(records, one.keyring) for records in others)]
        await asyncio.gather(*(log.note(12) for log in logs))
        seen = await one.verify()
        for log, records in zip(logs[1:], others, strict=True):
            await log.aclose()
            await records.aclose()

    assert (seen.bad_number, chain_ends(seen)) == (None, [(1, 1, 36, 0)])


async def test_a_writer_with_a_new_number_continues_that_numbers_chain(
    replicas: ReplicaLog,
) -> None:
    """Back at its first number, it continues after another process's records."""
    first = replicas.writer
    first.number = 3
    await replicas.note(1)
    replicas.use(2)
    await replicas.note(1)
    replicas.writer, first.number = first, 2
    await replicas.note(1)
    seen = await replicas.verify()

    assert (seen.bad_number, chain_ends(seen)) == (None, [(1, 1, 3, 3), (2, 1, 5, 3), (3, 1, 1, 0)])


async def test_processes_take_the_lowest_free_writer_number(url: str) -> None:
    """A process moves to a lower free number; a killed process keeps its number for a while."""
    async with audit_log(url) as log:
        clock = lambda: log.now  # noqa: E731
        writers = [log.process() for _ in range(3)]
        leases = [
            NumberLease(log.records, "audit_writer", writer, clock=clock) for writer in writers
        ]

        async def numbers(*which: int) -> list[int]:
            for at in which:
                await leases[at].take()
            return [writer.number for writer in writers]

        async with leases[0].running():
            begun = await numbers(1, 2)
        moved = await numbers(1, 2)
        log.now += NUMBER_LEASE_S - 1
        renewed = await numbers(1)
        log.now += 2
        expired = await numbers(0, 2)

    assert begun == [1, 2, 3]
    assert moved == [1, 1, 2]
    assert renewed == [1, 1, 2]
    assert expired == [2, 1, 3]


NOTE_TRIGGER = """
CREATE TABLE noted (setting text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO noted VALUES (current_setting('synchronous_commit'));
    RETURN NEW;
END $$;
CREATE TRIGGER note BEFORE INSERT ON audit_segments FOR EACH ROW EXECUTE FUNCTION note();
"""


async def test_a_batch_is_durable_although_the_session_has_synchronous_commit_off(
    migrated_postgres: str,
) -> None:
    """PgBouncer in transaction mode shares sessions with other programs."""
    await tamper(migrated_postgres, NOTE_TRIGGER)
    async with audit_log(migrated_postgres) as log:
        await log.note(1)
        assert isinstance(log.records, SqlRecords)
        database = log.records.database
        assert isinstance(database, PostgresDatabase)
        async with database.engine.connect() as connection:
            await connection.exec_driver_sql("SET synchronous_commit = off")
        await log.note(1)
        async with database.engine.connect() as connection:
            (after,) = (await connection.exec_driver_sql("SHOW synchronous_commit")).one()
            setting = (await connection.exec_driver_sql("SELECT setting FROM noted")).all()

    assert after == "off"
    assert [setting for (setting,) in setting] == ["on", "on"]


async def verification_result(url: str, ring: Path) -> VerificationResult:
    """Return what an operator reads about acme."""
    records, keyring = await open_records(url), KeyRing.load(f"file:{ring}")
    audit_store = records.open_audit(RingLinker(keyring))
    seen = await verify(audit_store, "acme", public_keys(keyring), keyring)
    await records.aclose()
    return seen


@pytest.mark.requirement("AU1")
@pytest.mark.parametrize("number", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_replicas_write_separate_chains_and_one_survives_a_kill(
    idp: Idp, migrated_postgres: str, tmp_path: Path, number: int
) -> None:
    """The chain of the killed replica verifies, and the next process continues."""
    storage = {"database": migrated_postgres}
    replicas = ReplicaProcesses(idp, tmp_path, storage, tools=Path(process_tools.__file__))
    replicas.ports += [free_port() for _ in range(number - 2)]
    token = replicas.token(org_id="acme")
    answered = 0

    def call(port: int) -> int:
        client = ResourceClient(replicas.url)
        client.port = port
        answers = [client.call(token, "pid") for _ in range(5)]
        return sum(answer.status == 200 for answer in answers)

    with replicas.running(), ThreadPoolExecutor(number) as threads:
        answered += sum(threads.map(call, replicas.ports))
        replicas.kill(0)
        answered += sum(threads.map(call, replicas.ports[1:]))
        replicas.restart(0)
        answered += sum(threads.map(call, replicas.ports))
    seen = asyncio.run(verification_result(migrated_postgres, tmp_path / "keyring.json"))

    assert seen.bad_number is None
    assert seen.records >= answered == 5 * (3 * number - 1)
    # The one that was started again has the next number until the lease of the killed one is over.
    assert len(seen.chains) in (number, number + 1)

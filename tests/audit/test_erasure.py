"""What is erased is gone, and what stays still verifies."""

import json
from pathlib import Path

import msgspec
import pytest

from gatepost.audit.record import RecordedPerson, search
from gatepost.audit.retention import Retention
from gatepost.secrets.keyring import KeyRing, create, rotate
from gatepost.storage.audit import AuditQuery
from gatepost.storage.sql.sqlite_audit_connection import empty_log
from tests.audit.conftest import ISSUER, AuditLog, audit_log, person, stolen_data, tamper


async def stored_text(log: AuditLog, tenant: str = "acme") -> str:
    """Return all that the database holds of a tenant, as text."""
    tenant_log = log.store.tenant_log(tenant)
    return repr(await tenant_log.chain(1).rows(0, 1000)) + repr(await tenant_log.checkpoints())


@pytest.mark.requirement("AU4")
async def test_the_chain_verifies_after_a_person_is_erased(url: str) -> None:
    """The person's data is gone, other records are unchanged, and verify tells the number."""
    async with audit_log(url) as log:
        await log.note(2, subject="carol")
        await log.note(2, subject="dave")
        await log.sign()
        await log.writer.events.note(
            "acme",
            "grant",
            outcome="granted",
            caller=person("dave"),
            person=RecordedPerson(ISSUER, "carol"),
            private={"reason": "carol asked for it"},
        )
        await log.note(1, "globex", subject="carol")
        gone = await log.erasure.erase_subject("acme", ISSUER, "carol")
        remaining, theirs = await stored_text(log), await stored_text(log, "globex")
        seen = await log.verify()
        again = await log.erasure.erase_subject("acme", ISSUER, "carol")

    assert (gone, again) == (3, 0)
    assert "carol" not in remaining
    assert "dave" in remaining
    assert "carol" in theirs
    assert (seen.bad_number, seen.erased, seen.records) == (None, 3, 6)


@pytest.mark.requirement("AU4", "AU10")
async def test_the_address_of_a_person_is_erased_with_them(url: str) -> None:
    """The address is only in the erasable details, and the chain verifies afterwards."""
    async with audit_log(url) as log:
        for who, peer in (("carol", "203.0.113.9"), ("dave", "203.0.113.10")):
            await log.writer.events.note(
                "acme", "signin", outcome="in", caller=person(who), peer=peer
            )
        tenant_log = log.store.tenant_log("acme")
        bodies = [row.body for row in await tenant_log.chain(1).rows(0, 10)]
        kept_rows, whole = await stored_text(log), await log.verify()
        await log.erasure.erase_subject("acme", ISSUER, "carol")
        remaining, seen = await stored_text(log), await log.verify()

    assert "203.0.113" not in "".join(bodies)
    assert "203.0.113.9\\" in kept_rows
    assert "203.0.113.9\\" not in remaining
    assert "203.0.113.10\\" in remaining
    assert (whole.bad_number, seen.bad_number, seen.erased) == (None, None, 1)


@pytest.mark.requirement("AU4")
async def test_a_person_of_the_same_name_at_another_issuer_is_not_erased(url: str) -> None:
    """Two issuers of one tenant may both have a subject `alice`."""
    async with audit_log(url) as log:
        await log.note(1)
        gone = await log.erasure.erase_subject("acme", "https://other.example.com", "alice")

        assert gone == 0
        assert "alice" in await stored_text(log)


@pytest.mark.requirement("AU4")
async def test_an_erasure_includes_revocations_without_an_issuer(url: str) -> None:
    """`gatepost revoke --subject` records a subject without an issuer."""
    async with audit_log(url) as log:
        await log.writer.events.note(
            "acme", "revocation", outcome="revoked", person=RecordedPerson("", "carol")
        )
        await log.writer.events.note(
            "acme", "revocation", outcome="revoked", person=RecordedPerson("", "dave")
        )
        gone = await log.erasure.erase_subject("acme", ISSUER, "carol")

        assert gone == 1
        assert "carol" not in await stored_text(log)


@pytest.mark.requirement("AU4")
async def test_erasing_an_actor_erases_the_detail_that_also_names_the_user(url: str) -> None:
    """The record of the call names both, in one detail."""
    async with audit_log(url) as log:
        both = RecordedPerson(ISSUER, "alice", actor="carol")
        await log.writer.events.note("acme", "approval", outcome="requested", person=both)
        gone = await log.erasure.erase_subject("acme", ISSUER, "carol")

        assert gone == 1
        assert "carol" not in await stored_text(log)


async def test_the_chain_verifies_after_a_tenant_is_erased(url: str) -> None:
    """Names and reasons are erased; actions and times stay until their retention ends."""
    async with audit_log(url) as log:
        await log.fill()
        await log.writer.events.note("acme", "token", outcome="expired")
        tenant_log = log.store.tenant_log("acme")
        counts, filled = [await tenant_log.count(0, 3_600_000)], await stored_text(log)
        await log.erasure.erase_tenant("acme")
        counts.append(await tenant_log.count(0, 3_600_000))
        remaining, seen = await stored_text(log), await log.verify()

    assert [len(count) for count in counts] == [1, 0]
    # With its quotation mark: a signature may contain three letters by chance.
    names = ["alice", '"bob']
    assert [name in filled for name in names] == [True, True]
    assert [name in remaining for name in (*names, "looked at")] == [False, False, False]
    assert (seen.bad_number, seen.erased) == (None, 12)


async def test_a_tampered_person_detail_does_not_prevent_an_erasure(url: str) -> None:
    """An attacker who changed one detail could otherwise block every erasure."""
    async with audit_log(url) as log:
        await log.fill()
        at = await stolen_data(log, url)
        side = json.loads(at.rows[6].side or "")
        side["caller"][1] = '{"subject":"carol"}'
        await tamper(url, *at.change_record_7(side=json.dumps(side)))
        [record] = [row for row in await search(log.store, "acme", AuditQuery()) if row.number == 7]
        gone = await log.erasure.erase_subject("acme", ISSUER, "erin")
        seen = await log.verify()

    assert record.caller is None
    assert (gone, seen.bad_number, seen.erased) == (1, None, 1)


@pytest.mark.requirement("AU1")
async def test_verify_finds_an_erasure_without_a_record(url: str) -> None:
    """The test removes details of one record beside a recorded erasure."""
    async with audit_log(url) as log:
        await log.fill()
        await log.erasure.erase_subject("acme", ISSUER, "bob")
        at = await stolen_data(log, url)
        without = msgspec.structs.replace(at.rows[3], side=None)
        await tamper(url, *at.replace_segment(3, [at.rows[2], without, at.rows[4]]))
        seen = await log.verify()

    assert (seen.bad_number, seen.erased) == (4, 2)


@pytest.mark.requirement("AU5")
async def test_records_after_their_retention_are_removed_and_the_rest_verifies(url: str) -> None:
    """Records are removed up to the last checkpoint, and the removal is recorded."""
    async with audit_log(url) as log:
        await log.fill()
        early = log.now - 20 + 5.5  # between records 5 and 6
        through = await log.prune(early)
        seen = await log.verify()
        nothing = await log.prune(early)
        more = await log.prune(log.now + 1)
        await log.note(1)
        later = await log.verify()
        rows = await log.store.tenant_log("acme").chain(1).rows(0, 1000)

    assert (through, nothing, more) == (5, 0, 10)
    assert (seen.bad_number, seen.records, seen.chains[0].last) == (None, 8, 13)
    assert (later.bad_number, later.chains[0].last) == (None, 15)
    assert [(row.number, row.kind) for row in rows] == [
        (11, "approval"),
        (12, "approval"),
        (13, "retention"),
        (14, "retention"),
        (15, "approval"),
    ]


@pytest.mark.requirement("AU5")
async def test_records_are_removed_after_the_configured_retention_days(
    url: str, tmp_path: Path
) -> None:
    """The server removes signed records older than the configured days; 0 keeps all of them."""
    create(tmp_path / "ring.json")
    ring = KeyRing.load(f"file:{tmp_path}/ring.json")
    async with audit_log(url, ring) as log:
        await log.note(4)
        remaining = []
        for days in (0, 3):
            writer = log.process(retention_days=days)
            retention = Retention(log.records, ring, writer, clock=lambda: log.now)
            await retention.signer.sign()
            log.now += 4 * 86_400
            await retention.prune()
            remaining.append(len(await log.store.tenant_log("acme").chain(1).rows(0, 99)))
        seen = await log.verify()

    assert remaining == [4, 1]
    assert seen.bad_number is None


async def test_chains_verify_after_key_rotations(url: str, tmp_path: Path) -> None:
    """Each key signs a checkpoint, also without calls, after the first key has left the ring."""
    path = tmp_path / "ring.json"
    create(path)
    ring = KeyRing.load(f"file:{path}")
    async with audit_log(url, ring) as log:
        await log.note(3)
        first = ring.current.id
        for _ in range(3):
            rotate(path, keep=1)
            ring.reread()
            retention = Retention(log.records, ring, log.writer, clock=lambda: log.now)
            await retention.signer.sign()
        assert ring.find(first) is None
        signed = await log.store.tenant_log("acme").checkpoints()
        await log.note(1)
        seen = await log.verify()

    assert len({json.loads(each.statement)["key"] for each in signed}) == 3
    assert (seen.bad_number, seen.records) == (None, 7)


@pytest.mark.requirement("AU4")
async def test_erased_data_is_in_no_page_of_the_database_file(tmp_path: Path) -> None:
    """Neither shared rows nor free pages contain it."""
    file = tmp_path / "records.db"
    url = f"sqlite:///{file}"
    async with audit_log(url) as log:
        for _ in range(4):
            await log.note_together(*["alice", "carol"] * 20)
        empty_log(url)
        before = file.read_bytes().count(b"carol")
        await log.note_unmerged(subject="carol")
        await log.erasure.erase_subject("acme", ISSUER, "carol")
        empty_log(url)
        after = b"".join(each.read_bytes() for each in sorted(tmp_path.glob("records.db*")))  # noqa: ASYNC240  # a few files

    assert (before, after.count(b"carol"), after.count(b"alice")) == (80, 0, 80)


async def test_a_search_does_not_find_erased_data(url: str) -> None:
    """The search uses the text and the subject."""
    async with audit_log(url) as log:
        await log.note(1, subject="carol")
        before = await search(log.store, "acme", AuditQuery(text="CAROL"))
        await log.erasure.erase_subject("acme", ISSUER, "carol")
        by_text = await search(log.store, "acme", AuditQuery(text="carol"))
        by_subject = await search(log.store, "acme", AuditQuery(subject="carol"))
        (row,) = await search(log.store, "acme", AuditQuery(kind="approval"))

    assert (len(before), by_text, by_subject) == (1, [], [])
    assert row.erased
    assert row.caller is None

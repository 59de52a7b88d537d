"""What is erased is gone, and what stays still verifies."""

import json
from pathlib import Path

import msgspec
import pytest

from gatepost.audit.record import RecordedPerson, search
from gatepost.audit.retention import Retention
from gatepost.secrets.keyring import KeyRing, create, rotate
from gatepost.storage.audit import AuditQuery
from gatepost.storage.sql.sqlite import empty_log
from tests.audit.conftest import ISSUER, AuditLog, audit_log, person, stolen_data, tamper


async def everything(one: AuditLog, tenant: str = "acme") -> str:
    """All that the database holds of a tenant, as text."""
    trail = one.records.of(tenant).trail
    return repr(await trail.chain(1).rows(0, 1000)) + repr(await trail.checkpoints())


@pytest.mark.requirement("AU4")
async def test_a_person_is_erased_and_the_chain_is_whole(url: str) -> None:
    """No data of hers is left, records of others are as they were, and verify says how many."""
    async with audit_log(url) as one:
        await one.note(2, subject="carol")
        await one.note(2, subject="dave")
        await one.sign()
        await one.writer.note(
            "acme",
            "grant",
            outcome="granted",
            caller=person("dave"),
            about=RecordedPerson(ISSUER, "carol"),
            private={"reason": "carol asked for it"},
        )
        await one.note(1, "globex", subject="carol")
        gone = await one.erasure.erase_subject("acme", ISSUER, "carol")
        left, theirs = await everything(one), await everything(one, "globex")
        seen = await one.verify()
        again = await one.erasure.erase_subject("acme", ISSUER, "carol")

    assert (gone, again) == (3, 0)
    assert "carol" not in left
    assert "dave" in left
    assert "carol" in theirs
    assert (seen.bad, seen.erased, seen.records) == (None, 3, 6)


@pytest.mark.requirement("AU4", "AU10")
async def test_an_address_goes_with_its_person(url: str) -> None:
    """It is nowhere but in what can be erased, and the commitment to it proves what stays."""
    async with audit_log(url) as one:
        for who, peer in (("carol", "203.0.113.9"), ("dave", "203.0.113.10")):
            await one.writer.note("acme", "signin", outcome="in", caller=person(who), peer=peer)
        trail = one.records.of("acme").trail
        bodies = [row.body for row in await trail.chain(1).rows(0, 10)]
        kept, whole = await everything(one), await one.verify()
        await one.erasure.erase_subject("acme", ISSUER, "carol")
        left, seen = await everything(one), await one.verify()

    assert "203.0.113" not in "".join(bodies)
    assert "203.0.113.9\\" in kept
    assert "203.0.113.9\\" not in left
    assert "203.0.113.10\\" in left
    assert (whole.bad, seen.bad, seen.erased) == (None, None, 1)


@pytest.mark.requirement("AU4")
async def test_a_person_of_the_same_name_in_another_tenant_stays(url: str) -> None:
    """A subject is its issuer's: two issuers of one tenant may both know an alice."""
    async with audit_log(url) as one:
        await one.note(1)
        gone = await one.erasure.erase_subject("acme", "https://other.example.com", "alice")

        assert gone == 0
        assert "alice" in await everything(one)


@pytest.mark.requirement("AU4")
async def test_a_revocation_that_named_no_issuer_is_about_the_person(url: str) -> None:
    """`gatepost revoke --subject` leaves a name that an erasure by issuer must reach as well."""
    async with audit_log(url) as one:
        await one.writer.note(
            "acme", "revocation", outcome="revoked", about=RecordedPerson("", "carol")
        )
        await one.writer.note(
            "acme", "revocation", outcome="revoked", about=RecordedPerson("", "dave")
        )
        gone = await one.erasure.erase_subject("acme", ISSUER, "carol")

        assert gone == 1
        assert "carol" not in await everything(one)


@pytest.mark.requirement("AU4")
async def test_an_erased_actor_is_erased_with_the_user_it_acted_for(url: str) -> None:
    """The record of the call names both, in one detail."""
    async with audit_log(url) as one:
        both = RecordedPerson(ISSUER, "alice", actor="carol")
        await one.writer.note("acme", "approval", outcome="requested", about=both)
        gone = await one.erasure.erase_subject("acme", ISSUER, "carol")

        assert gone == 1
        assert "carol" not in await everything(one)


async def test_a_tenant_is_erased_and_its_chain_is_whole(url: str) -> None:
    """Names and reasons are erased; what was done and when stays until its retention ends."""
    async with audit_log(url) as one:
        await one.fill()
        await one.writer.note("acme", "token", outcome="expired")
        trail = one.records.of("acme").trail
        counts = [await trail.count(0, 3_600_000)]
        await one.erasure.erase_tenant("acme")
        counts.append(await trail.count(0, 3_600_000))
        left, seen = await everything(one), await one.verify()

    assert [len(found) for found in counts] == [1, 0]
    assert not any(word in left for word in ("alice", "bob", "looked at"))
    assert (seen.bad, seen.erased) == (None, 12)


async def test_a_person_without_an_issuer_is_erased_with_any(url: str) -> None:
    """An attacker who changed one detail could otherwise keep everyone from being erased."""
    async with audit_log(url) as one:
        await one.fill()
        at = await stolen_data(one, url)
        side = json.loads(at.rows[6].side or "")
        side["caller"][1] = '{"subject":"carol"}'
        await tamper(url, *at.seven(side=json.dumps(side)))
        [found] = [
            row for row in await search(one.records, "acme", AuditQuery()) if row.number == 7
        ]
        gone = await one.erasure.erase_subject("acme", ISSUER, "erin")
        seen = await one.verify()

    assert found.caller is None
    assert (gone, seen.bad, seen.erased) == (1, None, 1)


@pytest.mark.requirement("AU1")
async def test_an_unrecorded_erasure_is_found(url: str) -> None:
    """Also one beside another that was."""
    async with audit_log(url) as one:
        await one.fill()
        await one.erasure.erase_subject("acme", ISSUER, "bob")
        at = await stolen_data(one, url)
        without = msgspec.structs.replace(at.rows[3], side=None)
        await tamper(url, *at.instead(3, [at.rows[2], without, at.rows[4]]))
        seen = await one.verify()

    assert (seen.bad, seen.erased) == (4, 2)


@pytest.mark.requirement("AU5")
async def test_old_records_go_and_the_rest_verifies(url: str) -> None:
    """Up to the last checkpoint before the time; that they are gone is on record."""
    async with audit_log(url) as one:
        await one.fill()
        early = one.now - 20 + 5.5  # between records 5 and 6
        through = await one.prune(early)
        seen = await one.verify()
        nothing = await one.prune(early)
        more = await one.prune(one.now + 1)
        await one.note(1)
        later = await one.verify()
        left = await one.records.of("acme").trail.chain(1).rows(0, 1000)

    assert (through, nothing, more) == (5, 0, 10)
    assert (seen.bad, seen.records, seen.chains[0].last) == (None, 8, 13)
    assert (later.bad, later.chains[0].last) == (None, 15)
    assert [(row.number, row.kind) for row in left] == [
        (11, "approval"),
        (12, "approval"),
        (13, "retention"),
        (14, "retention"),
        (15, "approval"),
    ]


@pytest.mark.requirement("AU5")
async def test_retention_is_a_setting(url: str, tmp_path: Path) -> None:
    """A server removes what is older than so many days, once it is signed; 0 keeps everything."""
    create(tmp_path / "ring.json")
    ring = KeyRing.load(f"file:{tmp_path}/ring.json")
    async with audit_log(url, ring) as one:
        await one.note(4)
        kept = []
        for days in (0, 3):
            writer = one.process(retention_days=days)
            retention = Retention(one.records, ring, writer, clock=lambda: one.now)
            await retention.signer.sign()
            one.now += 4 * 86_400
            await retention.prune()
            kept.append(len(await one.records.of("acme").trail.chain(1).rows(0, 99)))
        seen = await one.verify()

    assert kept == [4, 1]
    assert seen.bad is None


async def test_rotated_keys_go_on_proving(url: str, tmp_path: Path) -> None:
    """Also of a tenant without calls, until the first key has fallen out of the ring."""
    path = tmp_path / "ring.json"
    create(path)
    ring = KeyRing.load(f"file:{path}")
    async with audit_log(url, ring) as one:
        await one.note(3)
        first = ring.current.id
        for _ in range(3):
            rotate(path, keep=1)
            ring.reread()
            retention = Retention(one.records, ring, one.writer, clock=lambda: one.now)
            await retention.signer.sign()
        assert ring.find(first) is None
        signed = await one.records.of("acme").trail.checkpoints()
        await one.note(1)
        seen = await one.verify()

    assert len({json.loads(each.statement)["key"] for each in signed}) == 3
    assert (seen.bad, seen.records) == (None, 7)


@pytest.mark.requirement("AU4")
async def test_what_was_erased_stands_in_no_page_of_the_file(tmp_path: Path) -> None:
    """Neither beside what was written together with it, nor in room that is free now."""
    file = tmp_path / "records.db"
    url = f"sqlite:///{file}"
    async with audit_log(url) as one:
        for _ in range(4):
            await one.together(*["alice", "carol"] * 20)
        empty_log(url)
        before = file.read_bytes().count(b"carol")
        await one.unmerged(subject="carol")
        await one.erasure.erase_subject("acme", ISSUER, "carol")
        empty_log(url)
        after = b"".join(each.read_bytes() for each in sorted(tmp_path.glob("records.db*")))  # noqa: ASYNC240  # a few files

    assert (before, after.count(b"carol"), after.count(b"alice")) == (80, 0, 80)


async def test_what_was_erased_is_found_no_more(url: str) -> None:
    """Neither by its text nor by its subject."""
    async with audit_log(url) as one:
        await one.note(1, subject="carol")
        before = await search(one.records, "acme", AuditQuery(text="CAROL"))
        await one.erasure.erase_subject("acme", ISSUER, "carol")
        by_text = await search(one.records, "acme", AuditQuery(text="carol"))
        by_subject = await search(one.records, "acme", AuditQuery(subject="carol"))
        (row,) = await search(one.records, "acme", AuditQuery(kind="approval"))

    assert (len(before), by_text, by_subject) == (1, [], [])
    assert row.erased
    assert row.caller is None

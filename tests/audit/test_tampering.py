"""Verification finds changes to the database by anyone without the key, and names the first."""

import asyncio
from collections.abc import Callable, Iterable

import msgspec
import pytest

from gatepost.audit.events import RECORDED_PER_KIND
from gatepost.storage.audit import AuditQuery
from gatepost.storage.audit_segments import Damaged
from gatepost.tools.offers.offer import Call, Failure
from tests.audit.conftest import (
    ISSUER,
    StolenData,
    audit_log,
    delete,
    delete_all,
    edited,
    edited_body,
    move,
    person,
    side_with,
    stolen_data,
    tamper,
    update,
)


def restore_all(at: StolenData) -> list[str]:
    """Return statements that restore everything of acme."""
    return [
        *delete_all(),
        *map(at.insert, at.segments),
        *(
            at.row(
                "checkpoints", "acme", checkpoint.number, checkpoint.statement, checkpoint.signature
            )
            for checkpoint in at.signed
        ),
        *(at.row("heads", *msgspec.structs.astuple(end)) for end in at.ends),
    ]


Act = Callable[[StolenData], Iterable[str]]

COLUMNS: dict[str, tuple[Act, int]] = {
    # what is done to a segment's columns              and the record that is named
    "first, of the last": (lambda at: [at.set(12, first=112)], 12),
    "first, further on": (lambda at: [at.set(6, first=7)], 6),
    "first, further back": (lambda at: [at.set(9, first=8)], 8),
    "last, further on": (lambda at: [at.set(6, last=9)], 9),
    "last, further back": (lambda at: [at.set(6, last=7)], 6),
    "last, before all": (lambda at: [at.set(6, last=-1)], 6),
    "first and last": (lambda at: [move(12, 100)], 12),
    "since": (lambda at: [at.set(6, since=at.segments[3].since - 1)], 6),
    "until": (lambda at: [at.set(6, until=at.segments[3].until + 1)], 6),
    "counts": (
        lambda at: [at.set(6, counts=at.segments[3].counts.replace("deploy", "destroy"))],
        6,
    ),
    "counts, the number": (lambda at: [at.set(6, counts=at.segments[4].counts)], 6),
    "counts, another spelling": (lambda at: [at.set(6, counts=at.segments[3].counts + " ")], 6),
    "counts that are none": (lambda at: [at.set(6, counts="none")], 6),
    "records of another": (lambda at: [at.set(6, records=at.segments[2].records)], 6),
    "no array": (lambda at: [at.set(6, records=at.segments[3].records[1:])], 6),
    "nothing": (lambda at: [at.set(6, records="")], 6),
    "an empty array": (lambda at: [at.set(6, records="[]")], 6),
    "no JSON": (lambda at: [at.set(6, records="[nonsense]")], 6),
    "no JSON from the middle on": (
        lambda at: [at.set(6, records=at.segments[3].records[:-200] + "]")],
        8,
    ),
    "too deep for any reader": (lambda at: [at.set(6, records="[" * 9999 + "]" * 9999)], 6),
}

RECORDS: dict[str, tuple[Act, int]] = {
    # what is done to records, the columns made to fit
    "number": (lambda at: at.change_record_7(body=edited_body(at.rows[6], number=70)), 7),
    "at": (lambda at: at.change_record_7(body=edited_body(at.rows[6], at=1)), 7),
    "kind": (lambda at: at.change_record_7(body=edited_body(at.rows[6], kind="call")), 7),
    "tool": (lambda at: at.change_record_7(body=edited_body(at.rows[6], tool="x")), 7),
    "outcome": (lambda at: at.change_record_7(body=edited_body(at.rows[6], outcome="x")), 7),
    "commitments": (lambda at: at.change_record_7(body=edited_body(at.rows[6], commitments={})), 7),
    "body of another kind": (lambda at: at.edit_record_7('{"number":7', '[{"number":7'), 7),
    "body, another spelling": (lambda at: at.change_record_7(body=at.rows[6].body + " "), 7),
    "body, too deep": (
        lambda at: at.edit_record_7('"tool":', f'"x":{"[" * 9999}{"]" * 9999},"tool":'),
        7,
    ),
    "body that is none": (lambda at: at.edit_record_7('"tool":', '"tool";'), 7),
    "hash": (lambda at: at.change_record_7(hash=bytes(32)), 7),
    "hash, another spelling": (
        lambda at: at.edit_record_7(at.rows[6].hash.hex(), at.rows[6].hash.hex().upper()),
        7,
    ),
    "hash that is none": (lambda at: at.edit_record_7(at.rows[6].hash.hex(), "none"), 7),
    "hash of the last": (
        lambda at: at.replace_segment(12, [msgspec.structs.replace(at.rows[11], hash=bytes(32))]),
        12,
    ),
    "side": (
        lambda at: at.change_record_7(side=(at.rows[6].side or "").replace("alice", "mallo")),
        7,
    ),
    "side of another": (lambda at: at.change_record_7(side=at.rows[5].side), 7),
    "sides swapped": (
        lambda at: at.replace_segment(
            6,
            [
                msgspec.structs.replace(at.rows[5], side=at.rows[6].side),
                msgspec.structs.replace(at.rows[6], side=at.rows[5].side),
                at.rows[7],
            ],
        ),
        6,
    ),
    "side that is none": (lambda at: at.edit_record_7('"side":{', '"side":[1],"was":{'), 7),
    "side, another spelling": (lambda at: at.edit_record_7('"side":{', '"side":{ '), 7),
    "no side": (lambda at: at.change_record_7(side=None), 7),
    "empty side": (lambda at: at.change_record_7(side="{}"), 7),
    "side that is null": (lambda at: at.edit_record_7('"side":{', '"side":null,"was":{'), 7),
    "a part of the side": (lambda at: at.change_record_7(side=side_with(at.rows[6], "caller")), 7),
    "another member": (lambda at: at.edit_record_7(',"side":', ',"mine":1,"side":'), 7),
    "a member twice": (lambda at: at.edit_record_7(',"side":', ',"hash":"00","side":'), 7),
}

ORDER_CHANGES: dict[str, tuple[Act, int]] = {
    # what is done to which records there are, the columns made to fit
    "delete the first": (lambda at: [delete("segments", "first = 1")], 1),
    "delete some": (lambda at: [delete("segments", "first = 6")], 6),
    "delete the last": (lambda at: [delete("segments", "first = 12")], 12),
    "delete some and close up": (
        lambda at: [delete("segments", "first = 6"), *(move(n, -3) for n in (9, 11, 12))],
        6,
    ),
    "delete one": (lambda at: at.replace_segment(6, [at.rows[5], at.rows[7]]), 7),
    "delete one, its place stays": (lambda at: [at.cut_record_7()], 7),
    "delete the last of some": (lambda at: at.replace_segment(6, at.rows[5:7]), 8),
    "insert between": (
        lambda at: [
            *(move(n, 1) for n in (12, 11, 9)),
            *at.replace_segment(6, [*at.rows[5:7], at.rows[6], at.rows[7]]),
        ],
        8,
    ),
    "insert behind": (lambda at: [at.insert(at.segment_of(13, at.rows[11:]))], 13),
    "insert behind, together": (
        lambda at: at.replace_segment(12, [at.rows[11], at.rows[11]]),
        13,
    ),
    "insert before": (lambda at: [at.insert(at.segment_of(-2, at.rows[5:8]))], 1),
    "some twice, overlapping": (lambda at: [at.insert(at.segment_of(7, at.rows[6:8]))], 8),
    "some twice, far behind": (lambda at: [at.insert(at.segment_of(100, at.rows[5:8]))], 13),
    "move one to those before": (
        lambda at: [
            *at.replace_segment(6, at.rows[5:9]),
            delete("segments", "first = 9"),
            at.insert(at.segment_of(9, at.rows[9:10])),
        ],
        9,
    ),
    "reorder": (lambda at: at.replace_segment(6, [at.rows[6], at.rows[5], at.rows[7]]), 6),
    "reorder segments": (lambda at: [move(11, 90), move(12, -1), move(101, -89)], 11),
    "another tenant's": (
        lambda at: at.replace_segment(6, [at.rows[5], at.others[6], at.rows[7]]),
        7,
    ),
    "truncate": (lambda at: [delete("segments", "last > 0")], 1),
    "truncate and forget the end": (
        lambda at: [delete("segments", "last > 0"), delete("heads", "number > 0")],
        1,
    ),
    "cut before a checkpoint": (lambda at: [delete("segments", "first > 8")], 9),
    "cut behind a checkpoint": (lambda at: [delete("segments", "first > 10")], 11),
    "cut behind a checkpoint, with another end": (
        lambda at: [
            delete("segments", "first > 10"),
            at.set_head(number=10, hash=at.rows[9].hash),
        ],
        10,
    ),
    "cut the last batch, with another end": (
        lambda at: [
            delete("segments", "first > 11"),
            at.set_head(number=11, hash=at.rows[10].hash),
        ],
        11,
    ),
    "cut the first, as if their time was over": (
        lambda at: [delete("segments", "first <= 5"), at.set_head(pruned=5)],
        1,
    ),
    "re-chain without a key": (lambda at: at.rechain(7), 6),
    "re-chain behind the checkpoint": (lambda at: at.rechain(11), 11),
}

PROOF_CHANGES: dict[str, tuple[Act, int]] = {
    # what is done to what proves them
    "change a checkpoint's statement": (
        lambda at: [at.set_checkpoint(5, statement=edited(at.signed[0].statement, at=1))],
        5,
    ),
    "change a checkpoint's signature": (
        lambda at: [at.set_checkpoint(5, signature=at.signed[1].signature)],
        5,
    ),
    "signature that is none": (lambda at: [at.set_checkpoint(5, signature="ß")], 5),
    "checkpoint of an unknown key": (
        lambda at: [at.set_checkpoint(5, statement=edited(at.signed[0].statement, key="mine"))],
        10,
    ),
    "last checkpoint of an unknown key": (
        lambda at: [at.set_checkpoint(10, statement=edited(at.signed[1].statement, key="mine"))],
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
    "move a checkpoint": (lambda at: [update("checkpoints", "number = 10", "number = 12")], 12),
    "delete the first checkpoint": (lambda at: [delete("checkpoints", "number = 5")], 10),
    "delete the last checkpoint": (lambda at: [delete("checkpoints", "number = 10")], 10),
    "delete all checkpoints": (lambda at: [delete("checkpoints", "number > 0")], 10),
    "change the end's number": (lambda at: [at.set_head(number=11)], 11),
    "change the end's hash": (lambda at: [at.set_head(hash=bytes(32))], 12),
    "change the end's cut": (lambda at: [at.set_head(pruned=5)], 1),
    "change the end's checkpoint": (lambda at: [at.set_signed(number=5)], 5),
    "change the end's seal": (lambda at: [at.set_signed(hash=bytes(32))], 10),
    "change the end's proof": (lambda at: [at.set_head(proof="mine.AAAA")], 11),
    "change the proof of the last checkpoint": (lambda at: [at.set_signed(proof="mine.AA")], 10),
    "change the cut of the checkpoints": (lambda at: [at.set_signed(pruned=5)], 1),
    "delete the end": (lambda at: [delete("heads", "number > 0")], 1),
    "delete the end of the records": (lambda at: [delete("heads", "writer = 1")], 1),
    "delete the end of the checkpoints": (lambda at: [delete("heads", "writer = 0")], 10),
}

TAMPERING_CASES = COLUMNS | RECORDS | ORDER_CHANGES | PROOF_CHANGES


@pytest.mark.requirement("AU1")
async def test_verify_finds_each_change_and_names_the_first_bad_record(url: str) -> None:
    """The test restores the chain after each change, and it verifies again."""
    async with audit_log(url) as log:
        await log.fill()
        before = await stolen_data(log, url)
        named, healed = {}, []
        for name, (act, _) in TAMPERING_CASES.items():
            await tamper(url, *act(before))
            named[name] = (await log.verify()).bad_number
            await tamper(url, *restore_all(before))
            healed.append((await log.verify()).bad_number)

    assert named == {name: number for name, (_, number) in TAMPERING_CASES.items()}
    assert set(healed) == {None}


@pytest.mark.requirement("AU2")
async def test_a_stored_checkpoint_finds_a_rollback_of_the_whole_database(url: str) -> None:
    """An older database verifies by itself; only a newer checkpoint shows the rollback."""
    async with audit_log(url) as log:
        await log.note(3)
        await log.sign()
        await log.note(4)
        older = await stolen_data(log, url)
        await log.note(3)
        checkpoint = await log.sign()
        assert (await log.verify("acme", checkpoint)).bad_number is None

        await tamper(url, *restore_all(older))
        alone, anchored = await log.verify(), await log.verify("acme", checkpoint)
        await tamper(url, *delete_all())
        without = await log.verify("acme", checkpoint)

    assert (alone.bad_number, anchored.bad_number, without.bad_number) == (None, 8, 1)


@pytest.mark.requirement("AU1")
async def test_a_running_server_records_a_break_after_a_truncated_chain(url: str) -> None:
    """New records follow the shortened chain, and verify reports the missing ones."""
    async with audit_log(url) as log:
        await log.fill()
        at = await stolen_data(log, url)
        await tamper(
            url,
            delete("segments", "first > 11"),
            at.set_head(number=11, hash=at.rows[10].hash),
        )
        await log.note(2)
        seen = await log.verify()
        await log.sign()
        later = await log.verify()

    assert (seen.bad_number, later.bad_number) == (12, 12)
    assert "the end of the chain is older than it was" in seen.problem


async def test_a_restarted_server_does_not_hide_a_truncated_chain(url: str) -> None:
    """The head that it finds has no proof by a key of the ring."""
    async with audit_log(url) as log:
        await log.fill()
        at = await stolen_data(log, url)
        await tamper(
            url,
            delete("segments", "first > 11"),
            at.set_head(number=11, hash=at.rows[10].hash),
        )
        log.writer = log.process()
        await log.note(1)
        seen = await log.verify()

    assert seen.bad_number == 12
    assert "not by a key of the ring" in seen.problem


async def test_unproven_records_are_not_signed(url: str) -> None:
    """A checkpoint of a forged head would confirm it."""
    async with audit_log(url) as log:
        await log.fill()
        at = await stolen_data(log, url)
        await tamper(
            url,
            delete("segments", "first > 11"),
            at.set_head(number=11, hash=at.rows[10].hash),
        )
        with pytest.raises(Exception, match="acme"):
            await log.sign()

        assert [
            checkpoint.number for checkpoint in await log.store.tenant_log("acme").checkpoints()
        ] == [
            5,
            10,
        ]


async def test_verify_reports_no_tampering_while_servers_write(url: str) -> None:
    """Records that are written during the verification are not errors."""
    async with audit_log(url) as log:
        await log.fill()
        writing = asyncio.ensure_future(log.note(40))
        seen = []
        while not writing.done():
            seen.append((await log.verify()).bad_number)
            await log.sign()
        await writing

    assert set(seen) == {None}


@pytest.mark.parametrize("records", ["", "[nonsense]", "[" * 9999 + "]" * 9999])
async def test_an_unreadable_record_is_an_error(url: str, records: str) -> None:
    """The error names the record and the command; the server changes nothing."""
    async with audit_log(url) as log:
        await log.fill()
        at = await stolen_data(log, url)
        await tamper(url, at.set(6, records=records))
        tenant_log = log.store.tenant_log("acme")
        for work in (
            lambda: tenant_log.chain(1).rows(5, 1),
            lambda: tenant_log.find(AuditQuery(kind="approval")),
            lambda: log.erasure.erase_subject("acme", ISSUER, "alice"),
        ):
            with pytest.raises(Damaged, match="from 6 on: `gatepost audit verify`"):
                await work()
        readable = await tenant_log.chain(1).rows(8, 9)

    assert readable == at.rows[8:]


async def test_a_changed_number_of_counted_refusals_is_found(url: str) -> None:
    """The number is part of the hash, so a larger or smaller number is found."""
    async with audit_log(url) as log:
        await log.note(1)
        refused = Failure("rate_limit", "Later.", limit="caller")
        call = Call(caller=person("alice"), name="deploy", arguments=b"{}", request_id="r")
        commits = [log.writer.record_end(call, 0.0, [], refused) for _ in range(RECORDED_PER_KIND)]
        await asyncio.gather(*commits)
        counts = await log.store.tenant_log("acme").count(0, 86_400_000)
        before = await stolen_data(log, url)
        whole = before.segments[-1].counts
        fewer = (
            whole.replace(f',"caller",{RECORDED_PER_KIND}]', ',"caller",1]'),
            whole.replace(f',"caller",{RECORDED_PER_KIND}]', ",1]"),
        )
        unchanged, broken = (await log.verify()).bad_number, []
        for text in fewer:
            await tamper(url, before.set(2, counts=text))
            broken.append((await log.verify()).bad_number)
            await tamper(url, *restore_all(before))

    assert [(count.number, count.limit) for count in counts] == [(RECORDED_PER_KIND, "caller")]
    assert whole not in fewer
    assert (unchanged, broken) == (None, [2, 2])

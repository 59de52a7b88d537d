"""The end of a chain is not where its records end, or not where a process remembers it."""

import pytest

from tests.audit.conftest import audit_log, delete, stolen_data, tamper
from tests.support.measuring import capture_logs

pytestmark = pytest.mark.requirement("AU1")


@pytest.mark.parametrize("anew", [False, True], ids=["running", "started anew"])
@pytest.mark.parametrize(
    ("where", "number"), [("heads", 10), ("heads", 4), ("no head", 0)], ids=str
)
async def test_new_records_continue_after_the_last_record_if_the_head_is_older(
    url: str, anew: bool, where: str, number: int
) -> None:
    """Otherwise their numbers are taken, and no further call could be recorded."""
    async with audit_log(url) as log:
        await log.fill()
        at = await stolen_data(log, url)
        back = at.set_head(number=number, hash=at.rows[number - 1].hash)
        await tamper(url, delete("heads", "writer = 1") if where == "no head" else back)
        if anew:
            log.writer = log.process()
        with capture_logs() as logs:
            await log.note(2)
            await log.note_together("alice", "bob")
        seen = await log.verify()
        rows = await log.store.tenant_log("acme").chain(1).rows(0, 99)
        await log.erasure.erase_tenant("acme")

    assert [row.number for row in rows] == [*range(1, 18)]
    assert [row.kind for row in rows[12:]] == ["break", *["approval"] * 4]
    assert (seen.bad_number, "broken" in seen.problem) == (13, True)
    events = [event["event"] for event in logs]
    assert events == ["audit_chain_broken"]


async def test_an_erasure_is_recorded_if_the_head_is_older_than_the_chain(url: str) -> None:
    """The erasure works before any new call is recorded."""
    async with audit_log(url) as log:
        await log.fill()
        at = await stolen_data(log, url)
        await tamper(url, at.set_head(number=4, hash=at.rows[3].hash))
        with capture_logs() as logs:
            await log.erasure.erase_tenant("acme")
        rows = await log.store.tenant_log("acme").chain(1).rows(12, 99)

    assert [row.kind for row in rows] == ["break", "erasure"]
    assert [event["event"] for event in logs] == ["audit_chain_broken"]


async def test_an_outdated_head_in_memory_is_not_recorded_as_a_break(
    migrated_postgres: str,
) -> None:
    """The answer to an old write may arrive after later writes."""
    async with audit_log(migrated_postgres) as log:
        await log.note(1)
        old = dict(vars(log.store)["_heads"])
        await log.note(1)
        vars(log.store)["_heads"].update(old)
        with capture_logs() as logs:
            await log.note(1)
        seen = await log.verify()

    assert (logs, seen.bad_number, seen.records) == ([], None, 3)

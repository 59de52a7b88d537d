"""The end of a chain is not where its records end, or not where a process remembers it."""

import pytest

from tests.audit.conftest import audit_log, drop, stolen_data, tamper
from tests.support.measuring import capture_logs

pytestmark = pytest.mark.requirement("AU1")


@pytest.mark.parametrize("anew", [False, True], ids=["running", "started anew"])
@pytest.mark.parametrize(
    ("where", "number"), [("heads", 10), ("heads", 4), ("no head", 0)], ids=str
)
async def test_records_are_written_after_those_behind_a_head_set_back(
    url: str, anew: bool, where: str, number: int
) -> None:
    """They would get numbers that are taken, so that no call could be recorded any more."""
    async with audit_log(url) as log:
        await log.fill()
        at = await stolen_data(log, url)
        back = at.set_head(number=number, hash=at.rows[number - 1].hash)
        await tamper(url, drop("heads", "writer = 1") if where == "no head" else back)
        if anew:
            log.writer = log.process()
        with capture_logs() as logs:
            await log.note(2)
            await log.together("alice", "bob")
        seen = await log.verify()
        rows = await log.records.of("acme").trail.chain(1).rows(0, 99)
        await log.erasure.erase_tenant("acme")

    assert [row.number for row in rows] == [*range(1, 18)]
    assert [row.kind for row in rows[12:]] == ["break", *["approval"] * 4]
    assert (seen.bad, "broken" in seen.problem) == (13, True)
    events = [event["event"] for event in logs]
    assert events == ["audit_chain_broken"]


async def test_an_erasure_after_a_head_set_back_is_recorded(url: str) -> None:
    """Also if no call comes first."""
    async with audit_log(url) as log:
        await log.fill()
        at = await stolen_data(log, url)
        await tamper(url, at.set_head(number=4, hash=at.rows[3].hash))
        with capture_logs() as logs:
            await log.erasure.erase_tenant("acme")
        rows = await log.records.of("acme").trail.chain(1).rows(12, 99)

    assert [row.kind for row in rows] == ["break", "erasure"]
    assert [event["event"] for event in logs] == ["audit_chain_broken"]


async def test_a_late_answer_to_an_old_write_is_no_break(migrated_postgres: str) -> None:
    """It may come after later writes; the end that it knows is then an old one."""
    async with audit_log(migrated_postgres) as log:
        await log.note(1)
        old = dict(vars(log.records.audit)["_heads"])
        await log.note(1)
        vars(log.records.audit)["_heads"].update(old)
        with capture_logs() as logs:
            await log.note(1)
        seen = await log.verify()

    assert (logs, seen.bad, seen.records) == ([], None, 3)

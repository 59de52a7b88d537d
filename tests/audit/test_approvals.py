"""What the record of a call says of the approval under which it ran, or did not."""

import pytest

from gatepost.audit.journal import Journal
from gatepost.audit.settings import AuditSettings
from gatepost.audit.trail import Trail
from gatepost.stores.audit import Question
from gatepost.tools.redaction import Redaction
from tests.approvals.bureau import ACME, BOB, Bureau


@pytest.mark.parametrize("key", [None, "k1"], ids=["plain", "with a retry key"])
async def test_a_call_names_the_approval_that_let_it_run(key: str | None) -> None:
    """And the one that it waits for, so that both are found by it."""
    bureau = Bureau(require=["act"])
    replica = bureau.replica()
    settings = AuditSettings(batch_ms=0)
    journal = Journal(bureau.records, bureau.keyring, Redaction(), settings, clock=bureau.clock)
    replica.runner.recorder = journal

    request = await replica.asked(what="a", key=key)
    await replica.desk.approve(ACME, request.id, BOB)
    await replica.call(what="a", key=key)
    await journal.aclose()
    found = await Trail(bureau.records).search(ACME, Question())

    assert [(one.kind, one.outcome, one.approval) for one in reversed(found)] == [
        ("refusal", "approval_pending", request.id),
        ("call", "success", request.id),
    ]
    assert not any(one.replayed for one in found)

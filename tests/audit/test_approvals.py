"""What the record of a call says of the approval under which it ran, or did not."""

import pytest

from gatepost.audit.record import search
from gatepost.audit.writer import AuditWriter
from gatepost.config.audit import AuditSettings
from gatepost.storage.audit import AuditQuery
from gatepost.tools.calls.redaction import Redaction
from tests.support.runners import ACME, BOB, ApprovalDeployment


@pytest.mark.parametrize("key", [None, "k1"], ids=["plain", "with an idempotency key"])
async def test_the_record_of_a_call_names_its_approval_request(key: str | None) -> None:
    """The pending call and the approved call both have the id, so a search finds both."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    settings = AuditSettings(batch_ms=0)
    writer = AuditWriter(
        deployment.records, deployment.keyring, Redaction(), settings, clock=deployment.clock
    )
    replica.runner.recorder = writer

    request = await replica.asked(what="a", key=key)
    await replica.service.approve(ACME, request.id, BOB)
    await replica.call(what="a", key=key)
    await writer.aclose()
    records = await search(writer.store, ACME, AuditQuery())

    assert [(record.kind, record.outcome, record.approval) for record in reversed(records)] == [
        ("call", "approval_pending", request.id),
        ("call", "success", request.id),
    ]
    assert not any(record.replayed for record in records)

"""Approvals that a revocation withdraws, on every backend."""

import msgspec
import pytest

from gatepost.policy.approvals.approval_request import GrantScope
from gatepost.policy.approvals.grants import PAGE
from gatepost.storage.approvals import GrantQuota
from gatepost.storage.records import Records
from gatepost.storage.revocations import RevocationRecord
from gatepost_authz.caller import TenantContext
from tests.policy.revocation.test_revocation_records import (
    AGENT,
    BOB,
    ROBOT_CALLER,
    ordered_revocation,
)
from tests.policy.revocation.test_withdrawn_approvals import RULES, Revocable
from tests.support.runners import ACME, CAROL

pytestmark = pytest.mark.requirement("CO2")

ALICE = msgspec.structs.replace(AGENT, actor=None)
OTHER_CALLER = msgspec.structs.replace(ROBOT_CALLER, subject="other")
REVOCATION_ORDERS = {
    "who acts": (ordered_revocation(subject="bob"), {AGENT, BOB}),
    "for whom": (ordered_revocation(subject="alice"), {AGENT, ALICE}),
    "a program that names no client": (
        ordered_revocation(client="robot", tenant=ACME),
        {ROBOT_CALLER},
    ),
    "everybody": (ordered_revocation(tenant=ACME), {AGENT, ALICE, BOB, OTHER_CALLER, ROBOT_CALLER}),
    "nobody": (ordered_revocation(tenant="globex"), set()),
}
CALLERS = (AGENT, ALICE, BOB, OTHER_CALLER, ROBOT_CALLER)


@pytest.mark.parametrize(("cut", "reached"), REVOCATION_ORDERS.values(), ids=REVOCATION_ORDERS)
async def test_an_order_matches_exactly_the_named_callers(
    records: Records, cut: RevocationRecord, reached: set[TenantContext]
) -> None:
    """This covers requests, approvals, and more grants than are read at once."""
    deployment = Revocable(records=records, rules=RULES)
    here, remote = deployment.replicas
    tenant = records.for_tenant(ACME)
    for caller in CALLERS:
        for what in ("waiting", "approved", "granted"):
            request = await here.asked(caller=caller, what=what)
            if what != "waiting":
                terms = GrantScope(uses=3) if what == "granted" else None
                await remote.service.approve(ACME, request.id, CAROL, grant=terms)
    given_grants = {grant.subject: grant for grant in await tenant.grants.page("", PAGE)}
    for number in range(PAGE):
        more_grant = msgspec.structs.replace(given_grants["robot"], id=f"{number:03}")
        assert await tenant.grants.add(more_grant, GrantQuota(2 * PAGE, 2 * PAGE)) is None
    more = PAGE if ROBOT_CALLER in reached else 0

    assert await deployment.shut(cut) == 4 * len(reached) + more
    remaining = {(caller.subject, caller.actor) for caller in CALLERS if caller not in reached}
    waiting = await here.service.waiting(ACME)
    assert {(request.caller.subject, request.caller.actor) for request in waiting} == remaining
    grants = await tenant.grants.page("", 2 * PAGE)
    assert len(grants) == len(CALLERS) - len(reached) + (0 if more else PAGE)
    assert len(await tenant.approvals.undecided()) == 3 * len(remaining)

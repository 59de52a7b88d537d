"""Where a call that needs a person meets its request, or makes one."""

import math

from gatepost.approvals.desk import Desk
from gatepost.approvals.filing import Case, case_of
from gatepost.approvals.policy import Demand, Need
from gatepost.stores.approvals import ApprovalRecord, Whose
from gatepost.tools.api import Call, Tool, ToolFailure

BUSY_S = 30.0
OF_CALLER = (
    "{count} of your calls wait for a person already. Wait until they are decided, then call again."
)
OF_TENANT = "Too many calls wait for a person at the moment. Call again later."


async def meet(desk: Desk, call: Call, tool: Tool, need: Need, demand: Demand) -> Case:
    """
    The one request of this call: a retry gets what became of the first.

    ToolFailure where too many wait, or no person could judge the call.
    """
    tenant, cabinet = call.caller.tenant_id, desk.cabinet
    store = desk.records.of(tenant).approvals
    digest = cabinet.digest(tool, call.arguments)
    binding = cabinet.binding(call, tool, digest, demand.version)
    fresh: ApprovalRecord | None = None
    while True:
        met = await store.met(binding)
        if met is None:
            if fresh is None:
                await _room(desk, call)
                fresh = cabinet.filed(call, tool, need, demand.version, desk.clock())
            case = case_of(fresh)
            met = await store.open(fresh, desk.herald.notice("requested", case.request))
            if met is None:
                await desk.herald.request("requested", case.request)
                return case
        if (found := await _current(desk, case_of(met))) is not None:
            return found


async def _current(desk: Desk, case: Case) -> Case | None:
    """The same as it is now; None where the call has to look again."""
    request = case.request
    if request.state == "approved" or request.until > desk.clock():
        now = await desk.current(case)
        # What went just now with the caller's old token is not what this one has asked for, nor is
        # an approval that nobody used.
        is_gone = now is not None and now is not case and now.record.meets is None
        return None if is_gone else now
    if request.state == "waiting":
        return await desk.expire(case)
    # Its answer has counted for long enough.
    await desk.settle(case, meets=None)
    return None


async def _room(desk: Desk, call: Call) -> None:
    """ToolFailure where too many wait already; several at once may pass a little beyond."""
    caller, settings = call.caller, desk.settings
    store = desk.records.of(caller.tenant_id).approvals
    whose = Whose(issuer=caller.issuer, subject=caller.subject, subject_kind=caller.subject_kind)
    count = await store.count(whose)
    if count >= settings.max_waiting_per_caller:
        raise _busy(OF_CALLER.format(count=count))
    if await store.count() >= settings.max_waiting_per_tenant:
        raise _busy(OF_TENANT)


def _busy(message: str) -> ToolFailure:
    return ToolFailure("rate_limit", message, retry_after=math.ceil(BUSY_S))

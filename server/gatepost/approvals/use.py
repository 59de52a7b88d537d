"""What came of the one use of an approval, as the claim says under which it is made."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from gatepost.approvals.filing import Cabinet, Case, claim_of
from gatepost.approvals.request import Request, Use
from gatepost.guard.once import may_repeat
from gatepost.stores.api import Records
from gatepost.tools.api import Tool, ToolFailure

Begun = Literal["running", "done", "unknown"]

USES: Mapping[Use, str] = {
    "running": "The call is being made with this approval.",
    "unknown": "The call had begun, and nobody knows how it ended: its server is gone. Check what "
    "was done before the same is approved again.",
}
"""What a person is told of a call that has begun."""


async def begun(records: Records, request: Request, now: float) -> Begun | None:
    """
    How far an approved call is; None: it has not begun, or nothing was done. `unknown`: its server
    is gone, see `Claim`. Raises StoreUnavailable.
    """
    if request.state != "approved":
        return None
    claim = await records.of(request.tenant).claims.get(claim_of(request.id))
    if claim is None or claim.outcome is not None:
        return None if claim is None else "done"
    return "running" if claim.leased_until > now else "unknown"


def told(request: Request, how: Begun | None) -> Request:
    """The request as people see it: how a call is that has begun."""
    if how is None or how == "done":
        return request
    return msgspec.structs.replace(request, use=how)


def is_open(
    case: Case, how: Begun, now: float, cabinet: Cabinet, tools: Mapping[str, Tool]
) -> bool:
    """
    Whether the approval of a call that has begun is still good for something.

    The call runs; or nobody knows how it ended, its time is not over, and its tool may do it again
    (or is not served here: then others know).
    """
    if how != "unknown" or case.request.until <= now:
        return how == "running"
    tool, opened = tools.get(case.request.tool), cabinet.open(case.record)
    if tool is None or opened is None:
        return True
    try:
        arguments = tool.check(opened.edited or opened.arguments)
    except ToolFailure:
        return False
    return may_repeat(tool, arguments)


def ended(case: Case, how: Begun, now: float, *, keep_s: float) -> Case:
    """The same once its call was made, however that ended; the next time it is met it says so."""
    return case.changed(
        now,
        keep_s=keep_s,
        state="used",
        use="unknown" if how == "unknown" else "",
        # Whoever calls again hears what is known of it, before anybody is asked anew.
        until=max(case.request.until, now + case.file.timeout_s),
        sealed=None,
    )

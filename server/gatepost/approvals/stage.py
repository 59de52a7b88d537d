"""The stage that lets a call through once a person has approved it."""

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from msgspec.structs import replace

from gatepost.approvals.condition import seen_of, subject_of
from gatepost.approvals.desk import Desk
from gatepost.approvals.filing import Case, check_readable, claim_of
from gatepost.approvals.policy import Demand
from gatepost.approvals.reception import meet
from gatepost.approvals.standing import Standing
from gatepost.guard.ending import LOST, UNKNOWN, Ending
from gatepost.guard.once import DAY_S, STILL_RUNNING, Runs, only_reads
from gatepost.guard.run import INVITING, Terms, Work
from gatepost.packs.scripts.approvals import reason_of
from gatepost.stores.api import Relay, StoreUnavailable
from gatepost.tools.api import Call, Failure, Offer, Outcome, Tool, ToolFailure
from gatepost.tools.record import remark
from gatepost.tools.redaction import Guard, Redaction
from gatepost.tools.runner import EXPIRED, GRACE_S, Next
from gatepost_authz.caller import TenantContext

log = structlog.get_logger("gatepost.approvals")

MARGIN_S = 60.0

NOBODY_NAMED = (
    "`{tool}` needs a person's approval, and nobody may give it for machine clients. An operator "
    "can name somebody: `by` in a rule of [[approvals.rules]]."
)
REJECTED = (
    "A person rejected this call, so it was not run.{reason} Do not repeat it as it is: try "
    "something else, or ask your user."
)
NOBODY_CAME = (
    "Nobody approved this call in time ({seconds:g} seconds), so it was denied and not run. Try "
    "something else, or tell your user that an approval is needed."
)
WITHDRAWN = "The request for a person's approval was withdrawn, so the call was not run."
CUT = "This caller may not call any more."
RUNS_ALREADY = "This approved call is running already. Call again to get its outcome."
EDITED = "A person approved this call with other arguments. It was run with: {arguments}"


class Approval:
    """
    See `Stage`. A tool that needs nobody costs nothing.

    *page* tells where a tenant's request can be decided, *is_cut* which callers may not call any
    more, whatever their tokens say.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        desk: Desk,
        runs: Runs,
        relay: Relay,
        *,
        redaction: Redaction,
        timeout_s: float,
        max_result_bytes: int,
        page: Callable[[str, str], str] = lambda tenant, request_id: "",
        is_cut: Callable[[TenantContext], bool] = lambda caller: False,
    ) -> None:
        self._desk, self._runs, self._relay = desk, runs, relay
        self._redaction = redaction
        self._timeout_s, self._max_result_bytes = timeout_s, max_result_bytes
        self._page, self._is_cut = page, is_cut
        # As it is when the stage is made: a reload makes another stage.
        self._demand = desk.plan.get

    def concerns(self, offer: Offer) -> bool:
        """Whether a call of it may need anybody."""
        return isinstance(offer, Tool) and self._demand(offer.name) is not None

    def __call__(
        self, call: Call, offer: Offer, arguments: Any, proceed: Next
    ) -> Awaitable[Outcome]:
        """See `Stage`."""
        demand = self._demand(call.name)
        if demand is None or not isinstance(offer, Tool):
            return proceed(call, offer, arguments)
        return self._gate(demand, call, offer, arguments, proceed)

    async def _gate(
        self, demand: Demand, call: Call, tool: Tool, arguments: Any, proceed: Next
    ) -> Outcome:
        check_readable(call.arguments)
        subject = subject_of(seen_of(call.caller), tool, call.arguments, arguments)
        need = demand.need(subject)
        if need is None:
            return await proceed(call, tool, arguments)
        self._check(call)
        granted = await self._desk.granting.use(call, tool, subject, demand)
        if granted is not None:
            remark("grant", granted)
            return await proceed(call, tool, arguments)
        if not need.of(call.caller.subject_kind):
            raise ToolFailure("denied", NOBODY_NAMED.format(tool=tool.name))
        case: Case | None = await meet(self._desk, call, tool, need, demand)
        if case is not None:
            remark("approval", case.request.id)
        if case is not None and case.request.state == "waiting":
            case = await self._stood_by(call, case)
        self._check(call)
        if case is not None and case.request.state == "waiting":
            return EXPIRED  # the token: whoever comes with another meets the same request
        if case is None or case.request.state not in {"approved", "used"}:
            raise await self._denied(case, need.timeout_s)
        return await self._used(case, call, tool, proceed)

    def _check(self, call: Call) -> None:
        if self._is_cut(call.caller):
            raise ToolFailure("denied", CUT)

    async def _stood_by(self, call: Call, case: Case) -> Case | None:
        """The request once it was decided; still waiting where the caller may not wait on."""
        caller, request, clock = call.caller, case.request, self._desk.clock
        until = float("inf") if call.lasting else caller.expires_at + GRACE_S

        def gone() -> bool:
            return until <= clock() or self._is_cut(caller)

        page = self._page(request.tenant, request.id)
        self._desk.attended += 1
        try:
            await call.client.stand_by(Standing(self._desk, self._relay, request, page, gone))
        finally:
            self._desk.attended -= 1
        return await self._desk.case(request.tenant, request.id)

    async def _denied(self, case: Case | None, timeout_s: float) -> ToolFailure:
        if case is None:
            return ToolFailure("denied", NOBODY_CAME.format(seconds=timeout_s))
        request = case.request
        if request.state == "rejected":
            reason = reason_of(request.decisions[-1].reason)
            return ToolFailure("denied", REJECTED.format(reason=reason))
        if request.state == "withdrawn":
            return ToolFailure("denied", WITHDRAWN)
        if case.record.meets is not None:
            # It was told: who calls again asks again.
            await self._desk.settle(case, meets=None)
        return ToolFailure("denied", NOBODY_CAME.format(seconds=case.file.timeout_s))

    async def _used(self, case: Case, call: Call, tool: Tool, proceed: Next) -> Outcome:
        """Run the call under the one claim that the approval has, or get what came of it."""
        request = case.request
        if request.state == "used":
            proceed = _spent
        else:
            call = replace(call, arguments=self._approved(case, call))
            await self._lasts(case, tool)
        arguments = tool.check(call.arguments)
        work = Work(
            call,
            tool,
            arguments,
            proceed,
            repeatable=only_reads(tool, arguments) or tool.annotations.idempotent_hint is True,
            limit_s=tool.timeout_s or self._timeout_s,
            max_result_bytes=self._max_result_bytes,
            guard=Guard(self._redaction, call, tool),
        )
        try:
            outcome = await self._runs.join(work, terms_of(request.id))
        except ToolFailure as refused:
            failure = refused.failure
            if failure.message != STILL_RUNNING:
                raise
            raise ToolFailure(failure.kind, RUNS_ALREADY, retry_after=failure.retry_after) from None
        if not _open_still(outcome):
            try:
                await self._close(case)
            except StoreUnavailable:
                # What is done is done, and the claim keeps it from being done again.
                log.warning("approval_not_closed", approval=request.id)
        outcome = _worded(outcome)
        return outcome if request.edited is None else _telling(outcome, request.edited)

    def _approved(self, case: Case, call: Call) -> bytes:
        """
        What the page showed, not what came with this try: the same arguments may be spelt with
        other digits (`digest_of`), and a tool that hands them on as they are would pass those on.
        """
        opened, is_edited = self._desk.cabinet.open(case.record), case.request.edited is not None
        if opened is not None and opened.edited is not None:
            return opened.edited
        if is_edited:
            raise ToolFailure(
                "denied",
                "A person approved this call with other arguments, and the key that keeps them is "
                "gone. It was not run.",
            )
        return call.arguments if opened is None else opened.arguments

    async def _lasts(self, case: Case, tool: Tool) -> None:
        """Keep the approval in force while the tool runs: it must not expire under it."""
        until = self._desk.clock() + (tool.timeout_s or self._timeout_s) + MARGIN_S
        if case.request.until < until:
            await self._desk.settle(case, until=until)

    async def _close(self, case: Case) -> None:
        """The approval was used: nothing can be done with it any more."""
        tenant, request_id = case.request.tenant, case.request.id
        while (now := await self._desk.case(tenant, request_id)) is not None:
            if now.request.state not in {"approved", "expired"}:
                return
            changes: dict[str, Any] = {"state": "used", "meets": None, "sealed": None}
            if (used := await self._desk.settle(now, **changes)) is not None:
                await self._desk.herald.request("used", used.request)
                return


def terms_of(request_id: str) -> Terms:
    """The claim that the one use of an approval needs; it outlasts the approval."""
    name = claim_of(request_id)
    return Terms(
        key=name,
        digest=name,
        holder=secrets.token_hex(8),
        running_s=DAY_S,
        kept_s=DAY_S,
        unknown_s=None,
    )


async def _spent(call: Call, offer: Offer, arguments: Any) -> Outcome:
    """Stands in for a tool that has run: what came of it is in its claim, or nowhere."""
    raise ToolFailure("conflict", "The approval of this call was used already.")


def _open_still(outcome: Outcome) -> bool:
    """Whether nothing was done, or nobody knows: the approval stays as it is."""
    failure = outcome.failure
    return failure is not None and (failure.kind in INVITING or outcome == UNKNOWN.outcome)


def _message(ending: Ending) -> str:
    outcome = ending.outcome
    return "" if outcome is None or outcome.failure is None else outcome.failure.message


WORDS = {
    _message(UNKNOWN): "Whether this approved call did its work is not known: the server that ran "
    "it is gone. It was not run again. Check what was done before you ask for it anew.",
    _message(LOST["stopped"]): "This approved call was stopped while its tool ran, so part of its "
    "work may be done. It was not run again. Check what was done before you ask for it anew.",
    _message(LOST["too large"]): "This approved call was carried out, and its answer was too large "
    "to be kept. It was not run again.",
}
"""What the claim says of a retry key, for agents that have given none."""


def _worded(outcome: Outcome) -> Outcome:
    failure = outcome.failure
    words = None if failure is None else WORDS.get(failure.message)
    if failure is None or words is None:
        return outcome
    return replace(outcome, failure=replace(failure, message=words))


def _telling(outcome: Outcome, edited: bytes) -> Outcome:
    """The outcome, with a word on what was run."""
    told = EDITED.format(arguments=edited.decode())
    if outcome.failure is not None:
        failure: Failure = replace(outcome.failure, message=f"{outcome.failure.message} ({told})")
        return replace(outcome, failure=failure)
    return replace(outcome, content=(*outcome.content, {"type": "text", "text": told}))

"""Where people decide: what waits, what was decided, and what was granted beforehand."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from gatepost.approvals import scripts
from gatepost.approvals.condition import subject_of
from gatepost.approvals.filing import Cabinet, Case, Sealed, case_of, claim_of, merged
from gatepost.approvals.grants import Granting
from gatepost.approvals.herald import Herald, What
from gatepost.approvals.judgement import objection
from gatepost.approvals.policy import Plan
from gatepost.approvals.reach import IsCut, is_dropped, nobody, taken_back, token_of
from gatepost.approvals.request import (
    Approver,
    Decision,
    Grant,
    GrantTerms,
    Operator,
    Request,
    Undecidable,
    Verdict,
    party_of,
)
from gatepost.approvals.scripts import Scripts
from gatepost.approvals.settings import ApprovalsSettings
from gatepost.keyring import KeyRing
from gatepost.stores.api import Records
from gatepost.stores.approvals import Approvals
from gatepost.tools.api import Tool, ToolFailure
from gatepost.tools.redaction import Redaction
from gatepost_authz.caller import SubjectKind

MOST_REASON = 1_000
PAGE = 50
DUE = 100
OPEN = frozenset({"waiting", "approved"})

UNKNOWN = "There is no such request (any more)."


class Desk:
    """
    The requests of all tenants; one per process, and one for a command.

    Everything raises StoreUnavailable. Each change is durable, and made by one of those who try it
    at once, when its method returns. What rests on somebody who is shut out counts for nothing
    from the moment on that this process knows, wherever it is looked at.
    """

    plan: Plan
    settings: ApprovalsSettings

    def __init__(
        self,
        records: Records,
        keyring: KeyRing,
        redaction: Redaction,
        herald: Herald,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.records, self.herald, self.clock = records, herald, clock
        self.is_cut: IsCut = nobody
        """Whether somebody may do nothing any more, as this process knows it."""
        self.attended = 0
        """Calls of this process that stand by until somebody has decided."""
        self.cabinet = Cabinet(keyring, redaction)
        self.granting = Granting(
            records, self.cabinet, herald, clock, is_cut=lambda caller: self.is_cut(caller)
        )
        self.scripts = Scripts(records, herald, clock, is_cut=lambda caller: self.is_cut(caller))
        self.apply(ApprovalsSettings(), {}, {})

    def apply(self, settings: ApprovalsSettings, plan: Plan, tools: Mapping[str, Tool]) -> None:
        """Take up a configuration: what it demands, and the tools it serves by name."""
        self.settings, self.plan, self._tools = settings, plan, tools

    async def waiting(self, tenant: str) -> list[Request]:
        """Calls and scripts that wait for a person, the oldest first."""
        kept = self.settings.max_waiting_per_tenant
        cases = [await self.current(case_of(one)) for one in await self._of(tenant).waiting(kept)]
        found = [one.request for one in cases if one and one.request.state == "waiting"]
        found += await self.scripts.waiting(tenant)
        return sorted(found, key=lambda one: (one.created_at, one.id))

    async def history(
        self, tenant: str, *, before: Request | None = None, most: int = PAGE
    ) -> list[Request]:
        """
        Calls that were decided, expired or used, and scripts that were rejected: the last changed
        first, then the next page.
        """
        place = None
        if before is not None and before.kind == "script":
            place = (before.decided_at or before.created_at, before.id)
        elif before is not None:
            record = await self._of(tenant).get(before.id)
            place = None if record is None else (record.changed_at, record.id)
        records = await self._of(tenant).past(place, most)
        found = [((one.changed_at, one.id), case_of(one).request) for one in records]
        for script in await self.scripts.rejected(tenant):
            own = (script.decided_at or script.created_at, script.id)
            if place is None or own < place:
                found.append((own, script))
        found.sort(key=lambda one: one[0], reverse=True)
        return [request for _, request in found[:most]]

    async def get(self, tenant: str, request_id: str) -> Request | None:
        """One call or script, in whatever state; None: unknown, or another tenant's."""
        if request_id.startswith(scripts.PREFIX):
            return await self.scripts.one(tenant, request_id)
        case = await self.case(tenant, request_id)
        return None if case is None else case.request

    def objection(self, request: Request, who: Approver) -> str | None:
        """Why this person cannot approve it, in a sentence for them; None when they can."""
        now = self.clock()
        if request.kind == "script":
            return scripts.objection(request, who, now=now)
        return objection(request, who, now=now, plan=self.plan, policy=request.policy)

    async def approve(  # noqa: PLR0913  # what a person may say with a yes, by name
        self,
        tenant: str,
        request_id: str,
        by: Approver,
        *,
        seen: str | None = None,
        edited: bytes | None = None,
        grant: GrantTerms | None = None,
        reason: str = "",
    ) -> Request:
        """
        Let the call be made, once all who are needed have approved; Undecidable says why not.

        *seen* is the `digest` of the request as *by* saw it: what has changed since is not
        approved. *edited* is what it runs with instead, a JSON object in which what is redacted
        may stay as it is. *grant* lets further calls pass.
        """
        if request_id.startswith(scripts.PREFIX):
            yes = Decision(by=party_of(by), verdict="approved", at=self.clock())
            return await self._about_script(tenant, request_id, by, yes, seen=seen)
        while True:
            case = await self._judged(tenant, request_id, by)
            if seen is not None and seen != case.request.digest:
                raise Undecidable("The request is not what you saw any more. Look at it again.")
            if grant is not None:
                self.granting.check(case, grant, edited)
            changed = self._approved(case, by, edited, self._words(tenant, reason))
            if await self._kept("approved", changed, by):
                break
        await self.herald.request("approved", changed.request, by, on_record=True)
        if grant is not None:
            await self.granting.give(changed, grant, by)
        return changed.request

    async def reject(self, tenant: str, request_id: str, by: Approver, reason: str) -> Request:
        """Refuse the call; the agent reads *reason*, which may be empty. Raises Undecidable."""
        if request_id.startswith(scripts.PREFIX):
            words = self._words(tenant, reason)
            no = Decision(by=party_of(by), verdict="rejected", at=self.clock(), reason=words)
            return await self._about_script(tenant, request_id, by, no)
        while True:
            case, now = await self._judged(tenant, request_id, by), self.clock()
            words = self._words(tenant, reason)
            verdict = Decision(by=party_of(by), verdict="rejected", at=now, reason=words)
            changed = case.changed(
                now,
                keep_s=self.settings.keep_s,
                state="rejected",
                # For so long the same call is refused: an agent must not get a yes by asking often.
                until=now + case.file.timeout_s,
                decided_at=now,
                decisions=(*case.request.decisions, verdict),
                sealed=None,
            )
            if await self._kept("rejected", changed, by):
                break
        await self.herald.request("rejected", changed.request, by, on_record=True)
        return changed.request

    async def withdraw(self, tenant: str) -> int:
        """
        End what rests on anybody who is shut out: what they wait for, scripts too, approvals for
        them and by them that nobody has used, and grants for them and by them; how many there were.
        """
        count = await self.granting.withdraw(tenant) + await self.scripts.withdraw(tenant)
        for approval_id in await self._of(tenant).undecided():
            case = await self.case(tenant, approval_id)
            count += case is not None and case.request.state == "withdrawn"
        return count

    async def grants(self, tenant: str) -> list[Grant]:
        """Grants that are in force, the oldest first."""
        return await self.granting.all(tenant)

    async def revoke_grant(self, tenant: str, grant_id: str, by: Approver) -> bool:
        """End a grant; whether there was one. Undecidable for who is no approver."""
        self._inside(tenant, by)
        return await self.granting.revoke(tenant, grant_id, by)

    # What the stage and the sweep need.

    async def case(self, tenant: str, request_id: str) -> Case | None:
        """One request as it is now."""
        while (record := await self._of(tenant).get(request_id)) is not None:
            if (case := await self.current(case_of(record))) is not None:
                return case
        return None

    async def current(self, case: Case) -> Case | None:
        """
        The same as it is now: what nobody decided in time has expired, and what rests on somebody
        who is shut out is taken out of it. None when somebody else changed it meanwhile.
        """
        request = case.request
        if request.state not in OPEN:
            return case
        if request.until <= self.clock():
            return await self.expire(case)
        dropped, gone = is_dropped(request, self.is_cut), taken_back(request, self.is_cut)
        if not dropped and not gone:
            return case
        if request.state == "approved":
            # Withdrawn it would be asked about anew: not while the call runs that it was given for,
            # nor when that was stopped and nobody has heard so.
            claims = self.records.of(request.tenant).claims
            is_begun = await claims.get(claim_of(request.id)) is not None
            return case if is_begun else await self._end(case, "withdrawn")
        if dropped:
            return await self._end(case, "withdrawn")
        return await self._without(case, gone)

    async def expire(self, case: Case) -> Case | None:
        """The time of an open request is over; None when somebody else changed it meanwhile."""
        return await self._end(case, "expired")

    async def expire_due(self) -> int:
        """Expire what nobody looks at, of any tenant; how many there were."""
        due = await self.records.overdue_approvals(self.clock(), DUE)
        ended = [await self.case(tenant, approval_id) for tenant, approval_id in due]
        return sum(one is not None for one in ended)

    async def tidy(self) -> int:
        """Forget rejected scripts whose time is over, of every tenant; how many."""
        return await self.scripts.tidy()

    async def settle(self, case: Case, *, told: What | None = None, **changes: Any) -> Case | None:
        """
        Change a request; None when somebody else changed it meanwhile.

        *told* is what another system may be told of it.
        """
        changed = case.changed(self.clock(), keep_s=self.settings.keep_s, **changes)
        notice = None if told is None else self.herald.notice(told, changed.request)
        if not await self._of(case.request.tenant).replace(changed.record, notice):
            return None
        revision = changed.record.revision + 1
        return Case(msgspec.structs.replace(changed.record, revision=revision), changed.file)

    async def _about_script(
        self,
        tenant: str,
        request_id: str,
        by: Approver,
        decision: Decision,
        *,
        seen: str | None = None,
    ) -> Request:
        self._inside(tenant, by)
        until = decision.at + self.settings.keep_s
        return await self.scripts.decide(tenant, request_id, by, decision, seen=seen, until=until)

    async def _kept(self, verdict: Verdict, changed: Case, by: Approver) -> bool:
        """Put a decision on record and keep it; False when the request changed meanwhile."""
        await self.herald.record(verdict, changed.request, by)
        notice = self.herald.notice(verdict, changed.request)
        if await self._of(changed.request.tenant).replace(changed.record, notice):
            return True
        await self.herald.record("void", changed.request, by)
        return False

    def _of(self, tenant: str) -> Approvals:
        return self.records.of(tenant).approvals

    async def _without(self, case: Case, gone: tuple[Decision, ...]) -> Case | None:
        """One that waits, without these approvals; None when somebody else changed it meanwhile."""
        request = case.request
        kept = tuple(one for one in request.decisions if one not in gone)
        changes: dict[str, Any] = {"decisions": kept}
        if any(one.edited for one in gone):
            opened = self.cabinet.open(case.record)
            if opened is None:
                return await self._end(case, "withdrawn")
            sealed = self.cabinet.seal(request.id, Sealed(opened.arguments))
            changes |= {"edited": None, "sealed": sealed}
        changed = await self.settle(case, **changes)
        if changed is not None:
            for one in gone:
                by = token_of(one.by, request.tenant, one.at)
                await self.herald.request("void", request, by)
        return changed

    async def _end(self, case: Case, state: Literal["expired", "withdrawn"]) -> Case | None:
        now, asked = self.clock(), case.request.state == "waiting"
        changes: dict[str, Any] = {"state": state, "sealed": None, "meets": None}
        if asked:
            changes["decided_at"] = now
        if asked and state == "expired":
            # Whoever calls again is told once that nobody came; see `Approvals` in the stage.
            changes |= {"meets": case.record.meets, "until": now + case.file.timeout_s}
        ended = await self.settle(case, told=state, **changes)
        if ended is not None:
            await self.herald.request(state, ended.request)
        return ended

    async def _judged(self, tenant: str, request_id: str, by: Approver) -> Case:
        self._inside(tenant, by)
        case = await self.case(tenant, request_id)
        if case is None:
            raise Undecidable(UNKNOWN)
        why = objection(case.request, by, now=self.clock(), plan=self.plan, policy=case.file.policy)
        if why is not None:
            raise Undecidable(why)
        return case

    def _inside(self, tenant: str, by: Approver) -> None:
        if not isinstance(by, Operator) and by.tenant_id != tenant:
            raise Undecidable(UNKNOWN)

    def _approved(self, case: Case, by: Approver, edited: bytes | None, words: str) -> Case:
        request, now = case.request, self.clock()
        changes: dict[str, Any] = {}
        if edited is not None:
            changes |= self._edited(case, edited)
        verdict = Decision(
            by=party_of(by), verdict="approved", at=now, reason=words, edited="edited" in changes
        )
        changes["decisions"] = (*request.decisions, verdict)
        if request.given + 1 >= request.needed:
            changes |= {"state": "approved", "until": now + case.file.timeout_s, "decided_at": now}
        return case.changed(now, keep_s=self.settings.keep_s, **changes)

    def _edited(self, case: Case, edited: bytes) -> dict[str, Any]:
        request = case.request
        if request.given:
            raise Undecidable(
                "Somebody has approved the arguments as they are. Approve them too, or reject."
            )
        sealed, tool = self.cabinet.open(case.record), self._tools.get(request.tool)
        if sealed is None or tool is None:
            raise Undecidable("The arguments cannot be opened here, so they cannot be edited.")
        arguments = merged(edited, request.arguments, sealed.arguments)
        if self.cabinet.digest(tool, arguments) == case.file.digest:
            return {}
        try:
            checked = tool.check(arguments)
            shown = self.cabinet.shown(request.tenant, tool, arguments)
        except ToolFailure as refused:
            words = self.cabinet.clean(request.tenant, refused.failure.message)
            raise Undecidable(f"The tool does not take these arguments: {words}") from None
        subject = subject_of(case.file.caller, tool, arguments, checked)
        need = self.plan[request.tool].need(subject)
        kind: SubjectKind = "user" if case.record.subject_kind == "user" else "client"
        if need is not None and not need.within(kind, request.needed, request.by):
            raise Undecidable(
                "With these arguments the call needs more people, or others, than this request "
                "asks. Reject it, and let the call be made with them."
            )
        kept = self.cabinet.seal(request.id, Sealed(sealed.arguments, arguments))
        return {"sealed": kept, "edited": shown}

    def _words(self, tenant: str, reason: str) -> str:
        reason = reason.strip()
        if len(reason) > MOST_REASON:
            raise Undecidable(f"A reason has at most {MOST_REASON} characters.")
        return self.cabinet.clean(tenant, reason)

"""Scripts that wait for an administrator (P11), or were rejected, among the calls that do."""

from collections.abc import Callable
from typing import Literal

import msgspec

from gatepost.approvals import judgement
from gatepost.approvals.herald import Herald
from gatepost.approvals.reach import IsCut, is_dropped, nobody
from gatepost.approvals.request import (
    Approver,
    Decision,
    Party,
    Request,
    Undecidable,
    party_of,
)
from gatepost.packs.scripts.approvals import SUBJECT, Approvals, Judge, Rejection, Review
from gatepost.packs.scripts.script import Script
from gatepost.stores.api import Records

PREFIX = "script:"
"""Begins the id of a script that waits, or was rejected; its digest follows."""
BY = (("role:admin",),)

GONE = "Nothing of that content waits any more; look at what waits now."


class Scripts:
    """
    The scripts of all tenants about which people decide, and who is told; part of the desk.

    What somebody wanted to run who is shut out waits no more, wherever it is looked at.
    """

    def __init__(
        self,
        records: Records,
        herald: Herald,
        clock: Callable[[], float],
        *,
        is_cut: IsCut = nobody,
    ) -> None:
        self.herald = herald
        self._records, self._clock, self._is_cut = records, clock, is_cut

    async def waiting(self, tenant: str) -> list[Request]:
        """Every script of the tenant that waits, the oldest first."""
        approvals = self._of(tenant)
        reviews = await approvals.waiting()
        if not reviews:
            return []
        approved = {one.name: one.content for one in await approvals.all_approved()}
        found = [_request(tenant, one, approved.get(one.name)) for one in reviews]
        return [one for one in found if not is_dropped(one, self._is_cut)]

    async def rejected(self, tenant: str) -> list[Request]:
        """Every script of the tenant that was rejected and does not wait again, the last first."""
        rejections = await self._of(tenant).rejected()
        return [_request(tenant, one.review, None, one) for one in rejections]

    async def one(self, tenant: str, request_id: str) -> Request | None:
        """The script of that id, if it waits or was rejected."""
        found = await self._found(tenant, request_id)
        return None if found is None else found[0]

    async def decide(
        self,
        tenant: str,
        request_id: str,
        by: Approver,
        decision: Decision,
        *,
        seen: str | None = None,
        until: float,
    ) -> Request:
        """
        Let what waits, or was rejected, run, or reject it *until* then; Undecidable.

        *seen* is the `digest` of the request as *by* saw it.
        """
        await self.withdraw(tenant)
        verdict = decision.verdict
        decided = await self._judged(tenant, request_id, by, decision, until)
        if seen is not None and seen != decided.digest:
            raise Undecidable(GONE)
        await self.herald.record(verdict, decided, by)
        if not await self._keep(decided):
            await self.herald.record("void", decided, by)
            raise Undecidable(GONE)
        await self.herald.request(verdict, decided, by, on_record=True)
        return decided

    async def allow(self, tenant: str, script: Script, by: Approver) -> None:
        """
        Let exactly this script run, though nobody may have called it: for whoever runs the server,
        who reads the files themselves. Undecidable for what is no text.
        """
        now, digest = self._clock(), script.digest
        if script.text is None:
            raise Undecidable(f"{script.file} is no UTF-8 text, so nobody can approve it.")
        known = await self.one(tenant, PREFIX + digest)
        request = known or _unasked(tenant, _reviewed(script, now))
        decided = _decided(request, Decision(by=party_of(by), verdict="approved", at=now))
        await self.herald.record("approved", decided, by)
        await self._of(tenant).approve(script, by=_judge(party_of(by)))
        await self.herald.request("approved", decided, by, on_record=True)

    async def revoke(
        self, tenant: str, name: str, by: Approver
    ) -> Literal["approved", "waiting"] | None:
        """Nothing of that name may run, or waits, any more; what there was."""
        approvals, now = self._of(tenant), self._clock()
        approved = await approvals.approved(name)
        known = [
            _request(tenant, one, None) for one in await approvals.waiting() if one.name == name
        ]
        if approved is not None:
            known.append(_unasked(tenant, approved))
        ended = [msgspec.structs.replace(one, state="withdrawn", decided_at=now) for one in known]
        for request in ended:
            await self.herald.record("revoked", request, by)
        was = await approvals.revoke(name)
        for request in ended:
            if was is None:
                await self.herald.record("void", request, by)
            else:
                await self.herald.request("revoked", request, by, on_record=True)
        return was

    async def withdraw(self, tenant: str) -> int:
        """Let what somebody wanted to run who is shut out wait no more; how many there were."""
        approvals, gone = self._of(tenant), 0
        for review in await approvals.waiting():
            request = _request(tenant, review, None)
            if is_dropped(request, self._is_cut) and await approvals.drop(review.digest):
                ended = msgspec.structs.replace(
                    request, state="withdrawn", decided_at=self._clock()
                )
                await self.herald.request("withdrawn", ended)
                gone += 1
        return gone

    async def tidy(self) -> int:
        """Forget rejections whose time is over, of every tenant; how many."""
        tenants = await self._records.tenants(SUBJECT)
        return sum([await self._of(tenant).tidy() for tenant in tenants])

    def _of(self, tenant: str, now: float | None = None) -> Approvals:
        clock = self._clock if now is None else lambda: now
        return Approvals(self._records.of(tenant).entries(SUBJECT), clock=clock)

    async def _found(self, tenant: str, request_id: str) -> tuple[Request, Review] | None:
        approvals, digest = self._of(tenant), request_id.removeprefix(PREFIX)
        known: list[tuple[Review, Rejection | None]]
        known = [(review, None) for review in await approvals.waiting()]
        known += [(rejection.review, rejection) for rejection in await approvals.rejected()]
        for review, rejection in known:
            if review.digest != digest:
                continue
            before = await approvals.approved(review.name)
            content = None if before is None else before.content
            request = _request(tenant, review, content, rejection)
            is_gone = rejection is None and is_dropped(request, self._is_cut)
            return None if is_gone else (request, review)
        return None

    async def _judged(
        self, tenant: str, request_id: str, by: Approver, decision: Decision, until: float
    ) -> Request:
        """The script as it is once this is decided; Undecidable."""
        request = await self.one(tenant, request_id)
        if request is None:
            raise Undecidable(GONE)
        judged = objection if decision.verdict == "approved" else judgement.objection
        if (why := judged(request, by, now=decision.at)) is not None:
            raise Undecidable(why)
        if decision.verdict == "rejected":
            request = msgspec.structs.replace(request, until=until)
        return _decided(request, decision)

    async def _keep(self, request: Request) -> bool:
        """Let what was decided count; False when somebody else was faster."""
        decision = request.decisions[-1]
        found = await self._found(request.tenant, request.id)
        if found is None:
            return False
        _, review = found
        # It is kept with the time that everybody was told.
        approvals = self._of(request.tenant, decision.at)
        by = _judge(decision.by)
        if decision.verdict == "approved":
            script = Script(review.name, review.content.encode(), review.place)
            await approvals.approve(script, by=by)
            return True
        return await approvals.reject(review, by=by, reason=decision.reason, until=request.until)


def _reviewed(script: Script, now: float) -> Review:
    return Review(
        name=script.name,
        digest=script.digest,
        content=script.text or "",
        place=script.place,
        by="",
        at=now,
    )


def _unasked(tenant: str, review: Review) -> Request:
    """What no call is known to have asked for."""
    return msgspec.structs.replace(_request(tenant, review, None), caller=Party(subject=""))


def _judge(party: Party) -> Judge:
    return Judge(
        subject=party.subject,
        issuer=party.issuer,
        name=party.name,
        operator=party.kind == "operator",
    )


def objection(request: Request, who: Approver, *, now: float) -> str | None:
    """Why this person cannot approve it, after all or at once; None when they can."""
    if request.state == "rejected":
        # Whoever rejected it may think better of it: what was decided keeps nobody out.
        request = msgspec.structs.replace(request, state="waiting", decisions=())
    return judgement.objection(request, who, now=now)


async def tenants(records: Records) -> list[str]:
    """Every tenant for which anything may wait, or was decided."""
    calls = await records.estate.tenants("approvals", "grants")
    return sorted({*calls, *await records.tenants(SUBJECT)})


def _request(
    tenant: str, review: Review, approved: str | None, rejection: Rejection | None = None
) -> Request:
    request = Request(
        id=PREFIX + review.digest,
        tenant=tenant,
        kind="script",
        state="waiting",
        tool=f"{review.name}.star",
        caller=_asker(review),
        created_at=review.at,
        until=float("inf"),
        by=BY,
        content=review.content,
        approved_content=approved,
    )
    if rejection is None:
        return request
    by = rejection.by
    who = Party(
        subject=by.subject,
        issuer=by.issuer,
        kind="operator" if by.operator else "user",
        name=by.name,
    )
    decision = Decision(by=who, verdict="rejected", at=rejection.at, reason=rejection.reason)
    return _decided(msgspec.structs.replace(request, until=rejection.until), decision)


def _asker(review: Review) -> Party:
    """Whose call asked for it first; an older version kept the id alone."""
    asker = review.asker
    if asker is None:
        return Party(subject=review.by, name="" if review.by else "erased")
    return Party(
        subject=review.by,
        issuer=asker.issuer,
        kind=asker.kind,
        client_id=asker.client_id,
        actor=asker.actor,
        issued_at=asker.issued_at,
    )


def _decided(request: Request, decision: Decision) -> Request:
    return msgspec.structs.replace(
        request,
        state=decision.verdict,
        decided_at=decision.at,
        decisions=(*request.decisions, decision),
    )

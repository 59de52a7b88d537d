"""Calls that are approved before they are made: for one caller and tool, until a time or count."""

import secrets
from collections.abc import Callable

import msgspec

from gatepost.approvals.condition import BadCondition, Condition, Subject
from gatepost.approvals.filing import Cabinet, Case
from gatepost.approvals.herald import Herald
from gatepost.approvals.judgement import same
from gatepost.approvals.policy import Demand
from gatepost.approvals.reach import IsCut, nobody, stands
from gatepost.approvals.request import (
    Approver,
    Grant,
    GrantTerms,
    Operator,
    Party,
    Undecidable,
    party_of,
)
from gatepost.stores.api import Records
from gatepost.stores.approvals import GrantRecord
from gatepost.tools.api import Call, Tool

USUAL_S = 86_400.0
LONGEST_S = 30 * 86_400.0
MOST_USES = 1_000_000
MOST_COMPILED = 1_000
PAGE = 100
REVOKERS = frozenset({"approver", "admin"})


class Given(msgspec.Struct, frozen=True):
    """What is kept of a grant beside its record's columns."""

    grant: Grant
    policy: str
    digest: bytes
    """Of the arguments that it was given with."""
    by: tuple[tuple[str, ...], ...] = ()
    """What was known to be true of whoever gave it, as in a request."""


_decode = msgspec.msgpack.Decoder(Given).decode


class Granting:
    """Gives grants, finds the one that a call may use, and ends them."""

    def __init__(
        self,
        records: Records,
        cabinet: Cabinet,
        herald: Herald,
        clock: Callable[[], float],
        *,
        is_cut: IsCut = nobody,
    ) -> None:
        self._records, self._cabinet, self._herald = records, cabinet, herald
        self._clock, self._is_cut = clock, is_cut
        self._conditions: dict[str, Condition] = {}

    def check(self, case: Case, terms: GrantTerms, edited: bytes | None) -> None:
        """Undecidable for terms that cannot be given with this request."""
        if case.request.needed > 1:
            raise Undecidable("Two people decide about each such call, so none is granted before.")
        if edited is not None:
            raise Undecidable("Edited arguments are for one call. Approve without a grant.")
        if terms.until is None and terms.uses is None:
            raise Undecidable("Say until when the grant holds, or for how many calls.")
        now = self._clock()
        if terms.until is not None and not now < terms.until <= now + LONGEST_S:
            raise Undecidable("A grant ends within 30 days from now.")
        if terms.uses is not None and not 0 < terms.uses <= MOST_USES:
            raise Undecidable(f"A grant is for 1 to {MOST_USES} calls.")
        if terms.when is not None:
            try:
                Condition(terms.when)
            except BadCondition as bad:
                raise Undecidable(f"The condition cannot be used: {bad}.") from None

    async def give(self, case: Case, terms: GrantTerms, by: Approver) -> None:
        """Keep a grant whose terms were checked."""
        request, now = case.request, self._clock()
        grant = Grant(
            id=secrets.token_hex(12),
            tenant=request.tenant,
            caller=request.caller,
            tool=request.tool,
            when=terms.when,
            arguments=request.arguments,
            until=terms.until if terms.until is not None else now + USUAL_S,
            left=terms.uses,
            created_at=now,
            by=party_of(by),
            request=request.id,
        )
        record = GrantRecord(
            id=grant.id,
            tool=grant.tool,
            issuer=case.record.issuer,
            subject=case.record.subject,
            subject_kind=case.record.subject_kind,
            client_id=case.record.client_id,
            remaining=grant.left,
            created_at=now,
            expires_at=grant.until,
            details=msgspec.msgpack.encode(
                Given(grant, case.file.policy, case.file.digest, request.by)
            ),
        )
        await self._records.of(request.tenant).grants.add(record)
        await self._herald.grant("granted", grant, by)

    async def all(self, tenant: str) -> list[Grant]:
        """Those in force, the oldest first."""
        found = map(_grant, await self._records.of(tenant).grants.all(self._clock()))
        return [one for one in found if stands(one, self._is_cut)]

    async def use(self, call: Call, tool: Tool, subject: Subject, demand: Demand) -> str | None:
        """
        The id of a grant that the call has used up one call of, durably; None: there is none.

        It lets nothing pass that whoever gave it could not have approved alone, and nothing at all
        once they, or those whose calls it was given for, are shut out.
        """
        caller, now, need = call.caller, self._clock(), demand.need(subject)
        if need is None or need.approvals > 1:
            return None
        grants = self._records.of(caller.tenant_id).grants
        digest = None
        for record in await grants.of(tool.name, caller.issuer, caller.subject, now):
            given = _decode(record.details)
            whom = (record.subject_kind, record.client_id, given.grant.caller.actor)
            if (
                whom != (caller.subject_kind, caller.client_id, caller.actor)
                or given.policy != demand.version
                or not stands(given.grant, self._is_cut)
            ):
                continue
            operator = given.grant.by.kind == "operator"
            if not operator and not need.within(caller.subject_kind, 1, given.by):
                continue
            if given.grant.when is None:
                digest = digest or self._cabinet.digest(tool, call.arguments)
                covered = given.digest == digest
            else:
                covered = self._condition(given.grant.when).holds(subject) is True
            if covered and await grants.spend(record.id, now):
                await self._herald.grant("grant_used", given.grant)
                return record.id
        return None

    async def revoke(self, tenant: str, grant_id: str, by: Approver) -> bool:
        """End one; whether there was one. Undecidable for who neither gave it nor approves."""
        grants = self._records.of(tenant).grants
        found = [one for one in await grants.all(self._clock()) if one.id == grant_id]
        if not found:
            return False
        gave = same(_grant(found[0]).by, by)
        if not gave and not isinstance(by, Operator) and REVOKERS.isdisjoint(by.roles):
            raise Undecidable("Whoever gave a grant ends it, or an approver or administrator.")
        if not await grants.revoke(grant_id):
            return False
        await self._herald.grant("grant_revoked", _grant(found[0]), by)
        return True

    async def withdraw(self, tenant: str) -> int:
        """End those that rest on somebody who is shut out; how many there were."""
        grants, count, after = self._records.of(tenant).grants, 0, ""
        while page := await grants.page(after, PAGE):
            for record in page:
                grant = _grant(record)
                if not stands(grant, self._is_cut) and await grants.revoke(record.id):
                    count += 1
                    await self._herald.grant("grant_revoked", grant)
            after = page[-1].id
        return count

    def _condition(self, text: str) -> Condition:
        found = self._conditions.get(text)
        if found is None:
            if len(self._conditions) >= MOST_COMPILED:
                self._conditions.clear()
            found = self._conditions[text] = Condition(text)
        return found


def _grant(record: GrantRecord) -> Grant:
    grant = _decode(record.details).grant
    return msgspec.structs.replace(grant, left=record.remaining, until=record.expires_at)


def giver_of(record: GrantRecord) -> Party:
    """Who gave a grant."""
    return _decode(record.details).grant.by

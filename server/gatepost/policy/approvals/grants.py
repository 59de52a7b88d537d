"""Grants: calls approved in advance for one caller and tool, until a time or a number of calls."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from functools import lru_cache

import msgspec

from gatepost.config.approvals import ApprovalsSettings
from gatepost.execution.cpu_thread import in_cpu_thread
from gatepost.policy.approvals.approval_request import (
    ApprovalGrant,
    Approver,
    GrantScope,
    Operator,
    Undecidable,
    definition_of,
    party_of,
)
from gatepost.policy.approvals.conditions import BadCondition, Condition, ConditionVariables
from gatepost.policy.approvals.notifications import ApprovalNotifier
from gatepost.policy.approvals.policies import (
    ApprovalNeed,
    IsRevoked,
    is_same_person,
    is_valid_grant,
)
from gatepost.policy.approvals.stored_request import StoredApproval
from gatepost.storage.approvals import (
    ApprovalMatches,
    GrantCount,
    GrantQuota,
    GrantRecord,
    GrantStore,
)
from gatepost.storage.records import Records
from gatepost.tools.offers.offer import Call, Tool
from gatepost.tools.schemas.argument_size import SHORT_BYTES

DEFAULT_S = 86_400.0
LONGEST_S = 30 * 86_400.0
MAX_USES = 1_000_000
MAX_COMPILED = 1_000
MAX_EXACT_BYTES = 16_384
"""The largest arguments of a grant for exactly these; up to thousands of grants keep theirs."""
PAGE = 100
REVOKERS = frozenset({"approver", "admin"})
OF_CALLER = (
    "This caller already has {} valid grants for this tool, and "
    "`approvals.max_grants_per_caller_and_tool` allows no more."
)
OF_TENANT = (
    "This tenant already has {} valid grants, and `approvals.max_grants_per_tenant` allows no more."
)
TOO_LONG = (
    "A grant for exactly these arguments keeps them, and they have {} bytes; at most {} are kept. "
    "Grant calls that match a condition, or approve this call without a grant."
)
WAY_OUT = "Revoke one that is not needed (page Grants), or approve this call without a grant."


class GrantFields(msgspec.Struct, frozen=True):
    """The details of a grant that are stored beside its record's columns."""

    grant: ApprovalGrant
    policy: str
    digest: bytes
    """Digest of the arguments of the approved request."""
    by: tuple[tuple[str, ...], ...] = ()
    """The requirements that the approver of the grant met, as in a request."""
    definition: str = ""
    """The digest of the tool's definition and its upstream's place, as in a request."""


_decode = msgspec.msgpack.Decoder(GrantFields).decode


class CallApprovals(msgspec.Struct, frozen=True, kw_only=True):
    """The approvals that were stored for a call when it was made."""

    digest: bytes
    """The digest of the call's arguments."""
    binding: bytes
    """The binding of its request (`binding_of`)."""
    policy: str
    """The version of the tool's policy."""
    matches: ApprovalMatches


class GrantService:
    """Give grants, find the one that a call may use, and end them."""

    def __init__(
        self,
        records: Records,
        notifier: ApprovalNotifier,
        clock: Callable[[], float],
        *,
        is_revoked: IsRevoked,
    ) -> None:
        self._records, self._notifier = records, notifier
        self._clock, self._is_revoked = clock, is_revoked

    def apply(self, settings: ApprovalsSettings) -> None:
        """Hold callers and tenants to these quotas from now on."""
        self._quota = GrantQuota(
            settings.max_grants_per_caller_and_tool, settings.max_grants_per_tenant
        )

    async def check(
        self, approval: StoredApproval, scope: GrantScope, edited: bytes | None
    ) -> None:
        """Raise Undecidable for a grant that cannot be given with this request."""
        if approval.request.needed > 1:
            raise Undecidable("Two people have to approve each such call, so no grant is possible.")
        if edited is not None:
            raise Undecidable("Edited arguments are for one call. Approve without a grant.")
        if scope.until is None and scope.uses is None:
            raise Undecidable("Say until when the grant holds, or for how many calls.")
        now = self._clock()
        if scope.until is not None and not now < scope.until <= now + LONGEST_S:
            raise Undecidable("A grant ends within 30 days from now.")
        if scope.uses is not None and not 0 < scope.uses <= MAX_USES:
            raise Undecidable(f"A grant is for 1 to {MAX_USES} calls.")
        if scope.when is not None:
            try:
                Condition(scope.when)
            except BadCondition as error:
                raise Undecidable(f"The condition cannot be used: {error}.") from None
        elif (size := len(approval.request.arguments)) > MAX_EXACT_BYTES:
            raise Undecidable(TOO_LONG.format(size, MAX_EXACT_BYTES))
        record = approval.record
        count = await self._records.for_tenant(approval.request.tenant).grants.count(
            record.tool, record.issuer, record.subject, record.subject_kind, now
        )
        if count.exceeds(self._quota):
            raise Undecidable(f"{self._reason(count)} {WAY_OUT}")

    async def give(self, approval: StoredApproval, scope: GrantScope, by: Approver) -> None:
        """
        Record and store a grant that was checked.

        Undecidable if other grants have reached the quota since; the approval counts all the same.
        Raises StoreUnavailable.
        """
        request, now = approval.request, self._clock()
        grant = ApprovalGrant(
            id=secrets.token_hex(12),
            tenant=request.tenant,
            caller=request.caller,
            tool=request.tool,
            when=scope.when,
            arguments=request.arguments if scope.when is None else b"{}",
            until=scope.until if scope.until is not None else now + DEFAULT_S,
            left=scope.uses,
            created_at=now,
            by=party_of(by),
            request=request.id,
        )
        record = GrantRecord(
            id=grant.id,
            tool=grant.tool,
            issuer=approval.record.issuer,
            subject=approval.record.subject,
            subject_kind=approval.record.subject_kind,
            client_id=approval.record.client_id,
            remaining=grant.left,
            created_at=now,
            expires_at=grant.until,
            details=msgspec.msgpack.encode(
                GrantFields(
                    grant,
                    approval.request.policy,
                    approval.details.digest,
                    request.by,
                    "" if request.facts is None else request.facts.definition,
                )
            ),
        )
        await self._notifier.record("granted", grant, by)
        count = await self._records.for_tenant(request.tenant).grants.add(record, self._quota)
        if count is not None:
            await self._notifier.record("void", grant, by)
            raise Undecidable(f"The call is approved, without a grant. {self._reason(count)}")
        await self._notifier.announce("granted", grant, by, is_recorded=True)

    async def all(self, tenant: str) -> list[ApprovalGrant]:
        """Return the valid grants, the oldest first."""
        return self._valid(await self._records.for_tenant(tenant).grants.all(self._clock()))

    async def valid_page(
        self, tenant: str, after: tuple[float, str] | None = None
    ) -> tuple[list[ApprovalGrant], tuple[float, str] | None]:
        """Return a page of the valid grants, and *after* for the next page, or None."""
        grants = self._records.for_tenant(tenant).grants
        records = await grants.valid_page(self._clock(), PAGE + 1, after)
        last = records[PAGE - 1] if len(records) > PAGE else None
        return self._valid(records[:PAGE]), None if last is None else (last.created_at, last.id)

    async def use(
        self,
        call: Call,
        tool: Tool,
        subject: ConditionVariables,
        need: ApprovalNeed,
        call_approvals: CallApprovals,
    ) -> str | None:
        """
        Use up one call of a grant, durably; return its id, or None if no grant covers the call.

        *need* is what the tool's policy asks for this call.

        A grant covers only calls that its approver could have approved alone. It covers none once
        the approver or the grant's caller is revoked.
        """
        caller, now, is_long = call.caller, self._clock(), len(call.arguments) > SHORT_BYTES
        if need.approvals > 1:
            return None
        grants = self._records.for_tenant(caller.tenant_id).grants
        for record in call_approvals.matches.grants:
            details = _decode(record.details)
            owner = (record.subject_kind, record.client_id, details.grant.caller.actor)
            if (
                owner != (caller.subject_kind, caller.client_id, caller.actor)
                or details.policy != call_approvals.policy
                or details.definition != definition_of(tool)
                or not is_valid_grant(details.grant, self._is_revoked)
            ):
                continue
            operator = details.grant.by.kind == "operator"
            if not operator and not need.is_met_by(party_of(caller), 1, details.by):
                continue
            if details.grant.when is None:
                covered = details.digest == call_approvals.digest
            else:
                holds = _condition(details.grant.when).is_true
                value = await in_cpu_thread(caller, holds, subject) if is_long else holds(subject)
                covered = value is True
            if covered and await grants.spend(record.id, now):
                await self._notifier.announce("grant_used", details.grant)
                return record.id
        return None

    async def revoke(self, tenant: str, grant_id: str, by: Approver) -> bool:
        """End a grant; return whether it existed. Undecidable if *by* may not do so."""
        grants = self._records.for_tenant(tenant).grants
        record = await grants.get(grant_id, self._clock())
        if record is None:
            return False
        is_giver = is_same_person(_grant(record).by, by)
        if not is_giver and not isinstance(by, Operator) and REVOKERS.isdisjoint(by.roles):
            raise Undecidable("Only its giver, an approver or an administrator can end a grant.")
        if not await grants.revoke(grant_id):
            return False
        await self._notifier.announce("grant_revoked", _grant(record), by)
        return True

    async def withdraw(self, tenant: str) -> int:
        """End the grants of and by revoked people; return their number."""
        grants, count = self._records.for_tenant(tenant).grants, 0
        async for record in _all(grants):
            grant = _grant(record)
            if not is_valid_grant(grant, self._is_revoked) and await grants.revoke(record.id):
                count += 1
                await self._notifier.announce("grant_revoked", grant)
        return count

    def _valid(self, records: Iterable[GrantRecord]) -> list[ApprovalGrant]:
        return [grant for grant in map(_grant, records) if is_valid_grant(grant, self._is_revoked)]

    def _reason(self, count: GrantCount) -> str:
        if count.of_caller_and_tool >= self._quota.per_caller_and_tool:
            return OF_CALLER.format(count.of_caller_and_tool)
        return OF_TENANT.format(count.of_tenant)


_condition = lru_cache(MAX_COMPILED)(Condition)


def _grant(record: GrantRecord) -> ApprovalGrant:
    grant = _decode(record.details).grant
    return msgspec.structs.replace(grant, left=record.remaining, until=record.expires_at)


async def revoke_given(grants: GrantStore, issuer: str, subject: str) -> int:
    """Revoke all grants that a person has given, to erase the person; return their number."""
    count = 0
    async for record in _all(grants):
        giver = _decode(record.details).grant.by
        if (giver.issuer, giver.subject) == (issuer, subject):
            count += await grants.revoke(record.id)
    return count


async def _all(grants: GrantStore) -> AsyncIterator[GrantRecord]:
    after = ""
    while page := await grants.page(after, PAGE):
        for record in page:
            yield record
        after = page[-1].id

"""Approval requests of a tenant: those that wait until they expire, and those that are decided."""

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Protocol

import msgspec
from msgspec.structs import replace

from gatepost.background import during
from gatepost.policy.approvals.approval_request import (
    ERASED,
    SCRIPT_PREFIX,
    ApprovalDecision,
    ApprovalRequest,
    Approver,
    Use,
)
from gatepost.policy.approvals.request_store import RequestStore
from gatepost.policy.approvals.stored_request import approval_of
from gatepost.storage.approvals import ApprovalRecord, ApprovalStore
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records

PAGE = 50
MAX_READ = 200
"""Requests that are read at once to erase a person from all."""
DUE = 100
"""Requests that are looked up at once to expire them."""
EXPIRE_EVERY_S = 5.0
TIDY_EVERY = 720
"""Rejected scripts, which are kept for weeks, are removed every so many runs (about an hour)."""
RANDOM = random.SystemRandom()

USES: Mapping[Use, str] = {
    "running": "The call is being made with this approval.",
    "unknown": "The call had begun, and its outcome is unknown: its server is gone. Check what was "
    "done before you approve the same call again.",
}
"""The texts that approvers are shown for a call that has begun."""

log = logging.getLogger(__name__)

WaitingSince = tuple[float, str]
"""The `created_at` and the id of a request, by which those that wait are ordered."""


def place_of(request: ApprovalRequest) -> WaitingSince:
    """Return where a request is among those that wait."""
    return request.created_at, request.id


def cursor_of(place: WaitingSince) -> str:
    """Return a place as text, which `place_at` reads."""
    created_at, request_id = place
    return f"{created_at!r}~{request_id}"


def place_at(cursor: str) -> WaitingSince | None:
    """Return the place that a cursor names, or None if it is no cursor."""
    at, _, request_id = cursor.partition("~")
    try:
        created_at = float(at)
    except ValueError:
        return None
    return (created_at, request_id) if math.isfinite(created_at) and request_id else None


class WaitingPage(msgspec.Struct, frozen=True):
    """One page of the requests that wait, the oldest first."""

    requests: tuple[ApprovalRequest, ...] = ()
    later: str = ""
    """The cursor of the next page; empty on the last one."""


class ScriptRequests(Protocol):
    """The requests for scripts; its methods raise StoreUnavailable, except `objection`."""

    async def tenants(self) -> set[str]:
        """Return the tenants with approved, waiting or rejected scripts."""

    async def waiting(self, tenant: str) -> list[ApprovalRequest]:
        """Return the tenant's waiting scripts, the oldest first."""

    async def rejected(self, tenant: str) -> list[ApprovalRequest]:
        """Return the tenant's rejected scripts that do not wait again, the latest first."""

    async def get(self, tenant: str, request_id: str) -> ApprovalRequest | None:
        """Return the script with that id if it waits or was rejected."""

    def objection(self, request: ApprovalRequest, approver: Approver) -> str | None:
        """Return a sentence why *approver* cannot approve the script, or None."""

    async def decide(
        self,
        tenant: str,
        request_id: str,
        by: Approver,
        decision: ApprovalDecision,
        *,
        seen_digest: str | None = None,
        until: float,
    ) -> ApprovalRequest:
        """Approve a script, or reject it *until* then; Undecidable says why not."""

    async def withdraw(self, tenant: str) -> int:
        """Withdraw the waiting scripts of revoked callers; return their number."""

    async def remove_expired(self) -> int:
        """Remove expired rejections of all tenants; return their number."""


class RequestLists:
    """
    The requests of a tenant for calls and for scripts, in one order.

    All methods raise StoreUnavailable.
    """

    def __init__(self, records: Records, requests: RequestStore, scripts: ScriptRequests) -> None:
        self.records, self.requests, self._scripts = records, requests, scripts

    async def tenants(self) -> set[str]:
        """Return the tenants that have requests, grants or scripts."""
        of_calls = await self.records.tenant_data.tenants("approval_requests", "grants")
        return {*of_calls, *await self._scripts.tenants()}

    @asynccontextmanager
    async def expiring(self, *, every_s: float = EXPIRE_EVERY_S) -> AsyncIterator[None]:
        """Expire requests that are not decided in time, in the background, during a block."""
        async with during("expiry", lambda: self._expire_always(every_s)):
            yield

    async def _expire_always(self, every_s: float) -> None:
        for run in count():
            # Random, so that replicas do not query at the same time.
            await asyncio.sleep(every_s * RANDOM.uniform(0.7, 1.1))
            try:
                await self.expire_due()
                if run % TIDY_EVERY == 0:
                    await self._scripts.remove_expired()
            except StoreUnavailable as outage:
                log.debug("approvals_not_expired", extra={"reason": str(outage)})

    async def expire_due(self) -> int:
        """Expire due requests of all tenants; return their number."""
        now, expired = self.requests.clock(), 0
        due_before: set[tuple[str, str]] = set()
        while due := await self.records.overdue_approvals(now, len(due_before) + DUE):
            # Approvals whose calls still run stay due, and must not hide the requests behind them.
            if not (added := [key for key in due if key not in due_before]):
                break
            expired += sum([await self.requests.get(*key) is not None for key in added])
            due_before = set(due)
        return expired

    async def get(self, tenant: str, request_id: str) -> ApprovalRequest | None:
        """Return a call or script in any state; None if the tenant has none with this id."""
        if request_id.startswith(SCRIPT_PREFIX):
            return await self._scripts.get(tenant, request_id)
        approval = await self.requests.get(tenant, request_id)
        if approval is None:
            return None
        request = approval.request
        progress = await self.requests.progress(request)
        return replace(request, use=progress) if progress else request

    async def waiting_page(self, tenant: str, after: WaitingSince | None = None) -> WaitingPage:
        """Return a page of what `waiting` returns, and where the next one begins."""
        requests = await self.waiting(tenant, after=after, max_requests=PAGE + 1)
        page = tuple(requests[:PAGE])
        return WaitingPage(page, cursor_of(place_of(page[-1])) if len(requests) > PAGE else "")

    async def waiting(
        self, tenant: str, *, after: WaitingSince | None = None, max_requests: int = PAGE
    ) -> list[ApprovalRequest]:
        """
        Return calls and scripts that wait for approval, the oldest first, page by page.

        *after* is the place of the last request of the previous page.
        """
        requests = [
            script
            for script in await self._scripts.waiting(tenant)
            if not after or place_of(script) > after
        ]
        approvals = self.records.for_tenant(tenant).approvals
        position, missing = after, max_requests
        while missing:
            records = await approvals.waiting(missing, position)
            current = [await self.requests.current(approval_of(record)) for record in records]
            waiting = [
                approval.request
                for approval in current
                if approval and approval.request.state == "waiting"
            ]
            if len(records) == missing:
                position, missing = (records[-1].created_at, records[-1].id), missing - len(waiting)
            else:
                missing = 0
            requests += waiting
        return sorted(requests, key=place_of)[:max_requests]

    async def history(
        self, tenant: str, *, before: ApprovalRequest | None = None, max_requests: int = PAGE
    ) -> list[ApprovalRequest]:
        """Return calls and scripts that no longer wait, the last changed first, page by page."""
        approvals, position = self.records.for_tenant(tenant).approvals, None
        if before is not None and before.kind == "script":
            position = (before.decided_at or before.created_at, before.id)
        elif before is not None:
            record = await approvals.get(before.id)
            position = None if record is None else (record.changed_at, record.id)
        records = await approvals.ended(position, max_requests)
        decided = [approval_of(record) for record in records]
        # A request that has just ended moves to the first page, so read again.
        if any([await self.requests.current(approval) is not approval for approval in decided]):
            records = await approvals.ended(position, max_requests)
        requests = [
            ((record.changed_at, record.id), approval_of(record).request) for record in records
        ]
        for script in await self._scripts.rejected(tenant):
            decided_at = (script.decided_at or script.created_at, script.id)
            if position is None or decided_at < position:
                requests.append((decided_at, script))
        requests.sort(key=lambda entry: entry[0], reverse=True)
        return [request for _, request in requests[:max_requests]]


async def erase_decider(approvals: ApprovalStore, issuer: str, subject: str) -> int:
    """
    Erase a person from decisions about other people's calls; return the number of changed records.

    Waiting requests that they have approved need another approver. Raises StoreUnavailable; you can
    then call it again.
    """

    def is_by_subject(decision: ApprovalDecision) -> bool:
        return (decision.by.issuer, decision.by.subject) == (issuer, subject)

    changed = 0
    async for stored in _all(approvals):
        record: ApprovalRecord | None = stored
        while record is not None:
            details = approval_of(record).details
            if not any(map(is_by_subject, details.request.decisions)):
                break
            decisions = tuple(
                replace(decision, by=ERASED, reason="") if is_by_subject(decision) else decision
                for decision in details.request.decisions
                if record.state != "waiting" or not is_by_subject(decision)
            )
            request = replace(details.request, decisions=decisions)
            encoded = msgspec.msgpack.encode(replace(details, request=request))
            if await approvals.replace(replace(record, details=encoded)):
                changed += 1
                break
            record = await approvals.get(record.id)
    return changed


async def _all(approvals: ApprovalStore) -> AsyncIterator[ApprovalRecord]:
    position: tuple[float, str] | None = None
    while page := await approvals.waiting(MAX_READ, position):
        for record in page:
            yield record
        position = page[-1].created_at, page[-1].id
    position = None
    while page := await approvals.ended(position, MAX_READ):
        for record in page:
            yield record
        position = page[-1].changed_at, page[-1].id

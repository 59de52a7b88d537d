"""Requests that wait for a decision: their lists, page by page, and a call that waits for one."""

import math
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from gatepost.policy.approvals.notifications import TOPIC
from gatepost.policy.approvals.request import ApprovalDecision, ApprovalRequest, Approver
from gatepost.policy.approvals.request_store import RequestStore
from gatepost.policy.approvals.stored_request import approval_of
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore, WakeUps

PAGE = 50
POLL_S = 1.0
"""How often a waiting call polls, because notifications may be lost."""
COME_BACK_S = 5.0

WaitingSince = tuple[float, str]
"""The `created_at` and the id of a request, by which those that wait are ordered."""


def place_of(request: ApprovalRequest) -> WaitingSince:
    """Return where a request is among those that wait."""
    return request.created_at, request.id


def cursor_of(request: ApprovalRequest) -> str:
    """Return the place of a request as text, which `place_at` reads."""
    return f"{request.created_at!r}~{request.id}"


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
    """The requests for scripts, which have a store of their own (`ScriptReviews`)."""

    async def waiting(self, tenant: str) -> list[ApprovalRequest]:
        """Return the tenant's waiting scripts, the oldest first."""

    async def rejected(self, tenant: str) -> list[ApprovalRequest]:
        """Return the tenant's rejected scripts that do not wait again, the latest first."""

    async def get(self, tenant: str, request_id: str) -> ApprovalRequest | None:
        """Return the script with that id if it waits or was rejected."""

    def objection(self, request: ApprovalRequest, who: Approver) -> str | None:
        """Return a sentence why *who* cannot approve the script, or None."""

    async def decide(
        self,
        tenant: str,
        request_id: str,
        by: Approver,
        decision: ApprovalDecision,
        *,
        seen: str | None,
        until: float,
    ) -> ApprovalRequest:
        """Approve a script, or reject it *until* then; raises Undecidable."""

    async def withdraw(self, tenant: str) -> int:
        """Withdraw the waiting scripts of revoked callers; return their number."""

    async def tidy(self) -> int:
        """Remove expired rejections of all tenants; return their number."""


class RequestLists:
    """
    The requests of a tenant for calls and for scripts, in one order.

    All methods raise StoreUnavailable.
    """

    def __init__(self, records: Records, requests: RequestStore, scripts: ScriptRequests) -> None:
        self.records, self.requests, self._scripts = records, requests, scripts

    async def waiting_page(self, tenant: str, after: WaitingSince | None = None) -> WaitingPage:
        """Return a page of what `waiting` returns, and where the next one begins."""
        found = await self.waiting(tenant, after=after, most=PAGE + 1)
        page = tuple(found[:PAGE])
        return WaitingPage(page, cursor_of(page[-1]) if len(found) > PAGE else "")

    async def waiting(
        self, tenant: str, *, after: WaitingSince | None = None, most: int = PAGE
    ) -> list[ApprovalRequest]:
        """
        Return calls and scripts that wait for approval, the oldest first, page by page.

        *after* is the place of the last request of the previous page.
        """
        found = [
            one for one in await self._scripts.waiting(tenant) if not after or place_of(one) > after
        ]
        approvals = self.records.of(tenant).approvals
        place, left = after, most
        while left:
            records = await approvals.waiting(left, place)
            current = [await self.requests.current(approval_of(one)) for one in records]
            waiting = [one.request for one in current if one and one.request.state == "waiting"]
            if len(records) == left:
                place, left = (records[-1].created_at, records[-1].id), left - len(waiting)
            else:
                left = 0
            found += waiting
        return sorted(found, key=place_of)[:most]

    async def history(
        self, tenant: str, *, before: ApprovalRequest | None = None, most: int = PAGE
    ) -> list[ApprovalRequest]:
        """Return calls and scripts that no longer wait, the last changed first, page by page."""
        approvals, place = self.records.of(tenant).approvals, None
        if before is not None and before.kind == "script":
            place = (before.decided_at or before.created_at, before.id)
        elif before is not None:
            record = await approvals.get(before.id)
            place = None if record is None else (record.changed_at, record.id)
        records = await approvals.past(place, most)
        decided = [approval_of(one) for one in records]
        # A request that has just ended moves to the first page, so read again.
        if any([await self.requests.current(one) is not one for one in decided]):
            records = await approvals.past(place, most)
        found = [((one.changed_at, one.id), approval_of(one).request) for one in records]
        for script in await self._scripts.rejected(tenant):
            decided_at = (script.decided_at or script.created_at, script.id)
            if place is None or decided_at < place:
                found.append((decided_at, script))
        found.sort(key=lambda one: one[0], reverse=True)
        return [request for _, request in found[:most]]


class WaitingCall:
    """A call that waits for approval. *gone* returns whether its caller may wait no longer."""

    retry_after_s = COME_BACK_S

    def __init__(
        self,
        requests: RequestStore,
        shared_store: SharedStore,
        request: ApprovalRequest,
        url: str,
        gone: Callable[[], bool],
    ) -> None:
        self._requests, self._shared_store, self._gone = requests, shared_store, gone
        self._tenant, self._id = request.tenant, request.id
        self._until = request.until
        self.url = url
        self.message = pending(request)
        self.told = f"{self.message} {url}" if url else self.message

    async def over(self) -> None:
        """Return once the request is decided or the caller is gone; implements `Waiting`."""
        shared_store = self._shared_store.of(self._tenant)
        async with WakeUps(shared_store, TOPIC, message=self._id.encode()) as wake_ups:
            while not self._gone() and await self._is_open():
                await wake_ups.wait(POLL_S)

    async def _is_open(self) -> bool:
        try:
            return await self._requests.is_waiting(self._tenant, self._id)
        except StoreUnavailable:
            if self._until <= self._requests.clock():
                raise
            return True  # a short outage must not end a call that waits for minutes


def pending(request: ApprovalRequest) -> str:
    """Return the message for the agent about a waiting request."""
    until = time.strftime("%H:%M:%S UTC", time.gmtime(request.until))
    people = "a person's approval" if request.needed == 1 else "the approval of two people"
    return (
        f"This call of `{request.tool}` waits for {people} until {until}. It was not run yet. "
        "Wait for the decision; if you make the same call again, it joins the same request."
    )

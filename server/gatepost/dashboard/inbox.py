"""The first page: waiting requests, updated live."""

from collections.abc import AsyncIterator, Sequence

from gatepost.dashboard.live import LiveInbox
from gatepost.dashboard.navigation import PageLayout
from gatepost.dashboard.page import (
    DECIDERS,
    PageRequest,
    PageResponse,
    ServerSentEvent,
    redirect,
    stream,
)
from gatepost.dashboard.request_page import address
from gatepost.policy.approvals.request import ApprovalRequest
from gatepost.policy.approvals.service import ApprovalService


class InboxPage:
    """Render the first page."""

    def __init__(self, sheet: PageLayout, approvals: ApprovalService, live: LiveInbox) -> None:
        self._sheet, self._approvals, self._live = sheet, approvals, live

    async def show(self, visit: PageRequest) -> PageResponse:
        """Show the waiting requests; an operator who decides nothing has another first page."""
        if not visit.visitor.roles & DECIDERS:
            return redirect("/operations")
        requests = await self._approvals.waiting(visit.tenant)
        return self._sheet.page("waiting.html", visit, here="", requests=addressed(requests))

    async def live(self, visit: PageRequest) -> PageResponse:
        """Stream the list of waiting requests whenever it changes."""
        return stream(self._events(visit))

    async def _events(self, visit: PageRequest) -> AsyncIterator[ServerSentEvent]:
        async for requests in self._live.watch(visit.tenant):
            found = None if requests is None else addressed(requests)
            yield ServerSentEvent("inbox", self._sheet.part("inbox.html", visit, requests=found))


def addressed(requests: Sequence[ApprovalRequest]) -> list[tuple[ApprovalRequest, str]]:
    """Return each request with its path below the base."""
    return [(one, address(one)) for one in requests]

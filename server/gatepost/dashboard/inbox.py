"""The first page: waiting requests, updated live."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

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
from gatepost.policy.approvals.request import WaitingPage, place_at
from gatepost.policy.approvals.service import ApprovalService


class InboxPage:
    """Render the first page."""

    def __init__(self, sheet: PageLayout, approvals: ApprovalService, live: LiveInbox) -> None:
        self._sheet, self._approvals, self._live = sheet, approvals, live

    async def show(self, visit: PageRequest) -> PageResponse:
        """
        Show a page of the waiting requests; the first one is updated live.

        An operator who decides nothing has another first page.
        """
        if not visit.visitor.roles & DECIDERS:
            return redirect("/operations")
        after = place_at(visit.query.get("after", ""))
        found = await self._approvals.waiting_page(visit.tenant, after)
        return self._sheet.page(
            "waiting.html", visit, here="", is_first=after is None, **shown(found)
        )

    async def live(self, visit: PageRequest) -> PageResponse:
        """Stream the list of waiting requests whenever it changes."""
        return stream(self._events(visit))

    async def _events(self, visit: PageRequest) -> AsyncIterator[ServerSentEvent]:
        async for page in self._live.watch(visit.tenant):
            found = {"requests": None} if page is None else shown(page)
            yield ServerSentEvent("inbox", self._sheet.part("inbox.html", visit, **found))


def shown(page: WaitingPage) -> dict[str, Any]:
    """Return a page of requests, each with its path, and the path of the next page if any."""
    later = f"?{urlencode({'after': page.later})}" if page.later else ""
    return {"requests": [(one, address(one)) for one in page.requests], "later": later}

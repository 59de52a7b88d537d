"""The first page: waiting requests, updated live."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

from gatepost.dashboard.live import LiveInbox
from gatepost.dashboard.page import (
    DECIDERS,
    PageRequest,
    PageResponse,
    ServerSentEvent,
)
from gatepost.dashboard.request_page import address
from gatepost.dashboard.templating import Templates
from gatepost.policy.approvals.request_lists import WaitingPage, place_at
from gatepost.policy.approvals.service import ApprovalService


class InboxPage:
    """Render the first page."""

    def __init__(self, view: Templates, approvals: ApprovalService, live: LiveInbox) -> None:
        self._view, self._approvals, self._live = view, approvals, live

    async def show(self, page_request: PageRequest) -> PageResponse:
        """
        Show a page of the waiting requests; the first one is updated live.

        An operator who decides nothing has another first page.
        """
        if not page_request.user.roles & DECIDERS:
            return PageResponse(location="/operations")
        after = place_at(page_request.query.get("after", ""))
        page = await self._approvals.waiting_page(page_request.tenant, after)
        return await self._view.page(
            "waiting.html", page_request, tab="", is_first=after is None, **page_values(page)
        )

    async def live(self, page_request: PageRequest) -> PageResponse:
        """Stream the list of waiting requests whenever it changes."""
        return PageResponse(events=self._events(page_request))

    async def _events(self, page_request: PageRequest) -> AsyncIterator[ServerSentEvent]:
        async for page in self._live.watch(page_request.tenant):
            values = {"requests": None} if page is None else page_values(page)
            part = await self._view.part("inbox.html", page_request, **values)
            yield ServerSentEvent("inbox", part)


def page_values(page: WaitingPage) -> dict[str, Any]:
    """Return a page of requests, each with its path, and the path of the next page if any."""
    later = f"?{urlencode({'after': page.later})}" if page.later else ""
    return {"requests": [(request, address(request)) for request in page.requests], "later": later}

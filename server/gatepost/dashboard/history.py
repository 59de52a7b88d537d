"""The history page: closed requests, filtered and paginated."""

from collections.abc import Sequence
from urllib.parse import urlencode

import msgspec

from gatepost.dashboard.labels import STATES
from gatepost.dashboard.page import PageRequest, PageResponse
from gatepost.dashboard.request_page import address
from gatepost.dashboard.templating import Templates
from gatepost.policy.approvals.approval_request import ApprovalRequest, DisplayedParty
from gatepost.policy.approvals.service import ApprovalService

PAGE_SIZE = 25
MAX_LOOKED_AT = 500
"""Maximum number of requests read for one page; the next page continues after them."""


class HistoryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of the history; empty fields match everything."""

    state: str = ""
    tool: str = ""
    person: str = ""

    def fits(self, request: ApprovalRequest) -> bool:
        """Return whether the request matches; texts match in part and in any case."""
        if self.state and request.state != self.state:
            return False
        if self.tool and not _is_match(self.tool, request.tool, request.title):
            return False
        people = [request.caller, *(decision.by for decision in request.decisions)]
        return not self.person or any(_matches_party(self.person, party) for party in people)

    def query(self, **changes: str) -> str:
        """Return the filter as a URL query."""
        values = msgspec.structs.asdict(self) | changes
        return urlencode({name: value for name, value in values.items() if value})


class HistoryPage:
    """Render the history page."""

    def __init__(self, view: Templates, approvals: ApprovalService) -> None:
        self._view, self._approvals = view, approvals

    async def show(self, page_request: PageRequest) -> PageResponse:
        """Show one page of closed requests, last changed first."""
        query = page_request.query
        filter_ = HistoryFilter(
            state=query.get("state", "") if query.get("state") in STATES else "",
            tool=query.get("tool", "")[:200].strip(),
            person=query.get("person", "")[:200].strip(),
        )
        before = None
        if query.get("before"):
            before = await self._approvals.get(page_request.tenant, query["before"])
        requests, last = await self._page(page_request.tenant, filter_, before)
        return await self._view.page(
            "history.html",
            page_request,
            tab="/history",
            requests=[(request, address(request)) for request in requests],
            wanted=filter_,
            older=f"/history?{filter_.query(before=last.id)}" if last else "",
            is_first=before is None,
            states={key: word for key, word in STATES.items() if key != "waiting"},
        )

    async def _page(
        self, tenant: str, filter_: HistoryFilter, before: ApprovalRequest | None
    ) -> tuple[Sequence[ApprovalRequest], ApprovalRequest | None]:
        """Return the matching requests and the last one read; None if there are no more."""
        matching: list[ApprovalRequest] = []
        looked_at = 0
        while looked_at < MAX_LOOKED_AT:
            decided = await self._approvals.history(tenant, before=before)
            if not decided:
                return matching, None
            for request in decided:
                looked_at, before = looked_at + 1, request
                if filter_.fits(request):
                    matching.append(request)
                    if len(matching) == PAGE_SIZE:
                        return matching, request
        return matching, before


def _matches_party(name: str, party: DisplayedParty) -> bool:
    return _is_match(name, party.name, party.subject, party.client_id or "")


def _is_match(searched: str, *texts: str) -> bool:
    return any(searched.casefold() in text.casefold() for text in texts)

"""What was decided, expired or used: page by page, of some tools and people only."""

from collections.abc import Sequence
from urllib.parse import urlencode

import msgspec

from gatepost.approvals.desk import Desk
from gatepost.approvals.request import Party, Request
from gatepost.dashboard.review import address
from gatepost.dashboard.sheet import Sheet
from gatepost.dashboard.visit import Answer, Visit
from gatepost.dashboard.words import STATES

PAGE = 25
MOST_LOOKED_AT = 500
"""Requests that one page looks at to find what is wanted; the next page goes on from there."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests; empty is any."""

    state: str = ""
    tool: str = ""
    person: str = ""

    def fits(self, request: Request) -> bool:
        """Whether it is one of them; names and ids in any case, and parts of them."""
        if self.state and request.state != self.state:
            return False
        if self.tool and not _holds(self.tool, request.tool, request.title):
            return False
        people = [request.caller, *(one.by for one in request.decisions)]
        return not self.person or any(_is(self.person, one) for one in people)

    def query(self, **more: str) -> str:
        """The same in a link."""
        given = msgspec.structs.asdict(self) | more
        return urlencode({name: value for name, value in given.items() if value})


class History:
    """The page of what is over."""

    def __init__(self, sheet: Sheet, desk: Desk) -> None:
        self._sheet, self._desk = sheet, desk

    async def show(self, visit: Visit) -> Answer:
        """A page of it, the last changed first."""
        query = visit.query
        wanted = Wanted(
            state=query.get("state", "") if query.get("state") in STATES else "",
            tool=query.get("tool", "")[:200].strip(),
            person=query.get("person", "")[:200].strip(),
        )
        before = None
        if query.get("before"):
            before = await self._desk.get(visit.tenant, query["before"])
        found, last = await self._page(visit.tenant, wanted, before)
        return self._sheet.page(
            "history.html",
            visit,
            here="/history",
            requests=[(one, address(one)) for one in found],
            wanted=wanted,
            older=f"/history?{wanted.query(before=last.id)}" if last else "",
            is_first=before is None,
            states={key: word for key, word in STATES.items() if key != "waiting"},
        )

    async def _page(
        self, tenant: str, wanted: Wanted, before: Request | None
    ) -> tuple[Sequence[Request], Request | None]:
        """What fits, and the one behind which the next page begins; None: there is no more."""
        found: list[Request] = []
        looked_at = 0
        while looked_at < MOST_LOOKED_AT:
            some = await self._desk.history(tenant, before=before)
            if not some:
                return found, None
            for request in some:
                looked_at, before = looked_at + 1, request
                if wanted.fits(request):
                    found.append(request)
                    if len(found) == PAGE:
                        return found, request
        return found, before


def _is(wanted: str, party: Party) -> bool:
    return _holds(wanted, party.name, party.subject, party.client_id or "")


def _holds(wanted: str, *texts: str) -> bool:
    return any(wanted.casefold() in text.casefold() for text in texts)

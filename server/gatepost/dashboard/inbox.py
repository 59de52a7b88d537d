"""What waits for a person, as it changes."""

from collections.abc import AsyncIterator, Sequence

from gatepost.approvals.desk import Desk
from gatepost.approvals.request import Request
from gatepost.dashboard.live import Live
from gatepost.dashboard.review import address
from gatepost.dashboard.sheet import Sheet
from gatepost.dashboard.visit import Answer, Event, Visit, stream


class Inbox:
    """The first page."""

    def __init__(self, sheet: Sheet, desk: Desk, live: Live) -> None:
        self._sheet, self._desk, self._live = sheet, desk, live

    async def show(self, visit: Visit) -> Answer:
        """What waits now."""
        requests = await self._desk.waiting(visit.tenant)
        return self._sheet.page("waiting.html", visit, here="", requests=addressed(requests))

    async def live(self, visit: Visit) -> Answer:
        """The same, again and again."""
        return stream(self._events(visit))

    async def _events(self, visit: Visit) -> AsyncIterator[Event]:
        async for requests in self._live.watch(visit.tenant):
            found = None if requests is None else addressed(requests)
            yield Event("inbox", self._sheet.part("inbox.html", visit, requests=found))


def addressed(requests: Sequence[Request]) -> list[tuple[Request, str]]:
    """Each with its path below the base."""
    return [(one, address(one)) for one in requests]

"""The pages there are."""

from gatepost.dashboard.view import View
from gatepost.dashboard.visit import Answer, Page, Visit
from gatepost.services import Services


def pages(services: Services, view: View) -> tuple[Page, ...]:
    """The dashboard's routing table."""

    async def first(visit: Visit) -> Answer:
        return view.page("layout.html", visit)

    return (Page(path="", get=first),)

"""Render pages with their navigation and time."""

import time
from collections.abc import Callable

from gatepost.dashboard.page import PageRequest, PageResponse
from gatepost.dashboard.templating import Templates


class PageLayout:
    """Render pages; *clock* returns the time that they show."""

    def __init__(self, view: Templates, *, clock: Callable[[], float] = time.time) -> None:
        self._view, self.clock = view, clock

    def page(
        self,
        name: str,
        page_request: PageRequest,
        *,
        tab: str,
        status: int = 200,
        **values: object,
    ) -> PageResponse:
        """Return the page of a template; *tab* is its path in the navigation."""
        return self._view.page(
            name, page_request, status=status, tab=tab, now=self.clock(), **values
        )

    def part(self, name: str, page_request: PageRequest, **values: object) -> str:
        """Return a part of a page, for htmx."""
        return self._view.render(name, page_request, now=self.clock(), **values)

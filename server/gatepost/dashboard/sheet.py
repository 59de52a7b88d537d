"""One page of the dashboard as it is drawn: in its place in the navigation, at its time."""

import time
from collections.abc import Callable

from gatepost.dashboard.view import View
from gatepost.dashboard.visit import Answer, Visit


class Sheet:
    """Draws pages; *clock* says what time they show."""

    def __init__(self, view: View, *, clock: Callable[[], float] = time.time) -> None:
        self._view, self.clock = view, clock

    def page(
        self, name: str, visit: Visit, *, here: str, status: int = 200, **values: object
    ) -> Answer:
        """The page of that template; *here* is the path of its entry in the navigation."""
        return self._view.page(name, visit, status=status, here=here, now=self.clock(), **values)

    def part(self, name: str, visit: Visit, **values: object) -> str:
        """A part of a page, for htmx."""
        return self._view.render(name, visit, now=self.clock(), **values)

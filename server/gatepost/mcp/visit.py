"""A page that the person at an older client may open while somebody else decides."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from gatepost.tools.asking import Misanswered, check_answer
from gatepost.tools.client import InputRequest, Waiting


class Visit:
    """
    A `Waiting` that is over, too, when the person at the client wants no answer any more.

    *asking* shows the page and brings what came back. Nothing in that is a decision, and a client
    that fails at it waits like one that was not asked.
    """

    def __init__(
        self, waiting: Waiting, page: InputRequest, asking: Awaitable[Mapping[str, Any]]
    ) -> None:
        self.message, self.url = waiting.message, waiting.url
        self.retry_after_s = waiting.retry_after_s
        self._waiting, self._page = waiting, page
        self._asking = asyncio.ensure_future(asking)

    @property
    def is_open(self) -> bool:
        """Whether the client still shows the page."""
        return not self._asking.done()

    @property
    def declined(self) -> bool:
        """Whether the person at the client wants no answer any more."""
        asking = self._asking
        if not asking.done() or asking.cancelled() or asking.exception() is not None:
            return False
        try:
            return bool(check_answer(self._page, asking.result())["action"] != "accept")
        except Misanswered:
            return False

    async def over(self) -> None:
        """See `Waiting`."""
        over = asyncio.ensure_future(self._waiting.over())
        try:
            while not over.done() and not self.declined:
                both = {over, self._asking} if self.is_open else {over}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                over.result()
        finally:
            over.cancel()

    async def close(self) -> None:
        """Ask no more."""
        self._asking.cancel()
        await asyncio.wait({self._asking})
        if not self._asking.cancelled():
            self._asking.exception()

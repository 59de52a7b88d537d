"""Show the user of a client the approval page while the call waits for a decision."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from gatepost.tools.context.client import InputRequest, Waiting
from gatepost.tools.context.elicitation import InvalidAnswer, check_answer


class ApprovalUrl:
    """
    A `Waiting` that also ends when the user of the client declines the page.

    *client_answer* shows the page and returns the client's answer, which is never a decision. If
    the client fails to show the page, it waits like a client that was not asked.
    """

    def __init__(
        self, waiting: Waiting, page: InputRequest, client_answer: Awaitable[Mapping[str, Any]]
    ) -> None:
        self.message, self.url = waiting.message, waiting.url
        self.message_with_url, self.retry_after_s = waiting.message_with_url, waiting.retry_after_s
        self._waiting, self._page = waiting, page
        self._client_answer = asyncio.ensure_future(client_answer)

    @property
    def is_open(self) -> bool:
        """Return whether the client still shows the page."""
        return not self._client_answer.done()

    @property
    def declined(self) -> bool:
        """Return whether the user of the client declined the page."""
        answer = self._client_answer
        if not answer.done() or answer.cancelled() or answer.exception() is not None:
            return False
        try:
            return bool(check_answer(self._page, answer.result())["action"] != "accept")
        except InvalidAnswer:
            return False

    async def over(self) -> None:
        """Return when the call is decided or the user declines; raises StoreUnavailable."""
        over = asyncio.ensure_future(self._waiting.over())
        try:
            while not over.done() and not self.declined:
                both = {over, self._client_answer} if self.is_open else {over}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                over.result()
        finally:
            over.cancel()

    async def close(self) -> None:
        """Stop showing the page."""
        self._client_answer.cancel()
        await asyncio.wait({self._client_answer})
        if not self._client_answer.cancelled():
            self._client_answer.exception()

"""What must be durable before an answer may leave, and who waits for it."""

import asyncio
from collections.abc import Callable, Generator, Mapping
from typing import Any

Start = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, fields and body of an answer."""
Refuse = Callable[[Mapping[str, Any]], Start]
"""Makes the answer for a scope whose own answer must not leave."""


class Broken(Exception):
    """What was to be durable is not, and nobody knows whether it ever will be."""


class Pledge:
    """
    One promise that many answers wait for: a batch of records on its way to the disk.

    A waiting coroutine costs ten times what a callback does (it is a task, woken through every
    frame of its call), so answers that are complete are handed over and leave with the batch.
    *refuse* makes what is said instead when the promise is broken. On the event loop only.
    """

    __slots__ = ("_heard", "broken", "kept", "refuse")

    def __init__(self, refuse: Refuse) -> None:
        self.kept = False
        self.broken = False
        self.refuse = refuse
        self._heard: list[Callable[[], object]] = []

    def then(self, heard: Callable[[], object]) -> None:
        """Call *heard* once, when this is settled; it must not raise."""
        if self.kept or self.broken:
            heard()
        else:
            self._heard.append(heard)

    def settle(self, *, kept: bool) -> None:
        """Say how it ended; everybody who waits hears of it now, in their order."""
        self.kept, self.broken = kept, not kept
        heard, self._heard = self._heard, []
        for one in heard:
            one()

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until it is kept; raises Broken."""
        if not (self.kept or self.broken):
            settled = asyncio.get_running_loop().create_future()

            def heard() -> None:
                if not settled.done():  # whoever waited may be cancelled
                    settled.set_result(None)

            self.then(heard)
            yield from settled
        if self.broken:
            raise Broken

"""What must be durable before an answer may leave, and who waits for it."""

import asyncio
from collections.abc import Callable, Generator
from typing import NamedTuple

Field = tuple[bytes, bytes]


class Instead(NamedTuple):
    """An answer that is said instead of another one; its length is added."""

    status: int
    fields: tuple[Field, ...]
    body: bytes


class Broken(Exception):
    """What was to be durable is not, and nobody knows whether it ever will be."""


class Pledge:
    """
    One promise that many answers wait for: a batch of records on its way to the disk.

    A waiting coroutine costs ten times what a callback does (it is a task, woken through every
    frame of its call), so answers that are complete are handed over and leave with the batch. On
    the event loop only.
    """

    __slots__ = ("_heard", "kept", "reason")

    def __init__(self) -> None:
        self.kept = False
        self.reason: str | None = None
        """Why it was broken."""
        self._heard: list[Callable[[], object]] = []

    def then(self, heard: Callable[[], object]) -> None:
        """Call *heard* once, when this is settled; it must not raise."""
        if self.kept or self.reason is not None:
            heard()
        else:
            self._heard.append(heard)

    def keep(self) -> None:
        """It is durable; everybody who waits hears of it now, in their order."""
        self.kept = True
        self._tell()

    def give_up(self, reason: str) -> None:
        """It is not; the same."""
        self.reason = reason
        self._tell()

    def _tell(self) -> None:
        heard, self._heard = self._heard, []
        for one in heard:
            one()

    def __await__(self) -> Generator[object, None, None]:
        """Wait until it is kept; raises Broken."""
        if not self.kept and self.reason is None:
            settled = asyncio.get_running_loop().create_future()

            def heard() -> None:
                if not settled.done():  # whoever waited may be cancelled
                    settled.set_result(None)

            self.then(heard)
            yield from settled
        if self.reason is not None:
            raise Broken(self.reason)

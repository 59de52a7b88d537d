"""A commit that calls wait for before their answers leave."""

import asyncio
from collections.abc import Generator

import msgspec


class CommitFailed(Exception):
    """The commit has failed, and may never be durable."""


class CommitFuture(msgspec.Struct, eq=False):
    """
    One commit that many calls await: a batch of records on its way to the disk.

    If the calls shared a future of asyncio, cancelling one of them would cancel it for all. For use
    on the event loop only.
    """

    durable: bool = False
    """Whether it is durable."""
    reason: str | None = None
    """Why it failed."""
    waiting: list["asyncio.Future[None]"] = []

    def resolve(self, reason: str | None = None) -> None:
        """Mark the commit as durable, or as failed for a reason; wake all waiters in order."""
        self.durable, self.reason = reason is None, reason
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            if not waiter.done():  # its task may be cancelled
                waiter.set_result(None)

    def __await__(self) -> Generator[object, None, None]:
        """Wait until it is durable; raises CommitFailed."""
        if not self.durable and self.reason is None:
            waiter = asyncio.get_running_loop().create_future()
            self.waiting.append(waiter)
            yield from waiter
        if self.reason is not None:
            raise CommitFailed(self.reason)


NO_COMMIT = CommitFuture(durable=True)
"""What the answer to a call waits for if it has no record to wait for."""
